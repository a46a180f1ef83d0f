r"""Measure how far a run is from convergence, and suggest remedies.

A linear model minimises a convex objective F, whose minimiser w* is computed (`minimiser.py`). So

    left = (F(w_L) - F*) / (F(w_0) - F*)

is the relative suboptimality after L steps. Near w* a step multiplies the distance from w* by at
most q = max(|1 - step_size alpha|, |step_size beta - 1|), where alpha and beta are the extreme
eigenvalues of the Hessian among the coefficients that no penalty holds at 0. So F - F* falls by q^2
per step, which predicts the number of further steps. For kernel machines, `left` is the relative
residual of the labels. The limit of a network's training is unknown, so for networks `left` is the
relative change of the loss over the last tenth of the steps.
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
"""The largest `left` of a converged run: of linear models, of kernel machines and of networks."""

MUCH_BETTER = 4.0
"""A remedy is suggested if it reduces the number of steps by this factor."""


@dataclass(frozen=True)
class Convergence:
    """The distance `left` from convergence after `n_steps` steps; at most `enough` is converged.

    `status` describes `left` in words. `more_steps` is the approximate number of further steps of
    this size until convergence, infinite if no number suffices, None if unknown. `remedies` are
    sentences of advice. Of several tasks, this is about task number `task`, called `name`.
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
        """Whether the run has converged; NaN counts as not converged."""
        return self.left <= self.enough

    def __str__(self) -> str:
        verdict = "Training has converged" if self.is_done else "Training has not converged"
        verdict += f" for {self.name}" if self.name else ""
        status = f"{self.status} ({_percent(self.enough)} or less counts as converged)"
        return " ".join((f"{verdict} after {self.n_steps:,} steps: {status}.", *self.remedies))


def convergence(
    oracle: AbstractOracle, task: Task, history: History, *, steps_per_row: int = 1
) -> Convergence:
    """Measure the distance of a run from convergence; of several tasks, that of the furthest.

    `steps_per_row` is the number of steps between two rows of the history of a network.
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
    minimiser = minimise(oracle, task)
    first, last, least = (float(oracle.objective(task, point)) for point in (start, end, minimiser))
    total, remaining = first - least, last - least
    rounding = 1e-12 * (abs(first) + abs(least))
    left = max(0.0, remaining) / total if max(total, remaining) > rounding and total else 0.0
    status = (
        f"the objective fell {_percent(max(0.0, 1 - left))} of the way to its minimum, "
        f"{_percent(left)} is left"
    )
    result = Convergence(n_steps, left, OF_OBJECTIVE, status, 0.0)
    if result.is_done:
        return result
    curvature = hessian(oracle, task, minimiser)
    # The furthest coefficient is the one whose error changes scores most.
    worst = int(((end - minimiser).abs() * units(curvature)).argmax())
    if worst == model.input_width:
        name = "The intercept"
    elif task.input_names:
        name = f"The coefficient of {task.input_names[worst]!r}"
    else:
        name = f"Coefficient {worst} (counted from 0)"
    furthest = f"{name} is {float(end[worst]):.4g} and tends to {float(minimiser[worst]):.4g}."
    if update.momentum is not None:  # the contraction rate below is that of plain steps
        return replace(result, more_steps=None, remedies=(furthest,))
    is_free = (minimiser != 0) | (update.l1 * model.penalised(minimiser) == 0)
    curvature = curvature[is_free][:, is_free]
    centred = _centred(curvature) if model.intercept else curvature
    scale, size = units(centred), step_size(model, update, task.x)
    here, scaled = _extremes(curvature), _extremes(centred / scale / scale[:, None])
    more = _steps(here.contraction(size), OF_OBJECTIVE / left)
    best, standardised = (
        _steps(c.contraction(1 / c.largest), OF_OBJECTIVE) for c in (here, scaled)
    )
    remedies = [furthest]
    if more == inf:
        remedies.append(f"With steps of {size:.4g} training does not converge: they are too long.")
    else:
        remedies.append(f"It needs about {steps_text(more)} more steps of {size:.4g}.")
    if more > MUCH_BETTER * best:
        shorter = f"step_size={1 / here.largest:.4g}"
        remedies.append(f"With {shorter} about {steps_text(best)} steps in total suffice.")
    if min(more, best) > MUCH_BETTER * standardised:
        remedies.append(
            f"With standardised inputs about {steps_text(standardised)} steps in total suffice; a "
            "penalty then applies to standardised coefficients."
        )
    return replace(result, more_steps=more, remedies=tuple(remedies))


def _steps(contraction: float, share: float) -> float:
    """Return the number of steps that multiply F - F* by `share`."""
    if contraction >= 1:
        return inf
    return float(ceil(log(share) / (2 * log(contraction)))) if contraction > 0 else 1.0


def _centred(curvature: Tensor) -> Tensor:
    """Return the Hessian for centred inputs, where the intercept (last row) is uncoupled."""
    coupling, own = curvature[:-1, -1:], curvature[-1:, -1:]
    schur = curvature[:-1, :-1] - coupling @ coupling.mT / own
    centred: Tensor = torch.block_diag(schur, own)
    return centred


def _extremes(matrix: Tensor) -> Curvature:
    """Return the extreme eigenvalues, ignoring directions in which the objective is flat."""
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
    last_steps = "step" if tenth == 1 else f"{tenth:,} steps"
    status = f"the loss went from {float(first.max()):.3g} to {float(last.max()):.3g}"
    if bool((first > 0).all()):  # a change relative to a loss of 0 is undefined
        status += f", and changed by {_percent(left)} of its first value in the last {last_steps}"
    result = Convergence(n_steps, left, OF_FALL, status, 0.0)
    if result.is_done:
        return result
    if bool((last > torch.minimum(first, before)).any()):
        remedy = f"The loss rises to {float(last.max()):.3g}: halve the step size."
        return replace(result, more_steps=None, remedies=(remedy,))
    more = n_steps * (left / OF_FALL - 1)
    remedy = (
        "If the loss continues to fall like 1 / (number of steps), about "
        f"{steps_text(more)} more steps are needed."
    )
    return replace(result, more_steps=float(ceil(more)), remedies=(remedy,))


def _of_function(oracle: FunctionOracle, task: Task, history: History) -> Convergence:
    first, last = (oracle.risk(task, history[..., end, :]) for end in (0, -1))
    left = float((last / first).sqrt().nan_to_num(0.0).max())
    status = f"{_percent(max(0.0, 1 - left))} of the labels is learnt, {_percent(left)} is left"
    result = Convergence(history.shape[-2] - 1, left, OF_LABELS, status)
    if result.is_done or oracle.update.changes_kernel or not oracle.target.is_symmetric:
        return result
    condition = outermost(oracle.target, task.x, oracle.update.noise).condition
    if not condition < inf:
        return replace(result, remedies=("The kernel is singular on these data: add noise.",))
    # Chebyshev iteration reduces the error by about exp(-2 / sqrt(condition)) per step.
    best = sqrt(condition) / 2 * log(2 / OF_LABELS)
    remedy = (
        f"The kernel's condition number on these data is {condition:.3g}, for which "
        f"{steps_text(best)} Chebyshev steps (icgd.chebyshev_steps) suffice."
    )
    return replace(result, remedies=(remedy,))


# Step sizes of linear models from their data.


def sized_problem(problem: Problem, X: Any) -> Problem:
    """Return the problem of a linear model with the step size 1 / beta, unless it has one.

    beta is the largest curvature of the risk on these inputs, for all scores that the box and
    `domain.score` allow.

    Args:
        problem: a problem of a linear model.
        X: the inputs to train on.

    Returns:
        The problem with a step size.

    Raises:
        SettingError: if the problem does not train a linear model, or if scores need a bound: the
            curvature of a poisson model is unbounded without one.
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
    """Return the interval of scores of each example that the box and `domain.score` allow."""
    box = problem.box and problem.box * problem.proximal_step.overshoot
    low, high = everywhere(x) if box is None else over_box(problem.model, x, box)
    most = problem.domain.score or inf
    return low.clamp(min=-most), high.clamp(max=most)
