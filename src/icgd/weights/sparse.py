"""Sparse weights in COO format for files, with a description of the layers that use them.

`torch.sparse_coo_tensor(NAME.indices, NAME.values)` is the dense weight called NAME; entries are
sorted by head or hidden unit. All other weights are ordinary tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from icgd.environment import require_memory
from icgd.layers import ActivationAttention, GridAttention, KernelAttention, MLPLayer, SparseWeights
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.program.wires import Heads, Kernel
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import summarise

AXES = {
    **dict.fromkeys(("W_Q", "W_K", "W_V"), ("head", "model", "feature")),
    "W_O": ("head", "feature", "model"),
    "W_in": ("model", "head"),
    "W_out": ("head", "model"),
}
"""The axes of each weight in the dense transformer; hidden units take the axis of heads."""

ENTRY_BYTES = 3 * 4 + 8
"""The most bytes of an entry in a file: three indices and a number."""


def sparse_weights(program: AbstractProgram) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all tensors by name, and the order, kinds and shapes of the layers as plain data.

    Layers are lowered one by one, so that at most one is in memory twice.
    """
    n_entries = summarise(program, n_tokens=1).nonzeros
    file = f"A file of {n_entries:,} weights that are not 0"
    require_memory(file, ENTRY_BYTES * n_entries, "Save with weights='none'.")
    order: dict[str, Any]
    named: dict[str, Layer] = {}

    def names(prefix: str, layers: tuple[Layer, ...]) -> list[str]:
        numbered = {f"{prefix}{number}": layer for number, layer in enumerate(layers)}
        named.update(numbered)
        return list(numbered)

    if isinstance(program, StackProgram):
        block, n_common = names("block.", program.block), len(program.common)
        later = [names(f"ends.{step}.", end) for step, end in enumerate(program.schedule) if step]
        order = {
            "common": block[:n_common],
            "ends": [block[n_common:], *later] if program.schedule else [],
            "n_repeats": program.n_repeats,
            "final": names("final.", program.prediction),
        }
    else:
        first, *common = names("", program.layers)
        order = {"finds": first, "common": common}
    tensors: dict[str, Tensor] = {}
    layers = {name: _layer(name, layer, program, tensors) for name, layer in named.items()}
    return tensors, {"d_model": program.layout.width, **order, "layers": layers}


def _layer(
    name: str, layer: Layer, program: AbstractProgram, tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Add the weights of a layer to `tensors`, and return its description."""
    module = lower_layer(layer, program, torch.float64, is_sparse=True)
    shapes: dict[str, list[int]] = {}
    for weight_name, weights in module.named_children():
        if isinstance(weights, SparseWeights):
            sizes = dict(zip(("head", "model", "feature"), weights.shape, strict=True))
            places, axes = weights.places(), AXES[weight_name]
            tensors[f"{name}.{weight_name}.indices"] = torch.stack([places[axis] for axis in axes])
            tensors[f"{name}.{weight_name}.values"] = weights.values
            shapes[weight_name] = [sizes[axis] for axis in axes]
    dense_weights = module.named_parameters()
    tensors.update({f"{name}.{weight_name}": dense for weight_name, dense in dense_weights})
    return {"title": layer.title, **_kind(layer, module, program), "shapes": shapes}


def _kind(layer: Layer, module: nn.Module, program: AbstractProgram) -> dict[str, Any]:
    """Return the kind of a layer, and what it computes besides its weights."""
    match module:
        case GridAttention():
            return {"kind": "chain"}
        case KernelAttention():
            heads = [family for family in layer.wires(program) if isinstance(family, Heads)]
            patterns = [
                {"kernel": family.pattern.name, "shape": family.pattern.shape}
                if isinstance(family.pattern, Kernel)
                else {"itself": family.pattern}
                for family in heads
            ]
            kind = {"kind": layer.kind.value, "patterns": patterns}
            return kind | {"example_feature": module.example_feature}
        case ActivationAttention() | MLPLayer() if isinstance(program, StackProgram):
            return {"kind": layer.kind.value, "activation": program.activation}
        case _:
            return {"kind": layer.kind.value}
