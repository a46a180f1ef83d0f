"""The target network's forward pass, one attention layer for each of its layers."""

from __future__ import annotations

from icgd.problems.mlp import MLP
from icgd.program.instructions import ONE, ApplyUnits
from icgd.program.program import Layer


def units_slot(layer: int) -> str:
    """The slot of p_j; p_0 is the input."""
    return "x" if layer == 0 else f"units_{layer}"


def bias_slot(target: MLP) -> str | None:
    """The slot that the last column of every matrix multiplies, if the network has biases."""
    return ONE if target.biases else None


def forward_pass(target: MLP) -> list[Layer]:
    """p_j = r(V_j p_{j-1}) for j = 1 .. N, into slots `units_1 .. units_N`."""
    return [
        Layer(
            f"forward {j}",
            (_apply(target, j, target.layer_activation(j).value.name, units_slot(j)),),
        )
        for j in range(1, target.depth + 1)
    ]


def slopes(target: MLP) -> Layer:
    """r'(V_j p_{j-1}) for all layers at once, into slots `slope_1 .. slope_N`."""
    instructions = [
        _apply(target, j, target.layer_activation(j).derivative.name, f"slope_{j}")
        for j in range(1, target.depth + 1)
    ]
    return Layer("slopes", tuple(instructions))


def _apply(target: MLP, layer: int, function: str, write: str) -> ApplyUnits:
    inputs = units_slot(layer - 1)
    return ApplyUnits(f"weights_{layer}", inputs, function, write, bias_slot(target))
