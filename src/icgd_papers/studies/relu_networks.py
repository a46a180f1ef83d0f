r"""ReLU networks with given weights: the indicator of a ball, squares, products, smooth functions.

These are the networks behind Lemmas 2 and 3 of wang. A step of a network reads values, sends affine
forms of them through relu, and forms new values from the units:

    units = relu(enter [values; 1]),      values = leave [units; 1]

Between two steps `leave` and the next `enter` are one matrix, so that k steps are k hidden layers.
All matrices have their biases in the last column, as `icgd.MLP(..., biases=True)` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product as tuples
from math import factorial, floor, pi, prod, sqrt

import numpy as np
import torch
from torch import Tensor

from icgd.errors import SettingError
from icgd.problems.mlp import MLP
from icgd.problems.oracles import predict
from icgd.shapes import Parameters
from icgd_papers.studies.ball import UniformRadii
from icgd_papers.studies.two_layers import HardBall

Step = tuple[Tensor, Tensor]
"""The matrices `enter` and `leave`."""


@dataclass(frozen=True)
class ReluNetwork:
    """The matrices of a ReLU network with a linear output, biases in their last columns."""

    matrices: tuple[Tensor, ...]

    @cached_property
    def target(self) -> MLP:
        """The network without its weights."""
        first = self.matrices[0].shape[1] - 1
        widths = (first, *(len(matrix) for matrix in self.matrices))
        return MLP(widths, "relu", biases=True)

    @property
    def parameters(self) -> Parameters:
        """The weights as icgd orders them."""
        return torch.cat([matrix.flatten() for matrix in self.matrices])

    @property
    def width(self) -> int:
        """The units of the widest hidden layer."""
        return max(self.target.widths[1:-1])

    @property
    def n_units(self) -> int:
        """The units of all hidden layers."""
        return sum(self.target.widths[1:-1])

    def __call__(self, x: Tensor) -> Tensor:
        return predict(self.target, self.parameters, x)


def joined(steps: Sequence[Step]) -> ReluNetwork:
    """Join steps: inputs are the values of the first, outputs those of the last."""
    matrices, leave = [steps[0][0]], steps[0][1]
    for enter, following in steps[1:]:
        matrices.append(enter @ _with_one(leave))
        leave = following
    return ReluNetwork((*matrices, leave))


def _with_one(affine: Tensor) -> Tensor:
    """Append a row that passes the constant 1 on."""
    one = torch.zeros(1, affine.shape[1], dtype=affine.dtype)
    one[0, -1] = 1
    return torch.cat((affine, one))


def side_by_side(maps: Sequence[Tensor]) -> Tensor:
    """Apply affine maps to values of their own."""
    linear = torch.block_diag(*(matrix[:, :-1] for matrix in maps))
    return torch.cat((linear, torch.cat([matrix[:, -1:] for matrix in maps])), dim=1)


def _rows(*rows: Sequence[int | float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# The indicator of the unit ball, Lemma 2.


@dataclass(frozen=True)
class BallIndicator:
    """A network of 2 J d and 2 units: 1 in the unit ball and 0 outside, except in a shell.

    Every x_i^2 is interpolated linearly between knots h/2, 3h/2, .. on both sides of 0,

        h^2 / 4 + 2 h sum_j relu(|x_i| - (j - 1/2) h),      j = 1 .. J,

    which is exact at the knots and at most h^2 / 4 too large between them, by h^2 / 6 in the mean.
    So S = the sum over i less d h^2 / 6 is off by -d h^2 / 6 to d h^2 / 12 where all |x_i| are
    within reach, (J + 1/2) h. The second layer is a ramp from 1 at S = 1 - r to 0 at S = 1 + r. The
    reach is such that S >= 1 + r beyond it.

    Attributes:
        dimension: d.
        n_knots: J; (J + 1/2)^2 must exceed d (1/6 + softness).
        softness: r / (d h^2).
    """

    dimension: int
    n_knots: int
    softness: float = 0.02

    @property
    def spacing(self) -> float:
        """h, from (J + 1/2)^2 h^2 = 1 + d h^2 / 6 + r."""
        excess = (self.n_knots + 0.5) ** 2 - self.dimension * (1 / 6 + self.softness)
        if excess <= 0:
            raise SettingError(
                f"{self.n_knots} knots on each side are too few for {self.dimension} dimensions; "
                f"give at least {fewest_knots(self.dimension, self.softness)}."
            )
        return float(excess**-0.5)

    @property
    def ramp(self) -> float:
        """r, half of the width of the ramp."""
        return self.softness * self.dimension * self.spacing**2

    @property
    def shell(self) -> tuple[float, float]:
        """The least and the largest |x|^2 at which the network may differ from the indicator."""
        error = self.dimension * self.spacing**2
        return max(1 - self.ramp - error / 12, 0.0), 1 + self.ramp + error / 6

    @cached_property
    def network(self) -> ReluNetwork:
        """The network with its weights."""
        h, d = self.spacing, self.dimension
        knots = h * (torch.arange(self.n_knots, dtype=torch.float64) + 0.5)
        axes = torch.eye(d, dtype=torch.float64)
        signed = torch.cat((axes, -axes)).repeat_interleave(self.n_knots, 0)
        enter = torch.cat((signed, -knots.repeat(2 * d)[:, None]), dim=1)
        total = torch.full((1, len(enter) + 1), 2 * h, dtype=torch.float64)
        total[0, -1] = d * (h**2 / 4 - h**2 / 6)
        slope = 1 / (2 * self.ramp)
        ramp = _rows([-slope, slope + 0.5], [-slope, slope - 0.5])
        return joined([(enter, total), (ramp, _rows([1, -1, 0]))])


RadialLaw = UniformRadii | HardBall
"""Laws of points whose direction is uniform."""


def indicator_error(
    indicator: BallIndicator, law: RadialLaw, n_points: int, generator: np.random.Generator
) -> float:
    """Return the mean squared error under a law, from random points of the shell."""
    radii = law.radii(*indicator.shell, generator.random(n_points))
    normal = generator.standard_normal((n_points, indicator.dimension))
    x = torch.from_numpy(radii[:, None] * normal / np.linalg.norm(normal, axis=1, keepdims=True))
    outputs = torch.cat([indicator.network(rows)[:, 0] for rows in x.split(10_000)])
    squares = (outputs - torch.from_numpy(radii <= 1).double()).square()
    return law.probability(*indicator.shell) * float(squares.mean())


def smallest_indicator(dimension: int, law: RadialLaw, error: float) -> BallIndicator:
    """Return the narrowest network whose shell has at most this probability."""
    n_knots = fewest_knots(dimension)
    while law.probability(*BallIndicator(dimension, n_knots).shell) > error:
        n_knots += 1
    return BallIndicator(dimension, n_knots)


def fewest_knots(dimension: int, softness: float = 0.02) -> int:
    """Return the least number of knots on each side for which there is a spacing."""
    return floor(sqrt(dimension * (1 / 6 + softness)) - 0.5) + 1


# Squares and products, by Yarotsky's sawtooth.


def square(depth: int) -> ReluNetwork:
    """Return the network of x^2 on [0, 1] with `depth` hidden layers.

    It is x - sum_s g_s(x) / 4^s with the hat g(x) = 2 relu(x) - 4 relu(x - 1/2) iterated s times:
    exact at multiples of 2^-depth, and at most 4^-(depth + 1) too large between them.
    """
    return joined(_teeth(depth))


def product(depth: int) -> ReluNetwork:
    """Return the network of x y on [-1, 1]^2, as the difference of squares of |x + y|/2, |x - y|/2.

    Its error is at most that of the square, and it is 0 where a factor is 0.
    """
    return joined(list(_products([(0, 1)], (), 2, depth)))


def _teeth(depth: int) -> list[Step]:
    """Square one value in [0, 1]; between two steps the values are g_s and what is left of x."""
    first = _rows([1, 0], [1, -0.5])
    later = _rows([1, 0, 0], [1, 0, -0.5], [0, 1, 0])
    steps = []
    for s in range(1, depth + 1):
        hat = torch.tensor([2.0, -4.0, 0.0, 0.0] if s > 1 else [2.0, -4.0, 0.0]).double()
        remainder = -hat / 4**s
        remainder[2 if s > 1 else 0] += 1
        leave = torch.stack((hat, remainder)) if s < depth else remainder[None]
        steps.append((later if s > 1 else first, leave))
    return steps


CARRY = (_rows([1, 1]), _rows([1, -1]))
"""Pass on a value in [-1, 1]."""


def _products(
    pairs: Sequence[tuple[int, int]], carried: Sequence[int], n_values: int, depth: int
) -> Iterator[Step]:
    """Replace values by the products of some pairs, followed by those that are carried."""
    halves = torch.zeros(4 * len(pairs) + len(carried), n_values + 1, dtype=torch.float64)
    for place, (i, j) in enumerate(pairs):
        for row, (a, b) in enumerate(((0.5, 0.5), (-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5))):
            halves[4 * place + row, i] += a
            halves[4 * place + row, j] += b
    for place, i in enumerate(carried):
        halves[4 * len(pairs) + place, i] = halves[4 * len(pairs) + place, -1] = 1
    sizes = [_rows([1, 1, 0])] * 2 * len(pairs)
    yield halves, side_by_side([*sizes, *[CARRY[1]] * len(carried)])
    difference = _rows([1, -1, 0])
    for s, (enter, leave) in enumerate(_teeth(depth), start=1):
        enters = [enter] * 2 * len(pairs) + [CARRY[0]] * len(carried)
        both = side_by_side([leave, leave])
        if s == depth:
            both = difference @ _with_one(both)
        yield side_by_side(enters), side_by_side([both] * len(pairs) + [CARRY[1]] * len(carried))


# Smooth functions, Lemma 3.


def exponents(dimension: int, order: int) -> list[tuple[int, ...]]:
    """Return the exponents of all monomials of degree below `order`, by degree."""
    every = tuples(range(order), repeat=dimension)
    return sorted((x for x in every if sum(x) < order), key=lambda x: (sum(x), x))


@lru_cache(maxsize=64)
def monomials(dimension: int, order: int, depth: int) -> ReluNetwork:
    """Return the network of phi(t) t^a for all exponents a, t in R^d.

    phi(t) is the product of hats 1 - |t_i|, 0 beyond [-1, 1]. The hats are multiplied one by one;
    then each degree is the degree below, multiplied by one of the t_i.
    """
    d = dimension
    enter = side_by_side([_rows([1, 1], [1, 0], [1, -1])] * d)
    both = side_by_side([_rows([1, -2, 1, 0], [1, 0, -1, -1])] * d)
    steps = [(enter, torch.cat((both[0::2], both[1::2])))]  # all hats, then all t_i
    for left in range(d, 1, -1):
        n_values = left + d
        steps += _products([(0, 1)], range(2, n_values), n_values, depth)
    every = exponents(d, order)
    done = every[:1]  # values are the monomials done so far and all t_i, in this order
    for degree in range(1, order):
        of_degree = [x for x in every if sum(x) == degree]
        pairs = []
        for exponent in of_degree:
            axis = next(i for i in range(d) if exponent[i])
            below = tuple(e - (i == axis) for i, e in enumerate(exponent))
            pairs.append((done.index(below), len(done) + axis))
        n_values, is_last = len(done) + d, degree == order - 1
        carried = range(len(done) if is_last else n_values)
        steps += _products(pairs, carried, n_values, depth)
        leave = steps[-1][1]
        n_new, n_old = len(pairs), len(done)
        leave = torch.cat((leave[n_new : n_new + n_old], leave[:n_new], leave[n_new + n_old :]))
        steps[-1] = (steps[-1][0], leave)
        done = done + of_degree
    if order == 1:
        steps[-1] = (steps[-1][0], steps[-1][1][:1])
    return joined(steps)


Derivatives = Callable[[tuple[int, ...], Tensor], Tensor]
"""Maps an exponent and points to that partial derivative there."""


@dataclass(frozen=True)
class SmoothNetwork:
    """A network for every function of F_{d,n}: |all derivatives up to order n| <= 1 on [0, 1]^d.

    It is the sum over a grid of N + 1 points p a side of phi(N (x - p)) times the Taylor polynomial
    of degree n - 1 at p. All hidden weights are the same for all functions; derivatives are
    coefficients of the output.
    """

    dimension: int
    order: int
    n_cells: int

    @property
    def taylor_error(self) -> float:
        """The bound of what exact products leave.

        A Taylor polynomial is off by at most |t|_1^n / (n! N^n) with t = N (x - p), and |t|_1^n is
        at most d^(n-1) times the sum of |t_i|^n. Weighted by the hats each of these is at most
        t (1 - t) (t^(n-1) + (1 - t)^(n-1)): 1/4, and 1/2 for n = 1.
        """
        d, n = self.dimension, self.order
        return (0.5 if n == 1 else 0.25) * (d / self.n_cells) ** n / factorial(n)

    def product_error(self, depth: int) -> float:
        """Return the bound of what inexact products add.

        phi is off by d - 1 errors of a product, and a monomial of degree k by k more; 2^d points of
        the grid are within reach, and the coefficients of degree k add up to (d / N)^k / k!.
        """
        d = self.dimension
        each = ((d - 1 + k) * (d / self.n_cells) ** k / factorial(k) for k in range(self.order))
        return float(2**d * sum(each) * 4.0 ** -(depth + 1))

    @cached_property
    def depth(self) -> int:
        """The layers of a square that make products err by half of the Taylor error at most."""
        depth = 1
        while self.product_error(depth) > self.taylor_error / 2:
            depth += 1
        return depth

    @property
    def bound(self) -> float:
        """The error for every function of F_{d,n}."""
        return self.taylor_error + self.product_error(self.depth)

    @property
    def block(self) -> ReluNetwork:
        """The part that belongs to one point of the grid."""
        return monomials(self.dimension, self.order, self.depth)

    @property
    def n_blocks(self) -> int:
        """The points of the grid."""
        return int((self.n_cells + 1) ** self.dimension)

    @property
    def n_units(self) -> int:
        """The units of all blocks."""
        return self.n_blocks * self.block.n_units

    @property
    def n_layers(self) -> int:
        """The hidden layers."""
        return len(self.block.matrices) - 1

    def coefficients(self, derivative: Derivatives, points: Tensor) -> Tensor:
        """Return the Taylor coefficients in t at points of the grid, a column for each monomial."""
        columns = [
            derivative(exponent, points)
            / (self.n_cells ** sum(exponent) * prod(map(factorial, exponent)))
            for exponent in exponents(self.dimension, self.order)
        ]
        return torch.stack(columns, dim=-1)

    def network(self, derivative: Derivatives) -> ReluNetwork:
        """Return the whole network for one function; small grids only, as matrices are dense."""
        side = torch.arange(self.n_cells + 1, dtype=torch.float64)
        grid = torch.cartesian_prod(*[side] * self.dimension).reshape(-1, self.dimension)
        first, *hidden, last = self.block.matrices
        entered = [
            torch.cat(
                (self.n_cells * first[:, :-1], first[:, -1:] - first[:, :-1] @ p[:, None]), dim=1
            )
            for p in grid
        ]
        weights = self.coefficients(derivative, grid / self.n_cells).reshape(1, -1)
        out = torch.cat((weights, torch.zeros(1, 1).double()), dim=1)
        blocks = [side_by_side([matrix] * len(grid)) for matrix in hidden]
        leave = out @ _with_one(side_by_side([last] * len(grid)))
        return ReluNetwork((torch.cat(entered), *blocks, leave))

    def values(self, derivative: Derivatives, x: Tensor) -> Tensor:
        """Return the outputs at points (n, d): of the 2^d blocks that are not 0 there."""
        cell = (self.n_cells * x).floor().clamp(0, self.n_cells - 1)
        total = torch.zeros(len(x), dtype=torch.float64)
        for corner in tuples((0.0, 1.0), repeat=self.dimension):
            p = cell + torch.tensor(corner).double()
            monomial = self.block(self.n_cells * x - p)
            total += (monomial * self.coefficients(derivative, p / self.n_cells)).sum(-1)
        return total


def cosines(exponent: tuple[int, ...], x: Tensor) -> Tensor:
    """Return a partial derivative of cos(x_1) .. cos(x_d), whose derivatives are all at most 1."""
    shifts = torch.tensor([k * pi / 2 for k in exponent], dtype=torch.float64)
    return torch.cos(x + shifts).prod(-1)
