r"""Figures 1, 2 and 4 of cheng: the loss of trained transformers, by the kernel of their attention.

The test loss is averaged over labels in closed form, on inputs that all models of a panel share.
Beside it stands the loss of the best predictor there is (13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import final

from icgd.reproductions import plotting
from icgd.reproductions.cheng_training import Budget, Outcome, Run
from icgd.reproductions.plotting import BLUE, GREEN, INK, ORANGE, RED, Axes, Figure
from icgd.reproductions.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)

COLOURS = {"linear": BLUE, "relu": ORANGE, "exp": RED, "softmax": GREEN, "linear + exp": GREEN}
"""Of the attention."""

SIZES = {"n_examples": "n", "n_layers": "layers"}
"""Columns that tell points of a figure apart, and their short names."""

SMALLEST_LOSS = 1e-7
"""Below this a loss is rounding; the best predictor of linear labels makes no error at all."""

SMOKE = Budget(n_steps=2, batch_size=4, n_test=8, n_seeds=1, n_rows=1)
LAPTOP = Budget(
    n_steps=600,
    batch_size=400,
    n_test=4000,
    n_seeds=2,
    learning_rate=0.03,
    resample_every=4,
    n_rows=10,
)
LAPTOP_DEEP = replace(LAPTOP, n_steps=500, batch_size=250)
"""Where most models have more than 3 layers."""
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
    """Labels of one kernel; the number of examples, or of layers, that does not change."""

    labels: str
    attentions: tuple[tuple[str, ...], ...]
    n_examples: int | None = None
    n_layers: int | None = None

    @property
    def over(self) -> str:
        """What changes along the panel."""
        return "n_examples" if self.n_examples is None else "n_layers"

    @property
    def title(self) -> str:
        fixed = f"n = {self.n_examples}" if self.n_layers is None else f"{self.n_layers} layers"
        return f"{self.labels} labels, {fixed}"


@final
@dataclass(frozen=True)
class LossFigure(AbstractReproduction[Run, Outcome]):
    """log test loss over the number of examples or layers, a panel for each kernel of labels."""

    name: str
    place: str
    shows: str
    laptop_time: str
    panels: tuple[Panel, ...]
    sizes: dict[str, Sizes] = field(hash=False)

    def runs(self, preset: str, seed: int) -> list[Run]:
        """Every panel, point, attention and seed; all models have A free."""
        sizes = preset_of(self.sizes, preset)
        seeds = range(seed, seed + sizes.budget.n_seeds)
        return [
            Run(
                labels=panel.labels,
                attention=attention,
                n_examples=panel.n_examples or point,
                n_layers=panel.n_layers or point,
                transforms_covariates=True,
                seed=seed,
                budget=_budget(sizes.budget, attention),
            )
            for panel in self.panels
            for point, attention, seed in product(sizes.points, panel.attentions, seeds)
        ]

    def rows(self, runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each model."""
        return [_row(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)]

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
        n_rows = -(-len(self.panels) // n_columns)
        figure, axes = plotting.new_grid(4.6 * n_columns, 3.7 * n_rows + 0.4, n_rows, n_columns)
        for panel, ax in zip(self.panels, axes, strict=True):
            _draw(ax, panel, _of_panel(panel, rows))
        names = dict.fromkeys(str(row["attention"]) for row in rows)
        entries = [(f"{name} attention", COLOURS[name]) for name in names]
        plotting.legend(figure, [*entries, ("best predictor", INK)])
        return figure


def _budget(budget: Budget, attention: tuple[str, ...]) -> Budget:
    """With exp attention a few tasks of early batches have losses that would stop Adam for long.

    Their logarithm does no harm. Other attention learns from the loss itself, unless the budget
    says otherwise: it weighs rare large errors as the test does. This favours exp by up to 1
    percent in Figures 1 and 2; docs/reproductions/cheng.md has the comparison on equal terms.
    """
    steady = budget.logarithmic or ("exp" in attention and budget.averages_labels)
    return replace(budget, logarithmic=steady)


def _row(run: Run, outcome: Outcome) -> Row:
    return {
        "labels": run.labels,
        "attention": " + ".join(run.attention),
        "n_examples": run.n_examples,
        "n_layers": run.n_layers,
        "seed": run.seed,
        "test_loss": six_digits(outcome.test_loss),
        "bayes_loss": six_digits(max(outcome.bayes_loss, 0.0)),
        "learning_rate": outcome.learning_rate,
        "seconds": round(outcome.seconds, 1),
    }


def _of_panel(panel: Panel, rows: Sequence[Row]) -> list[Row]:
    wanted = {
        "labels": panel.labels,
        "n_examples": panel.n_examples,
        "n_layers": panel.n_layers,
    }
    fixed = {name: value for name, value in wanted.items() if value is not None}
    return [row for row in rows if all(row[name] == value for name, value in fixed.items())]


def _means(rows: Sequence[Row]) -> dict[str, float]:
    """Mean test loss over the seeds, of every attention."""
    by_attention = groups(rows, "attention")
    return {
        str(name): fmean(number(row, "test_loss") for row in of_name)
        for (name,), of_name in by_attention.items()
    }


def _text(loss: float) -> str:
    """In six or seven letters; what is rounding is 0."""
    if loss < SMALLEST_LOSS:
        return "0"
    return f"{loss:.4f}" if loss >= 0.001 else f"{loss:.1e}"


def _draw(ax: Axes, panel: Panel, rows: list[Row]) -> None:
    """The geometric mean of the seeds as a line, their range as a band."""
    plotting.logarithmic_height(ax)
    for (name,), of_name in groups(rows, "attention").items():
        points = groups(of_name, panel.over)
        values = [[_visible(row) for row in at_point] for at_point in points.values()]
        places = [float(str(point)) for (point,) in points]
        plotting.band(ax, places, values, COLOURS[str(name)], marker="o")
    _draw_bayes(ax, panel, rows)
    text = "examples n" if panel.over == "n_examples" else "layers"
    ax.set_xticks(sorted({int(number(row, panel.over)) for row in rows}))
    plotting.describe(ax, panel.title, text, "test loss")


def _visible(row: Row) -> float:
    """The test loss, on a logarithmic axis."""
    return max(number(row, "test_loss"), SMALLEST_LOSS)


def _draw_bayes(ax: Axes, panel: Panel, rows: list[Row]) -> None:
    """The best predictor's loss, where it is not 0."""
    points = groups(rows, panel.over)
    values = {
        float(str(point)): [number(row, "bayes_loss") for row in at_point]
        for (point,), at_point in points.items()
    }
    seen = {place: losses for place, losses in values.items() if min(losses) > SMALLEST_LOSS}
    if seen:
        plotting.band(ax, list(seen), list(seen.values()), INK, linestyle="--")


FOUR = (("linear",), ("relu",), ("exp",), ("softmax",))
FIGURE_1 = LossFigure(
    name="cheng-fig1",
    place="Figure 1, Section 3.3",
    shows="log test loss over examples; 3 layers",
    laptop_time="13 minutes",
    panels=tuple(Panel(labels, FOUR, n_layers=3) for labels in ("linear", "relu", "exp")),
    sizes={
        "smoke": Sizes((2, 3), SMOKE),
        "laptop": Sizes((2, 6, 10, 14), LAPTOP),
        "paper": Sizes((2, 4, 6, 8, 10, 12, 14), PAPER),
    },
)

LAYERS = {
    "smoke": Sizes((1, 2), SMOKE),
    "laptop": Sizes((1, 2, 4, 8), LAPTOP_DEEP),
    "paper": Sizes((1, 2, 3, 4, 5, 6, 7, 8), PAPER),
}
FIGURE_2 = LossFigure(
    name="cheng-fig2",
    place="Figure 2, Section 3.3",
    shows="log test loss over layers; n = 14 and 6",
    laptop_time="16 minutes",
    panels=tuple(
        Panel(labels, (("relu",), ("exp",), ("softmax",)), n_examples=n)
        for n, labels in product((14, 6), ("relu", "exp"))
    ),
    sizes=LAYERS,
)

HEADS = (("linear",), ("exp",), ("linear", "exp"))
FIGURE_4 = LossFigure(
    name="cheng-fig4",
    place="Figure 4, App. D",
    shows="log test loss over layers; one head or two; n = 14",
    laptop_time="13 minutes",
    panels=tuple(
        Panel(labels, HEADS, n_examples=14) for labels in ("linear", "exp", "linear + exp")
    ),
    # two of three have exp attention, and all are trained alike
    sizes={**LAYERS, "laptop": Sizes((1, 2, 4, 8), replace(LAPTOP_DEEP, logarithmic=True))},
)
