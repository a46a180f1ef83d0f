r"""The fused generator runs a chain program without weights.

A block is its rows by name. A row that is the same number everywhere, such as a flag or zeros, is
kept as that number. So for two blocks of given kinds most of what the layers compute is known
before, and only the rest is performed: a block costs one or two products of matrices and a few
passes over their entries, O(b d^2), whatever N. There are four kinds of step, two of them in linear
layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor

from icgd.backends.chain_generator import AbstractGenerator, Row
from icgd.backends.operations import (
    GUARDS,
    LOOK_UPS,
    VIEWS,
    Function,
    Running,
    operation,
    table_of,
    view,
)
from icgd.backends.recorder import Constants, Op, Recording, recorded_block
from icgd.program.chain import FAR, NEAR, ChainProgram, bit_slots, row_of

Rows = Mapping[str, Row]


class FusedBlock(NamedTuple):
    """The rows of a block by name, and which of them are known without looking."""

    rows: Rows
    constants: Constants


class FusedGenerator(AbstractGenerator[FusedBlock]):
    """A generator that performs the recording of each kind of step."""

    name: ClassVar[str] = "fused"

    def __init__(self, program: ChainProgram, like: Tensor) -> None:
        super().__init__(program, like)
        self._plans: dict[tuple[Constants, Constants], _Plan] = {}
        self._code = {name for names in bit_slots(program.n_bits) for name in names}

    def encode(self, rows: Rows) -> FusedBlock:
        """A block of the prompt; bits of rules are matrices, so that one plan serves all rules."""
        coded = {name: self.expanded(rows[name], name) for name in self._code & rows.keys()}
        return _block(dict.fromkeys(self.program.rows.names, 0.0) | dict(rows) | coded)

    def step(
        self, near: FusedBlock, far: FusedBlock, number: int, *, at_queries: bool = False
    ) -> FusedBlock:
        key = (near.constants, far.constants)
        if key not in self._plans:
            self._plans[key] = _Plan(recorded_block(self.program, *key), self.program, self.like)
        plan, blocks = self._plans[key], {NEAR: near.rows, FAR: far.rows}
        values = plan.perform(blocks)
        for product, place in plan.guards:
            self.require_reach(product, values[place], number, at_queries=at_queries)
        rows = {
            name: source if isinstance(source, float) else values[source]
            for name, source in plan.outputs.items()
        }
        return FusedBlock(rows, plan.constants)

    def row(self, block: FusedBlock, name: str) -> Tensor:
        return self.expanded(block.rows[name], name)


class _Plan:
    """A recording whose operations have numbers, and the functions that perform them."""

    def __init__(self, recording: Recording, program: ChainProgram, like: Tensor) -> None:
        run = Running(program, {}, like)
        ops = [op for op in recording.ops if op.name != "fill"]
        places = {op: place for place, op in enumerate(ops)}
        names = {row_of(b, n): (b, n) for b in (NEAR, FAR) for n in program.rows.names}
        self.inputs = [(places[op], *names[op.options[0]]) for op in ops if op.name == "input"]
        self.calls = [
            (places[op], self._function(op, recording, run), [places[arg] for arg in op.args])
            for op in ops
            if op.name != "input"
        ]
        self.guards = [(op.options[0], places[op]) for op in ops if op.name == "guard_reach"]
        self.outputs = {
            name: op.options[0] if op.name == "fill" else places[op]
            for name, op in recording.outputs.items()
        }
        self.constants = tuple(n if isinstance(n, float) else None for n in self.outputs.values())
        self.n_values = len(ops)

    def _function(self, op: Op, recording: Recording, run: Running) -> Function:
        if op.name in (*VIEWS, *GUARDS):
            return lambda source: view(op, run, source)
        if op.name in LOOK_UPS:
            table, number = table_of(op, recording.ops, run)
            return lambda argument: table(argument, number)
        return operation(op, run)

    def perform(self, blocks: Mapping[str, Rows]) -> list[Tensor]:
        """The values of all operations, from the rows of the two blocks."""
        values: list[Tensor] = [None] * self.n_values  # type: ignore[list-item]
        for place, block, name in self.inputs:
            values[place] = blocks[block][name]  # type: ignore[assignment]
        for place, function, args in self.calls:
            values[place] = function(*[values[arg] for arg in args])
        return values


def _block(rows: Rows) -> FusedBlock:
    return FusedBlock(rows, tuple(row if isinstance(row, float) else None for row in rows.values()))
