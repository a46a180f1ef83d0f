"""Plot a run: its loss over the steps, and its predictions at the queries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from torch import Tensor

from icgd.errors import DataError
from icgd.pictures import plotting
from icgd.pictures.picture import Picture, saved
from icgd.pictures.plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, RED, Axes
from icgd.problems.data import Task, checked_array, column_names
from icgd.problems.problem import Problem

OUTPUTS = (BLUE, RED, GREEN, PURPLE, ORANGE)
"""The colours of the outputs, used cyclically."""

MOST_OUTPUTS = 5
"""The largest number of outputs with a legend."""

MOST_BARS = 15
"""The largest number of coefficients that are drawn."""

LONGEST_NAME = 24
"""The largest number of letters of a name; longer names are truncated."""

BESIDE = 0.1
"""The largest horizontal shift of a class from its label."""


@dataclass(frozen=True)
class LossCurves:
    """The losses of one run or of many, with their name, and the losses plus penalties."""

    words: str
    losses: Tensor
    objectives: Tensor | None
    steps: Sequence[int]

    def rows(self, curve: Tensor) -> list[list[float]]:
        """Return the values of a curve as a list for each task."""
        tasks: list[list[float]] = curve.reshape(-1, curve.shape[-1]).tolist()
        return tasks


@dataclass(frozen=True)
class QueryPredictions:
    """The predictions of one task at its queries, with their labels if these are known.

    `names` are the names of the outputs if the labels were a data frame. `are_scores` says that
    the loss turns predictions into probabilities, so that they are not comparable with labels.
    """

    task: Task
    predictions: Tensor
    labels: Tensor | None
    are_scores: bool = False
    names: tuple[str, ...] = ()

    @property
    def are_named(self) -> bool:
        """Whether a legend names the outputs."""
        return 1 < self.predictions.shape[-1] <= MOST_OUTPUTS

    @property
    def are_classes(self) -> bool:
        """Whether all labels are 0 or 1, of several outputs or of a score."""
        labels = self.labels
        if labels is None or (labels.shape[-1] == 1 and not self.are_scores):
            return False
        return bool(((labels == 0) | (labels == 1)).all())


def query_predictions(
    task: Task, predictions: Tensor, labels: Any, problem: Problem
) -> QueryPredictions | None:
    """Return the predictions to draw, or None if there are no queries or many tasks."""
    values = None if labels is None else checked_array("labels", labels)
    if values is not None:
        values = problem.oracle.labelled(values, tuple(predictions.shape))
        values = values.reshape(-1, 1) if values.ndim == 1 else values
        if values.shape != predictions.shape:
            raise DataError(
                f"labels has shape {tuple(values.shape)}; expected {tuple(predictions.shape)}, a "
                "row for each query."
            )
    if task.batch or not task.n_queries:
        return None
    are_scores = problem.loss_function.labels_are_probabilities
    return QueryPredictions(task, predictions, values, are_scores, column_names(labels))


def draw(
    curves: LossCurves,
    predicted: QueryPredictions | None,
    coefficients: Mapping[str, float],
    path: str | os.PathLike[str] | None = None,
) -> Picture:
    """Draw a panel for the loss, and for predictions and named coefficients if there are any."""
    n_panels = 1 + (predicted is not None) + bool(coefficients)
    height = 4.8 if predicted is not None and predicted.are_named else 4.4
    figure, panels = plotting.new_figure(5.6 * n_panels, height, n_panels)
    _draw_losses(panels[0], curves)
    if predicted is not None:
        _draw_predictions(panels[1], predicted)
    if coefficients:
        _draw_coefficients(panels[-1], coefficients)
    return saved(Picture(curves.words, figure), path)


def _draw_losses(panel: Axes, curves: LossCurves) -> None:
    """Draw the loss of each task, and the loss plus penalties as a dashed line."""
    words = fill(curves.words, 44)
    plotting.describe(panel, "Training loss", "training step", words)
    plotting.whole_numbers(panel)
    rows = curves.rows(curves.losses)
    for row in rows:
        panel.plot(curves.steps, row, color=BLUE, lw=1.8, alpha=1.0 if len(rows) == 1 else 0.5)
    for row in [] if curves.objectives is None else curves.rows(curves.objectives):
        panel.plot(curves.steps, row, color=ORANGE, lw=1.8, ls="--")
    if curves.objectives is not None:
        _name_lines(panel, [("loss", BLUE), ("loss plus penalties", ORANGE)])
    if min(map(min, rows)) > 0:
        plotting.logarithmic_height(panel)


def _draw_coefficients(panel: Axes, coefficients: Mapping[str, float]) -> None:
    """Draw a bar for each of the largest coefficients, sorted by absolute value."""
    by_size = sorted(coefficients, key=lambda name: abs(coefficients[name]), reverse=True)
    drawn = by_size[:MOST_BARS][::-1]
    title = "Trained coefficients"
    if len(by_size) > MOST_BARS:
        title = f"The {MOST_BARS} largest of {len(by_size):,} trained coefficients"
    plotting.describe(panel, title, "coefficient", "")
    panel.barh(range(len(drawn)), [coefficients[name] for name in drawn], color=BLUE, height=0.7)
    names = [plotting.literal(_cut(name)) for name in drawn]
    panel.set_yticks(range(len(drawn)), names)
    panel.axvline(0, color=FAINT, lw=1)


def _cut(name: str) -> str:
    """Truncate a long name, to leave room for the bars."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def _name_lines(panel: Axes, names: list[tuple[str, str]]) -> None:
    for place, (name, colour) in enumerate(names):
        panel.text(
            0.97, 0.95 - 0.08 * place, name, color=colour, fontsize=11, ha="right",
            va="center", transform=panel.transAxes,
        )  # fmt: skip


def _draw_predictions(panel: Axes, predicted: QueryPredictions) -> None:
    """Plot predictions against known labels, or over a single input, or in order of the queries."""
    if predicted.labels is not None:
        _against_labels(panel, predicted, predicted.labels)
    elif predicted.task.x.shape[-1] == 1:
        _over_inputs(panel, predicted)
    else:
        plotting.describe(panel, "Predictions", "query", "prediction")
        plotting.whole_numbers(panel)
        for column, colour in _columns(predicted.predictions):
            panel.plot(column.tolist(), "o", color=colour, ms=5)
    if predicted.are_named:
        _name_outputs(panel, predicted)


def _name_outputs(panel: Axes, predicted: QueryPredictions) -> None:
    """Draw a legend below the panel, where it does not cover data."""
    n_outputs = predicted.predictions.shape[-1]
    names = predicted.names or [f"output {number}" for number in range(1, n_outputs + 1)]
    dots = [panel.plot([], [], "o", color=colour)[0] for colour in OUTPUTS[:n_outputs]]
    for dot in dots:
        dot.remove()
    texts = [plotting.literal(_cut(name)) for name in names]
    panel.legend(
        dots, texts, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=min(n_outputs, 3),
        frameon=False, fontsize=10,
    )  # fmt: skip


def _columns(values: Tensor) -> list[tuple[Tensor, str]]:
    """Return the values of each output with its colour."""
    columns = enumerate(values.unbind(-1))
    return [(column, OUTPUTS[number % len(OUTPUTS)]) for number, column in columns]


def _against_labels(panel: Axes, predicted: QueryPredictions, labels: Tensor) -> None:
    has_diagonal = not (predicted.are_classes or predicted.are_scores)
    title = "Scores and labels" if predicted.are_scores else "Predictions and labels"
    if has_diagonal:
        title += " (dotted: equal)"
    what = "score" if predicted.are_scores else "prediction"
    plotting.describe(panel, title, "label of the query", what)
    shifts = _shifts(predicted)
    for (column, colour), label, shift in zip(
        _columns(predicted.predictions), labels.unbind(-1), shifts, strict=True
    ):
        panel.plot((label + shift).tolist(), column.tolist(), "o", color=colour, ms=5)
    if predicted.are_classes:
        panel.set_xticks((0, 1), ("0", "1"))
    if predicted.are_scores and labels.shape[-1] == 1:  # a score of 0 is a probability of 1/2
        panel.axhline(0, color=FAINT, lw=1, ls=":")
    if has_diagonal:
        middle = float(labels.double().mean())
        panel.axline((middle, middle), slope=1, color=FAINT, lw=1, ls=":")


def _shifts(predicted: QueryPredictions) -> list[float]:
    """Return the horizontal shift of each output, which separates classes with the same label."""
    n_outputs = predicted.predictions.shape[-1]
    if not predicted.are_classes or n_outputs == 1:
        return [0.0] * n_outputs
    return [BESIDE * (2 * place / (n_outputs - 1) - 1) for place in range(n_outputs)]


def _over_inputs(panel: Axes, predicted: QueryPredictions) -> None:
    """Plot the examples as grey dots, and the predictions as a line in order of x."""
    task = predicted.task
    name = plotting.literal(task.input_names[0]) if task.input_names else "x"
    plotting.describe(panel, "Examples (grey) and predictions", name, "y")
    order = task.queries.flatten().argsort()
    for (column, colour), label in zip(
        _columns(predicted.predictions), task.y.unbind(-1), strict=True
    ):
        panel.plot(task.x.flatten().tolist(), label.tolist(), "o", color=FAINT, ms=4, alpha=0.6)
        panel.plot(
            task.queries.flatten()[order].tolist(), column[order].tolist(), "o-", color=colour
        )
