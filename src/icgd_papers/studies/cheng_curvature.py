r"""Why some matrices of Figures 5 and 6 do not converge: how the loss bends off the family.

At the family's best point the slope off the family is 0, by Theorems 4.5 and 4.6. Whether training
ends there depends on the curvature: the second derivative of the loss by the tilt t of a matrix,
which is its distance to the multiples of I, over the loss. A curvature of c means that a distance
of t adds about c t^2 / 2 of the loss. The smallest curvature over all mixtures of the layers
decides: if it is negative, the family's best point is a saddle.

The law of a seed is a set of prompts, each in all rotations of the whitened inputs, with the labels
averaged in closed form (`training.family`). It satisfies the theorems' assumptions, and the point
and its curvatures are exact for it, except that the kinks of relu attention leave a sampling error.
Seeds show how much the choice of the prompts matters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product

import polars as pl
import torch

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.figures.cheng import (
    N_EXAMPLES,
    N_LAYERS,
    PAIRS,
    loss_text,
    step_unit,
    task_of,
)
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.family import KINDS, TILT, curvatures, family_model, minimise_on_family

COLOURS = dict(zip(KINDS, (ORANGE, BLUE), strict=True))

N_PROMPTS = {"smoke": 4, "laptop": 500, "paper": 4000}
"""The paper measures no curvature; its preset is the one with the most prompts."""

N_SEEDS = {"smoke": 1, "laptop": 3, "paper": 3}


@dataclass(frozen=True)
class Point:
    """The best point of the family for one pair of kernels, with A = 0 or free."""

    panel: str
    labels: str
    attention: str
    transforms_covariates: bool
    seed: int
    n_prompts: int


def settings(preset: str, seed: int) -> list[Point]:
    """Return the pairs of Figure 5, in its order, with A = 0; and again with A free."""
    n_prompts, n_seeds = of_preset(N_PROMPTS, preset), of_preset(N_SEEDS, preset)
    return [
        Point(panel, labels, attention, free, seed + offset, n_prompts)
        for (panel, free), (labels, attention), offset in product(
            (("a", False), ("b", True)), PAIRS, range(n_seeds)
        )
    ]


def run(setting: Point, job: Job) -> pl.DataFrame:
    """Find the family's best point and return all curvatures there, the smallest first."""
    task = AveragedTask(task_of(setting.labels, N_EXAMPLES, setting.seed))
    model = family_model(
        setting.attention,
        task.task.covariates,
        N_LAYERS,
        step_unit(setting.attention, N_EXAMPLES),
        transforms_covariates=setting.transforms_covariates,
    )
    prompts = task.sample(setting.n_prompts, seed=setting.seed, index=0)
    family_loss = minimise_on_family(model, task, prompts)
    values = torch.linalg.eigvalsh(curvatures(model, task, prompts))
    return pl.DataFrame(
        [
            {
                **asdict(setting),
                "n_examples": N_EXAMPLES,
                "n_layers": N_LAYERS,
                "kind": kind,
                "number": number,
                "curvature": six_digits(value),
                "family_loss": six_digits(family_loss),
                "tilt": TILT,
            }
            for kind, of_kind in zip(KINDS, values.tolist(), strict=True)
            for number, value in enumerate(of_kind)
        ]
    )


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the range of the smallest curvatures, and what the family's best point is."""
    summary = []
    smallest = rows.filter(pl.col("number") == 0)
    for pair in smallest.partition_by("panel", "labels", "attention", maintain_order=True):
        first = pair.row(0, named=True)
        line = {
            "pair": f"{first['labels']}, {first['attention']}",
            "A": "free" if first["transforms_covariates"] else "0",
            "loss": loss_text(pair.select(pl.mean("family_loss")).item()),
        }
        for kind in KINDS:
            values = sorted(pair.filter(kind=kind)["curvature"])
            line[kind] = f"{values[0]:.1e} to {values[-1]:.1e}"
        of_seeds = pair.group_by("seed").agg(pl.min("curvature"))["curvature"]
        if (of_seeds < 0).all():
            line["best point"] = "saddle"
        else:
            line["best point"] = "minimum" if (of_seeds > 0).all() else "undecided"
        summary.append(line)
    return pl.DataFrame(summary)


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw the smallest curvature of each kind and seed, the pairs side by side."""
    panels = rows.filter(pl.col("number") == 0).partition_by("panel", maintain_order=True)
    figure, axes = plotting.new_panels(len(panels), 2, 6.0, 4.6)
    for panel, ax in zip(panels, axes, strict=True):
        # Beyond 0.0001 the axis is logarithmic, on both sides of 0.
        ax.set_yscale("symlog", linthresh=1e-4)
        ax.axhline(0, color=FAINT, linewidth=1)
        names = panel.select(pl.format("{}, {}", "labels", "attention")).to_series()
        pairs = names.unique(maintain_order=True).to_list()
        for name, row in zip(names, panel.iter_rows(named=True), strict=True):
            place = pairs.index(name) + (KINDS.index(row["kind"]) - 0.5) / 4
            ax.plot(place, row["curvature"], "o", color=COLOURS[row["kind"]], markersize=4.5)
        ax.set_xticks(range(len(pairs)), pairs, rotation=40, ha="right")
        title = f"({panel['panel'][0]}) A {'free' if panel['transforms_covariates'][0] else '= 0'}"
        plotting.describe(ax, title, "labels, attention", "smallest curvature over the loss")
    plotting.legend(figure, [(f"{kind} tilts", COLOURS[kind]) for kind in KINDS])
    return figure


def work(setting: Point) -> float:
    """With A free there are more matrices to tilt, and more to compute at each."""
    return 4.0 if setting.transforms_covariates else 1.0


FIGURES = (
    Figure(
        name="cheng-curvature",
        place="Figures 5 and 6, App. H",
        shows="curvature of the loss off the predicted family",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
    ),
)
