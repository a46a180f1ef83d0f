"""The hidden units of optimisers: a rule for each instruction of `update_instructions.py`."""

from __future__ import annotations

import torch

from icgd.program.instructions import IS_EXAMPLE, ONE
from icgd.program.layout import Layout
from icgd.program.stack import StackProgram
from icgd.program.update_instructions import LARGEST_COUNT, Assignment, Recombine, TakeTurns
from icgd.weights.heads import Units, coordinate_of, fill, joined


@fill.register
def _fill_recombine(instruction: Recombine, program: StackProgram, weights: Units) -> None:
    """+-relu(+-d), then -+relu(+-value - bound * unit), for every coordinate."""
    start, unit = 0, coordinate_of(program.layout, instruction.unit)
    for part in instruction.assignments:
        for written in part.shares:
            start = _fill_assignment(part, written, unit, program.layout, weights, start)


def _fill_assignment(
    part: Assignment, written: str, unit: int, layout: Layout, weights: Units, start: int
) -> int:
    """Fill the units of one slot of an assignment; return where the next one starts."""
    change, share = part.change(written), part.shares[written]
    kinds = [(change, 1.0, 0.0)] if change else []
    if part.bound is not None:
        kinds.append((dict(part.value.terms()), -share, part.bound))
    write = joined(layout, written)
    row = torch.arange(len(write))
    for terms, gain, bound in kinds:
        for sign in (1.0, -1.0):
            units = weights.part(start, len(write))
            for slot, factor in terms.items():
                units.reads[row, joined(layout, slot)] += sign * factor
            units.reads[row, unit] -= bound
            units.writes[row, write] = sign * gain
            start += len(write)
    return start


@fill.register
def _fill_take_turns(instruction: TakeTurns, program: StackProgram, weights: Units) -> None:
    """The units of `TakeTurns`, one after the other; a gate closes them at other tokens."""
    layout, size, gate = program.layout, float(instruction.batch_size), LARGEST_COUNT
    place, waits, count = (
        coordinate_of(layout, name)
        for name in (instruction.place, instruction.waits, instruction.n_examples)
    )
    one, example = (coordinate_of(layout, name) for name in (ONE, IS_EXAMPLE))
    brackets = ((2 * size, 0.0, -1.0), (size, 0.0, 1.0), (2 * size, -1.0, -1.0))
    rows: list[tuple[dict[int, float], int, float]] = [
        ({example: 1.0}, place, -size),
        ({count: 1.0, one: -gate, example: gate, waits: -gate}, place, 1.0),
        ({example: 1.0}, waits, 1.0),
        ({waits: 1.0}, waits, -1.0),
    ]
    for end, per_example, gain in brackets:
        for below, sign in ((0.0, gain), (1.0, -gain)):
            read = {place: -1.0, one: end - below - gate, example: gate, count: per_example}
            rows.append((read, waits, sign))
    for row, (read, write, gain) in enumerate(rows):
        for coordinate, factor in read.items():
            weights.reads[row, coordinate] = factor
        weights.writes[row, write] = gain
