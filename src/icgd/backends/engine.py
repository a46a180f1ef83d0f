"""A recording at work on buffers that are allocated once and used again.

A buffer is used again as soon as nobody reads it, and what a step leaves in a slot is written to
the slot's own buffer where that is possible, so that most steps copy nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from icgd.backends.operations import (
    GUARDS,
    LOOK_UPS,
    VIEWS,
    Running,
    guard,
    operation,
    table_of,
    view,
)
from icgd.backends.recorder import Op, Recording

IN_PLACE = ("combine", "multiply", "clip", "clip_by_units", "kink", "ramp")
"""Operations that may write over their first or second argument."""

ADDING = ("add_outer", "add_rows", "add_by_units", "add_rows_by_units")
"""Operations that may write over the weights that they add to."""

CORRECTING = ("add_missed", "scale_missed")
"""Operations that may write over what they correct, their first argument."""

NEVER = 10**9
"""The number of the operation that is never reached."""


def perform(recording: Recording, run: Running, inputs: Mapping[str, Tensor]) -> dict[Op, Tensor]:
    """The results of all operations, each in a tensor of its own."""
    held: dict[Op, Tensor] = {}
    for op in recording.ops:
        args = [held[arg] for arg in op.args]
        if op.name == "input":
            held[op] = inputs[op.options[0]]
        elif op.name == "fill":
            held[op] = run.like.new_full((*run.batch, *op.shape), op.options[0])
        elif op.name in (*VIEWS, *GUARDS):
            held[op] = view(op, run, *args)
            if op.name in GUARDS and (check := guard(op, run, *args)):
                check()
        elif op.name in LOOK_UPS:
            table, number = table_of(op, recording.ops, run)
            held[op] = table(*args, number)
        else:
            held[op] = operation(op, run)(*args)
    return held


class Engine(Running):
    """Buffers for the slots of some tasks, on which recordings are performed.

    `inputs` holds what the recordings start from. Slots that are `changing` are the engine's own,
    everything else is only read. `step` counts the steps taken. What does not change is computed
    once, if all recordings share it: operations in `shared`, by default all.
    """

    def __init__(
        self,
        program: Any,
        inputs: Mapping[str, Tensor],
        changing: Sequence[str],
        shared: frozenset[Op] | None = None,
    ) -> None:
        super().__init__(program, dict(inputs), inputs["x"])
        self.changing = frozenset(changing)
        for name in changing:
            self.inputs[name] = inputs[name].clone(memory_format=torch.contiguous_format)
        self.free: dict[tuple[int, ...], list[Tensor]] = {}
        self.shared, self.lasting = shared, dict[Op, Tensor]()

    def bind(self, recording: Recording) -> Bound:
        """The recording as calls on buffers."""
        return Bound(self, recording)

    def new(self, op: Op, *, lasts: bool) -> Tensor:
        """A buffer for an operation: if its content need not last, one that nobody reads now."""
        pool = self.free.get(op.shape)
        return pool.pop() if pool and not lasts else self.like.new_empty(*self.batch, *op.shape)


class Bound:
    """A recording bound to buffers: `calls` perform it, then `commits` put results into slots.

    Operations that depend on nothing that changes are performed when they are bound.
    """

    def __init__(self, engine: Engine, recording: Recording) -> None:
        self.engine, self.recording = engine, recording
        self.calls: list[Callable[[], object]] = []
        self.commits: list[Callable[[], object]] = []
        self.held: dict[Op, Tensor] = {}
        self.cells: dict[tuple[Op, int], Any] = {}
        ops = recording.ops
        self.owner: dict[Op, Op] = {}  # the operation whose buffer a view shows
        for op in ops:
            self.owner[op] = self.owner[op.args[0]] if op.name in (*VIEWS, *GUARDS) else op
        self.last_use = {self.owner[arg]: n for n, op in enumerate(ops) for arg in op.args}
        self.last_use |= {self.owner[op]: NEVER for op in recording.outputs.values()}
        self.last_use |= {self.owner[op]: NEVER for s in recording.trace for op in s.values()}
        self.home = self._homes()
        self.changes: set[Op] = set()  # operations that steps perform anew
        for number, op in enumerate(ops):
            if self._changes(op):
                self.changes.add(op)
                self._add(op, number)
                self._release(op, number)
                continue
            self.last_use[self.owner[op]] = NEVER
            if op in engine.lasting:
                self.held[op] = engine.lasting[op]
                continue
            n_before = len(self.calls)
            self._add(op, number)
            for call in self.calls[n_before:]:
                call()
            del self.calls[n_before:]
            engine.lasting[op] = self.held[op]
        for name, op in recording.outputs.items():
            if name in engine.changing and self.held[op] is not engine.inputs[name]:
                self.commits.append(partial(engine.inputs[name].copy_, self.held[op]))

    def __call__(self) -> None:
        for call in self.calls:
            call()
        for commit in self.commits:
            commit()

    def _changes(self, op: Op) -> bool:
        """Whether steps perform an operation anew: what it reads changes, or only some need it."""
        if op.name == "input":
            return op.options[0] in self.engine.changing
        shared = self.engine.shared
        return bool(self.changes.intersection(op.args)) or (shared is not None and op not in shared)

    def _homes(self) -> dict[Op, str]:
        """The slot that an operation's result ends in, through operations that work in place."""
        homes: dict[Op, str] = {}
        for name, op in self.recording.outputs.items():
            while name in self.engine.changing and op.name != "input" and op not in homes:
                homes[op] = name
                first = [arg for arg in op.args if arg.shape == op.shape]
                if op.name not in (*IN_PLACE, *ADDING) or not first:
                    break
                op = first[0]
        return homes

    def _add(self, op: Op, number: int) -> None:
        """Add the calls of an operation, and hold its result."""
        engine, args = self.engine, [self.held[arg] for arg in op.args]
        if op.name == "input":
            self.held[op] = engine.inputs[op.options[0]]
        elif op.name == "fill":
            shape = (*engine.batch, *op.shape)
            self.held[op] = engine.like.new_full(shape, op.options[0])
        elif op.name in (*VIEWS, *GUARDS):
            self.held[op] = view(op, engine, *args)
            check = guard(op, engine, *args) if op.name in GUARDS else None
            self.calls += [check] if check else []
        elif op.name in LOOK_UPS:
            write = self.held[op] = self._target(op, number)
            self._look_up(op, write, *args)
        else:
            write = self.held[op] = self._target(op, number)
            self.calls.append(partial(operation(op, engine), *args, out=write))

    def _look_up(self, op: Op, write: Tensor, argument: Tensor) -> None:
        """Find the cells of an argument once for all its functions, then evaluate one of them."""
        table, number = table_of(op, self.recording.ops, self.engine)
        key = (op.args[0], id(table))
        if key not in self.cells:
            self.cells[key] = table.finder(argument)
            self.calls.append(self.cells[key].find)
        self.calls.append(self.cells[key].evaluator(number, write))

    def _target(self, op: Op, number: int) -> Tensor:
        """Where an operation writes: its slot, an argument that nobody reads again, or a buffer."""
        engine = self.engine
        if (name := self.home.get(op)) is not None and self._is_free(name, op, number):
            return engine.inputs[name]
        if op.name in (*IN_PLACE, *CORRECTING):
            for arg in op.args[: 1 if op.name in CORRECTING else 2]:
                is_own = self.owner[arg] is arg and arg.name not in ("input", "fill")
                is_dead = is_own and arg.shape == op.shape and self.last_use[arg] == number
                if is_dead and not self._is_slot(self.held[arg]):
                    return self.held[arg]
        return engine.new(op, lasts=op not in self.changes)

    def _is_free(self, name: str, op: Op, number: int) -> bool:
        """Whether an operation may write to a slot: nobody reads what stands there later on."""
        slot, start = self.engine.inputs[name], self.recording.inputs[name]
        if slot.shape[len(self.engine.batch) :] != op.shape:
            return False
        holders = [start, *(o for o, held in self.held.items() if held is slot)]
        if any(self.last_use.get(self.owner.get(o, o), -1) > number for o in holders):
            return False
        # It may read the slot itself only where it may write over what it reads.
        read = [n for n, arg in enumerate(op.args) if self.held[arg].data_ptr() == slot.data_ptr()]
        allowed = {0, 1} if op.name in IN_PLACE else {0} if op.name in ADDING else set()
        return set(read) <= allowed

    def _is_slot(self, buffer: Tensor) -> bool:
        return any(buffer is slot for slot in self.engine.inputs.values())

    def _release(self, op: Op, number: int) -> None:
        """Let go of the buffers that were read for the last time."""
        mine = self.held[self.owner[op]]
        for arg in {self.owner[arg]: None for arg in op.args}:
            buffer = self.held[arg]
            is_dead = self.last_use[arg] == number and arg.name not in ("input", "fill")
            if is_dead and buffer is not mine and not self._is_slot(buffer):
                self.engine.free.setdefault(arg.shape, []).append(buffer)
