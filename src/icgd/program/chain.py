r"""Chain programs: reused layers that generate a chain of blocks, each from two earlier ones.

A round of training an N-layer network is 2N blocks, F_1 .. F_N forward and B_N .. B_1 backward,
and every B_i holds the trained weights of its layer for the next round. Block t = 1, 2, ... is the
i-th of its pass, i = ((t - 1) mod N) + 1, and reads

    near    block t - 1
    far     block t - (2i - 1): the weights of B_i of the round before, or the outputs of F_{N+1-i};
            at i = 1 the data of the round instead, X (forward) or Y (backward)

The prompt ends with the initial weights in blocks B_N .. B_1, which are blocks -(N - 1) .. 0.

A softmax head finds the far block by positions. With F_i at time i of a round and B_i at time
2N + 1 - i, the partner of time t is at time 1 - t modulo 2N. On the circle, with the angle
pi t / N, this is a reflection, which is bilinear in cosines and sines. Data are found by their kind
and the number of their round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import cos, pi, sin
from typing import Any, ClassVar, TypeVar, final

from icgd.program import render
from icgd.program.chain_instructions import (
    FINDING,
    GAP,
    NO_CLASS,
    FindBlock,
    MarkFlat,
    ShareColumns,
)
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import LayerKind
from icgd.program.layout import MASKED, OFFSET, Layout, Role, value_slot
from icgd.program.program import AbstractProgram, Layer
from icgd.reprs import counted, used, with_repr

Block = TypeVar("Block")

IS_FORWARD, IS_BACKWARD, IS_DATA = "is_forward", "is_backward", "is_data"
"""Flags of a block: one of them is 1, the others are 0."""

PADDING, CONSTANT = "padding", "constant"
"""Rows that accompany the weights where needed. `padding` is 1 for each unit that the layer does
not have. `constant` is 1 for the padding unit that represents the constant 1, which multiplies the
biases of the next layer."""

LINEAR, KINKED = "linear", "kinked"
"""Flags of layers with linear or kinked units; the flag of a smooth activation has its name."""

BACK = "back"
"""The slot of W_i^T delta_i, which B_i passes to the layer below."""

NO_CLASS_SCORE = 4 * MASKED
"""The amount by which grid tokens score below classes, whose scores are at least -4096, where grids
end."""

LARGEST_STATE = 2.0**64
"""The largest state of an optimiser, which no box bounds; a run beyond it is stopped, because gates
cannot close larger numbers."""

ASKS, ANSWERS = "asks", "answers"
"""The slots of positions: the query of the newest column, and the keys of all columns."""

NEAR, FAR, OUT = "near", "far", "out"
"""Prefixes of slots: the rows of the two blocks that a step reads, and of the block it writes."""


def row_of(block: str, name: str) -> str:
    """Return the slot of a block's row in the working stream."""
    return f"{block}.{name}"


def bit_slots(n_bits: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the flags for bits that are 1, and those for bits that are 0, the lowest bit first."""
    numbers = range(1, n_bits + 1)
    return tuple(f"bit_{k}" for k in numbers), tuple(f"no_bit_{k}" for k in numbers)


@dataclass(frozen=True)
class Place:
    """The place of a block: its round, counted from 0, its pass, and its layer, from 1."""

    round: int
    is_forward: bool
    layer: int

    def title(self, *, at_queries: bool = False) -> str:
        """Return the place in words; the pass at the queries belongs to no round."""
        direction = "forward" if self.is_forward else "backward"
        when = "at the queries" if at_queries else f"of round {self.round + 1}"
        return f"{direction} {self.layer} {when}"


@dataclass(frozen=True)
class Reading:
    """The reads of block `number`: the block before it, and block `far` or the round's data."""

    number: int
    place: Place
    far: int | None

    def blocks(self, written: Mapping[int, Block], x: Block, y: Block) -> tuple[Block, Block]:
        """Return the two blocks, from the blocks written so far and the data of the round."""
        data = x if self.place.is_forward else y
        return written[self.number - 1], data if self.far is None else written[self.far]


@dataclass(frozen=True)
class ChainMask:
    """The mask of the blocks that each block reads, for a network of `depth` layers."""

    depth: int
    N_FEATURES: ClassVar[int] = len(FINDING)

    @property
    def blocks_per_round(self) -> int:
        return 2 * self.depth

    @property
    def reach(self) -> int:
        """The largest distance to a block that is read; older blocks are never read again."""
        return 2 * self.depth - 1

    def place(self, step: int) -> Place:
        """Return the place of block `step` = 1, 2, ..."""
        number, within = divmod(step - 1, self.blocks_per_round)
        is_forward = within < self.depth
        return Place(number, is_forward, within + 1 if is_forward else 2 * self.depth - within)

    def walk(self, first: int, n_blocks: int) -> Iterator[Reading]:
        """Yield the reads of `n_blocks` blocks, from block `first` on."""
        for step in range(first, first + n_blocks):
            phase = (step - 1) % self.depth + 1
            yield Reading(step, self.place(step), None if phase == 1 else step - (2 * phase - 1))

    def walk_round(self, number: int) -> Iterator[Reading]:
        """Yield the reads of the blocks of a round, counted from 0."""
        return self.walk(number * self.blocks_per_round + 1, self.blocks_per_round)

    def answers(self, step: int, position: int) -> tuple[float, ...]:
        """Return the key of block `step` in this column: the angle of its time, its position."""
        angle = self._angle(step)
        return cos(angle), sin(angle), float(position), 0.0, 0.0, 0.0, 0.0

    def data_answers(self, number: int, position: int, *, is_x: bool) -> tuple[float, ...]:
        """Return the key of the inputs or the labels of a round, counted from 0."""
        one_based = float(number + 1)
        return 0.0, 0.0, float(position), float(is_x), float(not is_x), one_based, one_based**2

    def asks(self, step: int) -> tuple[float, ...]:
        """Return the query of the column before block `step`, for the far block that `step` reads.

        Blocks at the reflected angle score at least 2 `GAP` more than those at any other, and the
        newest of them at least `GAP` more than earlier ones. For data, the number l of a round and
        its square give -(l - l')^2, up to a term that all columns share.
        """
        place, angle = self.place(step), self._angle(step - 1)
        if place.layer == (1 if place.is_forward else self.depth):
            is_x, one_based = place.is_forward, float(place.round + 1)
            return 0.0, 0.0, 0.0, float(is_x), float(not is_x), one_based, 1.0
        sharpness, newest = 2 * GAP / (1 - cos(pi / self.depth)), GAP / (2 * self.depth)
        return sharpness * cos(angle), sharpness * sin(angle), newest, 0.0, 0.0, 0.0, 0.0

    def _angle(self, step: int) -> float:
        """Return the angle of a block's time; the initial blocks belong to a round before."""
        return pi * (step % self.blocks_per_round) / self.depth

    def far_in_words(self) -> str:
        """Return the far block of block t in words: 3, 5, .. 2N - 1 blocks back, or data."""
        backs = ", ".join(f"t - {back}" for back in range(3, self.reach + 1, 2))
        return f"block {backs} or data" if backs else "data"

    def matrix(self, n_rounds: int) -> tuple[tuple[bool, ...], ...]:
        """Return the mask: row t - 1 marks what block t reads.

        Its columns are X_1, Y_1, X_2, .., then the blocks -(N - 1), .. .
        """
        n_data, n_steps = 2 * n_rounds, self.blocks_per_round * n_rounds
        n_columns = n_data + self.depth + n_steps
        first = n_data + self.depth - 1  # the column of block 0
        rows = []
        for step in self.walk(1, n_steps):
            data = 2 * step.place.round + (not step.place.is_forward)
            far = data if step.far is None else first + step.far
            read = {first + step.number - 1, far}
            rows.append(tuple(column in read for column in range(n_columns)))
        return tuple(rows)


@final
@with_repr
@dataclass(frozen=True)
class ChainProgram(AbstractProgram):
    """The `layers` that write the next block of a chain from two earlier blocks.

    A block has the `rows`, and the stream in which it is computed has the `layout`. The target's
    matrices have the `shapes`, and are padded to squares. `kinds` names the flag of each layer's
    kind of unit. Training has `n_steps` rounds, each a step on `batch_size` examples. If rounds
    update the weights by different rules, `rules` has the number of each round's rule, which the
    prompt gives beside the labels, in flags for its bits.
    """

    construction: str
    rows: Layout
    layout: Layout
    functions: tuple[LatticeFunction, ...]
    layers: tuple[Layer, ...]
    shapes: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...]
    batch_size: int
    n_steps: int
    rules: tuple[int, ...] = ()

    def facts(self) -> dict[str, str]:
        return {
            "construction": self.construction,
            "steps": f"{self.n_steps:,}",
            "chain": f"{counted(self.n_blocks, 'block')} of width {self.rows.width:,}",
            "layers": self.layers_in_words,
            "d_model": f"{self.layout.width:,} in {counted(len(self.layout.slots), 'slot')}",
        }

    @property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.shapes * len(self.learnt)

    @property
    def learnt(self) -> tuple[str, ...]:
        """The rows of the learnt numbers: the weights, then the state of the optimiser."""
        return tuple(slot.name for slot in self.rows.having(Role.PARAMETER))

    def code(self, number: int) -> dict[str, float]:
        """Return the flags beside the labels of round `number`: the bits of its rule's number."""
        if not self.rules:
            return {}
        rule, pairs = self.rules[number], zip(*bit_slots(self.n_bits), strict=True)
        bits = [(pair, float(rule >> k & 1)) for k, pair in enumerate(pairs)]
        return {
            name: value
            for (one, zero), bit in bits
            for name, value in ((one, bit), (zero, 1 - bit))
        }

    @property
    def n_bits(self) -> int:
        """The number of bits in the numbers of rules."""
        return max(self.rules, default=0).bit_length()

    @property
    def traceable(self) -> tuple[str, ...]:
        """The rows of a block."""
        return self.rows.names

    @property
    def n_examples(self) -> None:
        return None

    @property
    def mask(self) -> ChainMask:
        return ChainMask(len(self.shapes))

    @property
    def width(self) -> int:
        """The width of the block, to which all layers of the target are padded."""
        return self.rows.slot("weights").shape[0]

    def examples_of(self, number: int, n_examples: int) -> tuple[int, ...]:
        """Return the examples of round `number` out of `n_examples`, both counted from 0."""
        first = number * self.batch_size
        return tuple(row % n_examples for row in range(first, first + self.batch_size))

    def next_example(self, n_steps: int, n_examples: int) -> int:
        return self.examples_of(n_steps, n_examples)[0]

    @property
    def has_biases(self) -> bool:
        """Whether the last column of every matrix multiplies the constant 1."""
        return CONSTANT in self.rows.names

    @property
    def block(self) -> tuple[Layer, ...]:
        """The layers that write a block, after the first layer, which finds the far block."""
        return self.layers[1:]

    def has_grid(self, layer: Layer) -> bool:
        """Return whether a layer's heads attend to a grid made from the newest column alone."""
        return layer.kind is LayerKind.SOFTMAX and not isinstance(layer.instructions[0], FindBlock)

    def grid_tokens(self, layer: Layer) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
        """Return the grid of an attention layer: multiples of the column, and constants by slot.

        There is one token for each lattice point, and one for each class whose shares the layer
        computes; the layer that finds a block has no grid.
        """
        if not self.has_grid(layer):
            return (), {}
        half = self.functions[0].half
        points = range(-half, half + 1)
        names = {name for instruction in layer.instructions for name in instruction.functions()}
        scales = tuple(g / half for g in points)
        codes = {OFFSET: tuple(-g * g / 2 for g in points)}
        names &= {f.name for f in self.functions if value_slot(f.name) in self.layout.names}
        codes |= {value_slot(f.name): f.values for f in self.functions if f.name in names}
        shares = [
            instruction
            for instruction in layer.instructions
            if isinstance(instruction, ShareColumns)
        ]
        if not shares:
            return scales, codes
        classes = shares[0].classes
        zeros = (0.0,) * len(classes)
        codes = {slot: (*numbers, *zeros) for slot, numbers in codes.items()}
        # Look-up heads mask the tokens of classes: the middle of the grid has the score 0.
        masked = -MASKED * max(function.ratio for function in self.functions) ** 2
        codes[OFFSET] = (*codes[OFFSET][: len(points)], *(masked for _ in classes))
        codes[NO_CLASS] = (*(-NO_CLASS_SCORE for _ in points), *zeros)
        for number, name in enumerate(classes, start=len(points)):
            codes[name] = tuple(float(number == token) for token in range(len(points) + len(zeros)))
        return (*scales, *zeros), codes

    @property
    def has_kinks(self) -> bool:
        return KINKED in self.kinds

    def ramps(
        self, derivative: str, jumps: Mapping[str, float] | None = None
    ) -> tuple[tuple[float, float], ...]:
        """Return the one ramp that all units with a kink share."""
        return ((0.0, self.kink_width),)

    @property
    def kink_width(self) -> float:
        """The width of the kink: a unit with z strictly between 0 and it may be flat or steep."""
        mark = self.first(MarkFlat)
        return 0.0 if mark is None else mark.width

    @property
    def n_blocks(self) -> int:
        """The number of blocks that training generates: 2N a round."""
        return self.mask.blocks_per_round * self.n_steps

    @property
    def n_uses(self) -> int:
        """The number of uses of the layers: for every block, and for a pass at the queries."""
        return self.n_blocks + self.mask.depth

    @property
    def layers_in_words(self) -> str:
        return f"{used(len(self.layers), self.n_uses)}, {self.mask.depth} of these to predict"

    @property
    def can_go_on(self) -> bool:
        return not self.rules

    def listing(self) -> str:
        blocks = f"{self.n_blocks} blocks of {self.rows.width} rows"
        reads = f"block t, from block t - 1 and {self.mask.far_in_words()}"
        title = f"program {self.construction}, {blocks}, d_model {self.layout.width}"
        return render.listing(self, title, {reads: self.layers})

    def to_data(self) -> dict[str, Any]:
        return render.program_data(self)
