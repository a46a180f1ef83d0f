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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from math import inf

import torch
from torch import Tensor

from icgd.backends.look_up import DEGREE, table_error
from icgd.backends.registry import backend_named
from icgd.certificates.intervals import Interval
from icgd.errors import ProgramError
from icgd.problems.catalog import function_named
from icgd.problems.functions import StepFunction
from icgd.program.functions import Function, LatticeFunction, ReluSum
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
from icgd.program.program import Layer, StackProgram
from icgd.program.registers import SHARE
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
    def mT(self) -> Enclosure:  # noqa: N802 - torch's name
        """Transposed."""
        return Enclosure(self.exact.mT, self.actual.mT, self.error.mT)

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

    def head(self, fit: LatticeFunction, fan_in: int, argument: Tensor) -> Tensor:
        """Rounding of a look-up where the terms of its argument have this total size."""
        if self.sums_terms:
            beyond = (argument / fit.reach).clamp(min=1.0)
            scores = self.sum_of(fan_in + 2, fit.sensitivity * beyond)
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


def is_ramp(fit: Function) -> bool:
    """Whether the fit stands in for a step function."""
    return isinstance(fit, ReluSum) and isinstance(function_named(fit.name), StepFunction)


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


def _apply(fit: Function, argument: Enclosure, rounding: Tensor) -> Enclosure:
    """A program's function at an enclosed argument.

    |fit(a) - f(b)| <= |fit(a) - f(a)| + |f(a) - f(b)|, with a, b in known intervals.
    """
    function = function_named(fit.name)
    exact = Interval(*function.bounds(argument.exact.low, argument.exact.high))
    at_actual = Interval(*function.bounds(argument.actual.low, argument.actual.high))
    both_low = torch.minimum(argument.exact.low, argument.actual.low)
    both_high = torch.maximum(argument.exact.high, argument.actual.high)
    moved = function.variation(both_low, both_high, argument.error)
    fitted = fit_error(fit, argument.actual) + rounding
    actual = at_actual.widened(fitted)
    if isinstance(fit, ReluSum) and is_ramp(fit):  # it stays between the levels of the step
        levels = _levels(fit)
        actual = actual.within(Interval(min(levels) - rounding, max(levels) + rounding))
    return Enclosure.around(exact, moved + fitted, actual)


def fit_error(fit: Function, argument: Interval) -> Tensor:
    """Largest certified error on the pieces that the argument can touch.

    Infinite outside the interval on which the fit was proved; exact fits, ramps and look-ups
    that saturate continue as the function itself does.
    """
    if fit.is_exact:
        return torch.zeros_like(argument.low)
    if isinstance(fit, LatticeFunction):
        outside = (argument.size > fit.reach) & torch.tensor(not fit.saturates)
        return torch.where(outside, torch.inf, fit.error)
    knots = torch.tensor(fit.knots, dtype=torch.float64)
    last = torch.searchsorted(knots, argument.high.contiguous())
    first = torch.minimum(torch.searchsorted(knots, argument.low.contiguous(), right=True), last)
    error = _largest_between(torch.tensor(fit.errors, dtype=torch.float64), first, last)
    if is_ramp(fit):
        return error
    outside = (argument.low < fit.low) | (argument.high > fit.high)
    return torch.where(outside, torch.inf, error)


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


def _product(weights: Enclosure, inputs: Enclosure, how: Arithmetic) -> Enclosure:
    """`weights @ inputs` at every token."""
    rounding = how.sum_of(weights.error.shape[-1], inputs.actual.size @ weights.actual.size.mT)
    error = inputs.error @ weights.exact.size.mT + inputs.actual.size @ weights.error.mT + rounding
    actual = (inputs.actual @ weights.actual.mT).widened(rounding)
    return Enclosure.around(inputs.exact @ weights.exact.mT, error, actual)


@dataclass(frozen=True)
class _Argument:
    """An argument, the total size of its terms, and how many there are."""

    value: Enclosure
    sizes: Tensor
    n_terms: int


def _argument(weights: Enclosure, inputs: _Argument, how: Arithmetic) -> _Argument:
    """`weights @ inputs`."""
    sizes = inputs.sizes @ weights.actual.size.mT
    n_terms = weights.error.shape[-1] + inputs.n_terms - 1
    return _Argument(_product(weights, inputs.value, how), sizes, n_terms)


def _combination(combination: Combination, state: State, how: Arithmetic) -> _Argument:
    """A combination of slots; a slot itself is not rounded."""
    parts = [(state[slot], factor) for slot, factor in combination.terms()]
    sizes = torch.stack([abs(f) * part.actual.size for part, f in parts]).sum(0)
    error = torch.stack([abs(f) * part.error for part, f in parts]).sum(0)
    exact = _sum([part.exact.times(f) for part, f in parts])
    actual = _sum([part.actual.times(f) for part, f in parts])
    if len(parts) > 1:
        rounding = how.sum_of(len(parts), sizes)
        error, actual = error + rounding, actual.widened(rounding)
    return _Argument(Enclosure.around(exact, error, actual), sizes, len(parts))


@rule.register
def _(instruction: ApplyUnits, program: StackProgram, state: State, how: Arithmetic) -> State:
    inputs = _combination(Combination.of(instruction.inputs), state, how)
    argument = _argument(state[instruction.weights], inputs, how)
    fit = program.relu_sum(instruction.function)
    rounding = how.function(fit, argument.n_terms, argument.sizes, how.n_tokens)
    return {instruction.write: _apply(fit, argument.value, rounding)}


@rule.register
def _(instruction: MapSlots, program: StackProgram, state: State, how: Arithmetic) -> State:
    total: Enclosure | None = None
    for summand in instruction.summands:
        argument = _combination(summand.argument, state, how)
        fit = program.relu_sum(summand.function)
        rounding = how.function(fit, argument.n_terms, argument.sizes, n_copies=1)
        value = _apply(fit, argument.value, rounding)
        total = value if total is None else _add(total, value, how)
    return {} if total is None else {instruction.write: total}


def _grid_argument(argument: Argument, state: State, how: Arithmetic) -> _Argument:
    inputs = _combination(argument.inputs, state, how)
    if argument.weights is None:
        return inputs
    weights = state[argument.weights]
    return _argument(weights.mT if argument.transposed else weights, inputs, how)


@rule.register
def _(instruction: LookUp, program: StackProgram, state: State, how: Arithmetic) -> State:
    argument = _grid_argument(instruction.argument, state, how)
    written = {}
    for name, write in zip(instruction.lookups, instruction.into, strict=True):
        fit = program.look_up(name)
        rounding = how.head(fit, argument.n_terms, argument.sizes)
        written[write] = _apply(fit, argument.value, rounding)
    return written


@rule.register
def _(instruction: Project, program: StackProgram, state: State, how: Arithmetic) -> State:
    argument = _grid_argument(instruction.argument, state, how)
    fit, reach = program.look_up(IDENTITY), instruction.reach
    off = reach * _grid_error(fit, argument.n_terms, argument.sizes / reach, how)
    return {instruction.write: _moved(argument.value, off)}


def _moved(value: Enclosure, off: Tensor) -> Enclosure:
    """The value as the transformer has it after getting it wrong by `off`."""
    return Enclosure.around(value.exact, value.error + off, value.actual.widened(off))


def _grid_error(fit: LatticeFunction, n_terms: int, sizes: Tensor, how: Arithmetic) -> Tensor:
    """How far a line or a square is off; only the dense transformer reads it from the grid."""
    if not how.sums_terms:
        return torch.zeros_like(sizes)
    off = fit.error + how.head(fit, n_terms, sizes)
    return torch.where(sizes > fit.reach, torch.inf, off)


@rule.register
def _(instruction: AddProduct, program: StackProgram, state: State, how: Arithmetic) -> State:
    argument = _grid_argument(instruction.argument, state, how)
    factor, before = state[instruction.factor], state[instruction.write]
    reach, factor_reach = instruction.reach, instruction.factor_reach
    sizes = argument.sizes / reach + factor.actual.size / factor_reach
    off = _grid_error(program.look_up(SQUARE), argument.n_terms + 1, sizes, how)
    product = _moved(_multiply(argument.value, factor, how), reach * factor_reach / 2 * off)
    return {instruction.write: _add(before, product, how) if before.exact.size.any() else product}


@rule.register
def _(instruction: AddGradient, program: StackProgram, state: State, how: Arithmetic) -> State:
    left, right = _combination(instruction.left, state, how).value, state[instruction.right]
    off = _probing_error(instruction, left, right, how) if how.sums_terms else None
    return _add_outer_product(instruction.write, left, right, instruction.scale, off, state, how)


def _probing_error(
    instruction: AddGradient, left: Enclosure, right: Enclosure, how: Arithmetic
) -> Tensor:
    """How far the heads' mean(left right^T) is from the exact one, before it is scaled.

    With x = probe * left, sum_k c_k sinh(k x) / k = x + R(x) and |R(x)| <= 0.0224 |x|^7 cosh(3 x).
    The examples in the denominator change it by at most 2.2 SHARE exp(6 x) of |left| |right|. The
    rest is rounding: of n exponentials, each of a number below 48, divided by the probe.
    """
    left_size, right_size = left.actual.size, right.actual.size
    x = instruction.probe * left_size
    n_examples = left_size.shape[-2]
    lost = (
        0.0224 * torch.cosh(3 * x) * x**6 * left_size + 2.2 * SHARE * torch.exp(6 * x) * left_size
    )
    rounded = torch.full_like(x, 1.84 / instruction.probe) * torch.exp(3 * x)
    return (
        lost.mT @ right_size / n_examples
        + how.sum_of(how.n_tokens + 48, rounded).mT @ right_size / n_examples
    )


def _sum(intervals: list[Interval]) -> Interval:
    total = intervals[0]
    for interval in intervals[1:]:
        total = total + interval
    return total


def _add(left: Enclosure, right: Enclosure, how: Arithmetic) -> Enclosure:
    rounding = how.sum_of(2, left.actual.size + right.actual.size)
    actual = (left.actual + right.actual).widened(rounding)
    error = left.error + right.error + rounding
    return Enclosure.around(left.exact + right.exact, error, actual)


def _multiply(left: Enclosure, right: Enclosure, how: Arithmetic) -> Enclosure:
    rounding = how.sum_of(2, left.actual.size * right.actual.size)
    error = left.error * right.exact.size + left.actual.size * right.error + rounding
    actual = (left.actual * right.actual).widened(rounding)
    return Enclosure.around(left.exact * right.exact, error, actual)


@rule.register
def _(instruction: MultiplySlots, program: StackProgram, state: State, how: Arithmetic) -> State:
    return {instruction.write: _multiply(state[instruction.left], state[instruction.right], how)}


@rule.register
def _(instruction: PullBack, program: StackProgram, state: State, how: Arithmetic) -> State:
    weights, upstream = state[instruction.weights], state[instruction.upstream]
    pulled_back = _product(weights.mT, upstream, how)
    return {instruction.write: _multiply(state[instruction.slope], pulled_back, how)}


@rule.register
def _(
    instruction: AccumulateOuterProduct, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left, right = state[instruction.left], state[instruction.right]
    return _add_outer_product(instruction.write, left, right, instruction.scale, None, state, how)


def _add_outer_product(
    write: str,
    left: Enclosure,
    right: Enclosure,
    scale: float,
    off: Tensor | None,
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
    if off is not None:
        rounding = rounding + abs(scale) * off
    error = weights.error + error + rounding
    written = {write: Enclosure.around(exact, error, weights.actual.widened(size + rounding))}
    if off is not None:
        written[drift_of(write)] = Enclosure.around(
            Interval.point(torch.zeros_like(rounding)), 2 * rounding
        )
    return written


def drift_of(weights: str) -> str:
    """The entry of a state that tells by how much a block moves copies of `weights` apart."""
    return f"drift of {weights}"


@rule.register
def _(instruction: ClipSlots, program: StackProgram, state: State, how: Arithmetic) -> State:
    clipped = {}
    for name in instruction.slots:
        slot = state[name]
        rounding = how.sum_of(2, slot.actual.size)
        exact = slot.exact.clipped(instruction.bound)
        actual = slot.actual.clipped(instruction.bound).widened(rounding)
        clipped[name] = Enclosure.around(exact, slot.error + rounding, actual)
    return clipped


@rule.register
def _(instruction: WipeSlots, program: StackProgram, state: State, how: Arithmetic) -> State:
    return {
        name: Enclosure.common(Interval.point(torch.zeros_like(state[name].error)))
        for name in instruction.slots
    }
