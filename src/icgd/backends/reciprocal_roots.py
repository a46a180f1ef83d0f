"""The reciprocal roots of optimisers, whose arguments stay in the range that they are made for.

A run that starts from nothing never leaves it. One that starts from a given mean of squares may, in
its first step: beyond its last knot a sum of ReLUs falls on and turns negative, and steps would go
uphill. Later arguments are means of the one before and of a square, and are no larger.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from icgd.errors import OverflowedRunError
from icgd.problems.roots import PREFIX
from icgd.program.functions import ReluSum
from icgd.program.instructions import MapSlots
from icgd.program.layout import Layout, Role
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Stream


def is_root(function: ReluSum) -> bool:
    """Whether it is the reciprocal root of an optimiser; those of norms never leave their range."""
    return function.name.startswith(PREFIX)


def remembered_of(layout: Layout, names: Iterable[str]) -> list[str]:
    """The slots of these that a run may start from."""
    return [name for name in names if layout.slot(name).role is Role.PARAMETER]


def require_root(argument: Tensor, function: ReluSum, step: int) -> None:
    """Raise `OverflowedRunError` if an argument of a step, counted from 0, leaves the range."""
    largest = float(argument.max())
    if not largest <= function.high:
        raise OverflowedRunError(
            f"Step {step + 1} divides by the root of {largest:.6g}, but the transformer was made "
            f"for roots of up to {function.high:.6g}, which no run that starts from 0 leaves. Give "
            "initial with a smaller second moment, or without one."
        )


def require_roots(program: StackProgram, layer: Layer, stream: Stream, step: int) -> None:
    """Check the roots of a layer that is about to read the stream."""
    for part in layer.instructions:
        if isinstance(part, MapSlots):
            for summand in part.summands:
                function = program.relu_sum(summand.function)
                if is_root(function):
                    require_root(_read(summand.argument.terms(), program, stream), function, step)


def _read(terms: Iterable[tuple[str, float]], program: StackProgram, stream: Stream) -> Tensor:
    """A combination of slots that are the same in all tokens, so that the first one tells."""
    parts = [factor * stream[..., 0, program.layout.range_of(name)] for name, factor in terms]
    return sum(parts[1:], parts[0])


def may_leave_roots(program: StackProgram, stream: Stream) -> bool:
    """Whether the program has roots, and starts from something that they are taken of."""
    names = [
        name
        for layer in program.block
        for part in layer.instructions
        if isinstance(part, MapSlots)
        for summand in part.summands
        if is_root(program.relu_sum(summand.function))
        for name in remembered_of(program.layout, summand.argument.slots)
    ]
    return any(bool(stream[..., 0, program.layout.range_of(name)].any()) for name in names)
