"""The target network's backward pass: the loss slope, and a product layer for each layer."""

from __future__ import annotations

from dataclasses import replace

from icgd.problems.losses import SlopePart
from icgd.problems.mlp import MLP
from icgd.program.instructions import ONE, Combination, Instruction, MultiplySlots, PullBack
from icgd.program.norm_instructions import Covary, ScaleCentred
from icgd.program.program import Layer


def loss_argument(part: SlopePart, prediction: str) -> Combination:
    """The argument of a part of the loss slope, from the slot of predictions and the labels."""
    factors = {prediction: part.prediction, "y": part.label}
    used = {slot: factor for slot, factor in factors.items() if factor != 0.0}
    return Combination(tuple(used), tuple(used.values()))


def backward_pass(target: MLP, loss_slope: str = "loss_slope") -> list[Layer]:
    """Turn the slope of the loss into slots `delta_1 .. delta_N`, last layer first.

    delta_N = slope_N * loss_slope
    delta_j = slope_j * (weights_{j+1}^T delta_{j+1} + what shortcuts pass on)

    A layer with a norm has that in slot `passed_j` first, and takes two layers more.
    """
    layers: list[Layer] = []
    for j in range(target.depth, 0, -1):
        layers.append(Layer(f"backward {j}", _pulled_back(target, j, loss_slope)))
        layers += _through_norm(j) if j in target.norms else []
    return layers


def upstream_layers(target: MLP) -> list[int]:
    """The layers that shortcuts from units lead to, but for the last one.

    What is pulled back to their outputs is needed once more.
    """
    ends = {last for first, last in target.shortcuts if first > 0 and last < target.depth}
    return sorted(ends)


def _pulled_back(target: MLP, layer: int, loss_slope: str) -> tuple[Instruction, ...]:
    write = f"passed_{layer}" if layer in target.norms else f"delta_{layer}"
    slope, above = f"slope_{layer}", layer + 1
    if layer == target.depth:
        return (MultiplySlots(slope, loss_slope, write=write),)
    ends = target.ends(layer)
    plus = tuple(loss_slope if end == target.depth else f"upstream_{end}" for end in ends) or None
    pulled = PullBack(f"weights_{above}", f"delta_{above}", slope, write, plus)
    if layer not in upstream_layers(target):
        return (pulled,)
    return pulled, replace(pulled, slope=ONE, write=f"upstream_{layer}")


def _through_norm(layer: int) -> list[Layer]:
    passed, normed, shared, scale = (
        f"{name}_{layer}" for name in ("passed", "normed", "shared", "scale")
    )
    through = ScaleCentred(passed, scale, f"delta_{layer}", normed, shared)
    return [
        Layer(f"covariance {layer}", (Covary(passed, normed, shared),)),
        Layer(f"back through norm {layer}", (through,)),
    ]
