r"""Labels by networks of N layers that are drawn anew for each task (App. G of wu).

    y = W_N r(c W_{N-1} ... r(c W_1 x)) with every layer divided by the root of its inputs,

all entries of W_1, ..., W_N ~ N(mean, 1), no biases, c = sqrt(2) for relu and 1 otherwise. The mean
is shifted before the division. So a relu teacher is the network with weights N(mean, I) itself,
times a constant of its sizes. With mean 0 it keeps E[y^2 | x] = |x|^2 / d for every depth and
width. With another mean its outputs grow: the ones matrix in W has norm |mean| sqrt(fan-in) after
the division, which is 2.2 at a width of 20 and mean 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from torch import Tensor

from icgd.errors import DistributionError
from icgd.problems.functions import activation_named
from icgd.problems.settings import count, finite, settle
from icgd_papers.training.covariates import Tokens, normal
from icgd_papers.training.labels import AbstractLabels, TokenLabels

GAINS = {"relu": 2**0.5}
"""c above: relu loses half of the second moment, and sqrt(2) restores it (default 1)."""

MOST_LAYERS = 1000
"""Deeper teachers take seconds to draw, and say hardly more of an input than its size."""

LARGEST_LABEL = 1e18
"""The sum of the squares of larger labels would overflow in float32."""


@final
@dataclass(frozen=True, eq=False)
class Teachers(AbstractLabels):
    """Networks of `n_layers` layers and `hidden_width` units in each hidden one; see above."""

    n_layers: int
    hidden_width: int
    mean: float = 0.0
    activation: str = "relu"
    whitening: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        n_layers = count("n_layers", self.n_layers, most=MOST_LAYERS)
        hidden = count("hidden_width", self.hidden_width)
        settle(self, n_layers=n_layers, hidden_width=hidden, mean=finite("mean", self.mean))
        activation_named(self.activation)

    @property
    def name(self) -> str:
        """The law, its depth and its mean."""
        return f"{super().name}, {self.n_layers} layers, N({self.mean:g}, I)"

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw a network for each task, and apply it to the task's points."""
        function = activation_named(self.activation).value
        gain, signal = GAINS.get(self.activation, 1.0), self.whitened(x)
        widths = [x.shape[-1], *[self.hidden_width] * (self.n_layers - 1), 1]
        for layer, (n_in, n_out) in enumerate(pairwise(widths)):
            signal = function(gain * signal) if layer else signal
            weights = self.mean + normal(generator, len(x), n_in, n_out)
            signal = (signal @ weights) / n_in**0.5
        return _of_moderate_size(signal[..., 0], self.name)

    def bayes(self, x: Tokens, y: TokenLabels) -> None:
        """The mean is unknown: the posterior of the weights has no closed form."""

    def covariance(self, x: Tokens) -> None:
        """The covariance can only be sampled."""

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law."""
        own = {"n_layers": self.n_layers, "hidden_width": self.hidden_width}
        return {**super().description(), **own, "mean": self.mean, "activation": self.activation}


def _of_moderate_size(labels: Tensor, law: str) -> Tensor:
    """The labels, if training can square them."""
    largest = float(labels.abs().max())
    if not largest <= LARGEST_LABEL:  # no number is not below it either
        raise DistributionError(
            f"Labels of {law} overflow: the largest is {largest:.3g}, and training can square "
            f"labels up to {LARGEST_LABEL:.0e}. Give fewer layers, smaller widths, a mean nearer "
            "to 0, or smaller inputs."
        )
    return labels
