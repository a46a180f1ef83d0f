"""What every estimator shares: it compiles, runs, remembers, answers, and says how well it did."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import wraps
from math import frexp
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from icgd.backends.run import Run
from icgd.certificates.report import Report
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.environment import warn
from icgd.errors import DataError, DataTypeError, OverflowedRunError, SettingError, cut, quoted
from icgd.pipeline import compile as compile_problem
from icgd.pipeline import verify
from icgd.problems.convergence import Convergence, convergence
from icgd.problems.data import Task, column_names, device_of
from icgd.problems.problem import Problem
from icgd.problems.settings import not_negative
from icgd.reprs import counted

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class Settings:
    """The settings of every estimator.

    Estimators are dataclasses: scikit-learn asks for an `__init__` that names all settings, and the
    fields say each of them once. Their docstrings likewise: a subclass explains its own settings
    and attributes, and those of its bases are added to what `help` shows.

    Args:
        max_iter: the number of steps.
        device: the torch device that runs it.
        cache_context: whether `predict` uses what `fit` reached; if not, it runs the whole
            transformer on context and rows, with the same answers, bit for bit.
        on_progress: is called by `fit` with the number of steps done and the number in all.

    Attributes:
        compiled_: the compiled run, with `transformer()`, `summary()` and `listing()`.
        n_iter_: the number of steps taken.
        convergence_: how far from its end descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        SettingError: by `fit`, if a setting is out of its range.
    """

    _: KW_ONLY
    max_iter: Any = 100
    device: Any = "cpu"
    cache_context: Any = True
    on_progress: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__doc__:  # python -OO has none
            cls.__doc__ = _joined(cls)


LISTS = ("Args", "Attributes", "Raises")
"""The sections of a docstring that a class adds to those of its bases."""


def _joined(kind: type) -> str:
    """Return the docstring of a class whose sections also list what those of its bases do."""
    docs = [base.__dict__.get("__doc__") or "" for base in kind.__mro__]
    summary, *sections = re.split(r"^    (Args|Attributes|Raises|Example):\n", docs[0], flags=re.M)
    bodies = dict(zip(sections[::2], sections[1::2], strict=True))
    for title in LISTS:
        entries: dict[str, str] = {}
        for doc in docs:
            body = re.search(rf"^    {title}:\n((?:        .*\n)+)", doc, re.M)
            own = re.findall(r"^        \w.*\n(?:         .*\n)*", body[1] if body else "", re.M)
            for entry in own:
                entries.setdefault(entry.partition(":")[0].strip(), entry)
        bodies[title] = "".join(entries.values())
    texts = (
        f"    {title}:\n{bodies[title].rstrip()}\n"
        for title in (*LISTS, "Example")
        if bodies.get(title)
    )
    return summary.rstrip() + "\n\n" + "\n".join(texts) + "    "


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
        """Return the scaling to mean 0 and variance 1; without centering, to a mean square of 1.

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
        """Return the scaling that divides all columns by the same number, the root of the mean
        square.
        """
        common = float(np.sqrt(np.mean(self.scale**2)))
        return Scaling(self.center, np.full_like(self.scale, common))

    def applied(self, values: Array) -> Array:
        """Return the columns, scaled."""
        scaled: Array = (values - self.center) / self.scale
        return scaled

    def undone(self, values: Array) -> Array:
        """Return the columns that were scaled to these."""
        raw: Array = values * self.scale + self.center
        return raw


def bound_above(*arrays: Any, room: float = 1.0) -> float:
    """Return least power of two that is at least `room` times as large as every entry, and 1."""
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
        "X or y", X, lambda: validate_data(estimator, X, y, dtype=np.float64, **options)
    )
    return pair


def column_named(names: Sequence[str], number: int) -> str:
    """Return a column as a user knows it: by its name, or by its number."""
    return f"column {names[number]!r}" if names else f"column {number} (counted from 0)"


def read_rows(estimator: Any, X: Any) -> Array:
    """Checked rows for an estimator that is fitted."""
    check_is_fitted(estimator)
    _require_unmasked("X", X)
    rows: Array = _in_our_words(
        "X", X, lambda: validate_data(estimator, X, reset=False, dtype=np.float64)
    )
    return rows


def read_weights(sample_weight: Any, X: Array) -> Array:
    """Return how much each row counts; at least one counts."""
    weights: Array = _in_our_words(
        "sample_weight",
        None,
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
    """Return a seed that follows from `random_state`, as scikit-learn understands it."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        raise SettingError(
            "random_state must be a seed from 0 to 2**32 - 1, a RandomState or None, "
            f"got {quoted(random_state)}."
        ) from None


def _require_unmasked(name: str, data: Any) -> None:
    """Raise `DataError` for masked entries, whose numbers scikit-learn would use."""
    if np.ma.is_masked(data):
        raise DataError(f"{name} has masked entries. Drop or fill them first.")


def _in_our_words(name: str, X: Any, read: Callable[[], Any]) -> Any:
    """Return what `read` returns; what scikit-learn raises becomes an error of icgd, with the
    place.
    """
    try:
        return read()
    except TypeError as problem:
        error: type[DataError] = DataTypeError
        reason = str(problem)
    except ValueError as problem:
        error, reason = DataError, str(problem)
    if place := _first_bad_entry(X):  # says more than the advice on other estimators that follows
        reason = f"{reason.partition(chr(10))[0]} {place}"
    raise error(f"{name} cannot be used: {cut(reason)}")


def _first_bad_entry(X: Any) -> str:
    """Return where the first entry of X stands that is no finite number, in a sentence, if there is
    one.

    scikit-learn says what is wrong somewhere in X, and not where.
    """
    names = column_names(X)
    try:
        table = np.asarray(X, dtype=object)
    except ValueError:  # ragged
        return ""
    if table.ndim != 2:
        return ""
    for column in range(table.shape[1]):
        for row, entry in enumerate(table[:, column]):
            try:
                is_good = np.isfinite(float(entry))
            except (TypeError, ValueError):
                is_good = False
            if not is_good:
                place = column_named(names, column)
                return (
                    f"The first such entry is {quoted(entry)} in {place}, row {row}. Drop such "
                    "rows, or fill or encode the column first."
                )
    return ""


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
class FitRequest:
    """A problem, the scaled examples that it is trained on, and how the run ends.

    `initial` are the weights that it starts from, if they are not the problem's own, and `rates`
    what the gradients of examples are multiplied by, if not all count alike. An iteration is a
    pass of `steps_per_iter` steps. The run stops after the first step that moves no weight by more
    than `tol`, if there is one. If it `may_shorten` its steps, they are halved until the loss
    falls.
    """

    problem: Problem
    x: Array
    y: Array
    n_iter: int
    steps_per_iter: int = 1
    rates: Array | None = None
    initial: Tensor | None = None
    construction: str | AbstractConstruction | None = None
    tol: float | None = None
    may_shorten: bool = True

    def shortened(self) -> FitRequest:
        """Return the same with half the step size."""
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


class AbstractInContext(Settings, BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator that is a frozen transformer and its context.

    Subclasses scale the data, state the problem as a `FitRequest`, and read the transformer's
    answers. Their `fit` is taken over `at_once`.
    """

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

    def _learn(self, request: FitRequest) -> None:
        """Compile and run, with a step size that makes the loss fall; remember the outcome."""
        self._request, compiled, self._task, self._run = self._trained(request)
        self.n_iter_ = self._run.parameters.shape[-2] - 1
        program: Any = compiled.program
        n_steps = self.n_iter_ * request.steps_per_iter
        if n_steps != program.n_steps:
            program = replace(program, n_steps=n_steps)
        self.compiled_ = replace(compiled, program=program)
        ends = {"schedule": ()} if getattr(program, "schedule", ()) else {}
        self._last = replace(compiled, program=replace(program, n_steps=0, **ends))
        self._certificate: Report | None = None
        self._losses: Array | None = None
        self.convergence_ = self._convergence()

    def _convergence(self) -> Convergence:
        """Return how far from its end the run stopped."""
        oracle, history = self.compiled_.problem.oracle, self._run.parameters
        steps_per_row = self._request.steps_per_iter
        return convergence(oracle, self._task, history, steps_per_row=steps_per_row)

    def _not_done(self) -> str:
        return f"{self.convergence_} This was with max_iter={self._request.n_iter}."

    @property
    def _columns(self) -> tuple[str, ...]:
        """The names of the columns of X, if it was a data frame."""
        return tuple(getattr(self, "feature_names_in_", ()))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the settings, as of any estimator; once fitted, also what trained it."""
        settings: str = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "compiled_"):
            return settings
        n_steps = counted(self.compiled_.program.n_steps, "step")
        return f"{settings}, fitted in {n_steps} by the {BACKEND} backend"

    def __dir__(self) -> list[str]:
        """All names but `certificate_`: notebooks look at what names hold, and it is slow."""
        names = [name for name in object.__dir__(self) if name != "certificate_"]
        return [name for name in names if hasattr(self, name)]

    def _trained(self, request: FitRequest) -> tuple[FitRequest, Compiled, Task, Run]:
        """Return the first run whose loss falls all along; after every other the step size is
        halved.
        """
        n_steps = request.n_iter * request.steps_per_iter
        for _ in range(MOST_HALVINGS):
            compiled = compile_problem(request.problem, request.construction, n_steps=n_steps)
            data = self._moved(request.x, request.y)
            rates = None if request.rates is None else self._moved(request.rates)[0]
            task = compiled.task(*data, initial=request.initial, rates=rates)
            task = replace(task, input_names=self._columns)
            try:
                run = compiled._run(
                    task,
                    BACKEND,
                    stop_below=request.tol,
                    trace=self.traced,
                    history=request.steps_per_iter if request.steps_per_iter > 1 else True,
                    on_progress=self.on_progress,
                )
            except OverflowedRunError:
                if not request.may_shorten:
                    raise
            else:
                if not request.may_shorten or _falls(compiled, task, run):
                    return request, compiled, task, run
            request = request.shortened()
        size: Any = request.problem.update.step_size
        furthest = np.abs(request.x).reshape(-1, request.x.shape[-1])[:, : self.n_features_in_]
        row, column = np.unravel_index(furthest.argmax(), furthest.shape)
        raise OverflowedRunError(
            "The loss is larger after the run than before it, even with "
            f"step_size={float(size):g}. Look for examples that are far larger than all others, or "
            f"take fewer steps: the furthest entry is in {self._column(int(column))}, "
            f"{furthest[row, column]:.3g} standard deviations from its mean."
        )

    def _column(self, number: int) -> str:
        """Return the column of X of this number, as a user knows it."""
        return column_named(self._columns, number)

    def _moved(self, *arrays: Array) -> list[Tensor]:
        """Arrays as tensors on the estimator's device."""
        device = device_of(self.device)
        return [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays]

    def _answers(self, X: Any) -> Array:
        """Return what the transformer says of raw rows, on the scale of its labels."""
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
        """Return whether the transformer was compiled for such rows."""
        return float(rows.abs().max()) <= self.compiled_.problem.domain.x

    def _recalled(self, task: Task, run: Run) -> Tensor:
        """Return the answers of the layers that come after all steps, for weights that a run
        reached.
        """
        reached = replace(task, initial=run.parameters[..., -1, :])
        return self._last_layers(task.queries).run_task(reached).predictions

    def _last_layers(self, rows: Tensor) -> Compiled:
        """Return the transformer without its steps, made for rows of this size."""
        if self._is_within(rows):
            return self._last
        return compile_problem(self._widened(rows), self._request.construction, n_steps=0)

    def _widened(self, rows: Tensor) -> Problem:
        """Return the problem on a domain that holds these rows."""
        problem = self.compiled_.problem
        wider = replace(problem.domain, x=max(problem.domain.x, float(rows.abs().max())))
        update: Any = problem.update
        if isinstance(update.step_size, tuple):  # one for each of no steps would be none
            update = replace(update, step_size=update.step_size[0])
        return replace(problem, domain=wider, update=update)

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
        """Return the losses of several weights on one task: as many tasks with the same data."""
        n = len(weights)
        x, y, queries = (part.expand(n, -1, -1) for part in (task.x, task.y, task.queries))
        rates = None if task.rates is None else task.rates.expand(n, -1, -1)
        return _objective(self.compiled_, Task(x, y, queries, weights, rates=rates), weights)

    @property
    def certificate_(self) -> Report:
        """The run beside real descent: errors of its steps, measured and proved (`icgd.verify`)."""
        check_is_fitted(self)
        if self._certificate is None:
            task = self._task
            self._certificate = verify(
                self.compiled_, task.x, task.y, initial=task.initial, rates=task.rates
            )
        return self._certificate


def _objective(compiled: Compiled, task: Task, weights: Tensor) -> Tensor:
    """Return what descent makes small."""
    oracle = compiled.problem.oracle
    found = oracle.objective(task, weights)
    return oracle.risk(task, weights) if found is None else found


def _falls(compiled: Compiled, task: Task, run: Run) -> bool:
    """Return whether the loss rises by more than a little for no task; a NaN is a rise."""
    n_rows = run.parameters.shape[-2]
    rows = np.unique(np.linspace(0, n_rows - 1, LOOKS, dtype=int)).tolist()
    losses = torch.stack([_objective(compiled, task, run.parameters[..., i, :]) for i in rows])
    rise = losses[1:] - losses[:-1]
    return bool((rise <= RISE * losses[:-1].abs()).all())


class AbstractRegressor(RegressorMixin):  # type: ignore[misc]
    """A regressor that is trained on scaled labels."""

    _label_scaling: Scaling

    def predict(self: Any, X: Any) -> Array:
        """Return the expected label of every row.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows,).

        Example:
            >>> from icgd.estimators import InContextRidge
            >>> model = InContextRidge(alpha=0.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
            >>> model.predict([[3.0]]).round(3).tolist()
            [7.0]
        """
        answers = self._answers(X)
        labels: Array = self._label_scaling.undone(answers)
        return labels.ravel()


# Classes as labels of a transformer, and its outputs as classes: one output against the rest.


class AbstractClassifier(ClassifierMixin):  # type: ignore[misc]
    """A classifier with an output for each class, or with one output for the second of two.

    Subclasses give the probability of each output by itself; those of a row are divided by their
    sum.
    """

    classes_: NDArray[Any]

    @abstractmethod
    def _shares(self, X: Any) -> Array:
        """Return the probability of each output, a row for each row of X."""

    def _encoded(
        self, X: Any, y: Any, sample_weight: Any = None, class_weight: Any = None
    ) -> tuple[Array, Array, Array | None]:
        """Return the checked rows, a label 0 or 1 for each output, and weights if any are given.

        `classes_` is set.
        """
        X, y = read_examples(self, X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        weights = None if sample_weight is None else read_weights(sample_weight, X)
        if class_weight is not None:
            weights = (1.0 if weights is None else weights) * self._of_classes(class_weight, y)
        seen = np.unique(numbers if weights is None else numbers[weights > 0])
        if len(seen) < 2:
            weighted = "" if weights is None else " with a positive weight"
            names = ", ".join(quoted(name) for name in self.classes_[seen].tolist())
            raise DataError(
                f"All examples{weighted} are of one class, {names}; a classifier needs examples "
                "of at least two classes."
            )
        if len(self.classes_) == 2:
            return X, numbers.reshape(-1, 1).astype(np.float64), weights
        return X, np.eye(len(self.classes_))[numbers], weights

    def _of_classes(self, class_weight: Any, y: Any) -> Array:
        """Return the weight of each row's class; of classes that are not named it is 1."""
        classes = self.classes_.tolist()
        if isinstance(class_weight, Mapping):
            for name, weight in class_weight.items():
                if name not in classes:
                    raise SettingError(
                        f"class_weight names the class {quoted(name)}, but y has the classes "
                        f"{cut(', '.join(map(quoted, classes)))}."
                    )
                if not_negative(f"class_weight[{quoted(name)}]", weight) == 0:
                    raise SettingError(
                        f"class_weight[{quoted(name)}] is 0, with which no example of the class "
                        "counts; give a positive weight, or leave its rows out."
                    )
        elif class_weight != "balanced":
            raise SettingError(
                "class_weight must be 'balanced', or a weight for each class such as "
                f"{{{quoted(classes[0])}: 2.0}}, got {quoted(class_weight)}."
            )
        weights: Array = compute_sample_weight(class_weight, y)
        return weights

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class.

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
        """Return the most probable class of every row.

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
