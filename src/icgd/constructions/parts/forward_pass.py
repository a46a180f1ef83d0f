"""The target network's forward pass, one attention layer for each of its layers."""

from __future__ import annotations

from icgd.problems.mlp import MLP
from icgd.program.instructions import ApplyUnits
from icgd.program.program import Layer


def units_slot(layer: int) -> str:
    """The slot of p_j; p_0 is the input."""
    return "x" if layer == 0 else f"units_{layer}"


def forward_pass(target: MLP) -> list[Layer]:
    """p_j = r(V_j p_{j-1}) for j = 1 .. N, into slots `units_1 .. units_N`."""
    return [
        Layer(
            title=f"forward {layer}",
            instructions=(
                ApplyUnits(
                    weights=f"weights_{layer}",
                    inputs=units_slot(layer - 1),
                    function=target.layer_activation(layer).value.name,
                    write=units_slot(layer),
                ),
            ),
        )
        for layer in range(1, target.depth + 1)
    ]


def slopes(target: MLP) -> Layer:
    """r'(V_j p_{j-1}) for all layers at once, into slots `slope_1 .. slope_N`."""
    instructions = [
        ApplyUnits(
            weights=f"weights_{layer}",
            inputs=units_slot(layer - 1),
            function=target.layer_activation(layer).derivative.name,
            write=f"slope_{layer}",
        )
        for layer in range(1, target.depth + 1)
    ]
    return Layer("slopes", tuple(instructions))
