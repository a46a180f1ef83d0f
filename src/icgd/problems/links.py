r"""Links: how the score z = <w, x> of a linear model says what label to expect.

The inverse link mu turns a score into the expected label. The loss of an example is

    a(z) - y z,    a' = mu,    so that its gradient in w is (mu(z) - y) x,

which is convex because mu rises. For identity, logistic and poisson it is the negative
log-likelihood of normal, Bernoulli and Poisson labels, up to what does not depend on w. For probit
and softplus it is the loss that matches the link, not a likelihood.

    identity  a = z^2 / 2               any label
    logistic  a = log(1 + exp z)        labels in [0, 1]: classes, or shares of a group
    probit    a = z Phi(z) + phi(z)     labels in [0, 1]
    poisson   a = exp z                 labels >= 0: counts, or rates
    softplus  a = -Li_2(-exp z)         labels >= 0
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi

import torch
from torch import Tensor

from icgd.problems.activations import IDENTITY_FUNCTION, NORMAL_DISTRIBUTION, SIGMOID, SOFTPLUS
from icgd.problems.functions import Evaluate, ScalarFunction, SmoothFunction
from icgd.problems.settings import by_name, named
from icgd.shapes import Values

EXP = SmoothFunction("exp", (torch.exp,) * 4, ((),) * 4)
"""Every derivative is itself and rises, so none has a stationary point."""


@dataclass(frozen=True)
class Link:
    """The inverse link `mean` (mu), its integral `potential` (a), and the labels it allows."""

    name: str
    mean: ScalarFunction
    potential: Evaluate
    least_label: float
    largest_label: float
    least_loss: Evaluate
    """A number that the loss of an example with this label is nowhere below."""

    def loss(self, score: Values, label: Values) -> Values:
        """a(z) - y z."""
        return self.potential(score) - label * score

    def slopes(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        """Least and largest slope of mu on [low, high], whose ends may be infinite."""
        return self.mean.derivative().bounds(low, high)

    @property
    def labels(self) -> str:
        """The labels that it allows, in words."""
        if self.least_label == -inf:
            return "any finite labels"
        if self.largest_label == inf:
            return f"labels of at least {self.least_label:g}"
        return f"labels between {self.least_label:g} and {self.largest_label:g}"


# B_2k / (2k + 1)! for k = 1, 2, ...: for t <= log 2 the next would add less than 1e-16.
_BERNOULLI = (
    1 / 36,
    -1 / 3600,
    1 / 211680,
    -1 / 10886400,
    1 / 526901760,
    -691 / 16999766784000,
    1 / 1120863744000,
)


def _dilogarithm(t: Tensor) -> Tensor:
    """-Li_2(1 - exp t) for 0 <= t <= log 2: the series in t, which has no cancellation."""
    total = torch.zeros_like(t)
    for coefficient in reversed(_BERNOULLI):
        total = (total + coefficient) * t * t
    return t * (1 + t / 4 + total)


def _softplus_integral(z: Tensor) -> Tensor:
    """The integral of softplus from -infinity; softplus(z) = z + softplus(-z) mirrors it at 0."""
    below = _dilogarithm(torch.log1p(torch.exp(-z.abs())))
    return torch.where(z > 0, pi**2 / 6 + z * z / 2 - below, below)


def _normal_integral(z: Tensor) -> Tensor:
    return z * NORMAL_DISTRIBUTION(z) + NORMAL_DISTRIBUTION.derivative()(z)


def _at_the_score_of_the_label(y: Tensor) -> Tensor:
    """exp z - y z is least where exp z = y."""
    least: Tensor = y - torch.special.xlogy(y, y)
    return least


def _half_square_below(y: Tensor) -> Tensor:
    """z^2 / 2 - y z is nowhere lower, and softplus has a(z) >= z^2 / 2 for z > 0, else a >= 0."""
    return -y * y / 2


LINKS = by_name(
    Link("identity", IDENTITY_FUNCTION, lambda z: z * z / 2, -inf, inf, _half_square_below),
    Link("logistic", SIGMOID, SOFTPLUS, 0.0, 1.0, torch.zeros_like),
    Link("probit", NORMAL_DISTRIBUTION, _normal_integral, 0.0, 1.0, torch.zeros_like),
    Link("poisson", EXP, torch.exp, 0.0, inf, _at_the_score_of_the_label),
    Link("softplus", SOFTPLUS, _softplus_integral, 0.0, inf, _half_square_below),
)


def link_named(name: str) -> Link:
    """The link called `name`."""
    return named("link", name, LINKS)
