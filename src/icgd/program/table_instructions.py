"""Instructions of a table of whole steps: what it is asked with, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icgd.program.functions import ProgramBase
from icgd.program.instructions import (
    IS_QUERY,
    ONE,
    Combination,
    Instruction,
    LayerKind,
    MapSlots,
    Summand,
)
from icgd.program.meaning import Domain, Value
from icgd.program.registers import IS_REGISTER, MASKED
from icgd.program.uses import Changed, Evaluated, Written
from icgd.program.wires import Heads, Wire, Wiring, by_slot, relu_pairs


@dataclass(frozen=True)
class AverageExamples(Instruction):
    """Set `write = sum_t p_t value_t` at every token, where p = softmax(score) over the examples.

    It takes one head, which masks other tokens. The order of the examples does not matter.
    """

    score: Combination
    value: Combination
    write: Written
    kind = LayerKind.SOFTMAX

    def wires(self, program: ProgramBase) -> Wiring:
        """Query 1, key the score, which is lowered at other tokens, value every coordinate."""
        score, value = by_slot(self.score.terms()), by_slot(self.value.terms())
        others = [flag for flag in (IS_QUERY, IS_REGISTER) if flag in program.layout.names]
        return (
            Heads(
                axes={},
                query=(Wire(ONE),),
                key=(
                    *(Wire(slot, factor=factor) for slot, factor in score.items()),
                    *(Wire(flag, factor=-MASKED) for flag in others),
                ),
                value=tuple(Wire(s, ("entry",), "entry", factor) for s, factor in value.items()),
                output=(Wire(self.write, ("entry",), "entry"),),
                label=f"{self.write}, the mean of {self.value.formula()}",
            ),
        )

    def formula(self) -> str:
        weights = f"softmax({self.score.formula()})"
        return f"{self.write} = mean({self.value.formula()}) weighted by {weights}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        score, value = self.score.value(slots, domain), self.value.value(slots, domain)
        return {self.write: domain.average_examples(score, value)}


@dataclass(frozen=True)
class LookUpStep(Instruction):
    """Set the weight `write` to `table(key)`: one gradient step, found in a table.

    The key encodes the weight w and `n_examples` examples (x, y), each divided by its entry of
    `ranges` and rounded to a level; slots `levels` hold the rounded numbers. For every key the
    table holds w + scale * mean(s x), clipped to +-bound, with s = r'(w x) u(r(w x), y), where r is
    the `activation` and u the slope of the `loss`. A step is exact for the levels, so its error is
    what rounding to them changes.
    """

    key: Combination
    table: Evaluated
    levels: tuple[str, str, str]
    ranges: tuple[float, float, float]
    activation: str
    loss: str
    scale: float
    bound: float
    n_examples: int
    write: Changed
    kind = LayerKind.MLP

    @property
    def addition(self) -> MapSlots:
        """The instruction that adds the new weight after the old one is wiped."""
        return MapSlots((Summand(self.key, self.table),), ONE, (), 0.0, self.write)

    def wires(self, program: ProgramBase) -> Wiring:
        """The table's units, and two units that take the old weight away."""
        wiped = relu_pairs(program.layout, (self.write,), "wipe")
        return (*self.addition.wires(program), *wiped)

    def formula(self) -> str:
        return f"{self.write} = {self.table}({self.key.formula()}), of {self.n_examples} examples"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        key = self.key.value(slots, domain)
        return {self.write: domain.step_from_table(self, key, slots)}
