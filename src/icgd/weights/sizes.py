"""How large an instruction becomes as heads or hidden units: counted, never built."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from icgd.errors import ProgramError
from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    Instruction,
    LayerKind,
    MapSlots,
    MultiplySlots,
    PullBack,
    WipeSlots,
)
from icgd.program.program import Layer, StackProgram


@dataclass(frozen=True)
class InstructionSize:
    """`units` heads of `width` features each (attention, product), or hidden units (MLP)."""

    units: int
    width: int
    nonzeros: int


@dataclass(frozen=True)
class LayerSize:
    """The size of one layer of the transformer."""

    title: str
    kind: LayerKind
    d_model: int
    units: int
    width: int
    nonzeros: int

    @property
    def n_heads(self) -> int:
        return 0 if self.kind is LayerKind.MLP else self.units

    @property
    def parameters(self) -> int:
        if self.kind is LayerKind.MLP:
            return self.units * (2 * self.d_model + 1)
        return 4 * self.units * self.d_model * self.width

    def flops(self, n_tokens: int) -> int:
        """Multiplications and additions of the dense layer on `n_tokens` tokens."""
        projections = 2 * n_tokens * self.parameters
        if self.kind is LayerKind.ATTENTION:
            return projections + 4 * self.units * n_tokens**2 * self.width
        if self.kind is LayerKind.PRODUCT:
            return projections + 3 * self.units * n_tokens * self.width
        return projections


def layer_size(layer: Layer, program: StackProgram) -> LayerSize:
    """Heads of one layer share the width of the widest."""
    sizes = [instruction_size(instruction, program) for instruction in layer.instructions]
    return LayerSize(
        title=layer.title,
        kind=layer.kind,
        d_model=program.layout.width,
        units=sum(size.units for size in sizes),
        width=max(size.width for size in sizes),
        nonzeros=sum(size.nonzeros for size in sizes),
    )


@singledispatch
def instruction_size(instruction: Instruction, program: StackProgram) -> InstructionSize:
    """Heads or hidden units, their width and their non-zero weights."""
    raise ProgramError.broken(type(instruction).__name__, "has no size rule in weights/sizes.py")


def _nonzero_inputs(function: ReluSum, n_arguments: int) -> int:
    """Non-zero weights and biases with which the terms read `n_arguments` features."""
    terms = function.terms()
    scaled = sum(term.scale != 0.0 for term in terms)
    shifted = sum(term.shift != 0.0 for term in terms)
    return scaled * n_arguments + shifted


@instruction_size.register
def _(instruction: ApplyUnits, program: StackProgram) -> InstructionSize:
    function = program.function(instruction.function)
    n_units, fan_in = program.layout.slot(instruction.weights).shape
    n_terms = len(function.terms())
    keys_values_outputs = n_terms * (fan_in + 3)
    nonzeros = n_units * (_nonzero_inputs(function, fan_in) + keys_values_outputs)
    return InstructionSize(n_units * n_terms, fan_in + 1, nonzeros)


@instruction_size.register
def _(instruction: AccumulateOuterProduct, program: StackProgram) -> InstructionSize:
    rows, columns = program.layout.slot(instruction.write).shape
    return InstructionSize(2 * rows, columns, 2 * rows * (2 + 2 * columns))


@instruction_size.register
def _(instruction: PullBack, program: StackProgram) -> InstructionSize:
    rows, columns = program.layout.slot(instruction.weights).shape
    return InstructionSize(columns, rows, columns * (2 * rows + 2))


@instruction_size.register
def _(instruction: MultiplySlots, program: StackProgram) -> InstructionSize:
    width = program.layout.slot(instruction.write).width
    return InstructionSize(width, 1, 4 * width)


@instruction_size.register
def _(instruction: MapSlots, program: StackProgram) -> InstructionSize:
    width = program.layout.slot(instruction.write).width
    units, nonzeros = 0, 0
    for summand in instruction.summands:
        function = program.function(summand.function)
        n_terms = len(function.terms())
        units += width * n_terms
        gates_and_outputs = 2 * n_terms
        nonzeros += width * (_nonzero_inputs(function, len(summand.slots)) + gates_and_outputs)
    return InstructionSize(units, 1, nonzeros)


@instruction_size.register
def _(instruction: ClipSlots, program: StackProgram) -> InstructionSize:
    width = sum(program.layout.slot(name).width for name in instruction.slots)
    return InstructionSize(2 * width, 1, 6 * width)


@instruction_size.register
def _(instruction: WipeSlots, program: StackProgram) -> InstructionSize:
    width = sum(program.layout.slot(name).width for name in instruction.slots)
    return InstructionSize(2 * width, 1, 4 * width)
