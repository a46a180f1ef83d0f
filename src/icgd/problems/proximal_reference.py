r"""(Proximal) gradient descent on a linear model, exactly and in float64: the oracle of the chain.

    g  = scale * sum_i (mu(<w, x_i>) - y_i) x_i
    w <- S(w - step_size * (g + l2 * w)),    S(v) = relu(v - c) - relu(-v - c),  c = step_size * l1

and clipped, if there is a box: that is the proximal step of the penalty within it. The intercept
is the coefficient of a constant input 1; l2 and c are 0 for it. Everything takes one task or a
batch of them. A step costs O(n d) a task.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, OverflowedRunError
from icgd.problems.curvature import sized, step_size
from icgd.problems.linear_model import LinearModel, require_data
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.separable import require_minimiser
from icgd.problems.settings import count, positive
from icgd.shapes import History, Inputs, Labels, Parameters


def scores(model: LinearModel, parameters: Parameters, x: Inputs) -> Labels:
    """<w, x>, with the intercept."""
    return model.design(x) @ parameters.double().unsqueeze(-1)


def predict(model: LinearModel, parameters: Parameters, x: Inputs) -> Labels:
    """The expected labels mu(<w, x>)."""
    return model.link_function.mean(scores(model, parameters, x))


def risk(
    model: LinearModel, parameters: Parameters, x: Inputs, y: Labels
) -> Float[Tensor, "*tasks"]:
    """L(w): the sum or mean of a(z_i) - y_i z_i, one number a task."""
    losses = model.link_function.loss(scores(model, parameters, x), y.double())
    return model.loss_scale(x.shape[-2]) * losses.sum((-2, -1))


def objective(
    model: LinearModel, update: ProximalStep, parameters: Parameters, x: Inputs, y: Labels
) -> Float[Tensor, "*tasks"]:
    """L(w) + (l2 / 2) |w|_2^2 + l1 |w|_1, what a run descends."""
    penalised = parameters.double() * model.penalised(parameters.double())
    ridge, lasso = penalised.square().sum(-1) / 2, penalised.abs().sum(-1)
    return risk(model, parameters, x, y) + update.l2 * ridge + update.l1 * lasso


def gradient(
    model: LinearModel, update: ProximalStep, parameters: Parameters, x: Inputs, y: Labels
) -> Parameters:
    """Of L(w) + (l2 / 2) |w|_2^2, the smooth part of the objective."""
    parameters, design = parameters.double(), model.design(x)
    left = predict(model, parameters, x) - y.double()
    slope = (design.mT @ left).squeeze(-1) * model.loss_scale(x.shape[-2])
    return slope + update.l2 * model.penalised(slope) * parameters


def soft_threshold(values: Tensor, threshold: Tensor) -> Tensor:
    """Every value moved towards 0 by its threshold, and no further."""
    return torch.relu(values - threshold) - torch.relu(-values - threshold)


def step(
    model: LinearModel, update: ProximalStep, parameters: Parameters, x: Inputs, y: Labels
) -> Parameters:
    """One exact update; without a step size it costs O(n d^2) more (see `curvature.sized`)."""
    size = step_size(model, update, x)
    moved = parameters.double() - size * gradient(model, update, parameters, x, y)
    if update.l1:
        moved = soft_threshold(moved, size * update.l1 * model.penalised(moved))
    return moved if update.box is None else moved.clamp(-update.box, update.box)


def train(
    model: LinearModel,
    update: ProximalStep,
    initial: Parameters,
    x: Inputs,
    y: Labels,
    n_steps: int,
) -> History:
    """`n_steps` exact updates from `initial`, which is the first entry of the history."""
    _require(model, initial, x, y)
    update = sized(model, update, x)
    history = [initial.double()]
    for _ in range(n_steps):
        history.append(step(model, update, history[-1], x, y))
    return torch.stack(history, dim=-2)


@dataclass(frozen=True)
class Descent:
    """Where a run stopped, after how many steps, and the largest change of its last step."""

    parameters: Parameters
    n_steps: int
    last_change: float
    converged: bool


def descend(
    model: LinearModel,
    update: ProximalStep,
    initial: Parameters,
    x: Inputs,
    y: Labels,
    *,
    tolerance: float,
    most_steps: int,
) -> Descent:
    """Exact updates until none changes a coefficient of any task by more than `tolerance`.

    Raises `SeparableDataError` where no minimiser exists, for steps shorten there all the same.
    """
    _require(model, initial, x, y)
    require_minimiser(model, update, x, y)
    positive("tolerance", tolerance)
    count("most_steps", most_steps)
    update = sized(model, update, x)
    parameters, change = initial.double(), float("inf")
    for n_steps in range(1, most_steps + 1):
        before, parameters = parameters, step(model, update, parameters, x, y)
        change = float((parameters - before).abs().max())
        if change <= tolerance:
            return Descent(parameters, n_steps, change, converged=True)
        if not change < float("inf"):
            raise OverflowedRunError.of("float64", step_size(model, update, x))
    return Descent(parameters, most_steps, change, converged=False)


def _require(model: LinearModel, initial: Parameters, x: Inputs, y: Labels) -> None:
    require_data(model, x, y)
    expected = (*x.shape[:-2], model.n_parameters)
    if tuple(initial.shape) != expected:
        raise DataError.wrong_shape("initial", initial.shape, f"{expected}, a row for each task")
