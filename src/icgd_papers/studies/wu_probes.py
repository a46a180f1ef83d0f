"""Read-outs of a decoder's blocks, and how near predictions are to gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, layer_norm, pad

from icgd_papers.figures.wu_references import Predictions, r_squared
from icgd_papers.figures.wu_setting import PROMPTS_AT_ONCE
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.tasks import Batch

Stream = Float[Tensor, "task width"]

READ_OUT_PENALTY = 1e-3
"""The penalty of a read-out, as a share of the mean square of what it reads."""


@torch.no_grad()
def streams_at_query(model: Decoder, batch: Batch) -> list[Stream]:
    """The stream after each block at the query of each prompt, through a norm.

    The decoder itself reads its last stream through one.
    """
    dtype = next(model.parameters()).dtype
    parts = [
        [layer_norm(stream[:, -1], (model.width,)) for stream in model.streams(part.x, part.y)]
        for part in batch.to("cpu", dtype).split(PROMPTS_AT_ONCE)
    ]
    return [torch.cat(of_block).double() for of_block in zip(*parts, strict=True)]


def read_out(
    known: Float[Tensor, "known width"], labels: Float[Tensor, "known"], asked: Stream
) -> Predictions:
    """A linear function with an intercept, fitted to some prompts, on others."""
    centre, size = known.mean(0), known.std(0).clamp(min=1e-12)
    design, other = (pad((each - centre) / size, (0, 1), value=1.0) for each in (known, asked))
    penalty = READ_OUT_PENALTY * len(known) * torch.eye(design.shape[1], dtype=torch.float64)
    penalty[-1, -1] = 0
    weights = torch.linalg.solve(design.mT @ design + penalty, design.mT @ labels.double())
    predicted: Tensor = other @ weights
    return predicted


@dataclass(frozen=True)
class Compared:
    """A predictor beside descent after each number of steps, and beside other references."""

    predictor: str
    stage: int
    """The number of a block, a penalty or a step; 1 for what has none."""
    r_squared: float
    distances: tuple[float, ...]
    """The mean squared distances to descent, as shares of the variance of the labels."""
    error_cosines: tuple[float, ...]
    """The cosines between its errors and those of descent."""
    to_references: dict[str, float]
    """The distances to other references, by name."""

    @classmethod
    def of(
        cls,
        predictor: str,
        stage: int,
        predictions: Predictions,
        labels: Predictions,
        descent: Sequence[Predictions],
        references: Mapping[str, Predictions],
    ) -> Compared:
        """Compare predictions with those of descent and of references."""
        own = predictions - labels
        return cls(
            predictor,
            stage,
            r_squared(own, labels),
            tuple(distance(predictions, each, labels) for each in descent),
            tuple(float(cosine_similarity(own, each - labels, dim=0)) for each in descent),
            {name: distance(predictions, each, labels) for name, each in references.items()},
        )

    @property
    def nearest(self) -> int:
        """The place in the list of numbers of steps at which descent is nearest."""
        return self.distances.index(min(self.distances))


def distance(first: Predictions, second: Predictions, labels: Predictions) -> float:
    """The mean of (first - second)^2, as a share of the variance of the labels."""
    return float((first - second).square().mean() / labels.var(correction=0))
