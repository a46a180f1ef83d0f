r"""Direct training: a network of its own is trained on the examples of each prompt.

Networks have no biases. Their first weights are normal with variance 2 / fan-in. Those of the last
layer are a tenth of that in size: 100 epochs are too few to forget what a network says at first
where no example is near. An epoch is one step of Adam on the mean squared error of all
examples. Labels are divided by their root mean square in the prompt, and predictions multiplied by
it, so that no law of labels asks for a learning rate of its own. Prompts are trained together, with
a batch of matrices for each layer; they do not mix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam

from icgd_papers.figures.wu_references import Inputs, Predictions, TokenLabels, label_size
from icgd_papers.training.covariates import normal
from icgd_papers.training.devices import device_named
from icgd_papers.training.tasks import generator_of

LAST_SHARE = 0.1
"""The size of the last layer's first weights, as a share of what keeps the size of outputs."""

EpochPredictions = Float[Tensor, "epoch task"]

PROMPTS_AT_ONCE = 64
"""The weights of so many networks fit the cache."""


@dataclass(frozen=True)
class DirectTraining:
    """How networks are trained on a prompt; the paper gives the width and the epochs."""

    n_layers: int
    hidden_width: int
    n_epochs: int
    learning_rate: float
    seed: int = 0
    device: str = "cpu"

    def predictions(self, x: Inputs, y: TokenLabels) -> EpochPredictions:
        """The predictions at the query after every epoch; the query's label is not read."""
        size = label_size(y)
        parts = zip(x.split(PROMPTS_AT_ONCE), (y / size).split(PROMPTS_AT_ONCE), strict=True)
        found = [torch.stack(list(self._epochs(*part, index))) for index, part in enumerate(parts)]
        return torch.cat(found, dim=1) * size[:, 0]

    def _epochs(self, x: Tensor, y: Tensor, index: int) -> Iterator[Tensor]:
        place = device_named(self.device).place
        x, y = x.to(place, torch.float32), y.to(place, torch.float32)
        weights = self._first_weights(len(x), x.shape[-1], index)
        adam = Adam(weights, lr=self.learning_rate, fused=True)
        for _ in range(self.n_epochs):
            off = outputs_of(weights, x[:, :-1]) - y[:, :-1]
            gradients = torch.autograd.grad(off.square().mean(1).sum(), weights)
            for matrix, gradient in zip(weights, gradients, strict=True):
                matrix.grad = gradient
            adam.step()
            with torch.no_grad():
                yield outputs_of(weights, x[:, -1:])[:, 0].cpu().double()

    def _first_weights(self, n_tasks: int, input_width: int, index: int) -> list[Tensor]:
        generator, place = generator_of(self.seed, index), device_named(self.device).place
        widths = (input_width, *[self.hidden_width] * (self.n_layers - 1), 1)
        scales = [sqrt(2 / fan_in) for fan_in in widths[:-1]]
        scales[-1] *= LAST_SHARE
        drawn = (
            normal(generator, n_tasks, *shape).to(place, torch.float32)
            for shape in pairwise(widths)
        )
        return [(s * matrix).requires_grad_() for s, matrix in zip(scales, drawn, strict=True)]


def outputs_of(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """What the network of each prompt makes of its tokens."""
    for matrix in weights[:-1]:
        x = torch.relu(x @ matrix)
    return (x @ weights[-1])[..., 0]


def best_epochs(predictions: EpochPredictions, labels: Predictions) -> Predictions:
    """For each prompt the prediction of the epoch that is nearest to the label, as printed.

    The epoch is chosen by the answer, so no user could do so.
    """
    best = (predictions - labels).abs().argmin(0, keepdim=True)
    return predictions.gather(0, best)[0]
