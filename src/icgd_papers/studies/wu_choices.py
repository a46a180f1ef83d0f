"""wu-choices: vary what App. G of wu leaves open, one choice at a time.

Teachers have 3 layers and decoders softmax attention. Queries come after as many examples as in
pretraining, from the law of pretraining and from the mixture (0.5, 0.5). Every number has both
forms of R^2: over the queries of all prompts, and within prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import polars as pl

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, INK, RED
from icgd_papers.figure import Figure, Job, of_preset
from icgd_papers.figures import wu_prompts
from icgd_papers.figures.wu import SETUPS as CURVE_SETUPS
from icgd_papers.figures.wu_prompts import (
    DIRECT,
    LEARNT,
    MEAN,
    PRETRAINING,
    RIDGE,
    Case,
    Law,
    Setup,
)

LAWS = (PRETRAINING, Law((0.5, 0.5)))
COLOURS = {LEARNT: RED, DIRECT: BLUE, MEAN: FAINT, RIDGE: INK}
FORMS = {"r_squared": "over all prompts", "r_squared_within": "within prompts"}

LEFT_END = -1.0
"""Points with a smaller R^2 are drawn here, so that they do not stretch the axis."""


def _at_one_length(setup: Setup, **changes: Any) -> Setup:
    baselines = replace(setup.baselines, step_counts=setup.baselines.step_counts[:1])
    return replace(setup, lengths=(setup.n_examples,), baselines=baselines, **changes)


SETUPS = {
    "smoke": _at_one_length(CURVE_SETUPS["smoke"]),
    "laptop": _at_one_length(CURVE_SETUPS["laptop"], n_steps=500, n_test=256),
    "paper": _at_one_length(CURVE_SETUPS["paper"]),
}


def choices(setup: Setup) -> dict[str, Setup]:
    """Return the setup as chosen, and with one thing chosen otherwise."""
    other_tokens = "joint" if setup.tokens == "interleaved" else "interleaved"
    return {
        "as chosen": setup,
        "teachers a quarter as wide": replace(setup, hidden_width=setup.hidden_width // 4),
        "teachers four times as wide": replace(setup, hidden_width=4 * setup.hidden_width),
        "half the learning rate": replace(setup, learning_rate=setup.learning_rate / 2),
        "twice the learning rate": replace(setup, learning_rate=2 * setup.learning_rate),
        "twice the steps": replace(setup, n_steps=2 * setup.n_steps),
        f"{other_tokens} tokens": replace(setup, tokens=other_tokens),
    }


@dataclass(frozen=True)
class Choice:
    """A decoder, or the baselines on one law, with one thing chosen otherwise."""

    name: str
    case: Case


def settings(preset: str, first_seed: int) -> list[Choice]:
    """List the decoder, and the baselines on each law, for each choice and seed."""
    setup = of_preset(SETUPS, preset)
    seeds = range(first_seed, first_seed + setup.n_seeds)
    return [
        Choice(name, case)
        for (name, changed), seed in product(choices(setup).items(), seeds)
        for case in (
            Case(3, LAWS, seed, changed, "softmax"),
            *(Case(3, (law,), seed, changed) for law in LAWS),
        )
    ]


def run(choice: Choice, job: Job) -> pl.DataFrame:
    """Train and test the decoder, or test the baselines."""
    rows = wu_prompts.run(choice.case, job)
    return rows.filter(pl.col("line").is_in(COLOURS)).select(
        pl.lit(choice.name).alias("choice"), pl.all()
    )


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return means over the seeds, with the range of the decoder."""
    table = []
    for group in rows.partition_by("choice", "inputs"):
        cells = {}
        for form, line in product(FORMS, COLOURS):
            values = group.filter(line=line)[form].to_list()
            spread = f" ({min(values):.3f} to {max(values):.3f})" if line == LEARNT else ""
            name = "R^2" if form == "r_squared" else FORMS[form]
            cells[f"{line}, {name}"] = f"{fmean(values):.3f}{spread}"
        table.append({"choice": group["choice"][0], "mixture": group["inputs"][0], **cells})
    return pl.DataFrame(table)


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a panel for each law and form of R^2, with the points of all seeds."""
    names = rows["choice"].unique(maintain_order=True).to_list()
    laws = rows.partition_by("inputs")
    figure, axes = plotting.new_panels(2 * len(laws), 2, 6.4, 4.2)
    for ax, (of_law, form) in zip(axes, product(laws, FORMS), strict=True):
        for i, (line, colour) in enumerate(COLOURS.items()):
            of_line = of_law.filter(line=line)
            heights = [-names.index(name) - 0.15 * i for name in of_line["choice"]]
            values = of_line[form].clip(lower_bound=LEFT_END).to_list()
            ax.plot(values, heights, "o", color=colour, ms=5, alpha=0.7)
        ax.set_yticks([-i - 0.2 for i in range(len(names))], names)
        ax.set_xlim(right=1.0)
        is_cut = bool((of_law[form] < LEFT_END).any())
        label = f"R^2; what is below {LEFT_END:g} stands at {LEFT_END:g}" if is_cut else "R^2"
        plotting.describe(ax, f"mixture {of_law['inputs'][0]}, R^2 {FORMS[form]}", label, "")
    plotting.legend(figure, list(COLOURS.items()))
    return figure


FIGURES = (
    Figure(
        name="wu-choices",
        place="App. G, what it does not say",
        shows="R^2 with other teachers, learning rates, steps and tokens; both forms of R^2",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=lambda choice: wu_prompts.work(choice.case),
        memory=lambda choice: wu_prompts.memory(choice.case),
        uses_device=True,
    ),
)
