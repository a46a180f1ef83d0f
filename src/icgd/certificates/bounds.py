r"""Error bounds, propagated through a program instruction by instruction.

Each slot carries an enclosure: where the exact quantity lies, where the transformer's own
quantity lies, and how far apart the two are at most. One rule for each instruction turns the
enclosures that it reads into those that it writes. The same rules serve three bounds:

- whole domain: the exact quantities are intervals given by the domain and the box;
- this run, one step: the exact quantities are numbers, computed from the run's own weights;
- this run, whole trajectory: the exact quantities are those of real gradient descent, and the
  weights enter each step with the error that the steps before left.

Rounding. A sum of m terms in floating point is off by at most gamma(m) = m u / (1 - m u) times
the sum of their sizes, in any order (u is the unit roundoff). Every rule adds that, twice: for
the transformer, and for the float64 oracle that it is compared with. A softmax head is off by
what the rounding of its scores changes, besides its sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, singledispatch
from math import ceil, inf

import torch
from torch import Tensor

from icgd.approximation.lattice import lattice_of
from icgd.backends.look_up import DEGREE, table_error
from icgd.backends.registry import backend_named
from icgd.certificates.intervals import Interval
from icgd.errors import ProgramError
from icgd.problems.activations import activation_named
from icgd.problems.catalog import FUNCTIONS, function_named
from icgd.problems.functions import ScalarFunction, StepFunction
from icgd.problems.losses import loss_named
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum
from icgd.program.instructions import (
    IDENTITY,
    SQUARE,
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    ClipSlots,
    Combination,
    Instruction,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    WipeSlots,
)
from icgd.program.program import Layer
from icgd.program.registers import SHARE
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram
from icgd.program.table_instructions import AverageExamples, LookUpStep
from icgd.shapes import Values


@dataclass(frozen=True)
class Enclosure:
    """The exact value, the transformer's value, and a bound on their distance."""

    exact: Interval
    actual: Interval
    error: Tensor

    @classmethod
    def common(cls, value: Interval) -> Enclosure:
        """A quantity that the transformer has exactly."""
        return cls(value, value, torch.zeros_like(value.low))

    @classmethod
    def around(cls, exact: Interval, error: Values, actual: Interval | None = None) -> Enclosure:
        """The transformer's value lies within `error` of the exact one, and in `actual`."""
        near = exact.widened(error)
        actual = near if actual is None else near.within(actual)
        return cls(exact, actual, torch.minimum(error, exact.distance_to(actual)))

    @property
    def size(self) -> Tensor:
        """Of the exact and of the transformer's value: what rounds in one of the two."""
        return torch.maximum(self.exact.size, self.actual.size)

    @property
    def mT(self) -> Enclosure:  # noqa: N802 - torch's name
        """Transposed."""
        return Enclosure(self.exact.mT, self.actual.mT, self.error.mT)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Enclosure:
        """With all numbers arranged in another way."""
        return Enclosure(self.exact.mapped(change), self.actual.mapped(change), change(self.error))

    def without_nan(self) -> Enclosure:
        """With an infinite error where infinities cancelled: nothing is known there."""
        error = torch.where(self.error.isnan(), inf, self.error)
        return Enclosure(self.exact.without_nan(), self.actual.without_nan(), error)


@dataclass(frozen=True)
class Arithmetic:
    """How the transformer computes: its unit roundoff, its sums, the length of its prompt.

    `sums_terms` says that functions are evaluated ReLU by ReLU or token by token, and averaged
    over all tokens, as the dense transformer does; otherwise they are looked up in tables, and
    lines and products are computed as such.
    """

    roundoff: float
    n_tokens: int
    sums_terms: bool

    @classmethod
    def of(cls, dtype: torch.dtype, n_tokens: int, backend: str) -> Arithmetic:
        """The arithmetic of a backend."""
        return cls(torch.finfo(dtype).eps / 2, n_tokens, backend_named(backend).sums_terms)

    def sum_of(self, n_terms: int, sizes: Tensor) -> Tensor:
        """Rounding of a sum of `n_terms` products whose sizes add up to `sizes`."""
        # + 8: rounded weights and constants, the product itself, the residual addition.
        product = (n_terms + 8) * self.roundoff
        gamma = product / (1 - product) if product < 1 else inf
        return 2 * gamma * sizes

    def head(self, fit: LatticeFunction, fan_in: int, argument: Tensor, apart: Tensor) -> Tensor:
        """Rounding of a look-up where the terms of its argument have this total size.

        The registers' copies of the argument may lie `apart`, each by another amount, which moves
        a score by up to |g| apart / (spacing ratio^2). A mean stays between the values.
        """
        if self.sums_terms:
            beyond = (argument / fit.reach).clamp(min=1.0)
            scores = self.sum_of(fan_in + 2, fit.sensitivity * beyond)
            moved = fit.half / (fit.spacing * fit.ratio**2) * apart
            scores = scores + uneven_response(fit) * apart * torch.exp(2 * moved)
            scores = scores.nan_to_num(inf).clamp(max=max(fit.values) - min(fit.values))
            return scores + self.sum_of(len(fit.values), torch.full_like(argument, fit.size))
        tabulated = self.sum_of(2 * DEGREE, torch.full_like(argument, 4 * fit.size))
        return tabulated + table_error(fit)

    def function(self, fit: ReluSum, fan_in: int, argument: Tensor, n_copies: int) -> Tensor:
        """Rounding of evaluating `fit` where the terms of its argument have this total size."""
        if self.sums_terms:
            terms = fit.terms()
            slope = sum(abs(term.coefficient * term.scale) for term in terms)
            constant = sum(abs(term.coefficient * term.shift) for term in terms)
            # Attention sums over tokens first, then over heads.
            return self.sum_of(len(terms) + n_copies + fan_in, slope * argument + constant)
        if is_ramp(fit):  # clamped between its levels, exactly
            return self.sum_of(0, torch.full_like(argument, max(map(abs, _levels(fit)))))
        jumps = zip(fit.knots, fit.slopes[:-1], fit.slopes[1:], strict=True)
        constant = abs(fit.anchor_value) + sum(abs(knot * (b - a)) for knot, a, b in jumps)
        steepest = max(map(abs, fit.slopes))
        return self.sum_of(fit.n_pieces, steepest * (argument + abs(fit.anchor)) + constant)


@lru_cache(maxsize=256)
def uneven_response(fit: LatticeFunction) -> float:
    """What a head changes, at most, if each token of the grid sees the argument off by up to 1.

    That is the largest sum_g weight_g |value_g - mean| |g| / (spacing ratio^2). Weights are
    `ratio` cells wide, so that samples an eighth of a cell apart miss less than 2%.
    """
    lattice = lattice_of(fit)
    n_samples = 2 * ceil(8 * fit.reach / fit.spacing) + 1
    weights = lattice.weights(torch.linspace(-fit.reach, fit.reach, n_samples).double())
    values = torch.tensor(fit.values, dtype=torch.float64)
    spread = (values - (weights @ values).unsqueeze(-1)).abs()
    gains = lattice.numbers().abs() / (fit.spacing * fit.ratio**2)
    return 1.02 * float((weights * spread * gains).sum(-1).max())


def is_ramp(fit: Function) -> bool:
    """Whether the fit stands in for a step function, or for one times a number."""
    if isinstance(fit, RidgeSum):
        return bool(fit.bands) and fit.name.endswith("'(t)")
    return isinstance(fit, ReluSum) and isinstance(FUNCTIONS.get(fit.name), StepFunction)


def _levels(fit: ReluSum) -> tuple[float, ...]:
    """The levels between which a ramp runs."""
    return (fit.anchor_value, *(fit(knot) for knot in fit.knots))


State = dict[str, Enclosure]


def propagate(
    program: StackProgram, layers: Iterable[Layer], state: Mapping[str, Enclosure], how: Arithmetic
) -> State:
    """The enclosures of all slots after `layers`, from those before."""
    after = dict(state)
    for layer in layers:
        before = dict(after)
        for instruction in layer.instructions:
            written = rule(instruction, program, before, how)
            after.update({name: slot.without_nan() for name, slot in written.items()})
    return after


@singledispatch
def rule(instruction: Instruction, program: StackProgram, state: State, how: Arithmetic) -> State:
    """The enclosures of the slots that the instruction writes."""
    raise ProgramError.broken(type(instruction).__name__, "has no rule in certificates/bounds.py")


def fitted_at(fit: Function, argument: Enclosure, rounding: Tensor) -> Enclosure:
    """A program's function at an enclosed argument.

    |fit(a) - f(b)| <= |fit(a) - f(a)| + |f(a) - f(b)|, with a, b in known intervals.
    """
    real = function_at(function_named(fit.name), argument)
    fitted = fit_error(fit, argument.actual) + rounding
    actual = real.actual.widened(fitted)
    if isinstance(fit, ReluSum) and is_ramp(fit):  # it stays between the levels of the step
        levels = _levels(fit)
        actual = actual.within(Interval(min(levels) - rounding, max(levels) + rounding))
    return Enclosure.around(real.exact, real.error + fitted, actual)


def function_at(function: ScalarFunction, argument: Enclosure) -> Enclosure:
    """A function itself at an enclosed argument."""
    exact = Interval(*function.bounds(argument.exact.low, argument.exact.high))
    actual = Interval(*function.bounds(argument.actual.low, argument.actual.high))
    both_low = torch.minimum(argument.exact.low, argument.actual.low)
    both_high = torch.maximum(argument.exact.high, argument.actual.high)
    moved = function.variation(both_low, both_high, argument.error)
    return Enclosure(exact, actual, torch.minimum(moved, exact.distance_to(actual)))


def fit_error(fit: Function, argument: Interval) -> Tensor:
    """Largest certified error on the pieces that the argument can touch.

    Infinite outside the interval on which the fit was proved; exact fits, ramps and look-ups
    that saturate continue as the function itself does.
    """
    if fit.is_exact:
        return torch.zeros_like(argument.low)
    if isinstance(fit, RidgeSum):
        return ridge_error(fit, argument)
    if isinstance(fit, LatticeFunction | GridMean):
        saturates = isinstance(fit, LatticeFunction) and fit.saturates
        outside = (argument.size > fit.reach) & torch.tensor(not saturates)
        return torch.where(outside, torch.inf, torch.full_like(argument.low, fit.error))
    knots = torch.tensor(fit.knots, dtype=torch.float64)
    last = torch.searchsorted(knots, argument.high.contiguous())
    first = torch.minimum(torch.searchsorted(knots, argument.low.contiguous(), right=True), last)
    error = _largest_between(torch.tensor(fit.errors, dtype=torch.float64), first, last)
    if is_ramp(fit):
        return error
    outside = (argument.low < fit.low) | (argument.high > fit.high)
    return torch.where(outside, torch.inf, error)


def ridge_error(fit: RidgeSum, *arguments: Interval) -> Tensor:
    """Certified error of a sum of units, infinite outside its box."""
    last, shape = arguments[-1], torch.broadcast_tensors(*(part.low for part in arguments))[0].shape
    error = last.low.new_full(shape, fit.error)
    for band in fit.bands:
        touched = (last.low <= band.high) & (last.high >= band.low)
        error = torch.where(touched, error.clamp(min=band.error), error)
    for argument, width in zip(arguments, fit.half_widths, strict=True):
        error = torch.where(argument.size > width, torch.inf, error)
    return error


def _largest_between(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """max(values[first .. last]) for tensors of positions, from maxima over powers of two."""
    levels = [values]
    while 2 ** len(levels) <= len(values):
        shift = 2 ** (len(levels) - 1)
        levels.append(torch.maximum(levels[-1][:-shift], levels[-1][shift:]))
    length = last - first + 1
    level = torch.log2(length.double()).floor().long()
    padded = torch.stack(
        [torch.nn.functional.pad(row, (0, len(values) - len(row))) for row in levels]
    )
    return torch.maximum(padded[level, first], padded[level, last + 1 - 2**level])


def matrix_product(weights: Enclosure, inputs: Enclosure, how: Arithmetic) -> Enclosure:
    """`weights @ inputs` at every token."""
    rounding = how.sum_of(weights.error.shape[-1], inputs.size @ weights.size.mT)
    error = inputs.error @ weights.exact.size.mT + inputs.actual.size @ weights.error.mT + rounding
    actual = (inputs.actual @ weights.actual.mT).widened(rounding)
    return Enclosure.around(inputs.exact @ weights.exact.mT, error, actual)


@dataclass(frozen=True)
class _Argument:
    """An argument, the total size of its terms, how many there are, and how far the registers'
    copies of it may lie from the memory's.
    """

    value: Enclosure
    sizes: Tensor
    n_terms: int
    apart: Tensor


def _argument(weights: Enclosure, inputs: _Argument, how: Arithmetic) -> _Argument:
    """`weights @ inputs`."""
    sizes = inputs.sizes @ weights.actual.size.mT
    n_terms = weights.error.shape[-1] + inputs.n_terms - 1
    return _Argument(
        matrix_product(weights, inputs.value, how), sizes, n_terms, torch.zeros_like(sizes)
    )


def combination_at(combination: Combination, state: State, how: Arithmetic) -> _Argument:
    """A combination of slots; a slot itself is not rounded."""
    parts = [(state[slot], factor) for slot, factor in combination.terms()]
    sizes = torch.stack([abs(f) * part.size for part, f in parts]).sum(0)
    error = torch.stack([abs(f) * part.error for part, f in parts]).sum(0)
    exact = _sum([part.exact.times(f) for part, f in parts])
    actual = _sum([part.actual.times(f) for part, f in parts])
    if len(parts) > 1:
        rounding = how.sum_of(len(parts), sizes)
        error, actual = error + rounding, actual.widened(rounding)
    value = Enclosure.around(exact, error, actual)
    return _Argument(value, sizes, len(parts), torch.zeros_like(sizes))


@rule.register
def _bound_of_apply_units(
    instruction: ApplyUnits, program: StackProgram, state: State, how: Arithmetic
) -> State:
    inputs = combination_at(Combination.of(instruction.inputs), state, how)
    argument = _argument(state[instruction.weights], inputs, how)
    fit = program.relu_sum(instruction.function)
    rounding = how.function(fit, argument.n_terms, argument.sizes, how.n_tokens)
    return {instruction.write: fitted_at(fit, argument.value, rounding)}


@rule.register
def _bound_of_map_slots(
    instruction: MapSlots, program: StackProgram, state: State, how: Arithmetic
) -> State:
    total: Enclosure | None = None
    for summand in instruction.summands:
        argument = combination_at(summand.argument, state, how)
        fit = program.relu_sum(summand.function)
        rounding = how.function(fit, argument.n_terms, argument.sizes, n_copies=1)
        value = fitted_at(fit, argument.value, rounding)
        total = value if total is None else add(total, value, how)
    return {} if total is None else {instruction.write: total}


def argument_at(argument: Argument, state: State, how: Arithmetic) -> _Argument:
    """An argument of heads, with how far the registers' copies of its weights may lie apart."""
    inputs = combination_at(argument.inputs, state, how)
    if argument.weights is None:
        return inputs
    weights, drift = state[argument.weights], state.get(drift_of(argument.weights))
    product = _argument(weights.mT if argument.transposed else weights, inputs, how)
    if drift is None:
        return product
    apart = inputs.sizes @ (drift if argument.transposed else drift.mT).error
    return replace(product, sizes=product.sizes + apart, apart=apart)


@rule.register
def _bound_of_look_up(
    instruction: LookUp, program: StackProgram, state: State, how: Arithmetic
) -> State:
    argument = argument_at(instruction.argument, state, how)
    written = {}
    for name, write in zip(instruction.lookups, instruction.into, strict=True):
        fit = program.look_up(name)
        rounding = how.head(fit, argument.n_terms, argument.sizes, argument.apart)
        written[write] = fitted_at(fit, argument.value, rounding)
    return written


@rule.register
def _bound_of_project(
    instruction: Project, program: StackProgram, state: State, how: Arithmetic
) -> State:
    argument = argument_at(instruction.argument, state, how)
    fit, reach = program.look_up(IDENTITY), instruction.reach
    sizes, apart = argument.sizes / reach, argument.apart / reach
    off = reach * grid_error(fit, argument.n_terms, sizes, apart, how)
    return {instruction.write: moved(argument.value, off)}


def moved(value: Enclosure, off: Tensor) -> Enclosure:
    """The value as the transformer has it after getting it wrong by `off`."""
    return Enclosure.around(value.exact, value.error + off, value.actual.widened(off))


def grid_error(
    fit: LatticeFunction, n_terms: int, sizes: Tensor, apart: Tensor, how: Arithmetic
) -> Tensor:
    """How far a line or a square is off; only the dense transformer reads it from the grid.

    Beyond the reach, which is at least 1, all that is known is that a mean stays between the
    values, and that the line or the square is at most the size's square.
    """
    if not how.sums_terms:
        return torch.zeros_like(sizes)
    off = fit.error + how.head(fit, n_terms, sizes, apart)
    return torch.where(sizes > fit.reach, max(map(abs, fit.values)) + sizes**2, off)


@rule.register
def _bound_of_add_product(
    instruction: AddProduct, program: StackProgram, state: State, how: Arithmetic
) -> State:
    argument = argument_at(instruction.argument, state, how)
    factor, before = state[instruction.factor], state[instruction.write]
    reach, factor_reach = instruction.reach, instruction.factor_reach
    sizes = argument.sizes / reach + factor.actual.size / factor_reach
    apart = argument.apart / reach
    off = grid_error(program.look_up(SQUARE), argument.n_terms + 1, sizes, apart, how)
    product = moved(multiply(argument.value, factor, how), reach * factor_reach / 2 * off)
    return {instruction.write: add(before, product, how) if before.actual.size.any() else product}


@rule.register
def _bound_of_add_gradient(
    instruction: AddGradient, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left, right = combination_at(instruction.left, state, how).value, state[instruction.right]
    off = _probing(instruction, left, right, how) if how.sums_terms else None
    return add_outer_product(instruction.write, left, right, instruction.scale, off, state, how)


@dataclass(frozen=True)
class Missed:
    """How far the heads' mean(left right^T) is from the exact one, before it is scaled: by the
    same amount in all registers, and by amounts of their own.
    """

    alike: Tensor
    uneven: Tensor


def _probing(
    instruction: AddGradient, left: Enclosure, right: Enclosure, how: Arithmetic
) -> Missed:
    """What probing loses.

    With x = probe * left, sum_k c_k sinh(k x) / k = x + R(x) and |R(x)| <= 0.0224 |x|^7 cosh(3 x).
    All examples stand in the denominator, which changes the mean by at most 2.2 SHARE exp(6 x) of
    mean(|left| |right|) + mean|left| mean|right|. The rest is rounding: of n exponentials, each of
    a number below 48, divided by the probe.
    """
    left_size, right_mean = left.actual.size, right.actual.size / right.error.shape[-2]
    x = instruction.probe * left_size
    missed = 0.0224 * torch.cosh(3 * x) * x**6 * left_size
    largest = torch.exp(6 * x.amax(-2, keepdim=True))
    shared = 2.2 * SHARE * largest * (left_size + left_size.mean(-2, keepdim=True))
    exponentials = torch.full_like(x, 1.84 / instruction.probe) * torch.exp(3 * x)
    rounded = how.sum_of(how.n_tokens + 48, exponentials)
    return Missed(missed.mT @ right_mean, (shared + rounded).mT @ right_mean)


def _sum(intervals: list[Interval]) -> Interval:
    total = intervals[0]
    for interval in intervals[1:]:
        total = total + interval
    return total


def add(left: Enclosure, right: Enclosure, how: Arithmetic) -> Enclosure:
    """The sum, entry by entry."""
    rounding = how.sum_of(2, left.size + right.size)
    actual = (left.actual + right.actual).widened(rounding)
    error = left.error + right.error + rounding
    return Enclosure.around(left.exact + right.exact, error, actual)


def multiply(left: Enclosure, right: Enclosure, how: Arithmetic) -> Enclosure:
    """The product, entry by entry."""
    rounding = how.sum_of(2, left.size * right.size)
    error = left.error * right.exact.size + left.actual.size * right.error + rounding
    actual = (left.actual * right.actual).widened(rounding)
    return Enclosure.around(left.exact * right.exact, error, actual)


@rule.register
def _bound_of_multiply_slots(
    instruction: MultiplySlots, program: StackProgram, state: State, how: Arithmetic
) -> State:
    return {instruction.write: multiply(state[instruction.left], state[instruction.right], how)}


@rule.register
def _bound_of_pull_back(
    instruction: PullBack, program: StackProgram, state: State, how: Arithmetic
) -> State:
    weights, upstream = state[instruction.weights], state[instruction.upstream]
    pulled_back = matrix_product(weights.mT, upstream, how)
    return {instruction.write: multiply(state[instruction.slope], pulled_back, how)}


@rule.register
def _bound_of_accumulate_outer_product(
    instruction: AccumulateOuterProduct, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left, right = state[instruction.left], state[instruction.right]
    return add_outer_product(instruction.write, left, right, instruction.scale, None, state, how)


def add_outer_product(
    write: str,
    left: Enclosure,
    right: Enclosure,
    scale: float,
    off: Missed | None,
    state: State,
    how: Arithmetic,
) -> State:
    """`write` plus scale * mean(left right^T), which the layer itself gets wrong by `off`.

    Then the registers' copies of the weights, which are not rounded alike, may also drift apart.
    """
    weights = state[write]
    share = abs(scale) / left.error.shape[-2]
    size = share * left.actual.size.mT @ right.actual.size
    error = share * (left.error.mT @ right.exact.size + left.actual.size.mT @ right.error)
    rounding = how.sum_of(2 * how.n_tokens, size) + how.sum_of(2, weights.actual.size + size)
    exact = weights.exact.widened(share * left.exact.size.mT @ right.exact.size)
    drift: State = {}
    if off is not None:
        rounding = rounding + abs(scale) * off.uneven
        drift = _drifted(write, rounding, state)
        rounding = rounding + abs(scale) * off.alike
    error = weights.error + error + rounding
    after = Enclosure.around(exact, error, weights.actual.widened(size + rounding))
    return {write: after, **drift}


def drift_of(weights: str) -> str:
    """The entry of a state that tells how far copies of `weights` may lie from the memory's."""
    return f"drift of {weights}"


def _drifted(weights: str, rounding: Tensor, state: State) -> State:
    """The entry for the drift of `weights`, if one is kept, after more rounding.

    `rounding` counts that of the transformer and that of the oracle: as much as two copies differ.
    """
    name = drift_of(weights)
    return {name: apart_by(state[name].error + rounding)} if name in state else {}


def apart_by(distance: Values) -> Enclosure:
    """An entry for copies that lie at most `distance` from the memory's."""
    return Enclosure.around(Interval.point(torch.zeros_like(distance)), distance)


@rule.register
def _bound_of_clip_slots(
    instruction: ClipSlots, program: StackProgram, state: State, how: Arithmetic
) -> State:
    clipped = {}
    for name in instruction.slots:
        slot = state[name]
        rounding = how.sum_of(2, slot.actual.size)
        exact = slot.exact.clipped(instruction.bound)
        actual = slot.actual.clipped(instruction.bound).widened(rounding)
        clipped[name] = Enclosure.around(exact, slot.error + rounding, actual)
        clipped |= _drifted(name, rounding, state)
    return clipped


@rule.register
def _bound_of_wipe_slots(
    instruction: WipeSlots, program: StackProgram, state: State, how: Arithmetic
) -> State:
    return {
        name: Enclosure.common(Interval.point(torch.zeros_like(state[name].error)))
        for name in instruction.slots
    }


@rule.register
def _bound_of_average_examples(
    instruction: AverageExamples, program: StackProgram, state: State, how: Arithmetic
) -> State:
    """Any mean lies between the least and the largest value."""
    value = combination_at(instruction.value, state, how).value
    exact, actual = (
        Interval(part.low.amin(-2, keepdim=True), part.high.amax(-2, keepdim=True))
        for part in (value.exact, value.actual)
    )
    actual = actual.widened(how.sum_of(how.n_tokens, actual.size))
    return {instruction.write: Enclosure(exact, actual, exact.distance_to(actual))}


@rule.register
def _bound_of_look_up_step(
    instruction: LookUpStep, program: StackProgram, state: State, how: Arithmetic
) -> State:
    """The exact step, from the levels instead of the entries themselves.

    If keys could be rounded beyond the flat parts of the table, only its range is known.
    """
    step, table = _step(instruction, state, how), program.relu_sum(instruction.table)
    reading = _reading(table, how)
    rounding = reading.rounding + how.sum_of(reading.n_terms, state[instruction.write].actual.size)
    is_found = key_error(instruction, program, how) <= FLAT
    off = table.error + rounding if is_found else torch.full_like(step.error, inf)
    known = Interval(reading.least - rounding, reading.largest + rounding)
    return {instruction.write: Enclosure.around(step.exact, step.error + off, known)}


FLAT = 7 / 32
"""A table of steps is constant this far around every key."""


def _step(instruction: LookUpStep, state: State, how: Arithmetic) -> Enclosure:
    """w + scale * mean(s x), clipped, by the rules of instructions that compute it elsewhere."""
    x, y, w = (
        _times(state[slot], size)
        for slot, size in zip(instruction.levels, instruction.ranges, strict=True)
    )
    argument = matrix_product(w, x, how)
    activation = activation_named(instruction.activation)
    now = {"p": function_at(activation.value, argument), "y": y, "w": w}
    slope = loss_slope_at(instruction.loss, now["p"], y, how)
    delta = multiply(function_at(activation.derivative, argument), slope, how)
    step = add_outer_product("w", delta, x, instruction.scale, None, now, how)["w"]
    exact, actual = step.exact.clipped(instruction.bound), step.actual.clipped(instruction.bound)
    return Enclosure.around(exact, step.error, actual)


def loss_slope_at(loss: str, prediction: Enclosure, label: Enclosure, how: Arithmetic) -> Enclosure:
    """The slope of the loss itself at enclosed predictions and labels."""
    now = {"p": prediction, "y": label}
    parts = [
        function_at(
            part.function,
            combination_at(Combination(("p", "y"), (part.prediction, part.label)), now, how).value,
        )
        for part in loss_named(loss).slope_parts or ()
    ]
    slope = parts[0]
    for part in parts[1:]:
        slope = add(slope, part, how)
    return slope


def _times(value: Enclosure, factor: float) -> Enclosure:
    return Enclosure(
        value.exact.times(factor), value.actual.times(factor), abs(factor) * value.error
    )


@dataclass(frozen=True)
class _Reading:
    """What reading a table can return, and how much its rounding adds."""

    least: float
    largest: float
    n_terms: int
    rounding: Tensor


@lru_cache(maxsize=16)
def _reading(table: ReluSum, how: Arithmetic) -> _Reading:
    """Only the terms on one side of the anchor are not zero, and they grow towards the end.

    A backend that looks pieces up returns the answer itself.
    """
    answers = table.intercepts()[::2]  # the flat pieces
    size = torch.tensor(max(map(abs, answers)), dtype=torch.float64)
    n_terms, rounding = 0, how.sum_of(0, size)
    rows = [(term.scale, term.shift, term.coefficient) for term in table.terms()]
    scale, shift, coefficient = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).T
    for end in (table.low, table.high) if how.sums_terms else ():
        values = (scale * end + shift).relu()
        used = coefficient.abs() * (values > 0)
        n_terms = max(n_terms, int((used > 0).sum()))
        rounded_values = how.sum_of(2, 2 * used.sum() * max(abs(table.low), abs(table.high)))
        one_side = how.sum_of(n_terms, size + used @ values) + rounded_values
        rounding = torch.maximum(rounding, one_side)
    return _Reading(min(answers), max(answers), n_terms, rounding)


def key_error(instruction: LookUpStep, program: StackProgram, how: Arithmetic) -> float:
    """How far rounding can move a key, which is exact in the levels of x, y and w.

    Each level is rounded by r. Then scores are off by d = r sum|a| and their own rounding, which
    changes a weighted mean of values by at most d times their spread.
    """
    one = torch.ones(1, dtype=torch.float64)
    level = how.function(program.relu_sum(IDENTITY), 1, one, n_copies=1)
    table = program.relu_sum(instruction.table)
    error = how.sum_of(2, one * max(abs(table.low), abs(table.high)))
    instructions = [part for layer in program.block for part in layer.instructions]
    means = {part.write: part for part in instructions if isinstance(part, AverageExamples)}
    for slot, factor in instruction.key.terms():
        mean = means.get(slot)
        error += abs(factor) * (level if mean is None else _mean_error(mean, level, how))
    return float(error)


def _mean_error(mean: AverageExamples, level: Tensor, how: Arithmetic) -> Tensor:
    score, value = (sum(map(abs, part.coefficients)) for part in (mean.score, mean.value))
    one = torch.ones_like(level)
    off = score * level + how.sum_of(3, score * one) + how.sum_of(0, one)  # and of exp
    return value * (level + 2 * off + how.sum_of(how.n_tokens + 3, one))
