"""The enclosures of a stream: what stands in every slot before a layer reads it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from icgd.backends.prompt import split_parameters
from icgd.certificates.bounds import Moment, State, apart_by, drift_of
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import propagate
from icgd.certificates.unit_bounds import left_over
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters

Data = dict[str, Interval]
"""Where what the prompt says of examples or queries lies, by slot."""


@dataclass(frozen=True)
class Streams:
    """Carries enclosures of a program's slots through its layers, computed as `how` says."""

    program: StackProgram
    how: Arithmetic

    @property
    def have_copies(self) -> bool:
        """Whether registers hold copies of the weights, each of which is rounded on its own."""
        return self.how.sums_terms and self.program.n_registers > 0

    def after(
        self,
        layers: tuple[Layer, ...],
        data: Data,
        weights: Enclosure,
        drift: Parameters,
    ) -> State:
        """All slots after `layers`, from inputs, labels and rates and from weights in one vector.

        Copies of the weights in the registers, if there are any, may lie `drift` apart.
        """
        return propagate(self.start(data, weights, drift), layers)

    def start(self, data: Data, weights: Enclosure, drift: Parameters) -> Moment:
        """What the first layer finds."""
        return Moment(self.program, self._before(data, weights, drift), self.how)

    def _before(self, data: Data, weights: Enclosure, drift: Parameters) -> State:
        layout, x = self.program.layout, data["x"]
        slots: State = {name: Enclosure.common(column) for name, column in data.items()}
        slots |= split(layout, weights)
        if self.have_copies:
            apart = split_parameters(layout, drift)
            slots |= {drift_of(name): apart_by(matrix) for name, matrix in apart.items()}
            slots |= {drift_of(name): apart_by(zero) for name, zero in self._shared(x).items()}
        slots |= {name: apart_by(zero) for name, zero in self._shared(x).items()}
        left = left_over(self.program, self.how)
        for slot in layout.having(Role.SCRATCH):
            zeros = x.low.new_zeros(*x.low.shape[:-1], slot.width)
            slots[slot.name] = apart_by(zeros + left[slot.name])
        return slots

    def _shared(self, x: Interval) -> dict[str, Tensor]:
        """Zeros for each slot that all tokens share; tasks and steps are leading axes."""
        leading = x.low.shape[:-2]
        shared = self.program.layout.having(Role.SHARED)
        return {slot.name: x.low.new_zeros(*leading, *slot.shape) for slot in shared}


def split(layout: Layout, weights: Enclosure) -> State:
    """The vector of all weights as the layout's matrix slots."""
    start, parts = 0, dict[str, Enclosure]()
    for slot in layout.having(Role.PARAMETER):
        take = partial(_matrix, start=start, slot=slot)
        parts[slot.name], start = weights.mapped(take), start + slot.width
    return parts


def _matrix(vector: Tensor, start: int, slot: Slot) -> Tensor:
    matrix: Tensor = vector[..., start : start + slot.width].unflatten(-1, slot.shape)
    return matrix
