"""Data and settings that an estimator is given, read by scikit-learn's rules.

What scikit-learn refuses is refused by an error of icgd with the same words, which is also of the
type that scikit-learn expects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from icgd.errors import DataError, DataTypeError, SettingError, brief, cut
from icgd.estimators.scaling import Array


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
