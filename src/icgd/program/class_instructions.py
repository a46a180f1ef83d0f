r"""Instructions for classes: the shares softmax(z) of classes with the scores z.

A softmax head needs nothing but a token for each class, with its score: it returns the shares
themselves. A layer of ReLUs has them by differences: the share of class k is

    1 / sum_j exp(z_j - z_k),

which is an exponential for each pair of classes and a reciprocal for each class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icgd.program.base import ProgramBase
from icgd.program.instructions import ONE, Instruction, LayerKind
from icgd.program.meaning import NOWHERE, Domain, Value
from icgd.program.registers import IS_MEMORY, MASKED
from icgd.program.uses import Evaluated, Read, Written
from icgd.program.wires import Heads, Over, Units, Wire, Wiring


def class_slot(number: int) -> str:
    """The constant slot that is 1 in the token of a class, counted from 1."""
    return f"class_{number}"


@dataclass(frozen=True)
class ShareClasses(Instruction):
    """Set `write = softmax(scores)` at every token, with one head.

    Its keys are the tokens of the classes: slot `classes[k]` is 1 in that of class k, and 0 in all
    others. Other tokens are masked. The memory reads itself, and gets 0. It is exact.
    """

    scores: Read
    classes: tuple[Read, ...]
    write: Written
    kind = LayerKind.SOFTMAX
    constants = (ONE,)

    def wires(self, program: ProgramBase) -> Wiring:
        """Query [scores; 1], key [class; 0 at a class, -MASKED elsewhere], value the class.

        The memory reads itself, and has the value 0.
        """
        others, memory = len(self.classes), len(self.classes) + 1
        classes = tuple(Wire(name, feature=n) for n, name in enumerate(self.classes))
        return (
            Heads(
                axes={},
                query=(
                    Wire(self.scores, ("class",), "class"),
                    Wire(ONE, feature=others),
                    Wire(IS_MEMORY, feature=memory, factor=3 * MASKED),
                ),
                key=(
                    *classes,
                    Wire(ONE, feature=others, factor=-MASKED),
                    *(Wire(name, feature=others, factor=MASKED) for name in self.classes),
                    Wire(IS_MEMORY, feature=memory),
                ),
                value=classes,
                output=(Wire(self.write, ("class",), "class"),),
                label=f"{self.write}, the shares of all classes",
            ),
        )

    def formula(self) -> str:
        return f"{self.write} = softmax({self.scores})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        return {self.write: domain.softmax(slots[self.scores])}


@dataclass(frozen=True)
class MapDifferences(Instruction):
    """Set `write[k, j] = function(source[j] - source[k])` at every token."""

    source: Read
    function: Evaluated
    write: Written
    kind = LayerKind.MLP

    def wires(self, program: ProgramBase) -> Wiring:
        """relu(scale * (source[other] - source[class]) + shift) for every pair and piece."""
        n = program.layout.width_of(self.source)
        scale, shift, coefficient = program.relu_sum(self.function).pieces
        unlike = tuple(tuple(float(row != column) for column in range(n)) for row in range(n))
        differ = Over(("class", "other"), unlike)  # a score less itself needs no weight
        return (
            Units(
                axes={"class": n, "other": n, "piece": len(scale.numbers)},
                reads=(
                    Wire(self.source, ("other",), factor=(differ, scale)),
                    Wire(self.source, ("class",), factor=(-1.0, differ, scale)),
                ),
                shift=shift,
                writes=(Wire(self.write, (("class", "other"),), factor=coefficient),),
                label=f"{self.write}[{{class}}, {{other}}], piece {{piece}} of {self.function}",
            ),
        )

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.source}_j - {self.source}_k)"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        n_classes, source = domain.layout.width_of(self.source), slots[self.source]
        pairs = [(k, j) for k in range(n_classes) for j in range(n_classes)]
        # A score less itself is 0, exactly: so it is if both are taken as 0.
        own = domain.take(source, [k if k != j else NOWHERE for k, j in pairs])
        other = domain.take(source, [j if k != j else NOWHERE for k, j in pairs])
        apart = domain.combine([(1.0, other), (-1.0, own)])
        value = domain.apply(self.function, apart, by="mlp")
        return {self.write: domain.as_read(self, value, apart)}

    def own_error(self, bounds: Any, value: Any, apart: Any) -> Any:
        """None beyond that of the function, which rises from 0: so does its fit."""
        return value.at_least(-bounds.mlp_rounding(self.function, apart))


@dataclass(frozen=True)
class MapRowSums(Instruction):
    """Set `write[k] = function(sum_j source[k, j])` at every token.

    Where the source is capped, this changes what is written by at most `missed`.
    """

    source: Read
    function: Evaluated
    write: Written
    missed: float
    kind = LayerKind.MLP

    def wires(self, program: ProgramBase) -> Wiring:
        """relu(scale * sum_j source[class, j] + shift) for every class and piece."""
        n = program.layout.width_of(self.write)
        scale, shift, coefficient = program.relu_sum(self.function).pieces
        all_others = Over(("other",), (1.0,) * n)
        return (
            Units(
                axes={"class": n, "piece": len(scale.numbers)},
                reads=(Wire(self.source, (("class", "other"),), factor=(all_others, scale)),),
                shift=shift,
                writes=(Wire(self.write, ("class",), factor=coefficient),),
                label=f"{self.write}[{{class}}], piece {{piece}} of {self.function}",
            ),
        )

    def formula(self) -> str:
        return f"{self.write} = {self.function}(sum_j {self.source}_kj)"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        n_classes, source = domain.layout.width_of(self.write), slots[self.source]
        columns = [
            domain.take(source, [k * n_classes + j for k in range(n_classes)])
            for j in range(n_classes)
        ]
        total = domain.combine([(1.0, column) for column in columns])
        return {self.write: domain.as_read(self, domain.apply(self.function, total, by="mlp"))}

    def own_error(self, bounds: Any, value: Any) -> Any:
        """What a cap on the source misses: shares are smaller without it."""
        return value.lowered(self.missed)
