"""Checks of single settings, shared by everything that a user configures."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from operator import index

from icgd.errors import SettingError


def positive(name: str, value: object) -> float:
    """`value` as a float, if it is a positive finite number."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
        raise SettingError.not_positive(name, value)
    return float(value)  # type: ignore[arg-type]


def count(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """`value` as an int, if it is a whole number between `least` and `most`."""
    try:
        whole = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise SettingError.not_count(name, value, least=least) from None
    if isinstance(value, bool) or whole < least:
        raise SettingError.not_count(name, value, least=least)
    if most is not None and whole > most:
        raise SettingError.too_large(name, value, most=most)
    return whole
