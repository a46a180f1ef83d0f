"""The reproductions by name."""

from __future__ import annotations

from typing import Any

from icgd.errors import UnknownNameError
from icgd_papers.figures import cheng_loss, cheng_matrices, cot_operators, wu_curves, wu_depth
from icgd_papers.reproduction import AbstractReproduction
from icgd_papers.studies import (
    cheng_curvature,
    cot_cost,
    learnt_constructed,
    meta_gradients,
    meta_learning,
    wang_in_context,
    wang_rates,
    wang_resources,
    wu_choices,
    wu_flops,
    wu_mechanism,
    wu_score,
)

REPRODUCTIONS: dict[str, AbstractReproduction[Any, Any]] = {
    reproduction.name: reproduction
    for reproduction in (
        cheng_loss.FIGURE_1,
        cheng_loss.FIGURE_2,
        cheng_matrices.FIGURE_3,
        cheng_loss.FIGURE_4,
        cheng_matrices.FIGURE_5,
        cheng_matrices.FIGURE_6,
        cheng_loss.LOSSES,
        cheng_curvature.CURVATURE,
        wang_resources.RESOURCES,
        wang_in_context.IN_CONTEXT,
        wang_rates.RATES,
        wu_curves.FIGURE_1,
        wu_curves.FIGURE_2,
        wu_curves.FIGURE_3,
        wu_curves.FIGURE_4,
        wu_depth.DEPTH,
        wu_flops.FLOPS,
        wu_mechanism.MECHANISM,
        wu_choices.CHOICES_FIGURE,
        wu_score.SCORE,
        cot_cost.COST,
        cot_operators.OPERATORS,
        learnt_constructed.SIMILARITY,
        meta_gradients.GRADIENTS,
        meta_learning.META_LEARNING,
    )
}

PAPER_HOURS = {
    "cheng-fig1": 550,
    "cheng-fig2": 1200,
    "cheng-fig3": 64,
    "cheng-fig4": 1100,
    "cheng-fig5": 78,
    "cheng-fig6": 250,
    "cot-fig2": 1000,
    "wu-score": 69,
}
"""The core-hours of the paper presets, as `icgd reproduce NAME --preset paper --estimate` said."""


def reproduction_named(name: str) -> AbstractReproduction[Any, Any]:
    """The reproduction called `name`."""
    if name not in REPRODUCTIONS:
        raise UnknownNameError.of("figure", name, known=list(REPRODUCTIONS))
    return REPRODUCTIONS[name]
