r"""Figures 1, 2 and 4 of cheng: the loss of trained transformers, by the kernel of their attention.

The test loss is averaged over labels in closed form, on inputs that all models of a panel share.
The figures also show the loss of the best predictor there is (13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import final

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, GREEN, INK, ORANGE, RED, Axes, Figure
from icgd_papers.figures.cheng_training import Budget, Outcome, Study
from icgd_papers.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    groups,
    number,
    preset_of,
)

COLOURS = {"linear": BLUE, "relu": ORANGE, "exp": RED, "softmax": GREEN, "linear + exp": GREEN}
"""The colour of each kind of attention."""

SIZES = {"n_examples": "n", "n_layers": "layers"}
"""Columns that tell points of a figure apart, and their short names."""

SMALLEST_LOSS = 1e-7
"""A smaller loss is rounding; the best predictor of linear labels makes no error at all."""

SMOKE = Budget(n_steps=2, batch_size=4, n_test=8, n_seeds=1, n_rows=1)
LAPTOP = Budget(600, 400, 4000, n_seeds=3, learning_rate=0.03, resample_every=4, n_rows=10)
LAPTOP_DEEP = replace(LAPTOP, n_steps=500, batch_size=250)
"""The budget of figures in which most models have more than 3 layers."""
PAPER = Budget(
    n_steps=20_000,
    batch_size=30_000,
    n_test=30_000,
    n_seeds=3,
    learning_rate=0.01,
    resample_every=10,
    averages_labels=False,
)
"""The paper gives no number of steps."""


@dataclass(frozen=True)
class Sizes:
    """Where the curves have their points, and the budget of every point."""

    points: tuple[int, ...]
    budget: Budget


@dataclass(frozen=True)
class Panel:
    """Labels of one kernel, with the number of examples or of layers fixed.

    All models of a panel learn from the same loss. If it averages over labels, that is its
    logarithm where `logarithmic`.
    """

    letter: str
    labels: str
    attentions: tuple[tuple[str, ...], ...]
    n_examples: int | None = None
    n_layers: int | None = None
    logarithmic: bool = True

    @property
    def over(self) -> str:
        """The column that changes along the panel."""
        return "n_examples" if self.n_examples is None else "n_layers"

    @property
    def title(self) -> str:
        fixed = f"n = {self.n_examples}" if self.n_layers is None else f"{self.n_layers} layers"
        return f"({self.letter}) {self.labels} labels, {fixed}"

    def budget(self, budget: Budget) -> Budget:
        """The budget of the panel's models."""
        return replace(budget, logarithmic=self.logarithmic and budget.averages_labels)


@final
@dataclass(frozen=True)
class LossFigure(AbstractReproduction[Study, Outcome]):
    """log test loss over the number of examples or layers, a panel for each kernel of labels."""

    panels: tuple[Panel, ...]
    sizes: dict[str, Sizes] = field(hash=False)

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Every panel, point, attention and seed; all models have A free."""
        sizes = preset_of(self.sizes, preset)
        seeds = range(seed, seed + sizes.budget.n_seeds)
        return [
            Study(
                labels=panel.labels,
                attention=attention,
                n_examples=panel.n_examples or point,
                n_layers=panel.n_layers or point,
                transforms_covariates=True,
                seed=seed,
                budget=panel.budget(sizes.budget),
                panel=panel.letter,
            )
            for panel in self.panels
            for point, attention, seed in product(sizes.points, panel.attentions, seeds)
        ]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each model."""
        return [
            study.columns | outcome.columns | study.budget.columns
            for study, outcome in zip(studies, outcomes, strict=True)
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Mean test loss of every attention, the best predictor's, and which attention wins."""
        names = list(dict.fromkeys(str(row["attention"]) for row in rows))
        sizes = [name for name in SIZES if len(groups(rows, name)) > 1]
        found = []
        for key, at_point in groups(rows, "labels", *sizes).items():
            losses = _means(at_point)
            texts = [_text(losses[name]) for name in names]
            bayes = fmean(number(row, "bayes_loss") for row in at_point)
            best = min(losses, key=losses.__getitem__)
            found.append((*map(str, key), *texts, _text(bayes), best))
        headers = [SIZES[name] for name in sizes]
        return Summary(("labels", *headers, *names, "Bayes", "best"), tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Panels side by side, or two in a row if there are four."""
        n_columns = 2 if len(self.panels) == 4 else len(self.panels)
        figure, axes = plotting.new_panels(len(self.panels), n_columns, 4.6, 3.7)
        for panel, ax in zip(self.panels, axes, strict=True):
            _draw(ax, panel, [row for row in rows if row["panel"] == panel.letter])
        names = dict.fromkeys(str(row["attention"]) for row in rows)
        entries = [(f"{name} attention", COLOURS[name]) for name in names]
        plotting.legend(figure, [*entries, ("best predictor", INK)])
        return figure


def _means(rows: Sequence[Row]) -> dict[str, float]:
    """The mean test loss of every attention over the seeds."""
    return {
        str(name): fmean(number(row, "test_loss") for row in of_name)
        for (name,), of_name in groups(rows, "attention").items()
    }


def _text(loss: float) -> str:
    """The loss in six or seven letters; "0" if it is rounding."""
    if loss < SMALLEST_LOSS:
        return "0"
    return f"{loss:.4f}" if loss >= 0.001 else f"{loss:.1e}"


def _draw(ax: Axes, panel: Panel, rows: list[Row]) -> None:
    """Draw each attention, and the best predictor where its loss is not 0."""
    plotting.logarithmic_height(ax)
    for (name,), of_name in groups(rows, "attention").items():
        losses = _losses(of_name, panel, "test_loss")
        visible = [[max(loss, SMALLEST_LOSS) for loss in seeds] for seeds in losses.values()]
        plotting.band(ax, list(losses), visible, COLOURS[str(name)], marker="o")
    best = _losses(rows, panel, "bayes_loss").items()
    if seen := {place: losses for place, losses in best if min(losses) > SMALLEST_LOSS}:
        plotting.band(ax, list(seen), list(seen.values()), INK, linestyle="--")
    text = "examples n" if panel.over == "n_examples" else "layers"
    ax.set_xticks(sorted({int(number(row, panel.over)) for row in rows}))
    plotting.describe(ax, panel.title, text, "test loss")


def _losses(rows: Sequence[Row], panel: Panel, column: str) -> dict[float, list[float]]:
    """The losses of all seeds at each place of the panel's axis."""
    return {
        float(str(place)): [number(row, column) for row in at_place]
        for (place,), at_place in groups(rows, panel.over).items()
    }


FOUR = (("linear",), ("relu",), ("exp",), ("softmax",))
FIGURE_1 = LossFigure(
    name="cheng-fig1",
    place="Figure 1, Section 3.3",
    shows="log test loss over examples; 3 layers",
    laptop_time="20 minutes",
    panels=(
        # With the logarithm linear attention takes rare large errors into the bargain.
        Panel("a", "linear", FOUR, n_layers=3, logarithmic=False),
        Panel("b", "relu", FOUR, n_layers=3),
        Panel("c", "exp", FOUR, n_layers=3),
    ),
    sizes={
        "smoke": Sizes((2, 3), SMOKE),
        "laptop": Sizes((2, 4, 6, 8, 10, 12, 14), LAPTOP),
        "paper": Sizes((2, 4, 6, 8, 10, 12, 14), PAPER),
    },
)

LAYERS = {
    "smoke": Sizes((1, 2), SMOKE),
    "laptop": Sizes((1, 2, 3, 4, 5, 6, 7, 8), LAPTOP_DEEP),
    "paper": Sizes((1, 2, 3, 4, 5, 6, 7, 8), PAPER),
}
THREE = (("relu",), ("exp",), ("softmax",))
FIGURE_2 = LossFigure(
    name="cheng-fig2",
    place="Figure 2, Section 3.3",
    shows="log test loss over layers; n = 14 and 6",
    laptop_time="25 minutes",
    panels=(
        Panel("a", "relu", THREE, n_examples=14),
        Panel("b", "exp", THREE, n_examples=14),
        Panel("c", "relu", THREE, n_examples=6),
        Panel("d", "exp", THREE, n_examples=6),
    ),
    sizes=LAYERS,
)

HEADS = (("linear",), ("exp",), ("linear", "exp"))
FIGURE_4 = LossFigure(
    name="cheng-fig4",
    place="Figure 4, App. D",
    shows="log test loss over layers; one head or two; n = 14",
    laptop_time="27 minutes",
    panels=(
        Panel("a", "linear", HEADS, n_examples=14),
        Panel("b", "exp", HEADS, n_examples=14),
        Panel("c", "linear + exp", HEADS, n_examples=14),
    ),
    sizes=LAYERS,
)

LOSSES = LossFigure(
    name="cheng-losses",
    place="a control of Figure 1",
    shows="Figure 1, each panel trained on the other loss",
    laptop_time="9 minutes",
    panels=tuple(replace(panel, logarithmic=not panel.logarithmic) for panel in FIGURE_1.panels),
    sizes={
        "smoke": Sizes((2, 3), SMOKE),
        "laptop": Sizes((6, 14), LAPTOP),
        "paper": Sizes((2, 4, 6, 8, 10, 12, 14), replace(PAPER, averages_labels=True)),
    },
)
