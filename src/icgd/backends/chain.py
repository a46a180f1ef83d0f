"""The run of a chain makes each block from the two earlier ones that the mask shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional

from icgd.backends.chain_dense import DenseGenerator
from icgd.backends.chain_fused import FusedGenerator
from icgd.backends.chain_generator import AbstractGenerator, Row
from icgd.backends.driver import drive
from icgd.backends.executor import AbstractExecutor
from icgd.backends.run import PLAIN, Run, RunOptions
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.task import Task
from icgd.program.chain import CONSTANT, IS_BACKWARD, IS_DATA, PADDING, ChainProgram
from icgd.shapes import Inputs, Labels, Parameters, Predictions

GENERATORS: dict[str, type[AbstractGenerator[Any]]] = {
    generator.name: generator for generator in (FusedGenerator, DenseGenerator)
}

MEMORIES = ("short", "whole")
"""What is kept of a chain: what the mask can still reach, or all of it."""


def run_chain(
    program: ChainProgram,
    task: Task,
    options: RunOptions = PLAIN,
    *,
    backend: str = "fused",
    memory: str = "short",
) -> Run:
    """Generate the whole chain, then predict at the queries by forward blocks alone.

    `Run.parameters` holds the weights after every round; `trace` names rows to record, of shape
    (block, 1, width), from the initial blocks on. The memory changes no number.
    """
    if backend not in GENERATORS:
        raise UnknownNameError.of("backend", backend, known=list(GENERATORS))
    if memory not in MEMORIES:
        raise SettingError.not_one_of("memory", memory, MEMORIES)
    make = partial(make_chain, program, task, options, backend=backend, memory=memory)
    return drive(make, program.n_steps, task, options)


def make_chain(
    program: ChainProgram, task: Task, options: RunOptions, *, backend: str, memory: str = "short"
) -> Chain:
    """The executor of a chain with the generator of a backend."""
    return Chain(program, task, GENERATORS[backend](program, task.x), memory, options.trace)


def padded(program: ChainProgram, matrix: Tensor, n_columns: int | None = None) -> Tensor:
    """A matrix with zeros below and on the right, up to the width that all layers have."""
    rows, columns = matrix.shape[-2:]
    width = program.width
    return functional.pad(matrix, (0, (n_columns or width) - columns, 0, width - rows))


def travelling_rows(program: ChainProgram, layer: int) -> dict[str, Row]:
    """The rows that travel with the weights of a layer: its kind, and its padded units.

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
    """Inputs as columns of the padded width, with the constant 1 below them if there are biases."""
    if program.has_biases:
        inputs = functional.pad(inputs, (0, 1), value=1.0)
    return padded(program, inputs.mT, program.batch_size)


@final
class Chain(AbstractExecutor[Parameters]):
    """A chain at work: the blocks that are kept, by number. A step is a round."""

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
        self.recorded: dict[str, list[Tensor]] = {name: [] for name in trace}
        self.n_of_prompt, self.n_per_step = program.mask.depth, program.mask.blocks_per_round
        self.blocks: dict[int, Any] = {}
        for number, block in self.initial(task.initial).items():
            self.keep(number, block)
        self._rounds = self.rounds()

    def step(self) -> Parameters:
        return next(self._rounds)

    def read(self, reached: Parameters, write: Parameters) -> None:
        write.copy_(reached)

    def next_example(self, n_steps: int) -> int:
        return self.program.examples_of(n_steps, self.task.n_examples)[0]

    def initial(self, weights: Parameters) -> dict[int, Any]:
        """Blocks -(N - 1) .. 0, which are B_N .. B_1 with these weights."""
        program, blocks = self.program, {}
        parts = weights.split([rows * columns for rows, columns in program.shapes], dim=-1)
        for layer in range(len(parts), 0, -1):
            matrix = parts[layer - 1].unflatten(-1, program.shapes[layer - 1])
            travelling = travelling_rows(program, layer - 1)
            rows = {name: self._for_all_tasks(row) for name, row in travelling.items()}
            rows |= {"weights": padded(program, matrix), IS_BACKWARD: 1.0}
            blocks[1 - layer] = self.generator.encode(rows)
        return blocks

    def _for_all_tasks(self, row: Row) -> Row:
        if isinstance(row, float):
            return row
        return row.to(self.task.x).expand(*self.task.batch, -1, -1)

    def inputs(self, values: Inputs) -> Any:
        """The block of up to `batch_size` inputs, a column each."""
        return self._data(input_columns(self.program, values))

    def labels(self, values: Labels) -> Any:
        """The block of `batch_size` labels, a column each."""
        return self._data(padded(self.program, values.mT, self.program.batch_size))

    def _data(self, columns: Tensor) -> Any:
        return self.generator.encode({"first": columns, IS_DATA: 1.0})

    def rounds(self) -> Iterator[Parameters]:
        """The weights after every round."""
        program, task, mask = self.program, self.task, self.program.mask
        for number in range(program.n_steps):
            rows = list(program.examples_of(number, task.n_examples))
            x, y = self.inputs(task.x[..., rows, :]), self.labels(task.y[..., rows, :])
            for step in mask.walk_round(number):
                near, far = step.blocks(self.blocks, x, y)
                self.keep(step.number, self.generator.step(near, far, step.number))
            yield self.weights((number + 1) * mask.blocks_per_round)

    def keep(self, number: int, block: Any) -> None:
        """Keep a block, and let go of the one that no later block reads."""
        self.blocks[number] = block
        if not self.keeps_all:
            self.blocks.pop(number - self.program.mask.reach, None)
        for name, rows in self.recorded.items():
            rows.append(self.generator.row(block, name).reshape(*self.task.batch, 1, -1))

    def weights(self, last: int) -> Parameters:
        """The weights that blocks B_N .. B_1 hold, of which `last` is the last."""
        parts = [
            self.generator.row(self.blocks[last - layer], "weights")[..., :rows, :columns]
            for layer, (rows, columns) in enumerate(self.program.shapes)
        ]
        return torch.cat([part.flatten(-2) for part in parts], dim=-1)

    def predictions(self, weights: Parameters) -> Predictions:
        """The last outputs of forward blocks that start from the trained weights."""
        queries, size = self.task.queries, self.program.batch_size
        if not self.task.n_queries:
            return self.task.y[..., :0, :].clone()
        groups = [self._forward(weights, group) for group in queries.split(size, dim=-2)]
        return torch.cat(groups, dim=-2)

    def _forward(self, weights: Parameters, group: Tensor) -> Tensor:
        """The outputs at up to `batch_size` queries."""
        blocks, mask = self.initial(weights), self.program.mask
        inputs = self.inputs(group)
        for step in mask.walk(1, mask.depth):
            near, far = step.blocks(blocks, inputs, inputs)
            blocks[step.number] = self.generator.step(near, far, step.number, at_queries=True)
        outputs = self.generator.row(blocks[mask.depth], "first").mT
        return outputs[..., : group.shape[-2], : self.task.y.shape[-1]]
