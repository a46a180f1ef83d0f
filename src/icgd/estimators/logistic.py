"""Logistic regression by gradient descent in a transformer's forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from icgd.estimators.base import Lesson, at_once
from icgd.estimators.classes import AbstractClassifier
from icgd.estimators.linear import AbstractLinear
from icgd.estimators.reading import read_rows
from icgd.estimators.scaling import Array
from icgd.problems.linear_model import LinearModel
from icgd.problems.settings import positive
from icgd.problems.steps import ProximalStep


class InContextLogistic(AbstractClassifier, AbstractLinear):
    """Logistic regression that a frozen transformer descends, a step for every block of layers.

    It minimises C sum_i loss_i + |w|^2 / 2, where w is the coefficient of standardised columns:
    `make_pipeline(StandardScaler(), LogisticRegression(C=C))` has the same minimiser for two
    classes. More classes are each told from the rest, as in `OneVsRestClassifier`; the transformer
    runs on all of them at once, a task for each class.

    Args:
        C: the inverse of the penalty.
        fit_intercept: whether there is an intercept; if not, nothing is centred.
        standardize: whether the penalty counts for standardised columns. If not, it counts for
            raw ones, and descent takes longer the less alike they are.
        max_iter: the most steps.
        tol: descent stops after a step that moves no scaled coefficient by more.
        device: the torch device that runs it.
        cache_context: whether `predict` uses the coefficients that `fit` reached; if not, it runs
            the whole transformer on context and rows, with the same answers, bit for bit.

    Attributes:
        classes_: the classes, in the order of probabilities.
        coef_: the coefficients of raw columns, a row for each class, or one row for two classes.
        intercept_: an intercept for each row of `coef_`.
        compiled_: the compiled run, with `transformer()`, `summary()` and `listing()`.
        n_iter_: the number of steps taken.
        loss_curve_: the objective divided by C n, summed over classes, before and after every step.
        convergence_: how far from the minimiser descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        SettingError: by `fit`, if a setting is out of its range.
        DataError: by `fit`, if there are fewer than two classes.

    Example:
        >>> from icgd.estimators import InContextLogistic
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]
        >>> InContextLogistic().fit(X, y).predict([[0.5], [2.5]]).tolist()
        ['no', 'yes']
    """

    coef_: Array
    intercept_: Array

    def __init__(
        self,
        C: Any = 1.0,
        *,
        fit_intercept: Any = True,
        standardize: Any = True,
        max_iter: Any = 5000,
        tol: Any = 1e-5,
        device: Any = "cpu",
        cache_context: Any = True,
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.cache_context = cache_context

    @at_once
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
        X, labels = self._encoded(X, y)
        rows = self._scale(X)
        model = LinearModel(rows.shape[1], link="logistic", intercept=self.fit_intercept)
        l2 = 1 / (positive("C", self.C) * len(rows) * self._common_scale**2)
        problem = self._problem(model, ProximalStep(l2=l2), rows, labels[:, :1])
        self._learn(Lesson(problem, *_as_tasks(rows, labels), tol=self.tol))
        coef, intercept = self._coefficients()
        self.coef_, self.intercept_ = np.atleast_2d(coef), np.atleast_1d(intercept)
        return self

    def decision_function(self, X: Any) -> Array:
        """The scores <w, x> + b: log-odds of each class against the rest.

        Args:
            X: rows of the inputs.

        Returns:
            An array (n_rows, n_classes), or (n_rows,) for the second of two classes.

        Example:
            >>> from icgd.estimators import InContextLogistic
            >>> model = InContextLogistic().fit([[0.0], [1.0], [2.0]], [0, 0, 1])
            >>> bool(model.decision_function([[2.0]])[0] > 0)
            True
        """
        scores: Array = read_rows(self, X) @ self.coef_.T + self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def _shares(self, X: Any) -> Array:
        answers = self._answers(X)
        return answers if answers.ndim == 2 else answers[..., 0].T


def _as_tasks(rows: Array, labels: Array) -> tuple[Array, Array]:
    """One task if there is one output, else a task for each."""
    if labels.shape[1] == 1:
        return rows, labels
    return np.repeat(rows[None], labels.shape[1], axis=0), labels.T[..., None]
