"""Linear models in 300 bits: the minimiser itself, and numbers at given coefficients.

The float64 minimiser says only which coefficients are 0, at the box or free. The free ones are
found by Newton steps, and then every condition of the minimum is checked, with its error.
"""

from dataclasses import dataclass
from math import inf

from flint import arb, arb_mat, ctx, fmpq
from torch import Tensor

from icgd.problems.data import Task
from icgd.problems.oracles import LinearOracle

BITS, N_NEWTON = 300, 14

MEANS = {
    "identity": lambda z: z,
    "logistic": lambda z: 1 / (1 + (-z).exp()),
    "probit": lambda z: (-z / arb(2).sqrt()).erfc() / 2,
    "poisson": lambda z: z.exp(),
    "softplus": lambda z: (1 + z.exp()).log(),
    "cauchit": lambda z: arb(1) / 2 + z.atan() / arb.pi(),
    "cloglog": lambda z: 1 - (-z.exp()).exp(),
    "tanh": lambda z: z.tanh(),
}
SLOPES = {
    "identity": lambda z: arb(1),
    "logistic": lambda z: 1 / (2 + z.exp() + (-z).exp()),
    "probit": lambda z: (-z * z / 2).exp() / (2 * arb.pi()).sqrt(),
    "poisson": lambda z: z.exp(),
    "softplus": lambda z: 1 / (1 + (-z).exp()),
    "cauchit": lambda z: 1 / (arb.pi() * (1 + z * z)),
    "cloglog": lambda z: (z - z.exp()).exp(),
    "tanh": lambda z: z.sech() ** 2,
}
POTENTIALS = {
    "identity": lambda z: z * z / 2,
    "logistic": lambda z: (1 + z.exp()).log(),
    "probit": lambda z: z * MEANS["probit"](z) + SLOPES["probit"](z),
    "poisson": lambda z: z.exp(),
    "softplus": lambda z: -(-z.exp()).polylog(2),
    "cauchit": lambda z: z * MEANS["cauchit"](z) - (1 + z * z).log() / (2 * arb.pi()),
    "cloglog": lambda z: z - (-z.exp()).ei() + arb(-1).ei(),  # E_1(t) = -Ei(-t)
    "tanh": lambda z: z.cosh().log(),
}


def exactly(values: Tensor) -> list[arb]:
    """The numbers of a tensor, which are fractions."""
    return [arb(fmpq(*value.as_integer_ratio())) for value in values.double().flatten().tolist()]


@dataclass(frozen=True)
class Precise:
    """One task of a linear model."""

    oracle: LinearOracle
    rows: list[list[arb]]
    labels: list[arb]

    @classmethod
    def of(cls, oracle: LinearOracle, task: Task) -> "Precise":
        ctx.prec = BITS
        design = oracle.target.design(task.x)
        return cls(oracle, [exactly(row) for row in design], exactly(task.y))

    @property
    def scale(self) -> arb:
        return arb(1) / len(self.rows) if self.oracle.target.reduction == "mean" else arb(1)

    def _number(self, name: str) -> arb:
        return arb(fmpq(*getattr(self.oracle.update, name).as_integer_ratio()))

    def _is_penalised(self, place: int) -> bool:
        return place < self.oracle.target.input_width

    def scores(self, w: list[arb]) -> list[arb]:
        pairs = ([a * b for a, b in zip(row, w, strict=True)] for row in self.rows)
        return [sum(terms, arb(0)) for terms in pairs]

    def objective(self, w: list[arb]) -> arb:
        potential = POTENTIALS[self.oracle.target.link]
        pairs = zip(self.scores(w), self.labels, strict=True)
        losses = sum((potential(z) - y * z for z, y in pairs), arb(0))
        own = [value for place, value in enumerate(w) if self._is_penalised(place)]
        ridge = sum((value * value for value in own), arb(0)) / 2
        lasso = sum((abs(value) for value in own), arb(0))
        return self.scale * losses + self._number("l2") * ridge + self._number("l1") * lasso

    def gradient(self, w: list[arb]) -> list[arb]:
        mean, l2 = MEANS[self.oracle.target.link], self._number("l2")
        left = [mean(z) - y for z, y in zip(self.scores(w), self.labels, strict=True)]
        pulled = [
            self.scale * sum((r * row[j] for r, row in zip(left, self.rows, strict=True)), arb(0))
            for j in range(len(w))
        ]
        return [g + l2 * w[j] if self._is_penalised(j) else g for j, g in enumerate(pulled)]

    def hessian(self, w: list[arb], free: list[int]) -> arb_mat:
        slope, l2 = SLOPES[self.oracle.target.link], self._number("l2")
        slopes = [slope(z) for z in self.scores(w)]
        weighted = list(zip(slopes, self.rows, strict=True))

        def entry(j: int, k: int) -> arb:
            total = self.scale * sum((s * row[j] * row[k] for s, row in weighted), arb(0))
            return total + l2 if j == k and self._is_penalised(j) else total

        return arb_mat([[entry(j, k) for k in free] for j in free])

    def minimiser(self, near: Tensor) -> list[arb]:
        """The minimiser whose zeros and places at the box are those of `near`."""
        sides, free = self._sides(near), self._free(near)
        w = exactly(near)
        for _ in range(N_NEWTON if free else 0):
            gradient = self.gradient(w)
            left = arb_mat([[gradient[j] + sides[j]] for j in free])
            step = self.hessian(w, free).solve(left)
            for row, j in enumerate(free):
                w[j] = (w[j] - step[row, 0]).mid()
        self._require_minimum(w, sides, free)
        return w

    def _sides(self, near: Tensor) -> list[arb]:
        """What l1 adds to the gradient."""
        l1, signs = self._number("l1"), near.sign().int().tolist()
        return [l1 * sign if self._is_penalised(j) else arb(0) for j, sign in enumerate(signs)]

    def _free(self, near: Tensor) -> list[int]:
        update = self.oracle.update
        box = float("inf") if update.box is None else update.box
        kinks = [self._is_penalised(j) and update.l1 > 0 for j in range(len(near))]
        values = enumerate(near.tolist())
        return [j for j, value in values if abs(value) < box and (value != 0 or not kinks[j])]

    def _require_minimum(self, w: list[arb], sides: list[arb], free: list[int]) -> None:
        l1 = self._number("l1")
        for j, (g, side) in enumerate(zip(self.gradient(w), sides, strict=True)):
            if j in free:
                assert abs(g + side) < arb(2) ** (-BITS // 2), "it is not stationary"
                assert l1 == 0 or not self._is_penalised(j) or side * w[j] > 0, "a sign turned"
            elif w[j] == 0:
                assert abs(g) <= l1, "a coefficient wants to leave 0"
            else:
                assert (g + side) * w[j] <= 0, "a coefficient wants to leave the box"

    def distance(self, here: Tensor, there: list[arb]) -> arb:
        """|here - there|."""
        pairs = zip(exactly(here), there, strict=True)
        return sum(((a - b) ** 2 for a, b in pairs), arb(0)).sqrt()


def at_most(value: arb, bound: float) -> bool:
    """Whether a number, known to 60 digits, is not above a bound."""
    assert value.rad() < arb(10) ** -60 * (1 + abs(value.mid()))
    return bound == inf or not value > arb(fmpq(*bound.as_integer_ratio()))
