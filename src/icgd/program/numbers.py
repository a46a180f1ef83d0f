"""The numbers of a program, wherever they stand in its dataclasses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from icgd.program.program import AbstractProgram


def beyond(program: AbstractProgram, most: float) -> tuple[str, float] | None:
    """Find the first number that is NaN or larger in size than `most`, with a name for it."""
    schedule = chain.from_iterable(getattr(program, "schedule", ()))
    parts = [
        (f"{type(instruction).__name__} in layer {layer.title!r}", instruction)
        for layer in (*program.layers, *schedule)
        for instruction in layer.instructions
    ]
    parts += [(f"function {function.name!r}", function) for function in program.functions]
    for name, part in parts:
        for field, number in _numbers(part):
            if not abs(number) <= most:
                return f"{field} of {name}", number
    return None


def _numbers(part: object, field: str = "") -> Iterator[tuple[str, float]]:
    """Yield all floats in a dataclass, each after the name of the field that it stands in."""
    if isinstance(part, float):
        yield field, part
    elif isinstance(part, tuple):
        for entry in part:
            yield from _numbers(entry, field)
    elif is_dataclass(part):
        for name in _names(part.__class__):
            yield from _numbers(getattr(part, name), name)


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass; a schedule asks for those of the same few classes very often."""
    return tuple(field.name for field in fields(kind))
