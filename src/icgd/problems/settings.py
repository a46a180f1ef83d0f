"""Checks of single settings, shared by everything that a user configures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager
from math import frexp, inf, nan
from numbers import Real
from operator import index
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from icgd.errors import IcgdError, SettingError, UnknownNameError


@runtime_checkable
class Named(Protocol):
    """What is known by its name."""

    @property
    def name(self) -> str: ...


LARGEST_COUNT = 2**63 - 1
"""The largest whole number that arrays can be counted by."""

NO_NUMBERS = "cmMV"
"""Kinds of arrays of numpy that hold no real numbers: complex ones, dates, durations, records."""

MOST_STEPS = 10**12
"""The most steps of a run: more than any machine takes."""

MOST_ENTRIES = 10**7
"""The longest row of settings, such as one step size for each step."""

Thing = TypeVar("Thing")
NamedThing = TypeVar("NamedThing", bound=Named)


def by_name(*things: NamedThing) -> dict[str, NamedThing]:
    """A registry of these things."""
    return {thing.name: thing for thing in things}


def named(kind: str, name: object, known: Mapping[str, Thing]) -> Thing:
    """What is known by `name`; `kind` says in an error what was looked up, such as "link"."""
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError.of(kind, name, known=list(known))
    return known[name]


def settle(part: object, **settings: object) -> None:
    """Write checked settings into a frozen dataclass that is being made."""
    for name, value in settings.items():
        object.__setattr__(part, name, value)


def positive(name: str, value: object) -> float:
    """`value` as a float, if it is a positive finite number."""
    number = as_float(value)
    if not 0 < number < inf:
        raise SettingError.not_positive(name, value)
    return number


def not_negative(name: str, value: object) -> float:
    """`value` as a float, if it is a finite number from 0 on."""
    number = as_float(value)
    if not 0 <= number < inf:
        raise SettingError.wrong_kind(name, value, "a finite number that is not negative")
    return number


def below_one(name: str, value: object) -> float:
    """`value` as a float, if it is a number from 0 to below 1."""
    number = as_float(value)
    if not 0 <= number < 1:
        raise SettingError.wrong_kind(name, value, "a number from 0 to below 1")
    return number


def finite(name: str, value: object) -> float:
    """`value` as a float, if it is a finite number."""
    number = as_float(value)
    if not -inf < number < inf:
        raise SettingError.wrong_kind(name, value, "a finite number")
    return number


def as_float(value: object) -> float:
    """`value` as a float: infinite if it is too large, and no number if it is none."""
    if type(value) is float:
        return value
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    except OverflowError:
        return inf
    except Exception:  # a value of any class may be wrong in any way
        return nan


def power_of_two(name: str, value: object) -> float:
    """`value`, if it is a power of two."""
    number = as_float(value)
    if not 0 < number < inf or frexp(number)[0] != 0.5:
        raise SettingError.not_power_of_two(name, value)
    return number


def instance(name: str, value: object, kind: type) -> None:
    """Raise `SettingError` unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise SettingError.wrong_kind(name, value, kind.__name__.removeprefix("Abstract"))


def count(name: str, value: object, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """`value` as an int, if it is a whole number between `least` and `most`."""
    whole = as_whole(value)
    if whole is None or whole < least:
        raise SettingError.not_count(name, value, least=least)
    if whole > most:
        raise SettingError.too_large(name, value, most=most)
    return whole


def as_whole(value: object) -> int | None:
    """`value` as an int, if it is a whole number of any library; truth values are none."""
    if type(value) is int:
        return value
    try:
        is_truth = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
        return None if is_truth else int(index(value))  # type: ignore[arg-type]
    except Exception:  # a value of any class may be wrong in any way
        return None


def is_text(value: object) -> TypeGuard[str]:
    """Whether `value` is a text with something in it."""
    return isinstance(value, str) and value != ""


def is_sequence(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether `value` has entries in an order; arrays without axes are iterables that have none."""
    return (
        isinstance(value, Iterable)
        and not isinstance(value, str | bytes | bytearray | memoryview | Mapping | Set | type)
        and getattr(value, "ndim", 1) > 0
    )


def entries(name: str, values: Iterable[object]) -> list[Any]:
    """The entries of a row, plain numbers if it was an array."""
    try:
        if isinstance(values, Sized) and len(values) > MOST_ENTRIES:
            raise SettingError.too_many(name, len(values), most=MOST_ENTRIES)
        if getattr(getattr(values, "dtype", None), "kind", "f") in NO_NUMBERS:
            raise TypeError(f"dtype {getattr(values, 'dtype', None)}")
        return list(getattr(values, "tolist", lambda: values)())
    except SettingError:
        raise
    except Exception as problem:  # a row of any class may be wrong in any way
        raise SettingError.unreadable_row(name, f"{type(problem).__name__}: {problem}") from None


@contextmanager
def described(what: str) -> Iterator[None]:
    """Turn what wrong data raise into an error of icgd, where something is made from plain data."""
    try:
        yield
    except IcgdError:
        raise
    except Exception as problem:  # data of any form may be wrong in any way
        raise SettingError.not_described(what, f"{type(problem).__name__}: {problem}") from None


def of_step(row: Sequence[Thing], step: int) -> Thing:
    """The entry of a step, counted from 0."""
    if not count("step", step, least=0) < len(row):
        raise SettingError.out_of_range("step", step, least=0.0, most=len(row) - 1.0)
    return row[step]


def within(name: str, value: float | int, least: float | int, most: float | int) -> None:
    """Raise `SettingError` unless `value` lies between `least` and `most`."""
    if not least <= value <= most:
        raise SettingError.out_of_range(name, value, least=least, most=most)
