"""Poisson regression by gradient descent in a transformer's forward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from torch import Tensor

from icgd.errors import DataError
from icgd.estimators.base import Lesson, at_once
from icgd.estimators.linear import AbstractLinear
from icgd.estimators.reading import read_examples
from icgd.estimators.scaling import Array
from icgd.problems.data import Task
from icgd.problems.linear_model import LinearModel
from icgd.problems.steps import ProximalStep

LARGEST_SCORE = 6.5
"""Heads are made for expected counts between 1/665 and 665 times the mean of all labels."""


class InContextPoisson(RegressorMixin, AbstractLinear):  # type: ignore[misc]
    """Poisson regression that a frozen transformer descends, a step for every block of layers.

    Labels are counts with the mean exp(<w, x> + b). It minimises (1 / n) sum_i (mean_i - y_i log
    mean_i) + (alpha / 2) |w|^2, where w is the coefficient of standardised columns:
    `make_pipeline(StandardScaler(), PoissonRegressor(alpha=alpha))` has the same minimiser.

    Args:
        alpha: the penalty.
        fit_intercept: whether there is an intercept b; if not, nothing is centred.
        standardize: whether the penalty counts for standardised columns. If not, it counts for
            raw ones, and descent takes longer the less alike they are.
        max_iter: the most steps.
        tol: descent stops after a step that moves no scaled coefficient by more.
        device: the torch device that runs it.
        cache_context: whether `predict` uses the coefficients that `fit` reached; if not, it runs
            the whole transformer on context and rows, with the same answers, bit for bit.

    Attributes:
        coef_: the coefficients of raw columns.
        intercept_: the intercept.
        compiled_: the compiled run, with `transformer()`, `summary()` and `listing()`.
        n_iter_: the number of steps taken.
        loss_curve_: the objective on labels divided by their mean, before and after every step.
        convergence_: how far from the minimiser descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        SettingError: by `fit`, if a setting is out of its range.
        DataError: by `fit`, if a label is negative or all are 0, and by `predict`, if a row is so
            far from the context that its expected count is not known.

    Example:
        >>> from icgd.estimators import InContextPoisson
        >>> model = InContextPoisson(alpha=0.1).fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
        >>> bool(model.predict([[2.0]])[0] > model.predict([[0.0]])[0])
        True
    """

    coef_: Array
    intercept_: float

    def __init__(
        self,
        alpha: Any = 1.0,
        *,
        fit_intercept: Any = True,
        standardize: Any = True,
        max_iter: Any = 5000,
        tol: Any = 1e-6,
        device: Any = "cpu",
        cache_context: Any = True,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.cache_context = cache_context

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    @at_once
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
        l2 = self._penalty_named("alpha") / self._unit / self._common_scale**2
        size = 1 / _curvature(model, l2, rows, labels)
        problem = self._problem(model, ProximalStep(size, l2=l2), rows, labels)
        problem = replace(problem, domain=replace(problem.domain, score=LARGEST_SCORE))
        self._learn(Lesson(problem, rows, labels, tol=self.tol))
        self.coef_, intercept = self._coefficients()
        self.intercept_ = float(intercept + np.log(self._unit))
        return self

    def _unit_of(self, labels: Array) -> float:
        """What labels are divided by: their mean, which an intercept makes up for."""
        if (labels < 0).any() or not labels.any():
            least = float(labels.min())
            fault = (
                "all are 0, which no finite intercept fits" if least == 0 else f"one is {least:g}"
            )
            raise DataError(
                f"Labels of a poisson model are counts or rates of at least 0, but {fault}."
            )
        return float(labels.mean()) if self.fit_intercept else 1.0

    def predict(self, X: Any) -> Array:
        """The expected label of every row.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows,).

        Raises:
            DataError: if a row is so far from the context that its expected count is not known.

        Example:
            >>> from icgd.estimators import InContextPoisson
            >>> model = InContextPoisson().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
            >>> model.predict([[0.5], [1.5]]).shape
            (2,)
        """
        answers = self._answers(X)
        return answers.ravel() * self._unit

    def _predictions(self, task: Task) -> Tensor:
        largest, row = self._scores(task.queries).abs().flatten().max(0)
        if largest > LARGEST_SCORE:
            raise DataError(
                f"The expected count of row {int(row)} (counted from 0) is exp({largest:.3g}) "
                "times as large or small as the mean label, but the heads are made for up to "
                f"exp({LARGEST_SCORE:g}). Leave such rows out, or clip their inputs to the range "
                "of the context."
            )
        return super()._predictions(task)


def _curvature(model: LinearModel, l2: float, rows: Array, labels: Array) -> float:
    """The largest curvature if means are no larger than their labels, or than 1, the start."""
    design = np.hstack([rows, np.ones_like(labels)]) if model.intercept else rows
    curved = design.T @ (np.maximum(labels, 1.0) * design) / len(rows)
    return float(np.linalg.eigvalsh(curved)[-1]) + l2
