r"""wang-resources: parameter matrices against error, for shallow and deep networks.

The figure shows the theorems (`resources.py`) and a measurement. Networks of 2 and of 3 layers
learn the indicator of a ball, all with the same method, budget and number of starts
(`wang_training.py`). The smallest width of the list whose best start comes below an error is the
width that was found to suffice; a narrower network may do with other starts. Every construction
that accepts a network of that width compiles it; its matrices are the heads of all layers of one
training step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import final

from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import SettingError
from icgd.pictures.plotting import Figure
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.weights.sizes import Summary as Size
from icgd_papers.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.studies import wang_picture
from icgd_papers.studies.ball import LARGEST_RADIUS
from icgd_papers.studies.wang_fitting import Budget
from icgd_papers.studies.wang_training import Outcome, Study
from icgd_papers.studies.wang_widths import (
    DEEP,
    DEPTHS,
    ERRORS,
    SHALLOW,
    dimensions,
    suffices,
    table,
)

STEP_SIZE = 0.1
"""The step size of the compiled gradient step; sizes do not depend on it."""


@dataclass(frozen=True)
class Sizes:
    """Which networks are trained; those of 3 layers reach all errors with less width."""

    dimensions: tuple[int, ...]
    shallow_widths: tuple[int, ...]
    deep_widths: tuple[int, ...]
    budget: Budget

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The depth and the width of each network."""
        widths = {SHALLOW: self.shallow_widths, DEEP: self.deep_widths}
        return [(depth, width) for depth in DEPTHS for width in widths[depth]]


def _doubled(least: int, most: int) -> tuple[int, ...]:
    """The widths least, 2 least, 4 least, ..., most."""
    return tuple(least * 2**k for k in range((most // least).bit_length()))


PRESETS = {
    "smoke": Sizes((2, 3), (4, 8), (4, 8), Budget(400, 200, 500, 2, 3)),
    "laptop": Sizes(
        tuple(range(2, 9)), _doubled(4, 64), _doubled(4, 16), Budget(32_000, 8000, 100_000, 3, 100)
    ),
    "paper": Sizes(
        tuple(range(2, 17)),
        _doubled(2, 256),
        _doubled(2, 64),
        Budget(200_000, 20_000, 1_000_000, 10, 300, least_decrease=0.001),
    ),
}
"""The paper has no experiment; the preset `paper` is what more time can buy."""


@final
class ResourceFigure(AbstractReproduction[Study, Outcome]):
    """Theorems 3 and 4, widths found to suffice, and the transformers that train them."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Every dimension with every depth and width, from every start."""
        sizes = preset_of(PRESETS, preset)
        starts = range(sizes.budget.n_starts)
        return [
            Study(dimension, depth, width, start, seed, sizes.budget)
            for dimension, (depth, width), start in product(sizes.dimensions, sizes.shapes, starts)
        ]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each start; one for each construction if it is the best of such a width."""
        measured = [_measured(*pair) for pair in zip(studies, outcomes, strict=True)]
        found: list[Row] = []
        for study, row in zip(studies, measured, strict=True):
            is_compiled = suffices(row, measured)
            sizes = compiled_sizes(study, number(row, "largest_weight")) if is_compiled else ()
            found += [{**row, **size} for size in sizes] or [row]
        return found

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The widths found to suffice in each dimension, and matrices, for 2 / 3 layers."""
        return table(rows, dimensions(rows), ERRORS)

    def picture(self, rows: Sequence[Row]) -> Figure:
        """The two theorems above, the measured widths and matrices below."""
        return wang_picture.draw(rows)


def _measured(study: Study, outcome: Outcome) -> Row:
    """What training gave; the columns of the transformer are empty."""
    budget = study.budget
    return {
        "dimension": study.dimension,
        "depth": study.depth,
        "width": study.width,
        "start": study.start,
        "error": six_digits(outcome.error),
        "training_error": six_digits(outcome.training_error),
        "ended": outcome.ended,
        "iterations": outcome.n_iterations,
        "largest_slope": six_digits(outcome.largest_slope),
        "largest_weight": six_digits(outcome.largest_weight),
        "network_weights": study.target.n_parameters,
        "n_train": budget.n_train,
        "most_iterations": budget.n_iterations,
        **dict.fromkeys(("construction", "layers", "heads", "d_model", "nonzero_weights")),
    }


def compiled_sizes(study: Study, largest_weight: float) -> Iterator[Row]:
    """The sizes of the transformers that train this network, in a box that holds its weights.

    All constructions have their default accuracy; one that cannot reach it is left out.
    """
    update = GradientStep(STEP_SIZE, box=float(ceil(largest_weight)))
    problem = Problem(study.target, "squared", update, Domain(LARGEST_RADIUS, 1.0))
    for name, construction in CONSTRUCTIONS.items():
        if construction.why_not(problem) is not None:
            continue
        try:
            size = compile(problem, n_steps=1, construction=name).summary()
        except SettingError:  # such as a fit that would be too coarse in this box
            continue
        yield {"construction": name, **_counts(size)}


def _counts(size: Size) -> Row:
    """The sizes of one training step, without the layers that predict at the end."""
    block = size.layers[: size.layers_per_step]
    return {
        "layers": size.layers_per_step,
        "heads": sum(layer.n_heads for layer in block),
        "d_model": size.d_model,
        "nonzero_weights": sum(layer.nonzeros for layer in block),
    }


RESOURCES = ResourceFigure(
    name="wang-resources",
    place="Theorems 3 and 4, Section 4",
    shows="parameter matrices over error; widths for the indicator of a ball",
    laptop_time="7 minutes",
)
