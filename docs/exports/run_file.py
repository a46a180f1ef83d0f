"""Run a file of sparse weights with torch and safetensors alone, some heads at a time."""

import json

import torch
from safetensors import safe_open
from torch.nn.functional import elu, gelu, silu, softplus

AXES = {"W_Q": "hmf", "W_K": "hmf", "W_V": "hmf", "W_O": "hfm", "W_in": "mh", "W_out": "hm"}
FUNCTIONS = (torch.relu, torch.sigmoid, torch.tanh, torch.cos, elu, gelu, silu, softplus)
ACTIVATIONS = {function.__name__: function for function in FUNCTIONS}


def weights(file, name, part, shape, first, last):
    """The entries of heads first .. last - 1: rows are (head, feature), columns coordinates."""
    index = dict(zip(AXES[part], file.get_tensor(f"{name}.{part}.indices"), strict=True))
    sizes = dict(zip(AXES[part], shape, strict=True))
    width = sizes.get("f", 1)  # a hidden unit is a head of one feature
    ends = torch.searchsorted(index["h"], torch.tensor([first, last], dtype=torch.int32))
    own = slice(*ends.tolist())
    rows = (index["h"][own] - first) * width + (index["f"][own] if "f" in index else 0)
    return width, rows, index["m"][own], file.get_tensor(f"{name}.{part}.values")[own, None]


def read(x, n_heads, width, rows, columns, values):
    """From the stream (model, token) to what heads read of it (head, feature, token)."""
    found = x.new_zeros(n_heads * width, x.shape[1])
    return found.index_add_(0, rows, x[columns] * values).view(n_heads, width, -1)


def update(file, name, layer, x, heads_at_once=256):
    """What a layer adds to the stream x (model, token)."""
    kind, total = layer["kind"], torch.zeros_like(x)
    if kind not in ("attention", "softmax", "product", "mlp"):
        raise NotImplementedError(f"{name} is a layer of kind {kind}, which has no rule here")
    activate = ACTIVATIONS[layer.get("activation", "relu")]
    n_heads = layer["shapes"]["W_out" if kind == "mlp" else "W_O"][0]
    for first in range(0, n_heads, heads_at_once):
        last = min(first + heads_at_once, n_heads)
        w = {p: weights(file, name, p, s, first, last) for p, s in layer["shapes"].items()}
        *inputs, (_, rows, columns, values) = w.values()  # W_O or W_out comes last
        found = [read(x, last - first, *part) for part in inputs]
        if kind == "mlp":
            found = activate(found[0] + file.get_tensor(f"{name}.b_in")[first:last, None, None])
        elif kind == "product":
            found = (found[0] * found[1]).sum(1, keepdim=True) * found[2]
        else:
            scores = found[0].mT @ found[1]
            pattern = scores.softmax(-1) if kind == "softmax" else activate(scores) / x.shape[1]
            found = found[2] @ pattern.mT
        total.index_add_(0, columns, found.flatten(0, 1)[rows] * values)
    return total


def streams(path, stream):
    """The residual stream (token, model) after every layer."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["layers"])
        ends = about["ends"] or [[]] * about["n_repeats"]
        for name in [n for end in ends for n in about["common"] + end] + about["final"]:
            stream = stream + update(file, name, about["layers"][name], stream.T).T
            yield stream
