"""Measured errors are distances from real training."""

from __future__ import annotations

from torch import Tensor

from icgd.errors import OverflowedRunError
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.shapes import History


def real_training(problem: Problem, task: Task, n_steps: int) -> History:
    """The weights of real training, in float64; `OverflowedRunError` if they leave its range."""
    return _in_range(problem.oracle.train(task, n_steps))


def _in_range(real: History) -> History:
    if not real.isfinite().all():
        raise OverflowedRunError(
            "Real training leaves the range of float64 on these data, so that there is nothing to "
            "compare the run with. Rescale the data, or use a smaller step size."
        )
    return real


def stepwise_errors(problem: Problem, task: Task, history: History) -> Tensor:
    """For each step, the largest |w_l - step(w_{l-1})|, from the run's own weights."""
    after = _in_range(problem.oracle.stepped(task, history))
    return (history[..., 1:, :].double() - after).abs().amax(-1)


def trajectory_errors(history: History, real: History) -> Tensor:
    """For each step, the largest distance of a weight from the exact run."""
    return (history.double() - real).abs().amax(-1)[..., 1:]


def coefficient_errors(
    problem: Problem, task: Task, history: History, real: History
) -> dict[str, float] | None:
    """The distance of every coefficient from the exact run at the end, if columns have names."""
    if not task.input_names:
        return None
    distances = (history[-1].double() - real[-1]).abs()
    return problem.oracle.named(distances, task.input_names)
