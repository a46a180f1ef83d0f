"""Recorded operations performed by torch, on buffers that are allocated once and used again.

An operation becomes one or two calls that write to a buffer. A buffer is used again as soon as
nobody reads it, and what a step leaves in a slot is written to the slot's own buffer where that is
possible, so that most steps copy nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from icgd.backends.look_up import PieceTable, PolynomialTable
from icgd.backends.recorder import AS_SUCH, Op, Recording, kept_with
from icgd.errors import OverflowedRunError
from icgd.problems.catalog import function_named
from icgd.problems.kernel_machine import KernelHead, sum_of_heads
from icgd.problems.links import link_named
from icgd.problems.losses import loss_named
from icgd.problems.unit_activations import unit_activation_named
from icgd.program.instructions import IS_EXAMPLE
from icgd.program.meaning import NOWHERE, PerStep
from icgd.program.ridge import RidgeSum

Call = Callable[[], object]

VIEWS = ("transpose", "rows", "reshape", "expand")
"""Operations that look at what another one wrote."""

IN_PLACE = ("combine", "multiply", "clip", "kink", "ramp", "unless")
"""Operations that may write where they read."""

NEVER = 10**9
"""The number of the operation that is never reached."""

UNITS_AT_ONCE = 2**20
"""The number of units times arguments that are evaluated at once."""


class Engine:
    """Buffers for the slots of some tasks, and the recordings that were bound to them.

    `inputs` holds what the recordings start from. Slots that steps change are the engine's own,
    everything else is only read. `step` counts the steps taken.
    """

    def __init__(self, program: Any, inputs: Mapping[str, Tensor], changing: Sequence[str]) -> None:
        self.program, self.inputs, self.step = program, dict(inputs), 0
        like = inputs["x"]
        self.like, self.batch = like, tuple(like.shape[:-2])
        self.changing = frozenset(changing)
        for name in changing:
            self.inputs[name] = inputs[name].clone(memory_format=torch.contiguous_format)
        self.free: dict[tuple[int, ...], list[Tensor]] = {}

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
        self.calls: list[Call] = []
        self.commits: list[Call] = []
        self.held: dict[Op, Tensor] = {}
        self.cells: dict[tuple[Op, str], Any] = {}
        ops = recording.ops
        self.base: dict[Op, Op] = {}  # the operation that owns the memory of a view
        for op in ops:
            self.base[op] = self.base[op.args[0]] if op.name in VIEWS else op
        self.last_use = {self.base[arg]: n for n, op in enumerate(ops) for arg in op.args}
        self.last_use |= {self.base[op]: NEVER for op in recording.outputs.values()}
        self.last_use |= {self.base[op]: NEVER for s in recording.trace for op in s.values()}
        self.home = self._homes()
        self.changes: set[Op] = set()  # operations that steps perform anew
        for number, op in enumerate(ops):
            is_input = op.name == "input"
            if op.options[0] in engine.changing if is_input else self.changes.intersection(op.args):
                self.changes.add(op)
            before = len(self.calls)
            self._emit(op, number)
            if op in self.changes:
                self._release(op, number)
            else:  # performed once, and kept
                for call in self.calls[before:]:
                    call()
                del self.calls[before:]
                self.last_use[self.base[op]] = NEVER
        for name, op in recording.outputs.items():
            slot, value = engine.inputs.get(name), self.held[op]
            if slot is not None and name in engine.changing and slot is not value:
                self.commits.append(partial(slot.copy_, value))

    def __call__(self) -> None:
        for call in self.calls:
            call()
        for commit in self.commits:
            commit()

    def _homes(self) -> dict[Op, str]:
        """The slot that an operation's result ends in, through operations that work in place."""
        homes: dict[Op, str] = {}
        for name, op in self.recording.outputs.items():
            if name not in self.engine.changing:
                continue
            while op.name != "input" and op not in homes:
                homes[op] = name
                first = [arg for arg in op.args if arg.shape == op.shape]
                if op.name not in (*IN_PLACE, "add_outer", "add_rows") or not first:
                    break
                op = first[0]
        return homes

    def _release(self, op: Op, number: int) -> None:
        """Let go of the buffers that were read for the last time."""
        mine = self.held[op].untyped_storage().data_ptr()
        for arg in {self.base[arg]: None for arg in op.args}:
            buffer = self.held[arg]
            is_dead = self.last_use[arg] == number and arg.name not in ("input", "fill")
            is_slot = any(buffer is slot for slot in self.engine.inputs.values())
            if is_dead and not is_slot and buffer.untyped_storage().data_ptr() != mine:
                self.engine.free.setdefault(arg.shape, []).append(buffer)

    def _target(self, op: Op, number: int) -> Tensor:
        """Where an operation writes: its slot, an argument that nobody reads again, or a buffer."""
        engine = self.engine
        if (name := self.home.get(op)) is not None:
            slot = engine.inputs[name]
            start = self.recording.inputs[name]
            is_free = self.last_use.get(start, -1) <= number
            is_read = [arg for arg in op.args if self.base[arg] is start]
            in_place = op.name in (*IN_PLACE, "add_outer", "add_rows")
            if (
                is_free
                and slot.shape[len(engine.batch) :] == op.shape
                and (in_place or not is_read)
            ):
                others = [o for o, held in self.held.items() if held is slot and o is not start]
                if all(self.last_use.get(self.base[o], -1) <= number for o in others):
                    return slot
        if op.name in IN_PLACE:
            for arg in op.args:
                own = self.held[arg]
                if (
                    arg.shape == op.shape
                    and arg.name not in ("input", "fill", *VIEWS)
                    and self.last_use[arg] == number
                    and self.base[arg] is arg
                    and not any(own is slot for slot in engine.inputs.values())
                ):
                    return own
        return engine.new(op, lasts=op not in self.changes or op.name == "above_one")

    def _emit(self, op: Op, number: int) -> None:
        """Add the calls of an operation, and hold the buffer of its result."""
        emit = getattr(self, f"_to_{op.name}")
        if op.name in ("input", "fill", *VIEWS):
            self.held[op] = emit(op)
            return
        if op.name in ("guard_root", "guard_score"):  # nothing is written
            self.base[op] = self.base[op.args[0]]
            self.last_use[self.base[op]] = max(
                self.last_use[self.base[op.args[0]]], self.last_use.get(op, -1)
            )
            self.held[op] = self.held[op.args[0]]
            emit(op)
            return
        write = self.held[op] = self._target(op, number)
        emit(op, write, *(self.held[arg] for arg in op.args))

    def _do(self, call: Callable[..., object], *args: Any, **options: Any) -> None:
        self.calls.append(partial(call, *args, **options) if args or options else call)

    # What is not computed.

    def _to_input(self, op: Op) -> Tensor:
        return self.engine.inputs[op.options[0]]

    def _to_fill(self, op: Op) -> Tensor:
        (number,) = op.options
        return self.engine.like.new_full((*self.engine.batch, *op.shape), number)

    def _to_transpose(self, op: Op) -> Tensor:
        return self.held[op.args[0]][..., : op.shape[0]].mT

    def _to_rows(self, op: Op) -> Tensor:
        start, stop = op.options
        axis = len(self.engine.batch)
        return self.held[op.args[0]].narrow(axis, start, stop - start)

    def _to_expand(self, op: Op) -> Tensor:
        return self.held[op.args[0]].expand(*self.engine.batch, *op.shape)

    def _to_reshape(self, op: Op) -> Tensor:
        return self.held[op.args[0]].view(*self.engine.batch, *op.shape)

    # Linear algebra.

    def _to_combine(self, op: Op, write: Tensor, *args: Tensor) -> None:
        *factors, constant = op.options
        if any(isinstance(number, PerStep) for number in op.options):
            self._do(self._combined_by_step(write, args, factors, constant))
            return
        # Begin with an argument that stands in the buffer, else with one whose factor is 1.
        order = sorted(range(len(args)), key=lambda k: (args[k] is not write, factors[k] != 1.0))
        first, *rest = [(args[k], factors[k]) for k in order]
        if not rest:
            self._do(torch.mul, first[0], first[1], out=write)
        elif first[1] == 1.0:
            self._do(torch.add, first[0], rest[0][0], alpha=rest[0][1], out=write)
            rest = rest[1:]
        elif rest[0][1] == 1.0:
            self._do(torch.add, rest[0][0], first[0], alpha=first[1], out=write)
            rest = rest[1:]
        else:
            self._do(torch.mul, first[0], first[1], out=write)
        for value, factor in rest:
            self._do(write.add_, value, alpha=factor)
        if constant:
            self._do(write.add_, constant)

    def _combined_by_step(
        self, write: Tensor, args: Sequence[Tensor], factors: Sequence[Any], constant: Any
    ) -> Call:
        """A sum whose factors change from step to step."""
        engine = self.engine
        order = sorted(range(len(args)), key=lambda k: args[k] is not write)
        first, *rest = [(args[k], factors[k]) for k in order]

        def at(number: Any) -> float:
            found: float = number.numbers[engine.step] if isinstance(number, PerStep) else number
            return found

        def combine() -> None:
            torch.mul(first[0], at(first[1]), out=write)
            for value, factor in rest:
                write.add_(value, alpha=at(factor))
            if constant != 0.0:
                write.add_(at(constant))

        return combine

    def _to_multiply(self, op: Op, write: Tensor, left: Tensor, right: Tensor) -> None:
        self._do(torch.mul, left, right, out=write)

    @property
    def _product(self) -> Callable[..., Tensor]:
        return {0: torch.mm, 1: torch.bmm}[len(self.engine.batch)]

    def _to_times_transposed(self, op: Op, write: Tensor, inputs: Tensor, weights: Tensor) -> None:
        self._do(self._product, inputs, weights.mT, out=write)

    def _to_times(self, op: Op, write: Tensor, left: Tensor, right: Tensor) -> None:
        self._do(self._product, left, right, out=write)

    def _to_above_one(self, op: Op, write: Tensor, inputs: Tensor) -> None:
        write.fill_(1.0)
        self._do(write[..., :-1].copy_, inputs)
        self.last_use[op] = NEVER  # its last column stays 1

    def _to_take(self, op: Op, write: Tensor, value: Tensor) -> None:
        places = torch.tensor(op.options, device=value.device)
        self._do(torch.index_select, value, -1, places.clamp(min=0), out=write)
        if (missing := places == NOWHERE).any():
            self._do(write.masked_fill_, missing, 0.0)

    def _to_constant_map(self, op: Op, write: Tensor, value: Tensor) -> None:
        matrix = torch.tensor(op.options, dtype=torch.float64).to(value)
        self._do(torch.matmul, value, matrix.mT, out=write)

    # Functions.

    def _table(self, op: Op, kind: Callable[..., Any]) -> Any:
        """The table of all functions that the recording applies to this argument."""
        same = [o for o in self.recording.ops if o.name == op.name and o.args == op.args]
        functions = [o.options[0] for o in same]
        key = (kind, *map(id, functions), self.engine.like.dtype, self.engine.like.device)
        table = kept_with(self.engine.program, key, lambda: kind(functions, self.engine.like))
        return table, functions.index(op.options[0])

    def _to_pieces(self, op: Op, write: Tensor, argument: Tensor) -> None:
        self._look_up(op, PieceTable, write, argument)

    def _to_polynomials(self, op: Op, write: Tensor, argument: Tensor) -> None:
        self._look_up(op, PolynomialTable, write, argument)

    def _look_up(self, op: Op, kind: Any, write: Tensor, argument: Tensor) -> None:
        """Find the cells of the argument once for all its functions, then evaluate one."""
        table, number = self._table(op, kind)
        key = (op.args[0], op.name)
        if key not in self.cells:
            self.cells[key] = table.finder(argument)
            self._do(self.cells[key].find)
        self._do(self.cells[key].evaluator(number, write))

    def _to_kink(self, op: Op, write: Tensor, argument: Tensor) -> None:
        self._do(torch.clamp_min, argument, 0.0, out=write)

    def _to_leaky(self, op: Op, write: Tensor, argument: Tensor) -> None:
        (left,) = op.options  # below 1
        self._do(torch.mul, argument, left, out=write)
        self._do(torch.maximum, argument, write, out=write)

    def _to_ramp(self, op: Op, write: Tensor, argument: Tensor) -> None:
        (fit,) = op.options
        start, end = fit.knots
        slope, foot = fit.slopes[1], fit(start)
        low, high = sorted((0.0, slope * (end - start)))
        self._do(torch.mul, argument, slope, out=write)
        if start:
            self._do(write.sub_, slope * start)
        self._do(write.clamp_, low, high)
        if foot:
            self._do(write.add_, foot)

    def _to_softmax(self, op: Op, write: Tensor, scores: Tensor) -> None:
        self._do(torch.softmax, scores, -1, out=write)

    def _to_link(self, op: Op, write: Tensor, score: Tensor) -> None:
        mean = link_named(op.options[0]).mean
        self._do(lambda: write.copy_(mean(score)))

    def _to_evaluate(self, op: Op, write: Tensor, argument: Tensor) -> None:
        function = function_named(op.options[0])
        self._do(lambda: write.copy_(function(argument)))

    def _to_loss_slope(self, op: Op, write: Tensor, prediction: Tensor, label: Tensor) -> None:
        slope = loss_named(op.options[0]).slope
        self._do(lambda: write.copy_(slope(prediction, label)))

    # Sums of units.

    def _to_units(self, op: Op, write: Tensor, *arguments: Tensor) -> None:
        fit, reaches = op.options
        units = _Units(fit, reaches, self.engine.like)
        self._do(lambda: write.copy_(units(*arguments)))

    def _to_units_near_kinks(
        self, op: Op, write: Tensor, exact: Tensor, *arguments: Tensor
    ) -> None:
        fit, reaches = op.options
        units = _Units(fit, reaches, self.engine.like)

        def compute() -> None:
            write.copy_(exact)
            if (near := units.is_coarse(arguments[-1])).any():
                where = near.expand_as(write)
                own = [argument.expand_as(write)[where] for argument in arguments]
                write[where] = units(*own)

        self._do(compute)

    def _to_clip_by_units(self, op: Op, write: Tensor, value: Tensor) -> None:
        """Only the weights that lie where units are coarse need them: near the corners, or all."""
        bound, fit = op.options
        units = _Units(fit, (1.0,), self.engine.like)

        def clip() -> None:
            near = units.is_coarse(value)
            soft = value[near]
            torch.clamp(value, -bound, bound, out=write)
            if soft.numel():
                write[near] = soft + units(soft)

        self._do(clip)

    # Sums over examples.

    def _to_add_outer(
        self, op: Op, write: Tensor, weights: Tensor, left: Tensor, right: Tensor
    ) -> None:
        (share,) = op.options
        is_zero = op.args[0].name == "fill" and op.args[0].options == (0.0,)
        if not is_zero and write is not weights:
            self._do(write.copy_, weights)
        add = write.baddbmm_ if self.engine.batch else write.addmm_
        self._do(add, left.mT, right, beta=0.0 if is_zero else 1.0, alpha=share)

    def _to_add_by_units(
        self, op: Op, write: Tensor, weights: Tensor, left: Tensor, right: Tensor
    ) -> None:
        share, fit, reaches = op.options
        units = _Units(fit, reaches, self.engine.like, gain=reaches[0] * reaches[1])
        left, right = left.unsqueeze(-1), right.unsqueeze(-2)
        self._do(lambda: torch.add(weights, units(left, right).sum(-3), alpha=share, out=write))

    def _to_add_rows(
        self, op: Op, write: Tensor, weights: Tensor, left: Tensor, matrix: Tensor
    ) -> None:
        (share,) = op.options
        if write is not weights:
            self._do(write.copy_, weights)
        total = write.flatten(-2).unsqueeze(-2)
        add = total.baddbmm_ if self.engine.batch else total.addmm_
        rows = left.flatten(-2).unsqueeze(-2)
        self._do(add, rows, matrix.flatten(-3, -2), alpha=share)

    def _to_add_rows_by_units(
        self, op: Op, write: Tensor, weights: Tensor, left: Tensor, matrix: Tensor
    ) -> None:
        share, fit, reaches = op.options
        units = _Units(fit, reaches, self.engine.like, gain=reaches[0] * reaches[1])
        left = left.unsqueeze(-1)

        def add() -> None:
            total = units(left, matrix).sum((-3, -2)).view_as(weights)
            torch.add(weights, total, alpha=share, out=write)

        self._do(add)

    def _to_average(self, op: Op, write: Tensor, score: Tensor, value: Tensor) -> None:
        def average() -> None:
            write.copy_((torch.softmax(score, dim=-2) * value).sum(-2, keepdim=True))

        self._do(average)

    # What MLP layers do to a slot, and where.

    def _to_clip(self, op: Op, write: Tensor, value: Tensor) -> None:
        (bound,) = op.options
        self._do(torch.clamp, value, -bound, bound, out=write)

    def _to_unless(self, op: Op, write: Tensor, value: Tensor, flag: Tensor) -> None:
        self._do(lambda: torch.mul(value, flag == 0, out=write))

    def _to_where(self, op: Op, write: Tensor, value: Tensor, otherwise: Tensor) -> None:
        start, stop = op.options
        self._do(write.copy_, otherwise)
        self._do(write[..., start:stop, :].copy_, value[..., start:stop, :])

    def _to_without_first(self, op: Op, write: Tensor, value: Tensor) -> None:
        self._do(write.copy_, value)
        self._do(write[..., :1, :].zero_)

    def _to_next_place(self, op: Op, write: Tensor, place: Tensor) -> None:
        size, start, stop = op.options
        own = write[..., start:stop, :]
        self._do(write.copy_, place)
        self._do(lambda: own.sub_(size).remainder_(stop - start))

    def _to_next_waits(self, op: Op, write: Tensor, place: Tensor) -> None:
        size, start, stop = op.options
        own, now = write[..., start:stop, :], place[..., start:stop, :]
        self._do(write.zero_)
        self._do(lambda: own.copy_((now - size).remainder(stop - start) >= size))

    # Runs stop where heads are not made for what they would read.

    def _to_guard_root(self, op: Op) -> None:
        fit, *names = op.options
        argument, engine = self.held[op.args[0]], self.engine
        if not any(bool(engine.inputs[name].any()) for name in names):
            return

        def check() -> None:
            largest = float(argument.max())
            if not largest <= fit.high:
                raise OverflowedRunError.beyond_root(engine.step + 1, largest, fit.high)

        self._do(check)

    def _to_guard_score(self, op: Op) -> None:
        reach, checked, start, stop = op.options
        engine, scores = self.engine, self.held[op.args[0]][..., start:stop, :]

        def check() -> None:
            if not scores.numel() or float(torch.linalg.vector_norm(scores, inf)) <= reach:
                return
            outside = ~(scores.abs() <= reach)
            row = int(outside.nonzero()[0, -2])
            where = f"step {engine.step + 1}, example" if checked == IS_EXAMPLE else "query"
            raise OverflowedRunError.beyond_scores(where, row, float(scores[outside][0]), reach)

        self._do(check)

    # Jacobians and kernels.

    def _to_matmul_rows(self, op: Op, write: Tensor, weights: Tensor, matrix: Tensor) -> None:
        own = weights[..., : matrix.shape[-2]].unsqueeze(-3)
        self._do(torch.matmul, own, matrix, out=write)

    def _to_scale_rows(self, op: Op, write: Tensor, weights: Tensor, matrix: Tensor) -> None:
        n_rows, n_columns = matrix.shape[-2:]
        own = weights[..., :n_rows].unsqueeze(-3).unsqueeze(-1)
        entries = write.unflatten(-1, (weights.shape[-2], n_rows, n_columns))
        self._do(torch.mul, own, matrix.unsqueeze(-3), out=entries)

    def _to_kernel(self, op: Op, write: Tensor, points: Tensor, examples: Tensor) -> None:
        heads = tuple(KernelHead(**vars(term)) for term in op.options)
        self._do(lambda: write.copy_(sum_of_heads(heads, points, examples)))


class _Units:
    """gain * sum_m coefficient_m activation(direction_m . (z / reaches) + offset_m)."""

    def __init__(
        self, fit: RidgeSum, reaches: Sequence[float], like: Tensor, gain: float | None = None
    ) -> None:
        self.activation = unit_activation_named(fit.activation).value
        self.reaches, self.gain, self.fit = reaches, reaches[0] if gain is None else gain, fit
        self.bands = _joined_bands(fit)
        rows = [(*unit.direction, unit.offset, unit.coefficient) for unit in fit.units]
        *self.directions, self.offsets, self.coefficients = (
            torch.tensor(column, dtype=torch.float64).to(like) for column in zip(*rows, strict=True)
        )

    def __call__(self, *arguments: Tensor) -> Tensor:
        pairs = zip(arguments, self.reaches, strict=True)
        own = torch.broadcast_tensors(*(z if reach == 1.0 else z / reach for z, reach in pairs))
        at_once = max(1, UNITS_AT_ONCE // max(own[0].numel(), 1))
        total = torch.zeros_like(own[0])
        for start in range(0, len(self.offsets), at_once):
            units = slice(start, start + at_once)
            argument = self.offsets[units]
            for z, direction in zip(own, self.directions, strict=True):
                argument = argument + z.unsqueeze(-1) * direction[units]
            total = total + self.activation(argument) @ self.coefficients[units]
        return total if self.gain == 1.0 else self.gain * total

    def is_coarse(self, z: Tensor) -> Tensor:
        """Where the function itself is not computed: in bands of the last argument."""
        if self.fit.error > AS_SUCH:
            return torch.ones_like(z, dtype=torch.bool)
        found = torch.zeros_like(z, dtype=torch.bool)
        for low, high in self.bands:
            found |= (z >= low) & (z <= high)
        return found


def _joined_bands(fit: RidgeSum) -> list[tuple[float, float]]:
    """Where a fit is coarse, as ranges that do not overlap."""
    joined: list[tuple[float, float]] = []
    for band in sorted(fit.bands, key=lambda band: band.low):
        if band.error <= AS_SUCH:
            continue
        if joined and band.low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], band.high))
        else:
            joined.append((band.low, band.high))
    return joined
