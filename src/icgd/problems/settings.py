"""Checks of single settings, shared by everything that a user configures.

Each returns the value as a plain number of Python, so that numbers of numpy can be given and files
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
"""The largest whole number that arrays can be counted by."""

MOST_STEPS = 10**12
"""The most steps of a run."""

Thing = TypeVar("Thing")
NamedThing = TypeVar("NamedThing", bound=Named)


def by_name(*things: NamedThing) -> dict[str, NamedThing]:
    """Index things by name."""
    return {thing.name: thing for thing in things}


def named(kind: str, name: object, known: Mapping[str, Thing]) -> Thing:
    """Look up `name`; `kind` says in an error what was looked up, such as "link"."""
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError.of(kind, name, known=list(known))
    return known[name]


def set_fields(part: object, **settings: object) -> None:
    """Write checked settings into a frozen dataclass that is being made."""
    for name, value in settings.items():
        object.__setattr__(part, name, value)


def as_float(value: object) -> float:
    """Return `value` as a float; nan, which fails every comparison, if it is no number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return nan
    try:
        return float(value)
    except OverflowError:  # a whole number beyond the range of floats: no finite number
        return inf


def positive(name: str, value: object) -> float:
    """Require a positive finite number."""
    if not 0 < (number := as_float(value)) < inf:
        raise SettingError(f"{name} must be a positive finite number, got {quoted(value)}.")
    return number


def not_negative(name: str, value: object) -> float:
    """Require a finite number from 0 on."""
    if not 0 <= (number := as_float(value)) < inf:
        raise SettingError(
            f"{name} must be a finite number that is not negative, got {quoted(value)}."
        )
    return number


def below_one(name: str, value: object) -> float:
    """Require a number from 0 to below 1."""
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
    """Require True or False: a text such as "no" would be taken as True."""
    if not isinstance(value, bool | np.bool_):
        raise SettingError(f"{name} must be True or False, got {quoted(value)}.")
    return bool(value)


def count(name: str, value: object, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """Require a whole number between `least` and `most`."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    whole = int(value) if is_whole else least - 1  # type: ignore[call-overload]
    if whole < least:
        raise SettingError(
            f"{name} must be a whole number of at least {least}, got {quoted(value)}."
        )
    if whole > most:
        raise SettingError(f"{name} must be at most {most}, got {quoted(value)}.")
    return whole


def require_between(name: str, value: float | int, least: float | int, most: float | int) -> None:
    """Require a number between `least` and `most`."""
    if not least <= value <= most:
        raise SettingError(f"{name} must lie between {least:g} and {most:g}, got {quoted(value)}.")


def instance(name: str, value: object, kind: type[Thing]) -> Thing:
    """Require a `kind`, where another class of the same family is easily given instead."""
    if not isinstance(value, kind):
        expected = kind.__name__.removeprefix("Abstract")
        raise SettingError(f"{name} must be of type {expected}, got {quoted(value)}.")
    return value


def is_row(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether `value` has entries, such as a list or an array, and is no single value."""
    is_single = isinstance(value, str | Mapping) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Iterable) and not is_single


def entries(values: Iterable[Any]) -> list[Any]:
    """Return the entries of a row; those of an array as plain numbers."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def as_row(value: object) -> list[Any]:
    """Return the entries of a row; a single value is a row of one."""
    return entries(value) if is_row(value) else [value]


@contextmanager
def described(what: str) -> Iterator[None]:
    """Turn errors from wrong plain data into an error of icgd."""
    try:
        yield
    except IcgdError:
        raise
    except Exception as problem:  # data of any form may be wrong in any way
        raise SettingError(
            f"data does not describe a {what}: {type(problem).__name__}: {problem}. "
            f"Give what the {what} told of itself."
        ) from None
