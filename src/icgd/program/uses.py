"""What an instruction does with the slots and functions that it names: its fields' types say it.

A field `left: Read` holds the name of a slot that is read, and `into: tuple[Written, ...]` holds
names of slots that are written. A field whose type has no use, names nothing.
A field that is a dataclass is searched in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, get_args, get_type_hints


class Use(Enum):
    """What an instruction does with what a field names."""

    READ = "uses the values of the slot"
    FLAG = "does something where the flag in the slot is 0 or 1"
    WRITE = "sets the slot, which holds nothing before"
    ADD = "adds to what the scratch slot holds"
    ACCUMULATE = "adds a sum over the examples to the weights in the slot"
    CHANGE = "reads the slot and replaces what it holds"
    EVALUATE = "evaluates the function"

    __hash__ = object.__hash__  # that of an enum takes longer, and instructions are asked often


Read = Annotated[str, Use.READ]
Flag = Annotated[str, Use.FLAG]
Written = Annotated[str, Use.WRITE]
Added = Annotated[str, Use.ADD]
Accumulated = Annotated[str, Use.ACCUMULATE]
Changed = Annotated[str, Use.CHANGE]
Evaluated = Annotated[str, Use.EVALUATE]


def names(part: Any, *uses: Use) -> tuple[str, ...]:
    """The names that the fields of a dataclass hold for these uses, in the order of the fields."""
    found: list[str] = []
    for field, is_name in _fields_for(part.__class__, uses):
        value = getattr(part, field)
        values = value if isinstance(value, tuple) else (value,)
        if is_name:
            found += [name for name in values if name is not None]
        else:
            found += [name for inner in values for name in names(inner, *uses)]
    return tuple(found)


@lru_cache
def _fields_for(kind: Any, uses: tuple[Use, ...]) -> tuple[tuple[str, bool], ...]:
    """The fields with a name for these uses: one of their own, or in a dataclass that they hold."""
    hints = get_type_hints(kind, include_extras=True).items()
    found = ((name, use) for name, hint in hints for use in _uses_in(hint))
    return tuple(
        (name, isinstance(use, Use))
        for name, use in found
        if (use in uses if isinstance(use, Use) else _fields_for(use, uses))
    )


def _uses_in(hint: Any) -> Iterator[Any]:
    """The uses in the type of a field, and the dataclasses in it."""
    if isinstance(hint, Use) or is_dataclass(hint):
        yield hint
    else:
        for part in get_args(hint):
            yield from _uses_in(part)
