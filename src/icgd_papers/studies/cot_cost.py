"""cot-cost: time, FLOPs and memory of a gradient step, as networks and chains grow.

cot says that its chain costs a factor N less than carrying all N weight matrices through every
layer. The figure measures the same step in relu-stack, softmax-stack and cot-network, dense and
fused, and a block of a chain that reads two blocks, or all. The paper has no experiment on this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, final

from icgd.pictures.plotting import Figure
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Row,
    Summary,
    groups,
    preset_of,
    six_digits,
)
from icgd_papers.studies import cot_cost_picture
from icgd_papers.studies.cost_cases import AbstractCase, Measured, Network, measure
from icgd_papers.studies.cost_chains import MEMORIES, READINGS, MemoryCase, ReadingCase
from icgd_papers.studies.cost_lines import exponents
from icgd_papers.studies.cost_steps import BACKENDS, VARIANTS, AbstractVariant, StepCase

AXES = ("depth", "width", "length", "wide box")
"""The depth N at one width, the width at one N, the chain's length, and N in a box of 1."""

WIDE_BOX = 1.0


@dataclass(frozen=True)
class Budget:
    """The sizes along each axis, what is fixed meanwhile, and how often everything is timed.

    Fused runs do not take the sizes in `counted_depths` and `counted_lengths`. Lengths are
    multiples of 4 `depth`, two rounds. Fused jobs have `n_layers` layers.
    """

    depths: tuple[int, ...]
    counted_depths: tuple[int, ...]
    widths: tuple[int, ...]
    lengths: tuple[int, ...]
    counted_lengths: tuple[int, ...]
    n_turns: int
    width: int = 8
    depth: int = 4
    n_examples: int = 8
    n_layers: int = 128
    dense_rounds: int = 2
    fused_rounds: int = 3

    @property
    def rounds(self) -> dict[str, int]:
        """How often each job is timed in a turn: fused jobs are short, dense ones take a second."""
        return {"dense": self.dense_rounds, "fused": self.fused_rounds}


PRESETS = {
    "smoke": Budget((2, 3), (4,), (2, 3), (24, 48), (96,), 1, 2, 2, 2, 4, 1, 1),
    "laptop": Budget(
        depths=(2, 4, 8, 16, 32, 64),
        counted_depths=(128, 256, 512),
        widths=(2, 4, 8, 16, 32, 64, 128, 256),
        lengths=(64, 256, 1024, 4096),
        counted_lengths=(16_384, 65_536),
        n_turns=4,
    ),
    "paper": Budget(
        depths=(2, 4, 8, 16, 32, 64, 128, 256),
        counted_depths=(512, 1024),
        widths=(2, 4, 8, 16, 32, 64, 128, 256, 512),
        lengths=(64, 256, 1024, 4096, 16_384),
        counted_lengths=(65_536,),
        n_turns=25,
    ),
}
"""The paper has no experiment; the preset `paper` is what more time can buy."""


@dataclass(frozen=True)
class Outcome:
    """What one turn measured of every case of an axis."""

    measured: tuple[Measured, ...]
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """All cases of an axis, timed alternately; each further turn times them again, later."""

    axis: str
    turn: int
    seed: int
    budget: Budget

    def cases(self) -> list[AbstractCase]:
        """The cases in the order in which they are timed."""
        if self.axis == "length":
            return self._chains()
        sizes = {
            "depth": (*self.budget.depths, *self.budget.counted_depths),
            "width": self.budget.widths,
            "wide box": self.budget.depths,
        }
        return [
            self._step(size, variant, backend)
            for size, variant, backend in product(sizes[self.axis], VARIANTS, BACKENDS)
            if self.axis != "wide box" or backend == "dense"
        ]

    def _step(self, size: int, variant: AbstractVariant, backend: str) -> StepCase:
        """A case, which is only counted in the wide box and beyond the depths that are run."""
        budget, is_box = self.budget, self.axis == "wide box"
        depth, width = (budget.depth, size) if self.axis == "width" else (size, budget.width)
        box = WIDE_BOX if is_box else None
        network = Network(depth, width, budget.n_examples, self.seed, box)
        is_run = not is_box and depth not in budget.counted_depths
        return StepCase(self.axis, size, variant, backend, network, budget.n_layers, is_run)

    def _chains(self) -> list[AbstractCase]:
        budget = self.budget
        network = Network(budget.depth, budget.width, budget.n_examples, self.seed)
        every = (*budget.lengths, *budget.counted_lengths)
        return [
            *(ReadingCase(size, reading, network) for size, reading in product(every, READINGS)),
            *(MemoryCase(size, kept, network) for size, kept in product(budget.lengths, MEMORIES)),
        ]

    def train(self, folder: Path | None = None) -> Outcome:
        """Measure the cases; work is counted in the first turn, because it never changes."""
        start = perf_counter()
        measured = measure(self.cases(), self.budget.rounds, is_counted=self.turn == 0)
        return Outcome(tuple(measured), perf_counter() - start)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return Outcome(tuple(Measured(**part) for part in data["measured"]), data["seconds"])


@final
class CostFigure(AbstractReproduction[Study, Outcome]):
    """What a gradient step costs, counted and measured."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Turn by turn, so that each axis is timed at several times of the day."""
        budget = preset_of(PRESETS, preset)
        turns = range(budget.n_turns)
        return [Study(axis, turn, seed, budget) for turn, axis in product(turns, AXES)]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each case, with the median of its turns."""
        found: list[Row] = []
        for axis, study in {study.axis: study for study in studies}.items():
            turns = [
                outcome.measured
                for other, outcome in zip(studies, outcomes, strict=True)
                if other.axis == axis
            ]
            of_cases = zip(study.cases(), zip(*turns, strict=True), strict=True)
            found += [_row(case, measured) for case, measured in of_cases]
        return found

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The exponents of every line, with the sizes to which they were fitted."""
        lines = groups(rows, "axis", "name", "backend")
        table = tuple(
            (str(axis), f"{name}, {backend}", *exponents(line))
            for (axis, name, backend), line in lines.items()
            if axis != "wide box"
        )
        return Summary(("over", "what", "time", "at", "FLOPs", "memory", "both at"), table)

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Time, FLOPs and memory along each axis."""
        return cot_cost_picture.draw(rows)


def _row(case: AbstractCase, turns: Sequence[Measured]) -> Row:
    counts, first = case.counts(), turns[0]
    seconds = [turn.seconds for turn in turns if turn.seconds is not None]
    return {
        "axis": case.axis,
        "size": case.size,
        "name": case.name,
        "backend": case.backend,
        "depth": case.network.depth,
        "width": case.network.width,
        "seconds": six_digits(median(seconds or (nan,))),
        "fastest_turn": six_digits(min(seconds, default=nan)),
        "slowest_turn": six_digits(max(seconds, default=nan)),
        "flops_counted": counts.flops if counts else None,
        "flops_measured": first.flops,
        "weights": counts.weights if counts else None,
        "bytes_counted": counts.bytes if counts else None,
        "bytes_measured": first.bytes,
        "why_not_measured": first.why_not,
    }


COST = CostFigure(
    name="cot-cost",
    place="Remark 4.1",
    shows="time, FLOPs and memory of a gradient step over depth, width, chain length",
    laptop_time="20 minutes",
)
