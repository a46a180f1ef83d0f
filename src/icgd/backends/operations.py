"""An operation is an instruction as a closure over buffers that are allocated once and reused.

Scratch is overwritten rather than added to, so it is wiped only for a trace. Operations of
instructions by units of any activation are in `unit_operations.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from icgd.backends.look_up import Evaluation, Operation
from icgd.backends.machine import (
    Machine,
    combined,
    combined_in_steps,
    nothing,
    operation,
)
from icgd.backends.reciprocal_roots import is_root, remembered_of, require_root
from icgd.program import instructions as verbs
from icgd.program.instructions import Combination, Summand
from icgd.program.table_instructions import AverageExamples, LookUpStep
from icgd.program.unit_instructions import AddGatedProduct, AddOuterProduct, WipeByUnits
from icgd.program.update_instructions import OUT_OF_BATCH


@operation.register
def _to_apply_units(instruction: verbs.ApplyUnits, machine: Machine) -> Operation:
    buffer = machine.argument(instruction.argument)
    function = machine.program.relu_sum(instruction.function)
    return buffer.operation(function, machine.slots[instruction.write])


@operation.register
def _to_look_up(instruction: verbs.LookUp, machine: Machine) -> Operation:
    buffer = machine.argument(instruction.argument)
    writes = machine.at(*instruction.into)
    functions = [machine.program.look_up(name) for name in instruction.lookups]
    parts = [buffer.operation(f, write) for f, write in zip(functions, writes, strict=True)]
    memories = [write[..., :1, :] for write in writes] if machine.traced else []

    def run() -> None:
        for part in parts:
            part()
        for memory in memories:  # it reads itself, and holds no values
            memory.zero_()

    return run


@operation.register
def _to_project(instruction: verbs.Project, machine: Machine) -> Operation:
    value, write = machine.argument(instruction.argument).value, machine.slots[instruction.write]
    if not machine.traced:
        return lambda: write.copy_(value)

    def project() -> None:
        write.copy_(value)
        write[..., :1, :] = 0.0  # the memory reads itself, and holds no values

    return project


@operation.register
def _to_add_product(instruction: verbs.AddProduct, machine: Machine) -> Operation:
    value = machine.argument(instruction.argument).value
    factor, write = machine.at(instruction.factor, instruction.write)
    if machine.is_written_before(instruction):
        return lambda: write.addcmul_(value, factor)
    return lambda: torch.mul(value, factor, out=write)


@operation.register
def _to_add_gradient(instruction: verbs.AddGradient, machine: Machine) -> Operation:
    left, combine = combined(instruction.left, machine.slots)
    write = machine.slots[instruction.write]
    right, complete = right_factor(instruction.right, instruction.bias, machine)
    add = add_outer_product(left, right, instruction.scale, write, machine)

    def run() -> None:
        combine()
        complete()
        add()

    return run


def right_factor(name: str, bias: str | None, machine: Machine) -> tuple[Tensor, Operation]:
    """A slot above a constant 1, if there is a bias; and what fills it."""
    right = machine.slots[name]
    return (right, nothing) if bias is None else machine.above_one(right, nothing)


def add_outer_product(
    left: Tensor, right: Tensor, scale: float, write: Tensor, machine: Machine
) -> Operation:
    """The operation write += scale * the mean over the examples of left right^T."""
    own, right = left[..., machine.examples, :], right[..., machine.examples, :]
    add = partial(write.baddbmm_ if machine.batch else write.addmm_, beta=machine.kept_of(write))
    share = scale / (machine.batch_size or right.shape[-2])
    if (waiting := machine.waiting) is None:
        transposed = own.mT
        return lambda: add(transposed, right, alpha=share)
    return lambda: add((own * (1 - waiting)).mT, right, alpha=share)


@operation.register
def _to_multiply_slots(instruction: verbs.MultiplySlots, machine: Machine) -> Operation:
    left, right, write = machine.at(instruction.left, instruction.right, instruction.write)
    return lambda: torch.mul(left, right, out=write)


@operation.register
def _to_pull_back(instruction: verbs.PullBack, machine: Machine) -> Operation:
    upstream, weights, write = machine.at(
        instruction.upstream, instruction.weights, instruction.write
    )
    weights = weights[..., : write.shape[-1]]  # nothing is passed back to a constant
    slopes = [] if instruction.slope == verbs.ONE else machine.at(instruction.slope)
    others = machine.at(*instruction.added)

    def pull_back() -> None:
        torch.matmul(upstream, weights, out=write)
        for other in others:
            write.add_(other)
        for slope in slopes:
            write.mul_(slope)

    return pull_back


@operation.register(verbs.AccumulateOuterProduct)
@operation.register(AddGatedProduct)
def add_product(
    instruction: verbs.AccumulateOuterProduct | AddGatedProduct | AddOuterProduct, machine: Machine
) -> Operation:
    """The operation write += scale * the mean over the examples of left right^T."""
    left, write = machine.at(instruction.left, instruction.write)
    right, complete = right_factor(instruction.right, instruction.bias, machine)
    add = add_outer_product(left, right, instruction.scale, write, machine)

    def run() -> None:
        complete()
        add()

    return add if instruction.bias is None else run


@operation.register
def _to_map_slots(instruction: verbs.MapSlots, machine: Machine) -> Operation:
    tokens = machine.tokens_where(instruction.only_where)
    target = machine.part(instruction.write, tokens)
    variants = machine.variants(instruction)
    waiting = machine.waiting if OUT_OF_BATCH in instruction.never_where else None
    read = machine.part(instruction.summands[0].argument.slots[0], tokens)
    fits = target.is_contiguous() and target.shape == read.shape
    is_alone = len(instruction.summands) == 1 and waiting is None and fits
    parts = [
        _summand(
            summand,
            machine,
            tokens,
            [each.summands[number].argument for each in variants],
            target if is_alone else None,
        )
        for number, summand in enumerate(instruction.summands)
    ]
    if is_alone:
        return parts[0][0]

    def run() -> None:
        for evaluate, _ in parts:
            evaluate()
        target.copy_(parts[0][1])
        for _, value in parts[1:]:
            target.add_(value)
        if waiting is not None:
            target.masked_fill_(waiting > 0, 0.0)

    return run


def _summand(
    summand: Summand,
    machine: Machine,
    tokens: slice,
    in_steps: Sequence[Combination] = (),
    write: Tensor | None = None,
) -> tuple[Operation, Tensor]:
    """The operation that evaluates one summand, and the buffer that it fills, `write` if given.

    If its argument is another combination `in_steps`, it is that of the machine's step.
    """
    function = machine.program.relu_sum(summand.function)
    read = {name: machine.part(name, tokens) for name in summand.argument.slots}
    argument, combine = combined(summand.argument, read)
    if len(in_steps) > 1:
        argument, combine = combined_in_steps(in_steps, read, machine)
    value = write
    if value is None:
        value = torch.empty_like(argument, memory_format=torch.contiguous_format)
    evaluation = Evaluation([function], argument)
    apply = evaluation.operation(function, value)

    def run() -> None:
        combine()
        evaluation.prepare()
        apply()

    def run_in_range() -> None:
        combine()
        require_root(argument, function, machine.step)
        evaluation.prepare()
        apply()

    started = remembered_of(machine.program.layout, read) if is_root(function) else []
    may_leave = any(bool(read[name].any()) for name in started)
    return run_in_range if may_leave else run, value


@operation.register
def _to_clip_slots(instruction: verbs.ClipSlots, machine: Machine) -> Operation:
    targets, bound = machine.at(*instruction.slots), instruction.bound

    def clip() -> None:
        for target in targets:
            target.clamp_(-bound, bound)

    return clip


@operation.register
def _to_wipe(instruction: verbs.WipeSlots | WipeByUnits, machine: Machine) -> Operation:
    targets = machine.at(*instruction.slots) if machine.traced else []

    def wipe() -> None:
        for target in targets:
            target.zero_()

    return wipe


@operation.register
def _to_average_examples(instruction: AverageExamples, machine: Machine) -> Operation:
    examples = {name: machine.slots[name][..., machine.examples, :] for name in instruction.reads()}
    score, combine_score = combined(instruction.score, examples)
    value, combine_value = combined(instruction.value, examples)
    write = machine.slots[instruction.write]

    def average() -> None:
        combine_score()
        combine_value()
        write.copy_((torch.softmax(score, dim=-2) * value).sum(-2, keepdim=True))

    return average


@operation.register
def _to_look_up_step(instruction: LookUpStep, machine: Machine) -> Operation:
    """The key is equal in all tokens, and the weight is kept once: the first token has it."""
    (summand,) = instruction.addition.summands
    look_up, value = _summand(summand, machine, slice(0, 1))
    write = machine.slots[instruction.write]

    def replace() -> None:
        look_up()
        write.copy_(value)

    return replace
