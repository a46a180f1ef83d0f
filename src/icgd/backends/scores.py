"""The scores <w, x> of a linear model, which must stay in the range that its heads are made for."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from icgd.errors import OverflowedRunError
from icgd.program.grid_instructions import PredictMean
from icgd.program.layout import Layout
from icgd.shapes import Inputs, Labels, Parameters, Stream


def linear_scores(parameters: Parameters, x: Inputs) -> Labels:
    """The scores <w, x>, with the intercept if there is one coefficient more than inputs."""
    width = x.shape[-1]
    intercept = parameters[..., width:].sum(-1)[..., None, None]
    return x @ parameters[..., :width].unsqueeze(-1) + intercept


def read_point(instruction: PredictMean, layout: Layout, stream: Stream) -> Parameters:
    """The weights whose scores an instruction takes, with the velocities that it adds to them."""
    sums: dict[str, Tensor] = {}
    for name, read, factor in instruction.products():
        part = factor * stream[..., 0, layout.range_of(name)]
        sums[read] = sums[read] + part if read in sums else part
    return torch.cat(list(sums.values()), dim=-1)


def require_scores(scores: Labels, reach: float, where: str) -> None:
    """Raise `OverflowedRunError` if a score leaves the range; `where` says what the rows are."""
    if not scores.numel() or float(torch.linalg.vector_norm(scores, inf)) <= reach:
        return
    outside = ~(scores.abs() <= reach)
    row = int(outside.nonzero()[0, -2])
    raise OverflowedRunError(
        f"The score <w, x> at {where} {row} (counted from 0) is {float(scores[outside][0]):.6g}, "
        f"but the heads are made for scores up to {reach:.6g}. Compile with a larger "
        "Domain(score=...), or use a smaller step size or box."
    )
