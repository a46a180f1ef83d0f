r"""Error bounds, propagated through a program instruction by instruction.

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
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from icgd.certificates.enclosures import (
    Arithmetic,
    Enclosure,
    add,
    fitted_at,
    function_at,
    grid_error,
    matrix_product,
    moved,
    multiply,
)
from icgd.certificates.intervals import Interval
from icgd.errors import ProgramError
from icgd.problems.losses import loss_named
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
from icgd.program.stack import StackProgram
from icgd.shapes import Values

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


def _sum(intervals: list[Interval]) -> Interval:
    total = intervals[0]
    for interval in intervals[1:]:
        total = total + interval
    return total


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
