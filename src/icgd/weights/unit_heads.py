"""The numbers in heads and hidden units that are the units of a `RidgeSum`.

There is a head for each unit and each number at which it is evaluated. Where every token has its
own number, the query holds the inputs and the offset, and the key the weights, or 1. In a gradient
the key holds the numbers, because the sum is over tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems.unit_activations import unit_activation_named
from icgd.program import unit_instructions as by_units
from icgd.program.instructions import IS_QUERY, ONE, TOKENS_PER_EXAMPLE, Argument, stacked
from icgd.program.layout import Layout
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import EXAMPLE_SHARE
from icgd.weights.heads import Heads, Units, coordinates, fill, joined, put
from icgd.weights.sizes import offset_feature


def _numbers(fit: RidgeSum, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The directions, offsets and coefficients of all units."""
    rows = [(*unit.direction, unit.offset, unit.coefficient) for unit in fit.units]
    width = len(fit.half_widths)
    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, width + 2).to(like.dtype)
    return table[:, :width], table[:, width], table[:, width + 1]


def _every(*sizes: int) -> list[Tensor]:
    """The indices of all combinations, the last running fastest: one column for each size."""
    mesh = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij")
    return [index.flatten() for index in mesh]


def _ask(
    argument: Argument,
    coordinate: Tensor,
    scale: Tensor,
    offset: Tensor,
    layout: Layout,
    heads: Heads,
) -> Tensor:
    """Fill heads with the scores scale * argument[coordinate] + offset; returns their indices.

    What is added to the query in the feature of the offset is added to the score.
    """
    head, last = torch.arange(len(coordinate)), offset_feature(argument, layout)
    for slot, factor in argument.inputs.terms():
        read = joined(layout, slot)
        if argument.weights is None:
            heads.query[head, read[coordinate], 0] += factor * scale
        else:
            feature = torch.arange(len(read))
            heads.query[:, read, feature] += factor * scale[:, None]
    if argument.weights is not None:
        rows = coordinates(layout, argument.weights)[coordinate]
        heads.key[head[:, None], rows, torch.arange(rows.shape[-1])] = 1.0
    if argument.bias is not None:
        put(heads.query, layout, last - 1, {argument.bias: scale})
    put(heads.query, layout, last, {ONE: offset})
    put(heads.key, layout, last, {ONE: 1.0})
    return head


def _pass_column(
    weights: str, column: Tensor, write: Tensor, factor: Tensor, layout: Layout, heads: Heads
) -> None:
    """Fill a head for each column: value weights[:, column], times `factor` into `write`."""
    head = torch.arange(len(column))[:, None]
    feature = torch.arange(write.shape[-1])
    heads.value[head, coordinates(layout, weights)[:, column].T, feature] = 1.0
    heads.output[head, feature, write] = factor[:, None]


@fill.register
def _fill_units(instruction: by_units.ActivateUnits, program: StackProgram, weights: Heads) -> None:
    """Query [scale * inputs; offset], key [weights[k, :]; 1], value 1."""
    layout, reach = program.layout, instruction.reach
    direction, offset, beta = _numbers(program.ridge_sum(instruction.function), weights.query)
    k, unit = _every(instruction.argument.width(layout), len(beta))
    scale = direction[unit, 0] / reach
    head = _ask(instruction.argument, k, scale, offset[unit], layout, weights)
    put(weights.value, layout, 0, {ONE: 1.0})
    weights.output[head, 0, coordinates(layout, instruction.write)[k]] = reach * beta[unit]


@fill.register
def _fill_pass_on(instruction: by_units.PassOn, program: StackProgram, weights: Heads) -> None:
    """Query and key are those of `ActivateUnits`, the value is weights[:, k]."""
    layout = program.layout
    direction, offset, beta = _numbers(program.ridge_sum(instruction.function), weights.query)
    k, unit = _every(instruction.argument.width(layout), len(beta))
    own = weights.part(0, len(k))
    _ask(instruction.argument, k, direction[unit, 0], offset[unit], layout, own)
    write = coordinates(layout, instruction.write).expand(len(k), -1)
    _pass_column(instruction.weights, k, write, beta[unit], layout, own)
    if instruction.bias is not None:
        _fill_bias(instruction, instruction.bias, program, weights.part(len(k), 1))


def _fill_bias(instruction: by_units.PassOn, bias: str, program: StackProgram, head: Heads) -> None:
    """Query and key 1, value the last column of the weights; the output undoes activation(1)."""
    layout, one = program.layout, torch.ones(1, dtype=torch.float64)
    put(head.query, layout, 0, {bias: 1.0})
    put(head.key, layout, 0, {ONE: 1.0})
    write = coordinates(layout, instruction.write).expand(1, -1)
    factor = (1 / unit_activation_named(program.activation)(one)).to(head.output.dtype)
    last = torch.tensor([layout.slot(instruction.weights).shape[-1] - 1])
    _pass_column(instruction.weights, last, write, factor, layout, head)


@fill.register
def _fill_start(instruction: by_units.StartJacobian, program: StackProgram, weights: Heads) -> None:
    """Scores a1 inputs[l] / reach + a2 argument[k] + offset, value weights[:, k]."""
    inputs = joined(program.layout, *stacked(instruction.inputs, instruction.bias))
    n_columns = instruction.argument.width(program.layout)
    written = torch.arange(n_columns * len(inputs)).view(n_columns, -1)
    _fill_jacobian(instruction, program, inputs.expand(n_columns, -1), written, weights)


@fill.register
def _fill_push(instruction: by_units.PushJacobian, program: StackProgram, weights: Heads) -> None:
    """Scores a1 jacobian[k, p] / reach + a2 argument[k] + offset, value weights[:, k]."""
    jacobian = coordinates(program.layout, instruction.jacobian)
    written = torch.arange(jacobian.shape[1]).expand(len(jacobian), -1)
    _fill_jacobian(instruction, program, jacobian, written, weights)


def _fill_jacobian(
    instruction: by_units.StartJacobian | by_units.PushJacobian,
    program: StackProgram,
    read: Tensor,
    written: Tensor,
    heads: Heads,
) -> None:
    """Heads at coordinate read[k, p] and argument[k] write to column written[k, p]."""
    layout, reach = program.layout, instruction.reach
    direction, offset, beta = _numbers(program.ridge_sum(instruction.function), heads.query)
    k, p, unit = _every(*read.shape, len(beta))
    head = _ask(instruction.argument, k, direction[unit, 1], offset[unit], layout, heads)
    last = offset_feature(instruction.argument, layout)
    heads.query[head, read[k, p], last] += direction[unit, 0] / reach
    write = coordinates(layout, instruction.write)[:, written[k, p]].T
    _pass_column(instruction.weights, k, write, reach * beta[unit], layout, heads)


Adding = (
    by_units.AddOuterProduct
    | by_units.AddJacobian
    | by_units.AddGatedProduct
    | by_units.AddGatedJacobian
)
"""Instructions that add products of two numbers to weights, as a mean over the examples."""


def _products(instruction: Adding, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates of left[k], of the numbers [k, p] it multiplies, and of the sums [k, p]."""
    left, write = coordinates(layout, instruction.left), coordinates(layout, instruction.write)
    if isinstance(instruction, by_units.AddOuterProduct | by_units.AddGatedProduct):
        right = joined(layout, *stacked(instruction.right, instruction.bias))
        return left, right.expand(len(left), -1), write
    jacobian = coordinates(layout, instruction.jacobian)
    return left, jacobian, write.flatten().expand(len(left), -1)


@fill.register
def _fill_add_products(
    instruction: by_units.AddOuterProduct | by_units.AddJacobian,
    program: StackProgram,
    weights: Heads,
) -> None:
    """Key a1 left[k] / reach + a2 right[k, p] / reach + offset, value `example_share`."""
    layout, (reach, other_reach) = program.layout, instruction.reaches
    left, right, write = _products(instruction, layout)
    direction, offset, beta = _numbers(program.ridge_sum(instruction.function), weights.key)
    k, p, unit = _every(*right.shape, len(beta))
    head = torch.arange(len(unit))
    put(weights.query, layout, 0, {ONE: 1.0})
    put(weights.key, layout, 0, {ONE: offset[unit]})
    weights.key[head, left[k], 0] = direction[unit, 0] / reach
    weights.key[head, right[k, p], 0] += direction[unit, 1] / other_reach
    put(weights.value, layout, 0, {EXAMPLE_SHARE: 1.0})
    weights.output[head, 0, write[k, p]] = instruction.scale * reach * other_reach * beta[unit]


@fill.register
def _fill_add_gated_products(
    instruction: by_units.AddGatedProduct | by_units.AddGatedJacobian,
    program: StackProgram,
    weights: Heads,
) -> None:
    """Query tokens_per_example, key +-left[k] - gate * is_query, value right[k, :]."""
    layout, sharpness = program.layout, instruction.sharpness
    left, right, write = _products(instruction, layout)
    rows, columns = right.shape
    head, feature = torch.arange(rows), torch.arange(columns)
    for start, sign in ((0, 1.0), (rows, -1.0)):
        part = weights.part(start, rows)
        put(part.query, layout, 0, {TOKENS_PER_EXAMPLE: sharpness})
        part.key[head, left, 0] = sign
        put(part.key, layout, 0, {IS_QUERY: -instruction.gate})
        part.value[head[:, None], right, feature] = 1.0
        part.output[head[:, None], feature, write] = sign * instruction.scale / sharpness


@fill.register
def _fill_slope(instruction: by_units.SlopeOfLoss, program: StackProgram, weights: Units) -> None:
    """Unit a1 prediction[k] + a2 label[k] + offset."""
    slots = (instruction.prediction, instruction.label)
    reads = [coordinates(program.layout, slot) for slot in slots]
    write = coordinates(program.layout, instruction.write)
    _evaluate(program.ridge_sum(instruction.function), reads, write, weights)


@fill.register
def _fill_copy(instruction: by_units.CopyToQueries, program: StackProgram, weights: Units) -> None:
    """Unit a1 source[k] + a2 is_query + offset."""
    source = coordinates(program.layout, instruction.source)
    flag = coordinates(program.layout, IS_QUERY).expand(len(source))
    write = coordinates(program.layout, instruction.write)
    _evaluate(program.ridge_sum(instruction.function), [source, flag], write, weights)


@fill.register
def _fill_clip(instruction: by_units.ClipByUnits, program: StackProgram, weights: Units) -> None:
    """Unit a w + offset for every coordinate w."""
    slots = joined(program.layout, *instruction.slots)
    _evaluate(program.ridge_sum(instruction.function), [slots], slots, weights)


@fill.register
def _fill_wipe(instruction: by_units.WipeByUnits, program: StackProgram, weights: Units) -> None:
    """Unit a h / reach + offset for every coordinate h."""
    slots, reach = joined(program.layout, *instruction.slots), instruction.reach
    fit = program.ridge_sum(instruction.function).along((1 / reach,), -reach)
    _evaluate(fit, [slots], slots, weights)


def _evaluate(fit: RidgeSum, reads: list[Tensor], write: Tensor, units: Units) -> None:
    """Fill units of `fit` at reads[0][k], reads[1][k] .. for every k, which write to write[k]."""
    direction, offset, beta = _numbers(fit, units.reads)
    k, unit = _every(len(write), len(beta))
    row = torch.arange(len(k))
    for argument, read in enumerate(reads):
        units.reads[row, read[k]] += direction[unit, argument]
    units.bias[:] = offset[unit]
    units.writes[row, write[k]] = beta[unit]
