"""The target network's backward pass: the loss slope, and a product layer for each layer."""

from __future__ import annotations

from icgd.problems.losses import SlopePart
from icgd.problems.mlp import MLP
from icgd.program.instructions import Combination, MultiplySlots, PullBack
from icgd.program.program import Layer


def loss_argument(part: SlopePart, prediction: str) -> Combination:
    """The argument of a part of the loss slope, from the slot of predictions and the labels."""
    factors = {prediction: part.prediction, "y": part.label}
    used = {slot: factor for slot, factor in factors.items() if factor != 0.0}
    return Combination(tuple(used), tuple(used.values()))


def backward_pass(target: MLP) -> list[Layer]:
    """Turn slot `loss_slope` into slots `delta_1 .. delta_N`, last layer first.

    delta_N = slope_N * loss_slope
    delta_j = slope_j * (weights_{j+1}^T delta_{j+1})
    """
    last = target.depth
    first = MultiplySlots(f"slope_{last}", "loss_slope", write=f"delta_{last}")
    layers = [Layer(f"backward {last}", (first,))]
    for layer in range(last - 1, 0, -1):
        above = layer + 1
        pull_back = PullBack(
            f"weights_{above}", f"delta_{above}", f"slope_{layer}", f"delta_{layer}"
        )
        layers.append(Layer(f"backward {layer}", (pull_back,)))
    return layers
