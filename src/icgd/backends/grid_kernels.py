"""Kernels of grid attention: the mean of a link is computed as such, not token by token.

The head is proved to be as close to it as the program's functions say. A step costs O(n d).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from icgd.backends.kernels import kernel
from icgd.backends.look_up import Kernel
from icgd.backends.scores import require_scores
from icgd.backends.unit_kernels import Machine
from icgd.problems.links import link_named
from icgd.program.grid_instructions import DecaySlot, DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import IS_EXAMPLE, ONE

__all__ = ["Machine"]


def _scores(instruction: PredictMean, machine: Machine) -> Callable[[], Tensor]:
    """<weights, inputs> at every token, in a buffer that is used again."""
    pairs = dict(zip(instruction.weights, instruction.inputs, strict=True))
    (matrix, inputs), *rest = ((machine.slots[w], x) for w, x in pairs.items())
    read, factor = machine.slots[inputs], matrix.mT
    buffer = machine.buffer(machine.n_tokens, 1)
    intercepts = [weight for weight, name in rest if name == ONE]

    def compute() -> Tensor:
        torch.matmul(read, factor, out=buffer)
        for intercept in intercepts:
            buffer.add_(intercept)
        return buffer

    return compute


@kernel.register
def _(instruction: PredictMean, machine: Machine) -> Kernel:
    compute, mean = _scores(instruction, machine), link_named(instruction.mean).mean
    write, checked = machine.slots[instruction.write], machine.tokens_where(instruction.checked)
    in_training, n_done = instruction.checked == IS_EXAMPLE, 0

    def predict() -> None:
        nonlocal n_done
        scores, n_done = compute(), n_done + 1
        where = f"step {n_done}, example" if in_training else "query"
        require_scores(scores[..., checked, :], instruction.reach, where)
        write.copy_(mean(scores))

    return predict


@kernel.register
def _(instruction: DecaySlot, machine: Machine) -> Kernel:
    target, factor = machine.slots[instruction.slot], 1 + instruction.decay
    return lambda: target.mul_(factor)


@kernel.register
def _(instruction: DescendExamples, machine: Machine) -> Kernel:
    means, labels = (
        machine.slots[name][..., machine.examples, :]
        for name in (instruction.mean, instruction.label)
    )
    inputs = [
        None if name == ONE else machine.slots[name][..., machine.examples, :]
        for name in instruction.inputs
    ]
    targets = [machine.slots[name] for name in instruction.weights]
    scale = instruction.scale * instruction.share(means.shape[-2])

    def descend() -> None:
        left = (means - labels).mul_(scale)
        for target, read in zip(targets, inputs, strict=True):
            target += left.sum(-2, keepdim=True) if read is None else left.mT @ read

    return descend


@kernel.register
def _(instruction: ShrinkSlot, machine: Machine) -> Kernel:
    target, bound = machine.slots[instruction.slot], instruction.bound
    threshold = instruction.threshold

    def shrink() -> None:
        target.sub_(target.clamp(-threshold, threshold)).clamp_(-bound, bound)

    return shrink
