r"""Error bounds are propagated through a program instruction by instruction.

Each slot carries an enclosure: where the exact quantity lies, where the transformer's own
quantity lies, and how far apart the two are at most. One rule for each instruction turns the
enclosures that it reads into those that it writes. The same rules serve three bounds:

- whole domain: the exact quantities are intervals given by the domain and the box;
- this run, one step: the exact quantities are numbers, computed from the run's own weights;
- this run, whole trajectory: the exact quantities are those of real gradient descent, and the
  weights enter each step with the error that the steps before left.

`enclosures.py` holds the enclosures and how rounding enters them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce, singledispatch
from math import inf
from operator import add as plus

import torch
from torch import Tensor

from icgd.certificates import enclosures
from icgd.certificates.enclosures import Arithmetic, Enclosure, add, moved, multiply
from icgd.certificates.intervals import ROOM, Interval
from icgd.certificates.pieces import touched
from icgd.errors import ProgramError
from icgd.problems.class_functions import class_function_named
from icgd.problems.losses import loss_named
from icgd.problems.roots import root_named
from icgd.program import instructions as verbs
from icgd.program.functions import ReluSum
from icgd.program.instructions import Argument, Combination, Instruction
from icgd.program.layout import Role
from icgd.program.program import Layer
from icgd.program.registers import SHARE
from icgd.program.stack import StackProgram
from icgd.program.update_instructions import Recombine
from icgd.shapes import Values

State = dict[str, Enclosure]
Key = tuple[int, int]


NOT_APART = torch.zeros((), dtype=torch.float64)
"""The distance of copies from each other where there are no copies."""


@dataclass(frozen=True)
class _Argument:
    """An argument, the total size of its terms, and how many there are.

    The registers' copies of it may lie `apart` from the memory's.
    """

    value: Enclosure
    sizes: Tensor
    n_terms: int
    apart: Tensor

    def above_one(self) -> _Argument:
        """The argument with a constant 1 below it."""
        return replace(self, value=above_one(self.value), sizes=with_last(self.sizes, 1.0))


@dataclass(frozen=True)
class Moment:
    """What an instruction finds: the program, the enclosures of all slots, and the arithmetic.

    `arguments` holds the arguments of units, by the enclosures that they are made of: a later
    layer that asks for the same again finds them there. A sum in `highest` stands for all sums
    whose coefficients lie between its own and those that it has there.
    """

    program: StackProgram
    slots: State
    how: Arithmetic
    highest: Mapping[Recombine, Recombine] = field(default_factory=dict)
    arguments: dict[Key, tuple[Enclosure, Enclosure, _Argument]] = field(default_factory=dict)

    def argument_of_units(
        self, weights: Enclosure, inputs: Enclosure, *, has_bias: bool = False
    ) -> _Argument:
        """The argument `weights @ inputs`, which is computed once.

        Its key is where both stand in memory. They are kept, so that nothing else gets that place.
        """
        key = (id(weights), id(inputs))
        if key not in self.arguments:
            alone = _Argument(inputs, inputs.size, 1, NOT_APART)
            alone = alone.above_one() if has_bias else alone
            self.arguments[key] = (weights, inputs, _argument(weights, alone, self.how))
        return self.arguments[key][-1]


def propagate(now: Moment, layers: Iterable[Layer]) -> State:
    """The enclosures of all slots after `layers`."""
    after = dict(now.slots)
    for layer in layers:
        before = replace(now, slots=dict(after))
        for instruction in layer.instructions:
            written = rule(instruction, before)
            after.update({name: slot.without_nan() for name, slot in written.items()})
    return after


@singledispatch
def rule(instruction: Instruction, now: Moment) -> State:
    """The enclosures of the slots that the instruction writes."""
    raise ProgramError.broken(type(instruction).__name__, "has no rule in certificates/bounds.py")


def _argument(weights: Enclosure, inputs: _Argument, how: Arithmetic) -> _Argument:
    """The argument `weights @ inputs`."""
    sizes = inputs.sizes @ weights.actual.size.mT
    n_terms = weights.error.shape[-1] + inputs.n_terms - 1
    value = enclosures.matrix_product(weights, inputs.value, how)
    return _Argument(value, sizes, n_terms, NOT_APART)


def combination_at(combination: Combination, slots: State, how: Arithmetic) -> _Argument:
    """A combination of slots; a slot itself, or its negative, is not rounded."""
    return combination_within(combination, combination, slots, how)


def combination_within(
    lowest: Combination, highest: Combination, slots: State, how: Arithmetic
) -> _Argument:
    """Any combination whose coefficients lie between those of two."""
    factors = list(zip(lowest.coefficients, highest.coefficients, strict=True))
    parts = list(zip((slots[slot] for slot in lowest.slots), factors, strict=True))
    sizes = reduce(plus, [max(map(abs, ends)) * part.size for part, ends in parts])
    if factors == [(1.0, 1.0)]:
        return _Argument(parts[0][0], sizes, 1, NOT_APART)
    error = reduce(plus, [max(map(abs, ends)) * part.error for part, ends in parts])
    exact = reduce(plus, [part.exact.times_within(*ends) for part, ends in parts])
    actual = reduce(plus, [part.actual.times_within(*ends) for part, ends in parts])
    if len(parts) > 1 or factors[0] not in ((1.0, 1.0), (-1.0, -1.0)):
        rounding = how.sum_of(len(parts), sizes)
        error, actual = error + rounding, actual.widened(rounding)
    if len(parts) > 2:  # the oracle may add them in another order
        exact = exact.widened(how.oracle.sum_of(len(parts), sizes))
    value = Enclosure.around(exact, error, actual)
    return _Argument(value, sizes, len(parts), NOT_APART)


@rule.register
def _bound_of_apply_units(instruction: verbs.ApplyUnits, now: Moment) -> State:
    weights, inputs = now.slots[instruction.weights], now.slots[instruction.inputs]
    argument = now.argument_of_units(weights, inputs, has_bias=instruction.bias is not None)
    fit = now.program.relu_sum(instruction.function)
    where, n_copies = argument.value.actual, now.how.n_tokens
    rounding = now.how.function(fit, argument.n_terms, argument.sizes, n_copies, where)
    return {instruction.write: enclosures.fitted_at(fit, argument.value, rounding)}


@rule.register
def _bound_of_map_slots(instruction: verbs.MapSlots, now: Moment) -> State:
    values = []
    for summand in instruction.summands:
        argument = combination_at(summand.argument, now.slots, now.how)
        fit = now.program.relu_sum(summand.function)
        rounding = map_rounding(fit, argument, now.how)
        values.append(enclosures.fitted_at(fit, argument.value, rounding))
    return {instruction.write: _sum(values, now.how)} if values else {}


def map_rounding(fit: ReluSum, argument: _Argument, how: Arithmetic) -> Tensor:
    """The rounding of a sum of ReLUs in an MLP.

    Some functions are steeper by many powers of ten at one end than elsewhere. All their terms have
    one sign, and those that count at t lie on one side of t: their sizes add up to a few times the
    value there, besides what its slope there makes of the argument's own rounding. Beyond the steep
    end they are flat: there one term cancels all others, and each is as large as the slope before
    it makes the argument.
    """
    real = root_named(fit.name) or class_function_named(fit.name)
    if real is None:
        where = argument.value.actual
        return how.function(fit, argument.n_terms, argument.sizes, 1, where)
    first, last = touched(fit, argument.value.actual)
    slopes = torch.tensor(fit.slopes, dtype=torch.float64).abs()
    # Slopes rise to one end or fall from the other: the largest is at an end, or next to it.
    places = (first, first + 1, last - 1, last)
    steepest = 2 * reduce(torch.maximum, [slopes[at.clamp(0, len(slopes) - 1)] for at in places])
    largest = real.bounds(argument.value.actual.low, argument.value.actual.high)[1]
    n_terms = fit.n_pieces + argument.n_terms + 1
    return how.sum_of(n_terms, steepest * argument.sizes + 8 * largest)


def _sum(values: list[Enclosure], how: Arithmetic) -> Enclosure:
    return reduce(lambda left, right: add(left, right, how), values)


def argument_at(argument: Argument, now: Moment) -> _Argument:
    """An argument of heads, with how far the registers' copies of its weights may lie apart."""
    inputs = combination_at(argument.inputs, now.slots, now.how)
    if argument.weights is None:
        return inputs
    weights, drift = now.slots[argument.weights], now.slots.get(drift_of(argument.weights))
    if argument.transposed:
        weights = without_bias(weights) if argument.has_bias else weights
        drift = without_bias(drift) if argument.has_bias and drift else drift
    elif argument.has_bias:
        inputs = inputs.above_one()
    product = _argument(weights.mT if argument.transposed else weights, inputs, now.how)
    if drift is None:
        return product
    apart = inputs.sizes @ (drift if argument.transposed else drift.mT).error
    return replace(product, sizes=product.sizes + apart, apart=apart)


@rule.register
def _bound_of_look_up(instruction: verbs.LookUp, now: Moment) -> State:
    argument = argument_at(instruction.argument, now)
    written = {}
    for name, write in zip(instruction.lookups, instruction.into, strict=True):
        fit = now.program.look_up(name)
        rounding = now.how.head(fit, argument.n_terms, argument.sizes, argument.apart)
        written[write] = enclosures.fitted_at(fit, argument.value, rounding)
    return written


@rule.register
def _bound_of_project(instruction: verbs.Project, now: Moment) -> State:
    argument = argument_at(instruction.argument, now)
    fit, reach = now.program.look_up(verbs.IDENTITY), instruction.reach
    sizes, apart = argument.sizes / reach, argument.apart / reach
    off = reach * enclosures.lattice_error(fit, argument.n_terms, sizes, apart, now.how)
    return {instruction.write: moved(argument.value, off)}


@rule.register
def _bound_of_add_product(instruction: verbs.AddProduct, now: Moment) -> State:
    argument = argument_at(instruction.argument, now)
    factor, before = now.slots[instruction.factor], now.slots[instruction.write]
    reach, factor_reach = instruction.reach, instruction.factor_reach
    sizes = argument.sizes / reach + factor.actual.size / factor_reach
    fit, apart = now.program.look_up(verbs.SQUARE), argument.apart / reach
    off = enclosures.lattice_error(fit, argument.n_terms + 1, sizes, apart, now.how)
    product = moved(multiply(argument.value, factor, now.how), reach * factor_reach / 2 * off)
    is_first = not before.actual.size.any()
    return {instruction.write: product if is_first else add(before, product, now.how)}


@rule.register
def _bound_of_add_gradient(instruction: verbs.AddGradient, now: Moment) -> State:
    left = combination_at(instruction.left, now.slots, now.how).value
    right = right_factor(instruction, now)
    off = _probing(instruction, left, right, now.how) if now.how.sums_terms else None
    return add_outer_product(now, instruction.write, left, right, instruction.scale, off)


@dataclass(frozen=True)
class Missed:
    """How far the heads' mean(left right^T) is from the exact one, before it is scaled.

    All registers miss it `alike` by the one amount, and each by an `uneven` amount of its own.
    """

    alike: Tensor
    uneven: Tensor

    @classmethod
    def by_all(cls, amount: Tensor) -> Missed:
        """What all registers miss in the same way."""
        return cls(amount, torch.zeros_like(amount))


def _probing(
    instruction: verbs.AddGradient, left: Enclosure, right: Enclosure, how: Arithmetic
) -> Missed:
    """How far the gradient is off because heads probe it.

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


@rule.register
def _bound_of_multiply_slots(instruction: verbs.MultiplySlots, now: Moment) -> State:
    left, right = now.slots[instruction.left], now.slots[instruction.right]
    product = multiply(left, right, now.how)
    is_square = instruction.left == instruction.right
    return {instruction.write: not_negative(product) if is_square else product}


def not_negative(square: Enclosure) -> Enclosure:
    """A square, or a sum of squares: it is not negative, nor is what rounding makes of it."""
    zero = torch.zeros_like(square.error)
    allowed = Interval(zero, zero + inf)
    return Enclosure(square.exact.within(allowed), square.actual.within(allowed), square.error)


@rule.register
def _bound_of_pull_back(instruction: verbs.PullBack, now: Moment) -> State:
    weights, upstream = now.slots[instruction.weights], now.slots[instruction.upstream]
    n_inputs = now.program.layout.width_of(instruction.write)
    weights = weights.mapped(lambda matrix: matrix[..., :n_inputs])
    pulled_back = enclosures.matrix_product(weights.mT, upstream, now.how)
    for name in instruction.added:
        pulled_back = add(pulled_back, now.slots[name], now.how)
    if instruction.slope != verbs.ONE:
        pulled_back = multiply(now.slots[instruction.slope], pulled_back, now.how)
    return {instruction.write: pulled_back}


@rule.register
def _bound_of_accumulate(instruction: verbs.AccumulateOuterProduct, now: Moment) -> State:
    left, right = now.slots[instruction.left], right_factor(instruction, now)
    return add_outer_product(now, instruction.write, left, right, instruction.scale)


def right_factor(
    instruction: verbs.AccumulateOuterProduct | verbs.AddGradient, now: Moment
) -> Enclosure:
    """The right factor of an outer product, above a constant 1 if there is a bias."""
    right = now.slots[instruction.right]
    return right if instruction.bias is None else above_one(right)


def with_last(part: Tensor, number: float) -> Tensor:
    """The rows of a tensor, each with one more number."""
    padded: Tensor = torch.cat([part, torch.full_like(part[..., :1], number)], dim=-1)
    return padded


def above_one(slot: Enclosure) -> Enclosure:
    """A slot with a constant 1 below it."""
    exact = slot.exact.mapped(lambda part: with_last(part, 1.0))
    actual = exact if slot.is_common else slot.actual.mapped(lambda part: with_last(part, 1.0))
    return Enclosure(exact, actual, with_last(slot.error, 0.0))


def without_bias(weights: Enclosure) -> Enclosure:
    """A matrix without its last column."""
    return weights.mapped(lambda matrix: matrix[..., :-1])


def add_outer_product(
    now: Moment,
    write: str,
    left: Enclosure,
    right: Enclosure,
    scale: float,
    off: Missed | None = None,
) -> State:
    """The slot `write` plus scale * mean(left right^T), which the layer gets wrong by `off`.

    Then the registers' copies of the weights, which are not rounded alike, may also drift apart.
    The transformer rounds its own products, and the oracle the exact ones. What the sum loses by
    underflow is multiplied by the share.
    """
    weights, how = now.slots[write], now.how
    share = ROOM * abs(scale) / left.error.shape[-2]
    own = left.actual.size.mT @ right.actual.size
    exactly = left.exact.size.mT @ right.exact.size
    error = share * (left.error.mT @ right.exact.size + left.actual.size.mT @ right.error)
    summed = how.sum_of(2 * how.n_tokens, (own + exactly) / 2)
    size = share * own
    rounding = share * summed + how.sum_of(2, weights.size + share * (own + exactly))
    exact = weights.exact.widened(ROOM * share * exactly)
    shared = {slot.name for slot in now.program.layout.having(Role.SHARED)}
    if write in shared:  # its square and its root are needed
        mean = (left.exact.mT @ right.exact).times(scale / left.error.shape[-2])
        sum_of_both = (weights.exact + mean).widened(how.oracle.sum_of(2, share * exactly))
        exact = exact.within(sum_of_both)
    drift: State = {}
    if off is not None:
        rounding = rounding + abs(scale) * off.uneven
        drift = _drifted(write, rounding, now.slots)
        rounding = rounding + abs(scale) * off.alike
    error = weights.error + error + rounding
    after = Enclosure.around(exact, error, weights.actual.widened(size + rounding))
    return {write: after, **drift}


def drift_of(weights: str) -> str:
    """The entry of a state that tells how far copies of `weights` may lie from the memory's."""
    return f"drift of {weights}"


def _drifted(weights: str, rounding: Tensor, slots: State) -> State:
    """The entry for the drift of `weights`, if one is kept, after more rounding.

    `rounding` counts that of the transformer and that of the oracle: as much as two copies differ.
    """
    name = drift_of(weights)
    return {name: apart_by(slots[name].error + rounding)} if name in slots else {}


def apart_by(distance: Values) -> Enclosure:
    """An entry for copies that lie at most `distance` from the memory's."""
    return Enclosure.around(Interval.point(torch.zeros_like(distance)), distance)


@rule.register
def _bound_of_clip_slots(instruction: verbs.ClipSlots, now: Moment) -> State:
    clipped = {}
    for name in instruction.slots:
        rounding = now.how.sum_of(2, now.slots[name].actual.size)
        clipped[name] = enclosures.clipped(now.slots[name], instruction.bound, rounding)
        clipped |= _drifted(name, rounding, now.slots)
    return clipped


@rule.register
def _bound_of_wipe_slots(instruction: verbs.WipeSlots, now: Moment) -> State:
    return {name: Enclosure.nothing(now.slots[name].error) for name in instruction.slots}


def loss_slope_at(loss: str, prediction: Enclosure, label: Enclosure, how: Arithmetic) -> Enclosure:
    """The slope of the loss itself at enclosed predictions and labels."""
    slots = {"p": prediction, "y": label}
    parts = []
    for part in loss_named(loss).slope_parts or ():
        argument = Combination(("p", "y"), (part.prediction, part.label))
        value = combination_at(argument, slots, how).value
        parts.append(enclosures.function_at(part.function, value))
    return _sum(parts, how)
