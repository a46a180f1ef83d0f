"""Instructions of a step on a linear model that has momentum.

A slot of velocities beside the weights w holds their last change v. Whatever a layer adds to w it
adds to v too, but the first layer takes the old v away. So v is the change of w again when the step
ends, also through a soft threshold and a clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icgd.program.base import ProgramBase
from icgd.program.grid_instructions import FIRST_COLUMN, shrinking, shrunk, side_by_side
from icgd.program.instructions import ONE, Instruction, LayerKind
from icgd.program.meaning import Domain, Value
from icgd.program.uses import Changed
from icgd.program.wires import Heads, Wire, Wiring


@dataclass(frozen=True)
class MoveByVelocity(Instruction):
    """Move `slot` by `momentum` of its `velocity`, less `decay` times where it looks.

    velocity = momentum * velocity - decay * (slot + ahead * velocity)
    slot    += velocity

    It takes one head with one token, which is the first column.
    """

    slot: Changed
    velocity: Changed
    momentum: float
    ahead: float
    decay: float
    kind = LayerKind.GRID
    constants = (ONE,)

    @property
    def kept(self) -> float:
        """What is added of the velocity to the slot."""
        return self.momentum - self.decay * self.ahead

    def wires(self, program: ProgramBase) -> Wiring:
        """It reads weights and velocity of the first column, and adds to both."""
        width, kept, decay = program.layout.width_of(self.slot), self.kept, self.decay
        return (
            Heads(
                axes={},
                query=(Wire(ONE, feature=-1),),
                key=(),
                value=side_by_side((self.slot, self.velocity), program.layout),
                output=(
                    Wire(self.slot, ("entry",), "entry", -decay),
                    Wire(self.velocity, ("entry",), "entry", -decay),
                    Wire(self.slot, ("entry",), "entry", kept, width),
                    Wire(self.velocity, ("entry",), "entry", kept - 1, width),
                ),
                label=f"{self.slot} and {self.velocity}, moved on",
                grid=FIRST_COLUMN,
            ),
        )

    def formula(self) -> str:
        decay = f" - {self.decay:g} {self.slot}" if self.decay else ""
        moved = f"{self.velocity} = {self.kept:g} {self.velocity}{decay}"
        return f"{moved}; {self.slot} += {self.velocity}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        slot, terms = slots[self.slot], [(self.kept, slots[self.velocity])]
        velocity = domain.combine([*terms, (-self.decay, slot)] if self.decay else terms)
        return {self.velocity: velocity, self.slot: domain.add(slot, velocity)}


@dataclass(frozen=True)
class ShrinkMoved(Instruction):
    """Shrink every coordinate of `slot` by `threshold`, clip it, and add the change to `velocity`.

    It takes six ReLUs for each coordinate as `ShrinkSlot` does, and two if nothing is shrunk.
    """

    slot: Changed
    velocity: Changed
    threshold: float
    bound: float
    kind = LayerKind.MLP
    constants = (ONE,)

    def pieces(self) -> tuple[tuple[float, float], ...]:
        """For each pair of ReLUs, where it begins and its sign: the sum of -sign relu(w - begin)
        and its mirror image is added to the slot.
        """
        last = (self.threshold + self.bound, 1.0)
        return ((0.0, 1.0), (self.threshold, -1.0), last) if self.threshold else (last,)

    def wires(self, program: ProgramBase) -> Wiring:
        """The units of a soft threshold and of a clip; what they write, they write to both."""
        return shrinking(program.layout, self.slot, self.pieces(), self.velocity)

    def formula(self) -> str:
        shrunk = f"shrink {self.slot} by {self.threshold:g}, " if self.threshold else ""
        clipped = f"clip {self.slot} to [-{self.bound:g}, {self.bound:g}]"
        return f"{shrunk}{clipped}; {self.velocity} likewise"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        before, velocity = slots[self.slot], slots[self.velocity]
        after = shrunk(before, self.threshold, self.bound, domain)
        moved = domain.combine([(1.0, after), (-1.0, before)])
        return {self.slot: after, self.velocity: domain.add(velocity, moved)}
