r"""What the theorems of cot promise of a run whose every step is off by a little.

Theorems 3.1 and 3.2 (strongly convex: generalised linear models, ridge) and 3.3 (lasso), with
D = |w_0 - w*| (the paper starts at 0 and writes B_w / 2 or R / 2), L steps, each off by at most
eps in the 2-norm, and the step size eta <= 1 / beta:

    |w_L - w*|    <= L eps + exp(-eta alpha L / 2) D
    F(w_L) - F*   <= (C + 2 beta D + l1 sqrt(p)) L eps + beta (L eps)^2 / 2 + D^2 / (2 eta L)

C is the norm of the gradient of the smooth part at w_0, p counts the penalised coefficients. At
eta = 1 / beta these are the paper's forms; it allows 2 / beta, at which the rates fail. An exact
step, proximal or not, multiplies distances by at most q = 1 - eta alpha. Used at every step,
against errors too, that gives more:

    |w_L - w*|    <= q^L D + eps (1 - q^L) / (1 - q)  =: d
    F(w_L) - F*   <= 2 l1 sqrt(p) d + beta d^2 / 2
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, sqrt

from icgd.errors import SettingError
from icgd.problems.curvature import Curvature

ROUNDING = 1e-9
"""By how much a step may exceed 1 / beta, relatively: eigenvalues are computed to 1e-12."""


@dataclass(frozen=True)
class InexactDescent:
    """A run of `n_steps` steps from `start_distance` of the minimiser, each off by `step_error`.

    Both are 2-norms: an error of e in each of p coefficients is sqrt(p) e. `curvature` must hold
    on the ball of `radius` around the minimiser, which no step leaves.
    """

    curvature: Curvature
    step_size: float
    start_distance: float
    step_error: float
    n_steps: int

    def __post_init__(self) -> None:
        if self.step_size * self.curvature.largest > 1 + ROUNDING:
            raise SettingError(
                f"step_size={self.step_size:g} is above 1 / beta = {1 / self.curvature.largest:g}, "
                "and the theorems say nothing. Shorten the step, or leave it out to have it chosen "
                "from the data."
            )

    @property
    def radius(self) -> float:
        """How far from the minimiser the run can come: D + L eps."""
        return self.start_distance + self.n_steps * self.step_error

    @property
    def contraction(self) -> float:
        """q = 1 - eta alpha."""
        return self.curvature.contraction(self.step_size)

    def distance_of_theorem(self) -> float:
        """Theorems 3.1 and 3.2: at most how far the run ends from the minimiser."""
        rate = self.step_size * self.curvature.smallest / 2
        return self.n_steps * self.step_error + exp(-rate * self.n_steps) * self.start_distance

    def distance(self) -> float:
        """A bound on the same distance by contraction at every step, which does not grow with L."""
        left = self.contraction**self.n_steps
        return left * self.start_distance + self.step_error * self._piled_up

    @property
    def _piled_up(self) -> float:
        """1 + q + ... + q^(L-1): by this factor the errors of single steps add up."""
        if self.contraction == 1:
            return float(self.n_steps)
        return (1 - self.contraction**self.n_steps) / (1 - self.contraction)

    def excess_of_theorem(self, start_gradient: float, l1: float, n_penalised: int) -> float:
        """Theorem 3.3: at most how far the objective ends above its minimum; infinite at L = 0."""
        beta, off = self.curvature.largest, self.n_steps * self.step_error
        slope = start_gradient + 2 * beta * self.start_distance + l1 * sqrt(n_penalised)
        length = 2 * self.step_size * self.n_steps
        exact = self.start_distance * self.start_distance / length if length else inf
        return slope * off + beta * (off * off) / 2 + exact

    def excess(self, l1: float, n_penalised: int) -> float:
        """A bound on the same excess, as no entry of the minimiser's gradient is larger than l1."""
        distance = self.distance()
        at_minimiser = 2 * l1 * sqrt(n_penalised) * distance
        return at_minimiser + self.curvature.largest * (distance * distance) / 2
