"""What every estimator shares: it compiles, runs, remembers, answers, and says how well it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from icgd.backends.run import Run
from icgd.certificates.report import Report
from icgd.compiled import Compiled, run_checked
from icgd.constructions.base import AbstractConstruction
from icgd.environment import warn
from icgd.errors import OverflowedRunError
from icgd.estimators.reading import read_rows
from icgd.estimators.scaling import Array, Scaling
from icgd.pipeline import compile as compile_problem
from icgd.pipeline import verify
from icgd.problems.convergence import convergence
from icgd.problems.data import Task, device_of
from icgd.problems.problem import Problem

Fit = TypeVar("Fit", bound=Callable[..., Any])

MOST_HALVINGS = 12
"""How often a step size that lets the loss rise is halved before that is an error."""

ROOM = 4.0
"""How much larger than the context rows may be before their prediction is compiled anew."""

LOOKS, RISE = 64, 0.01
"""At how many steps a run's loss is looked at, and by which share it may rise in between."""

NUMBERS_AT_ONCE = 2**22
"""About how many inputs are looked at at once for the curve of losses."""


@dataclass(frozen=True)
class Lesson:
    """A problem, the scaled examples that it is trained on, and how the run ends.

    `initial` are the weights that it starts from, if they are not the problem's own. The run stops
    after the first step that moves no weight by more than `tol`, if there is one. If it
    `may_shorten` its steps, they are halved until the loss falls.
    """

    problem: Problem
    x: Array
    y: Array
    initial: Tensor | None = None
    construction: str | AbstractConstruction | None = None
    tol: float | None = None
    may_shorten: bool = True

    def shortened(self) -> Lesson:
        """The same with half the step size."""
        update: Any = self.problem.update
        shorter: Any = replace(update, step_size=update.step_size / 2)
        return replace(self, problem=replace(self.problem, update=shorter))


def at_once(fit: Fit) -> Fit:
    """Change the estimator only when `fit` has ended, and then in one assignment.

    An error or Ctrl-C before leaves it as it was.
    """

    @wraps(fit)
    def whole(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        learner = copy(estimator)
        fit(learner, *args, **kwargs)
        if not learner.convergence_.is_done:
            warn(ConvergenceWarning(learner._not_done()))
        estimator.__dict__ = learner.__dict__
        return estimator

    return whole  # type: ignore[return-value]


class AbstractInContext(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator that is a frozen transformer and its context.

    Subclasses scale the data, state the problem as a `Lesson`, and read the transformer's answers.
    Their `fit` is taken over `at_once`.
    """

    max_iter: int
    cache_context: bool
    device: str
    traced: ClassVar[tuple[str, ...]] = ()
    """The slots of the stream that are remembered beside the trained weights."""

    compiled_: Compiled
    n_iter_: int
    n_features_in_: int
    _scaling: Scaling

    @abstractmethod
    def _rows(self, X: Array) -> Array:
        """Checked raw rows as the transformer sees them."""

    def _learn(self, lesson: Lesson) -> None:
        """Compile and run, with a step size that makes the loss fall; remember the outcome."""
        self._lesson, compiled, self._task, self._run = self._trained(lesson)
        self.n_iter_ = self._run.parameters.shape[-2] - 1
        program: Any = replace(compiled.program, n_steps=self.n_iter_)  # type: ignore[type-var]
        self.compiled_ = replace(compiled, program=program)
        self._certificate: Report | None = None
        self._losses: Array | None = None
        self.convergence_ = convergence(
            self.compiled_.problem.oracle, self._task, self._run.parameters
        )

    def _not_done(self) -> str:
        return f"{self.convergence_} The most steps are max_iter={self.max_iter}; data are scaled."

    def __dir__(self) -> list[str]:
        """All names but `certificate_`: notebooks look at what names hold, and it is slow."""
        names = [name for name in object.__dir__(self) if name != "certificate_"]
        return [name for name in names if hasattr(self, name)]

    def _trained(self, lesson: Lesson) -> tuple[Lesson, Compiled, Task, Run]:
        """The first run whose loss falls all along; after every other the step size is halved."""
        for _ in range(MOST_HALVINGS):
            compiled = compile_problem(lesson.problem, lesson.construction, n_steps=self.max_iter)
            task = compiled.task(*self._moved(lesson.x, lesson.y), initial=lesson.initial)
            try:
                run = run_checked(compiled, task, "fused", stop_below=lesson.tol, trace=self.traced)
            except OverflowedRunError:
                if not lesson.may_shorten:
                    raise
            else:
                if not lesson.may_shorten or _falls(compiled, task, run):
                    return lesson, compiled, task, run
            lesson = lesson.shortened()
        size: Any = lesson.problem.update.step_size
        raise OverflowedRunError(
            "The loss is larger after the run than before it, even with "
            f"step_size={float(size):g}. Look for examples that are far larger than all others, or "
            "take fewer steps."
        )

    def _moved(self, *arrays: Array) -> list[Tensor]:
        """Arrays as tensors on the estimator's device."""
        device = device_of(self.device)
        return [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays]

    def _answers(self, X: Any) -> Array:
        """What the transformer says of raw rows, on the scale of its labels."""
        rows = self._rows(read_rows(self, X))
        (queries,) = self._moved(rows)
        queries = queries.expand(*self._task.batch, -1, -1)
        answers: Array = self._predictions(replace(self._task, queries=queries)).cpu().numpy()
        return answers

    def _predictions(self, task: Task) -> Tensor:
        """With a cached context from the weights that `fit` reached, else by a run from the start.

        Both have the same bits. Rows beyond the domain always come after the run, through layers
        that are compiled for them.
        """
        if self.cache_context:
            return self._recalled(task, self._run)
        if self._is_within(task.queries):
            return self._together(task)
        return self._recalled(task, self.compiled_.run_task(self._task, trace=self.traced))

    def _together(self, task: Task) -> Tensor:
        """One run on context and rows."""
        return self.compiled_.run_task(task).predictions

    def _is_within(self, rows: Tensor) -> bool:
        """Whether the transformer was compiled for such rows."""
        return float(rows.abs().max()) <= self.compiled_.problem.domain.x

    def _recalled(self, task: Task, run: Run) -> Tensor:
        """The answers of the layers that come after all steps, for weights that a run reached."""
        reached = replace(task, initial=run.parameters[..., -1, :])
        return self._last_layers(task.queries).run_task(reached).predictions

    def _last_layers(self, rows: Tensor) -> Compiled:
        """The transformer without its steps, made for rows of this size."""
        if self._is_within(rows):
            program: Any = replace(self.compiled_.program, n_steps=0)  # type: ignore[type-var]
            return replace(self.compiled_, program=program)
        return compile_problem(self._widened(rows), self._lesson.construction, n_steps=0)

    def _widened(self, rows: Tensor) -> Problem:
        """The problem on a domain that holds these rows."""
        problem = self.compiled_.problem
        wider = replace(problem.domain, x=max(problem.domain.x, float(rows.abs().max())))
        return replace(problem, domain=wider)

    @property
    def loss_curve_(self) -> Array:
        """The objective before the first step and after every step, on scaled labels."""
        check_is_fitted(self)
        if self._losses is None:
            self._losses = self._curve(self._task, self._run.parameters.double()).cpu().numpy()
        return self._losses

    def _curve(self, task: Task, history: Tensor) -> Tensor:
        if task.batch:
            tasks = zip(task.x, task.y, task.queries, history, strict=True)
            single = (self._curve(Task(x, y, q, run[0]), run) for x, y, q, run in tasks)
            return torch.stack(list(single)).sum(0)
        steps = max(1, NUMBERS_AT_ONCE // max(task.x.numel(), task.y.numel()))
        return torch.cat([self._losses_at(task, part) for part in history.split(steps)])

    def _losses_at(self, task: Task, weights: Tensor) -> Tensor:
        """The losses of several weights on one task: as many tasks with the same data."""
        x, y, queries = (
            part.expand(len(weights), -1, -1) for part in (task.x, task.y, task.queries)
        )
        return _objective(self.compiled_, Task(x, y, queries, weights), weights)

    @property
    def certificate_(self) -> Report:
        """The run beside real descent: errors of its steps, measured and proved (`icgd.verify`)."""
        check_is_fitted(self)
        if self._certificate is None:
            task = self._task
            self._certificate = verify(self.compiled_, task.x, task.y, initial=task.initial)
        return self._certificate


def _objective(compiled: Compiled, task: Task, weights: Tensor) -> Tensor:
    """What descent makes small."""
    oracle = compiled.problem.oracle
    found = oracle.objective(task, weights)
    return oracle.risk(task, weights) if found is None else found


def _falls(compiled: Compiled, task: Task, run: Run) -> bool:
    """Whether the loss of no task rises over a run by more than a little; a NaN is a rise."""
    n_steps = run.parameters.shape[-2] - 1
    steps = np.unique(np.linspace(0, n_steps, LOOKS, dtype=int)).tolist()
    losses = torch.stack([_objective(compiled, task, run.parameters[..., i, :]) for i in steps])
    rise = losses[1:] - losses[:-1]
    return bool((rise <= RISE * losses[:-1].abs()).all())
