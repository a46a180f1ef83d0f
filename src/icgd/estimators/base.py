"""What every estimator shares: it compiles, runs, remembers, answers, and says how well it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import wraps
from math import frexp
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from icgd.backends.run import Run
from icgd.certificates.report import Report
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.environment import warn
from icgd.errors import DataError, DataTypeError, OverflowedRunError, SettingError, brief, cut
from icgd.facts import counted
from icgd.pipeline import compile as compile_problem
from icgd.pipeline import verify
from icgd.problems.convergence import convergence
from icgd.problems.data import Task, device_of
from icgd.problems.problem import Problem

Array = NDArray[np.float64]

BACKEND = "fused"
"""What estimators run on; `certificate_` checks the transformer itself where that is quick."""

CONSTANT = 10 * float(np.finfo(np.float64).eps)
"""A column that varies by no more than this share of its size varies by rounding alone."""


@dataclass(frozen=True)
class Scaling:
    """Columns v as (v - center) / scale."""

    center: Array
    scale: Array

    @classmethod
    def of(cls, columns: Array, weights: Array | None = None, *, centered: bool = True) -> Scaling:
        """The scaling to mean 0 and variance 1; without centering, to a mean square of 1.

        A constant column keeps its scale. `weights` of rows count as so many equal rows.
        """
        size = np.abs(columns).max(0)
        size[size == 0] = 1.0
        shares = columns / size  # no square of these overflows
        mean = np.average(shares, axis=0, weights=weights)
        center = mean if centered else np.zeros_like(mean)
        spread = np.sqrt(np.average((shares - center) ** 2, axis=0, weights=weights))
        spread[spread <= CONSTANT] = 1 / size[spread <= CONSTANT]
        return cls(center * size, spread * size)

    def alike(self) -> Scaling:
        """The scaling that divides all columns by the same number, the root of the mean square."""
        common = float(np.sqrt(np.mean(self.scale**2)))
        return Scaling(self.center, np.full_like(self.scale, common))

    def applied(self, values: Array) -> Array:
        """The columns, scaled."""
        scaled: Array = (values - self.center) / self.scale
        return scaled

    def undone(self, values: Array) -> Array:
        """The columns that were scaled to these."""
        raw: Array = values * self.scale + self.center
        return raw


def bound_above(*arrays: Any, room: float = 1.0) -> float:
    """The least power of two that is at least `room` times as large as every entry, and 1."""
    largest = room * max(float(np.abs(np.asarray(part)).max(initial=0.0)) for part in arrays)
    if largest <= 1:
        return 1.0
    mantissa, exponent = frexp(largest)
    return 2.0 ** (exponent - (mantissa == 0.5))


# Data and settings that an estimator is given, read by scikit-learn's rules.
#
# What scikit-learn refuses is refused by an error of icgd with the same words, which is also of
# the type that scikit-learn expects.


def read_examples(estimator: Any, X: Any, y: Any, *, numeric: bool = True) -> tuple[Array, Any]:
    """Checked rows and their labels, which are numbers if `numeric`."""
    _require_unmasked("X", X)
    _require_unmasked("y", y)
    options = {"y_numeric": True} if numeric else {}
    pair: tuple[Array, Any] = _in_our_words(
        "X or y", lambda: validate_data(estimator, X, y, dtype=np.float64, **options)
    )
    return pair


def read_rows(estimator: Any, X: Any) -> Array:
    """Checked rows for an estimator that is fitted."""
    check_is_fitted(estimator)
    _require_unmasked("X", X)
    rows: Array = _in_our_words(
        "X", lambda: validate_data(estimator, X, reset=False, dtype=np.float64)
    )
    return rows


def read_weights(sample_weight: Any, X: Array) -> Array:
    """How much each row counts; at least one counts."""
    weights: Array = _in_our_words(
        "sample_weight",
        lambda: _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True),
    )
    if not np.isfinite(weights).all():
        row = int(np.isfinite(weights).argmin())
        raise DataError(
            f"sample_weight[{row}] is {weights[row]}; every entry must be finite. Drop or fill "
            "such rows first."
        )
    if not weights.any():
        raise DataError(
            f"The weight of all {len(weights)} examples is zero; at least one sample_weight must "
            "be positive."
        )
    return weights


def seed_of(random_state: Any) -> int:
    """A seed that follows from `random_state`, as scikit-learn understands it."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        raise SettingError(
            "random_state must be a seed from 0 to 2**32 - 1, a RandomState or None, "
            f"got {brief(random_state)}."
        ) from None


def _require_unmasked(name: str, data: Any) -> None:
    """Raise `DataError` for masked entries, whose numbers scikit-learn would use."""
    if np.ma.is_masked(data):
        raise DataError(f"{name} has masked entries. Drop or fill them first.")


def _in_our_words(name: str, read: Callable[[], Any]) -> Any:
    """What `read` returns; what scikit-learn raises becomes an error of icgd."""
    try:
        return read()
    except TypeError as problem:
        raise DataTypeError(f"{name} cannot be used: {cut(str(problem))}") from None
    except ValueError as problem:
        raise DataError(f"{name} cannot be used: {cut(str(problem))}") from None


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
    _last: Compiled
    """The transformer without its steps, which answers from trained weights."""

    @abstractmethod
    def _rows(self, X: Array) -> Array:
        """Checked raw rows as the transformer sees them."""

    def _learn(self, lesson: Lesson) -> None:
        """Compile and run, with a step size that makes the loss fall; remember the outcome."""
        self._lesson, compiled, self._task, self._run = self._trained(lesson)
        self.n_iter_ = self._run.parameters.shape[-2] - 1
        program: Any = replace(compiled.program, n_steps=self.n_iter_)  # type: ignore[type-var]
        self.compiled_ = replace(compiled, program=program)
        last: Any = replace(program, n_steps=0)
        self._last = replace(compiled, program=last)
        self._certificate: Report | None = None
        self._losses: Array | None = None
        self.convergence_ = convergence(
            self.compiled_.problem.oracle, self._task, self._run.parameters
        )

    def _not_done(self) -> str:
        return f"{self.convergence_} The most steps are max_iter={self.max_iter}; data are scaled."

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The settings, as of any estimator; once fitted, also what trained it."""
        settings: str = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "compiled_"):
            return settings
        return f"{settings}, fitted in {counted(self.n_iter_, 'step')} by the {BACKEND} backend"

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
                run = compiled._run(task, BACKEND, stop_below=lesson.tol, trace=self.traced)
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
            return self._last
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


# Classes as labels of a transformer, and its outputs as classes: one output against the rest.


class AbstractClassifier(ClassifierMixin):  # type: ignore[misc]
    """A classifier with an output for each class, or with one output for the second of two.

    Subclasses give the probability of each output by itself; those of a row are divided by their
    sum.
    """

    classes_: NDArray[Any]

    @abstractmethod
    def _shares(self, X: Any) -> Array:
        """The probability of each output, a row for each row of X."""

    def _encoded(self, X: Any, y: Any) -> tuple[Array, Array]:
        """The checked rows, and a label 0 or 1 for each output; `classes_` is set."""
        X, y = read_examples(self, X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"All labels are of one class, {brief(self.classes_.tolist()[0])}; a classifier "
                "needs examples of at least two classes."
            )
        if len(self.classes_) == 2:
            return X, numbers.reshape(-1, 1).astype(np.float64)
        return X, np.eye(len(self.classes_))[numbers]

    def predict_proba(self, X: Any) -> Array:
        """The probability of every class.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows, n_classes) whose rows sum to 1.

        Example:
            >>> from icgd.estimators import InContextLogistic
            >>> model = InContextLogistic().fit([[0.0], [1.0], [2.0]], [0, 0, 1])
            >>> model.predict_proba([[0.5]]).sum(axis=1).tolist()
            [1.0]
        """
        shares = self._shares(X)
        if shares.shape[1] == 1:
            return np.hstack([1 - shares, shares])
        total = shares.sum(1, keepdims=True)
        equal = np.full_like(shares, 1 / shares.shape[1])
        probabilities: Array = np.divide(shares, total, out=equal, where=total > 0)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows,) of entries of `classes_`.

        Example:
            >>> from icgd.estimators import InContextLogistic
            >>> model = InContextLogistic().fit([[0.0], [1.0], [2.0]], [0, 0, 1])
            >>> model.predict([[0.0], [2.0]]).tolist()
            [0, 1]
        """
        shares = self._shares(X)
        best = shares[:, 0] > 0.5 if shares.shape[1] == 1 else shares.argmax(1)
        classes: NDArray[Any] = self.classes_[best.astype(int)]
        return classes
