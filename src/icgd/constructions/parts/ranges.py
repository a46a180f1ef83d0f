r"""How large the quantities of a training run can become on the domain.

    |z_j| <= k_{j-1} box max|p_{j-1}|,   |p_j| <= max |r| on [-|z_j|, |z_j|]

    |delta_N| <= max |r'| max |u|,   |delta_j| <= max |r'| k_{j+1} box max|delta_{j+1}|

A construction fits its functions on these ranges. Outputs get a `margin` on top, for the error
of the fitted activation itself. With biases, |z_j| is larger by the box.

A norm of k numbers is at most sqrt(k), and passes on at most (2 + sqrt(k)) / sqrt(eps) of what is
pulled back to it; fitted roots may make both twice as large. Shortcuts add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch

from icgd.constructions.parts.forward_pass import largest_norm
from icgd.problems.activations import Activation
from icgd.problems.functions import ScalarFunction
from icgd.problems.losses import SlopePart
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem

ROUNDING_ROOM = 1 + 2.0**-10
"""Ranges are taken this much larger, so that no rounding leaves them."""

LEAST_REACH = 2.0**-200
"""Inputs are taken to be at least this large: proofs allow for underflow, which is far smaller."""

LARGEST_ARGUMENT = 1e12
"""Beyond this the rounding of a preactivation is as large as the features of an activation."""


@dataclass(frozen=True)
class Ranges:
    """Largest sizes over the whole domain: of preactivations and of layer outputs p_0 .. p_N.

    Preactivations are those after a norm; `linear` has V_j p_{j-1} itself.
    """

    preactivations: tuple[float, ...]
    outputs: tuple[float, ...]
    linear: tuple[float, ...]


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
    linear: list[float] = []
    outputs = [max(problem.domain.x, LEAST_REACH)]
    for layer, fan_in in enumerate(target.widths[:-1], start=1):
        linear.append(problem.gradient_step.box * (fan_in * outputs[-1] + target.biases))
        norm = largest_norm(target.widths[layer])
        preactivations.append(norm if layer in target.norms else linear[-1])
        own = largest_output(target.layer_activation(layer), preactivations[-1]) + margin
        outputs.append(own + sum(outputs[source] for source in target.sources(layer)))
    return Ranges(tuple(preactivations), tuple(outputs), tuple(linear))


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
    slope = largest_loss_slope(problem, ranges.outputs[-1]) + margin
    pulled_back = {target.depth: slope * (problem.domain.rate or 1.0)}
    deltas: dict[int, float] = {}
    for layer in range(target.depth, 0, -1):
        if layer < target.depth:
            pulled = target.widths[layer + 1] * problem.gradient_step.box * deltas[layer + 1]
            pulled_back[layer] = pulled + sum(pulled_back[end] for end in target.ends(layer))
        deltas[layer] = slopes[layer - 1] * pulled_back[layer] * _norm_gain(target, layer)
    rows = [[part[layer] for layer in sorted(part)] for part in (pulled_back, deltas)]
    return BackwardRanges(tuple(slopes), *map(tuple, rows))


def _norm_gain(target: MLP, layer: int) -> float:
    """How many times larger a norm can make what is pulled back through it."""
    if layer not in target.norms:
        return 1.0
    return 2 * (2 + largest_norm(target.widths[layer])) / sqrt(target.norm_eps)


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
    ranges = ranges_on_domain(problem, margin=0.0)
    largest = max(largest_argument(problem, ranges), *ranges.linear)
    if largest <= LARGEST_ARGUMENT:
        return None
    return (
        f"its preactivations can reach {largest:.3g} on the domain, where float64 leaves "
        "no digits to evaluate an activation; use a smaller box or domain."
    )
