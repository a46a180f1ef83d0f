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

from icgd.approximation.ridge_sum import PRODUCT
from icgd.backends.recorder import is_computed_as_such
from icgd.certificates import bounds, enclosures
from icgd.certificates.bounds import (
    Missed,
    Moment,
    State,
    above_one,
    add_outer_product,
    rule,
    without_bias,
)
from icgd.certificates.enclosures import Arithmetic, Enclosure, matrix_product, moved, multiply
from icgd.certificates.intervals import Interval
from icgd.problems.activations import activation_named
from icgd.problems.catalog import function_named
from icgd.program import unit_instructions as verbs
from icgd.program.instructions import Argument
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram

OFF_RELU = 1.0
"""No unit activation that bends like relu is farther from it: elu is that far, relu not at all."""

STEEPEST = 1.2
"""No unit activation has a larger slope: that of gelu is 1.13."""


def _rounding(
    fit: RidgeSum, how: Arithmetic, n_sums: int, real: Enclosure, *sizes: Tensor
) -> Tensor:
    """The rounding of `n_sums` sums like this fit together, at arguments of these sizes."""
    if not how.sums_terms and is_computed_as_such(fit):
        return how.sum_of(len(sizes), real.actual.size) + _evaluation(fit, how, real.actual.size)
    total = torch.zeros_like(real.error)
    for number, size in enumerate(sizes):
        per_size = sum(abs(unit.coefficient * unit.direction[number]) for unit in fit.units)
        total = total + STEEPEST * per_size * size
    constant = sum(abs(unit.coefficient) * (1 + STEEPEST * abs(unit.offset)) for unit in fit.units)
    n_copies = how.n_tokens if how.sums_terms else 1
    n_terms = n_sums * fit.n_units + n_copies + len(sizes)
    return how.sum_of(n_terms, total + constant)


def _evaluation(fit: RidgeSum, how: Arithmetic, size: Tensor) -> Tensor:
    """The rounding of the function that a fit stands for, if it is computed as such.

    In units of its reach the factor s of a slope is at most 1, so that the product is off by no
    more than the slope is.
    """
    if fit.name == PRODUCT:
        return torch.zeros_like(size)
    return how.evaluation(fit.name.removeprefix("s ").removesuffix("(t)"), size)


def _error(fit: RidgeSum, how: Arithmetic, *arguments: Interval) -> Tensor:
    """The certified error of what the backend computes for a fit."""
    as_such = fit.is_exact or (not how.sums_terms and is_computed_as_such(fit))
    return enclosures.ridge_error(replace(fit, error=0.0) if as_such else fit, *arguments)


def _shrunk(value: Interval, reach: float) -> Interval:
    return value.times(1 / reach)


def _into(write: str, value: Enclosure, now: Moment) -> State:
    """The slot after the value is added to what was left in it."""
    left = now.slots[write].actual.size
    actual = value.actual.widened(left)
    return {write: Enclosure.around(value.exact, value.error + left, actual)}


def left_over(program: StackProgram, how: Arithmetic) -> Mapping[str, float]:
    """The most that the units of a wipe leave in every slot, 0 where it is wiped exactly."""
    left: dict[str, float] = defaultdict(float)
    for part in (part for layer in program.block for part in layer.instructions):
        if isinstance(part, verbs.WipeByUnits) and how.sums_terms:
            left |= dict.fromkeys(part.slots, _missed_by_wipe(part, program, how))
    return left


def _missed_by_wipe(wipe: verbs.WipeByUnits, program: StackProgram, how: Arithmetic) -> float:
    fit = program.ridge_sum(wipe.function)
    one = torch.ones((), dtype=torch.float64)
    whole = Enclosure.common(Interval.point(one))
    missed = enclosures.ridge_error(fit, whole.actual) + _rounding(fit, how, 1, whole, one)
    return wipe.reach * float(missed)


def _value(function: str, reach: float, argument: Argument, n_sums: int, now: Moment) -> Enclosure:
    """The enclosure of reach * function(argument / reach)."""
    z, fit = bounds.argument_at(argument, now), now.program.ridge_sum(function)
    real = enclosures.function_at(function_named(function), z.value)
    off = reach * _error(fit, now.how, _shrunk(z.value.actual, reach))
    shrunk = real.mapped(lambda part: part / reach)
    off = off + reach * _rounding(fit, now.how, n_sums + z.n_terms, shrunk, z.sizes / reach)
    return moved(real, off)


@rule.register
def _bound_of_activate_units(instruction: verbs.ActivateUnits, now: Moment) -> State:
    value = _value(instruction.function, instruction.reach, instruction.argument, 1, now)
    return _into(instruction.write, value, now)


@rule.register
def _bound_of_pass_on(instruction: verbs.PassOn, now: Moment) -> State:
    width = instruction.argument.width(now.program.layout)
    value = _value(instruction.function, 1.0, instruction.argument, width, now)
    weights = now.slots[instruction.weights]
    if instruction.bias is None:
        return _into(instruction.write, matrix_product(weights, value, now.how), now)
    passed_on = matrix_product(weights, above_one(value), now.how)
    of_head = now.how.sum_of(now.how.n_tokens, weights.size[..., -1:].mT)
    return _into(instruction.write, moved(passed_on, of_head.expand_as(passed_on.error)), now)


def _times_slope(
    instruction: verbs.StartJacobian | verbs.PushJacobian, s: Enclosure, now: Moment
) -> Enclosure:
    """The enclosure of s r'(argument[k]), where row k of `s` belongs to argument k.

    Near a kink the units give something between s times the one slope and s times the other.
    """
    z, how = bounds.argument_at(instruction.argument, now), now.how
    t, sizes = z.value.mapped(lambda part: part.unsqueeze(-1)), z.sizes.unsqueeze(-1)
    fit, reach = now.program.ridge_sum(instruction.function), instruction.reach
    derivative = activation_named(instruction.activation).derivative
    real = multiply(s, enclosures.function_at(derivative, t), how)
    s_shrunk = _shrunk(s.actual, reach)
    smooth = reach * _error(replace(fit, bands=()), how, s_shrunk, t.actual)
    n_sums, shrunk = t.error.shape[-2] + z.n_terms, real.mapped(lambda part: part / reach)
    rounding = _rounding(fit, how, n_sums, shrunk, s.actual.size / reach, sizes)
    off = smooth + reach * rounding
    if not fit.bands:
        return moved(real, off)
    jumps = enclosures.ridge_error(replace(fit, error=0.0), s_shrunk, t.actual)
    end = torch.full_like(t.actual.low, torch.inf)
    near = s.actual * Interval(*derivative.bounds(-end, end))
    actual = Interval(
        torch.where(jumps > 0, near.low, real.actual.low),
        torch.where(jumps > 0, near.high, real.actual.high),
    ).widened(off)
    return Enclosure.around(real.exact, real.error + jumps * s.actual.size + off, actual)


@rule.register
def _bound_of_start_jacobian(instruction: verbs.StartJacobian, now: Moment) -> State:
    inputs = _above(instruction.inputs, instruction.bias, now)
    inputs = inputs.mapped(lambda part: part.unsqueeze(-2))
    products = _times_slope(instruction, inputs, now).mapped(lambda part: part.unsqueeze(-3))
    weights = now.slots[instruction.weights]
    weights = weights if instruction.bias is None else without_bias(weights)
    weights = weights.mapped(lambda part: part.unsqueeze(-3).unsqueeze(-1))
    entries = multiply(weights, products, now.how).mapped(lambda part: part.flatten(-3))
    return _into(instruction.write, entries, now)


@rule.register
def _bound_of_push_jacobian(instruction: verbs.PushJacobian, now: Moment) -> State:
    columns, _ = now.program.layout.slot(instruction.jacobian).shape
    below = now.slots[instruction.jacobian].mapped(lambda part: part.unflatten(-1, (columns, -1)))
    products = _times_slope(instruction, below, now)
    weights = now.slots[instruction.weights]  # nothing is pushed to a bias
    weights = weights.mapped(lambda part: part[..., :columns].unsqueeze(-3))
    pushed = matrix_product(weights, products.mT, now.how).mT
    return _into(instruction.write, pushed.mapped(lambda part: part.flatten(-2)), now)


def _above(name: str, bias: str | None, now: Moment) -> Enclosure:
    """A slot, above a constant 1 if there is a bias."""
    return now.slots[name] if bias is None else above_one(now.slots[name])


@rule.register
def _bound_of_add_outer_product(instruction: verbs.AddOuterProduct, now: Moment) -> State:
    left, right = now.slots[instruction.left], _above(instruction.right, instruction.bias, now)
    pairs = (
        left.actual.mapped(lambda part: part.unsqueeze(-1)),
        right.actual.mapped(lambda part: part.unsqueeze(-2)),
    )
    off = Missed.by_all(_missed(instruction, pairs, now).mean(-3))
    return add_outer_product(now, instruction.write, left, right, instruction.scale, off)


@rule.register
def _bound_of_add_gated_product(instruction: verbs.AddGatedProduct, now: Moment) -> State:
    left, right = now.slots[instruction.left], _above(instruction.right, instruction.bias, now)
    missed = _missed_by_bends(instruction, left, right, now.how)
    off = Missed.by_all(torch.full_like(now.slots[instruction.write].error, missed))
    return add_outer_product(now, instruction.write, left, right, instruction.scale, off)


@rule.register
def _bound_of_add_jacobian(instruction: verbs.AddJacobian, now: Moment) -> State:
    left, jacobian = now.slots[instruction.left], _rows(instruction, now)
    pairs = (left.actual.mapped(lambda part: part.unsqueeze(-1)), jacobian.actual)
    missed = _missed(instruction, pairs, now).mean((-3, -2)).unsqueeze(-2)
    return _add_jacobian(instruction, jacobian, missed, now)


@rule.register
def _bound_of_add_gated_jacobian(instruction: verbs.AddGatedJacobian, now: Moment) -> State:
    left, jacobian = now.slots[instruction.left], _rows(instruction, now)
    off = _missed_by_bends(instruction, left, jacobian, now.how)
    missed = torch.full_like(jacobian.error[..., 0, :1, :], off)
    return _add_jacobian(instruction, jacobian, missed, now)


def _rows(instruction: verbs.AddJacobian | verbs.AddGatedJacobian, now: Moment) -> Enclosure:
    rows = now.slots[instruction.left].error.shape[-1]
    return now.slots[instruction.jacobian].mapped(lambda part: part.unflatten(-1, (rows, -1)))


def _add_jacobian(
    instruction: verbs.AddJacobian | verbs.AddGatedJacobian,
    jacobian: Enclosure,
    missed: Tensor,
    now: Moment,
) -> State:
    """The weights after all rows of the Jacobian, of one token after another, in one outer product.

    Each of its products is off by `missed`.
    """
    name, left = instruction.write, now.slots[instruction.left]
    weights, rows = now.slots[name], left.error.shape[-1]
    row = {name: weights.mapped(lambda part: part.flatten(-2).unsqueeze(-2))}
    added = add_outer_product(
        replace(now, slots=row, how=replace(now.how, n_tokens=rows * now.how.n_tokens)),
        name,
        left.mapped(lambda part: part.flatten(-2).unsqueeze(-1)),
        jacobian.mapped(lambda part: part.flatten(-3, -2)),
        rows * instruction.scale,
        Missed.by_all(missed),
    )
    shape = weights.error.shape[-2:]
    return {name: added[name].mapped(lambda part: part.squeeze(-2).unflatten(-1, shape))}


def _missed_by_bends(
    instruction: verbs.AddGatedProduct | verbs.AddGatedJacobian,
    left: Enclosure,
    right: Enclosure,
    how: Arithmetic,
) -> float:
    """What the two heads of a product miss: each is as far off as the activation is from relu.

    A left factor beyond the gate would let queries in.
    """
    if not how.sums_terms:
        return 0.0
    if not bool((left.actual.size <= instruction.gate).all()):
        return torch.inf
    reach = max(instruction.reach, float(right.actual.size.max()))
    return 2 * OFF_RELU / instruction.sharpness * reach * (instruction.sharpness > 1)


def _missed(
    instruction: verbs.AddOuterProduct | verbs.AddJacobian,
    factors: tuple[Interval, Interval],
    now: Moment,
) -> Tensor:
    """How far each product is off."""
    fit, (reach, other) = now.program.ridge_sum(instruction.function), instruction.reaches
    shrunk = (_shrunk(factors[0], reach), _shrunk(factors[1], other))
    off = _error(fit, now.how, *shrunk)
    product = Enclosure.common(Interval.point((shrunk[0].size * shrunk[1].size).expand_as(off)))
    rounding = _rounding(fit, now.how, off.shape[-2], product, shrunk[0].size, shrunk[1].size)
    return reach * other * (off + rounding)


@rule.register
def _bound_of_slope_of_loss(instruction: verbs.SlopeOfLoss, now: Moment) -> State:
    prediction, label = now.slots[instruction.prediction], now.slots[instruction.label]
    fit, how = now.program.ridge_sum(instruction.function), now.how
    real = bounds.loss_slope_at(instruction.loss, prediction, label, how)
    sizes = (prediction.actual.size, label.actual.size)
    off = _error(fit, how, prediction.actual, label.actual) + _rounding(fit, how, 1, real, *sizes)
    return _into(instruction.write, moved(real, off), now)


@rule.register
def _bound_of_copy_to_queries(instruction: verbs.CopyToQueries, now: Moment) -> State:
    """All tokens are queries where this is asked for, so that the flag is 1."""
    source, fit = now.slots[instruction.source], now.program.ridge_sum(instruction.function)
    flag = Interval.point(torch.ones_like(source.error))
    off = _error(fit, now.how, source.actual, flag)
    off = off + _rounding(fit, now.how, 1, source, source.actual.size, flag.size)
    return _into(instruction.write, moved(source, off), now)


@rule.register
def _bound_of_clip_by_units(instruction: verbs.ClipByUnits, now: Moment) -> State:
    fit, how, clipped = now.program.ridge_sum(instruction.function), now.how, {}
    for name in instruction.slots:
        slot = now.slots[name]
        off = _error(fit, how, slot.actual) + _rounding(fit, how, 1, slot, slot.actual.size)
        clipped[name] = enclosures.clipped(slot, instruction.bound, off)
    return clipped


@rule.register
def _bound_of_wipe_by_units(instruction: verbs.WipeByUnits, now: Moment) -> State:
    left = _missed_by_wipe(instruction, now.program, now.how) if now.how.sums_terms else 0.0
    wiped = {}
    for name in instruction.slots:
        slot = now.slots[name]
        error = torch.full_like(slot.error, left)
        error[slot.actual.size > instruction.reach] = torch.inf
        wiped[name] = bounds.apart_by(error)
    return wiped
