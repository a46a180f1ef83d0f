r"""The fused backend computes the meaning of a program without heads: the transformer's fast twin.

It is not a transformer; benchmarks/literal.py measures how far its results are from the literal
one's.

Weights, which are equal at every token, are stored once; an instruction is one or two matrix
products over all tokens; functions are table look-ups. So a step costs as much as the training step
itself, O(n |w|), however many pieces the functions have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from math import prod
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from icgd.backends.chain import make_chain
from icgd.backends.engine import (
    LARGEST_IDLE,
    NEVER,
    OPERATIONS,
    BoundRecording,
    Buffers,
    Running,
    View,
    leave_idle,
    take_idle,
)
from icgd.backends.functional import FunctionDescent
from icgd.backends.loops import ALIGNED, Loops, NoLoopError
from icgd.backends.prompt import ONCE, prompt_slots, weight_scales
from icgd.backends.recorder import (
    CARRIED,
    Tokens,
    cached_with,
    recorded_prediction,
    recorded_steps,
)
from icgd.backends.run import AbstractBackend, AbstractExecutor, MakeExecutor, RunOptions
from icgd.environment import require_memory
from icgd.errors import MissingExtraError
from icgd.problems.data import Task
from icgd.program.chain import ChainProgram
from icgd.program.layout import IS_QUERY, RATES, Layout, Role
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.shapes import History, Parameters, Predictions, Stream

PAYS = 1.0
"""Compile loops for runs that would take torch at least this many seconds: the first compilation
takes 1 to 4 s. The choice depends only on the work, so that equal calls give equal bits."""

STEPS_BETWEEN = 8
"""How many steps pass between snapshots: copying the weights takes a tenth of a step."""

NUMBERS_AT_ONCE = 2**17
"""The size of the widest slot over all tasks of a group: large enough to keep the threads busy,
small enough to stay in the cache and to bound the memory of any batch."""


class Snapshot(NamedTuple):
    """A copy of all state after a step, from which the next step can be taken again."""

    n_done: int
    weights: Parameters
    velocities: dict[str, Tensor]


def _slots(
    layout: Layout, task: Task, start: Snapshot
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the data slots of all examples, and the slots that steps change."""
    data = {"x": task.x, "y": task.y}
    if task.rates is not None:
        data[RATES] = task.rates.expand_as(task.y)
    changing = layout.split(start.weights)
    for slot in layout.having(Role.VELOCITY):
        zeros = task.x.new_zeros(*task.batch, *slot.shape)
        changing[slot.name] = start.velocities.get(slot.name, zeros)
    return data, changing


class _Training:
    """Training steps from a snapshot on, performed in place.

    `is_whole` is False during a step, when some weights are updated and others are not. Small
    buffers hold a copy of the data instead of a view, so that a later run on data of the same
    shapes can `begin` in them.
    """

    def __init__(self, program: StackProgram, task: Task, start: Snapshot) -> None:
        self._layout, self._size = program.layout, program.batch_size
        size = self._size
        data, slots = _slots(program.layout, task, start)
        used = {name: column[..., :size, :] for name, column in data.items()}
        self.is_small = _is_small(program, task, size or task.n_examples)
        if self.is_small:
            used = {n: d.clone(memory_format=torch.contiguous_format) for n, d in used.items()}
        changing = (*slots, *(used if size is not None else ()))
        self.buffers = Buffers(program, used | slots, changing)
        self.buffers.step = start.n_done
        recordings = recorded_steps(program, Tokens(examples=used["x"].shape[-2]))
        self._steps = [BoundRecording(self.buffers, recording) for recording in recordings]
        parameters = program.layout.having(Role.PARAMETER)
        self.weights = [self.buffers.inputs[slot.name].flatten(-2) for slot in parameters]
        self._set_turns(data)
        self.is_whole = True

    def begin(self, task: Task, start: Snapshot) -> None:
        """Restart from a snapshot of another run, on data of the same shapes."""
        data, slots = _slots(self._layout, task, start)
        used = {name: column[..., : self._size, :] for name, column in data.items()}
        self.buffers.load(used | slots, start.n_done)
        self._set_turns(data)

    def _set_turns(self, data: dict[str, Tensor]) -> None:
        """Append the first examples, so that a batch that wraps around is still a slice."""
        size, self._n_examples = self._size, data["x"].shape[-2]
        if size is not None:
            self._data = {n: torch.cat([d, d[..., :size, :]], -2) for n, d in data.items()}

    def step(self) -> None:
        """Take the next step."""
        self.is_whole = False
        buffers = self.buffers
        if self._size is not None:
            first = buffers.step * self._size % self._n_examples
            for name, data in self._data.items():
                slot = buffers.inputs[name]
                slot.copy_(data[..., first : first + slot.shape[-2], :])
        self._steps[buffers.step % len(self._steps)]()
        buffers.step += 1
        self.is_whole = True

    def snapshot(self) -> Snapshot:
        """Return a copy of the state after the last step."""
        weights = torch.cat(self.weights, dim=-1)
        velocities = self._layout.having(Role.VELOCITY)
        copies = {slot.name: self.buffers.inputs[slot.name].clone() for slot in velocities}
        return Snapshot(self.buffers.step, weights, copies)


@final
class FusedStack(AbstractExecutor[int]):
    """Train on the examples alone, and predict the queries from the weights reached.

    Steps change the weights in place, so what a step reached is just its number: the weights of an
    earlier step are recomputed from the last snapshot, at most `STEPS_BETWEEN` steps back.
    """

    def __init__(self, program: StackProgram, task: Task) -> None:
        self._program, self._task, self.start = program, task, 0
        self.still_steps = program.steps_of_pass(task.n_examples)
        self._snapshot = Snapshot(0, task.initial, {})
        self._training: _Training | None = None

    @cached_property
    def _shapes(self) -> tuple[object, ...]:
        """The key of buffers that this run can share: shapes, dtype, device, and checks of roots.

        A root is checked only if its slots are not all 0 at the start (see `Recording.checked`).
        """
        program, task = self._program, self._task
        recordings = recorded_steps(program, Tokens(examples=program.batch_size or task.n_examples))
        names = [name for recording in recordings for name in recording.checked]
        slots = program.layout.split(task.initial) if names else {}
        checked = tuple(bool(slots[name].any()) for name in names)
        return task.x.shape, task.x.dtype, task.x.device, checked

    def _begin(self) -> _Training:
        """Begin training, in the idle buffers of an earlier run if there are any."""
        training = take_idle(self._program, self._shapes, _Training)
        if training is None:
            training = _Training(self._program, self._task, self._snapshot)
        else:
            training.begin(self._task, self._snapshot)
        self._training = training
        return training

    def step(self) -> int:
        training = self._training or self._begin()
        if training.buffers.step >= self._snapshot.n_done + STEPS_BETWEEN:
            self._snapshot = training.snapshot()
        training.step()
        return training.buffers.step

    def read(self, reached: int, write: Parameters) -> None:
        torch.cat(self._replay_to(reached).weights, dim=-1, out=write)

    def at_hand(self, n_steps: int, reached: int) -> tuple[int, int]:
        return self._snapshot.n_done, self._snapshot.n_done

    def predictions(self, reached: int) -> Predictions:
        program, task = self._program, self._task
        weights = task.initial
        if reached:
            weights = self._replay_to(reached).snapshot().weights
        return _predicted(program, task, weights)

    def end(self) -> None:
        # Drop our reference first: even if Ctrl-C comes here, no two runs share the buffers.
        training, self._training = self._training, None
        if training is not None and training.is_small:
            leave_idle(self._program, self._shapes, training)

    def _replay_to(self, step: int) -> _Training:
        """Return the training right after `step`, replayed from the snapshot if it is not there."""
        training = self._training
        if training is None or not training.is_whole or training.buffers.step != step:
            training = _Training(self._program, self._task, self._snapshot)
            while training.buffers.step < step:
                training.step()
            self._training = training
        return training


def _predicted(program: StackProgram, task: Task, weights: Parameters) -> Predictions:
    """Return the predictions of `weights`, computed in idle buffers if there are any."""
    if task.n_queries == 0:
        return task.y.new_empty(*task.batch, 0, task.y.shape[-1])
    inputs = {"x": task.queries, **program.layout.split(weights)}
    is_small = _is_small(program, task, task.n_queries)
    key = task.queries.shape, task.x.dtype, task.x.device
    bound = take_idle(program, key, BoundRecording)
    if bound is None:
        recording = recorded_prediction(program, Tokens(queries=task.n_queries))
        changing = tuple(inputs) if is_small else ()
        bound = BoundRecording(Buffers(program, inputs, changing), recording)
    else:
        bound.buffers.load(inputs, 0)
    bound()
    labels = bound.held[bound.recording.outputs["y"]]
    if is_small:
        labels = labels.clone()
        leave_idle(program, key, bound)
    return labels


MILLISECONDS = 30
"""The target duration of one compiled call, during which Ctrl-C is not noticed."""


@final
class CompiledStack(AbstractExecutor[int]):
    """Train by compiled loops, many steps per call.

    Each task is computed by one thread, so that results do not depend on the number of threads. As
    in `FusedStack`, a step is represented by its number and recomputed from a snapshot, here the
    state before the last call. Compiled loops cannot raise errors: if a check of a value fails,
    torch takes that step again and raises the error.
    """

    def __init__(self, program: StackProgram, task: Task, loops: Loops) -> None:
        self._program, self._task, self._loops, self.start = program, task, loops, 0
        self.still_steps = program.steps_of_pass(task.n_examples)
        self._n_tasks, self._n_weights = prod(task.batch), task.initial.shape[-1]
        padded = -(-loops.n_state // ALIGNED) * ALIGNED
        self._state = task.x.new_empty(self._n_tasks, padded)
        state = self._state.numpy()
        state[:, : self._n_weights] = task.initial.reshape(self._n_tasks, -1).numpy()
        state[:, self._n_weights :] = 0.0
        data = [task.x, task.y]
        if task.rates is not None:
            data.append(task.rates.expand_as(task.y))
        if (size := program.batch_size) is not None:
            # Append the first examples, so that a batch that wraps around is still a slice.
            data = [torch.cat([column, column[..., :size, :]], dim=-2) for column in data]
        self._data = [column.reshape(self._n_tasks, -1).contiguous().numpy() for column in data]
        self._constants = [task.x.new_tensor(loops.numbers).numpy()]
        self._constants += [table.numpy().reshape(-1) for table in loops.tables]
        self._compiled = partial(import_module("icgd.backends.native").compiled, loops.source)
        self._no_rows = task.x.new_empty(self._n_tasks, 1, self._n_weights)
        self._pool: ThreadPoolExecutor | None = None
        self._snapshot, self._n_done, self._is_whole = (0, self._copy()), 0, True

    def step(self) -> int:
        self._snapshot = self._n_done, self._copy()
        self._take(1, self._no_rows, NEVER)
        return self._n_done

    def steps(
        self, n_steps: int, rows: History, every: int, *, each: bool, moves: bool
    ) -> Iterator[tuple[int, int, float]]:
        seconds = seconds_of_step(self._program, self._task)
        # Choose the number of steps per call by the duration of the last one, but grow it at most
        # fourfold, in case that one was unusually fast.
        n_at_once = max(1, int(MILLISECONDS / 1000 / seconds))
        history = rows.view(self._n_tasks, *rows.shape[-2:])
        while (done := self._n_done) < n_steps:
            n = min(n_at_once, n_steps - done)
            self._snapshot = done, self._copy()
            start = perf_counter()
            moved = self._take(n, history, every, moves=moves)
            seconds = perf_counter() - start
            n_at_once = max(1, min(4 * n, int(n * MILLISECONDS / 1000 / max(seconds, 1e-6))))
            end = self._n_done
            for step in range(done + 1 if each or moves else end, end + 1):
                yield step, step, moved[step - done - 1] if moves else 0.0

    def _copy(self) -> Tensor:
        """Return a copy of the state, made by numpy: torch's threads would go on spinning after a
        copy and occupy a core.
        """
        return torch.from_numpy(self._state.numpy().copy())

    def _take(self, n: int, rows: Tensor, every: int, *, moves: bool = False) -> list[float]:
        """Take up to `n` steps, write rows, and return the moves of all steps if `moves`.

        If a check fails, repeat the steps before it, and leave its step to torch, which raises the
        error.
        """
        start, state_at_start = self._snapshot
        if start != self._n_done:
            start, state_at_start = self._n_done, self._copy()
        self._is_whole = False
        n_tasks, program, task = self._n_tasks, self._program, self._task
        moved = task.x.new_zeros(n_tasks, n if moves else 0)
        failed = torch.full((n_tasks,), NEVER)
        counts = (start, n, task.n_examples, program.batch_size or 0)
        written = (rows.numpy(), every, moved.numpy(), failed.numpy())
        shared = (self._state.numpy(), *self._data, *self._constants, *counts, *written)
        n_threads = min(torch.get_num_threads(), n_tasks)
        size = -(-n_tasks // (4 * n_threads)) if n_threads > 1 else n_tasks
        groups = iter(range(0, n_tasks, size))  # shared: an idle thread takes the next group

        def work() -> None:
            room = task.x.new_empty(self._loops.n_work + self._n_weights).numpy()
            for first in groups:
                tasks = (first, min(first + size, n_tasks))
                self._compiled(tasks, room, *shared)(tasks, room, *shared)

        if n_threads > 1:
            # New threads start on the core of this one, so keep the pool for all calls.
            self._pool = self._pool or ThreadPoolExecutor(n_threads - 1)
            others = [self._pool.submit(work) for _ in range(n_threads - 1)]
            try:
                work()
            finally:  # also on Ctrl-C, so that no thread goes on writing
                wait(others)
            for other in others:
                other.result()
        else:
            work()
        if (bad := int(failed.min())) < NEVER:
            self._state.copy_(state_at_start)
            moved_before = self._take(bad - start, rows, every, moves=moves) if bad > start else []
            return [*moved_before, self._step_by_torch(rows, every)]
        self._n_done += n
        self._is_whole = True
        return moved.amax(0).tolist() if moves else []

    def _step_by_torch(self, rows: Tensor, every: int) -> float:
        """Take the next step by torch, which raises the error of a failed check; return its move.

        It returns normally if torch, which may round differently, passes the check.
        """
        self._is_whole = False
        before = self._state.clone()
        slots = self._program.layout.having(Role.VELOCITY)
        firsts = {slot.name: self._loops.slots[slot.name].first for slot in slots}
        columns = {slot.name: before[:, firsts[slot.name] :][:, : slot.width] for slot in slots}
        batch = self._task.batch
        velocities = {s.name: columns[s.name].reshape(*batch, *s.shape) for s in slots}
        weights = before[:, : self._n_weights].view_as(self._task.initial)
        training = _Training(self._program, self._task, Snapshot(self._n_done, weights, velocities))
        training.step()
        reached = training.snapshot()
        self._state[:, : self._n_weights] = reached.weights.view(self._n_tasks, -1)
        for slot in slots:
            target = self._state[:, firsts[slot.name] :][:, : slot.width]
            target.copy_(reached.velocities[slot.name].reshape(self._n_tasks, -1))
        self._n_done += 1
        self._is_whole = True
        if self._n_done % every == 0:
            rows[:, self._n_done // every] = self._state[:, : self._n_weights]
        return float((self._state - before)[:, : self._n_weights].abs().max())

    def read(self, reached: int, write: Parameters) -> None:
        write.copy_(self._replay_to(reached).view_as(write))

    def at_hand(self, n_steps: int, reached: int) -> tuple[int, int]:
        return self._snapshot[0], self._snapshot[0]

    def predictions(self, reached: int) -> Predictions:
        weights = self._replay_to(reached).view_as(self._task.initial)
        return _predicted(self._program, self._task, weights)

    def _replay_to(self, step: int) -> Parameters:
        """Return the weights after `step`, replayed from the snapshot if necessary."""
        n_done, state = self._snapshot
        if step == n_done:
            return state[:, : self._n_weights]
        if not self._is_whole or self._n_done != step:
            self._n_done = n_done
            self._state.copy_(state)
            while self._n_done < step:
                self._take(step - self._n_done, self._no_rows, NEVER)
        return self._state[:, : self._n_weights]


@final
class TracedStack(AbstractExecutor[Parameters]):
    """Run all tokens through all layers, and copy the traced slots after each layer."""

    def __init__(self, program: StackProgram, task: Task, trace: tuple[str, ...]) -> None:
        self._program, self._task, self._trace, self.start = program, task, trace, task.initial
        slots = map(program.layout.slot, trace)
        self._recorded = tuple(slot.name for slot in slots if slot.role is not Role.CONSTANT)
        self.still_steps = program.steps_of_pass(task.n_examples)
        self._tokens = Tokens(program.n_registers, task.n_examples, task.n_queries)
        self._prompt = prompt_slots(program, task)
        carried = [slot.name for slot in program.layout.slots if slot.role in CARRIED]
        self._buffers = Buffers(program, self._prompt, carried)
        recordings = recorded_steps(program, self._tokens, trace=self._recorded)
        self._steps = [BoundRecording(self._buffers, recording) for recording in recordings]
        self._reached: tuple[Parameters, dict[str, Tensor]] = (task.initial, {})
        """The weights after the last step, and the other slots that the predictions start from."""
        self.traced: dict[str, list[Stream]] = {name: [] for name in trace}
        self.n_per_step = program.layers_per_step
        for name in trace:
            self.traced[name].append(self._as_seen(name, self._prompt[name]))

    def step(self) -> Parameters:
        bound = self._steps[self._buffers.step % len(self._steps)]
        for call in bound.calls:
            call()
        self._trace_slots(bound)
        for commit in bound.commits:
            commit()
        self._buffers.step += 1
        slots, layout = self._buffers.inputs, self._program.layout
        weights = [slots[slot.name].flatten(-2) for slot in layout.having(Role.PARAMETER)]
        reached = torch.cat([self.start[..., :0], *weights], dim=-1)  # `weights` may be empty
        others = (*layout.having(Role.TURN), *layout.having(Role.VELOCITY))
        self._reached = reached, {slot.name: slots[slot.name].clone() for slot in others}
        return reached

    def read(self, reached: Parameters, write: Parameters) -> None:
        write.copy_(reached)

    def predictions(self, reached: Parameters) -> Predictions:
        last, others = self._reached
        slots = self._prompt | self._program.layout.split(reached)
        slots |= others if last is reached else {}  # an earlier step left other slots
        recording = recorded_prediction(self._program, self._tokens, trace=self._recorded)
        bound = BoundRecording(Buffers(self._program, slots, ()), recording)
        bound()
        self._trace_slots(bound)
        first = self._tokens.where(IS_QUERY).start
        return bound.held[recording.outputs["y"]][..., first:, :].clone()

    def _trace_slots(self, bound: BoundRecording) -> None:
        for slots in bound.recording.trace:
            for name in self._trace:
                value = bound.held[slots[name]] if name in slots else self._prompt[name]
                self.traced[name].append(self._as_seen(name, value))

    def _as_seen(self, name: str, value: Tensor) -> Stream:
        """Return a copy of a slot with a row for each token, as in the transformer's stream."""
        if self._program.layout.slot(name).role in ONCE:
            return value.flatten(-2).unsqueeze(-2) * weight_scales(self._prompt)
        return value.clone()


def _stream_bytes(program: StackProgram, task: Task, n_tokens: int) -> int:
    """Estimate the memory of the intermediate results of `n_tokens` tokens.

    Each slot counts twice: its values, and the arguments of the function that computes them.
    """
    width = sum(slot.width for slot in program.layout.having(Role.SCRATCH))
    return 2 * prod(task.batch) * n_tokens * width * task.x.itemsize


def _is_small(program: StackProgram, task: Task, n_tokens: int) -> bool:
    """Return whether buffers for `n_tokens` tokens are small enough to keep for the next run."""
    data_bytes = sum(data.nbytes for data in (task.x, task.y, task.queries, task.initial))
    return data_bytes + _stream_bytes(program, task, n_tokens) <= LARGEST_IDLE


def _stack(program: StackProgram, task: Task, options: RunOptions) -> AbstractExecutor[Any]:
    if program.trains_function:
        return FunctionDescent(program, task, options)
    n_trained = program.batch_size or task.n_examples
    n_tokens = task.n_tokens if options.trace else max(n_trained, task.n_queries)
    needed = _stream_bytes(program, task, n_tokens)
    remedy = "Take fewer examples or queries, or a narrower network, or steps on batches."
    require_memory(f"A stream of {n_tokens:,} tokens", needed, remedy)
    if options.trace:
        return TracedStack(program, task, options.trace)
    if options.engine == "compiled" and (loops := loops_of(program, task)) is not None:
        return CompiledStack(program, task, loops)
    return FusedStack(program, task)


def seconds_of_step(program: StackProgram, task: Task) -> float:
    """Estimate how long torch takes for a step of all tasks: overhead of calls plus arithmetic."""
    tokens = Tokens(examples=program.batch_size or task.n_examples)

    def estimate() -> tuple[float, float]:
        recording = recorded_steps(program, tokens)[0]
        calls = [op for op in recording.ops if not isinstance(OPERATIONS.get(op.name), View)]
        products = [op for op in calls if op.name in ("times", "matmul", "add_outer")]
        n_terms = sum(prod(op.shape) * op.args[-1].shape[-2] for op in products)
        n_entries = sum(prod(op.shape) for op in calls)
        return 2e-6 * len(calls), 1e-9 * n_entries + 1e-10 * n_terms

    calls, numbers = cached_with(program, ("seconds", tokens), estimate)
    return calls + prod(task.batch) * numbers


def loops_of(program: StackProgram, task: Task) -> Loops | None:
    """Return the loops for steps on such tasks; None if an operation has no loop."""
    n_used, dtype = program.batch_size or task.n_examples, task.x.dtype
    if task.x.device.type != "cpu" or n_used > task.n_examples:
        return None

    def write() -> tuple[Loops | None]:
        layout = program.layout
        roles = (Role.PARAMETER, Role.VELOCITY)
        state = [slot.name for role in roles for slot in layout.having(role)]
        data = ["x", "y"] if task.rates is None else ["x", "y", RATES]
        recordings = recorded_steps(program, Tokens(examples=n_used))
        run = Running(program, {}, torch.empty(1, 1, dtype=dtype))
        in_batches = program.batch_size is not None
        try:
            return (Loops(recordings, run, state, data, in_batches=in_batches),)
        except NoLoopError:
            return (None,)

    key = ("loops", n_used, dtype, task.rates is None)
    return cached_with(program, key, write)[0]


@cache
def has_numba() -> bool:
    """Return whether numba, the extra `fast`, is installed."""
    return find_spec("numba") is not None


@final
class FusedBackend(AbstractBackend):
    """The backend that computes steps directly, one group of tasks at a time."""

    name: ClassVar[str] = "fused"
    sums_terms: ClassVar[bool] = False
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]] = {
        StackProgram: _stack,
        ChainProgram: partial(make_chain, backend=name),
    }

    def chosen(self, program: AbstractProgram, task: Task, options: RunOptions) -> RunOptions:
        """Choose the compiled engine for long enough work if numba is installed."""
        if options.engine == "compiled" and not has_numba():
            raise MissingExtraError(
                "engine='compiled' needs numba. Install it with: pip install 'icgd[fast]'"
            )
        if options.engine != "auto":
            return options
        is_long = (
            has_numba()
            and isinstance(program, StackProgram)
            and not (options.trace or program.trains_function)
            and program.n_steps * seconds_of_step(program, task) >= PAYS
        )
        return replace(options, engine="compiled" if is_long else "torch")

    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        """Return how many tasks fit in the cache; the tasks of a chain all run together."""
        if not isinstance(program, StackProgram):
            return len(task.x)
        # Kernel descent has no scratch slots, but a row of the kernel matrix for each token.
        scratch = program.layout.having(Role.SCRATCH)
        width = max((slot.width for slot in scratch), default=task.n_examples)
        return max(1, NUMBERS_AT_ONCE // (width * task.n_tokens))
