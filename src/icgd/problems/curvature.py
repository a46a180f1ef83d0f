r"""How strongly a linear model's risk curves: which steps are safe, and how fast they converge.

With s_i = mu'(<w, x_i>) the Hessian of the smooth part is

    H(w) = scale * sum_i s_i x_i x_i^T + l2 * I    (0 instead of l2 for the intercept)

It grows with every s_i, so the least and the largest s_i on a range of scores give one matrix below
and one above all H(w); their extreme eigenvalues are alpha and beta. They cost O(n d^2 + d^3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from icgd.errors import SettingError
from icgd.problems.linear_model import Design, LinearModel
from icgd.problems.proximal_step import ProximalStep
from icgd.shapes import Inputs, Labels, Parameters

Scores = tuple[Labels, Labels]
"""The least and the largest score of each example."""


@dataclass(frozen=True)
class Curvature:
    """Every Hessian has its eigenvalues between `smallest` (alpha) and `largest` (beta)."""

    smallest: float
    largest: float

    @property
    def condition(self) -> float:
        """kappa = beta / alpha."""
        return self.largest / self.smallest if self.smallest > 0 else inf

    def contraction(self, step_size: float) -> float:
        """What an exact step multiplies the distance of any two points by, at most."""
        return max(1 - step_size * self.smallest, step_size * self.largest - 1)


def everywhere(x: Inputs) -> Scores:
    """All scores, which suits links whose slope is bounded."""
    ends = torch.full_like(x[..., :1].double(), inf)
    return -ends, ends


def over_box(model: LinearModel, x: Inputs, box: float) -> Scores:
    """The scores of coefficients in [-box, box]."""
    reach = box * model.design(x).abs().sum(-1, keepdim=True)
    return -reach, reach


def over_ball(model: LinearModel, x: Inputs, center: Parameters, radius: float) -> Scores:
    """The scores of coefficients at most `radius` from `center`, in the 2-norm."""
    design = model.design(x)
    middle = design @ center.double().unsqueeze(-1)
    reach = radius * design.norm(dim=-1, keepdim=True)
    return middle - reach, middle + reach


def common(first: Scores, second: Scores) -> Scores:
    """The scores in both ranges, of each example by itself."""
    return torch.maximum(first[0], second[0]), torch.minimum(first[1], second[1])


def spanned(first: Scores, second: Scores) -> Scores:
    """The scores in and between two ranges, of each example by itself."""
    return torch.minimum(first[0], second[0]), torch.maximum(first[1], second[1])


def curvature(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> Curvature:
    """The curvature of the risk and l2 while the scores stay in `scores`, over all tasks."""
    low, high = scores or everywhere(x)
    least, largest = model.link_function.slopes(low, high)
    if not largest.isfinite().all():
        raise SettingError(
            f"The {model.link} link has no largest slope, so no step size is safe for all "
            "coefficients. Give a step_size, or bound the scores by a box or by "
            "Domain(score=...)."
        )
    design = model.design(x)
    smallest = eigenvalues(model, update, design, least).amin()
    return Curvature(
        smallest=max(0.0, float(smallest)) if smallest.isfinite() else 0.0,
        largest=float(eigenvalues(model, update, design, largest).amax()),
    )


def eigenvalues(model: LinearModel, update: ProximalStep, design: Design, slopes: Tensor) -> Tensor:
    """The eigenvalues of the Hessian where the link has these slopes at the examples.

    They are infinite if an entry of it is beyond the range of numbers.
    """
    scale = model.loss_scale(design.shape[-2])
    hessian = scale * design.mT @ (slopes * design) + update.l2 * model.penalised(design).diag()
    if not hessian.isfinite().all():
        return torch.full_like(hessian[..., 0], inf)
    values: Tensor = torch.linalg.eigvalsh(hessian)
    return values


def step_size(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> float:
    """The step size of `update`, default 1 / beta; all tasks share one, as in a transformer."""
    if update.step_size is not None:
        return update.step_size
    largest = curvature(model, update, x, scores).largest
    return 1 / largest if largest else 1.0  # without curvature nothing moves


def sized(
    model: LinearModel, update: ProximalStep, x: Inputs, scores: Scores | None = None
) -> ProximalStep:
    """`update` with its step size written down."""
    return replace(update, step_size=step_size(model, update, x, scores))
