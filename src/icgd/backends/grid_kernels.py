"""Kernels of grid attention: the mean of a link is computed as such, not token by token.

The head is proved to be as close to it as the program's functions say. A step costs O(n d).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from icgd.backends.kernels import Machine, kernel
from icgd.backends.look_up import Kernel
from icgd.backends.scores import require_scores
from icgd.problems.links import link_named
from icgd.program.grid_instructions import DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import ONE


def _scores(instruction: DescendExamples | PredictMean, machine: Machine) -> Callable[[], Tensor]:
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
def _kernel_of_descend_examples(instruction: DescendExamples, machine: Machine) -> Kernel:
    compute, mean = _scores(instruction, machine), link_named(instruction.mean).mean
    labels = machine.slots[instruction.label][..., machine.examples, :]
    targets = [machine.slots[name] for name in instruction.weights]
    inputs = [
        None if name == ONE else machine.slots[name][..., machine.examples, :]
        for name in instruction.inputs
    ]
    n_done = 0

    def descend() -> None:
        nonlocal n_done
        scores = compute()[..., machine.examples, :]
        n_done += 1
        require_scores(scores, instruction.reach, f"step {n_done}, example")
        left = (mean(scores) - labels).mul_(instruction.scale)
        targets[0].mul_(1 + instruction.decay)
        for target, read in zip(targets, inputs, strict=True):
            target += left.sum(-2, keepdim=True) if read is None else left.mT @ read

    return descend


@kernel.register
def _kernel_of_predict_mean(instruction: PredictMean, machine: Machine) -> Kernel:
    compute, mean = _scores(instruction, machine), link_named(instruction.mean).mean
    write = machine.slots[instruction.write]

    def predict() -> None:
        scores = compute()
        require_scores(scores[..., machine.queries, :], instruction.reach, "query")
        write.copy_(mean(scores))

    return predict


@kernel.register
def _kernel_of_shrink_slot(instruction: ShrinkSlot, machine: Machine) -> Kernel:
    target, bound = machine.slots[instruction.slot], instruction.bound
    threshold = instruction.threshold

    def shrink() -> None:
        target.sub_(target.clamp(-threshold, threshold)).clamp_(-bound, bound)

    return shrink
