"""Base classes of the estimators: compile and run in `fit`, answer new rows in `predict`.

`fit` of a subclass scales the data and states the problem as a `FitRequest`; the classes here
compile and run it, cache the trained weights, predict from them, and report losses, convergence
and certificates.
"""

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
    """Settings shared by all estimators.

    scikit-learn requires an `__init__` that names every setting. Estimators are dataclasses, so
    that each setting is declared once, as a field. Docstrings follow: a class documents its own
    settings and attributes, and inherits the entries of its bases.

    Args:
        max_iter: the number of steps.
        device: the torch device of the run.
        cache_context: whether `predict` starts from the weights that `fit` reached. If not, it runs
            the whole transformer on context and rows; the answers are equal bit for bit.
        on_progress: a function that `fit` calls with the number of steps done and of all steps.

    Attributes:
        compiled_: the compiled run, with `transformer()`, `summary()` and `listing()`.
        n_iter_: the number of steps taken.
        convergence_: how far from its limit descent stopped.
        certificate_: the report of `icgd.verify` on the run; computed on first access.
        n_features_in_: the number of inputs.
        feature_names_in_: the names of the inputs, if X was a data frame.

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
            cls.__doc__ = _inherited_docstring(cls)


INHERITED_SECTIONS = ("Args", "Attributes", "Raises")
"""Docstring sections to which a class adds the entries of its bases."""


def _inherited_docstring(kind: type) -> str:
    """Return the docstring of a class with the entries of its bases added to its sections."""
    docs = [base.__dict__.get("__doc__") or "" for base in kind.__mro__]
    summary, *sections = re.split(r"^    (Args|Attributes|Raises|Example):\n", docs[0], flags=re.M)
    bodies = dict(zip(sections[::2], sections[1::2], strict=True))
    for title in INHERITED_SECTIONS:
        entries: dict[str, str] = {}
        for doc in docs:
            body = re.search(rf"^    {title}:\n((?:        .*\n)+)", doc, re.M)
            listed = re.findall(r"^        \w.*\n(?:         .*\n)*", body[1] if body else "", re.M)
            for entry in listed:  # the entry of the most derived class wins
                entries.setdefault(entry.partition(":")[0].strip(), entry)
        bodies[title] = "".join(entries.values())
    texts = (
        f"    {title}:\n{bodies[title].rstrip()}\n"
        for title in (*INHERITED_SECTIONS, "Example")
        if bodies.get(title)
    )
    return summary.rstrip() + "\n\n" + "\n".join(texts) + "    "


BACKEND = "fused"
"""The backend of `fit` and `predict`; `certificate_` runs the transformer itself if affordable."""

CONSTANT = 10 * float(np.finfo(np.float64).eps)
"""Columns whose relative deviation is at most this count as constant: it is rounding error."""


@dataclass(frozen=True)
class Scaling:
    """The map of columns v to (v - center) / scale."""

    center: Array
    scale: Array

    @classmethod
    def of(cls, columns: Array, weights: Array | None = None, *, centered: bool = True) -> Scaling:
        """Return the scaling to mean 0 and variance 1; if not `centered`, to a mean square of 1.

        Constant columns are not divided. A row of weight w counts as w equal rows.
        """
        size = np.abs(columns).max(0)
        size[size == 0] = 1.0
        relative = columns / size  # at most 1, so that squares cannot overflow
        mean = np.average(relative, axis=0, weights=weights)
        center = mean if centered else np.zeros_like(mean)
        deviation = np.sqrt(np.average((relative - center) ** 2, axis=0, weights=weights))
        is_constant = deviation <= CONSTANT
        deviation[is_constant] = 1 / size[is_constant]
        return cls(center * size, deviation * size)

    def uniform(self) -> Scaling:
        """Return the scaling that divides all columns by the root mean square of their scales."""
        common = float(np.sqrt(np.mean(self.scale**2)))
        return Scaling(self.center, np.full_like(self.scale, common))

    def transform(self, values: Array) -> Array:
        """Return the scaled columns."""
        scaled: Array = (values - self.center) / self.scale
        return scaled

    def inverse_transform(self, values: Array) -> Array:
        """Return the raw columns of scaled ones."""
        raw: Array = values * self.scale + self.center
        return raw


def bound_above(*arrays: Any, room: float = 1.0) -> float:
    """Return the least power of two >= 1 that is at least `room` times the size of any entry."""
    largest = room * max(float(np.abs(np.asarray(array)).max(initial=0.0)) for array in arrays)
    if largest <= 1:
        return 1.0
    mantissa, exponent = frexp(largest)
    return 2.0 ** (exponent - (mantissa == 0.5))


# Data and settings are validated by scikit-learn. Its errors become errors of icgd that keep its
# message and are also of the type that `check_estimator` expects.


def read_examples(estimator: Any, X: Any, y: Any, *, numeric: bool = True) -> tuple[Array, Any]:
    """Return validated rows and labels; labels must be numbers if `numeric`."""
    _require_unmasked("X", X)
    _require_unmasked("y", y)
    options = {"y_numeric": True} if numeric else {}
    examples: tuple[Array, Any] = _validated(
        "X or y", X, lambda: validate_data(estimator, X, y, dtype=np.float64, **options)
    )
    return examples


def describe_column(names: Sequence[str], number: int) -> str:
    """Return a column by its name if columns have names, otherwise by its number."""
    return f"column {names[number]!r}" if names else f"column {number} (counted from 0)"


def read_rows(estimator: Any, X: Any) -> Array:
    """Return validated rows for a fitted estimator."""
    check_is_fitted(estimator)
    _require_unmasked("X", X)
    rows: Array = _validated(
        "X", X, lambda: validate_data(estimator, X, reset=False, dtype=np.float64)
    )
    return rows


def read_weights(sample_weight: Any, X: Array) -> Array:
    """Return a finite weight >= 0 for each row, at least one of them positive."""
    weights: Array = _validated(
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
    """Return a seed drawn from scikit-learn's `random_state`."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        raise SettingError(
            "random_state must be a seed from 0 to 2**32 - 1, a RandomState or None, "
            f"got {quoted(random_state)}."
        ) from None


def _require_unmasked(name: str, data: Any) -> None:
    """Raise `DataError` for masked entries; scikit-learn would use the numbers below the mask."""
    if np.ma.is_masked(data):
        raise DataError(f"{name} has masked entries. Drop or fill them first.")


def _validated(name: str, X: Any, validate: Callable[[], Any]) -> Any:
    """Return the result of `validate`; raise its errors as errors of icgd that locate the entry."""
    try:
        return validate()
    except TypeError as problem:
        error: type[DataError] = DataTypeError
        reason = str(problem)
    except ValueError as problem:
        error, reason = DataError, str(problem)
    if place := _first_bad_entry(X):  # in place of scikit-learn's advice on other estimators
        reason = f"{reason.partition(chr(10))[0]} {place}"
    raise error(f"{name} cannot be used: {cut(reason)}")


def _first_bad_entry(X: Any) -> str:
    """Return a sentence that locates the first entry of X that is not a finite number, or "".

    Errors of scikit-learn do not say where in X the entry is. Like scikit-learn, this looks for
    texts before it looks for missing or infinite numbers.
    """
    names = column_names(X)
    try:
        table = np.asarray(X, dtype=object)
    except ValueError:  # ragged
        return ""
    if table.ndim != 2:
        return ""
    missing = None
    for column in range(table.shape[1]):
        for row, entry in enumerate(table[:, column]):
            try:
                is_finite = np.isfinite(float(np.nan if entry is None else entry))
            except (TypeError, ValueError):
                return _located(entry, describe_column(names, column), row)
            if not is_finite and missing is None:
                missing = _located(entry, describe_column(names, column), row)
    return missing or ""


def _located(entry: Any, column: str, row: int) -> str:
    return (
        f"The first such entry is {quoted(entry)} in {column}, row {row}. Drop such rows, or fill "
        "or encode the column first."
    )


Fit = TypeVar("Fit", bound=Callable[..., Any])

MOST_HALVINGS = 12
"""How often a step size is halved while the loss rises, before `fit` raises an error."""

ROOM = 4.0
"""The domain holds rows this many times as large as the context."""

LOSS_SAMPLES, TOLERATED_RISE = 64, 0.01
"""How many losses of a run are compared, and how much each may exceed the last, relatively."""

CURVE_CHUNK = 2**22
"""About how many inputs `loss_curve_` evaluates at once, which bounds its memory."""


@dataclass(frozen=True)
class FitRequest:
    """A problem, scaled examples to train it on, and when to stop.

    `rates` multiply the gradients of the examples; None stands for 1. `initial` overrides the
    problem's own initial weights. An iteration has `steps_per_iter` steps. With `tol`, the run
    stops after the first step that moves no weight by more. With `may_shorten`, the step size is
    halved until the loss falls.
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
        """Return the request with half the step size."""
        update: Any = self.problem.update
        shorter: Any = replace(update, step_size=update.step_size / 2)
        return replace(self, problem=replace(self.problem, update=shorter))


def atomic(fit: Fit) -> Fit:
    """Make `fit` atomic: an error or Ctrl-C leaves the estimator as it was before.

    `fit` works on a copy, whose attributes replace those of the estimator in one assignment.
    """

    @wraps(fit)
    def atomic_fit(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        fitted = copy(estimator)
        fit(fitted, *args, **kwargs)
        if not fitted.convergence_.is_done:
            warn(ConvergenceWarning(fitted._not_done()))
        estimator.__dict__ = fitted.__dict__
        return estimator

    return atomic_fit  # type: ignore[return-value]


class AbstractInContext(Settings, BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator made of a frozen transformer and its context.

    `fit` of a subclass, decorated by `atomic`, scales the data and passes a `FitRequest` to
    `_train`. Its `predict` interprets the outputs of the transformer.
    """

    traced: ClassVar[tuple[str, ...]] = ()
    """Slots of the residual stream that a run records besides the trained weights."""

    compiled_: Compiled
    n_iter_: int
    n_features_in_: int
    _scaling: Scaling
    _readout: Compiled
    """The transformer without training steps, which predicts from trained weights."""

    @abstractmethod
    def _rows(self, X: Array) -> Array:
        """Return validated raw rows as inputs of the transformer."""

    def _train(self, request: FitRequest) -> None:
        """Compile and run the request, and store the outcome."""
        self._request, compiled, self._task, self._run = self._run_until_loss_falls(request)
        self.n_iter_ = self._run.parameters.shape[-2] - 1
        program: Any = compiled.program
        n_steps = self.n_iter_ * request.steps_per_iter
        if n_steps != program.n_steps:  # `tol` stopped the run
            program = replace(program, n_steps=n_steps)
        self.compiled_ = replace(compiled, program=program)
        no_schedule = {"schedule": ()} if getattr(program, "schedule", ()) else {}
        self._readout = replace(compiled, program=replace(program, n_steps=0, **no_schedule))
        self._certificate: Report | None = None
        self._losses: Array | None = None
        self.convergence_ = self._convergence()

    def _convergence(self) -> Convergence:
        """Measure how far from its limit the run stopped."""
        oracle, history = self.compiled_.problem.oracle, self._run.parameters
        steps_per_row = self._request.steps_per_iter
        return convergence(oracle, self._task, history, steps_per_row=steps_per_row)

    def _not_done(self) -> str:
        """Return the message of the `ConvergenceWarning`."""
        return f"{self.convergence_} This was with max_iter={self._request.n_iter}."

    @property
    def _columns(self) -> tuple[str, ...]:
        """The column names of X if it was a data frame, otherwise ()."""
        return tuple(getattr(self, "feature_names_in_", ()))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return scikit-learn's text, and once fitted the number of steps and the backend."""
        settings: str = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "compiled_"):
            return settings
        n_steps = counted(self.compiled_.program.n_steps, "step")
        return f"{settings}, fitted in {n_steps} by the {BACKEND} backend"

    def __dir__(self) -> list[str]:
        """Return all names but `certificate_`, which notebooks would evaluate: that is slow."""
        names = [name for name in object.__dir__(self) if name != "certificate_"]
        return [name for name in names if hasattr(self, name)]

    def _run_until_loss_falls(self, request: FitRequest) -> tuple[FitRequest, Compiled, Task, Run]:
        """Run with ever shorter steps until the loss falls throughout a run; return that run.

        If the step size was given, the first run counts.
        """
        n_steps = request.n_iter * request.steps_per_iter
        for _ in range(MOST_HALVINGS):
            compiled = compile_problem(request.problem, request.construction, n_steps=n_steps)
            data = self._tensors(request.x, request.y)
            rates = None if request.rates is None else self._tensors(request.rates)[0]
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
                if not request.may_shorten or _loss_falls(compiled, task, run):
                    return request, compiled, task, run
            request = request.shortened()
        # Outliers are the usual reason: name the column of the largest entry.
        step_size: Any = request.problem.update.step_size
        sizes = np.abs(request.x).reshape(-1, request.x.shape[-1])[:, : self.n_features_in_]
        row, column = np.unravel_index(sizes.argmax(), sizes.shape)
        raise OverflowedRunError(
            "The loss is larger after the run than before it, even with "
            f"step_size={float(step_size):g}. Look for examples that are far larger than all "
            f"others, or take fewer steps: the largest entry is in {self._column(int(column))}, "
            f"{sizes[row, column]:.3g} standard deviations from its mean."
        )

    def _column(self, number: int) -> str:
        """Return a column of X by its name, or by its number if it has none."""
        return describe_column(self._columns, number)

    def _tensors(self, *arrays: Array) -> list[Tensor]:
        """Return arrays as tensors on the estimator's device."""
        device = device_of(self.device)
        return [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays]

    def _outputs(self, X: Any) -> Array:
        """Return the transformer's predictions for raw rows, on the scale of its labels."""
        rows = self._rows(read_rows(self, X))
        (queries,) = self._tensors(rows)
        queries = queries.expand(*self._task.batch, -1, -1)
        outputs: Array = self._predictions(replace(self._task, queries=queries)).cpu().numpy()
        return outputs

    def _predictions(self, task: Task) -> Tensor:
        """Predict from cached weights, or by a run from the start, with the same bits.

        Examples never attend to queries, so that training does not depend on the queries. Rows
        beyond the domain are always predicted after the run, by layers compiled for their size.
        """
        if self.cache_context:
            return self._predict_after(self._run, task)
        if self._is_within_domain(task.queries):
            return self._run_with_queries(task)
        return self._predict_after(self.compiled_.run_task(self._task, trace=self.traced), task)

    def _run_with_queries(self, task: Task) -> Tensor:
        """Run the transformer on context and queries; return its predictions."""
        return self.compiled_.run_task(task).predictions

    def _is_within_domain(self, rows: Tensor) -> bool:
        """Return whether the domain that the transformer was compiled for holds these rows."""
        return float(rows.abs().max()) <= self.compiled_.problem.domain.x

    def _predict_after(self, run: Run, task: Task) -> Tensor:
        """Return the predictions of the layers that follow the last step of a run."""
        trained = replace(task, initial=run.parameters[..., -1, :])
        return self._readout_for(task.queries).run_task(trained).predictions

    def _readout_for(self, rows: Tensor) -> Compiled:
        """Return the transformer without training steps, compiled for rows of this size."""
        if self._is_within_domain(rows):
            return self._readout
        problem = self.compiled_.problem
        wider = replace(problem.domain, x=float(rows.abs().max()))
        update: Any = problem.update
        if isinstance(update.step_size, tuple):  # a schedule for 0 steps would be empty
            update = replace(update, step_size=update.step_size[0])
        widened = replace(problem, domain=wider, update=update)
        return compile_problem(widened, self._request.construction, n_steps=0)

    @property
    def loss_curve_(self) -> Array:
        """The objective on scaled labels, before the first step and after every step."""
        check_is_fitted(self)
        if self._losses is None:
            history = self._run.parameters.double()
            self._losses = self._curve(self._task, history).cpu().numpy()
        return self._losses

    def _curve(self, task: Task, history: Tensor) -> Tensor:
        """Return the objective for each row of the history, summed over tasks."""
        if task.batch:
            tasks = zip(task.x, task.y, task.queries, history, strict=True)
            curves = [self._curve(Task(x, y, q, run[0]), run) for x, y, q, run in tasks]
            return torch.stack(curves).sum(0)
        n_rows = max(1, CURVE_CHUNK // max(task.x.numel(), task.y.numel()))
        return torch.cat([self._losses_at(task, rows) for rows in history.split(n_rows)])

    def _losses_at(self, task: Task, weights: Tensor) -> Tensor:
        """Return the objective for each row of weights: a batch of tasks that share their data."""
        n = len(weights)
        x, y, queries = (data.expand(n, -1, -1) for data in (task.x, task.y, task.queries))
        rates = None if task.rates is None else task.rates.expand(n, -1, -1)
        return _objective(self.compiled_, Task(x, y, queries, weights, rates=rates), weights)

    @property
    def certificate_(self) -> Report:
        """The report of `icgd.verify`: measured and proved errors against exact descent."""
        check_is_fitted(self)
        if self._certificate is None:
            task = self._task
            self._certificate = verify(
                self.compiled_, task.x, task.y, initial=task.initial, rates=task.rates
            )
        return self._certificate


def _objective(compiled: Compiled, task: Task, weights: Tensor) -> Tensor:
    """Return the objective of descent: with its penalties if the oracle has them, else the risk."""
    oracle = compiled.problem.oracle
    objective = oracle.objective(task, weights)
    return oracle.risk(task, weights) if objective is None else objective


def _loss_falls(compiled: Compiled, task: Task, run: Run) -> bool:
    """Return whether the loss of every task falls, up to `TOLERATED_RISE`; NaN counts as a rise."""
    n_rows = run.parameters.shape[-2]
    rows = np.unique(np.linspace(0, n_rows - 1, LOSS_SAMPLES, dtype=int)).tolist()
    losses = torch.stack([_objective(compiled, task, run.parameters[..., i, :]) for i in rows])
    rise = losses[1:] - losses[:-1]
    return bool((rise <= TOLERATED_RISE * losses[:-1].abs()).all())


class AbstractRegressor(RegressorMixin):  # type: ignore[misc]
    """A regressor trained on scaled labels."""

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
        outputs = self._outputs(X)  # first, because it raises NotFittedError
        labels: Array = self._label_scaling.inverse_transform(outputs)
        return labels.ravel()


class AbstractClassifier(ClassifierMixin):  # type: ignore[misc]
    """A classifier with one output for each class, or one output for the second of two classes."""

    classes_: NDArray[Any]

    @abstractmethod
    def _output_probabilities(self, X: Any) -> Array:
        """Return the probability of each output, a row for each row of X.

        Rows need not sum to 1: with a model for each class against the rest they do not.
        """

    def _encoded(
        self, X: Any, y: Any, sample_weight: Any = None, class_weight: Any = None
    ) -> tuple[Array, Array, Array | None]:
        """Set `classes_`; return validated rows, a 0/1 label for each output, and any weights."""
        X, y = read_examples(self, X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        weights = None if sample_weight is None else read_weights(sample_weight, X)
        if class_weight is not None:
            weights = (1.0 if weights is None else weights) * self._class_weights(class_weight, y)
        present = np.unique(numbers if weights is None else numbers[weights > 0])
        if len(present) < 2:
            weighted = "" if weights is None else " with a positive weight"
            names = ", ".join(quoted(name) for name in self.classes_[present].tolist())
            raise DataError(
                f"All examples{weighted} are of one class, {names}; a classifier needs examples "
                "of at least two classes."
            )
        if len(self.classes_) == 2:
            return X, numbers.reshape(-1, 1).astype(np.float64), weights
        return X, np.eye(len(self.classes_))[numbers], weights

    def _class_weights(self, class_weight: Any, y: Any) -> Array:
        """Return the weight of each row's class, which is 1 unless `class_weight` names it."""
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
                        f"class_weight[{quoted(name)}] is 0, which leaves no example of the class; "
                        "give a positive weight, or leave its rows out."
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
        outputs = self._output_probabilities(X)
        if outputs.shape[1] == 1:
            return np.hstack([1 - outputs, outputs])
        total = outputs.sum(1, keepdims=True)
        uniform = np.full_like(outputs, 1 / outputs.shape[1])  # where all have underflowed
        probabilities: Array = np.divide(outputs, total, out=uniform, where=total > 0)
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
        outputs = self._output_probabilities(X)
        best = outputs[:, 0] > 0.5 if outputs.shape[1] == 1 else outputs.argmax(1)
        classes: NDArray[Any] = self.classes_[best.astype(int)]
        return classes
