"""Programs: layers of instructions, which constructions build and all later stages use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import isnan
from typing import Any, TypeVar

from icgd.errors import UnknownNameError
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum, RidgeSum
from icgd.program.instructions import Instruction, LayerKind
from icgd.program.layout import Layout
from icgd.program.meaning import StackDomain, Value
from icgd.program.wires import Heads, Units, merged

AnyFunction = TypeVar("AnyFunction", bound=Function)
AnyInstruction = TypeVar("AnyInstruction", bound=Instruction)


@dataclass(frozen=True)
class Layer:
    """Instructions that run in parallel, in one layer of the transformer."""

    title: str
    instructions: tuple[Instruction, ...]

    @property
    def kind(self) -> LayerKind:
        return self.instructions[0].kind

    def wires(self, program: AbstractProgram) -> tuple[Heads | Units, ...]:
        """Return the layer's heads or hidden units, instruction by instruction.

        Heads of several instructions that have equal scores may be merged.
        """
        families: list[Heads | Units] = []
        for instruction in self.instructions:
            wiring = instruction.wires(program)
            families += [wiring] if isinstance(wiring, Heads | Units) else wiring
        heads = [family for family in families if isinstance(family, Heads)]
        return merged(heads, program.layout) if len(heads) > 1 else tuple(families)

    def written(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        """Return the values of the slots that it writes; its instructions read the old values."""
        written: dict[str, Value] = {}
        for instruction in self.instructions:
            written |= instruction.meaning(slots, domain)
        return written

    def label_of(self, program: AbstractProgram, number: int) -> str:
        """Return the label of head or hidden unit `number`."""
        for family in self.wires(program):
            if number < family.size:
                return family.label_of(number)
            number -= family.size
        n_units = sum(family.size for family in self.wires(program))
        raise IndexError(
            f"Layer {self.title!r} has {n_units} heads or units, numbered from 0; there is no "
            f"number {n_units + number}."
        )


class AbstractProgram(ABC):
    """The base class of programs, which are final, frozen dataclasses.

    `layers` holds the layers that exist as weights, each once, however often it runs. They use the
    slots in `layout` and the functions in `functions`.
    """

    construction: str
    layout: Layout
    functions: tuple[Function, ...]
    n_steps: int
    layers: tuple[Layer, ...]

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return the facts that its repr and notebooks show: construction, steps and sizes."""

    @cached_property
    def largest_number(self) -> tuple[str, float]:
        """The place and the value of the largest number in size, or of the first NaN."""
        schedule = chain.from_iterable(getattr(self, "schedule", ()))
        # Steps of a schedule share layer objects: search each of them once.
        layers = {id(layer): layer for layer in (*self.layers, *schedule)}.values()
        parts: list[tuple[str, Instruction | Function]] = [
            (f"{type(instruction).__name__} in layer {layer.title!r}", instruction)
            for layer in layers
            for instruction in layer.instructions
        ]
        parts += [(f"function {function.name!r}", function) for function in self.functions]
        place, largest = "", 0.0
        for name, part in parts:
            for field, number in _numbers(part):
                if not abs(number) <= abs(largest):  # larger, or NaN
                    place, largest = f"{field} of {name}", number
                    if isnan(number):
                        return place, number
        return place, largest

    def first(self, kind: type[AnyInstruction]) -> AnyInstruction | None:
        """Return the first instruction of a type, or None."""
        instructions = (instruction for layer in self.layers for instruction in layer.instructions)
        return next(
            (instruction for instruction in instructions if isinstance(instruction, kind)), None
        )

    def function(self, name: str, kind: type[AnyFunction]) -> AnyFunction:
        """Return the function of a type that is called `name`."""
        candidates = [function for function in self.functions if isinstance(function, kind)]
        for function in candidates:
            if function.name == name:
                return function
        names = [function.name for function in candidates]
        raise UnknownNameError.of("function of the program", name, known=names)

    def relu_sum(self, name: str) -> ReluSum:
        return self.function(name, ReluSum)

    def look_up(self, name: str) -> LatticeFunction:
        return self.function(name, LatticeFunction)

    def grid_mean(self, name: str) -> GridMean:
        return self.function(name, GridMean)

    def ridge_sum(self, name: str) -> RidgeSum:
        return self.function(name, RidgeSum)

    @property
    @abstractmethod
    def layers_in_words(self) -> str:
        """The number of layers and of their uses, in words."""

    @property
    @abstractmethod
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the trained weights; empty if the program trains a function."""

    @property
    @abstractmethod
    def traceable(self) -> tuple[str, ...]:
        """The names of the slots or rows that a run can record."""

    @property
    @abstractmethod
    def n_examples(self) -> int | None:
        """The number of examples that a prompt must have, or None if any number is allowed."""

    @property
    @abstractmethod
    def has_kinks(self) -> bool:
        """Whether a unit may lie on a kink, where a ramp approximates the jump of its slope."""

    @abstractmethod
    def ramps(
        self, derivative: str, jumps: Mapping[str, float] | None = None
    ) -> tuple[tuple[float, float], ...]:
        """Return the intervals in which the approximation of a slope with jumps is between levels.

        Units approximate the function called `derivative` itself, sums of ReLUs its jumps: `jumps`
        maps the names of their step functions to their places.
        """

    @property
    @abstractmethod
    def can_go_on(self) -> bool:
        """Whether a run can be resumed from its weights after some steps.

        It cannot if steps differ, because every run starts with the first one.
        """

    @abstractmethod
    def next_example(self, n_steps: int, n_examples: int) -> int | None:
        """Return the first example of the step after `n_steps`, or None if steps use all."""

    @abstractmethod
    def listing(self) -> str:
        """Return the program as text to read: slots, functions, then every layer."""

    @abstractmethod
    def to_data(self) -> dict[str, Any]:
        """Return the program as data that JSON can hold."""


def _numbers(part: object, field: str = "") -> Iterator[tuple[str, float]]:
    """Yield the floats in a dataclass, each with the name of its field.

    For a row of floats, such as the knots of a function, yield only the largest in size, or a NaN.
    """
    if isinstance(part, float):
        yield field, part
    elif isinstance(part, tuple):
        if row := [entry for entry in part if isinstance(entry, float)]:
            yield field, next(filter(isnan, row), max(row, key=abs))
        for entry in part:
            if not isinstance(entry, float):
                yield from _numbers(entry, field)
    elif is_dataclass(part):
        for name in _names(part.__class__):
            yield from _numbers(getattr(part, name), name)


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, cached: schedules have many parts of few types."""
    return tuple(field.name for field in fields(kind))
