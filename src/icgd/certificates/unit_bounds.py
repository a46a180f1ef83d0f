r"""Error bounds of instructions by units.

A sum of units is off by its certified error and by its rounding: with the sizes z_i of its
arguments, a unit's value and what a rounded argument changes are at most

    |coefficient| (1 + STEEPEST (|direction| . z + |offset|)).

The fused backend computes fine fits as the functions themselves, so that only rounding is left.
What units leave in a slot that they wipe is still there when the next step writes to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from icgd.backends.unit_kernels import is_computed_as_such
from icgd.certificates.bounds import (
    Missed,
    State,
    add_outer_product,
    argument_at,
    loss_slope_at,
    rule,
)
from icgd.certificates.enclosures import (
    Arithmetic,
    Enclosure,
    function_at,
    matrix_product,
    moved,
    multiply,
    ridge_error,
)
from icgd.certificates.intervals import Interval
from icgd.problems.activations import activation_named
from icgd.problems.catalog import function_named
from icgd.program.instructions import Argument
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import (
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddJacobian,
    AddOuterProduct,
    ClipByUnits,
    PassOn,
    PushJacobian,
    SlopeOfLoss,
    StartJacobian,
    WipeByUnits,
)

OFF_RELU = 1.0
"""No unit activation that bends like relu is farther from it: elu is that far, relu not at all."""

STEEPEST = 1.2
"""No unit activation has a larger slope: that of gelu is 1.13."""


def _rounding(
    fit: RidgeSum, how: Arithmetic, n_sums: int, real: Enclosure, *sizes: Tensor
) -> Tensor:
    """Rounding of a fit that is `n_sums` such sums together, at arguments of these sizes."""
    if not how.sums_terms and is_computed_as_such(fit):
        return how.sum_of(0, real.actual.size)
    total = torch.zeros_like(real.error)
    for number, size in enumerate(sizes):
        per_size = sum(abs(unit.coefficient * unit.direction[number]) for unit in fit.units)
        total = total + STEEPEST * per_size * size
    constant = sum(abs(unit.coefficient) * (1 + STEEPEST * abs(unit.offset)) for unit in fit.units)
    n_copies = how.n_tokens if how.sums_terms else 1
    n_terms = n_sums * fit.n_units + n_copies + len(sizes)
    return how.sum_of(n_terms, total + constant)


def _error(fit: RidgeSum, how: Arithmetic, *arguments: Interval) -> Tensor:
    """Certified error of what the backend computes for a fit."""
    as_such = fit.is_exact or (not how.sums_terms and is_computed_as_such(fit))
    return ridge_error(replace(fit, error=0.0) if as_such else fit, *arguments)


def _shrunk(value: Interval, reach: float) -> Interval:
    return value.times(1 / reach)


def _into(write: str, value: Enclosure, state: State) -> State:
    """The slot with the value and what was left in it."""
    left = state[write].actual.size
    actual = value.actual.widened(left)
    return {write: Enclosure.around(value.exact, value.error + left, actual)}


def left_over(program: StackProgram, how: Arithmetic) -> Mapping[str, float]:
    """What the units of a wipe may leave in every slot; nothing where it is wiped exactly."""
    left: dict[str, float] = defaultdict(float)
    for part in (part for layer in program.block for part in layer.instructions):
        if isinstance(part, WipeByUnits) and how.sums_terms:
            left |= dict.fromkeys(part.slots, _missed_by_wipe(part, program, how))
    return left


def _missed_by_wipe(wipe: WipeByUnits, program: StackProgram, how: Arithmetic) -> float:
    fit = program.ridge_sum(wipe.function)
    one = torch.ones((), dtype=torch.float64)
    whole = Enclosure.common(Interval.point(one))
    missed = ridge_error(fit, whole.actual) + _rounding(fit, how, 1, whole, one)
    return wipe.reach * float(missed)


def _value(
    function: str,
    reach: float,
    argument: Argument,
    n_sums: int,
    program: StackProgram,
    state: State,
    how: Arithmetic,
) -> Enclosure:
    """reach * function(argument / reach)."""
    z, fit = argument_at(argument, state, how), program.ridge_sum(function)
    real = function_at(function_named(function), z.value)
    off = reach * _error(fit, how, _shrunk(z.value.actual, reach))
    shrunk = real.mapped(lambda part: part / reach)
    off = off + reach * _rounding(fit, how, n_sums + z.n_terms, shrunk, z.sizes / reach)
    return moved(real, off)


@rule.register
def _bound_of_activate_units(
    instruction: ActivateUnits, program: StackProgram, state: State, how: Arithmetic
) -> State:
    function, reach, argument = instruction.function, instruction.reach, instruction.argument
    value = _value(function, reach, argument, 1, program, state, how)
    return _into(instruction.write, value, state)


@rule.register
def _bound_of_pass_on(
    instruction: PassOn, program: StackProgram, state: State, how: Arithmetic
) -> State:
    width = instruction.argument.width(program.layout)
    value = _value(instruction.function, 1.0, instruction.argument, width, program, state, how)
    return _into(instruction.write, matrix_product(state[instruction.weights], value, how), state)


def _times_slope(
    instruction: StartJacobian | PushJacobian,
    s: Enclosure,
    program: StackProgram,
    state: State,
    how: Arithmetic,
) -> Enclosure:
    """s r'(argument[k]), where row k of `s` belongs to argument k.

    Near a kink the units give something between s times the one slope and s times the other.
    """
    z = argument_at(instruction.argument, state, how)
    t, sizes = z.value.mapped(lambda part: part.unsqueeze(-1)), z.sizes.unsqueeze(-1)
    fit, reach = program.ridge_sum(instruction.function), instruction.reach
    derivative = activation_named(instruction.activation).derivative
    real = multiply(s, function_at(derivative, t), how)
    smooth = reach * _error(replace(fit, bands=()), how, _shrunk(s.actual, reach), t.actual)
    n_sums, shrunk = t.error.shape[-2] + z.n_terms, real.mapped(lambda part: part / reach)
    rounding = _rounding(fit, how, n_sums, shrunk, s.actual.size / reach, sizes)
    off = smooth + reach * rounding
    if not fit.bands:
        return moved(real, off)
    jumps = ridge_error(replace(fit, error=0.0), _shrunk(s.actual, reach), t.actual)
    slopes = Interval(*derivative.bounds(*_whole_line(t.actual)))
    near = s.actual * slopes
    actual = Interval(
        torch.where(jumps > 0, near.low, real.actual.low),
        torch.where(jumps > 0, near.high, real.actual.high),
    ).widened(off)
    return Enclosure.around(real.exact, real.error + jumps * s.actual.size + off, actual)


def _whole_line(like: Interval) -> tuple[Tensor, Tensor]:
    return torch.full_like(like.low, -torch.inf), torch.full_like(like.high, torch.inf)


@rule.register
def _bound_of_start_jacobian(
    instruction: StartJacobian, program: StackProgram, state: State, how: Arithmetic
) -> State:
    inputs = state[instruction.inputs].mapped(lambda part: part.unsqueeze(-2))
    products = _times_slope(instruction, inputs, program, state, how)
    weights = state[instruction.weights].mapped(lambda part: part.unsqueeze(-3).unsqueeze(-1))
    entries = multiply(weights, products.mapped(lambda part: part.unsqueeze(-3)), how)
    return _into(instruction.write, entries.mapped(lambda part: part.flatten(-3)), state)


@rule.register
def _bound_of_push_jacobian(
    instruction: PushJacobian, program: StackProgram, state: State, how: Arithmetic
) -> State:
    _, columns = program.layout.slot(instruction.weights).shape
    below = state[instruction.jacobian].mapped(lambda part: part.unflatten(-1, (columns, -1)))
    products = _times_slope(instruction, below, program, state, how)
    weights = state[instruction.weights].mapped(lambda part: part.unsqueeze(-3))
    pushed = matrix_product(weights, products.mT, how).mT
    return _into(instruction.write, pushed.mapped(lambda part: part.flatten(-2)), state)


@rule.register
def _bound_of_add_outer_product(
    instruction: AddOuterProduct, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left, right = state[instruction.left], state[instruction.right]
    pairs = (
        left.actual.mapped(lambda part: part.unsqueeze(-1)),
        right.actual.mapped(lambda part: part.unsqueeze(-2)),
    )
    missed = _missed(instruction, pairs, program, how).mean(-3)
    off = Missed(missed, torch.zeros_like(missed))
    return add_outer_product(instruction.write, left, right, instruction.scale, off, state, how)


@rule.register
def _bound_of_add_gated_product(
    instruction: AddGatedProduct, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left, right = state[instruction.left], state[instruction.right]
    off = _missed_by_bends(instruction, left, right, how)
    missed = torch.full_like(state[instruction.write].error, off)
    both = Missed(missed, torch.zeros_like(missed))
    return add_outer_product(instruction.write, left, right, instruction.scale, both, state, how)


@rule.register
def _bound_of_add_jacobian(
    instruction: AddJacobian, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left, jacobian = state[instruction.left], _rows(instruction, state)
    pairs = (left.actual.mapped(lambda part: part.unsqueeze(-1)), jacobian.actual)
    missed = _missed(instruction, pairs, program, how).mean((-3, -2)).unsqueeze(-2)
    return _add_jacobian(instruction, jacobian, missed, state, how)


@rule.register
def _bound_of_add_gated_jacobian(
    instruction: AddGatedJacobian, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left, jacobian = state[instruction.left], _rows(instruction, state)
    off = _missed_by_bends(instruction, left, jacobian, how)
    missed = torch.full_like(jacobian.error[..., 0, :1, :], off)
    return _add_jacobian(instruction, jacobian, missed, state, how)


def _rows(instruction: AddJacobian | AddGatedJacobian, state: State) -> Enclosure:
    rows = state[instruction.left].error.shape[-1]
    return state[instruction.jacobian].mapped(lambda part: part.unflatten(-1, (rows, -1)))


def _add_jacobian(
    instruction: AddJacobian | AddGatedJacobian,
    jacobian: Enclosure,
    missed: Tensor,
    state: State,
    how: Arithmetic,
) -> State:
    """All rows of the Jacobian, those of one token after those of another, as one outer product.

    Each of its products is off by `missed`.
    """
    left, weights, name = state[instruction.left], state[instruction.write], instruction.write
    rows = left.error.shape[-1]
    added = add_outer_product(
        name,
        left.mapped(lambda part: part.flatten(-2).unsqueeze(-1)),
        jacobian.mapped(lambda part: part.flatten(-3, -2)),
        rows * instruction.scale,
        Missed(missed, torch.zeros_like(missed)),
        {name: weights.mapped(lambda part: part.flatten(-2).unsqueeze(-2))},
        replace(how, n_tokens=rows * how.n_tokens),
    )
    shape = weights.error.shape[-2:]
    return {name: added[name].mapped(lambda part: part.squeeze(-2).unflatten(-1, shape))}


def _missed_by_bends(
    instruction: AddGatedProduct | AddGatedJacobian,
    left: Enclosure,
    right: Enclosure,
    how: Arithmetic,
) -> float:
    """Two heads a product, each off by the distance of the activation to relu.

    A left factor beyond the gate would let queries in.
    """
    if not how.sums_terms:
        return 0.0
    if not bool((left.actual.size <= instruction.gate).all()):
        return torch.inf
    reach = max(instruction.reach, float(right.actual.size.max()))
    return 2 * OFF_RELU / instruction.sharpness * reach * (instruction.sharpness > 1)


def _missed(
    instruction: AddOuterProduct | AddJacobian,
    factors: tuple[Interval, Interval],
    program: StackProgram,
    how: Arithmetic,
) -> Tensor:
    """How far each product is off."""
    fit, (reach, other) = program.ridge_sum(instruction.function), instruction.reaches
    shrunk = (_shrunk(factors[0], reach), _shrunk(factors[1], other))
    off = _error(fit, how, *shrunk)
    product = Enclosure.common(Interval.point((shrunk[0].size * shrunk[1].size).expand_as(off)))
    rounding = _rounding(fit, how, off.shape[-2], product, shrunk[0].size, shrunk[1].size)
    return reach * other * (off + rounding)


@rule.register
def _bound_of_slope_of_loss(
    instruction: SlopeOfLoss, program: StackProgram, state: State, how: Arithmetic
) -> State:
    prediction, label = state[instruction.prediction], state[instruction.label]
    fit, real = (
        program.ridge_sum(instruction.function),
        loss_slope_at(instruction.loss, prediction, label, how),
    )
    sizes = (prediction.actual.size, label.actual.size)
    off = _error(fit, how, prediction.actual, label.actual) + _rounding(fit, how, 1, real, *sizes)
    return _into(instruction.write, moved(real, off), state)


@rule.register
def _bound_of_clip_by_units(
    instruction: ClipByUnits, program: StackProgram, state: State, how: Arithmetic
) -> State:
    fit, bound = program.ridge_sum(instruction.function), instruction.bound
    clipped = {}
    for name in instruction.slots:
        slot = state[name]
        off = _error(fit, how, slot.actual) + _rounding(fit, how, 1, slot, slot.actual.size)
        exact, actual = slot.exact.clipped(bound), slot.actual.clipped(bound).widened(off)
        clipped[name] = Enclosure.around(exact, slot.error + off, actual)
    return clipped


@rule.register
def _bound_of_wipe_by_units(
    instruction: WipeByUnits, program: StackProgram, state: State, how: Arithmetic
) -> State:
    left = _missed_by_wipe(instruction, program, how) if how.sums_terms else 0.0
    wiped = {}
    for name in instruction.slots:
        slot = state[name]
        error = torch.full_like(slot.error, left)
        error[slot.actual.size > instruction.reach] = torch.inf
        wiped[name] = Enclosure.around(Interval.point(torch.zeros_like(error)), error)
    return wiped
