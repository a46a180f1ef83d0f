r"""Instructions for classes: the shares softmax(z) of classes with the scores z.

A softmax head needs nothing but a token for each class, with its score: it returns the shares
themselves. A layer of ReLUs has them by differences: the share of class k is

    1 / sum_j exp(z_j - z_k),

which is an exponential for each pair of classes and a reciprocal for each class.
"""

from __future__ import annotations

from dataclasses import dataclass

from icgd.program.base import ProgramBase
from icgd.program.instructions import ONE, Instruction, LayerKind
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
