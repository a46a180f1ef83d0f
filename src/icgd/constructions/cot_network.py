r"""cot-network: one softmax block, reused, trains an N-layer network by chain of thought.

The block is MLP - softmax attention - MLP, the same weights for all layers and both passes, so
that it does not grow with N. It is shown two blocks of the chain (`program/chain.py`) and writes
the next one. Blocks have the rows

              first      second         flat               weights                   flags
    F_i       o_i        o_{i-1}        relu(c - z_i) / c  W_i                       is_forward
    B_i       delta_i    W_i^T delta_i  0                  W_i - eta/2b delta o^T    is_backward
    X, Y      x or y     0              0                  0                         is_data

with a column of `first`, `second` and `flat` for each of the b examples of the round, and two flags
that travel with the weights: whether the layer is linear, and whether it has a kink.

    MLP         by the flags: inputs o_{i-1} or x, the weights, the outputs o_{i-1} that the
                gradient needs, and delta_i = r'(z_i) * W_{i+1}^T delta_{i+1}, or r' * 2 (o_N - y)
    attention   z = W o, delta o^T and W^T delta, one head for each entry, over a grid of tokens
                that a linear map along the sequence makes
    MLP         o = r(z), where r is flat, the clipped weights, and the flags of the new block

All widths are padded with zeros to the largest one; r(0) = 0 keeps padded units at 0. MLPs are
exact, so that only the grid errs, by rounding, and a unit on a kink: z in (0, c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import ClassVar

from icgd.approximation.lattice import identity, line_lattice
from icgd.constructions.base import AbstractConstruction, Precision
from icgd.constructions.parts.ranges import ROUNDING_ROOM, backward_ranges, ranges_on_domain
from icgd.problems.activations import IDENTITY, LEAKY_RELU, RELU
from icgd.problems.functions import KinkedFunction
from icgd.problems.problem import Problem
from icgd.program.chain import (
    FAR,
    IS_BACKWARD,
    IS_DATA,
    IS_FORWARD,
    NEAR,
    OUT,
    ChainProgram,
    row_of,
)
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    MarkFlat,
    MultiplyMatrices,
    PassBack,
)
from icgd.program.instructions import ONE, Combination, Instruction
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.registers import OFFSET, value_slot

KINKED = (RELU.name, LEAKY_RELU.name)
"""Activations with one kink, at 0, that keep 0 at 0."""

LARGEST_REACH = 2.0**12
"""Largest entry of a product that a grid covers: a run that leaves it is stopped. A head loses
about 1e-15 of the reach to rounding, and what a domain allows grows like its N-th power."""

KINK_WIDTH = 2.0**-30
"""Largest width of a kink. A narrow one loses no digits here; it is 1000 times what a head loses,
so that a unit at 0, behind units that are all flat, is flat too."""

GRID_HALF = 15
"""31 grid tokens: lines have full accuracy."""


class CotNetwork(AbstractConstruction):
    """2N blocks a round, all by the same three layers."""

    name: ClassVar[str] = "cot-network"
    takes_batches: ClassVar[bool] = True

    def objection(self, problem: Problem) -> str | None:
        if problem.gradient_step.batch_size is None:
            return (
                "its blocks have a column for each example of a round; give batch_size=1 for one "
                "example a round, or the number of all examples for all of them."
            )
        if problem.loss != "squared":
            return f"the slope of its loss is 2 (o - y), not that of the {problem.loss} loss."
        return _activation_problem(problem)

    def build(self, problem: Problem, *, n_steps: int, precision: Precision) -> ChainProgram:
        builder = _Builder.of(problem, precision)
        target = problem.network
        return ChainProgram(
            construction=self.name,
            rows=builder.rows(),
            layout=builder.layout(),
            functions=(identity(line_lattice(1.0, GRID_HALF)),),
            layers=builder.layers(),
            shapes=target.matrix_shapes,
            linear=tuple(
                target.layer_activation(layer).value == IDENTITY
                for layer in range(1, target.depth + 1)
            ),
            batch_size=builder.batch_size,
            n_steps=n_steps,
        )


def _kinked(problem: Problem) -> list[str]:
    """The activations of the target that are not linear, each once."""
    target = problem.network
    names = (target.layer_activation(layer).name for layer in range(1, target.depth + 1))
    return [name for name in dict.fromkeys(names) if name != IDENTITY.name]


def _activation_problem(problem: Problem) -> str | None:
    names = _kinked(problem)
    for name in names:
        if name not in KINKED:
            known = ", ".join((*KINKED, IDENTITY.name))
            return f"its MLP layers evaluate {known} exactly, and {name} is none of them."
    if len(names) > 1:
        return f"all layers share a block with one kinked activation, not {' and '.join(names)}."
    return None


@dataclass(frozen=True)
class _Builder:
    """The numbers that the layers are made from."""

    width: int
    batch_size: int
    leak: float
    step_size: float
    box: float
    kink_width: float
    forward_reach: float
    backward_reach: float
    gradient_reach: float
    gate: float

    @classmethod
    def of(cls, problem: Problem, precision: Precision) -> _Builder:
        update, target = problem.gradient_step, problem.network
        batch_size = update.batch_size or 1
        ranges = ranges_on_domain(problem, 0.0)
        backward = backward_ranges(problem, ranges, 0.0)
        gradient = batch_size * max(backward.deltas) * max(ranges.outputs)
        pulled_back = max(
            width * update.box * delta
            for width, delta in zip(target.widths[1:], backward.deltas, strict=True)
        )
        forward, back = _reach(max(ranges.preactivations)), _reach(pulled_back)
        outer = _reach(gradient)
        moved = update.box + update.step_size * outer
        largest = (problem.domain.x, 2 * (problem.domain.y + forward), back, moved, 1.0)
        return cls(
            width=max(target.widths),
            batch_size=batch_size,
            leak=_leak(problem),
            step_size=update.step_size,
            box=update.box,
            kink_width=min(precision.kink_width, KINK_WIDTH),
            forward_reach=forward,
            backward_reach=back,
            gradient_reach=outer,
            gate=2.0 ** (2 + ceil(log2(max(largest)))),
        )

    def rows(self) -> Layout:
        """The rows of every block."""
        return Layout(self._block(""))

    def layout(self) -> Layout:
        """The stream of one step: the blocks that it reads, what it computes, what it writes."""
        matrices = [("inputs", self._data), ("carried", self._data), ("weights", self._square)]
        matrices += [("delta", self._data), ("z", self._data), ("back", self._data)]
        matrices += [("outer", self._square)]
        flags = ("linear", "kinked", "forward", "backward")
        constants = (ONE, OFFSET, value_slot(IDENTITY.name))
        return Layout(
            (
                *self._block(f"{NEAR}."),
                *self._block(f"{FAR}."),
                *(Slot(name, shape, Role.SCRATCH) for name, shape in matrices),
                *(Slot(name, (1,), Role.SCRATCH) for name in flags),
                *self._block(f"{OUT}."),
                *(Slot(name, (1,), Role.CONSTANT) for name in constants),
            )
        )

    @property
    def _data(self) -> tuple[int, int]:
        return (self.width, self.batch_size)

    @property
    def _square(self) -> tuple[int, int]:
        return (self.width, self.width)

    def _block(self, prefix: str) -> tuple[Slot, ...]:
        flags = ("linear", "kinked", IS_FORWARD, IS_BACKWARD, IS_DATA)
        data = ("first", "second", "flat")
        return (
            *(Slot(prefix + name, self._data, Role.SCRATCH) for name in data),
            Slot(f"{prefix}weights", self._square, Role.PARAMETER),
            *(Slot(prefix + name, (1,), Role.SCRATCH) for name in flags),
        )

    def layers(self) -> tuple[Layer, ...]:
        """The three layers of the block."""
        return (
            Layer("router", self.router()),
            Layer("products", self.products()),
            Layer("next block", self.next_block()),
        )

    def router(self) -> tuple[Instruction, ...]:
        """What the layer of units is given: by the flags of the two blocks."""
        opposite, ends = (FAR_DATA,), (FAR_FORWARD, FAR_BACKWARD)
        return (
            self.copy(row_of(NEAR, "first"), FORWARD, "inputs"),
            self.copy(row_of(FAR, "first"), FROM_X, "inputs"),
            self.copy(row_of(FAR, "second"), BACKWARD, "carried"),
            self.copy(row_of(NEAR, "second"), FROM_Y, "carried"),
            *(
                self.copy(row_of(block, name), closed_by, name)
                for name in ("weights", "linear", "kinked")
                for block, closed_by in ((FAR, opposite), (NEAR, ends))
            ),
            self.pass_back(Combination.of(row_of(NEAR, "second")), FAR, BACKWARD),
            self.pass_back(
                Combination((row_of(NEAR, "first"), row_of(FAR, "first")), (2.0, -2.0)),
                NEAR,
                FROM_Y,
            ),
            self.copy(ONE, FORWARD, "forward"),
            self.copy(ONE, FROM_X, "forward"),
            self.copy(ONE, BACKWARD, "backward"),
            self.copy(ONE, FROM_Y, "backward"),
        )

    def products(self) -> tuple[Instruction, ...]:
        """z = W o, delta o^T and W^T delta."""
        return (
            MultiplyMatrices("weights", "inputs", self.forward_reach, "z"),
            MultiplyMatrices(
                "delta", "carried", self.gradient_reach, "outer", right_transposed=True
            ),
            MultiplyMatrices("weights", "delta", self.backward_reach, "back", left_transposed=True),
        )

    def next_block(self) -> tuple[Instruction, ...]:
        """The rows of the block that the step writes."""
        share = -self.step_size / (2 * self.batch_size)
        moved = Combination(("weights", "outer"), (1.0, share))
        out = {name: row_of(OUT, name) for name in self.rows().names}
        no_forward, no_backward = ("forward",), ("backward",)
        return (
            ActivateWhere("z", "kinked", no_backward, self.leak, self.gate, out["first"]),
            self.copy("delta", no_forward, out["first"]),
            self.copy("inputs", no_backward, out["second"]),
            self.copy("back", no_forward, out["second"]),
            MarkFlat("z", "linear", no_backward, self.kink_width, self.gate, out["flat"]),
            self.copy("weights", no_backward, out["weights"]),
            CopyWhere(moved, no_forward, self.gate, out["weights"], self.box),
            self.copy("linear", (), out["linear"]),
            self.copy("kinked", (), out["kinked"]),
            self.copy("forward", (), out[IS_FORWARD]),
            self.copy("backward", (), out[IS_BACKWARD]),
        )

    def copy(self, source: str, closed_by: Sequence[str], write: str) -> CopyWhere:
        return CopyWhere(Combination.of(source), tuple(closed_by), self.gate, write)

    def pass_back(self, upstream: Combination, block: str, closed_by: Sequence[str]) -> PassBack:
        flat = row_of(block, "flat")
        return PassBack(upstream, flat, tuple(closed_by), self.leak, self.gate, "delta")


NEAR_FORWARD, NEAR_BACKWARD = row_of(NEAR, IS_FORWARD), row_of(NEAR, IS_BACKWARD)
FAR_FORWARD, FAR_BACKWARD = row_of(FAR, IS_FORWARD), row_of(FAR, IS_BACKWARD)
FAR_DATA = row_of(FAR, IS_DATA)

FORWARD = (NEAR_BACKWARD, FAR_DATA)
BACKWARD = (NEAR_FORWARD, FAR_DATA)
FROM_X = (NEAR_FORWARD, FAR_FORWARD, FAR_BACKWARD)
FROM_Y = (NEAR_BACKWARD, FAR_FORWARD, FAR_BACKWARD)
"""The flags that close what is meant for one kind of step: all are 0 on [F; B], [B; F], [B; X] and
[F; Y] in turn, and one is 1 on each of the other three."""


def _reach(size: float) -> float:
    return min(ROUNDING_ROOM * size, LARGEST_REACH)


def _leak(problem: Problem) -> float:
    """Slope of the activation below its kink; any will do if all layers are linear."""
    for name in _kinked(problem):
        value = problem.network.layer_activation(1).value
        if value.name != name:
            value = problem.network.layer_activation(problem.network.depth).value
        return value.slopes[0] if isinstance(value, KinkedFunction) else 0.0
    return 0.0
