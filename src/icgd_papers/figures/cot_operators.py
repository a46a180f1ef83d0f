"""cot-fig2: operators that are learnt for a chain of thought, and the chain that they make.

Appendix D of cot trains a forward and a backward operator and shows their losses. It announces the
whole chain of 2NL blocks by the learnt operators, and does not show it. Here both are measured, for
the paper's architecture and for others that come nearer to the constructed block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import final

from icgd.pictures.plotting import Figure
from icgd_papers.figures import cot_operators_picture
from icgd_papers.figures.cot_operator_training import Budget, Chained, Learnt, Outcome, Study
from icgd_papers.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.training.block_pairs import DIRECTIONS

CHAIN = "chain"
"""The rows that tell of the chain; others tell of one of its operators."""

Case = tuple[str, int]
"""An architecture, and the number of teachers it learns from."""


@dataclass(frozen=True)
class Sizes:
    """What is trained, on which networks, and for how long."""

    cases: tuple[Case, ...]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    budget: Budget


PRESETS = {
    "smoke": Sizes(
        (("plain", 2), ("products, steep slopes", 2)), (2,), (2,), Budget(2, 4, 2, 2, 3, n_seeds=1)
    ),
    "laptop": Sizes(
        (
            ("plain, no positions", 300),
            ("plain", 300),
            ("plain, positions scale", 300),
            ("products", 300),
            ("products, steep slopes", 300),
            ("plain, no positions", 2000),
            ("products, steep slopes", 6000),
        ),
        (5,),
        (3,),
        Budget(),
    ),
    "paper": Sizes(
        (("plain", 300), ("plain", 6000), ("products, steep slopes", 6000)),
        (5, 10, 20),
        (3, 6, 9),
        Budget(n_validation_teachers=300, n_chains=100, n_seeds=5),
    ),
}
"""The paper does not give the number of teachers."""


@final
@dataclass(frozen=True)
class OperatorsFigure(AbstractReproduction[Study, Outcome]):
    """Losses of both operators over the epochs, and distances of the chain over its rounds."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Every case with every size and seed; those that take long come first."""
        sizes = preset_of(PRESETS, preset)
        seeds = range(seed, seed + sizes.budget.n_seeds)
        found = [
            Study(*case, width, depth, seed, sizes.budget)
            for width, depth, case, seed in product(sizes.widths, sizes.depths, sizes.cases, seeds)
        ]
        return sorted(found, key=lambda study: -study.work)

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each epoch of an operator, and for each round of a chain."""
        pairs = zip(studies, outcomes, strict=True)
        return [row for study, outcome in pairs for row in _rows(study, outcome)]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means over the seeds of the last epoch and of the last round, and what is beside them."""
        names = ("d", "N", "operators", "teachers", "weights", "forward", "share", "backward")
        lines = []
        for (width, depth), of_size in groups(rows, "width", "depth").items():
            about = (str(width), str(depth))
            lines += [(*about, *line) for line in _simple_lines(of_size)]
            for of_case in groups(of_size, "architecture", "n_teachers").values():
                lines.append((*about, *_line(of_case)))
        return Summary((*names, "share ", "chain"), tuple(lines))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """A line of panels for each size: forward, backward, chain."""
        return cot_operators_picture.draw(rows)


def _rows(study: Study, outcome: Outcome) -> list[Row]:
    learnt = {"forward": outcome.forward, "backward": outcome.backward}
    about = _about(study, outcome)
    found = [
        {**about, "operator": direction, **cells}
        for direction in DIRECTIONS
        for cells in _of_epochs(learnt[direction])
    ]
    return found + [{**about, "operator": CHAIN, **cells} for cells in _of_rounds(outcome.chain)]


def _about(study: Study, outcome: Outcome) -> Row:
    budget = study.budget
    return {
        "architecture": study.architecture,
        "n_teachers": study.n_teachers,
        "width": study.width,
        "depth": study.depth,
        "n_rounds": budget.n_rounds,
        "step_size": budget.step_size,
        "batch_size": budget.batch_size,
        "learning_rate": study.settings().learning_rate,
        "n_validation_teachers": budget.n_validation_teachers,
        "n_chains": budget.n_chains,
        "n_parameters": outcome.forward.n_parameters + outcome.backward.n_parameters,
        "seed": study.seed,
        "seconds": round(outcome.seconds, 1),
    }


EMPTY: Row = dict.fromkeys(
    (
        "at",
        "training_loss",
        "validation_loss",
        "variance",
        "mean_loss",
        "linear_loss",
        "learnt",
        "learnt_median",
        "constructed",
        "unmoved",
    )
)
"""The cells of a row that not all kinds of rows have; `at` is the epoch or the round."""


def _of_epochs(learnt: Learnt) -> list[Row]:
    beside = {
        name: six_digits(getattr(learnt, name)) for name in ("variance", "mean_loss", "linear_loss")
    }
    return [
        {
            **EMPTY,
            "at": row["epoch"],
            "training_loss": six_digits(row["training_loss"]),
            "validation_loss": six_digits(row["validation_loss"]),
            **beside,
        }
        for row in learnt.curve
    ]


def _of_rounds(chain: Chained) -> list[Row]:
    names = ("learnt", "learnt_median", "constructed", "unmoved")
    columns = [getattr(chain, name) for name in names]
    return [
        {**EMPTY, "at": at, **dict(zip(names, map(six_digits, cells), strict=True))}
        for at, cells in enumerate(zip(*columns, strict=True))
    ]


def _last(rows: Sequence[Row], operator: str) -> list[Row]:
    """The rows of the last epoch or round, one for each seed."""
    of = [row for row in rows if row["operator"] == operator]
    return [row for row in of if row["at"] == max(number(each, "at") for each in of)]


def _mean(rows: Sequence[Row], column: str) -> float:
    return fmean(number(row, column) for row in rows)


def _line(rows: Sequence[Row]) -> tuple[str, ...]:
    """The cells of one case: losses and shares of variance, and the chain's last distance."""
    cells: list[str] = []
    for direction in DIRECTIONS:
        last = _last(rows, direction)
        cells += _loss_and_share(last, "validation_loss")
    first = rows[0]
    about = (str(first["architecture"]), *(f"{first[x]:,}" for x in ("n_teachers", "n_parameters")))
    return (*about, *cells, f"{_mean(_last(rows, CHAIN), 'learnt'):.3g}")


def _loss_and_share(rows: Sequence[Row], column: str) -> list[str]:
    shares = [number(row, column) / number(row, "variance") for row in rows]
    return [f"{_mean(rows, column):.3g}", f"{fmean(shares):.2g}"]


def _simple_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """What the mean block, a linear map, the weights before training and the construction give."""
    lines = []
    for name, column in (("mean block", "mean_loss"), ("linear map", "linear_loss")):
        cells = [_loss_and_share(_last(rows, each), column) for each in DIRECTIONS]
        lines.append((name, "", "", *cells[0], *cells[1], ""))
    for name, column in (("weights as at first", "unmoved"), ("constructed", "constructed")):
        lines.append((name, *[""] * 6, f"{_mean(_last(rows, CHAIN), column):.3g}"))
    return lines


OPERATORS = OperatorsFigure(
    name="cot-fig2",
    place="Figure 2, App. D",
    shows="losses of learnt operators of a chain, and how far their chain is from descent",
    laptop_time="50 minutes",
)
