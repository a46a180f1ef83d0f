"""A decoder's blocks with their gradients written out, for training on the processor.

Values and gradients are those of `Decoder` by autograd, to rounding. The gradients of all blocks go
straight into one tensor for each role, sums into the stream are done in place, and attention over
few places is by products of whole matrices, of which one is kept for each head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu

EPSILON = 1e-5
"""What layer norm adds to a variance, as in torch."""

SHORT = 64
"""Up to so many places products of whole matrices are faster than torch's flash attention."""

Saved = Sequence[Tensor]
"""What a forward pass keeps for the backward pass."""

Forward = Callable[[Tensor], tuple[Tensor, list[Tensor]]]
"""From qkv (task, place, 3, head, entry) to what is gathered (task, place, head, entry)."""

Backward = Callable[[Tensor, Saved], tuple[Tensor, ...]]
"""From the slopes of what is gathered, (task, head, place, entry), to those of q, k and v."""

N_ATTENTION, N_MLP, N_STACKS = 10, 6, 6
"""The tensors that the two halves of a block keep, and those of a block's own numbers."""


class Block(NamedTuple):
    """The numbers of one block, or of all of them with the block as the first axis."""

    qkv: Tensor
    mix: Tensor
    hidden: Tensor
    out: Tensor
    norms: Tensor
    norm_biases: Tensor

    def unbound(self) -> list[Block]:
        """The blocks one by one; writing into them writes into this."""
        return [Block(*parts) for parts in zip(*(stack.unbind(0) for stack in self), strict=True)]


class FastBlocks(torch.autograd.Function):
    """The stream after all blocks, at the places that are kept, from that before the first."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, n_heads: int, attention: str, kept: slice, *stacks: Tensor
    ) -> Tensor:
        """Go through the blocks; after the last attention, the places that are not kept go."""
        n_tasks, n_places, width = stream.shape
        shape = (n_tasks, n_places, n_heads, width // n_heads)
        attention = keeping_scores(attention, n_places)
        flat, saved = stream.flatten(0, 1), list[Tensor]()
        blocks = Block(*stacks).unbound()
        for block in blocks:
            flat = _attended(flat, block, FORWARD[attention], shape, saved)
            if block is blocks[-1]:
                flat = flat.view(stream.shape)[:, kept].reshape(-1, width)
            flat = _thought(flat, block, saved)
        ctx.save_for_backward(*saved, *stacks)
        ctx.attention, ctx.shape, ctx.kept = attention, shape, kept
        return flat.view(n_tasks, -1, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Go back through the blocks."""
        saved, stacks = ctx.saved_tensors[:-N_STACKS], Block(*ctx.saved_tensors[-N_STACKS:])
        n_tasks, n_places = ctx.shape[:2]
        width = slope.shape[-1]
        slopes = Block(*map(torch.empty_like, stacks))
        blocks, found = stacks.unbound(), slopes.unbound()
        flat = slope.reshape(-1, width)
        for number in reversed(range(len(blocks))):
            own = saved[number * (N_ATTENTION + N_MLP) :][: N_ATTENTION + N_MLP]
            flat = _back_through_mlp(flat, own[N_ATTENTION:], blocks[number], found[number])
            if number == len(blocks) - 1:
                full = flat.new_zeros(n_tasks, n_places, width)
                full[:, ctx.kept] = flat.view(n_tasks, -1, width)
                flat = full.view(-1, width)
            back, own = BACKWARD[ctx.attention], own[:N_ATTENTION]
            flat = _back_through_attention(
                flat, own, blocks[number], found[number], back, ctx.shape
            )
        return (flat.view(n_tasks, n_places, width), None, None, None, *slopes)


Shape = tuple[int, int, int, int]
"""The numbers of tasks, places, heads, and entries of a head."""


def _attended(
    flat: Tensor, block: Block, attend: Forward, shape: Shape, saved: list[Tensor]
) -> Tensor:
    norm = _normed(flat, block, 0)
    qkv = torch.mm(norm[0], block.qkv.mT).view(*shape[:2], 3, *shape[2:])
    gathered, kept = attend(qkv)
    joined = gathered.reshape(flat.shape)
    saved += [flat, *norm, *kept, joined]
    return torch.addmm(flat, joined, block.mix.mT)


def _thought(flat: Tensor, block: Block, saved: list[Tensor]) -> Tensor:
    norm = _normed(flat, block, 1)
    hidden = torch.mm(norm[0], block.hidden.mT)
    active = gelu(hidden)
    saved += [flat, *norm, hidden, active]
    return torch.addmm(flat, active, block.out.mT)


def _normed(flat: Tensor, block: Block, half: int) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of the stream, with the means and the inverse deviations."""
    width, bias = [flat.shape[-1]], block.norm_biases[half]
    norm: tuple[Tensor, Tensor, Tensor] = torch.native_layer_norm(
        flat, width, block.norms[half], bias, EPSILON
    )
    return norm


def _back_through_mlp(slope: Tensor, saved: Saved, block: Block, found: Block) -> Tensor:
    *norm, hidden, active = saved
    torch.mm(slope.mT, active, out=found.out)
    inner = torch.ops.aten.gelu_backward(torch.mm(slope, block.out), hidden)
    torch.mm(inner.mT, norm[1], out=found.hidden)
    return _back_through_norm(torch.mm(inner, block.hidden), norm, block, found, 1).add_(slope)


def _back_through_attention(
    slope: Tensor, saved: Saved, block: Block, found: Block, back: Backward, shape: Shape
) -> Tensor:
    *norm, joined = saved
    torch.mm(slope.mT, joined, out=found.mix)
    outer = torch.mm(slope, block.mix).view(shape).transpose(1, 2)
    inner = slope.new_empty(*shape[:2], 3, *shape[2:])
    parts = inner.permute(2, 0, 3, 1, 4).unbind(0)
    for part, value in zip(parts, back(outer, norm[4:]), strict=True):
        part.copy_(value)
    flat = inner.view(len(slope), -1)
    torch.mm(flat.mT, norm[1], out=found.qkv)
    return _back_through_norm(torch.mm(flat, block.qkv), norm, block, found, 0).add_(slope)


def _back_through_norm(slope: Tensor, norm: Saved, block: Block, found: Block, half: int) -> Tensor:
    stream, _, mean, inverse = norm[:4]
    numbers = block.norms[half], block.norm_biases[half]
    back: Tensor
    back, found.norms[half], found.norm_biases[half] = torch.ops.aten.native_layer_norm_backward(
        slope, stream, [stream.shape[-1]], mean, inverse, *numbers, [True, True, True]
    )
    return back


def _softmax(qkv: Tensor) -> tuple[Tensor, list[Tensor]]:
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    gathered, log_sums = attend(query, key, value, 0.0, True)
    return gathered.transpose(1, 2), [query, key, value, gathered, log_sums]


def _back_through_softmax(slope: Tensor, saved: Saved) -> tuple[Tensor, ...]:
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    slopes: tuple[Tensor, ...] = back(slope, *saved, 0.0, True)
    return slopes


def _short_softmax(qkv: Tensor) -> tuple[Tensor, list[Tensor]]:
    query, key, value = _heads(qkv)
    n_places, width = query.shape[-2:]
    hidden = query.new_full((n_places, n_places), -torch.inf).triu_(1)
    query = query * width**-0.5
    weights = torch.softmax(torch.bmm(query, key.mT).add_(hidden), -1)
    return _gathered(weights, value, qkv), [query, key, value, weights, hidden]


def _back_through_short_softmax(slope: Tensor, saved: Saved) -> tuple[Tensor, ...]:
    query, key, value, weights, _ = saved
    flat = slope.reshape(value.shape)
    inner = torch.bmm(flat, value.mT)
    inner = torch.ops.aten._softmax_backward_data(inner, weights, -1, weights.dtype)
    scaled = torch.bmm(inner, key).mul_(query.shape[-1] ** -0.5)
    slopes = scaled, torch.bmm(inner.mT, query), torch.bmm(weights.mT, flat)
    return tuple(part.view(slope.shape) for part in slopes)


def _relu(qkv: Tensor) -> tuple[Tensor, list[Tensor]]:
    query, key, value = _heads(qkv)
    shares = shares_of_places(query.shape[-2], query.shape[-1], qkv)
    weights = torch.bmm(query, key.mT).relu_().mul_(shares)
    return _gathered(weights, value, qkv), [query, key, value, weights, shares]


def _back_through_relu(slope: Tensor, saved: Saved) -> tuple[Tensor, ...]:
    query, key, value, weights, shares = saved
    flat = slope.reshape(value.shape)
    inner = torch.bmm(flat, value.mT).mul_(shares)
    inner = torch.ops.aten.threshold_backward(inner, weights, 0)
    slopes = torch.bmm(inner, key), torch.bmm(inner.mT, query), torch.bmm(weights.mT, flat)
    return tuple(part.view(slope.shape) for part in slopes)


def _heads(qkv: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values, (task and head, place, entry), each in one piece of memory."""
    n_tasks, n_places, _, n_heads, width = qkv.shape
    flat = (3, n_tasks * n_heads, n_places, width)
    return qkv.permute(2, 0, 3, 1, 4).reshape(flat).unbind(0)


def _gathered(weights: Tensor, value: Tensor, qkv: Tensor) -> Tensor:
    n_tasks, n_places, _, n_heads, width = qkv.shape
    return torch.bmm(weights, value).view(n_tasks, n_heads, n_places, width).transpose(1, 2)


def keeping_scores(attention: str, n_places: int) -> str:
    """The attention, or for short prompts the softmax that keeps its weights."""
    is_short = attention == "softmax" and n_places <= SHORT
    return "short softmax" if is_short else attention


def shares_of_places(n_places: int, head_width: int, like: Tensor) -> Tensor:
    """1 / (i sqrt(head_width)) in row i for the places up to i, and 0 for those after it."""
    n_read = torch.arange(1, n_places + 1, device=like.device, dtype=like.dtype)
    ones = torch.ones_like(n_read).expand(n_places, -1)
    shares: Tensor = (ones / n_read[:, None]).tril() * head_width**-0.5
    return shares


FORWARD: dict[str, Forward] = {
    "softmax": _softmax,
    "short softmax": _short_softmax,
    "relu": _relu,
}
BACKWARD: dict[str, Backward] = {
    "softmax": _back_through_softmax,
    "short softmax": _back_through_short_softmax,
    "relu": _back_through_relu,
}
