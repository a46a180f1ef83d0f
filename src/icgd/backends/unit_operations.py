"""Operations of instructions by units.

A function whose sum of units is proved so close that nobody could tell them apart is computed as
such; a coarser one is summed unit by unit, near kinks and the corners of the box only. Jacobians
have a row for every unit, so that a step costs up to O(n k^2 |w|) where k is the largest width,
against O(n |w|) of a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from icgd.backends.look_up import Operation
from icgd.backends.machine import Machine, operation
from icgd.backends.operations import add_product, right_factor
from icgd.problems.activations import activation_named
from icgd.problems.catalog import function_named
from icgd.problems.losses import loss_named
from icgd.problems.unit_activations import unit_activation_named
from icgd.program import unit_instructions as verbs
from icgd.program.ridge import RidgeSum

AS_SUCH = 1e-8
"""Fits with a smaller error than this are computed as the functions that they stand for."""

NUMBERS_AT_ONCE = 2**20
"""The number of units times arguments that are evaluated at once."""


def is_computed_as_such(fit: RidgeSum) -> bool:
    """Whether the function itself is computed, not its units."""
    return fit.largest_error <= AS_SUCH


class UnitSum:
    """The sum over m of coefficient_m activation(direction_m . z + offset_m), for tensors z_i."""

    def __init__(self, fit: RidgeSum, like: Tensor) -> None:
        self.activation = unit_activation_named(fit.activation).value
        rows = [(*unit.direction, unit.offset, unit.coefficient) for unit in fit.units]
        *self.directions, self.offsets, self.coefficients = (
            torch.tensor(column, dtype=torch.float64).to(like) for column in zip(*rows, strict=True)
        )

    def __call__(self, *arguments: Tensor) -> Tensor:
        arguments = torch.broadcast_tensors(*arguments)
        at_once = max(1, NUMBERS_AT_ONCE // max(arguments[0].numel(), 1))
        total = torch.zeros_like(arguments[0])
        for start in range(0, len(self.offsets), at_once):
            total = total + self._part(arguments, slice(start, start + at_once))
        return total

    def _part(self, arguments: tuple[Tensor, ...], units: slice) -> Tensor:
        argument = self.offsets[units]
        for z, direction in zip(arguments, self.directions, strict=True):
            argument = argument + z.unsqueeze(-1) * direction[units]
        return self.activation(argument) @ self.coefficients[units]


def _values(function: str, reach: float, machine: Machine) -> Callable[[Tensor], Tensor]:
    """The map z -> reach * f(z / reach) for a function of one variable of the program."""
    fit = machine.program.ridge_sum(function)
    if is_computed_as_such(fit):
        return function_named(function)
    units = UnitSum(fit, machine.slots["x"])
    return lambda z: reach * units(z / reach)


@operation.register
def _to_activate_units(instruction: verbs.ActivateUnits, machine: Machine) -> Operation:
    z, write = machine.argument(instruction.argument).value, machine.slots[instruction.write]
    function = _values(instruction.function, instruction.reach, machine)
    return lambda: write.copy_(function(z))


@operation.register
def _to_pass_on(instruction: verbs.PassOn, machine: Machine) -> Operation:
    z, write = machine.argument(instruction.argument).value, machine.slots[instruction.write]
    function = _values(instruction.function, 1.0, machine)
    matrix = machine.slots[instruction.weights]
    if instruction.bias is None:
        return lambda: torch.matmul(function(z), matrix.mT, out=write)
    weights, bias = matrix[..., :-1].mT, matrix[..., -1:].mT
    return lambda: torch.matmul(function(z), weights, out=write).add_(bias)


@operation.register
def _to_start_jacobian(instruction: verbs.StartJacobian, machine: Machine) -> Operation:
    slopes = _SlopeProducts(instruction, machine)
    inputs, complete = right_factor(instruction.inputs, instruction.bias, machine)
    weights = slopes.weights.unsqueeze(-3)
    shape = (*weights.shape[-2:], inputs.shape[-1])
    entries = machine.slots[instruction.write].unflatten(-1, shape)

    def start() -> None:
        complete()
        if slopes.is_coarse:
            products = slopes.by_units(inputs.unsqueeze(-2), slopes.z.unsqueeze(-1))
            torch.mul(weights.unsqueeze(-1), products.unsqueeze(-3), out=entries)
            return
        sloped = (weights * slopes.slope(slopes.z).unsqueeze(-2)).unsqueeze(-1)
        torch.mul(sloped, inputs[..., None, None, :], out=entries)
        for where, columns in slopes.near_kinks():
            products = slopes.by_units(inputs[where[:-1]], slopes.z[where].unsqueeze(-1))
            entries.transpose(-3, -2)[where] = columns.unsqueeze(-1) * products.unsqueeze(-2)

    return start


@operation.register
def _to_push_jacobian(instruction: verbs.PushJacobian, machine: Machine) -> Operation:
    slopes = _SlopeProducts(instruction, machine)
    weights = slopes.weights.unsqueeze(-3)
    below = machine.slots[instruction.jacobian].unflatten(-1, (weights.shape[-1], -1))
    write = machine.slots[instruction.write].unflatten(-1, (weights.shape[-2], -1))

    def push() -> None:
        if slopes.is_coarse:
            products = slopes.by_units(below, slopes.z.unsqueeze(-1))
            torch.matmul(weights, products, out=write)
            return
        torch.matmul(weights * slopes.slope(slopes.z).unsqueeze(-2), below, out=write)
        for where, columns in slopes.near_kinks():
            s, t = below[where], slopes.z[where].unsqueeze(-1)
            missed = slopes.by_units(s, t) - s * slopes.slope(t)
            update = columns.unsqueeze(-1) * missed.unsqueeze(-2)
            write.index_put_(where[:-1], update, accumulate=True)

    return push


class _SlopeProducts:
    """Products s r'(z), by units if the fit is coarse, else only at the few z near a kink."""

    def __init__(
        self, instruction: verbs.StartJacobian | verbs.PushJacobian, machine: Machine
    ) -> None:
        fit = machine.program.ridge_sum(instruction.function)
        self.z = machine.argument(instruction.argument).value
        self.weights = machine.slots[instruction.weights][..., : self.z.shape[-1]]
        self.slope = activation_named(instruction.activation).derivative
        self.is_coarse, self._is_near = fit.error > AS_SUCH, _coarse(fit)
        self._has_kinks = not is_computed_as_such(fit)
        self._units, self._reach = UnitSum(fit, self.z), instruction.reach

    def by_units(self, s: Tensor, t: Tensor) -> Tensor:
        return self._reach * self._units(s / self._reach, t)

    def near_kinks(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Where z is near a kink, if anywhere, and the columns of weights that belong there."""
        if self._has_kinks and (is_near := self._is_near(self.z)).any():
            where = is_near.nonzero(as_tuple=True)
            *tasks, _, unit = where
            yield where, self.weights.mT[(*tasks, unit)]


@operation.register
def _to_add_outer_product(instruction: verbs.AddOuterProduct, machine: Machine) -> Operation:
    if is_computed_as_such(machine.program.ridge_sum(instruction.function)):
        return add_product(instruction, machine)
    left, write = machine.at(instruction.left, instruction.write)
    right, complete = right_factor(instruction.right, instruction.bias, machine)
    left, right = left[..., machine.examples, :, None], right[..., machine.examples, None, :]
    products = _products(instruction, machine)

    def add() -> None:
        complete()
        write.add_(products(left, right).mean(-3), alpha=instruction.scale)

    return add


@operation.register
def _to_add_jacobian(instruction: verbs.AddJacobian, machine: Machine) -> Operation:
    left, jacobian = _rows_of_examples(instruction, machine)
    if is_computed_as_such(machine.program.ridge_sum(instruction.function)):
        return _add_rows(instruction, machine)
    write, share = machine.slots[instruction.write].flatten(-2), instruction.scale / left.shape[-2]
    products = _products(instruction, machine)
    return lambda: write.add_(products(left.unsqueeze(-1), jacobian).sum((-3, -2)), alpha=share)


def _rows_of_examples(
    instruction: verbs.AddJacobian | verbs.AddGatedJacobian, machine: Machine
) -> tuple[Tensor, Tensor]:
    """The factors of the rows of the examples' Jacobians, and the rows themselves."""
    left = machine.slots[instruction.left][..., machine.examples, :]
    jacobian = machine.slots[instruction.jacobian][..., machine.examples, :]
    return left, jacobian.unflatten(-1, (left.shape[-1], -1))


@operation.register(verbs.AddGatedJacobian)
def _add_rows(
    instruction: verbs.AddJacobian | verbs.AddGatedJacobian, machine: Machine
) -> Operation:
    """The operation write += scale * the mean over the examples of left^T jacobian."""
    left, jacobian = _rows_of_examples(instruction, machine)
    total = machine.slots[instruction.write].flatten(-2).unsqueeze(-2)
    add, share = total.baddbmm_ if machine.batch else total.addmm_, instruction.scale
    share = share / left.shape[-2]
    return lambda: add(left.flatten(-2).unsqueeze(-2), jacobian.flatten(-3, -2), alpha=share)


def _products(
    instruction: verbs.AddOuterProduct | verbs.AddJacobian, machine: Machine
) -> Callable[[Tensor, Tensor], Tensor]:
    """The function that multiplies two tensors by units."""
    units = UnitSum(machine.program.ridge_sum(instruction.function), machine.slots["x"])
    reach, other = instruction.reaches
    return lambda a, b: reach * other * units(a / reach, b / other)


@operation.register
def _to_slope_of_loss(instruction: verbs.SlopeOfLoss, machine: Machine) -> Operation:
    prediction, label = machine.at(instruction.prediction, instruction.label)
    write = machine.slots[instruction.write]
    fit = machine.program.ridge_sum(instruction.function)
    as_such = is_computed_as_such(fit)
    slope = loss_named(instruction.loss).slope if as_such else UnitSum(fit, write)
    return lambda: write.copy_(slope(prediction, label))


@operation.register
def _to_copy_to_queries(instruction: verbs.CopyToQueries, machine: Machine) -> Operation:
    source = machine.slots[instruction.source][..., machine.queries, :]
    write = machine.slots[instruction.write][..., machine.queries, :]
    fit = machine.program.ridge_sum(instruction.function)
    if is_computed_as_such(fit):
        return lambda: write.copy_(source)
    gate, flag = UnitSum(fit, write), torch.ones_like(source)
    return lambda: write.copy_(gate(source, flag))


@operation.register
def _to_clip_by_units(instruction: verbs.ClipByUnits, machine: Machine) -> Operation:
    """Only the weights that lie where units are coarse need them: near the corners, or all."""
    targets = machine.at(*instruction.slots)
    fit, bound = machine.program.ridge_sum(instruction.function), instruction.bound
    units, near = UnitSum(fit, targets[0]), _coarse(fit)

    def clip() -> None:
        for target in targets:
            is_near = near(target)
            soft = target[is_near] if is_near.any() else None
            target.clamp_(-bound, bound)
            if soft is not None:
                target[is_near] = soft + units(soft)

    return clip


def _coarse(fit: RidgeSum) -> Callable[[Tensor], Tensor]:
    """Where a fit is not computed as such: in bands of its last variable, which may overlap."""
    if fit.error > AS_SUCH:
        return lambda z: torch.ones_like(z, dtype=torch.bool)
    joined: list[list[float]] = []
    for band in sorted(fit.bands, key=lambda band: band.low):
        if band.error > AS_SUCH and joined and band.low <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], band.high)
        elif band.error > AS_SUCH:
            joined.append([band.low, band.high])

    def near(z: Tensor) -> Tensor:
        found = torch.zeros_like(z, dtype=torch.bool)
        for low, high in joined:
            found |= (z >= low) & (z <= high)
        return found

    return near
