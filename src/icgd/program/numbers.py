"""The numbers of a program, found wherever they stand in its dataclasses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, singledispatch
from itertools import chain
from math import isfinite, nan
from operator import attrgetter
from typing import Any, NamedTuple, get_args, get_type_hints

from icgd.errors import ProgramError
from icgd.program.functions import Function
from icgd.program.instructions import Instruction
from icgd.program.program import AbstractProgram, Layer

PLAIN = {str, int, bool, type(None)}
"""Types that hold no number that could be infinite."""


class Numbers(NamedTuple):
    """The numbers in one field: its path, and the layer or the function where the path starts."""

    where: str
    path: str
    values: tuple[float, ...]


def require_finite(program: AbstractProgram) -> None:
    """Raise `ProgramError` that names the first number that is infinite, NaN or no Python float."""
    if all(map(isfinite, floats_of(program))):
        return
    for found in numbers_of(program):
        for place, value in enumerate(found.values):
            path = f"{found.path}[{place}]" if len(found.values) > 1 else found.path
            _require_float(found.where, path, value)


def _require_float(where: str, path: str, value: object) -> None:
    if not isinstance(value, float):
        wrong = f"{path} is of type {type(value).__name__}, expected a float, or floats in a tuple"
        raise ProgramError.broken(where, wrong)
    if not isfinite(value):
        raise ProgramError.broken(where, f"{path} is {value}, expected a finite number")


def constants(program: AbstractProgram) -> Iterator[tuple[str, float]]:
    """Every number that the program holds, with the name of its field."""
    for found in numbers_of(program):
        name = f"{found.path} of {found.where}"
        yield from ((name, value) for value in found.values)


def beyond(program: AbstractProgram, most: float) -> tuple[str, float] | None:
    """The first number whose size is above `most`, or NaN, after the name of its field.

    It is None if there is no such number.
    """
    if all(abs(value) <= most for value in floats_of(program)):
        return None
    return next(found for found in constants(program) if not abs(found[1]) <= most)


def floats_of(program: AbstractProgram) -> list[float]:
    """The values of all numbers, without their names: that takes a tenth of the time."""
    found: list[float] = []
    _collect_floats((program,), found)
    return found


def _collect_floats(parts: Iterable[object], found: list[float]) -> None:
    """Parts of the same type are opened together, field by field.

    What is of a type that no program can hold counts as NaN: nobody knows whether it is finite.
    """
    by_type: dict[type, list[Any]] = {}
    for part in parts:
        by_type.setdefault(type(part), []).append(part)
    for kind, group in by_type.items():
        if issubclass(kind, float):
            found += group
        elif kind is tuple:
            _collect_floats(chain.from_iterable(group), found)
        elif _is_foreign(kind):  # type: ignore[arg-type]
            found.append(nan)
        elif kind not in PLAIN:
            for name in _field_names(kind):  # type: ignore[arg-type]
                _collect_floats(map(attrgetter(name), group), found)


def numbers_of(program: AbstractProgram) -> list[Numbers]:
    """All numbers of a program; the entries of a tuple stand together."""
    found: list[Numbers] = []
    _collect(program, "program", type(program).__name__, found)
    return found


def _collect(part: object, where: str, path: str, found: list[Numbers]) -> None:
    if isinstance(part, float) or _is_foreign(type(part)):  # type: ignore[arg-type]
        found.append(Numbers(where, path, (part,)))  # type: ignore[arg-type]
    elif isinstance(part, tuple):
        _collect_entries(part, where, path, found)
    else:
        for name in _field_names(type(part)):  # type: ignore[arg-type]
            value = getattr(part, name)
            if type(value) not in PLAIN:
                _collect(value, where, f"{path}.{name}", found)


def _collect_entries(
    parts: tuple[object, ...], where: str, path: str, found: list[Numbers]
) -> None:
    kinds = set(map(type, parts))
    if kinds == {float}:
        found.append(Numbers(where, path, parts))  # type: ignore[arg-type]
    elif not kinds <= PLAIN:
        for number, part in enumerate(parts):
            _collect(part, *_place_of(part, number, where, path), found)


@lru_cache
def _is_foreign(kind: type) -> bool:
    """Whether no program can hold a part of this type: numpy's numbers, tensors, lists."""
    if kind in PLAIN or kind is tuple or is_dataclass(kind):
        return False
    return not issubclass(kind, Enum | Instruction)


@lru_cache
def _field_names(kind: type) -> tuple[str, ...]:
    """The fields that may hold a number; names of slots and functions are most of a program."""
    if not is_dataclass(kind):
        return ()
    hints = get_type_hints(kind)
    return tuple(field.name for field in fields(kind) if _may_hold_number(hints[field.name]))


def _may_hold_number(hint: Any) -> bool:
    parts = [part for part in get_args(hint) if part is not ...]
    return any(map(_may_hold_number, parts)) if parts else hint not in PLAIN


@singledispatch
def _place_of(part: object, number: int, where: str, path: str) -> tuple[str, str]:
    """What an entry of a tuple is called. Layers, instructions and functions start a new path."""
    return where, f"{path}[{number}]"


@_place_of.register
def _place_of_layer(part: Layer, number: int, where: str, path: str) -> tuple[str, str]:
    stage = path.rpartition(".")[2].removesuffix("layers")
    return f"{stage} layer {number + 1} ({part.title})".lstrip(), "Layer"


@_place_of.register
def _place_of_instruction(part: Instruction, number: int, where: str, path: str) -> tuple[str, str]:
    return where, type(part).__name__


@_place_of.register
def _place_of_function(part: Function, number: int, where: str, path: str) -> tuple[str, str]:
    return f"function {part.name!r}", type(part).__name__
