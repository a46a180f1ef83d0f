"""Classes as labels of a transformer, and its outputs as classes: one output against the rest."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from icgd.errors import DataError, brief
from icgd.estimators.reading import read_examples
from icgd.estimators.scaling import Array


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
