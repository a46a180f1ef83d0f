"""The figures by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from icgd.errors import UnknownNameError
from icgd_papers.figure import Figure

MODULES = (
    "figures.cheng",
    "studies.cheng_curvature",
    "studies.wang_resources",
    "studies.wang_in_context",
    "studies.wang_rates",
    "studies.wang_classes",
    "figures.wu",
    "studies.wu_flops",
    "studies.wu_sizes",
    "studies.wu_checks",
    "studies.wu_mechanism",
    "studies.wu_choices",
    "studies.wu_score",
    "studies.wu_teachers",
    "studies.cot_cost",
    "studies.cot_tokens",
    "figures.cot",
    "studies.learnt_constructed",
    "studies.meta_gradients",
    "studies.meta_learning",
)

FIGURES: dict[str, Figure[Any]] = {
    figure.name: figure
    for module in MODULES
    for figure in import_module(f"icgd_papers.{module}").FIGURES
}


def figure_named(name: str) -> Figure[Any]:
    """Return the figure called `name`."""
    if name not in FIGURES:
        raise UnknownNameError.of("figure", name, known=list(FIGURES))
    return FIGURES[name]
