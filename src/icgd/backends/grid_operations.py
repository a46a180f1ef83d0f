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
from icgd.program.momentum_instructions import MoveByVelocity, ShrinkMoved


def _scores(instruction: PredictMean, machine: Machine) -> tuple[Tensor, Operation]:
    """The buffer of <weights, inputs> at every token, and the operation that fills it."""
    terms = [(machine.slots[name], read, factor) for name, read, factor in instruction.products()]
    (matrix, inputs, _), *rest = terms
    read, buffer = machine.slots[inputs], machine.shared("scores", machine.n_tokens, 1)
    intercepts = [(weight, factor) for weight, name, factor in rest if name == ONE]
    moves = [(weight, factor) for weight, name, factor in rest if name == inputs]
    point = machine.shared("point", *matrix.shape[-2:]) if moves else matrix

    def compute() -> None:
        if moves:
            point.copy_(matrix)
        for velocity, factor in moves:
            point.add_(velocity, alpha=factor)
        torch.matmul(read, point.mT, out=buffer)
        for intercept, factor in intercepts:
            buffer.add_(intercept, alpha=factor)

    return buffer, compute


@operation.register
def _to_predict_mean(instruction: PredictMean, machine: Machine) -> Operation:
    (scores, compute), mean = _scores(instruction, machine), link_named(instruction.mean).mean
    checked = scores[..., machine.tokens_where(instruction.checked), :]
    write = machine.slots[instruction.write]
    where = "step {}, example" if instruction.checked == IS_EXAMPLE else "query"

    def predict() -> None:
        compute()
        require_scores(checked, instruction.reach, where.format(machine.step + 1))
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
    distinct = dict.fromkeys(instruction.inputs)
    targets = [machine.slots[name] for name in instruction.weights]
    left = machine.shared("left", *means.shape[-2:])
    scale = instruction.scale * instruction.share(means.shape[-2])

    pairs = list(zip(targets, instruction.inputs, strict=True))

    def descend() -> None:
        torch.sub(means, labels, out=left).mul_(scale)
        sums = {name: _summed(left, examples.get(name)) for name in distinct}
        for target, name in pairs:
            target += sums[name]

    return descend


def _summed(left: Tensor, read: Tensor | None) -> Tensor:
    """The sum over examples of what is left times what is read; None is the constant 1."""
    return left.sum(-2, keepdim=True) if read is None else left.mT @ read


@operation.register
def _to_move_by_velocity(instruction: MoveByVelocity, machine: Machine) -> Operation:
    target, velocity = machine.at(instruction.slot, instruction.velocity)
    kept, decay = instruction.kept, instruction.decay

    def move() -> None:
        velocity.mul_(kept)
        if decay:
            velocity.add_(target, alpha=-decay)
        target.add_(velocity)

    return move


@operation.register
def _to_shrink_moved(instruction: ShrinkMoved, machine: Machine) -> Operation:
    target, velocity = machine.at(instruction.slot, instruction.velocity)
    threshold, bound = instruction.threshold, instruction.bound

    def shrink() -> None:
        before = target.clone()
        if threshold:
            target.sub_(target.clamp(-threshold, threshold))
        target.clamp_(-bound, bound)
        velocity.add_(target - before)

    return shrink


@operation.register
def _to_shrink_slot(instruction: ShrinkSlot, machine: Machine) -> Operation:
    target, bound = machine.slots[instruction.slot], instruction.bound
    threshold = instruction.threshold

    def shrink() -> None:
        target.sub_(target.clamp(-threshold, threshold)).clamp_(-bound, bound)

    return shrink
