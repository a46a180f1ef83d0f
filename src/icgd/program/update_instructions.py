r"""Instructions of optimisers: slots become combinations of slots, and batches take turns.

A step of an optimiser is linear in weights, gradient and state, but for squares and roots, which
other instructions have. An MLP layer does the linear part exactly, whatever the slots hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icgd.program import instructions
from icgd.program.base import ProgramBase
from icgd.program.instructions import (
    IS_EXAMPLE,
    ONE,
    Combination,
    Instruction,
    LayerKind,
)
from icgd.program.meaning import Domain, Value
from icgd.program.uses import Changed, Read
from icgd.program.wires import SIGN, Units, Wire, Wiring, by_slot

N_EXAMPLES = "n_examples"
"""The slot that holds the number of examples in every token."""

PLACE, OUT_OF_BATCH = "place", instructions.OUT_OF_BATCH
"""How many examples come before this one until its batch begins, and whether it has to wait."""

LARGEST_COUNT = 2.0**20
"""No prompt has as many examples; float32 counts exactly to more than twice as many."""


@dataclass(frozen=True)
class Assignment:
    """`write = value`, clipped to [-bound, bound] if there is a bound, and maybe averaged.

    Then slot `average` keeps a share `keeps` of what it holds; the rest is the new `write`.
    """

    value: Combination
    write: Changed
    bound: float | None = None
    average: Changed | None = None
    keeps: float = 0.0

    def formula(self) -> str:
        value = self.value.formula()
        if self.bound is not None:
            value = f"clip({value}, {self.bound:g})"
        found = f"{self.write} = {value}"
        if self.average is not None:
            mean = Combination((self.average, self.write), (self.keeps, 1.0 - self.keeps))
            found = f"{found}, {self.average} = {mean.formula()}"
        return found

    @property
    def shares(self) -> dict[str, float]:
        """The slots that change, and which share of each becomes the new value."""
        own = {self.write: 1.0}
        return own if self.average is None else own | {self.average: 1.0 - self.keeps}

    def change(self, write: str) -> dict[str, float]:
        """What is added to a slot that changes, before it is clipped, without terms that are 0."""
        share, terms = self.shares[write], dict[str, float]()
        for slot, factor in (*self.value.terms(), (write, -1.0)):
            terms[slot] = terms.get(slot, 0.0) + share * factor
        return {slot: factor for slot, factor in terms.items() if factor != 0.0}


@dataclass(frozen=True)
class Recombine(Instruction):
    """Set slots to combinations of what they and others hold, all at once. It is exact.

    With d = value - write, that is write + relu(d) - relu(-d); and for a bound b, times slot
    `unit`, - relu(value - b) + relu(-value - b). An average moves by its share of the same.
    """

    assignments: tuple[Assignment, ...]
    unit: Read
    kind = LayerKind.MLP

    def wires(self, program: ProgramBase) -> Wiring:
        """+-relu(+-d), then -+relu(+-value - bound * unit), for every coordinate."""
        families = []
        for part in self.assignments:
            for write, share in part.shares.items():
                kinds: list[tuple[str, dict[str, float], float, tuple[Wire, ...]]] = []
                if change := part.change(write):
                    kinds.append(("change", change, 1.0, ()))
                if part.bound is not None:
                    bound = Wire(self.unit, factor=-part.bound)
                    kinds.append(("clip", by_slot(part.value.terms()), -share, (bound,)))
                for kind, terms, gain, lowered_by in kinds:
                    read = (Wire(s, ("k",), factor=(c, SIGN)) for s, c in terms.items())
                    families.append(
                        Units(
                            axes={"sign": 2, "k": program.layout.width_of(write)},
                            reads=(*read, *lowered_by),
                            shift=0.0,
                            writes=(Wire(write, ("k",), factor=(gain, SIGN)),),
                            label=f"{kind} {write}[{{k}}], relu({{sign}} d)",
                        )
                    )
        return tuple(families)

    def formula(self) -> str:
        unit = "" if self.unit == ONE else f", bounds times {self.unit}"
        return f"{', '.join(part.formula() for part in self.assignments)}{unit}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        written: dict[str, Value] = {}
        for part in self.assignments:
            value = part.value.value(slots, domain)
            written[part.write] = after = domain.replace(slots[part.write], value, part.bound)
            if part.average is not None:
                written[part.average] = domain.mix(slots[part.average], after, part.keeps)
        return written


@dataclass(frozen=True)
class TakeTurns(Instruction):
    r"""Count on to the next batch: of n examples, `batch_size` after the last ones, modulo n.

    An example whose place is r < b is in the batch. Then its place is r - b, or r - b + n if it was
    in the batch. The next batch has those with b <= r < 2b, and those with r < 2b - n. All numbers
    are whole, and [r < c] = relu(c - r) - relu(c - 1 - r) for whole numbers, so that nothing is
    rounded. Other tokens keep their zeros.
    """

    batch_size: int
    place: Changed
    waits: Changed
    n_examples: Read
    kind = LayerKind.MLP
    constants = (ONE, IS_EXAMPLE)

    def wires(self, program: ProgramBase) -> Wiring:
        """Units of one number; a gate closes them at tokens that are no examples."""
        place, waits, n, example = self.place, self.waits, self.n_examples, IS_EXAMPLE
        size, gate = float(self.batch_size), LARGEST_COUNT
        units: list[tuple[str, dict[str, float], str, float]] = [
            ("a batch further", {example: 1.0}, place, -size),
            ("round again", {n: 1.0, ONE: -gate, example: gate, waits: -gate}, place, 1.0),
            ("waits", {example: 1.0}, waits, 1.0),
            ("waited", {waits: 1.0}, waits, -1.0),
        ]
        brackets = {
            f"{place} < 2 b": (2 * size, 0.0, -1.0),
            f"{place} < b": (size, 0.0, 1.0),
            f"{place} < 2 b - n": (2 * size, -1.0, -1.0),
        }
        for label, (end, of_n, gain) in brackets.items():
            for below, sign in ((0.0, gain), (1.0, -gain)):
                read = {place: -1.0, ONE: end - below - gate, example: gate, n: of_n}
                units.append((f"{label}, relu of the end less {below:g}", read, waits, sign))
        return tuple(
            Units(
                axes={},
                reads=tuple(Wire(slot, factor=factor) for slot, factor in read.items()),
                shift=0.0,
                writes=(Wire(write, factor=gain),),
                label=f"{write}: {label}",
            )
            for label, read, write, gain in units
        )

    def formula(self) -> str:
        return f"{self.place} -= {self.batch_size}, modulo {self.n_examples}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        return domain.take_turns(self, slots)
