"""Operations of grid attention compute the mean of a link as such, not token by token.

The head is proved to be as close to it as the program's functions say. A step costs O(n d).
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.backends.look_up import Operation
from icgd.backends.machine import Machine, operation
from icgd.backends.scores import require_scores
from icgd.problems.links import link_named
from icgd.program.grid_instructions import DecaySlot, DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import IS_EXAMPLE, ONE


def _scores(instruction: PredictMean, machine: Machine) -> tuple[Tensor, Operation]:
    """The buffer of <weights, inputs> at every token, and the operation that fills it."""
    pairs = dict(zip(instruction.weights, instruction.inputs, strict=True))
    (matrix, inputs), *rest = ((machine.slots[w], x) for w, x in pairs.items())
    read, factor = machine.slots[inputs], matrix.mT
    buffer = machine.buffer(machine.n_tokens, 1)
    intercepts = [weight for weight, name in rest if name == ONE]

    def compute() -> None:
        torch.matmul(read, factor, out=buffer)
        for intercept in intercepts:
            buffer.add_(intercept)

    return buffer, compute


@operation.register
def _to_predict_mean(instruction: PredictMean, machine: Machine) -> Operation:
    (scores, compute), mean = _scores(instruction, machine), link_named(instruction.mean).mean
    checked = scores[..., machine.tokens_where(instruction.checked), :]
    write = machine.slots[instruction.write]
    where, n_done = "step {}, example" if instruction.checked == IS_EXAMPLE else "query", 0

    def predict() -> None:
        nonlocal n_done
        compute()
        n_done += 1
        require_scores(checked, instruction.reach, where.format(n_done))
        write.copy_(mean(scores))

    return predict


@operation.register
def _to_decay_slot(instruction: DecaySlot, machine: Machine) -> Operation:
    target, factor = machine.slots[instruction.slot], 1 + instruction.decay
    return lambda: target.mul_(factor)


@operation.register
def _to_descend_examples(instruction: DescendExamples, machine: Machine) -> Operation:
    slots = {name: machine.slots[name] for name in instruction.reads() if name in machine.slots}
    examples = {name: slot[..., machine.examples, :] for name, slot in slots.items()}
    means, labels = examples[instruction.mean], examples[instruction.label]
    inputs = [examples.get(name) for name in instruction.inputs]  # None is the constant 1
    targets = [machine.slots[name] for name in instruction.weights]
    left, scale = torch.empty_like(means), instruction.scale * instruction.share(means.shape[-2])

    def descend() -> None:
        torch.sub(means, labels, out=left).mul_(scale)
        for target, read in zip(targets, inputs, strict=True):
            target += left.sum(-2, keepdim=True) if read is None else left.mT @ read

    return descend


@operation.register
def _to_shrink_slot(instruction: ShrinkSlot, machine: Machine) -> Operation:
    target, bound = machine.slots[instruction.slot], instruction.bound
    threshold = instruction.threshold

    def shrink() -> None:
        target.sub_(target.clamp(-threshold, threshold)).clamp_(-bound, bound)

    return shrink
