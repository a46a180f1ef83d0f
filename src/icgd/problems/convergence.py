r"""How far from its end a descent stopped, and what would bring it there.

A linear model descends a convex objective F whose minimiser w* is measured (`minimiser.py`). So

    left = (F(w_L) - F*) / (F(w_0) - F*)

is the share of what there is to gain that a run of L steps left. Around w* a step multiplies the
distance from it by at most q = max(|1 - step_size alpha|, |step_size beta - 1|), with the extreme
eigenvalues of the Hessian among the coefficients that a penalty does not keep at 0; so F - F* falls
by q^2 a step, which says how many more steps it takes. Kernel machines leave what is not learnt of
the labels. Where a network's descent ends is not known: what the last tenth of its steps gained
counts as left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log, sqrt
from typing import Any

import torch
from torch import Tensor

from icgd.errors import SeparableDataError
from icgd.problems.data import Task, checked_inputs
from icgd.problems.minimiser import hessian, minimise, units
from icgd.problems.oracles import AbstractOracle, FunctionOracle, LinearOracle, NetworkOracle
from icgd.problems.problem import Problem
from icgd.problems.settings import instance
from icgd.problems.spectrum import (
    Curvature,
    Scores,
    everywhere,
    outermost,
    over_box,
    sized,
    step_size,
)
from icgd.shapes import History, Inputs

OF_OBJECTIVE, OF_LABELS, OF_FALL = 1e-4, 1e-3, 1e-3
"""What a run that is done may leave: of a linear objective, of labels, of a network's loss."""

MUCH_BETTER = 4.0
"""A remedy is named if it takes so many times fewer steps."""


@dataclass(frozen=True)
class Convergence:
    """What a run of `n_steps` steps left, as a share; the run is done if at most `enough` is left.

    `status` says in words what was gained and what is left. `more_steps` is about how many steps of
    this size would do, infinite if none would, and None if it is not known. `remedies` are
    sentences that say what would do. Of several tasks it is about number `task`, which users may
    know by a `name`.
    """

    n_steps: int
    left: float
    enough: float
    status: str
    more_steps: float | None = None
    remedies: tuple[str, ...] = ()
    task: int | None = None
    name: str = ""

    @property
    def is_done(self) -> bool:
        """Whether more steps would hardly matter; a NaN counts as not done."""
        return self.left <= self.enough

    def __str__(self) -> str:
        done = "Descent is done" if self.is_done else "Descent is not done"
        done += f" for {self.name}" if self.name else ""
        status = f"{self.status} ({_percent(self.enough)} counts as done)"
        return " ".join((f"{done} after {self.n_steps:,} steps: {status}.", *self.remedies))


def convergence(
    oracle: AbstractOracle, task: Task, history: History, *, steps_per_row: int = 1
) -> Convergence:
    """Measure how far the run `history` is from its end; of several tasks, the furthest.

    Between two rows of the history of a network there may be several steps.
    """
    if isinstance(oracle, LinearOracle):
        return _of_linear(oracle, task, history)
    if isinstance(oracle, NetworkOracle):
        return _of_network(oracle, task, history, steps_per_row)
    return _of_function(instance("oracle", oracle, FunctionOracle), task, history)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def steps_text(number: float) -> str:
    """Format an estimated number of steps to two digits."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _of_linear(oracle: LinearOracle, task: Task, history: History) -> Convergence:
    if task.batch:
        pairs = zip(task.x, task.y, task.queries, history, strict=True)
        names = task.input_names
        tasks = [
            convergence(oracle, Task(x, y, q, run[0], input_names=names), run)
            for x, y, q, run in pairs
        ]
        worst = max(range(len(tasks)), key=lambda number: tasks[number].left)
        return replace(tasks[worst], task=worst, name=f"task {worst} (counted from 0)")
    history, model, update = history.double(), oracle.target, oracle.update
    start, end, n_steps = history[0], history[-1], len(history) - 1
    task = replace(task.double(), initial=end)
    try:
        oracle.require_end(task)
    except SeparableDataError as error:
        status = "the objective has no minimum"
        return Convergence(n_steps, 1.0, OF_OBJECTIVE, status, inf, (str(error),))
    goal = minimise(oracle, task)
    first, last, least = (float(oracle.objective(task, point)) for point in (start, end, goal))
    gain, missing = first - least, last - least
    rounding = 1e-12 * (abs(first) + abs(least))
    left = max(0.0, missing) / gain if max(gain, missing) > rounding and gain else 0.0
    status = (
        f"{_percent(max(0.0, 1 - left))} of what there is to gain on the objective is gained, "
        f"{_percent(left)} is left"
    )
    found = Convergence(n_steps, left, OF_OBJECTIVE, status, 0.0)
    if found.is_done:
        return found
    curved = hessian(oracle, task, goal)
    # The furthest coefficient is that which matters most to scores.
    worst = int(((end - goal).abs() * units(curved)).argmax())
    if worst == model.input_width:
        name = "The intercept"
    elif task.input_names:
        name = f"The coefficient of {task.input_names[worst]!r}"
    else:
        name = f"Coefficient {worst} (counted from 0)"
    furthest = f"{name} is {float(end[worst]):.4g} and tends to {float(goal[worst]):.4g}."
    if update.momentum is not None:  # its rate is not that of a contraction
        return replace(found, more_steps=None, remedies=(furthest,))
    moves = (goal != 0) | (update.l1 * model.penalised(goal) == 0)
    curved = curved[moves][:, moves]
    even = _centred(curved) if model.intercept else curved
    scale, size = units(even), step_size(model, update, task.x)
    here, scaled = _extremes(curved), _extremes(even / scale / scale[:, None])
    more = _steps(here.contraction(size), OF_OBJECTIVE / left)
    best, standardised = (
        _steps(c.contraction(1 / c.largest), OF_OBJECTIVE) for c in (here, scaled)
    )
    remedies = [furthest]
    if more == inf:
        remedies.append(f"No number of steps of {size:.4g} would do: steps are too long.")
    else:
        remedies.append(f"About {steps_text(more)} more steps of {size:.4g} would do.")
    if more > MUCH_BETTER * best:
        shorter = f"step_size={1 / here.largest:.4g}"
        remedies.append(f"With {shorter} about {steps_text(best)} steps in all would do.")
    if min(more, best) > MUCH_BETTER * standardised:
        remedies.append(
            f"With standardised inputs about {steps_text(standardised)} steps in all would do, and "
            "a penalty then counts for standardised coefficients."
        )
    return replace(found, more_steps=more, remedies=tuple(remedies))


def _steps(contraction: float, share: float) -> float:
    """Return the number of steps that multiply the excess by `share`."""
    if contraction >= 1:
        return inf
    return float(ceil(log(share) / (2 * log(contraction)))) if contraction > 0 else 1.0


def _centred(curved: Tensor) -> Tensor:
    """Return the Hessian for centred inputs, where the intercept (last row) is uncoupled."""
    beside, own = curved[:-1, -1:], curved[-1:, -1:]
    centred: Tensor = torch.block_diag(curved[:-1, :-1] - beside @ beside.mT / own, own)
    return centred


def _extremes(matrix: Tensor) -> Curvature:
    """Return the extreme eigenvalues, leaving out directions in which the objective is flat."""
    values = torch.linalg.eigvalsh(matrix)
    if not values.numel() or not values[-1] > 0:
        return Curvature(1.0, 1.0)
    curved = values[values > 1e-12 * values[-1]]
    return Curvature(float(curved[0]), float(curved[-1]))


def _of_network(
    oracle: NetworkOracle, task: Task, history: History, steps_per_row: int
) -> Convergence:
    n_rows = history.shape[-2] - 1
    if n_rows == 0:
        return Convergence(0, 1.0, OF_FALL, "no step was taken")
    n_last = ceil(n_rows / 10)
    first, before, last = (
        oracle.risk(task, history[..., row, :]) for row in (0, n_rows - n_last, n_rows)
    )
    n_steps, tenth = n_rows * steps_per_row, n_last * steps_per_row
    left = float(((before - last).abs() / first).nan_to_num(0.0).max())
    last_ones = "step" if tenth == 1 else f"{tenth:,} steps"
    status = f"the loss went from {float(first.max()):.3g} to {float(last.max()):.3g}"
    if bool((first > 0).all()):  # there is no share of a loss of 0
        status += f", and changed by {_percent(left)} of its first value in the last {last_ones}"
    found = Convergence(n_steps, left, OF_FALL, status, 0.0)
    if found.is_done:
        return found
    if bool((last > torch.minimum(first, before)).any()):
        remedy = f"The loss rises to {float(last.max()):.3g}: halve the step size."
        return replace(found, more_steps=None, remedies=(remedy,))
    more = n_steps * (left / OF_FALL - 1)
    remedy = (
        "If the loss goes on to fall like 1 over the number of steps, about "
        f"{steps_text(more)} more would do."
    )
    return replace(found, more_steps=float(ceil(more)), remedies=(remedy,))


def _of_function(oracle: FunctionOracle, task: Task, history: History) -> Convergence:
    first, last = (oracle.risk(task, history[..., end, :]) for end in (0, -1))
    left = float((last / first).sqrt().nan_to_num(0.0).max())
    status = f"{_percent(max(0.0, 1 - left))} of the labels is learnt, {_percent(left)} is left"
    found = Convergence(history.shape[-2] - 1, left, OF_LABELS, status)
    if found.is_done or oracle.update.changes_kernel or not oracle.target.is_symmetric:
        return found
    condition = outermost(oracle.target, task.x, oracle.update.noise).condition
    if not condition < inf:
        return replace(found, remedies=("The kernel is singular on these data: add noise.",))
    best = sqrt(condition) / 2 * log(2 / OF_LABELS)
    remedy = (
        f"The kernel has the condition number {condition:.3g} on these data, for which "
        f"{steps_text(best)} Chebyshev steps (icgd.chebyshev_steps) would do."
    )
    return replace(found, remedies=(remedy,))


# Step sizes of linear models from their data.


def sized_problem(problem: Problem, X: Any) -> Problem:
    """Return the problem of a linear model with the step size 1 / beta, if it has none.

    beta is the largest curvature of the risk on these inputs, for all scores that the box and
    `domain.score` allow.

    Args:
        problem: a problem of a linear model.
        X: the inputs that it will be trained on.

    Returns:
        The problem with a step size.

    Raises:
        SettingError: if the problem trains no linear model, or if scores need a bound: without one
            poisson, whose mean has no steepest slope, has no curvature.
        DataError: if the inputs do not fit the model.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.sized_problem(problem, [[1.0, 0.0], [0.0, 1.0]]).update.step_size
        2.0
    """
    x = checked_inputs(X, problem.model.input_width)
    update = sized(problem.model, problem.proximal_step, x, allowed_scores(problem, x))
    return replace(problem, update=update)


def allowed_scores(problem: Problem, x: Inputs) -> Scores:
    """Return the scores of each example that the box and `domain.score` allow."""
    box = problem.box and problem.box * problem.proximal_step.overshoot
    low, high = everywhere(x) if box is None else over_box(problem.model, x, box)
    most = problem.domain.score or inf
    return low.clamp(min=-most), high.clamp(max=most)
