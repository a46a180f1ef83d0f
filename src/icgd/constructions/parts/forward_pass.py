"""The target network's forward pass, one attention layer for each of its layers, and its slopes.

Where r has a kink at 0, its slope jumps there, and a ramp of width w stands in for the jump:

    1 - relu(w - z) / w + relu(-z) / w

Below 0 two numbers of size |z| / w cancel, so that rounding costs |z| / w units of it. At relu(z)
the slope is the same, and there nothing cancels. So a ramp is evaluated at relu(z), by an MLP, and
may be as narrow as it likes. If r is relu itself, the stream holds relu(z) already.
"""

from __future__ import annotations

from icgd.problems.activations import RELU, Activation
from icgd.problems.functions import KinkedFunction
from icgd.problems.mlp import MLP
from icgd.problems.optimisers.rule import WEIGHTS
from icgd.program.instructions import ONE, ApplyUnits, Combination, MapSlots, Summand
from icgd.program.program import Layer


def units_slot(layer: int) -> str:
    """The slot of p_j; p_0 is the input."""
    return "x" if layer == 0 else f"units_{layer}"


def bias_slot(target: MLP) -> str | None:
    """The slot that the last column of every matrix multiplies, if the network has biases."""
    return ONE if target.biases else None


def has_kink(activation: Activation) -> bool:
    """Whether the slope of the activation jumps at 0."""
    return isinstance(activation.value, KinkedFunction) and bool(activation.value.knots)


def positive_slot(target: MLP, layer: int) -> str:
    """The slot of relu(z_j), where r has a kink: that of p_j if r is relu."""
    is_relu = target.layer_activation(layer).value == RELU
    return units_slot(layer) if is_relu else f"positive_{layer}"


def positive_layers(target: MLP) -> list[int]:
    """The layers with a kink that need a slot of their own for relu(z_j)."""
    layers = range(1, target.depth + 1)
    kinked = [layer for layer in layers if has_kink(target.layer_activation(layer))]
    return [layer for layer in kinked if positive_slot(target, layer) != units_slot(layer)]


def forward_pass(target: MLP, weights: str = WEIGHTS) -> list[Layer]:
    """p_j = r(V_j p_{j-1}) for j = 1 .. N, into slots `units_1 .. units_N`.

    The matrices V_j stand in slots `weights_1 .. weights_N`, or in those of another kind.
    """
    return [
        Layer(
            f"forward {j}",
            (_apply(target, j, target.layer_activation(j).value.name, units_slot(j), weights),),
        )
        for j in range(1, target.depth + 1)
    ]


def slopes(target: MLP) -> list[Layer]:
    """r'(V_j p_{j-1}) for all layers at once, into slots `slope_1 .. slope_N`.

    Where r has a kink it is relu(V_j p_{j-1}) instead, unless r is relu. `kinked_slopes` does the
    rest. So no layer is needed if r is relu in all of them.
    """
    instructions = []
    for j in range(1, target.depth + 1):
        if not has_kink(target.layer_activation(j)):
            instructions.append(
                _apply(target, j, target.layer_activation(j).derivative.name, f"slope_{j}")
            )
        elif j in positive_layers(target):
            instructions.append(_apply(target, j, RELU.name, positive_slot(target, j)))
    return [Layer("slopes", tuple(instructions))] if instructions else []


def kinked_slopes(target: MLP) -> tuple[MapSlots, ...]:
    """r'(z_j) from relu(z_j), wherever r has a kink, into the slots `slope_j`."""
    layers = range(1, target.depth + 1)
    return tuple(_slope(target, j) for j in layers if has_kink(target.layer_activation(j)))


def _slope(target: MLP, layer: int) -> MapSlots:
    positive = Combination.of(positive_slot(target, layer))
    slope = Summand(positive, target.layer_activation(layer).derivative.name)
    return MapSlots((slope,), ONE, (), 0.0, f"slope_{layer}")


def _apply(
    target: MLP, layer: int, function: str, write: str, weights: str = WEIGHTS
) -> ApplyUnits:
    inputs = units_slot(layer - 1)
    return ApplyUnits(f"{weights}_{layer}", inputs, function, write, bias_slot(target))
