r"""Compare a run with the guarantees of Theorems 3.1 to 3.3 of cot, with actual constants.

Theorems 3.1 and 3.2 bound a distance (generalised linear models and ridge), Theorem 3.3 an
objective (lasso; with l1 = 0 it covers the others too). With D = |w_0 - w*| (the paper starts at
0 and writes B_w / 2 or R / 2) and L steps of size eta, each with an error of at most eps in the
2-norm:

    |w_L - w*|    <= L eps + q^L D,    q = max(1 - eta alpha, eta beta - 1),    eta < 2 / beta
    F(w_L) - F*   <= (C + 2 beta D + l1 sqrt(p)) L eps + beta (L eps)^2 / 2 + D^2 / (2 eta L),
                     eta <= 1 / beta

C is the norm of the gradient of the smooth part at w_0, p counts the penalised coefficients. The
printed rates exp(-L / 2 kappa) and beta R^2 / 8 L hold for eta = 1 / beta, and fail for other step
sizes that the paper allows. An exact step, proximal or not, multiplies distances by at most q.
Applied to the errors too, this gives a tighter bound, also for a lasso:

    |w_L - w*|    <= q^L D + eps (1 - q^L) / (1 - q)

alpha and beta are the curvature at the scores that the run and the minimiser can have, and eps is
the proved error of a step. The minimiser, and with it D, is measured: Newton steps find it, and its
accuracy is estimated (`problems/minimiser.py`). Where the risk is flat around it there may be
others, and no distance is bounded. Theorem 3.3 then still holds for any point u instead of w*: it
bounds F(w_L) - F(u), where u is the point found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from math import inf, sqrt

from icgd.certificates.enclosures import norm
from icgd.certificates.linear import LinearBounds
from icgd.errors import DataError, SettingError
from icgd.problems.convergence import allowed_scores
from icgd.problems.data import Task
from icgd.problems.linear_model import LinearModel
from icgd.problems.minimiser import Minimiser, find_minimiser, objective_rounding, sum_rounding
from icgd.problems.problem import Problem
from icgd.problems.spectrum import Curvature, Scores, common, curvature, over_ball, spanned
from icgd.reprs import number, with_repr
from icgd.shapes import History, Inputs

STEP_ROUNDING = 1e-9
"""Relative tolerance when a step size is compared with 1 / beta: eigenvalues are computed to 1e-12.
"""


@dataclass(frozen=True)
class InexactDescent:
    """A run of `n_steps` steps with errors `step_error`, `start_distance` from the minimiser.

    Both are 2-norms: an error of e in each of p coefficients is sqrt(p) e. `curvature` must hold
    within `start_distance` + `n_steps` * `step_error` of the minimiser, a ball that no step leaves.
    """

    curvature: Curvature
    step_size: float
    start_distance: float
    step_error: float
    n_steps: int

    def __post_init__(self) -> None:
        if self.step_size * self.curvature.largest >= 2:
            raise SettingError(
                f"step_size={self.step_size:g} must be below 2 / beta = "
                f"{2 / self.curvature.largest:g}: longer steps need not converge, and the theorems "
                "promise nothing. Shorten the step, or leave it out to have 1 / beta chosen from "
                "the data."
            )

    def distance_of_theorem(self) -> float:
        """Bound the distance of the end from the minimiser by Theorems 3.1 and 3.2."""
        rate = self.curvature.contraction(self.step_size) ** self.n_steps
        return self.n_steps * self.step_error + rate * self.start_distance

    def distance(self) -> float:
        """Bound the same distance by contraction at every step, which does not grow with L."""
        factor = self.curvature.contraction(self.step_size)
        decay = factor**self.n_steps
        geometric_sum = float(self.n_steps) if factor == 1 else (1 - decay) / (1 - factor)
        return decay * self.start_distance + self.step_error * geometric_sum

    def excess_of_theorem(self, start_gradient: float, l1: float, n_penalised: int) -> float:
        """Bound the objective above its minimum by Theorem 3.3.

        Infinite at L = 0 and for steps above 1 / beta, where its rate fails.
        """
        if self.step_size * self.curvature.largest > 1 + STEP_ROUNDING:
            return inf
        beta, total_error = self.curvature.largest, self.n_steps * self.step_error
        slope = start_gradient + 2 * beta * self.start_distance + l1 * sqrt(n_penalised)
        length = 2 * self.step_size * self.n_steps
        exact = self.start_distance * self.start_distance / length if length else inf
        return slope * total_error + beta * (total_error * total_error) / 2 + exact


class Outcome(Enum):
    """Whether the guarantees hold, as measured against the minimiser that was found."""

    KEPT = "Every promise is kept, as measured."
    BROKEN = "A promise is broken, as measured: the construction, its lowering or a proof is wrong."
    NOT_KNOWN = (
        "Whether every promise is kept is not known, because the minimiser is not known well "
        "enough: the objective is flat around it, or nearly so."
    )


@with_repr
@dataclass(frozen=True)
class Guarantee:
    """The distance of a linear model's run from the minimiser, beside its guaranteed bounds.

    Distances are measured from the minimiser that Newton steps find; the slacks estimate its
    accuracy. A slack is infinite if the accuracy is unknown, and a bound if nothing is guaranteed.

    Attributes:
        theorem: the theorem of cot for the model: "3.1" for generalised linear models, "3.2" for
            ridge, "3.3" with an l1 penalty.
        n_steps: the number L of steps.
        step_size: their size.
        smallest_curvature: alpha, taken from the data.
        largest_curvature: beta, taken from the data.
        start_distance: the measured distance of the start from the minimiser, with its slack.
        step_error: the proved error of a step, in the 2-norm.
        distance: |w_L - w*|, measured.
        distance_slack: an estimate of the error of `distance`.
        distance_bound: the bound of Theorem 3.1 or 3.2 on `distance`; Theorem 3.3 has none.
        contraction_bound: another bound on `distance`, which uses that every exact step is a
            contraction.
        excess: F(w_L) - F(w*), measured.
        excess_slack: an estimate of how much larger the true excess may be.
        excess_rounding: a bound on the rounding of `excess`, in either direction.
        excess_bound: the bound of Theorem 3.3 on `excess`, for steps up to 1 / beta.
        backend: the backend that ran.
        fused_because: why the fused backend ran, if it was not requested.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "linear-stack", n_steps=9)
        >>> found = icgd.guarantee(compiled, [[1.0, 0.0], [0.0, 1.0]], [1.0, -0.5])
        >>> found.distance <= found.distance_bound, found.verdict.value
        (True, 'Every promise is kept, as measured.')
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
    excess_rounding: float
    excess_bound: float
    backend: str = ""
    fused_because: str | None = None

    def facts(self) -> dict[str, str]:
        """Return the facts that its repr and notebooks show.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, box=4.0)
            >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "linear-stack", n_steps=9)
            >>> icgd.guarantee(compiled, [[1.0, 0.0], [0.0, 1.0]], [1.0, -0.5]).facts()["steps"]
            '9 of 0.5'
        """
        nearest = min(self.distance_bound, self.contraction_bound)
        return {
            "verdict": self.verdict.value,
            "steps": f"{self.n_steps:,} of {number(self.step_size)}",
            "backend": self.backend,
            "distance from the minimiser": f"{number(self.distance)}, at most {number(nearest)}",
            "excess": f"{number(self.excess)}, at most {number(self.excess_bound)}",
        }

    @property
    def distance_verdict(self) -> Outcome:
        """Whether the distance from the minimiser is within its bounds."""
        least, most = self.distance - self.distance_slack, self.distance + self.distance_slack
        return _outcome(least, most, min(self.distance_bound, self.contraction_bound))

    @property
    def excess_verdict(self) -> Outcome:
        """Whether the excess of the objective over its minimum is within its bound."""
        least = self.excess - self.excess_rounding
        most = self.excess + self.excess_slack + self.excess_rounding
        return _outcome(least, most, self.excess_bound)

    @property
    def verdict(self) -> Outcome:
        """Broken if one guarantee is broken, kept if both hold for all values within the slacks."""
        outcomes = (self.distance_verdict, self.excess_verdict)
        if Outcome.BROKEN in outcomes:
            return Outcome.BROKEN
        return Outcome.NOT_KNOWN if Outcome.NOT_KNOWN in outcomes else Outcome.KEPT

    @property
    def holds(self) -> bool:
        """Whether every guarantee holds, as measured."""
        return self.verdict is Outcome.KEPT


def _outcome(least: float, most: float, promised: float) -> Outcome:
    """Compare a number between `least` and `most` with its bound; a NaN counts as broken."""
    if most == inf and least <= promised:
        return Outcome.NOT_KNOWN
    if most <= promised:
        return Outcome.KEPT
    return Outcome.NOT_KNOWN if least <= promised else Outcome.BROKEN


def check_guarantee(bounds: LinearBounds, task: Task, history: History) -> Guarantee:
    """Compare a run on one task with the theorems.

    Raises `SettingError` if its step is not below 2 / beta or has momentum, and
    `SeparableDataError` if there is no minimiser.
    """
    if task.batch:
        raise DataError(
            f"X has shape {tuple(task.x.shape)}; expected (n, d_x): one task at a time."
        )
    oracle, history = bounds.problem.linear_oracle, history.double()
    model, update = oracle.target, oracle.update
    if update.momentum is not None:
        raise SettingError(
            "Theorems 3.1 to 3.3 are about steps without momentum, and these have "
            f"momentum={update.momentum}. Leave it out, or use icgd.verify, which proves runs with "
            "momentum too."
        )
    minimiser = find_minimiser(oracle, replace(task, initial=history[-1]))
    promised = _promised(bounds, task, history, minimiser)
    slope = float(oracle.gradient(task, history[0]).norm())
    ends = [oracle.objective(task, point) for point in (history[-1], minimiser.parameters)]
    rounding = sum(objective_rounding(oracle, task, w) for w in (history[-1], minimiser.parameters))
    is_minimiser = history[-1].equal(minimiser.parameters)  # then both objectives are rounded alike
    is_known = minimiser.distance < inf
    excess_bound = promised.excess_of_theorem(slope, update.l1, model.input_width)
    return Guarantee(
        theorem="3.3" if update.l1 else "3.2" if model.link == "identity" else "3.1",
        n_steps=promised.n_steps,
        step_size=promised.step_size,
        smallest_curvature=promised.curvature.smallest,
        largest_curvature=promised.curvature.largest,
        start_distance=promised.start_distance,
        step_error=promised.step_error,
        distance=float((history[-1] - minimiser.parameters).norm()),
        distance_slack=minimiser.distance,
        distance_bound=promised.distance_of_theorem() if is_known and not update.l1 else inf,
        contraction_bound=promised.distance() if is_known else inf,
        excess=float(ends[0] - ends[1]),
        excess_slack=minimiser.excess,
        excess_rounding=0.0 if is_minimiser else rounding,
        excess_bound=excess_bound if is_known else excess_bound + minimiser.excess,
    )


def _promised(
    bounds: LinearBounds, task: Task, history: History, minimiser: Minimiser
) -> InexactDescent:
    """Return the run in the theorems' terms, with the curvature around it and the minimiser.

    An exact step from the point found moves it by at most step_size times its subgradient. If the
    distance of that point from the minimiser is unknown, exact descent may move away from the point
    by that much in every step.
    """
    update, n_steps = bounds.problem.proximal_step, len(history) - 1
    errors, size = norm(bounds.errors(task, history)), update.step_size or 0.0
    step_error = float(errors.max()) if errors.numel() else 0.0
    is_known = minimiser.distance < inf
    uncertainty = minimiser.distance if is_known else n_steps * size * minimiser.slope
    start = float((history[0] - minimiser.parameters).norm()) + uncertainty
    radius = start + n_steps * step_error + (uncertainty if is_known else 0.0)
    scores = common(
        over_ball(bounds.problem.model, task.x, minimiser.parameters, radius),
        _scores(bounds.problem, task.x, history, minimiser, n_steps * step_error),
    )
    # Allow for the rounding of eigenvalues.
    model = bounds.problem.model
    curvatures = curvature(model, update, task.x, scores)
    rounding = sum_rounding(task.x.shape[-2] + 16 * model.n_parameters + 64) * curvatures.largest
    smallest = max(0.0, curvatures.smallest - model.n_parameters * rounding)
    widened = Curvature(smallest, curvatures.largest + rounding)
    return InexactDescent(widened, size, start, step_error, n_steps)


def _scores(
    problem: Problem, x: Inputs, history: History, minimiser: Minimiser, error: float
) -> Scores:
    """Return the range of scores of the run, of exact descent, and of the minimiser.

    Exact descent is within `error` of the run. Its points and the minimiser are in the box; the
    start and the rounding of a clip may leave it, and the run's own scores may leave the range of
    the domain.
    """
    model, slack = problem.model, minimiser.distance if minimiser.distance < inf else 0.0
    exact = (
        _visited(model, x, history, error),
        _visited(model, x, minimiser.parameters.unsqueeze(0), slack),
    )
    in_box = allowed_scores(replace(problem, domain=replace(problem.domain, score=None)), x)
    clipped = [common(scores, in_box) for scores in exact]
    return reduce(spanned, [allowed_scores(problem, x), _visited(model, x, history, 0.0), *clipped])


def _visited(model: LinearModel, x: Inputs, points: History, margin: float) -> Scores:
    """Return the smallest and largest scores within `margin` of any of these points."""
    design = model.design(x)
    scores, reach = design @ points.mT, margin * design.norm(dim=-1, keepdim=True)
    return scores.amin(-1, keepdim=True) - reach, scores.amax(-1, keepdim=True) + reach
