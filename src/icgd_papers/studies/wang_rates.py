r"""wang-rates: how fast errors fall with heads (Theorem 1) and with units (Lemma 5).

Theorem 1 promises an error eps of a step with O(eps^-2) heads and hidden units, whatever the
activation. `recursion` is compiled with more and more units for each function, and the worst step
of its dense transformer measured. Lemma 5 is where the rate comes from: n units are within
C n^(-1/2) of a function. Its lottery is run, and a greedy choice of the same units beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from time import perf_counter
from typing import Any, final

from icgd.constructions.recursion import Recursion
from icgd.pictures.plotting import Figure
from icgd.pipeline import compile
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.studies import wang_rates_picture
from icgd_papers.studies.lottery import Lottery
from icgd_papers.studies.wang_rates_picture import DRAWN, GREEDY, HEADS
from icgd_papers.studies.wang_steps import STEP, tanh_problem, worst_step

WIDTHS = (2, 3, 1)
"""The network whose steps are measured."""


@dataclass(frozen=True)
class Budget:
    """The sizes along each curve: units of each function, and units of a sum.

    A sum of n units is drawn `n_repeats` times; the greedy sum chooses from `n_drawn` units.
    """

    units: tuple[int, ...]
    n_units: tuple[int, ...]
    n_repeats: int
    n_drawn: int


@dataclass(frozen=True)
class Sizes:
    """The activations of heads, the dimensions of Lemma 5, and how finely each is measured."""

    activations: tuple[str, ...]
    dimensions: tuple[int, ...]
    budget: Budget


PRESETS = {
    "smoke": Sizes(("relu",), (1, 2), Budget((24, 48), (1, 4), 2, 20)),
    "laptop": Sizes(
        ("relu", "elu", "softplus", "sigmoid"),
        (1, 4, 8),
        Budget((24, 48, 96, 192, 384, 768), (1, 4, 16, 64, 256), 20, 1000),
    ),
    "paper": Sizes(
        ("relu", "elu", "softplus", "gelu", "silu", "sigmoid", "tanh", "cos"),
        (1, 2, 4, 8, 16),
        Budget((24, 48, 96, 192, 384, 768, 1536), (1, 4, 16, 64, 256, 1024, 4096), 100, 10_000),
    ),
}
"""The paper has no experiment; the preset `paper` is what more time can buy."""


Point = tuple[int, float, float | None]
"""A size, the error there, and what is allowed."""


@dataclass(frozen=True)
class Outcome:
    """One curve: errors at some sizes, and what is allowed there, if that is a number."""

    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    allowed: tuple[float | None, ...]
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """One curve; its `case` is an activation of heads, or a dimension in words."""

    curve: str
    case: str
    seed: int
    budget: Budget

    def train(self, folder: Path | None = None) -> Outcome:
        """Measure the curve."""
        del folder  # a curve takes a minute at most, and begins again if interrupted
        began = perf_counter()
        points = {HEADS: self._heads, DRAWN: self._drawn, GREEDY: self._greedy}[self.curve]()
        sizes, errors, allowed = zip(*points, strict=True)
        return Outcome(sizes, errors, allowed, perf_counter() - began)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        sizes, errors, allowed = (tuple(data[name]) for name in ("sizes", "errors", "allowed"))
        return Outcome(sizes, errors, allowed, data["seconds"])

    @property
    def _lottery(self) -> Lottery:
        return Lottery(int(self.case))

    def _heads(self) -> list[Point]:
        """Heads and hidden units, and the worst |eps(w)|_2 over eta; Theorem 1 has no constant."""
        found: list[Point] = []
        for units in self.budget.units:
            construction = Recursion(units, self.case)
            compiled = compile(tanh_problem(WIDTHS), construction, n_steps=2)
            size = sum(layer.units for layer in compiled.summary().layers_of_a_step)
            found.append((size, worst_step(compiled, self.seed, "dense") / STEP, None))
        return found

    def _drawn(self) -> list[Point]:
        lottery, repeats = self._lottery, self.budget.n_repeats
        return [
            (n, lottery.drawn_distance(n, repeats, self.seed), lottery.constant / sqrt(n))
            for n in self.budget.n_units
        ]

    def _greedy(self) -> list[Point]:
        lottery, sizes = self._lottery, self.budget.n_units
        errors = lottery.greedy_distances(sizes, self.budget.n_drawn, self.seed)
        allowed = [lottery.constant / sqrt(n) for n in sizes]
        return list(zip(sizes, errors, allowed, strict=True))


@final
class RateFigure(AbstractReproduction[Study, Outcome]):
    """Errors against heads and against units, each beside what the paper promises."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        """A curve for each activation, and two for each dimension."""
        sizes = preset_of(PRESETS, preset)
        cases = [(HEADS, activation) for activation in sizes.activations]
        cases += [(curve, str(d)) for d in sizes.dimensions for curve in (DRAWN, GREEDY)]
        return [Study(curve, case, seed, sizes.budget) for curve, case in cases]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each point of each curve."""
        return [
            {
                "curve": study.curve,
                "case": study.case,
                "size": size,
                "error": six_digits(error),
                "allowed": None if allowed is None else six_digits(allowed),
            }
            for study, outcome in zip(studies, outcomes, strict=True)
            for size, error, allowed in zip(
                outcome.sizes, outcome.errors, outcome.allowed, strict=True
            )
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The first and the last point of each curve, and the bound at the last."""
        names = ("curve", "case", "size", "error", "bound at the end")
        return Summary(names, tuple(_ends(*pair) for pair in groups(rows, "curve", "case").items()))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Heads on the left, units on the right."""
        return wang_rates_picture.draw(rows)


def _ends(key: tuple[object, ...], rows: Sequence[Row]) -> tuple[str, ...]:
    first, last = rows[0], rows[-1]
    sizes = f"{number(first, 'size'):,.0f} to {number(last, 'size'):,.0f}"
    errors = f"{number(first, 'error'):.2g} to {number(last, 'error'):.2g}"
    bound = "-" if last["allowed"] is None else f"{number(last, 'allowed'):.2g}"
    return (*map(str, key), sizes, errors, bound)


RATES = RateFigure(
    name="wang-rates",
    place="Theorem 1 and Lemma 5",
    shows="errors over heads and over units, beside the promised rates",
    laptop_time="1 minute",
)
