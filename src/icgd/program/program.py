"""Programs: what a construction builds and every later stage reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from icgd.errors import UnknownNameError
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum
from icgd.program.grid_instructions import DescendExamples
from icgd.program.instructions import Instruction, LayerKind, LookUpStep
from icgd.program.layout import Layout, Role
from icgd.program.registers import register_constants
from icgd.program.ridge import RidgeSum

AnyFunction = TypeVar("AnyFunction", ReluSum, LatticeFunction, GridMean, RidgeSum)


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
    """A block of layers, repeated, that performs the training steps, and layers that predict.

    A block performs one step, or `steps_per_block` of them if they differ from each other. A
    program whose functions are looked up has `n_registers` tokens in front of the examples.
    Attention that takes no softmax, and hidden units, apply the `activation`. Where the paper takes
    more layers for a step, `paper_layers` is how many, each of attention and an MLP. If the numbers
    in its heads suit the rounding of one dtype, it is `made_for` that one.
    """

    construction: str
    layout: Layout
    functions: tuple[Function, ...]
    block: tuple[Layer, ...]
    n_steps: int
    prediction: tuple[Layer, ...]
    steps_per_block: int = 1
    activation: str = "relu"
    paper_layers: int | None = None
    made_for: str | None = None

    @property
    def n_repeats(self) -> int:
        """How often the block runs."""
        return self.n_steps // self.steps_per_block

    @property
    def layers_per_step(self) -> int:
        return len(self.block) // self.steps_per_block

    @property
    def trains_function(self) -> bool:
        """Whether the stream holds no weights, but what is left to learn at every token."""
        return bool(self.layout.having(Role.RESIDUAL))

    @property
    def n_layers(self) -> int:
        """Layers of the whole transformer, repetitions counted."""
        return len(self.block) * self.n_repeats + len(self.prediction)

    @property
    def n_registers(self) -> int:
        return 2 * max((f.half for f in self.lattice_functions), default=-1) + 2

    @property
    def step_table(self) -> LookUpStep | None:
        """The look-up of whole steps, in a program that has one."""
        instructions = [part for layer in self.block for part in layer.instructions]
        return next((part for part in instructions if isinstance(part, LookUpStep)), None)

    @property
    def n_examples(self) -> int | None:
        """How many examples a prompt must have, in a program that is made for a number of them."""
        if self.step_table is not None:
            return self.step_table.n_examples
        return None if self.descent is None else self.descent.n_examples

    @property
    def descent(self) -> DescendExamples | None:
        """The step on a linear model, in a program that trains one."""
        instructions = [part for layer in self.block for part in layer.instructions]
        return next((part for part in instructions if isinstance(part, DescendExamples)), None)

    @property
    def lattice_functions(self) -> tuple[LatticeFunction, ...]:
        """The functions that are looked up."""
        return tuple(f for f in self.functions if isinstance(f, LatticeFunction))

    def registers(self) -> dict[str, tuple[float, ...]]:
        """What the registers hold at the start, besides the weights: a value each, by slot."""
        if not self.n_registers:
            return {}
        return register_constants(self.lattice_functions, self.n_registers // 2 - 1)

    def relu_sum(self, name: str) -> ReluSum:
        """The program's sum of ReLUs for the function called `name`."""
        return self._function(name, ReluSum)

    def look_up(self, name: str) -> LatticeFunction:
        """The program's look-up of the function called `name`."""
        return self._function(name, LatticeFunction)

    def grid_mean(self, name: str) -> GridMean:
        """The program's mean over tokens for the function called `name`."""
        return self._function(name, GridMean)

    def ridge_sum(self, name: str) -> RidgeSum:
        """The program's sum of units for the function called `name`."""
        return self._function(name, RidgeSum)

    def _function(self, name: str, kind: type[AnyFunction]) -> AnyFunction:
        candidates = [function for function in self.functions if isinstance(function, kind)]
        for function in candidates:
            if function.name == name:
                return function
        known = [function.name for function in candidates]
        raise UnknownNameError.of("function of the program", name, known=known)

    def unrolled(self) -> Iterator[Layer]:
        """All layers in the order in which they run."""
        for _ in range(self.n_repeats):
            yield from self.block
        yield from self.prediction
