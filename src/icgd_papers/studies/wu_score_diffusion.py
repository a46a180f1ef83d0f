r"""The diffusion of wu-score: noise, what a network learns of it, and the way back.

    x_t = m x_0 + s z,    m = exp(-t/2), s^2 = 1 - m^2, z ~ N(0, I)

The network f(x, t) does not return the score itself, which grows like 1 / s, but a velocity:

    score(x, t) = -x - (m / s) f(x, t),    best f = E[m z - s x_0 | x_t = x]

Its size is of order 1 at every time. |f - label|^2 is (s / m)^2 |score - score'|^2, so that the
mean squared error on examples at times drawn from a density q is (H.1) with the weight
gamma(t) = q(t) s^2 / m^2 if labels are made of exact scores, and (H.2) if they are m z - s x_0,
which is what grad log p(x_t | x_0) = -z / s becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1, log, sqrt

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, SettingError, brief
from icgd.problems.settings import finite, settle, within
from icgd_papers.studies.wu_score_laws import Law, Points, Times, decay, spread
from icgd_papers.training.covariates import normal

LATEST = 20.0
"""x_t keeps exp(-10) of x_0: later there is nothing to learn, and labels lose their digits."""

TARGETS = ("exact", "denoising")
"""Labels are made of the exact score, as in Problem 3, or of the noise that was added."""

Score = Callable[[Points, Times], Points]
"""A score: points and their times become gradients of log p_t."""


@dataclass(frozen=True)
class Span:
    """The times of a diffusion, from T_0 = `first` > 0 to T = `last`."""

    first: float = 0.02
    last: float = 5.0

    def __post_init__(self) -> None:
        settle(self, first=finite("first", self.first), last=finite("last", self.last))
        if self.first <= 0:
            raise SettingError(
                f"A diffusion must begin at a time above 0, got first={brief(self.first)}: data "
                "without noise may have no score. Give a small time T_0, such as 0.02."
            )
        within("last", self.last, self.first, LATEST)
        if self.first == self.last:
            raise SettingError(
                f"An interval of times needs first < last, got [{self.first}, {self.last}]."
            )

    def drawn(self, n_times: int, generator: np.random.Generator) -> Times:
        """Times whose logarithm is uniform."""
        share = torch.from_numpy(generator.random(n_times))
        return self.first * torch.exp(share * log(self.last / self.first))

    def backwards(self, n_steps: int) -> Times:
        """n_steps + 1 times from the last to the first, each the same share of the one before."""
        share = torch.linspace(1, 0, n_steps + 1, dtype=torch.float64)
        return self.first * torch.exp(share * log(self.last / self.first))

    def place(self, times: Times) -> Times:
        """log(s / m) on a scale from -1, at the first time, to 1, at the last."""
        low, high = (log(expm1(end)) for end in (self.first, self.last))
        return 2 * (torch.log(torch.expm1(times)) - low) / (high - low) - 1


def inputs(x: Points, times: Times, span: Span) -> Tensor:
    """What the network reads: x, m x, x / 4s, the place of t, and the constant 1 for biases."""
    m, s = decay(times)[:, None], spread(times)[:, None]
    return torch.cat((x, m * x, x / (4 * s), span.place(times)[:, None], torch.ones_like(m)), dim=1)


def velocity_of(score: Points, x: Points, times: Times) -> Points:
    """The f that has this score."""
    return -(score + x) * (spread(times) / decay(times))[:, None]


def score_of(velocity: Points, x: Points, times: Times) -> Points:
    """The score that has this f."""
    return -x - velocity * (decay(times) / spread(times))[:, None]


@dataclass(frozen=True, eq=False)
class Prompt:
    """Examples: what the network reads, the labels, and the velocities of the exact score."""

    x: Tensor
    y: Tensor
    exact: Tensor

    @property
    def signal(self) -> float:
        """What there is to learn: half the mean square of the exact velocities."""
        return float(self.exact.square().sum(-1).mean() / 2)


def prompt(
    law: Law, targets: str, span: Span, n_examples: int, generator: np.random.Generator
) -> Prompt:
    """Draw examples: clean points, times, noise.

    For exact scores clean points are drawn from the mixture, and for denoising from the data.
    """
    is_exact = targets == "exact"
    clean = (law.mixture.sample if is_exact else law.clean)(n_examples, generator)
    times = span.drawn(n_examples, generator)
    m, s = decay(times)[:, None], spread(times)[:, None]
    noise = normal(generator, *clean.shape)
    x = m * clean + s * noise
    exact = velocity_of(law.mixture.score(x, times), x, times)
    labels = exact if is_exact else m * noise - s * clean
    return Prompt(inputs(x, times, span), labels, exact)


def noised(clean: Points, time: float, generator: np.random.Generator) -> Points:
    """Clean points at a time."""
    m, s = exp(-time / 2), sqrt(-expm1(-time))
    return m * clean + s * normal(generator, *clean.shape)


def reversed_path(
    score: Score,
    start: Points,
    times: Float[Tensor, " time"],
    generator: np.random.Generator,
) -> Iterator[Points]:
    """Points at each of the falling `times`, by the reverse equation dx = (x/2 + score) dt + dW.

    Within a step the score is held, and the equation is then solved exactly.
    """
    x = start
    yield x
    for now, later in pairwise(times.tolist()):
        step = now - later
        held = score(x, torch.full((len(x),), now, dtype=torch.float64))
        noise = sqrt(expm1(step)) * normal(generator, *x.shape)
        x = exp(step / 2) * x + 2 * expm1(step / 2) * held + noise
        yield x


def sliced_wasserstein(
    first: Points, second: Tensor, n_directions: int, generator: np.random.Generator
) -> float:
    """The root mean square, over random directions, of the 2-Wasserstein distance along each."""
    if first.shape != second.shape:
        raise DataError(
            f"second has shape {tuple(second.shape)}; expected {tuple(first.shape)}, as of first."
        )
    directions = normal(generator, first.shape[1], n_directions)
    directions = directions / directions.norm(dim=0)
    along = [(points @ directions).sort(dim=0).values for points in (first, second)]
    return float((along[0] - along[1]).square().mean().sqrt())
