"""The reproductions by name."""

from __future__ import annotations

from typing import Any

from icgd.errors import UnknownNameError
from icgd.reproductions import cheng_curvature, cheng_loss, cheng_matrices, cot_cost, wang_resources
from icgd.reproductions.reproduction import AbstractReproduction

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
        cot_cost.COST,
    )
}


def reproduction_named(name: str) -> AbstractReproduction[Any, Any]:
    """The reproduction called `name`."""
    if name not in REPRODUCTIONS:
        raise UnknownNameError.of("figure", name, known=list(REPRODUCTIONS))
    return REPRODUCTIONS[name]
