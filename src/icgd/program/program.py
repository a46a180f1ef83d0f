"""Programs: what a construction builds and every later stage reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from icgd.errors import UnknownNameError
from icgd.program.functions import ReluSum
from icgd.program.instructions import Instruction, LayerKind
from icgd.program.layout import Layout


@dataclass(frozen=True)
class Layer:
    """Instructions that run at the same time, in one layer of the transformer."""

    title: str
    instructions: tuple[Instruction, ...]

    @property
    def kind(self) -> LayerKind:
        return self.instructions[0].kind


@dataclass(frozen=True)
class StackProgram:
    """A block of layers, repeated once for each training step, and layers that predict."""

    construction: str
    layout: Layout
    functions: tuple[ReluSum, ...]
    block: tuple[Layer, ...]
    n_steps: int
    prediction: tuple[Layer, ...]

    @property
    def n_layers(self) -> int:
        """Layers of the whole transformer, repetitions counted."""
        return len(self.block) * self.n_steps + len(self.prediction)

    def function(self, name: str) -> ReluSum:
        """The program's stand-in for the function called `name`."""
        for function in self.functions:
            if function.name == name:
                return function
        known = [function.name for function in self.functions]
        raise UnknownNameError.of("function of the program", name, known=known)

    def unrolled(self) -> Iterator[Layer]:
        """All layers in the order in which they run."""
        for _ in range(self.n_steps):
            yield from self.block
        yield from self.prediction
