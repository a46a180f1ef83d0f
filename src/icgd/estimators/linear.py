"""Linear models trained by gradient descent in a transformer: ridge, lasso, logistic and Poisson.

Coefficients are trained on scaled columns, and a penalty applies to scaled coefficients: dividing a
column by s multiplies its coefficient by s. If all columns are divided by the same s, the penalty
is divided by s or s^2 in return and applies to the coefficients of raw columns.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from torch import Tensor

from icgd.errors import DataError, SettingError, quoted
from icgd.estimators.base import (
    ROOM,
    AbstractClassifier,
    AbstractInContext,
    AbstractRegressor,
    Array,
    FitRequest,
    Scaling,
    atomic,
    bound_above,
    read_examples,
    read_rows,
    read_weights,
)
from icgd.problems.convergence import Convergence, sized_problem
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.problems.settings import MOST_STEPS, count, finite, positive
from icgd.problems.steps import ProximalStep


@dataclass(eq=False, repr=False)
class AbstractLinear(AbstractInContext):
    """A linear model on scaled columns.

    Args:
        max_iter: the maximal number of steps.
        tol: descent stops after a step that moves no scaled coefficient by more.
        fit_intercept: whether there is an intercept; if not, no column is centred.
        standardize: whether the penalty applies to the coefficients of standardised columns. If
            not, it applies to those of raw columns, as in scikit-learn, and descent takes longer
            the more the scales of the columns differ.

    Attributes:
        coef_: the coefficients of raw columns.
        intercept_: the intercept.
        convergence_: how far from the minimiser descent stopped.
        loss_curve_: the objective on scaled data up to a constant, before and after every step.
    """

    _: KW_ONLY
    fit_intercept: Any = True
    standardize: Any = True
    max_iter: Any = 5000
    tol: Any = 1e-6

    def _rows(self, X: Array) -> Array:
        return self._scaling.transform(X)

    def _scale(self, X: Array, weights: Array | None = None) -> Array:
        """Check `max_iter` and `tol`, find the scaling, and return the scaled rows."""
        self._n_steps = count("max_iter", self.max_iter, most=MOST_STEPS)
        positive("tol", self.tol)
        scaling = Scaling.of(X, weights, centered=self.fit_intercept)
        self._scaling = scaling if self.standardize else scaling.uniform()
        return self._rows(X)

    @property
    def _common_scale(self) -> float:
        """The common scale of all columns if penalties apply to raw coefficients, otherwise 1."""
        return 1.0 if self.standardize else float(self._scaling.scale[0])

    def _problem(
        self, model: LinearModel, update: ProximalStep, rows: Array, labels: Array
    ) -> Problem:
        """Return the problem with a box that no run reaches, and a step size if `update` has none.

        A step d of size s lowers the objective F by at least |d|^2 / (2 s). By Cauchy and Schwarz L
        steps move the coefficients by at most sqrt(2 s L (F(0) - min F)).
        """
        domain = Domain(bound_above(rows, room=ROOM), bound_above(labels))
        problem = Problem(model, "matching", update, domain)
        if update.step_size is None:
            problem = sized_problem(problem, rows)
        gain = self._largest_gain(problem, rows, labels)
        reach = sqrt(2 * (problem.proximal_step.step_size or 1.0) * self._n_steps * gain)
        boxed = replace(problem.proximal_step, box=bound_above(reach, room=2.0))
        return replace(problem, update=boxed)

    def _largest_gain(self, problem: Problem, rows: Array, labels: Array) -> float:
        """Return an upper bound on how far the objective can fall: no loss is below its minimum."""
        task = as_task(problem, rows, labels)
        least = problem.model.link_function.least_loss(task.y).sum()
        start = problem.oracle.risk(task, task.initial)
        scale = problem.model.loss_scale(task.n_examples)
        return max(0.0, float(start - scale * least))

    def _coefficients(self) -> tuple[Array, Array]:
        """Return the coefficients of raw columns and the intercept, for scaled labels."""
        weights = self._run.parameters[..., -1, :].cpu().numpy()
        width = self.n_features_in_
        coef = weights[..., :width] / self._scaling.scale
        # The last weight is the intercept; models of centred labels have none, and the sum is 0.
        intercept = weights[..., width:].sum(-1) - coef @ self._scaling.center
        return coef, np.asarray(intercept)

    def _scores(self, rows: Tensor) -> Tensor:
        """Return <w, x> + b for scaled rows, with the trained coefficients."""
        weights = self._run.parameters[..., -1, :]
        return self.compiled_.problem.linear_oracle.scores(weights, rows)


@dataclass(eq=False, repr=False)
class AbstractPenalised(AbstractLinear):
    """A linear model with a penalty.

    Args:
        alpha: the factor of the penalty.
    """

    alpha: Any = 1.0

    def _checked_alpha(self) -> float:
        """Return `alpha`, a finite number that is not negative."""
        alpha = finite("alpha", self.alpha)
        if alpha < 0:
            raise SettingError(
                f"alpha must not be negative, got {quoted(alpha)}: a penalty draws coefficients "
                "towards 0. Give 0 for none."
            )
        return alpha


class AbstractLeastSquares(AbstractRegressor, AbstractPenalised):
    """Least squares on centred data; the root of a weight multiplies its row and label."""

    @abstractmethod
    def _penalty(self, total: float) -> ProximalStep:
        """Return the penalty of the scaled problem, for rows whose weights sum to `total`."""

    @atomic
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a number for each row.
            sample_weight: how much each row counts; weight 2 is equivalent to repeating the row.

        Returns:
            The estimator itself.

        Raises:
            SettingError: if a setting is out of its range.
            DataError: if the weights of all rows are 0.

        Example:
            >>> from icgd.estimators import InContextRidge
            >>> InContextRidge().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).n_features_in_
            1
        """
        X, y = read_examples(self, X, y)
        weights = None if sample_weight is None else read_weights(sample_weight, X)
        labels = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        rows = self._scale(X, weights)
        self._label_scaling = Scaling.of(labels, weights, centered=self.fit_intercept)
        scaled = self._label_scaling.transform(labels)
        total = float(len(rows)) if weights is None else float(weights.sum())
        if weights is not None:
            root = np.sqrt(len(rows) * weights / total)[:, None]
            rows, scaled = rows * root, scaled * root
        update = self._penalty(total)
        problem = self._problem(LinearModel(rows.shape[1]), update, rows, scaled)
        self._train(FitRequest(problem, rows, scaled, self._n_steps, tol=self.tol))
        coef, intercept = self._coefficients()
        unit = float(self._label_scaling.scale[0])
        self.coef_ = coef * unit
        self.intercept_ = float(self._label_scaling.center[0] + unit * intercept)
        return self


class InContextRidge(AbstractLeastSquares):
    """Ridge regression by gradient descent in a frozen transformer, a block of layers a step.

    It minimises sum_i (y_i - <w, x_i> - b)^2 + alpha |w|^2 over the coefficients w of standardised
    columns, like `make_pipeline(StandardScaler(), Ridge(alpha))`.

    Example:
        >>> from icgd.estimators import InContextRidge
        >>> model = InContextRidge(alpha=0.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> round(float(model.coef_[0]), 3), round(model.intercept_, 3)
        (2.0, 1.0)
    """

    def _penalty(self, total: float) -> ProximalStep:
        return ProximalStep(l2=self._checked_alpha() / total / self._common_scale**2)


class InContextLasso(AbstractLeastSquares):
    """The lasso by gradient descent in a frozen transformer, a block of layers a step.

    It minimises (1 / 2n) sum_i (y_i - <w, x_i> - b)^2 + alpha |w|_1 over the coefficients w of
    standardised columns, like `make_pipeline(StandardScaler(), Lasso(alpha))`.

    Example:
        >>> from icgd.estimators import InContextLasso
        >>> X = [[0.0, 1.0], [1.0, -1.0], [2.0, -1.0], [3.0, 1.0]]
        >>> model = InContextLasso(alpha=0.1).fit(X, [1.0, 3.0, 5.0, 7.0])
        >>> model.coef_.round(2).tolist()  # y does not depend on the second column
        [1.91, 0.0]
    """

    def _penalty(self, total: float) -> ProximalStep:
        unit = float(self._label_scaling.scale[0])
        return ProximalStep(l1=self._checked_alpha() / unit / self._common_scale)


@dataclass(eq=False, repr=False)
class InContextLogistic(AbstractClassifier, AbstractLinear):
    """Logistic regression by gradient descent in a frozen transformer, a block of layers a step.

    It minimises C sum_i loss_i + |w|^2 / 2 over the coefficients w of standardised columns, like
    `make_pipeline(StandardScaler(), LogisticRegression(C=C))` with two classes. With more classes
    it trains one model for each class against the rest, like `OneVsRestClassifier`; the transformer
    runs all of them at once, as a batch of tasks.

    Args:
        C: the inverse factor of the penalty.

    Attributes:
        classes_: the classes, in the order of probabilities.
        coef_: the coefficients of raw columns: a row for each class, or one row for two classes.
        intercept_: an intercept for each row of `coef_`.
        loss_curve_: the objective divided by C n, summed over classes, before and after every step.

    Raises:
        DataError: by `fit`, if there are fewer than two classes.

    Example:
        >>> from icgd.estimators import InContextLogistic
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]
        >>> InContextLogistic().fit(X, y).predict([[0.5], [2.5]]).tolist()
        ['no', 'yes']
    """

    C: Any = 1.0
    _: KW_ONLY
    tol: Any = 1e-5

    @atomic
    def fit(self, X: Any, y: Any) -> InContextLogistic:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a class for each row.

        Returns:
            The estimator itself.

        Raises:
            DataError: if there are fewer than two classes.

        Example:
            >>> from icgd.estimators import InContextLogistic
            >>> InContextLogistic().fit([[0.0], [1.0], [2.0]], [0, 0, 1]).classes_.tolist()
            [0, 1]
        """
        X, labels, _ = self._encoded(X, y)
        rows = self._scale(X)
        model = LinearModel(rows.shape[1], link="logistic", intercept=self.fit_intercept)
        l2 = 1 / (positive("C", self.C) * len(rows) * self._common_scale**2)
        problem = self._problem(model, ProximalStep(l2=l2), rows, labels[:, :1])
        self._train(FitRequest(problem, *_as_tasks(rows, labels), self._n_steps, tol=self.tol))
        coef, intercept = self._coefficients()
        self.coef_, self.intercept_ = np.atleast_2d(coef), np.atleast_1d(intercept)
        return self

    def _convergence(self) -> Convergence:
        worst = super()._convergence()
        if worst.task is None:
            return worst
        return replace(worst, name=f"class {quoted(self.classes_.tolist()[worst.task])}")

    def decision_function(self, X: Any) -> Array:
        """Return the scores <w, x> + b: log-odds of each class against the rest.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows, n_classes), or (n_rows,) for two classes: log-odds of the second.

        Example:
            >>> from icgd.estimators import InContextLogistic
            >>> model = InContextLogistic().fit([[0.0], [1.0], [2.0]], [0, 0, 1])
            >>> bool(model.decision_function([[2.0]])[0] > 0)
            True
        """
        scores: Array = read_rows(self, X) @ self.coef_.T + self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def _output_probabilities(self, X: Any) -> Array:
        outputs = self._outputs(X)  # (n_classes, n_rows, 1) for a batch of tasks
        return outputs if outputs.ndim == 2 else outputs[..., 0].T


def _as_tasks(rows: Array, labels: Array) -> tuple[Array, Array]:
    """Return rows and labels, repeated as a batch of one task per output if there are several."""
    if labels.shape[1] == 1:
        return rows, labels
    return np.repeat(rows[None], labels.shape[1], axis=0), labels.T[..., None]


LARGEST_SCORE = 6.5
"""Heads are compiled for expected counts between 1/665 and 665 times the mean label."""


class InContextPoisson(RegressorMixin, AbstractPenalised):  # type: ignore[misc]
    """Poisson regression by gradient descent in a frozen transformer, a block of layers a step.

    Labels are counts with the mean exp(<w, x> + b). It minimises (1 / n) sum_i (mean_i - y_i log
    mean_i) + (alpha / 2) |w|^2 over the coefficients w of standardised columns, like
    `make_pipeline(StandardScaler(), PoissonRegressor(alpha=alpha))`.

    Attributes:
        loss_curve_: the objective on labels divided by their mean, before and after every step.

    Raises:
        DataError: by `fit`, if a label is negative or all are 0; by `predict`, if the expected
            count of a row is outside the range that the heads are compiled for.

    Example:
        >>> from icgd.estimators import InContextPoisson
        >>> model = InContextPoisson(alpha=0.1).fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
        >>> bool(model.predict([[2.0]])[0] > model.predict([[0.0]])[0])
        True
    """

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    @atomic
    def fit(self, X: Any, y: Any) -> InContextPoisson:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a count, or a rate of at least 0, for each row.

        Returns:
            The estimator itself.

        Raises:
            DataError: if a label is negative, or if all are 0.

        Example:
            >>> from icgd.estimators import InContextPoisson
            >>> InContextPoisson().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0]).coef_.shape
            (1,)
        """
        X, y = read_examples(self, X, y)
        labels = np.asarray(y, dtype=np.float64).reshape(-1, 1)
        rows = self._scale(X)
        self._unit = self._unit_of(labels)
        labels = labels / self._unit
        model = LinearModel(rows.shape[1], link="poisson", intercept=self.fit_intercept)
        l2 = self._checked_alpha() / self._unit / self._common_scale**2
        step_size = 1 / _curvature(model, l2, rows, labels)
        problem = self._problem(model, ProximalStep(step_size, l2=l2), rows, labels)
        problem = replace(problem, domain=replace(problem.domain, score=LARGEST_SCORE))
        self._train(FitRequest(problem, rows, labels, self._n_steps, tol=self.tol))
        self.coef_, intercept = self._coefficients()
        self.intercept_ = float(intercept + np.log(self._unit))
        return self

    def _unit_of(self, labels: Array) -> float:
        """Return the divisor of labels: their mean, or 1 if no intercept can absorb it."""
        if (labels < 0).any() or not labels.any():
            row = int(labels.argmin())
            fault = "all are 0, which no finite intercept fits"
            if labels.any():
                fault = f"y[{row}] is {labels[row, 0]:g}"
            raise DataError(
                f"Labels of a poisson model are counts or rates of at least 0, but {fault}."
            )
        return float(labels.mean()) if self.fit_intercept else 1.0

    def predict(self, X: Any) -> Array:
        """Return the expected label of every row.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows,).

        Raises:
            DataError: if the expected count of a row is not between 1/665 and 665 times the mean
                label.

        Example:
            >>> from icgd.estimators import InContextPoisson
            >>> model = InContextPoisson().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
            >>> model.predict([[0.5], [1.5]]).shape
            (2,)
        """
        return self._outputs(X).ravel() * self._unit

    def _predictions(self, task: Task) -> Tensor:
        largest, row = self._scores(task.queries).abs().flatten().max(0)
        if largest > LARGEST_SCORE:
            weights = self._run.parameters[-1, : self.n_features_in_]
            column = int((weights * task.queries[row]).abs().argmax())
            raise DataError(
                f"The expected count of row {int(row)} (counted from 0) is exp({largest:.3g}) "
                "times as large or small as the mean label, but the heads are made for up to "
                f"exp({LARGEST_SCORE:g}). The largest term is that of {self._column(column)}. "
                "Leave such rows out, or clip their inputs to the range of the context."
            )
        return super()._predictions(task)


def _curvature(model: LinearModel, l2: float, rows: Array, labels: Array) -> float:
    """Return the largest curvature where no mean exceeds its label or 1, the mean at the start."""
    design = np.hstack([rows, np.ones_like(labels)]) if model.intercept else rows
    curved = design.T @ (np.maximum(labels, 1.0) * design) / len(rows)
    return float(np.linalg.eigvalsh(curved)[-1]) + l2
