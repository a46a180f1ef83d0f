r"""The fused backend: runs the program without materialising weights, with the same numbers.

Weights that are equal in every token are kept once; an instruction over all tokens is one or
two matrix products; functions are looked up in tables. A step costs what the training step
itself costs, O(n |w|), whatever the number of pieces.

Each instruction becomes a kernel: a closure over buffers that are allocated once and reused in
every step. Scratch is overwritten rather than added to, so it is wiped only for a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import ClassVar

import torch
from torch import Tensor

from icgd.backends.look_up import Evaluation, Kernel
from icgd.backends.prompt import split_parameters
from icgd.backends.run import AbstractBackend, OnProgress, Run
from icgd.errors import ProgramError
from icgd.problems.task import Task
from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    TOKENS_PER_EXAMPLE,
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    Instruction,
    MapSlots,
    MultiplySlots,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Role
from icgd.program.program import Layer, StackProgram
from icgd.shapes import Inputs, Labels, Matrix, Parameters, Predictions, Queries, Stream

NUMBERS_AT_ONCE = 2**18
"""Size of the widest slot over the tasks that run together: large enough to keep the threads
busy, small enough to stay in the cache and to bound the memory of any batch."""


class FusedBackend(AbstractBackend):
    """Runs groups of tasks one after the other, each through all its steps."""

    name: ClassVar[str] = "fused"
    sums_terms: ClassVar[bool] = False

    def run(
        self,
        program: StackProgram,
        task: Task,
        *,
        trace: tuple[str, ...] = (),
        history: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Run:
        for name in trace:
            program.layout.slot(name)
        with torch.no_grad():
            groups = list(_groups(program, task))
            runs = [
                _run_group(
                    program, group, trace, history, _shifted(on_progress, number, len(groups))
                )
                for number, group in enumerate(groups)
            ]
        return runs[0] if len(runs) == 1 else _joined(runs)


def _groups(program: StackProgram, task: Task) -> Iterable[Task]:
    """The task itself, or a batch cut into groups that fit in the cache."""
    if not task.batch:
        return [task]
    widest = max(slot.width for slot in program.layout.having(Role.SCRATCH))
    size = max(1, NUMBERS_AT_ONCE // (widest * task.n_tokens))
    parts = [part.split(size) for part in (task.x, task.y, task.queries, task.initial)]
    return [Task(*group) for group in zip(*parts, strict=True)]


def _shifted(on_progress: OnProgress | None, group: int, n_groups: int) -> OnProgress | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(group * total + done, n_groups * total)


def _joined(runs: list[Run]) -> Run:
    return Run(
        parameters=torch.cat([run.parameters for run in runs]),
        predictions=torch.cat([run.predictions for run in runs]),
        trace={name: torch.cat([run.trace[name] for run in runs]) for name in runs[0].trace},
    )


def _run_group(
    program: StackProgram,
    task: Task,
    trace: tuple[str, ...],
    history: bool,
    on_progress: OnProgress | None,
) -> Run:
    if trace:
        return _traced(program, task, trace, history, on_progress)
    n_kept = program.n_steps + 1 if history else min(program.n_steps, 1) + 1
    kept = task.initial.new_empty(*task.batch, n_kept, task.initial.shape[-1])
    training = Machine(program, task.initial, task.x, task.y, task.queries[..., :0, :])
    kernels = training.kernels(program.block)
    training.copy_parameters(kept[..., 0, :])
    for step in range(1, program.n_steps + 1):
        for kernel in kernels:
            kernel()
        if history:
            training.copy_parameters(kept[..., step, :])
        if on_progress:
            on_progress(step, program.n_steps)
    training.copy_parameters(kept[..., -1, :])
    return Run(kept, _predict(program, kept[..., -1, :], task))


def _predict(program: StackProgram, parameters: Parameters, task: Task) -> Predictions:
    if task.n_queries == 0:
        return task.y[..., :0, :].clone()
    machine = Machine(program, parameters, task.x[..., :0, :], task.y[..., :0, :], task.queries)
    for kernel in machine.kernels(program.prediction):
        kernel()
    return machine.slots["y"]


def _traced(
    program: StackProgram,
    task: Task,
    trace: tuple[str, ...],
    history: bool,
    on_progress: OnProgress | None,
) -> Run:
    """All tokens through all layers, with a copy of the traced slots after each."""
    machine = Machine(program, task.initial, task.x, task.y, task.queries, wipes=True)
    states = [task.initial]
    recorded = {name: [machine.snapshot(name)] for name in trace}
    for step, part in enumerate([program.block] * program.n_steps + [program.prediction], start=1):
        for layer in part:
            for kernel in machine.kernels((layer,)):
                kernel()
            for name in trace:
                recorded[name].append(machine.snapshot(name))
        machine.copy_parameters(after := torch.empty_like(task.initial))
        states = [*(states if history or step > program.n_steps else states[:1]), after]
        if on_progress and step <= program.n_steps:
            on_progress(step, program.n_steps)
    return Run(
        parameters=torch.stack(states[:-1], dim=-2),
        predictions=machine.slots["y"][..., task.n_examples :, :].clone(),
        trace={name: torch.stack(layers, dim=-3) for name, layers in recorded.items()},
    )


class Preactivation:
    """W p for one matrix and one input slot, ready for the functions applied to it."""

    def __init__(
        self, weights: Matrix, inputs: Stream, value: Tensor, functions: Sequence[ReluSum]
    ) -> None:
        self._inputs, self._transposed, self._value = inputs, weights.mT, value
        evaluation = Evaluation(functions, value)
        self._prepare, self.kernel = evaluation.prepare, evaluation.kernel

    def compute(self) -> None:
        """Compute W p, and what its functions share."""
        torch.matmul(self._inputs, self._transposed, out=self._value)
        self._prepare()


class Machine:
    """The slots of some tasks as buffers, and the kernels that run on them."""

    def __init__(
        self,
        program: StackProgram,
        parameters: Parameters,
        x: Inputs,
        y: Labels,
        queries: Queries,
        *,
        wipes: bool = False,
    ) -> None:
        self.program = program
        self.wipes = wipes
        self.examples = slice(0, x.shape[-2])
        self.queries = slice(x.shape[-2], x.shape[-2] + queries.shape[-2])
        self.batch = tuple(x.shape[:-2])
        self.n_tokens = self.queries.stop
        no_labels = y.new_zeros(*self.batch, queries.shape[-2], y.shape[-1])
        self.slots = {
            "x": torch.cat([x, queries], dim=-2),
            "y": torch.cat([y, no_labels], dim=-2),
        }
        # A matrix of its own for each weight slot: products are several times slower on views.
        for name, matrix in split_parameters(program.layout, parameters).items():
            self.slots[name] = matrix.clone(memory_format=torch.contiguous_format)
        for slot in program.layout.having(Role.SCRATCH):
            self.slots[slot.name] = self.buffer(self.n_tokens, slot.width)
        self._preactivations: dict[tuple[str, str], Preactivation] = {}

    def copy_parameters(self, write: Parameters) -> None:
        """Write the current weights into a parameter vector."""
        for name, part in split_parameters(self.program.layout, write).items():
            part.copy_(self.slots[name])

    def buffer(self, n_rows: int, width: int) -> Tensor:
        """Zeros for every task."""
        return self.slots["x"].new_zeros(*self.batch, n_rows, width)

    def tokens_where(self, flag: str) -> slice:
        """The tokens at which a flag is 1."""
        return {IS_EXAMPLE: self.examples, IS_QUERY: self.queries}[flag]

    def kernels(self, layers: Iterable[Layer]) -> list[Kernel]:
        """The layers' instructions as kernels, in order.

        A preactivation is computed once for all its functions, and again only after its weights
        or its inputs were written.
        """
        kernels: list[Kernel] = []
        fresh: set[tuple[str, str]] = set()
        for instruction in (part for layer in layers for part in layer.instructions):
            if isinstance(instruction, ApplyUnits):
                key = (instruction.weights, instruction.inputs)
                preactivation = self._preactivation(*key)
                if key not in fresh:
                    kernels.append(preactivation.compute)
                    fresh.add(key)
                function = self.program.function(instruction.function)
                kernels.append(preactivation.kernel(function, self.slots[instruction.write]))
            else:
                kernels.append(kernel(instruction, self))
            fresh = {key for key in fresh if not set(key) & set(instruction.writes())}
        return kernels

    def _preactivation(self, weights: str, inputs: str) -> Preactivation:
        if (weights, inputs) not in self._preactivations:
            names = {
                part.function
                for layer in (*self.program.block, *self.program.prediction)
                for part in layer.instructions
                if isinstance(part, ApplyUnits) and (part.weights, part.inputs) == (weights, inputs)
            }
            functions = [self.program.function(name) for name in sorted(names)]
            value = self.buffer(self.n_tokens, self.slots[weights].shape[-2])
            self._preactivations[weights, inputs] = Preactivation(
                self.slots[weights], self.slots[inputs], value, functions
            )
        return self._preactivations[weights, inputs]

    def snapshot(self, name: str) -> Stream:
        """A copy of a slot as every token sees it."""
        role = self.program.layout.slot(name).role
        if role is Role.PARAMETER:
            flat = self.slots[name].flatten(-2).unsqueeze(-2)
            return flat.expand(*self.batch, self.n_tokens, flat.shape[-1]).clone()
        if role is Role.CONSTANT:
            return self._constant(name)
        return self.slots[name].clone()

    def _constant(self, name: str) -> Stream:
        column = self.buffer(self.n_tokens, 1)
        if name == ONE:
            column += 1.0
        elif name == TOKENS_PER_EXAMPLE:
            column += self.n_tokens / self.examples.stop
        else:
            column[..., self.tokens_where(name), :] = 1.0
        return column


@singledispatch
def kernel(instruction: Instruction, machine: Machine) -> Kernel:
    """The instruction as a closure over the machine's buffers."""
    raise ProgramError.broken(type(instruction).__name__, "has no kernel in backends/fused.py")


@kernel.register
def _(instruction: MultiplySlots, machine: Machine) -> Kernel:
    left, right = machine.slots[instruction.left], machine.slots[instruction.right]
    write = machine.slots[instruction.write]
    return lambda: torch.mul(left, right, out=write)


@kernel.register
def _(instruction: PullBack, machine: Machine) -> Kernel:
    upstream, weights = machine.slots[instruction.upstream], machine.slots[instruction.weights]
    slope, write = machine.slots[instruction.slope], machine.slots[instruction.write]
    return lambda: torch.matmul(upstream, weights, out=write).mul_(slope)


@kernel.register
def _(instruction: AccumulateOuterProduct, machine: Machine) -> Kernel:
    left = machine.slots[instruction.left][..., machine.examples, :].mT
    right = machine.slots[instruction.right][..., machine.examples, :]
    write = machine.slots[instruction.write]
    add = write.baddbmm_ if machine.batch else write.addmm_
    scale = instruction.scale / machine.examples.stop
    return lambda: add(left, right, alpha=scale)


@kernel.register
def _(instruction: MapSlots, machine: Machine) -> Kernel:
    tokens = machine.tokens_where(instruction.only_where)
    target = machine.slots[instruction.write][..., tokens, :]
    parts = [_summand(summand, machine, tokens) for summand in instruction.summands]

    def run() -> None:
        for evaluate, _ in parts:
            evaluate()
        target.copy_(parts[0][1])
        for _, value in parts[1:]:
            target.add_(value)

    return run


def _summand(summand: Summand, machine: Machine, tokens: slice) -> tuple[Kernel, Tensor]:
    """The kernel that evaluates one summand, and the buffer that it fills."""
    function = machine.program.function(summand.function)
    first, *others = (machine.slots[name][..., tokens, :] for name in summand.slots)
    factor, *factors = summand.coefficients
    argument = torch.empty_like(first, memory_format=torch.contiguous_format)
    value = torch.empty_like(argument)

    evaluation = Evaluation([function], argument)
    apply = evaluation.kernel(function, value)

    def run() -> None:
        torch.mul(first, factor, out=argument)
        for slot, slot_factor in zip(others, factors, strict=True):
            argument.add_(slot, alpha=slot_factor)
        evaluation.prepare()
        apply()

    return run, value


@kernel.register
def _(instruction: ClipSlots, machine: Machine) -> Kernel:
    targets = [machine.slots[name] for name in instruction.slots]
    bound = instruction.bound

    def clip() -> None:
        for target in targets:
            target.clamp_(-bound, bound)

    return clip


@kernel.register
def _(instruction: WipeSlots, machine: Machine) -> Kernel:
    targets = [machine.slots[name] for name in instruction.slots] if machine.wipes else []

    def wipe() -> None:
        for target in targets:
            target.zero_()

    return wipe
