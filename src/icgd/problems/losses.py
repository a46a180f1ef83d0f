r"""Losses, known by their slope u(p, y) = d loss / d p.

A loss whose slope is a sum of functions of one variable, each of a combination of prediction
and label, says so in `slope_parts`; that is what a construction by one-variable approximation
needs. All enter the risk as (1 / 2n) sum_i loss(p_i, y_i).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import SettingError
from icgd.problems.activations import CLIP, DOUBLE, NEGATE, SIGMOID
from icgd.problems.functions import ScalarFunction
from icgd.problems.settings import by_name, named, positive
from icgd.shapes import Labels


@dataclass(frozen=True)
class SlopePart:
    """The summand `function(prediction * p + label * y)` of a loss's slope."""

    prediction: float
    label: float
    function: ScalarFunction


@dataclass(frozen=True)
class Loss:
    """`value` sums over the outputs; `slope` is its gradient with respect to the prediction.

    If it `is_softmax`, that is softmax(p) - y, for labels that add up to 1.
    """

    name: str
    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    slope_parts: tuple[SlopePart, ...] | None
    labels_are_probabilities: bool = False
    is_softmax: bool = False


def _from_parts(
    name: str,
    value: Callable[[Tensor, Tensor], Tensor],
    *parts: SlopePart,
    labels_are_probabilities: bool = False,
) -> Loss:
    def slope(prediction: Labels, label: Labels) -> Labels:
        terms = [p.function(p.prediction * prediction + p.label * label) for p in parts]
        return torch.stack(terms).sum(0)

    return Loss(name, value, slope, parts, labels_are_probabilities)


SQUARED = _from_parts("squared", lambda p, y: ((p - y) ** 2).sum(-1), SlopePart(1.0, -1.0, DOUBLE))
HUBER = _from_parts(
    "huber",
    lambda p, y: functional.huber_loss(p, y, reduction="none").sum(-1),
    SlopePart(1.0, -1.0, CLIP),
)
LOGISTIC = _from_parts(
    "logistic",
    lambda p, y: (torch.logaddexp(p, torch.zeros_like(p)) - y * p).sum(-1),
    SlopePart(1.0, 0.0, SIGMOID),
    SlopePart(0.0, 1.0, NEGATE),
    labels_are_probabilities=True,
)
# Its slope couples all outputs through the log-sum-exp: no sum of one-variable functions.
CROSS_ENTROPY = Loss(
    "cross_entropy",
    lambda p, y: p.logsumexp(-1) - p.mul(y).sum(-1),
    lambda p, y: p.softmax(-1) - y,
    slope_parts=None,
    labels_are_probabilities=True,
    is_softmax=True,
)

SMOOTH_L1 = "smooth_l1_"
"""A smooth l1 loss is called by its width, as in smooth_l1_0.5."""


@lru_cache
def smooth_l1(beta: float) -> Loss:
    """|p - y| - beta / 2, but a parabola where |p - y| < beta; huber is the one of beta = 1."""
    beta = positive("beta", beta)
    if beta == 1.0:
        return HUBER
    return _from_parts(
        f"{SMOOTH_L1}{beta!r}",
        lambda p, y: functional.smooth_l1_loss(p, y, reduction="none", beta=beta).sum(-1),
        SlopePart(1 / beta, -1 / beta, CLIP),
    )


LOSSES = by_name(SQUARED, LOGISTIC, HUBER, CROSS_ENTROPY)


def loss_named(name: str) -> Loss:
    """Return the loss called `name`."""
    if isinstance(name, str) and name.startswith(SMOOTH_L1):
        with suppress(ValueError, SettingError):
            return smooth_l1(float(name.removeprefix(SMOOTH_L1)))
    return named("loss", name, LOSSES)
