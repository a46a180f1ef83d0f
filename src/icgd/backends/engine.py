"""Execute a recording: once with new tensors, or repeatedly in preallocated buffers.

`OPERATIONS` maps each operation to a torch function of its arguments and `out`: with a buffer for
`out` it allocates nothing, without one it returns a new tensor. A `Plan` runs a recording with new
tensors. A `BoundRecording` runs it in `Buffers`: a buffer is reused after its last read, and the
new value of a slot is written to the slot's own buffer where possible, so most steps copy nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate
from math import inf, prod
from operator import attrgetter, or_
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from icgd.backends.look_up import (
    UNIT_DEGREE,
    PieceTable,
    PolynomialTable,
    UnitTable,
    unit_cells,
)
from icgd.backends.prompt import require_root, require_scores
from icgd.backends.recorder import AS_SUCH, Op, Recording, cached_with
from icgd.problems.functions import StepFunction, function_named, unit_activation_named
from icgd.problems.kernel_machine import KernelHead, sum_of_heads
from icgd.problems.linear_model import link_named
from icgd.problems.losses import loss_named
from icgd.program.functions import LatticeFunction, RidgeSum
from icgd.program.layout import IS_EXAMPLE, Role
from icgd.program.meaning import NOWHERE, PerStep

Array = NDArray[Any]
Function = Callable[..., Tensor]
Check = Callable[[], None]
Call = Callable[[], object]
Idle = TypeVar("Idle")

UNITS_AT_ONCE = 2**20
"""The most (unit, argument) pairs evaluated at once, which bounds the memory of a sum of units."""


class Running:
    """The state of a run that operations may read: program, input slots and steps taken.

    `batch` is the shape of the axis of tasks, if there is one. The reference to the program is weak
    because its cache holds idle buffers: a strong one would keep both alive for ever.
    """

    def __init__(self, program: Any, inputs: dict[str, Tensor], like: Tensor) -> None:
        self._program, self.inputs, self.like = weakref.ref(program), inputs, like
        self.batch: tuple[int, ...] = tuple(like.shape[:-2])
        self.step = 0

    @property
    def program(self) -> Any:
        return self._program()

    def watch(self, op: Op, value: Tensor) -> Check | None:
        """Return a check of the range of a product, or None if each block is checked elsewhere."""
        return None


# Linear algebra.


def _combine(op: Op, run: Running) -> Function:
    *factors, constant = op.options
    if any(isinstance(number, PerStep) for number in op.options):
        return _combine_by_step(factors, constant, run)
    if len(factors) == 1 and not constant:
        return partial(torch.mul, other=factors[0])
    if len(factors) == 2 and factors[0] == 1.0 and not constant:
        return partial(torch.add, alpha=factors[1])

    def combine(*args: Tensor, out: Tensor | None = None) -> Tensor:
        # `out` may be one of the first two arguments: the branches read that one first.
        if len(args) == 1:
            total = torch.mul(args[0], factors[0], out=out)
        elif factors[0] == 1.0:
            total = torch.add(args[0], args[1], alpha=factors[1], out=out)
        elif factors[1] == 1.0:
            total = torch.add(args[1], args[0], alpha=factors[0], out=out)
        elif out is args[1]:
            total = torch.mul(args[1], factors[1], out=out).add_(args[0], alpha=factors[0])
        else:
            total = torch.mul(args[0], factors[0], out=out).add_(args[1], alpha=factors[1])
        for value, factor in zip(args[2:], factors[2:], strict=True):
            total.add_(value, alpha=factor)
        return total.add_(constant) if constant else total

    return combine


def _combine_by_step(factors: Sequence[float], constant: float, run: Running) -> Function:
    """Return a sum whose factors change per step."""
    now = partial(_now, run)

    def combine(*args: Tensor, out: Tensor | None = None) -> Tensor:
        terms = list(zip(args, factors, strict=True))
        if len(args) > 1 and out is args[1]:
            terms[:2] = terms[1::-1]
        total = torch.mul(terms[0][0], now(terms[0][1]), out=out)
        for value, factor in terms[1:]:
            total.add_(value, alpha=now(factor))
        return total.add_(now(constant)) if constant != 0.0 else total

    return combine


def _now(run: Running, number: float) -> float:
    """Return a number, or what it is in the current step."""
    if not isinstance(number, PerStep):
        return number
    return number.numbers[run.step % len(number.numbers)]  # the block of steps may repeat


def _scale_columns(op: Op, run: Running) -> Function:
    def scale(value: Tensor, out: Tensor | None = None) -> Tensor:
        factor, last = (_now(run, number) for number in op.options)
        return torch.cat([value[..., :-1] * factor, value[..., -1:] * last], dim=-1, out=out)

    return scale


def _take(op: Op, run: Running) -> Function:
    places = torch.tensor(op.options, device=run.like.device)
    index, missing = places.clamp(min=0), places == NOWHERE

    def take(value: Tensor, out: Tensor | None = None) -> Tensor:
        taken = torch.index_select(value, -1, index, out=out)
        return taken.masked_fill_(missing, 0.0)

    return take


def _constant_map(op: Op, run: Running) -> Function:
    matrix = torch.tensor(op.options, dtype=torch.float64).to(run.like).mT.contiguous()
    return partial(torch.matmul, other=matrix)


def _project(op: Op, run: Running) -> Function:
    """Return the projection on a box, of the entries or of coordinates in an orthonormal basis."""
    (faces,) = op.options
    start, stop = faces.columns
    low, high, basis = (
        torch.tensor(numbers, dtype=torch.float64).to(run.like)
        for numbers in (faces.low, faces.high, faces.basis or ())
    )
    if faces.basis is None:
        low, high = (bound.view(op.shape[0], stop - start) for bound in (low, high))

    def project(value: Tensor) -> Tensor:
        columns = value[..., start:stop]
        if faces.basis is None:
            projected = columns.clamp(low, high)
        else:
            # Subtract the excess: this keeps the component orthogonal to the basis.
            coordinates = (columns if faces.each_row else columns.flatten(-2)) @ basis.mT
            excess = coordinates - coordinates.clamp(low, high)
            projected = columns - (excess @ basis).view(columns.shape)
        return torch.cat([value[..., :start], projected, value[..., stop:]], dim=-1)

    return _computed(project)


def _exchange(op: Op, run: Running) -> Function:
    first, second = zip(*op.options, strict=True)

    def exchange(value: Tensor) -> Tensor:
        after, pair = value.clone(), (value[..., first], value[..., second])
        after[..., first], after[..., second] = torch.maximum(*pair), torch.minimum(*pair)
        return after

    return _computed(exchange)


def _mean_excess(op: Op, run: Running) -> Function:
    (total,) = op.options
    counts = torch.arange(1, op.shape[-1] + 1).to(run.like)
    return _computed(lambda value: (value.cumsum(-1) - total) / counts)


def _threshold(value: Tensor, threshold: Tensor) -> Tensor:
    n_columns = threshold.shape[-1]
    above = (value[..., :n_columns] - threshold[..., :1]).clamp(min=0.0)
    return torch.cat([above, value[..., n_columns:]], dim=-1)


# Functions.


def _leaky(op: Op, run: Running) -> Function:
    (leak,) = op.options  # below 1, so that the maximum selects the right piece

    def leaky(argument: Tensor, out: Tensor | None = None) -> Tensor:
        below = torch.mul(argument, leak, out=out)
        return torch.maximum(argument, below, out=out)

    return leaky


def _ramp(op: Op, run: Running) -> Function:
    (fit,) = op.options
    start, end = fit.knots
    slope, foot = fit.slopes[1], fit(start)
    low, high = sorted((0.0, slope * (end - start)))

    def ramp(argument: Tensor, out: Tensor | None = None) -> Tensor:
        value = torch.mul(argument, slope, out=out)
        if start:
            value.sub_(slope * start)
        value.clamp_(low, high)
        return value.add_(foot) if foot else value

    return ramp


def _computed(function: Callable[..., Tensor]) -> Function:
    """Return `function` with an `out` argument, which it copies its result to."""

    def compute(*args: Tensor, out: Tensor | None = None) -> Tensor:
        value = function(*args)
        return value if out is None else out.copy_(value)

    return compute


def _grid_mean(op: Op, run: Running) -> Function:
    """Return the softmax-weighted mean over a grid, for each token."""
    fit = op.options[0]
    table = torch.tensor((fit.points, fit.offsets, fit.values), dtype=torch.float64)
    points, offsets, values = table.to(run.like)
    return _computed(lambda s: torch.softmax(s[..., None] * points + offsets, dim=-1) @ values)


def _evaluate(op: Op, run: Running) -> Function:
    function = function_named(op.options[0])
    compute = _computed(function)
    if not isinstance(function, StepFunction) or function.levels != (0.0, 1.0):
        return compute
    (knot,) = function.knots

    def is_beyond(argument: Tensor, out: Tensor | None = None) -> Tensor:
        return compute(argument) if out is None else torch.gt(argument, knot, out=out)

    return is_beyond


class Units:
    """gain * sum_m coefficient_m activation(direction_m . (z / reaches) + offset_m)."""

    def __init__(
        self, fit: RidgeSum, reaches: Sequence[float], like: Tensor, gain: float | None = None
    ) -> None:
        self.activation = unit_activation_named(fit.activation).value
        self.reaches, self.gain, self.fit = reaches, reaches[0] if gain is None else gain, fit
        # Disjoint ranges of the last argument in which the fit is coarse.
        self.bands: list[tuple[float, float]] = []
        for band in sorted(fit.bands, key=lambda band: band.low):
            if band.error <= AS_SUCH:
                continue
            if self.bands and band.low <= self.bands[-1][1]:
                low, high = self.bands[-1]
                self.bands[-1] = (low, max(high, band.high))
            else:
                self.bands.append((band.low, band.high))
        rows = [(*unit.direction, unit.offset, unit.coefficient) for unit in fit.units]
        *self.directions, self.offsets, self.coefficients = (
            torch.tensor(column, dtype=torch.float64).to(like) for column in zip(*rows, strict=True)
        )

    def __call__(self, *arguments: Tensor) -> Tensor:
        pairs = zip(arguments, self.reaches, strict=True)
        scaled = torch.broadcast_tensors(*(z if reach == 1.0 else z / reach for z, reach in pairs))
        at_once = max(1, UNITS_AT_ONCE // max(scaled[0].numel(), 1))
        total = torch.zeros_like(scaled[0])
        for start in range(0, len(self.offsets), at_once):
            units = slice(start, start + at_once)
            argument = self.offsets[units]
            for z, direction in zip(scaled, self.directions, strict=True):
                argument = argument + z.unsqueeze(-1) * direction[units]
            total = total + self.activation(argument) @ self.coefficients[units]
        return total if self.gain == 1.0 else self.gain * total

    def is_coarse(self, z: Any) -> Any:
        """Return a mask of last arguments at which runs sum the units instead of the function."""
        if self.fit.error > AS_SUCH:
            return torch.ones_like(z, dtype=torch.bool)
        return reduce(or_, ((z >= low) & (z <= high) for low, high in self.bands))


def units_of(
    run: Running, fit: RidgeSum, reaches: Sequence[float], gain: float | None = None
) -> Units:
    """Return the units of a fit, cached with the program."""
    key = ("units", id(fit), *reaches, gain, run.like.dtype, run.like.device)
    return cached_with(run.program, key, lambda: Units(fit, reaches, run.like, gain))


def _units_near_kinks(op: Op, run: Running) -> Function:
    """Return the exact value, replaced by the sum of units at the few arguments near a kink."""
    units = units_of(run, *op.options)

    def compute(exact: Tensor, *arguments: Tensor) -> Tensor:
        near = units.is_coarse(arguments[-1])
        if not near.any():
            return exact
        where, value = near.expand_as(exact), exact.clone()
        value[where] = units(*(argument.expand_as(exact)[where] for argument in arguments))
        return value

    return _computed(compute)


def _near_kinks(op: Op, run: Running) -> Function:
    """Return, for each token and layer, whether any argument is near a kink."""
    (fit,) = op.options
    units = units_of(run, fit, (1.0, 1.0))
    widths = [argument.shape[-1] for argument in op.args]

    def find(*arguments: Tensor) -> Tensor:
        near = units.is_coarse(torch.cat(arguments, dim=-1))
        return torch.stack([layer.any(-1) for layer in near.split(widths, dim=-1)], dim=-1)

    return _computed(find)


def _kink_corrections(op: Op, run: Running) -> Function:
    """Return corrections of all gradients: units compute s r'(t) near kinks, not s times the slope.

    s is an entry of a Jacobian, whose row holds the derivatives of a unit's argument t by all
    weights below it. Rows are formed only for units near a kink, token by token. `op.args` has the
    flags of `near_kinks`, then five values for each layer: its inputs, the gradient of its outputs,
    its slopes, its arguments, and the weights above it. The arrays are so small that the overhead
    of calls dominates, which is lower in numpy than in torch.
    """
    share, fit, *reaches = op.options
    units = units_of(run, fit, (1.0, 1.0))
    pairs = zip(op.args[1::5], op.args[3::5], strict=True)
    shapes = [(slope.shape[1], inputs.shape[1]) for inputs, slope in pairs]
    ends = [0, *accumulate(map(prod, shapes))]
    scales = []
    for layer_reaches, (_, n_inputs) in zip(reaches, shapes, strict=True):
        sizes = (*map(prod, shapes[: len(layer_reaches) - 1]), n_inputs)
        scales.append(
            np.repeat(layer_reaches, sizes).astype(run.like.new_empty(0).cpu().numpy().dtype)
        )

    def product(left: Array, right: Array) -> Array:
        """Multiply by torch, which respects the number of threads that the user set."""
        result: Array = (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()
        return result

    def add(total: Array, layers: list[list[Array]], near: Array) -> None:
        """Add the corrections at one token to `total`."""
        # By layer: the units near a kink, and the corrections of the rows of their Jacobians.
        corrections: dict[int, tuple[Array, Array]] = {}
        for m, (inputs, received, slope, argument, _) in enumerate(layers):
            if not near[m]:
                continue
            (unit,) = units.is_coarse(argument).nonzero()
            rows = np.zeros((len(unit), ends[m] + len(inputs)), total.dtype)
            rows[:, ends[m] :] = inputs  # weight (k, l) acts on unit k alone
            # Go down from layer m: the derivatives by weights n are left (x) the inputs of n.
            left = layers[m - 1][-1][unit] if m else rows
            for n in reversed(range(m)):
                left = left[:, : shapes[n][0]]
                if n in corrections:  # rows below were corrected, and layer m sees that too
                    corrected_units, correction = corrections[n]
                    rows[:, : ends[n + 1]] += product(left[:, corrected_units], correction)
                left = left * layers[n][2]
                outer = left[:, :, None] * layers[n][0]
                rows[:, ends[n] : ends[n + 1]] += outer.reshape(len(unit), -1)
                left = product(left, layers[n - 1][-1]) if n else left
            s, t = (torch.from_numpy(array) for array in (rows / scales[m], argument[unit, None]))
            difference = scales[m] * units(s, t).numpy() - rows * slope[unit, None]
            # Derivatives by the weights of layer m itself: those of a unit fill one row only.
            by_layer_weights = np.zeros((len(unit), *shapes[m]), total.dtype)
            by_layer_weights[np.arange(len(unit)), unit] = difference[:, ends[m] :]
            correction = np.concatenate(
                [difference[:, : ends[m]], by_layer_weights.reshape(len(unit), -1)], axis=1
            )
            corrections[m] = unit, correction
            total[: ends[m + 1]] += share * product(received[unit], correction)

    def compute(flags: Tensor, *values: Tensor) -> Tensor:
        total = torch.zeros(*run.batch, *op.shape, dtype=flags.dtype)
        tokens = flags.any(-1).nonzero().tolist()
        arrays = [tensor.cpu().numpy() for tensor in (total, flags, *values)] if tokens else []
        for token in map(tuple, tokens):
            task, (totals, near, *layer_arrays) = token[:-1], arrays
            layers = [
                [*(array[token] for array in layer_arrays[n : n + 4]), layer_arrays[n + 4][task]]
                for n in range(0, len(layer_arrays), 5)
            ]
            add(totals[task], layers, near[token])
        return total.to(flags)

    return _computed(compute)


def _clip_by_units(op: Op, run: Running) -> Function:
    """Return a clip that sums the units only where the fit is coarse: near the corners, or all."""
    bound, fit = op.options
    units = units_of(run, fit, (1.0,))
    if units.fit.error > AS_SUCH and (tabulated := _clip_by_table(op, run, units)) is not None:
        return tabulated

    def clip(value: Tensor, out: Tensor | None = None) -> Tensor:
        near = units.is_coarse(value)
        soft = value[near] if near.any() else None
        clipped = torch.clamp(value, -bound, bound, out=out)
        if soft is not None:
            clipped[near] = soft + units(soft)
        return clipped

    return clip


def _clip_by_table(op: Op, run: Running, units: Units) -> Function | None:
    """Return a clip by a table of the sum of units, or None if building it takes longer."""
    bound, fit = op.options
    end = 1.25 * bound
    n_cells = unit_cells(fit, end)
    parameters = run.program.layout.having(Role.PARAMETER)
    n_clipped = run.program.n_steps * sum(slot.width for slot in parameters)
    if n_cells is None or n_clipped < n_cells * (UNIT_DEGREE + 1):
        return None
    key = ("unit table", id(fit), end, run.like.dtype, run.like.device)
    table = cached_with(run.program, key, lambda: UnitTable(fit, end, n_cells, run.like))

    change = run.like.new_empty(*run.batch, *op.shape)
    bound_to: list[Any] = []  # the weights, their cells and the evaluator of the table there

    def clip(value: Tensor, out: Tensor | None = None) -> Tensor:
        if not bound_to or bound_to[0] is not value:
            cells = table.finder(value)
            bound_to[:] = value, cells, cells.evaluator(0, change)
        bound_to[1].find()
        bound_to[2]()
        if not float(torch.linalg.vector_norm(value, inf)) <= end:  # also if it is a NaN
            is_beyond = ~(value.abs() <= end)
            change[is_beyond] = units(value[is_beyond])
        return torch.add(value, change, out=out)

    return clip


# Sums over examples, and kernels.


def _add_outer(op: Op, run: Running) -> Function:
    (share,) = op.options
    is_zero = op.args[0].name == "fill" and op.args[0].options == (0.0,)
    add = torch.baddbmm if run.batch else torch.addmm
    return partial(add, beta=0.0 if is_zero else 1.0, alpha=share)


def _add_by_units(op: Op, run: Running) -> Function:
    share, fit, reaches = op.options
    units = units_of(run, fit, reaches, reaches[0] * reaches[1])

    def add(weights: Tensor, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        total = units(left.unsqueeze(-1), right.unsqueeze(-2)).sum(-3)
        return torch.add(weights, total, alpha=share, out=out)

    return add


def _add_rows(op: Op, run: Running) -> Function:
    (share,) = op.options

    def add(weights: Tensor, left: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        if out is not weights:
            out = weights.clone() if out is None else out.copy_(weights)
        total = out.view(*run.batch, 1, -1)
        add = total.baddbmm_ if run.batch else total.addmm_
        add(left.reshape(*run.batch, 1, -1), matrix.flatten(-3, -2), alpha=share)
        return out

    return add


def _add_rows_by_units(op: Op, run: Running) -> Function:
    share, fit, reaches = op.options
    units = units_of(run, fit, reaches, reaches[0] * reaches[1])

    def add(weights: Tensor, left: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        total = units(left.unsqueeze(-1), matrix).sum((-3, -2)).view_as(weights)
        return torch.add(weights, total, alpha=share, out=out)

    return add


def _average(score: Tensor, value: Tensor) -> Tensor:
    return (torch.softmax(score, dim=-2) * value).sum(-2, keepdim=True)


def _kernel(op: Op, run: Running) -> Function:
    heads = tuple(KernelHead(**vars(term)) for term in op.options)
    return _computed(lambda points, examples: sum_of_heads(heads, points, examples))


# What MLP layers do to a slot, and where.


def _where(op: Op, run: Running) -> Function:
    start, stop = op.options

    def where(value: Tensor, otherwise: Tensor, out: Tensor | None = None) -> Tensor:
        result = otherwise.clone() if out is None else out.copy_(otherwise)
        result[..., start:stop, :] = value[..., start:stop, :]
        return result

    return where


def _unless(value: Tensor, flag: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.mul(value, flag == 0, out=out)


def _without_first(value: Tensor) -> Tensor:
    result = value.clone()
    result[..., :1, :] = 0.0
    return result


def _next_place(op: Op, run: Running) -> Function:
    size, start, stop = op.options

    def advance(place: Tensor) -> Tensor:
        places = place.clone()
        places[..., start:stop, :].sub_(size).remainder_(stop - start)
        return places

    return _computed(advance)


def _next_waits(op: Op, run: Running) -> Function:
    size, start, stop = op.options

    def outside_batch(place: Tensor) -> Tensor:
        flags, places = torch.zeros_like(place), place[..., start:stop, :]
        flags[..., start:stop, :] = ((places - size).remainder(stop - start) >= size).to(place)
        return flags

    return _computed(outside_batch)


# The blocks of a chain.


def _select(op: Op, run: Running) -> Function:
    """Return the combination of blocks that the bits of the round select."""
    n_bits, rows = op.options

    def select(*args: Tensor) -> Tensor:
        bits, values = args[:n_bits], args[n_bits:]
        row = rows[sum(2**place for place, bit in enumerate(bits) if bit.any())]
        terms = [(value, factor) for value, factor in zip(values, row, strict=True) if factor]
        (value, factor), *others = terms
        total = value if factor == 1.0 else value * factor
        for other, factor in others:
            total = torch.add(total, other, alpha=factor)
        return total

    return _computed(select)


def _pass_back(op: Op, run: Running) -> Function:
    """Return relu(up - B flat) - relu(-up - B flat): up shrunk towards 0 by B flat, B the gate."""
    gate, leak, bound = op.options

    def pass_back(upstream: Tensor, flat: Tensor, out: Tensor | None = None) -> Tensor:
        size = torch.abs(upstream, out=out).sub_(flat, alpha=gate)
        gated = size.clamp_(min=0.0, max=bound).copysign_(upstream)
        if not leak:
            return gated
        clipped = upstream if bound is None else upstream.clamp(-bound, bound)
        return gated.mul_(1 - leak).add_(clipped, alpha=leak)

    return pass_back


def _softmax_columns(op: Op, run: Running) -> Function:
    (n_rows,) = op.options

    def softmax(scores: Tensor) -> Tensor:
        shares = scores[..., :n_rows, :].softmax(-2)
        return torch.nn.functional.pad(shares, (0, 0, 0, scores.shape[-2] - n_rows))

    return _computed(softmax)


# Views and range checks.


def _rows(op: Op, run: Running, source: Tensor) -> Tensor:
    start, stop = op.options
    return source.narrow(len(run.batch), start, stop - start)


def _with_axes(op: Op, run: Running, source: Tensor) -> Tensor:
    for place in op.options:
        source = source.unsqueeze(len(run.batch) + place)
    return source


def _check_root(op: Op, run: Running, value: Tensor) -> Check | None:
    fit, *names = op.options
    if not any(bool(run.inputs[name].any()) for name in names):
        return None
    return lambda: require_root(value, fit, run.step)


def _check_score(op: Op, run: Running, value: Tensor) -> Check | None:
    reach, checked, start, stop = op.options
    scores = value[..., start:stop, :]
    where = "step {}, example" if checked == IS_EXAMPLE else "query"
    return lambda: require_scores(scores, reach, where.format(run.step + 1))


class Compute(NamedTuple):
    """An operation with its own result. It may overwrite its first `overwrites` arguments."""

    make: Callable[[Op, Running], Function]
    overwrites: int = 0


class View(NamedTuple):
    """An operation whose result is a view of its argument, by default all of it.

    `check` returns a check that raises `OverflowedRunError` when values leave the range that the
    heads were built for, or None if they cannot.
    """

    show: Callable[[Op, Running, Tensor], Tensor] = lambda op, run, source: source
    check: Callable[[Op, Running, Tensor], Check | None] = lambda op, run, value: None


class LookUp(NamedTuple):
    """An operation evaluated by a table look-up."""

    table: type[PieceTable] | type[PolynomialTable]


OPERATIONS: dict[str, Compute | View | LookUp] = {
    "combine": Compute(_combine, overwrites=2),
    "scale_columns": Compute(_scale_columns),
    "multiply": Compute(lambda op, run: torch.mul, overwrites=2),
    "times": Compute(lambda op, run: torch.bmm if run.batch else torch.mm),
    "beside": Compute(lambda op, run: lambda *args, out=None: torch.cat(args, dim=-1, out=out)),
    "take": Compute(_take),
    "constant_map": Compute(_constant_map),
    "kink": Compute(lambda op, run: partial(torch.clamp, min=0.0), overwrites=1),
    "leaky": Compute(_leaky),
    "ramp": Compute(_ramp, overwrites=1),
    "softmax": Compute(lambda op, run: partial(torch.softmax, dim=-1)),
    "link": Compute(lambda op, run: _computed(link_named(op.options[0]).mean)),
    "evaluate": Compute(_evaluate),
    "grid_mean": Compute(_grid_mean),
    "loss_slope": Compute(lambda op, run: _computed(loss_named(op.options[0]).slope)),
    "units": Compute(lambda op, run: _computed(units_of(run, *op.options))),
    "units_near_kinks": Compute(_units_near_kinks),
    "near_kinks": Compute(_near_kinks),
    "kink_corrections": Compute(_kink_corrections),
    "clip_by_units": Compute(_clip_by_units, overwrites=1),
    "add_outer": Compute(_add_outer, overwrites=1),
    "add_by_units": Compute(_add_by_units, overwrites=1),
    "add_rows": Compute(_add_rows, overwrites=1),
    "add_rows_by_units": Compute(_add_rows_by_units, overwrites=1),
    "average": Compute(lambda op, run: _computed(_average)),
    "clip": Compute(
        lambda op, run: partial(torch.clamp, min=-op.options[0], max=op.options[0]), overwrites=1
    ),
    "project": Compute(_project),
    "exchange": Compute(_exchange),
    "mean_excess": Compute(_mean_excess),
    "threshold": Compute(lambda op, run: _computed(_threshold)),
    "unless": Compute(lambda op, run: _unless),
    "where": Compute(_where),
    "without_first": Compute(lambda op, run: _computed(_without_first)),
    "next_place": Compute(_next_place),
    "next_waits": Compute(_next_waits),
    "matmul": Compute(lambda op, run: torch.matmul),
    "select": Compute(_select),
    "pass_back": Compute(_pass_back),
    "softmax_columns": Compute(_softmax_columns),
    "kernel": Compute(_kernel),
    "pieces": LookUp(PieceTable),
    "polynomials": LookUp(PolynomialTable),
    "transpose": View(lambda op, run, source: source[..., : op.shape[0]].mT),
    "columns": View(lambda op, run, source: source[..., : op.shape[1]]),
    "rows": View(_rows),
    "with_axes": View(_with_axes),
    "expand": View(lambda op, run, source: source.expand(*run.batch, *op.shape)),
    "reshape": View(lambda op, run, source: source.view(*run.batch, *op.shape)),
    "guard_root": View(check=_check_root),
    "guard_score": View(check=_check_score),
    "guard_reach": View(check=lambda op, run, value: run.watch(op, value)),
}
"""The implementation of each operation except `input` and `fill`."""


def table_of(look_up: LookUp, op: Op, ops: Sequence[Op], run: Running) -> tuple[Any, int]:
    """Return the table that serves `op`, and the number of its function in the table.

    All functions of one argument share a table, so that its cells are found once. Functions of
    softmax heads share it only if they have the same lattice.
    """
    fit = op.options[0]
    functions = [o.options[0] for o in ops if o.name == op.name and o.args == op.args]
    if isinstance(fit, LatticeFunction):
        lattice = attrgetter("reach", "spacing", "ratio", "half")
        functions = [other for other in functions if lattice(other) == lattice(fit)]
    key = (op.name, *map(id, functions), run.like.dtype, run.like.device)
    table = cached_with(run.program, key, lambda: look_up.table(functions, run.like))
    return table, [other is fit for other in functions].index(True)


def overwrites(op: Op) -> int:
    """Return how many of its leading arguments an operation may overwrite."""
    return getattr(OPERATIONS.get(op.name), "overwrites", 0)


class Plan:
    """A recording run with new tensors. Guards are left to the caller."""

    def __init__(self, recording: Recording, run: Running) -> None:
        self.recording = recording
        self.inputs = [op for op in recording.ops if op.name == "input"]
        self.constants: dict[Op, Tensor] = {}
        self.calls: list[tuple[Op, Function]] = []
        for op in recording.ops:
            if op.name == "fill":
                self.constants[op] = run.like.new_full((*run.batch, *op.shape), op.options[0])
            operation = OPERATIONS.get(op.name)
            if isinstance(operation, View):
                self.calls.append((op, partial(operation.show, op, run)))
            elif isinstance(operation, LookUp):
                table, number = table_of(operation, op, recording.ops, run)
                self.calls.append((op, partial(table, number=number)))
            elif operation is not None:
                self.calls.append((op, operation.make(op, run)))

    def __call__(self, inputs: Mapping[str, Any]) -> dict[Op, Tensor]:
        """Return the results of all operations."""
        results = self.constants | {op: inputs[op.options[0]] for op in self.inputs}
        for op, function in self.calls:
            results[op] = function(*[results[arg] for arg in op.args])
        return results


class Buffers(Running):
    """The memory in which bound recordings run.

    `inputs` holds the slots; those in `changing` are copied, because steps write to them, and the
    others are only read. `step` counts the steps taken. Results that do not depend on `changing`
    are computed `once`, for operations in `shared` (by default all); `lasting` holds them. `free`
    has the buffers available for reuse, by shape.
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
        self.once: list[Call] = []

    def load(self, inputs: Mapping[str, Tensor], step: int) -> None:
        """Restart from a copy of other inputs of the same shapes."""
        self.step = step
        for name, value in inputs.items():
            self.inputs[name].copy_(value)
        for call in self.once:
            call()


NEVER = 10**9
"""A step or operation number that is never reached."""


class BoundRecording:
    """A recording bound to buffers: `calls` compute results, then `commits` copy them to slots.

    Operations that depend on no changing slot run once, when they are bound.
    """

    def __init__(self, buffers: Buffers, recording: Recording) -> None:
        self.buffers, self.recording = buffers, recording
        self.calls: list[Call] = []
        self.commits: list[Call] = []
        self.held: dict[Op, Tensor] = {}
        self.cells: dict[tuple[Op, int], Any] = {}
        self.written: dict[str, list[Op]] = {}  # operations whose result is in a slot's buffer
        self.slots = {id(slot) for slot in buffers.inputs.values()}
        ops = recording.ops

        # For each view the operation that owns its buffer, and for each owner its last reader.
        self.owner: dict[Op, Op] = {}
        for op in ops:
            is_view = isinstance(OPERATIONS.get(op.name), View)
            self.owner[op] = self.owner[op.args[0]] if is_view else op
        self.last_use = {self.owner[arg]: n for n, op in enumerate(ops) for arg in op.args}
        self.last_use |= {self.owner[op]: NEVER for op in recording.outputs.values()}
        self.last_use |= {self.owner[op]: NEVER for s in recording.trace for op in s.values()}

        # Results that should be computed in the buffer of a slot: the slot's new value, and what it
        # is computed from in place.
        self.home: dict[Op, str] = {}
        for name, op in recording.outputs.items():
            while name in buffers.changing and op.name != "input" and op not in self.home:
                self.home[op] = name
                first = [arg for arg in op.args if arg.shape == op.shape]
                if not overwrites(op) or not first:
                    break
                op = first[0]

        self.changes: set[Op] = set()
        for number, op in enumerate(ops):
            # Repeat operations whose arguments change, or that not all recordings share.
            if op.name == "input":
                is_repeated = op.options[0] in buffers.changing
            else:
                is_shared = buffers.shared is None or op in buffers.shared
                is_repeated = not (is_shared and self.changes.isdisjoint(op.args))
            if is_repeated:
                self.changes.add(op)
                self.calls += self._calls(op, number)
                self._release(op, number)
                continue
            self.last_use[self.owner[op]] = NEVER
            if op in buffers.lasting:
                self.held[op] = buffers.lasting[op]
            else:
                for call in self._calls(op, number):
                    call()
                    buffers.once.append(call)
                buffers.lasting[op] = self.held[op]

        for name, op in recording.outputs.items():
            if name in buffers.changing and self.held[op] is not buffers.inputs[name]:
                self.commits.append(partial(buffers.inputs[name].copy_, self.held[op]))

    def __call__(self) -> None:
        for call in self.calls:
            call()
        for commit in self.commits:
            commit()

    def _calls(self, op: Op, number: int) -> list[Call]:
        """Return the calls that compute `op`, and set `held[op]` to the tensor that they write."""
        buffers, args = self.buffers, [self.held[arg] for arg in op.args]
        if op.name == "input":
            self.held[op] = buffers.inputs[op.options[0]]
            return []
        if op.name == "fill":
            self.held[op] = buffers.like.new_full((*buffers.batch, *op.shape), op.options[0])
            return []
        operation = OPERATIONS[op.name]
        if isinstance(operation, View):
            self.held[op] = operation.show(op, buffers, *args)
            check = operation.check(op, buffers, *args)
            return [check] if check else []
        write = self.held[op] = self._target(op, number)
        if isinstance(operation, Compute):
            return [partial(operation.make(op, buffers), *args, out=write)]
        # Find the cells of an argument once for all its functions.
        table, place = table_of(operation, op, self.recording.ops, buffers)
        key, calls = (op.args[0], id(table)), list[Call]()
        if key not in self.cells:
            self.cells[key] = table.finder(*args)
            calls.append(self.cells[key].find)
        return [*calls, self.cells[key].evaluator(place, write)]

    def _target(self, op: Op, number: int) -> Tensor:
        """Return the tensor that `op` writes to.

        In order of preference: its slot, an argument with no later reader, a free buffer, a new
        one. The first saves a copy at the end of the step, the others memory.
        """
        buffers = self.buffers

        def may_write(buffer: Tensor) -> bool:
            memory = buffer.untyped_storage().data_ptr()
            others = (self.held[arg] for arg in op.args[overwrites(op) :])
            return all(other.untyped_storage().data_ptr() != memory for other in others)

        if (name := self.home.get(op)) is not None:
            # The slot's buffer is free if no later operation reads any value stored there so far.
            slot = buffers.inputs[name]
            holders = [self.recording.inputs[name], *self.written.get(name, ())]
            is_read_later = any(
                self.last_use.get(self.owner.get(holder, holder), -1) > number for holder in holders
            )
            fits = slot.shape[len(buffers.batch) :] == op.shape
            if fits and not is_read_later and may_write(slot):
                self.written.setdefault(name, []).append(op)
                return slot
        for arg in op.args[: overwrites(op)]:
            is_buffer = self.owner[arg] is arg and arg.name not in ("input", "fill")
            is_dead = is_buffer and arg.shape == op.shape and self.last_use[arg] == number
            if is_dead and id(self.held[arg]) not in self.slots and may_write(self.held[arg]):
                return self.held[arg]
        pool = buffers.free.get(op.shape)
        if pool and op in self.changes:
            return pool.pop()
        return buffers.like.new_empty(*buffers.batch, *op.shape)

    def _release(self, op: Op, number: int) -> None:
        """Return buffers to the pool that `op` was the last to read."""
        result = self.held[self.owner[op]]
        for arg in {self.owner[arg]: None for arg in op.args}:
            buffer = self.held[arg]
            is_dead = self.last_use[arg] == number and arg.name not in ("input", "fill")
            if is_dead and buffer is not result and id(buffer) not in self.slots:
                self.buffers.free.setdefault(arg.shape, []).append(buffer)


MOST_IDLE = 8
"""How many sets of bound buffers a program keeps for its next runs; the oldest are evicted."""

LARGEST_IDLE = 2**20
"""The most bytes of buffers that are kept: with larger ones a step outlasts binding anew."""


def take_idle(program: Any, key: object, kind: type[Idle]) -> Idle | None:
    """Take over the bound buffers that an earlier run of this thread left, if any.

    They are removed from the cache, so that a nested run, or one after an interruption, allocates
    its own. Call `leave_idle` to return them.
    """
    buffers: Idle | None = _idle_of(program).pop((get_ident(), kind, key), None)
    return buffers


def leave_idle(program: Any, key: object, buffers: object) -> None:
    """Hand bound buffers to the next run of this thread; the caller must not use them again."""
    idle = _idle_of(program)
    idle[get_ident(), type(buffers), key] = buffers
    for oldest in list(idle)[:-MOST_IDLE]:
        idle.pop(oldest, None)


def _idle_of(program: Any) -> dict[object, Any]:
    return cached_with(program, "idle", dict)
