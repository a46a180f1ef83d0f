"""Ridge and lasso by (proximal) gradient descent in a transformer's forward pass."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from icgd.estimators.base import Lesson, at_once
from icgd.estimators.linear import AbstractLinear
from icgd.estimators.reading import read_examples, read_weights
from icgd.estimators.scaling import Array, Scaling
from icgd.problems.linear_model import LinearModel
from icgd.problems.steps import ProximalStep


class AbstractLeastSquares(RegressorMixin, AbstractLinear):  # type: ignore[misc]
    """Least squares on centred rows; weights of rows multiply row and label by their root."""

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

    @abstractmethod
    def _penalty(self, total: float) -> ProximalStep:
        """The penalty for rows whose weights sum to `total`, on the scale of the rows."""

    @at_once
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Store the examples as context, scale them, compile and run.

        Args:
            X: rows of the inputs.
            y: a number for each row.
            sample_weight: how much each row counts; 2 is as good as the row twice.

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
        scaled = self._label_scaling.applied(labels)
        total = float(len(rows)) if weights is None else float(weights.sum())
        if weights is not None:
            share = np.sqrt(len(rows) * weights / total)[:, None]
            rows, scaled = rows * share, scaled * share
        update = self._penalty(total)
        problem = self._problem(LinearModel(rows.shape[1]), update, rows, scaled)
        self._learn(Lesson(problem, rows, scaled, tol=self.tol))
        coef, intercept = self._coefficients()
        size = float(self._label_scaling.scale[0])
        self.coef_ = coef * size
        self.intercept_ = float(self._label_scaling.center[0] + size * intercept)
        return self

    def predict(self, X: Any) -> Array:
        """The expected label of every row.

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
        return self._label_scaling.undone(answers).ravel()


class InContextRidge(AbstractLeastSquares):
    """Ridge regression that a frozen transformer descends, a step for every block of layers.

    It minimises sum_i (y_i - <w, x_i> - b)^2 + alpha |w|^2, where w is the coefficient of
    standardised columns: `make_pipeline(StandardScaler(), Ridge(alpha))` has the same minimiser.

    Args:
        alpha: the penalty.
        fit_intercept: whether there is an intercept b; if not, nothing is centred.
        standardize: whether the penalty counts for standardised columns. If not, it counts for
            raw ones, as in `Ridge(alpha)`, and descent takes longer the less alike they are.
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
        loss_curve_: the objective on scaled data less a constant, before and after every step.
        convergence_: how far from the minimiser descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        SettingError: by `fit`, if a setting is out of its range.

    Example:
        >>> from icgd.estimators import InContextRidge
        >>> model = InContextRidge(alpha=0.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> round(float(model.coef_[0]), 3), round(model.intercept_, 3)
        (2.0, 1.0)
    """

    def _penalty(self, total: float) -> ProximalStep:
        return ProximalStep(l2=self._penalty_named("alpha") / total / self._common_scale**2)


class InContextLasso(AbstractLeastSquares):
    """The lasso that a frozen transformer descends, a step for every block of layers.

    It minimises (1 / 2n) sum_i (y_i - <w, x_i> - b)^2 + alpha |w|_1, where w is the coefficient of
    standardised columns: `make_pipeline(StandardScaler(), Lasso(alpha))` has the same minimiser.

    Args:
        alpha: the penalty.
        fit_intercept: whether there is an intercept b; if not, nothing is centred.
        standardize: whether the penalty counts for standardised columns. If not, it counts for
            raw ones, as in `Lasso(alpha)`, and descent takes longer the less alike they are.
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
        loss_curve_: the objective on scaled data less a constant, before and after every step.
        convergence_: how far from the minimiser descent stopped.
        certificate_: what `icgd.verify` measures and proves of the run; made when it is asked for.
        n_features_in_: the number of inputs.
        feature_names_in_: their names, if X was a data frame.

    Raises:
        SettingError: by `fit`, if a setting is out of its range.

    Example:
        >>> from icgd.estimators import InContextLasso
        >>> X = [[0.0, 1.0], [1.0, -1.0], [2.0, -1.0], [3.0, 1.0]]
        >>> model = InContextLasso(alpha=0.1).fit(X, [1.0, 3.0, 5.0, 7.0])
        >>> model.coef_.round(2).tolist()  # the second column says nothing
        [1.91, 0.0]
    """

    def _penalty(self, total: float) -> ProximalStep:
        size = float(self._label_scaling.scale[0])
        return ProximalStep(l1=self._penalty_named("alpha") / size / self._common_scale)
