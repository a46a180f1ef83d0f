r"""How large the quantities of a training run can become on the domain.

    |z_j| <= k_{j-1} box max|p_{j-1}|,   |p_j| <= max |r| on [-|z_j|, |z_j|]

    |delta_N| <= max |r'| max |u|,   |delta_j| <= max |r'| k_{j+1} box max|delta_{j+1}|

A construction fits its functions on these ranges. Outputs get a `margin` on top, for the error
of the fitted activation itself. With biases, |z_j| is larger by the box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from icgd.problems.activations import Activation
from icgd.problems.functions import ScalarFunction
from icgd.problems.losses import SlopePart
from icgd.problems.problem import Problem

ROUNDING_ROOM = 1 + 2.0**-10
"""Ranges are taken this much larger, so that no rounding leaves them."""

LEAST_REACH = 2.0**-200
"""Inputs are taken to be at least this large: proofs allow for underflow, which is far smaller."""

LARGEST_ARGUMENT = 1e12
"""Beyond this the rounding of a preactivation is as large as the features of an activation."""


@dataclass(frozen=True)
class Ranges:
    """Largest sizes over the whole domain: of preactivations and of layer outputs p_0 .. p_N."""

    preactivations: tuple[float, ...]
    outputs: tuple[float, ...]


def _largest_value(activation: Activation, reach: float) -> float:
    return largest_size(activation.value, reach)


def ranges_on_domain(
    problem: Problem,
    margin: float,
    largest_output: Callable[[Activation, float], float] = _largest_value,
) -> Ranges:
    """Propagate the bounds of the domain and the box through the target network."""
    target = problem.network
    preactivations: list[float] = []
    outputs = [max(problem.domain.x, LEAST_REACH)]
    for layer, fan_in in enumerate(target.widths[:-1], start=1):
        preactivations.append(problem.gradient_step.box * (fan_in * outputs[-1] + target.biases))
        activation = target.layer_activation(layer)
        outputs.append(largest_output(activation, preactivations[-1]) + margin)
    return Ranges(tuple(preactivations), tuple(outputs))


@dataclass(frozen=True)
class BackwardRanges:
    """Largest sizes of the loss slope, of slopes r', of V_{j+1}^T delta_{j+1} and of delta_j.

    Entry j - 1 belongs to layer j; the last of `pulled_back` is the loss slope itself.
    """

    slopes: tuple[float, ...]
    pulled_back: tuple[float, ...]
    deltas: tuple[float, ...]


def backward_ranges(problem: Problem, ranges: Ranges, margin: float) -> BackwardRanges:
    """Propagate the bounds of the forward pass through the backward pass."""
    target = problem.network
    slopes = [
        largest_size(target.layer_activation(layer).derivative, reach) + margin
        for layer, reach in enumerate(ranges.preactivations, start=1)
    ]
    pulled_back = [largest_loss_slope(problem, ranges.outputs[-1]) + margin]
    deltas = [slopes[-1] * pulled_back[0]]
    for layer in range(target.depth - 1, 0, -1):
        pulled_back.insert(0, target.widths[layer + 1] * problem.gradient_step.box * deltas[0])
        deltas.insert(0, slopes[layer - 1] * pulled_back[0])
    return BackwardRanges(tuple(slopes), tuple(pulled_back), tuple(deltas))


def largest_gradient(problem: Problem, ranges: Ranges, margin: float) -> float:
    """The largest entry of the gradient, as the update scales it, with its weight decay."""
    update, deltas = problem.gradient_step, backward_ranges(problem, ranges, margin).deltas
    sizes = [max(p, 1.0 * problem.network.biases) for p in ranges.outputs[:-1]]
    largest = max(delta * p for delta, p in zip(deltas, sizes, strict=True))
    return update.gradient_factor / 2 * largest + update.rule(0).decay * update.box


def loss_parts(problem: Problem) -> tuple[SlopePart, ...]:
    """The summands of the loss slope; none if it is no sum of functions of one variable."""
    return problem.loss_function.slope_parts or ()


def coupled_outputs(problem: Problem, expected: str) -> str | None:
    """Why a construction cannot serve a loss whose slope is not what it expects, or None."""
    if problem.loss_function.slope_parts is not None:
        return None
    return (
        f"the slope of the {problem.loss} loss couples all outputs, and is not {expected}; the "
        "logistic loss (one output a class) is."
    )


def largest_loss_slope(problem: Problem, prediction: float) -> float:
    """max |u| for predictions up to this size; a share of a class is at most 1."""
    if problem.loss_function.is_softmax:
        return 1.0 + problem.domain.y
    return sum(
        largest_size(part.function, largest_loss_argument(problem, part, prediction))
        for part in loss_parts(problem)
    )


def largest_loss_argument(problem: Problem, part: SlopePart, prediction: float) -> float:
    """Largest argument of a part of the loss slope."""
    return abs(part.prediction) * prediction + abs(part.label) * problem.domain.y


def largest_argument(problem: Problem, ranges: Ranges) -> float:
    """Largest argument of any function: of an activation, of the loss slope, or a prediction."""
    prediction = ranges.outputs[-1]
    in_loss = (largest_loss_argument(problem, part, prediction) for part in loss_parts(problem))
    return max(*ranges.preactivations, prediction, *in_loss)


def largest_size(function: ScalarFunction, reach: float) -> float:
    """max |f| on [-reach, reach]."""
    end = torch.tensor(reach, dtype=torch.float64)
    least, largest = function.bounds(-end, end)
    return float(torch.maximum(-least, largest))


def without_digits(problem: Problem) -> str | None:
    """Why no construction can serve the problem whose preactivations get too large, if they do."""
    largest = largest_argument(problem, ranges_on_domain(problem, margin=0.0))
    if largest <= LARGEST_ARGUMENT:
        return None
    return (
        f"its preactivations can reach {largest:.3g} on the domain, where float64 leaves "
        "no digits to evaluate an activation; use a smaller box or domain."
    )
