"""Run a chain: generate each block from the two earlier ones that the mask shows.

A generator computes the next block: the dense and the literal one run every head and hidden unit of
the layers, the fused one executes their recording. `Chain` is the executor around a generator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil, inf, isfinite
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from icgd.backends.engine import BoundRecording, Buffers, Check, Plan, Running
from icgd.backends.recorder import (
    Constants,
    Op,
    recorded_block,
    recorded_round,
    row_of_layer,
)
from icgd.backends.run import PLAIN, AbstractExecutor, Run, RunOptions, drive
from icgd.errors import OverflowedRunError, SettingError, UnknownNameError, quoted
from icgd.problems.data import Task
from icgd.program.chain import (
    BACK,
    CONSTANT,
    FAR,
    IS_BACKWARD,
    IS_DATA,
    LARGEST_STATE,
    NEAR,
    OUT,
    PADDING,
    ChainProgram,
    bit_slots,
    row_of,
)
from icgd.program.chain_instructions import Product
from icgd.program.layout import ONE
from icgd.shapes import Inputs, Labels, Parameters, Predictions, Stream
from icgd.weights.lowering import lower_layer

Block = TypeVar("Block")
Row = Tensor | float
"""A row of a block: a matrix per task, or the constant value of all entries."""


class AbstractGenerator(ABC, Generic[Block]):
    """Computes blocks, in a representation of its own.

    Blocks have the batch shape, dtype and device of the examples `like`.
    """

    name: ClassVar[str]

    def __init__(self, program: ChainProgram, like: Tensor) -> None:
        self.program = program
        self.like = like

    @abstractmethod
    def encode(self, rows: Mapping[str, Row]) -> Block:
        """Return a block of the prompt; missing rows are 0."""

    @abstractmethod
    def step(self, near: Block, far: Block, number: int, *, at_queries: bool = False) -> Block:
        """Return block `number` of the chain, or of the pass at queries, from the two it reads."""

    @abstractmethod
    def row(self, block: Block, name: str) -> Tensor:
        """Return a row of a block in its own shape, after the axis of tasks."""

    def require_reach(
        self, product: Product, value: Tensor, number: int, *, at_queries: bool
    ) -> None:
        """Raise `OverflowedRunError` if a query is beyond the lattice that its heads read."""
        largest = float(torch.linalg.vector_norm(value, inf))
        if largest <= product.reach:
            return
        place = self.program.mask.place(number)
        # B_1 has no layer below, so no later block reads this product: flags clear its row if it
        # is finite. In dense layers it always is small enough for the gate, because heads return at
        # most the last point of their lattice.
        is_unread = product.writes() == (BACK,) and place.layer == 1 and not place.is_forward
        if is_unread and isfinite(largest):
            return
        title = place.title(at_queries=at_queries)
        raise OverflowedRunError(
            f"Row {product.limited} of block {number} ({title}) reaches {largest:.6g}, but the "
            f"grid that its heads read ends at {product.reach:.6g}. Use a smaller step size, box "
            "or domain."
        )

    def expanded(self, row: Row, name: str) -> Tensor:
        """Return a row as a tensor."""
        if isinstance(row, Tensor):
            return row
        shape = (*self.like.shape[:-2], *self.program.rows.slot(name).shape)
        return self.like.new_full(shape, row)


class DenseGenerator(AbstractGenerator[Stream]):
    """Runs the layers themselves; a block is a column of the stream, with its rows flattened."""

    name: ClassVar[str] = "dense"
    is_sparse: ClassVar[bool] = False

    def __init__(self, program: ChainProgram, like: Tensor) -> None:
        super().__init__(program, like)
        lower = partial(lower_layer, program=program, dtype=like.dtype, is_sparse=self.is_sparse)
        self.layers = nn.Sequential(*map(lower, program.block)).to(like.device)
        self._places: dict[str, slice] = {}  # of all rows of a block, which are adjacent
        for block in (NEAR, FAR, OUT):
            first = program.layout.range_of(row_of(block, program.rows.names[0])).start
            self._places[block] = slice(first, first + program.rows.width)

    def encode(self, rows: Mapping[str, Row]) -> Stream:
        block = self._zeros(self.program.rows.width)
        for name, row in rows.items():
            if isinstance(row, Tensor):
                row = row.flatten(-2).unsqueeze(-2)
            block[..., self.program.rows.range_of(name)] = row
        return block

    def step(self, near: Stream, far: Stream, number: int, *, at_queries: bool = False) -> Stream:
        return self.written(self.stream({NEAR: near, FAR: far}, {}), number, at_queries=at_queries)

    def stream(
        self, blocks: Mapping[str, Tensor], constants: Mapping[str, tuple[float, ...]]
    ) -> Stream:
        """Return a stream of one token with these blocks, these constants and the constant 1."""
        stream: Stream = self._zeros(self.program.layout.width)
        for name, block in blocks.items():
            stream[..., self._places[name]] = block
        for slot, numbers in {ONE: (1.0,), **constants}.items():
            stream[..., self.program.layout.range_of(slot)] = stream.new_tensor(numbers)
        return stream

    def written(self, stream: Tensor, number: int, *, at_queries: bool) -> Stream:
        """Return the block that the layers write for a stream that holds the two blocks to read."""
        with torch.no_grad():
            for layer, module in zip(self.program.block, self.layers, strict=True):
                stream = module(stream)
                for instruction in layer.instructions:
                    if isinstance(instruction, Product):
                        values = stream[..., self.program.layout.range_of(instruction.limited)]
                        self.require_reach(instruction, values, number, at_queries=at_queries)
        return stream[..., self._places[OUT]].clone()

    def row(self, block: Stream, name: str) -> Tensor:
        rows = self.program.rows
        row: Tensor = block[..., 0, rows.range_of(name)].unflatten(-1, rows.slot(name).shape)
        return row

    def _zeros(self, width: int) -> Stream:
        return self.like.new_zeros(*self.like.shape[:-2], 1, width)


Rows = Mapping[str, Row]


class FusedBlock(NamedTuple):
    """The rows of a block by name, and the values of the constant ones."""

    rows: Rows
    constants: Constants


class FusedGenerator(AbstractGenerator[FusedBlock]):
    """Executes a recording of each kind of step, without weights.

    Constant rows, such as flags and zeros, are stored as numbers and folded when a step is
    recorded. What is left for a block is one or two matrix products and a few passes over their
    entries, O(b d^2) for any N. There are four kinds of step, two of them in linear layers.
    """

    name: ClassVar[str] = "fused"

    def __init__(self, program: ChainProgram, like: Tensor) -> None:
        super().__init__(program, like)
        self._plans: dict[tuple[Constants, Constants], Plan] = {}
        self._code = {name for names in bit_slots(program.n_bits) for name in names}
        self._places = {row_of(b, n): (b, n) for b in (NEAR, FAR) for n in program.rows.names}

    def encode(self, rows: Rows) -> FusedBlock:
        """Return a block of the prompt. Bits of rules stay matrices: one plan serves all rules."""
        coded = {name: self.expanded(rows[name], name) for name in self._code & rows.keys()}
        return _block(dict.fromkeys(self.program.rows.names, 0.0) | dict(rows) | coded)

    def step(
        self, near: FusedBlock, far: FusedBlock, number: int, *, at_queries: bool = False
    ) -> FusedBlock:
        kinds = (near.constants, far.constants)
        if kinds not in self._plans:
            recording = recorded_block(self.program, *kinds)
            self._plans[kinds] = Plan(recording, Running(self.program, {}, self.like))
        plan, blocks = self._plans[kinds], {NEAR: near.rows, FAR: far.rows}
        places = {name: self._places[name] for name in plan.recording.inputs}
        results = plan({name: blocks[block][row] for name, (block, row) in places.items()})
        for op in plan.recording.ops:
            if op.name == "guard_reach":
                self.require_reach(op.options[0], results[op], number, at_queries=at_queries)
        outputs = plan.recording.outputs.items()
        return _block({n: op.options[0] if op.name == "fill" else results[op] for n, op in outputs})

    def row(self, block: FusedBlock, name: str) -> Tensor:
        return self.expanded(block.rows[name], name)


def _block(rows: Rows) -> FusedBlock:
    return FusedBlock(rows, tuple(row if isinstance(row, float) else None for row in rows.values()))


class LiteralGenerator(DenseGenerator):
    """Runs the layers with sparse weights."""

    name: ClassVar[str] = "literal"
    is_sparse: ClassVar[bool] = True


def _tensors(block: FusedBlock, of: str | int) -> dict[str, Tensor]:
    """Return the rows of a block that are not constant, by their names in a recorded round."""
    name_of = partial(row_of, of) if isinstance(of, str) else partial(row_of_layer, layer=of)
    return {name_of(name): row for name, row in block.rows.items() if isinstance(row, Tensor)}


class RoundBuffers(Buffers):
    """Buffers of a round, which record the size of products for one check per round."""

    def __init__(
        self,
        program: ChainProgram,
        inputs: Mapping[str, Tensor],
        changing: Sequence[str],
        like: Tensor,
        n_products: int,
    ) -> None:
        self.products: list[tuple[Product, int]] = []
        self.largest = like.new_zeros(n_products)
        super().__init__(program, {"x": like, **inputs}, changing)

    def watch(self, op: Op, value: Tensor) -> Check:
        self.products.append(op.options)
        largest = self.largest[len(self.products) - 1]
        return partial(torch.linalg.vector_norm, value, inf, out=largest)

    def require_reach(self, generator: AbstractGenerator[Any], n_rounds: int) -> None:
        """Raise `OverflowedRunError` if a product of this round left its lattice."""
        first = n_rounds * generator.program.mask.blocks_per_round
        sizes = zip(self.products, self.largest.tolist(), strict=True)
        for (product, number), largest in sorted(sizes, key=lambda entry: entry[0][1]):
            if not largest <= product.reach:
                value = self.like.new_tensor(largest)
                generator.require_reach(product, value, first + number, at_queries=False)


GENERATORS: dict[str, type[AbstractGenerator[Any]]] = {
    generator.name: generator for generator in (FusedGenerator, LiteralGenerator, DenseGenerator)
}

MEMORIES = ("short", "whole")
"""Which blocks are kept: those that the mask can still reach, or all."""


def run_chain(
    program: ChainProgram,
    task: Task,
    options: RunOptions = PLAIN,
    *,
    backend: str = "fused",
    memory: str = "short",
) -> Run:
    """Generate the whole chain, then predict at the queries with forward blocks only.

    `Run.parameters` holds the weights after every round; `trace` names rows to record, of shape
    (block, 1, width), from the initial blocks on. Results do not depend on `memory`.
    """
    if backend not in GENERATORS:
        raise UnknownNameError.of("backend", backend, known=list(GENERATORS))
    if memory not in MEMORIES:
        raise SettingError(f"memory must be one of {', '.join(MEMORIES)}, got {quoted(memory)}.")
    return drive(partial(make_chain, backend=backend, memory=memory), program, task, options)


def make_chain(
    program: ChainProgram, task: Task, options: RunOptions, *, backend: str, memory: str = "short"
) -> Chain:
    """Return the executor of a chain with the generator of a backend."""
    return Chain(program, task, GENERATORS[backend](program, task.x), memory, options.trace)


def padded(program: ChainProgram, matrix: Tensor, n_columns: int | None = None) -> Tensor:
    """Return a matrix padded with zeros to the common width of all layers."""
    rows, columns = matrix.shape[-2:]
    width = program.width
    return functional.pad(matrix, (0, (n_columns or width) - columns, 0, width - rows))


def learnt_matrices(program: ChainProgram, learnt: Tensor) -> dict[str, list[Tensor]]:
    """Return the padded matrices of all layers, of the weights and of the optimiser's state."""
    shapes = program.shapes * len(program.learnt)
    flat_matrices = learnt.split([rows * columns for rows, columns in shapes], dim=-1)
    pairs = zip(flat_matrices, shapes, strict=True)
    matrices = [padded(program, flat.unflatten(-1, shape)) for flat, shape in pairs]
    depth = len(program.shapes)
    return {
        name: matrices[place * depth : (place + 1) * depth]
        for place, name in enumerate(program.learnt)
    }


def travelling_rows(program: ChainProgram, layer: int) -> dict[str, Row]:
    """Return the rows that accompany the weights of a layer: its kind, and its padded units.

    Layers are counted from 0.
    """
    rows: dict[str, Row] = {program.kinds[layer]: 1.0}
    unit, n_units = torch.arange(program.width)[:, None], program.shapes[layer][0]
    if PADDING in program.rows.names:
        rows[PADDING] = (unit >= n_units).double()
    if program.has_biases and layer + 1 < len(program.shapes):
        rows[CONSTANT] = (unit == n_units).double()
    return rows


def input_columns(program: ChainProgram, inputs: Tensor) -> Tensor:
    """Return inputs as padded columns, with the constant 1 below them if there are biases."""
    if program.has_biases:
        inputs = functional.pad(inputs, (0, 1), value=1.0)
    return padded(program, inputs.mT, program.batch_size)


@final
class Chain(AbstractExecutor[Parameters]):
    """Execute a chain; a step is a round. `blocks` has the blocks in memory by number."""

    def __init__(
        self,
        program: ChainProgram,
        task: Task,
        generator: AbstractGenerator[Any],
        memory: str,
        trace: tuple[str, ...],
    ) -> None:
        for name in trace:
            program.rows.slot(name)
        self.program, self.task, self.generator = program, task, generator
        self.keeps_all, self.start = memory == "whole", task.initial
        self.still_steps = ceil(task.n_examples / program.batch_size)  # a pass over the examples
        self.traced: dict[str, list[Tensor]] = {name: [] for name in trace}
        self.n_of_prompt, self.n_per_step = program.mask.depth, program.mask.blocks_per_round
        self.blocks: dict[int, Any] = {}
        self.require_gates(task.initial, 0)
        for number, block in self.initial(task.initial).items():
            self.keep(number, block)
        # Without a trace or stored blocks a fused chain can run whole rounds in one recording.
        needs_blocks = trace or self.keeps_all or not isinstance(generator, FusedGenerator)
        self._rounds = self.rounds() if needs_blocks else self.whole_rounds()

    def step(self) -> Parameters:
        return next(self._rounds)

    def read(self, reached: Parameters, write: Parameters) -> None:
        write.copy_(reached)

    def initial(self, learnt: Parameters) -> dict[int, Any]:
        """Return blocks -(N - 1) .. 0, which are B_N .. B_1 with these weights and their state."""
        program, task, blocks = self.program, self.task, {}
        matrices = learnt_matrices(program, learnt)
        for layer in range(program.mask.depth, 0, -1):
            travelling = travelling_rows(program, layer - 1)
            rows: dict[str, Row] = {}
            for name, row in travelling.items():
                if isinstance(row, Tensor):
                    row = row.to(task.x).expand(*task.batch, -1, -1)
                rows[name] = row
            rows |= {name: by_layer[layer - 1] for name, by_layer in matrices.items()}
            blocks[1 - layer] = self.generator.encode({**rows, IS_BACKWARD: 1.0})
        return blocks

    def require_gates(self, learnt: Parameters, n_rounds: int) -> None:
        """Raise `OverflowedRunError` if the optimiser's state is too large for the gates."""
        _, *state = learnt.chunk(len(self.program.learnt), dim=-1)
        for name, values in zip(self.program.learnt[1:], state, strict=True):
            if not (largest := float(values.abs().max())) <= LARGEST_STATE:
                raise OverflowedRunError(
                    f"The {name} of a weight is {largest:.6g} after {n_rounds} rounds, but the "
                    f"gates of the block close no more than {LARGEST_STATE:.6g}. Use a smaller "
                    "step size or momentum, or start from a smaller state."
                )

    def inputs(self, values: Inputs) -> Any:
        """Return the block of up to `batch_size` inputs, a column each."""
        columns = input_columns(self.program, values)
        return self.generator.encode({"first": columns, IS_DATA: 1.0})

    def labels(self, values: Labels, number: int) -> Any:
        """Return the block of the labels of a round, a column each, with the code of its rule."""
        columns = padded(self.program, values.mT, self.program.batch_size)
        flags = self.program.code(number)
        return self.generator.encode({"first": columns, IS_DATA: 1.0, **flags})

    def rounds(self) -> Iterator[Parameters]:
        """Yield the weights after every round."""
        program, mask = self.program, self.program.mask
        for number in range(program.n_steps):
            x, y = self.data(number)
            for step in mask.walk_round(number):
                near, far = step.blocks(self.blocks, x, y)
                self.keep(step.number, self.generator.step(near, far, step.number))
            learnt = self.learnt((number + 1) * mask.blocks_per_round)
            self.require_gates(learnt, number + 1)
            yield learnt

    def whole_rounds(self) -> Iterator[Parameters]:
        """Yield the same from one recording of a whole round, bound to reused buffers."""
        program, layers = self.program, [self.blocks[-n] for n in range(self.program.mask.depth)]
        x, y = self.data(0)
        constants = tuple(block.constants for block in layers)
        recording = recorded_round(program, constants, x.constants, y.constants)
        data = _tensors(x, "x") | _tensors(y, "y")
        inputs = dict(data)
        for number, block in enumerate(layers, start=1):
            inputs |= _tensors(block, number)
        n_products = sum(op.name == "guard_reach" for op in recording.ops)
        changing = (*data, *recording.outputs)
        buffers = RoundBuffers(program, inputs, changing, self.task.x, n_products)
        bound = BoundRecording(buffers, recording)
        matrices = [
            buffers.inputs[row_of_layer(name, layer)][..., :rows, :columns]
            for name in program.learnt
            for layer, (rows, columns) in enumerate(program.shapes, start=1)
        ]
        for number in range(program.n_steps):
            if number:
                x, y = self.data(number)
                for name, row in (_tensors(x, "x") | _tensors(y, "y")).items():
                    buffers.inputs[name].copy_(row)
            try:
                bound()
            except IndexError:  # the table look-up of a NaN
                buffers.require_reach(self.generator, number)
                raise
            buffers.require_reach(self.generator, number)
            learnt = torch.cat([matrix.flatten(-2) for matrix in matrices], dim=-1)
            self.require_gates(learnt, number + 1)
            yield learnt

    def data(self, number: int) -> tuple[Any, Any]:
        """Return the blocks of the examples of a round."""
        rows = list(self.program.examples_of(number, self.task.n_examples))
        x, y = self.task.x[..., rows, :], self.task.y[..., rows, :]
        return self.inputs(x), self.labels(y, number)

    def keep(self, number: int, block: Any) -> None:
        """Store and trace a block, and drop the one that no later block reads."""
        self.blocks[number] = block
        if not self.keeps_all:
            self.blocks.pop(number - self.program.mask.reach, None)
        for name, rows in self.traced.items():
            rows.append(self.generator.row(block, name).reshape(*self.task.batch, 1, -1))

    def learnt(self, last: int) -> Parameters:
        """Return the weights and optimiser state in blocks B_N .. B_1, which end with `last`."""
        matrices = [
            self.generator.row(self.blocks[last - layer], name)[..., :rows, :columns]
            for name in self.program.learnt
            for layer, (rows, columns) in enumerate(self.program.shapes)
        ]
        return torch.cat([matrix.flatten(-2) for matrix in matrices], dim=-1)

    def predictions(self, weights: Parameters) -> Predictions:
        """Return the last outputs of forward blocks that start from the trained weights."""
        queries, size = self.task.queries, self.program.batch_size
        if not self.task.n_queries:
            return self.task.y[..., :0, :].clone()
        groups = [self._forward(weights, group) for group in queries.split(size, dim=-2)]
        return torch.cat(groups, dim=-2)

    def _forward(self, weights: Parameters, group: Tensor) -> Tensor:
        """Return the outputs at up to `batch_size` queries."""
        blocks, mask = self.initial(weights), self.program.mask
        inputs = self.inputs(group)
        for step in mask.walk(1, mask.depth):
            near, far = step.blocks(blocks, inputs, inputs)
            blocks[step.number] = self.generator.step(near, far, step.number, at_queries=True)
        outputs = self.generator.row(blocks[mask.depth], "first").mT
        return outputs[..., : group.shape[-2], : self.task.y.shape[-1]]
