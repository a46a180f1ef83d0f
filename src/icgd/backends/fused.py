r"""The fused backend: runs the program without materialising weights, with the same numbers.

Weights that are equal in every token are kept once; an instruction over all tokens is one or
two matrix products; functions are looked up in tables. A step costs what the training step
itself costs, O(n |w|), whatever the number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, cast

import torch

from icgd.backends.chain import run_chain
from icgd.backends.functional import run_function
from icgd.backends.prompt import (
    constants_of,
    require_entry,
    split_parameters,
    weight_scales,
)
from icgd.backends.rules import Machine
from icgd.backends.run import (
    AbstractBackend,
    OnProgress,
    Run,
    in_groups,
    is_still,
    joined,
    made_or_none,
)
from icgd.errors import InterruptedRunError
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram
from icgd.program.layout import Role
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.shapes import History, Parameters, Predictions, Stream

NUMBERS_AT_ONCE = 2**18
"""Size of the widest slot over the tasks that run together: large enough to keep the threads
busy, small enough to stay in the cache and to bound the memory of any batch."""


class FusedBackend(AbstractBackend):
    """Runs groups of tasks one after the other, each through all its steps."""

    name: ClassVar[str] = "fused"
    sums_terms: ClassVar[bool] = False

    def run(
        self,
        program: AbstractProgram,
        task: Task,
        *,
        trace: tuple[str, ...] = (),
        history: bool = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
    ) -> Run:
        if isinstance(program, ChainProgram):
            return run_chain(
                program,
                task,
                backend=self.name,
                trace=trace,
                history=history,
                on_progress=on_progress,
                stop_below=stop_below,
            )
        program = cast(StackProgram, program)
        for name in trace:
            program.layout.slot(name)
        require_entry(program, task)
        with torch.no_grad():
            at_once = len(task.x) if stop_below else _tasks_at_once(program, task)
            groups = in_groups(task, at_once)  # tasks of one group stop together
            runs: list[Run] = []
            for number, group in enumerate(groups):
                shifted = _shifted(on_progress, number, len(groups))
                try:
                    runs.append(_run_group(program, group, trace, history, shifted, stop_below))
                except InterruptedRunError as interruption:
                    if len(groups) == 1:
                        raise
                    raise _between_groups(runs, group, task, interruption) from None
        return joined(runs)


def _between_groups(
    runs: list[Run], group: Task, task: Task, interruption: InterruptedRunError
) -> InterruptedRunError:
    """What is known of a batch: the tasks that are done, or, if none is, the first ones so far."""
    known = joined(runs) if runs else interruption.partial
    n_tasks = len(known.parameters) if isinstance(known, Run) else len(group.x)
    return InterruptedRunError.of_tasks(n_tasks, len(task.x), bool(runs), known)


def _tasks_at_once(program: StackProgram, task: Task) -> int:
    """How many tasks fit in the cache: by their widest slot, or by their kernel matrix."""
    widest = max((slot.width for slot in program.layout.having(Role.SCRATCH)), default=0)
    width = task.n_examples if program.trains_function else widest
    return max(1, NUMBERS_AT_ONCE // (width * task.n_tokens))


def _shifted(on_progress: OnProgress | None, group: int, n_groups: int) -> OnProgress | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(group * total + done, n_groups * total)


def _run_group(
    program: StackProgram,
    task: Task,
    trace: tuple[str, ...],
    history: bool,
    on_progress: OnProgress | None,
    stop_below: float | None,
) -> Run:
    if program.trains_function:
        return run_function(program, task, trace, history, on_progress)
    if trace:
        return _traced(program, task, trace, history, on_progress, stop_below)
    n_kept = program.n_steps + 1 if history else min(program.n_steps, 1) + 1
    kept = task.initial.new_empty(*task.batch, n_kept, task.initial.shape[-1])
    kept[..., 0, :], step, last, stopped = task.initial, 0, 0, False
    before = task.initial
    try:
        for step, last in enumerate(_steps(program, task, kept), start=1):
            if stop_below is not None:
                stopped = is_still(before, kept[..., last, :], stop_below)
                before = kept[..., last, :].clone()
            if on_progress:
                on_progress(step, program.n_steps)
            if stopped:
                break
    except KeyboardInterrupt:
        predictions = made_or_none(partial(_predict, program, kept[..., last, :], task), task)
        known = Run(kept[..., : last + 1, :], predictions)
        raise InterruptedRunError.after(step, program.n_steps, known) from None
    predictions = _predict(program, kept[..., last, :], task)
    return Run(kept[..., : last + 1, :], predictions, stopped_after=step if stopped else None)


def _steps(program: StackProgram, task: Task, kept: History) -> Iterator[int]:
    """Write the weights after every step to an entry of `kept`, or all to its last; says which."""
    training = Machine(program, task.initial, task.x, task.y, task.queries[..., :0, :])
    kernels = training.kernels(program.block)
    parts = split_parameters(program.layout, kept)
    pairs = [(part, training.slots[name]) for name, part in parts.items()]
    for step in range(1, program.n_steps + 1):
        for kernel in kernels:
            kernel()
        entry = min(step, kept.shape[-2] - 1)
        for part, matrix in pairs:
            part.select(-3, entry).copy_(matrix)
        yield entry


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
    stop_below: float | None,
) -> Run:
    """All tokens through all layers, with a copy of the traced slots after each."""
    machine = Machine(program, task.initial, task.x, task.y, task.queries, traced=True)
    snapshot = _snapshots(program, task, machine)
    states = [task.initial]
    recorded = {name: [snapshot(name)] for name in trace}

    def run(part: tuple[Layer, ...]) -> None:
        for layer in part:
            for kernel in machine.kernels((layer,)):
                kernel()
            for name in trace:
                recorded[name].append(snapshot(name))

    stopped, done = None, 0
    try:
        for step in range(1, program.n_steps + 1):
            run(program.block)
            machine.read_parameters(after := torch.empty_like(task.initial))()
            is_last = is_still(states[-1], after, stop_below)
            states, done = [*(states if history else states[:1]), after], step
            if on_progress:
                on_progress(step, program.n_steps)
            if is_last:
                stopped = step
                break
    except KeyboardInterrupt:
        n_whole = 1 + done * len(program.block)
        whole = {name: torch.stack(layers[:n_whole], dim=-3) for name, layers in recorded.items()}
        predictions = made_or_none(partial(_predict, program, states[-1], task), task)
        known = Run(torch.stack(states, dim=-2), predictions, whole)
        raise InterruptedRunError.after(done, program.n_steps, known) from None
    run(program.prediction)
    return Run(
        parameters=torch.stack(states, dim=-2),
        predictions=machine.slots["y"][..., machine.queries, :].clone(),
        trace={name: torch.stack(layers, dim=-3) for name, layers in recorded.items()},
        stopped_after=stopped,
    )


def _snapshots(program: StackProgram, task: Task, machine: Machine) -> Callable[[str], Stream]:
    """How to copy a slot as every token sees it."""
    constants, scales = constants_of(program, task), weight_scales(program, task)
    roles = {slot.name: slot.role for slot in program.layout.slots}

    def snapshot(name: str) -> Stream:
        if roles[name] is Role.CONSTANT:
            return constants[name].expand(*task.batch, -1, -1).clone()
        if roles[name] is Role.PARAMETER:
            return machine.slots[name].flatten(-2).unsqueeze(-2) * scales
        return machine.slots[name].clone()

    return snapshot
