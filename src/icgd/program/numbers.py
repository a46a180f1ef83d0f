"""The numbers of a program, wherever they stand in its dataclasses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import chain

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
        for each in fields(part):
            yield from _numbers(getattr(part, each.name), each.name)
