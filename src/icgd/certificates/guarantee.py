r"""What Theorems 3.1 to 3.3 of cot promise of a run, with real constants, beside what it did.

The constants are taken from the data: alpha and beta on the ball that the run cannot leave, the
distance D of the start from the minimiser, and eps, the proved error of a step in the 2-norm. The
minimiser is found by exact descent from where the run ends, and is known as well as the last exact
step says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from torch import Tensor

from icgd.certificates.linear_bound import LinearBounds, norm
from icgd.errors import DataError
from icgd.problems.curvature import curvature, over_ball
from icgd.problems.guarantees import InexactDescent, distance_to_minimiser
from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.task import Task
from icgd.shapes import History

STILL = 1e-14
"""A step that moves no coefficient by more than this, relatively, has arrived."""

MOST_STEPS = 100_000
"""The most exact steps from the end of the run to the minimiser; then it is known less well."""

RADII = (1.0, 1e-2, 1e-4, 1e-6, 1e-8)
"""Radii, relatively, of the balls in which a fixed point of the exact step is looked for."""


@dataclass(frozen=True)
class Guarantee:
    """A run of `n_steps` steps: how far it ends from the minimiser, and how far at most.

    `distance` is |w_L - w*| and `excess` F(w_L) - F(w*), each known up to its slack, which is
    infinite if the risk is flat around the minimiser: there may then be others. The bounds are
    `distance_bound` of Theorem 3.1 or 3.2, `excess_bound` of Theorem 3.3, and `contraction_bound`
    of the distance, which uses that an exact step is a contraction at every step.
    """

    theorem: str
    n_steps: int
    step_size: float
    smallest_curvature: float
    largest_curvature: float
    start_distance: float
    step_error: float
    distance: float
    distance_slack: float
    distance_bound: float
    contraction_bound: float
    excess: float
    excess_slack: float
    excess_bound: float

    @property
    def holds(self) -> bool:
        """Whether the run keeps every promise, as far as the minimiser is known."""
        nearest = self.distance - self.distance_slack
        return (
            nearest <= min(self.distance_bound, self.contraction_bound)
            and self.excess <= self.excess_bound
        )


@dataclass(frozen=True)
class _Minimiser:
    """Where exact descent ends, how far that may be from the minimiser, and F above its minimum."""

    parameters: Tensor
    distance: float
    excess: float


def check_guarantee(bounds: LinearBounds, task: Task, history: History) -> Guarantee:
    """Compare a run on one task with the theorems.

    Raises `SettingError` if its step is longer than they allow, 1 / beta, and `SeparableDataError`
    if there is no minimiser.
    """
    if task.batch:
        expected = "(n, d_x): one task at a time"
        raise DataError.wrong_shape("X", task.x.shape, expected)
    oracle = bounds.problem.linear_oracle
    model, update, history, x = oracle.target, oracle.update, history.double(), task.x.double()
    found = _minimiser(oracle, replace(task, initial=history[-1]))
    added = norm(bounds.errors(task, history))
    step_error = float(added.max()) if added.numel() else 0.0
    known = found.distance if found.distance < inf else 0.0
    start = float((history[0] - found.parameters).norm()) + known
    n_steps = len(history) - 1
    ball = over_ball(model, x, found.parameters, start + n_steps * step_error + known)
    curved, size = curvature(model, update, x, ball), update.step_size or 0.0
    promised = InexactDescent(curved, size, start, step_error, n_steps)
    slope = float(oracle.gradient(task, history[0]).norm())
    ends = [oracle.objective(task, point) for point in (history[-1], found.parameters)]
    return Guarantee(
        theorem="3.3" if update.l1 else "3.2" if model.link == "identity" else "3.1",
        n_steps=n_steps,
        step_size=size,
        smallest_curvature=curved.smallest,
        largest_curvature=curved.largest,
        start_distance=start,
        step_error=step_error,
        distance=float((history[-1] - found.parameters).norm()),
        distance_slack=found.distance,
        distance_bound=promised.distance_of_theorem(),
        contraction_bound=promised.distance(),
        excess=float(ends[0] - ends[1]),
        excess_slack=found.excess,
        excess_bound=promised.excess_of_theorem(slope, update.l1, model.input_width),
    )


def _minimiser(oracle: LinearOracle, task: Task) -> _Minimiser:
    """G = (w - Tw) / eta gives F(Tw) - F* <= <G, w - w*>, by convexity and eta <= 1 / beta."""
    tolerance = STILL * max(1.0, float(task.initial.abs().max()))
    near = oracle.descend(task, tolerance=tolerance, most_steps=MOST_STEPS).weights
    last = oracle.step(task, near)
    change, size = float((last - near).norm()), oracle.update.step_size or 1.0
    before = _distance(oracle, near, change, task.x.double())
    return _Minimiser(last, before + change, change / size * before if change else 0.0)


def _distance(oracle: LinearOracle, point: Tensor, change: float, x: Tensor) -> float:
    """The largest distance of a point from the minimiser if an exact step moves it by `change`.

    A step that contracts a ball by q maps it into itself if `change` is at most 1 - q of its
    radius, and then has its fixed point there.
    """
    model, update = oracle.target, oracle.update
    for radius in (max(1.0, float(point.norm())) * share for share in RADII):
        curved = curvature(model, update, x, over_ball(model, x, point, radius))
        distance = distance_to_minimiser(curved, update.step_size or 1.0, change)
        if distance <= radius:
            return distance
    return inf
