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

from icgd.errors import DataError, DataTypeError, IcgdError, SettingError, brief, cut
from icgd.estimators.scaling import Array
from icgd.problems.arrays import require_unmasked
from icgd.problems.settings import NO_NUMBERS


def read_examples(estimator: Any, X: Any, y: Any, *, numeric: bool = True) -> tuple[Array, Any]:
    """Checked rows and their labels, which are numbers if `numeric`."""
    _require_plain("X", X)
    _require_plain("y", y, numeric=numeric)
    options = {"y_numeric": True} if numeric else {}
    pair: tuple[Array, Any] = _in_our_words(
        "X or y", lambda: validate_data(estimator, X, y, dtype=np.float64, **options)
    )
    return pair


def read_rows(estimator: Any, X: Any) -> Array:
    """Checked rows for an estimator that is fitted."""
    check_is_fitted(estimator)
    _require_plain("X", X)
    rows: Array = _in_our_words(
        "X", lambda: validate_data(estimator, X, reset=False, dtype=np.float64)
    )
    return rows


def read_weights(sample_weight: Any, X: Array) -> Array:
    """How much each row counts; at least one counts."""
    _require_plain("sample_weight", sample_weight)
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
    except Exception:  # a value of any class may be wrong in any way
        raise SettingError(
            "random_state must be a seed from 0 to 2**32 - 1, a RandomState or None, got "
            f"{brief(random_state)}."
        ) from None


def _require_plain(name: str, data: Any, *, numeric: bool = True) -> None:
    """Raise `DataError` for masked entries, and for numbers with more than one part."""
    is_read = hasattr(type(data), "__array__")
    _in_our_words(name, lambda: require_unmasked(name, np.asanyarray(data) if is_read else data))
    kind = data.dtype.kind if isinstance(data, np.ndarray | np.generic) else "f"
    if numeric and (isinstance(data, complex) or kind in NO_NUMBERS):
        raise DataError(
            f"{name} cannot be used: Complex data not supported, nor dates, durations and records. "
            "Give real numbers."
        )


def _in_our_words(name: str, read: Callable[[], Any]) -> Any:
    """What `read` returns; whatever it raises becomes an error of icgd that names the argument."""
    try:
        return read()
    except IcgdError:
        raise
    except TypeError as problem:
        raise DataTypeError(f"{name} cannot be used: {cut(str(problem))}") from None
    except (Exception, MemoryError) as problem:  # data of any class may be wrong in any way
        raise DataError(
            f"{name} cannot be used: {cut(str(problem) or type(problem).__name__)}"
        ) from None
