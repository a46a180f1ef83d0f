"""Programs: what a construction builds and every later stage reads."""

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
    """Instructions that run at the same time, in one layer of the transformer."""

    title: str
    instructions: tuple[Instruction, ...]

    @property
    def kind(self) -> LayerKind:
        return self.instructions[0].kind

    def wires(self, program: AbstractProgram) -> tuple[Heads | Units, ...]:
        """Return its heads or hidden units, those of one instruction after those of the other.

        Heads of several instructions that have equal scores may be the same heads.
        """
        families: list[Heads | Units] = []
        for instruction in self.instructions:
            wiring = instruction.wires(program)
            families += [wiring] if isinstance(wiring, Heads | Units) else wiring
        heads = [family for family in families if isinstance(family, Heads)]
        return merged(heads, program.layout) if len(heads) > 1 else tuple(families)

    def written(self, slots: Mapping[str, Value], domain: StackDomain[Value]) -> dict[str, Value]:
        """Return values of the slots that it writes: all its instructions read what was before."""
        written: dict[str, Value] = {}
        for instruction in self.instructions:
            written |= instruction.meaning(slots, domain)
        return written

    def label_of(self, program: AbstractProgram, number: int) -> str:
        """Return what head or hidden unit `number` is for."""
        for family in self.wires(program):
            if number < family.size:
                return family.label_of(number)
            number -= family.size
        raise IndexError(f"layer {self.title!r} has no head or unit of this number")


class AbstractProgram(ABC):
    """What every program says of itself. Subclasses are final, frozen dataclasses.

    `layers` holds the layers that exist as weights, each once, however often it runs. They work on
    the slots in `layout` and evaluate the functions in `functions`.
    """

    construction: str
    layout: Layout
    functions: tuple[Function, ...]
    n_steps: int
    layers: tuple[Layer, ...]

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return what the program shows of itself: its construction, its steps and its sizes."""

    @cached_property
    def largest_number(self) -> tuple[str, float]:
        """The number of the largest size, or the first that is NaN, with a name for it."""
        schedule = chain.from_iterable(getattr(self, "schedule", ()))
        # The steps of a schedule share the layers in which they do not differ.
        layers = {id(layer): layer for layer in (*self.layers, *schedule)}.values()
        parts = [
            (f"{type(instruction).__name__} in layer {layer.title!r}", instruction)
            for layer in layers
            for instruction in layer.instructions
        ]
        parts += [(f"function {function.name!r}", function) for function in self.functions]
        place, largest = "", 0.0
        for name, part in parts:
            for field, number in _numbers(part):
                if not abs(number) <= abs(largest):
                    place, largest = f"{field} of {name}", number
                    if isnan(number):
                        return place, number
        return place, largest

    def first(self, kind: type[AnyInstruction]) -> AnyInstruction | None:
        """Return the first instruction of a kind, or None."""
        instructions = (part for layer in self.layers for part in layer.instructions)
        return next((part for part in instructions if isinstance(part, kind)), None)

    def function(self, name: str, kind: type[AnyFunction]) -> AnyFunction:
        """Return the function of a kind that is called `name`."""
        candidates = [function for function in self.functions if isinstance(function, kind)]
        for function in candidates:
            if function.name == name:
                return function
        known = [function.name for function in candidates]
        raise UnknownNameError.of("function of the program", name, known=known)

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
        """How many layers there are, and how often they are used."""

    @property
    @abstractmethod
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the weights that it trains; empty if it trains a function."""

    @property
    @abstractmethod
    def traceable(self) -> tuple[str, ...]:
        """The names of what a run can record."""

    @property
    @abstractmethod
    def n_examples(self) -> int | None:
        """How many examples a prompt must have, or None if any number will do."""

    @property
    @abstractmethod
    def has_kinks(self) -> bool:
        """Whether a unit may lie on a kink, where a ramp stands in for the jump of its slope."""

    @abstractmethod
    def ramps(
        self, derivative: str, jumps: Mapping[str, float] | None = None
    ) -> tuple[tuple[float, float], ...]:
        """Return where the stand-in for a slope that jumps is between levels.

        Units stand in for the function called `derivative`, sums of ReLUs for its jumps: these are
        given by the names of their step functions, with their places.
        """

    @property
    @abstractmethod
    def can_go_on(self) -> bool:
        """Whether a new run that starts from the weights after some steps takes those that follow.

        It does not if steps differ, because it starts with the first one again.
        """

    @abstractmethod
    def next_example(self, n_steps: int, n_examples: int) -> int | None:
        """Return the example with which the step after `n_steps` begins, if a step does not use
        all.
        """

    @abstractmethod
    def listing(self) -> str:
        """Return the program as text to read: slots, functions, then every layer."""

    @abstractmethod
    def to_data(self) -> dict[str, Any]:
        """Return the program as data that JSON can hold."""


def _numbers(part: object, field: str = "") -> Iterator[tuple[str, float]]:
    """Yield the floats in a dataclass, each after the name of the field that it stands in.

    Of a row of floats, such as the knots of a function, only the largest is yielded, or a NaN.
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
    """Return the fields of a dataclass; a schedule asks for those of the same few classes very
    often.
    """
    return tuple(field.name for field in fields(kind))
