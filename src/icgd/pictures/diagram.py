"""A program as a table: which slots of the residual stream each layer reads and writes.

A column is a slot of the stream, and a row is a layer, with a line for each of its instructions.
This module has the data only; `program_picture.py` draws it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, singledispatch
from itertools import groupby
from typing import TypeVar

from icgd.errors import ProgramError
from icgd.program.chain import FAR, NEAR, OUT, ChainProgram
from icgd.program.instructions import Instruction, LayerKind, Use, WipeSlots, names_used
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import WipeByUnits
from icgd.reprs import counted
from icgd.weights.sizes import LayerSize, summarise

Item = TypeVar("Item")
Key = Callable[[Item], Hashable]

SHOWN_IN_FRONT, SHOWN_BEHIND = 2, 1
"""The number of items of a folded run that are shown before and after the fold."""


def folded(items: Sequence[Item], key: Key[Item], most: int) -> list[tuple[Item, ...]]:
    """Return the items in order, in groups that are each shown as one.

    Up to `most` items are all shown. Of more, runs of neighbours with the same key are folded. If
    more than 2 * most groups remain, all in the middle are folded too.
    """
    if len(items) <= most:
        return [(item,) for item in items]
    groups = [group for _, run in groupby(items, key) for group in _fold_run(tuple(run))]
    if len(groups) <= 2 * most:
        return groups
    front, behind = most - 1, most
    middle = tuple(item for group in groups[front:-behind] for item in group)
    return [*groups[:front], middle, *groups[-behind:]]


def _fold_run(run: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Yield a run of similar items, with the middle folded if it has two or more."""
    front, behind = run[:SHOWN_IN_FRONT], run[len(run) - SHOWN_BEHIND :]
    middle = run[SHOWN_IN_FRONT : len(run) - SHOWN_BEHIND]
    if len(middle) < 2:
        yield from ((item,) for item in run)
    else:
        yield from (*((item,) for item in front), middle, *((item,) for item in behind))


MOST_COLUMNS = 32
"""With more slots, those that differ only in their number are folded."""

MOST_ROWS = 24
"""With more layers, neighbours with the same instructions are folded."""

MOST_LINES = 26
"""With more instructions in a layer, neighbours of the same type are folded."""

MOST_NAMED = 4
"""The largest number of wiped slots that a line names."""

NO_WEIGHTS = "y holds labels, and 0 at queries"

WIPING = (WipeSlots, WipeByUnits)
"""The instructions that reset slots to 0."""

NOUNS = {LayerKind.MLP: "hidden units", None: "heads and units"}
"""The components of layers, where these are not all heads."""

GROUPS = {
    Role.INPUT: "data",
    Role.LABEL: "data",
    Role.RESIDUAL: "data",
    Role.VELOCITY: "data",
    Role.PARAMETER: "weights",
    Role.SCRATCH: "scratch",
    Role.SHARED: "scratch",
    Role.TURN: "turns",
    Role.CONSTANT: "constants",
}
"""The headings of groups of columns."""

CHAIN_GROUPS = {NEAR: "near: block t - 1", FAR: "far: the second block", OUT: "out: block t"}


@dataclass(frozen=True)
class Column:
    """One slot of the residual stream, or several folded ones."""

    slots: tuple[Slot, ...]
    group: str

    @property
    def name(self) -> str:
        """The name of the slot, without that of its block."""
        first, last = (slot.name.split(".")[-1] for slot in (self.slots[0], self.slots[-1]))
        return first if len(self.slots) == 1 else f"{first} … {last}"

    @property
    def shape(self) -> str:
        if len(self.slots) > 1:
            return f"{len(self.slots)} slots"
        return "×".join(map(str, self.slots[0].shape))

    @property
    def label(self) -> str:
        """The text above the column: name and shape."""
        return f"{self.name} ({self.shape})"

    @property
    def tone(self) -> str:
        """The key of the column's colour: its block of a chain, or its role."""
        block, dot, _ = self.slots[0].name.partition(".")
        return block if dot and block in CHAIN_GROUPS else self.slots[0].role.name.lower()


@dataclass(frozen=True)
class Line:
    """One or several instructions in one line: a sentence, and the slots that they use.

    `sets` are the slots that are written or replaced, `adds` those that are added to, and `wipes`
    those that are reset to 0.
    """

    sentence: str
    reads: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    adds: frozenset[str] = frozenset()
    wipes: frozenset[str] = frozenset()

    @property
    def touched(self) -> frozenset[str]:
        return self.reads | self.flags | self.sets | self.adds | self.wipes


@dataclass(frozen=True)
class Row:
    """A layer, or several folded ones; `kind` is None if these have several kinds."""

    number: str
    title: str
    kind: LayerKind | None
    size: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Section:
    """A group of layers, such as those of one step, and how often they run."""

    heading: str
    rows: tuple[Row, ...]
    n_times: int = 1


@dataclass(frozen=True)
class Diagram:
    """The table of a program: its columns, the prompt, the sections of layers, and the result.

    `ends` are the titles of the first and the last line.
    """

    facts: str
    columns: tuple[Column, ...]
    start: Line
    sections: tuple[Section, ...]
    end: Line
    ends: tuple[str, str]
    activation: str = "relu"

    @cached_property
    def place_of(self) -> dict[str, int]:
        """The index of the column of every slot."""
        columns = enumerate(self.columns)
        return {slot.name: place for place, column in columns for slot in column.slots}

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of layer, in the order in which they appear."""
        rows = (row for section in self.sections for row in section.rows)
        return tuple(dict.fromkeys(row.kind for row in rows if row.kind is not None))


@singledispatch
def diagram(program: AbstractProgram) -> Diagram:
    """Return the table of a program."""
    raise ProgramError(f"{type(program).__name__} has no rule in pictures/diagram.py")


@diagram.register
def _of_stack(program: StackProgram) -> Diagram:
    sizes, layout = summarise(program, 1).layers, program.layout
    n_block = len(program.block)
    block = Section(
        _step_heading(program), _rows(program.block, sizes[:n_block]), program.n_repeats
    )
    first = n_block * program.n_repeats + 1
    prediction = Section("Prediction", _rows(program.prediction, sizes[n_block:], first))
    facts = f"{program.layers_in_words}, residual stream of width {layout.width}"
    return Diagram(
        facts,
        _columns(layout),
        _stack_prompt(program),
        tuple(section for section in (block, prediction) if section.rows and section.n_times),
        _stack_end(program),
        ("Prompt", "Read out"),
        program.activation,
    )


def _step_heading(program: StackProgram) -> str:
    """Return the heading of the block: the steps that it performs, and how the others differ."""
    n_steps, n_drawn = program.n_steps, program.steps_per_block
    drawn = "Step 1" if n_drawn == 1 else f"Steps 1 to {n_drawn}"
    if n_drawn == n_steps:
        return drawn if n_drawn == 1 else f"All {n_steps} steps"
    others = "the others run the same layers, with the same weights"
    if program.schedule:
        others += f" except in the last {counted(len(program.schedule[0]), 'layer')}"
    return f"{drawn} of {n_steps:,}: {others}"


def _stack_prompt(program: StackProgram) -> Line:
    """Return the line of the prompt: the residual stream before the first layer."""
    empty = (Role.SCRATCH, Role.SHARED)
    filled = [slot for slot in program.layout.slots if slot.role not in empty]
    if not (program.weight_shapes or program.trains_function):
        sentence = "a token for each column of the matrix"
        return Line(sentence, sets=frozenset(slot.name for slot in filled))
    held = "every token holds the initial weights" if program.weight_shapes else NO_WEIGHTS
    registers = f"{program.n_registers} registers, then " if program.n_registers else ""
    sentence = f"{registers}a token for each example and each query; {held}"
    return Line(sentence, sets=frozenset(slot.name for slot in filled))


def _stack_end(program: StackProgram) -> Line:
    """Return the line of the slots from which a run reads its results."""
    weights = [slot.name for slot in program.layout.having(Role.PARAMETER)]
    sentence = "y at every token"
    if weights:
        sentence = "predictions in y at the queries; the trained weights"
    elif program.trains_function:  # y holds the residual 0 - f(x)
        sentence = "predictions: -y at the queries"
    return Line(sentence, reads=frozenset(("y", *weights)))


@diagram.register
def _of_chain(program: ChainProgram) -> Diagram:
    sizes, mask = summarise(program, 1).layers, program.mask
    read, written = (_rows_of(program, block) for block in (NEAR, OUT))
    heading = f"The layers that write block t from block t - 1 and {mask.far_in_words()}"
    if len(heading) > 90:
        heading = "The layers that write block t from two earlier ones"
    blocks = f"{counted(program.n_blocks, 'block')} of width {program.rows.width}"
    return Diagram(
        f"{program.layers_in_words}; a chain of {blocks}",
        _columns(program.layout),
        Line("the block before, and positions", sets=read),
        (Section(heading, _rows(program.layers, sizes), program.n_blocks),),
        Line("the new block, which is appended to the chain", reads=written),
        ("Input", "Output"),
    )


def _rows_of(program: ChainProgram, *blocks: str) -> frozenset[str]:
    """Return the slots of these blocks in the working stream, with the constants."""
    slots = program.layout.slots
    constants = {slot.name for slot in slots if slot.role is Role.CONSTANT and OUT not in blocks}
    return frozenset({s.name for s in slots if s.name.split(".")[0] in blocks} | constants)


def _columns(layout: Layout) -> tuple[Column, ...]:
    folds = folded(layout.slots, lambda slot: (_stem(slot.name), slot.role), MOST_COLUMNS)
    return tuple(Column(slots, _group(slots[0])) for slots in folds)


def _stem(name: str) -> str:
    """Return a name without its numbers, such as `jacobian` for `jacobian_3_1`."""
    return re.sub(r"([_ ]\d+)+$", "", name)


def _group(slot: Slot) -> str:
    block, dot, _ = slot.name.partition(".")
    return CHAIN_GROUPS[block] if dot and block in CHAIN_GROUPS else GROUPS[slot.role]


def _rows(layers: Sequence[Layer], sizes: Sequence[LayerSize], first: int = 1) -> tuple[Row, ...]:
    """Return rows for layers numbered from `first`."""
    numbered = list(zip(range(first, first + len(layers)), layers, sizes, strict=True))
    folds = folded(numbered, lambda numbered_layer: _signature(numbered_layer[1]), MOST_ROWS)
    return tuple(_row(*fold[0]) if len(fold) == 1 else _folded_row(fold) for fold in folds)


def _signature(layer: Layer) -> tuple[str, LayerKind, frozenset[type[Instruction]]]:
    """Return a key that is equal for similar layers, such as `forward 2` and `forward 3`."""
    return _stem(layer.title), layer.kind, frozenset(map(type, layer.instructions))


def _row(number: int, layer: Layer, size: LayerSize) -> Row:
    folds = folded(_merged(layer.instructions), lambda group: type(group[0]), MOST_LINES)
    lines = tuple(_line(fold[0]) if len(fold) == 1 else _folded_line(fold) for fold in folds)
    return Row(str(number), layer.title, layer.kind, _size_in_words(size), lines)


def _merged(instructions: Sequence[Instruction]) -> list[tuple[Instruction, ...]]:
    """Return the instructions one by one, with all that wipe slots as one group at the end."""
    wiping = tuple(i for i in instructions if isinstance(i, WIPING))
    others = ((i,) for i in instructions if not isinstance(i, WIPING))
    return [*others, wiping] if wiping else list(others)


def _size_in_words(size: LayerSize) -> str:
    if size.kind is LayerKind.MLP:
        return counted(size.units, "hidden unit")
    return f"{counted(size.units, 'head')} of width {size.width}"


def _line(instructions: Sequence[Instruction]) -> Line:
    """Return the line of an instruction, or of all instructions that wipe."""
    wipes = _named(instructions, Use.CHANGE) if isinstance(instructions[0], WIPING) else ()
    if len(wipes) > MOST_NAMED:
        sentence = f"wipe {len(wipes)} slots"
    else:
        sentence = f"wipe {', '.join(wipes)}" if wipes else instructions[0].formula()
    return _marked(sentence, instructions)


def _marked(sentence: str, instructions: Sequence[Instruction]) -> Line:
    """Return a line with the slots of its instructions; slots read and written are added to."""
    wiping = [i for i in instructions if isinstance(i, WIPING)]
    others = [i for i in instructions if not isinstance(i, WIPING)]
    reads = frozenset(_named(others, Use.READ))
    writes = frozenset(name for instruction in others for name in instruction.writes())
    adds = frozenset(_named(others, Use.ADD, Use.ACCUMULATE)) | (reads & writes)
    return Line(
        sentence,
        reads=reads,
        flags=frozenset(_named(others, Use.FLAG)),
        sets=writes - adds,
        adds=adds,
        wipes=frozenset(_named(wiping, Use.CHANGE)),
    )


def _named(instructions: Sequence[Instruction], *uses: Use) -> tuple[str, ...]:
    return tuple(name for instruction in instructions for name in names_used(instruction, *uses))


def _folded_line(fold: Sequence[tuple[Instruction, ...]]) -> Line:
    instructions = [instruction for group in fold for instruction in group]
    return _marked(f"… {len(instructions)} more like these", instructions)


def _folded_row(fold: Sequence[tuple[int, Layer, LayerSize]]) -> Row:
    """Return one row for many layers, with the first and last formula and the slots of all."""
    (start, first, _), (end, last, _) = fold[0], fold[-1]
    instructions = [instruction for _, layer, _ in fold for instruction in layer.instructions]
    ends = f"{first.instructions[0].formula()}  …  {last.instructions[0].formula()}"
    kinds = {layer.kind for _, layer, _ in fold}
    kind = first.kind if len(kinds) == 1 else None
    titles = f": {first.title} … {last.title}" if first.title != last.title else ""
    return Row(
        number=f"{start} – {end}",
        title=f"{len(fold):,} layers{' like these' if kind else ''}{titles}",
        kind=kind,
        size=f"{sum(size.units for _, _, size in fold):,} {NOUNS.get(kind, 'heads')} in all",
        lines=(_marked(ends, instructions),),
    )
