"""The buffers of a model: tensors that forward passes may change, and no gradient does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Buffers = dict[str, Tensor]
"""Copies of buffers, by name."""


def copied_buffers(model: nn.Module) -> Buffers:
    """Copies of all buffers."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


@torch.no_grad()
def put_buffers(model: nn.Module, buffers: Buffers) -> None:
    """Put copies back into their buffers, bit for bit."""
    for name, buffer in model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
