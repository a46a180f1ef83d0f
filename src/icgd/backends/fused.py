r"""The fused backend: runs the program without materialising weights, with the same numbers.

Weights that are equal in every token are kept once; an instruction over all tokens is one or
two matrix products; functions are looked up in tables. A step costs what the training step
itself costs, O(n |w|), whatever the number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from icgd.backends.chain import run_chain
from icgd.backends.functional import run_function
from icgd.backends.prompt import constants_of, require_entry, weight_scales
from icgd.backends.run import AbstractBackend, OnProgress, Run, in_groups, joined
from icgd.backends.unit_kernels import Machine
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram, Program
from icgd.program.layout import Role
from icgd.program.program import StackProgram
from icgd.shapes import Parameters, Predictions, Stream

NUMBERS_AT_ONCE = 2**18
"""Size of the widest slot over the tasks that run together: large enough to keep the threads
busy, small enough to stay in the cache and to bound the memory of any batch."""


class FusedBackend(AbstractBackend):
    """Runs groups of tasks one after the other, each through all its steps."""

    name: ClassVar[str] = "fused"
    sums_terms: ClassVar[bool] = False

    def run(
        self,
        program: Program,
        task: Task,
        *,
        trace: tuple[str, ...] = (),
        history: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Run:
        if isinstance(program, ChainProgram):
            return run_chain(
                program,
                task,
                backend=self.name,
                trace=trace,
                history=history,
                on_progress=on_progress,
            )
        for name in trace:
            program.layout.slot(name)
        require_entry(program, task)
        with torch.no_grad():
            groups = in_groups(task, _tasks_at_once(program, task))
            runs = [
                _run_group(
                    program, group, trace, history, _shifted(on_progress, number, len(groups))
                )
                for number, group in enumerate(groups)
            ]
        return joined(runs)


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
) -> Run:
    if program.trains_function:
        return run_function(program, task, trace, history, on_progress)
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
    machine = Machine(program, task.initial, task.x, task.y, task.queries, traced=True)
    snapshot = _snapshots(program, task, machine)
    states = [task.initial]
    recorded = {name: [snapshot(name)] for name in trace}
    for step, part in enumerate([program.block] * program.n_steps + [program.prediction], start=1):
        for layer in part:
            for kernel in machine.kernels((layer,)):
                kernel()
            for name in trace:
                recorded[name].append(snapshot(name))
        machine.copy_parameters(after := torch.empty_like(task.initial))
        states = [*(states if history or step > program.n_steps else states[:1]), after]
        if on_progress and step <= program.n_steps:
            on_progress(step, program.n_steps)
    return Run(
        parameters=torch.stack(states[:-1], dim=-2),
        predictions=machine.slots["y"][..., machine.queries, :].clone(),
        trace={name: torch.stack(layers, dim=-3) for name, layers in recorded.items()},
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
