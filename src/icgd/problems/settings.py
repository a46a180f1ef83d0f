"""Validation of single settings, shared by everything that a user configures.

Each function returns the value as a plain Python number, so users may give numpy numbers and files
can be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import frexp, inf, nan
from numbers import Integral, Real
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np

from icgd.errors import IcgdError, SettingError, UnknownNameError, quoted


@runtime_checkable
class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str: ...


LARGEST_COUNT = 2**63 - 1
"""The largest count that array sizes can have."""

MOST_STEPS = 10**12
"""The largest number of steps of a run."""

Thing = TypeVar("Thing")
NamedThing = TypeVar("NamedThing", bound=Named)


def by_name(*things: NamedThing) -> dict[str, NamedThing]:
    """Index things by name."""
    return {thing.name: thing for thing in things}


def named(kind: str, name: object, known: Mapping[str, Thing]) -> Thing:
    """Return the entry called `name`; `kind`, such as "link", names the registry in errors."""
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError.of(kind, name, known=list(known))
    return known[name]


def set_fields(part: object, **settings: object) -> None:
    """Set fields of a frozen dataclass during its construction."""
    for name, value in settings.items():
        object.__setattr__(part, name, value)


def as_float(value: object) -> float:
    """Return `value` as a float, or nan, which fails every comparison, if it is not a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return nan
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of floats
        return inf


def positive(name: str, value: object) -> float:
    """Require a positive finite number."""
    if not 0 < (number := as_float(value)) < inf:
        raise SettingError(f"{name} must be a positive finite number, got {quoted(value)}.")
    return number


def not_negative(name: str, value: object) -> float:
    """Require a nonnegative finite number."""
    if not 0 <= (number := as_float(value)) < inf:
        raise SettingError(
            f"{name} must be a finite number that is not negative, got {quoted(value)}."
        )
    return number


def below_one(name: str, value: object) -> float:
    """Require a number in [0, 1)."""
    if not 0 <= (number := as_float(value)) < 1:
        raise SettingError(f"{name} must be a number from 0 to below 1, got {quoted(value)}.")
    return number


def finite(name: str, value: object) -> float:
    """Require a finite number."""
    if not -inf < (number := as_float(value)) < inf:
        raise SettingError(f"{name} must be a finite number, got {quoted(value)}.")
    return number


def power_of_two(name: str, value: object) -> float:
    """Require a power of two."""
    number = as_float(value)
    if not 0 < number < inf or frexp(number)[0] != 0.5:
        raise SettingError(
            f"{name} must be a power of two, such as 2**-13, so that dividing by it is exact, "
            f"got {quoted(value)}."
        )
    return number


def flag(name: str, value: object) -> bool:
    """Require True or False: a string such as "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise SettingError(f"{name} must be True or False, got {quoted(value)}.")
    return bool(value)


def count(name: str, value: object, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """Require a whole number between `least` and `most`."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    number = int(value) if is_integer else least - 1  # type: ignore[call-overload]
    if number < least:
        raise SettingError(
            f"{name} must be a whole number of at least {least}, got {quoted(value)}."
        )
    if number > most:
        raise SettingError(f"{name} must be at most {most}, got {quoted(value)}.")
    return number


def require_between(name: str, value: float | int, least: float | int, most: float | int) -> None:
    """Require a number between `least` and `most`."""
    if not least <= value <= most:
        raise SettingError(f"{name} must lie between {least:g} and {most:g}, got {quoted(value)}.")


def instance(name: str, value: object, kind: type[Thing]) -> Thing:
    """Require an instance of `kind`."""
    if not isinstance(value, kind):
        expected = kind.__name__.removeprefix("Abstract")
        raise SettingError(f"{name} must be of type {expected}, got {quoted(value)}.")
    return value


def is_row(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether `value` is a sequence, such as a list or an array, not a single value."""
    is_single = isinstance(value, str | Mapping) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Iterable) and not is_single


def entries(values: Iterable[Any]) -> list[Any]:
    """Return the entries of a sequence; the entries of an array become plain numbers."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def as_row(value: object) -> list[Any]:
    """Return the entries of a sequence; a single value counts as a sequence of one."""
    return entries(value) if is_row(value) else [value]


@contextmanager
def described(what: str) -> Iterator[None]:
    """Convert any error caused by invalid plain data to a `SettingError`."""
    try:
        yield
    except IcgdError:
        raise
    except Exception as error:  # invalid data may raise any error
        raise SettingError(
            f"data does not describe a {what}: {type(error).__name__}: {error}. "
            f"Give data in the form that the {what}'s to_data() returns."
        ) from None
