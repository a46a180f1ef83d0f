"""wu-teachers: decoders on teachers of another depth and width than those of their training.

App. B.3 of wu leaves open what happens if teachers have other hyperparameters in the test than in
pretraining. The decoders here are those of wu-fig1 and wu-fig2 for 3 layers, seed by seed. They
are tested on teachers of other depths and widths, with inputs from the law of pretraining.

Beside them stand predictors that learn from the prompt alone. None of them knows the teacher
either: direct training has 3 layers, the arc-cosine kernel is that of 3 layers, the constructed
transformer trains networks of 3 layers and of the width of pretraining, and all are tuned there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import polars as pl

from icgd.pictures import plotting
from icgd.pictures.plotting import GREEN, ORANGE, RED
from icgd_papers.figure import Figure, Job, of_preset
from icgd_papers.figures import wu_prompts
from icgd_papers.figures.wu import ATTENTIONS, STYLES, band, curve_settings, r_squared_height
from icgd_papers.figures.wu_prompts import (
    ARC_COSINE,
    BEST,
    DIRECT,
    LEARNT,
    MEAN,
    PRETRAINING,
    RIDGE,
    Case,
    decoder_rows,
    rows_of_length,
    trained_decoder,
    tuned_settings,
)

DEPTH = 3
"""The layers of the teachers of pretraining."""

DEPTHS = {"smoke": (2, 3), "laptop": (2, 3, 4, 6), "paper": (2, 3, 4, 6)}
WIDTHS = {"smoke": (2, 4), "laptop": (5, 10, 20, 40, 80), "paper": (50, 100, 200, 400, 800)}
N_TEST = {"smoke": 8, "laptop": 256, "paper": 6400}
STEPS = {"smoke": 2, "laptop": 100, "paper": 1000}
"""The steps of the constructed transformer."""

DECODERS = {attention: f"{attention} decoder" for attention in ATTENTIONS}


@dataclass(frozen=True)
class Transfer:
    """A decoder, or all other predictors, made for the teachers of `case` and tested on others."""

    case: Case
    depths: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def teachers(self) -> list[Case]:
        """The test of each depth and width."""
        return [
            replace(self.case, n_layers=depth, setup=replace(self.case.setup, hidden_width=width))
            for depth, width in product(self.depths, self.widths)
        ]


def settings(preset: str, first_seed: int) -> list[Transfer]:
    """List both decoders of each seed, then the other predictors."""
    n_test, n_steps = (of_preset(table, preset) for table in (N_TEST, STEPS))

    def tested(case: Case) -> Transfer:
        setup = case.setup
        baselines = replace(setup.baselines, step_counts=(n_steps,))
        lengths = (setup.n_examples,)
        changed = replace(setup, lengths=lengths, n_test=n_test, baselines=baselines)
        return Transfer(replace(case, setup=changed, panel=""), DEPTHS[preset], WIDTHS[preset])

    cases = [
        case
        for attention in ATTENTIONS
        for case in curve_settings(attention, (DEPTH,), (PRETRAINING,), preset, first_seed)
    ]
    # The other predictors of both figures are the same.
    return [tested(case) for case in dict.fromkeys(cases)]


def run(transfer: Transfer, job: Job) -> pl.DataFrame:
    """Train the decoder, or tune the other predictors; test on all teachers."""
    case = transfer.case
    if case.attention is not None:
        model, _ = trained_decoder(case, job)
        rows = pl.concat([decoder_rows(teacher, model) for teacher in transfer.teachers])
        return rows.with_columns(line=pl.lit(DECODERS[case.attention]))
    tuned = job.cached("choice", lambda: tuned_settings(case, job.device))
    rows_of_teachers: list[dict[str, Any]] = []
    for number, teacher in enumerate(transfer.teachers, start=1):
        rows_of_teachers += job.cached(
            f"teacher-{number}", partial(rows_of_teacher, case, teacher, tuned, job.device)
        )
        if job.on_step:
            loss = 1 - (rows_of_teachers[-1]["r_squared"] or 0.0)
            job.on_step(number, len(transfer.teachers), loss)
    return pl.DataFrame(rows_of_teachers, infer_schema_length=None)


def rows_of_teacher(
    case: Case, teacher: Case, tuned: dict[str, float], device: str
) -> list[dict[str, Any]]:
    """Predict queries about one kind of teacher by predictors that are made for `case`."""
    [n] = case.setup.lengths
    prompts = teacher.setup.test(teacher.n_layers, PRETRAINING, teacher.seed)
    rows = rows_of_length(case, prompts.x[:, : n + 1], prompts.y[:, : n + 1], tuned, device)
    of_teacher = {"n_layers": teacher.n_layers, "hidden_width": teacher.setup.hidden_width}
    return [row | of_teacher for row in rows if row["line"] != BEST]


def lines_of(rows: pl.DataFrame) -> list[str]:
    """List the predictors: decoders, then what learns from the prompt alone."""
    known = [*DECODERS.values(), DIRECT, ARC_COSINE, RIDGE, MEAN]
    found = rows["line"].unique(maintain_order=True).to_list()
    return [*known, *(line for line in found if line not in known)]


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return mean R^2 for each teacher, with the range of the seeds for decoders."""
    table = []
    ordered = rows.sort("n_layers", "hidden_width", maintain_order=True)
    for teacher in ordered.partition_by("n_layers", "hidden_width", maintain_order=True):
        cells = {}
        for line in lines_of(rows):
            values = teacher.filter(line=line)["r_squared"].to_list()
            spread = f" ({min(values):.3f} to {max(values):.3f})" if "decoder" in line else ""
            cells[line] = f"{fmean(values):.3f}{spread}"
        of_teacher = {"layers": "n_layers", "width": "hidden_width"}
        names = {name: str(teacher[column][0]) for name, column in of_teacher.items()}
        table.append({**names, **cells})
    return pl.DataFrame(table)


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a panel for each depth: R^2 over the teachers' width, the seeds' range shaded."""
    styles = {**STYLES, **dict(zip(DECODERS.values(), ((ORANGE, "-"), (RED, "-")), strict=True))}
    lines = lines_of(rows)
    styles |= {line: (GREEN, "-") for line in lines if line not in styles}
    del styles[LEARNT]
    depths = rows.sort("n_layers", maintain_order=True).partition_by(
        "n_layers", maintain_order=True
    )
    figure, axes = plotting.new_panels(len(depths), 4, 4.3, 4.2)
    for ax, of_depth in zip(axes, depths, strict=True):
        of_depth = of_depth.sort("hidden_width", maintain_order=True)
        for line in reversed(lines):  # the decoders on top
            colour, linestyle = styles[line]
            of_line = of_depth.filter(line=line)
            band(ax, of_line, "hidden_width", colour, linestyle=linestyle, alpha=0.15)
        ax.set_xscale("log")
        widths = of_depth["hidden_width"].unique().sort().to_list()
        ax.set_xticks(widths, [str(width) for width in widths])
        ax.set_xticks([], minor=True)
        n_layers = of_depth["n_layers"][0]
        as_trained = ", as in training" if n_layers == DEPTH else ""
        plotting.describe(ax, f"{n_layers} layers{as_trained}", "width of the teachers", "R^2")
    errors = [1 - value for value in rows["r_squared"]]
    r_squared_height(axes, 1.15 * max(errors), min(errors) / 1.15)
    plotting.legend(
        figure,
        [(line, styles[line][0]) for line in lines],
        dashes={line: styles[line][1] for line in lines},
        n_columns=4,
    )
    return figure


def work(transfer: Transfer) -> float:
    """Count training, or the predictions about all teachers."""
    n_tests = 1 if transfer.case.attention else len(transfer.teachers)
    return n_tests * wu_prompts.work(transfer.case)


FIGURES = (
    Figure(
        name="wu-teachers",
        place="App. B.3, what it leaves open",
        shows="R^2 on teachers of other depths and widths than in training",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
        memory=lambda transfer: wu_prompts.memory(transfer.case),
        uses_device=True,
    ),
)
