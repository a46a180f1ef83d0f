r"""Lower the wires of instructions to weight matrices, dense or sparse.

The entries of a wire (`program/wires.py`) are equally spaced in the memory of a weight tensor along
each of its axes, so one assignment to a strided view writes them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from icgd.errors import OverflowedRunError
from icgd.layers import (
    ActivationAttention,
    GridAttention,
    Itself,
    KernelAttention,
    MirrorAttention,
    MLPLayer,
    Pattern,
    ProductLayer,
    SequenceAttention,
    SoftmaxAttention,
    SparseWeights,
    Transformer,
)
from icgd.problems.data import dtype_name
from icgd.problems.functions import unit_activation_named
from icgd.problems.kernel_machine import kernel_named
from icgd.program.chain import ChainProgram
from icgd.program.instructions import LayerKind
from icgd.program.layout import IS_EXAMPLE, MASKED, Layout
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.program.wires import (
    ITSELF_AT_EXAMPLES,
    ITSELF_AT_TOKENS,
    AxisFactor,
    Factor,
    Heads,
    Kernel,
    Units,
    Wire,
    factors_in,
    span,
)

ITSELF = {ITSELF_AT_EXAMPLES: Itself.EXAMPLES, ITSELF_AT_TOKENS: Itself.TOKENS}
"""The patterns of layers without a kernel, by their names in wires."""


def lower_program(
    program: StackProgram, dtype: torch.dtype = torch.float64, *, is_sparse: bool = False
) -> Transformer:
    """Return the transformer of a program, with dense or sparse weights.

    The block includes the first end of a schedule.
    """
    lower = partial(lower_layer, program=program, dtype=dtype, is_sparse=is_sparse)
    block = [lower(layer) for layer in program.block]
    first = [block[len(program.common) :]] if program.schedule else []
    return Transformer(
        block=block,
        n_repeats=program.n_repeats,
        final=[lower(layer) for layer in program.prediction],
        ends=[*first, *([lower(part) for part in end] for end in program.schedule[1:])],
    )


def lower_chain(
    program: ChainProgram, dtype: torch.dtype = torch.float64, *, is_sparse: bool = False
) -> nn.Sequential:
    """Return the layers that every step of a chain applies; the first one finds a block."""
    lower = partial(lower_layer, program=program, dtype=dtype, is_sparse=is_sparse)
    return nn.Sequential(*map(lower, program.layers))


def lower_layer(
    layer: Layer, program: AbstractProgram, dtype: torch.dtype, *, is_sparse: bool = False
) -> nn.Module:
    """Return the torch module of a layer of the program."""
    families = layer.wires(program)
    activation = program.activation if isinstance(program, StackProgram) else "relu"
    # torch.relu rather than icgd's function, because layers apply it in place
    activate = torch.relu if activation == "relu" else unit_activation_named(activation).value
    if layer.kind is LayerKind.MLP:
        units = [family for family in families if isinstance(family, Units)]
        lower_units = _sparse_units if is_sparse else _unit_weights
        reads, shift, writes = lower_units(units, program.layout, dtype)
        return MLPLayer(reads, shift, writes, activate)
    heads = [family for family in families if isinstance(family, Heads)]
    weights = (_sparse_heads if is_sparse else _head_weights)(heads, program.layout, dtype)
    if isinstance(program, ChainProgram) and program.has_grid(layer):
        return GridAttention(*weights, **_chain_tokens(layer, program, dtype))
    match layer.kind:
        case LayerKind.GRID:
            return SequenceAttention(*weights, **_grid_tokens(heads, weights[0].shape[-1], dtype))
        case LayerKind.KERNEL:
            patterns: list[Pattern] = [
                kernel_named(family.pattern.name, family.pattern.shape).matrix
                if isinstance(family.pattern, Kernel)
                else ITSELF[family.pattern]
                for family in heads
            ]
            example = program.layout.range_of(IS_EXAMPLE).start
            return KernelAttention(*weights, patterns=patterns, example_feature=example)
        case LayerKind.MIRROR:
            return MirrorAttention(*weights, mirror=_mirror(heads, program.layout, dtype))
        case LayerKind.ATTENTION:
            return ActivationAttention(*weights, activation=activate)
        case LayerKind.PRODUCT:
            return ProductLayer(*weights)
        case _:
            return SoftmaxAttention(*weights)


def _head_weights(
    families: Sequence[Heads], layout: Layout, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return W_Q, W_K, W_V (head, model, feature) and W_O (head, feature, model) of all heads."""
    n_heads = sum(family.size for family in families)
    width = max(family.width(layout) for family in families)
    shape = (n_heads, layout.width, width)
    query, key, value = (torch.zeros(shape, dtype=dtype) for _ in range(3))
    output = torch.zeros(n_heads, width, layout.width, dtype=dtype)
    first = 0
    for family in families:
        targets = zip((query, key, value, output.mT), family.projections, strict=True)
        for weights, wires in targets:
            family_weights = weights[first : first + family.size]
            for wire in wires:
                _write(family_weights, wire, family, layout)
        first += family.size
    return query, key, value, output


def _unit_weights(
    families: Sequence[Units], layout: Layout, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return W_in (model, unit), b_in and W_out (unit, model) of all hidden units."""
    n_units = sum(family.size for family in families)
    reads = torch.zeros(layout.width, n_units, dtype=dtype)
    writes = torch.zeros(n_units, layout.width, dtype=dtype)
    shift = torch.zeros(n_units, dtype=dtype)
    first = 0
    for family in families:
        units = slice(first, first + family.size)
        for weights, wires in ((reads.T, family.reads), (writes, family.writes)):
            for wire in wires:
                _write(weights[units].unsqueeze(-1), wire, family, layout)
        family_shift = shift[units].view(tuple(family.axes.values()))
        family_shift[...] = _numbers(family.shift, family.axes, family, dtype)
        first += family.size
    return reads, shift, writes


def _sparse_heads(
    families: Sequence[Heads], layout: Layout, dtype: torch.dtype
) -> tuple[SparseWeights, ...]:
    """Return sparse W_Q, W_K, W_V and W_O of all heads.

    Families keep their own widths, except in layers with a grid: the position codes of grid tokens
    have one width for all heads.
    """
    widths = [family.widths(layout) for family in families]
    if any(family.grid for family in families):
        widths = [(max(map(max, widths)),) * 2] * len(widths)
    return tuple(
        _sparse(
            [
                (family, family.projections[place], width[place // 2])
                for family, width in zip(families, widths, strict=True)
            ],
            layout,
            dtype,
        )
        for place in range(4)
    )


def _sparse_units(
    families: Sequence[Units], layout: Layout, dtype: torch.dtype
) -> tuple[SparseWeights, Tensor, SparseWeights]:
    """Return sparse W_in and W_out and dense b_in of all hidden units."""
    shifts = [
        torch.as_tensor(_numbers(family.shift, family.axes, family, dtype), dtype=torch.float64)
        .expand(tuple(family.axes.values()))
        .reshape(-1)
        for family in families
    ]
    reads = _sparse([(family, family.reads, 1) for family in families], layout, dtype)
    writes = _sparse([(family, family.writes, 1) for family in families], layout, dtype)
    return reads, torch.cat(shifts).to(dtype), writes


def _sparse(
    projections: Sequence[tuple[Heads | Units, tuple[Wire, ...], int]],
    layout: Layout,
    dtype: torch.dtype,
) -> SparseWeights:
    """Return the entries of the wires of each family, whose heads have `width` features."""
    entries: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, columns, values of each wire
    first_row = 0
    for family, wires, width in projections:
        for wire in wires:
            extents, (_, coordinate, feature), steps = span(wire, family.axes, layout)
            shape = tuple(extents.values())
            row = torch.full(shape, first_row + feature % width, dtype=torch.int)
            column = torch.full(shape, coordinate, dtype=torch.int)
            for axis, (head, along, further) in enumerate(steps.values()):
                places = torch.arange(shape[axis], dtype=torch.int)
                places = places.reshape([-1 if k == axis else 1 for k in range(len(shape))])
                row += places * (head * width + further)
                column += places * along
            numbers = _numbers(wire.factor, extents, family, dtype)
            value = torch.as_tensor(numbers, dtype=torch.float64).expand(shape)
            is_nonzero = value != 0.0
            if is_nonzero.all():  # most wires: no mask needed
                entries.append((row.flatten(), column.flatten(), value.flatten()))
            else:
                entries.append((row[is_nonzero], column[is_nonzero], value[is_nonzero]))
        first_row += family.size * width
    # numpy's stable sort exploits that the rows of each wire are ascending.
    rows, columns, values = map(torch.cat, zip(*entries, strict=True))
    order = torch.from_numpy(np.argsort(rows.numpy(), kind="stable"))
    sizes = [(family.size, width) for family, _, width in projections]
    values = values[order].to(dtype)
    return SparseWeights(rows[order], columns[order], values, sizes, layout.width)


def _write(weights: Tensor, wire: Wire, family: Heads | Units, layout: Layout) -> None:
    """Write a wire into weights (head, model, feature), which must be 0 there."""
    extents, (_, coordinate, feature), steps = span(wire, family.axes, layout)
    to_head, to_coordinate, to_feature = weights.stride()
    strides = [
        head * to_head + along * to_coordinate + further * to_feature
        for head, along, further in steps.values()
    ]
    feature %= weights.shape[-1]  # -1 means the last feature
    origin = weights.storage_offset() + coordinate * to_coordinate + feature * to_feature
    view = weights.as_strided(tuple(extents.values()), strides, origin)
    view[...] = _numbers(wire.factor, extents, family, weights.dtype)


def _numbers(
    factor: Factor, extents: dict[str, int], family: Heads | Units, dtype: torch.dtype
) -> Tensor | float:
    """Return a factor in float64: a number, or a tensor that broadcasts over the axes."""
    axes = list(extents)
    product: float | Tensor = 1.0
    for part in factors_in(factor):
        if isinstance(part, AxisFactor):
            numbers = torch.tensor(part.numbers, dtype=torch.float64)
            numbers = numbers[tuple(slice(extents[axis]) for axis in part.axes)]
            order = sorted(range(len(part.axes)), key=lambda n: axes.index(part.axes[n]))
            shape = [extents[axis] if axis in part.axes else 1 for axis in axes]
            product = product * numbers.permute(order).reshape(shape)
        else:
            product = product * part
    if dtype == torch.float64:
        return product
    # A finite number that becomes infinite in `dtype` is an error; deliberate infinities are not.
    expanded = torch.as_tensor(product, dtype=torch.float64).expand(tuple(extents.values()))
    overflows = expanded.isfinite() & (expanded.abs() > torch.finfo(dtype).max)
    if overflows.any():
        place = overflows.nonzero()[0].tolist()
        places, head = dict(zip(axes, place, strict=True)), 0
        for axis, size in family.axes.items():
            head = head * size + places[axis]
        name, number = f"weight of {family.label_of(head)!r}", float(expanded[tuple(place)])
        raise out_of_range(name, number, dtype)
    return product


def out_of_range(name: str, number: float, dtype: torch.dtype) -> OverflowedRunError:
    """Return the error for a number of a program that `dtype` cannot represent."""
    return OverflowedRunError(
        f"The program's {name} is {number:g}, outside the range of {dtype_name(dtype)}. Run in "
        "float64, or change the problem."
    )


def _grid_tokens(heads: Sequence[Heads], width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the sequence maps, the position codes and the first querying column of grid heads.

    Position codes are offsets of the scores, in the last feature. All heads have as many tokens as
    the largest grid; offsets of -MASKED hide the tokens that a smaller grid does not use.
    """
    grids = [
        (grid, number * grid.own_column)
        for family in heads
        if (grid := family.grid) is not None
        for number in range(family.size)
    ]
    n_tokens = max(len(grid.values) for grid, _ in grids)
    n_columns = 1 + max(column for _, column in grids)
    key_map, value_map, label_map = (
        torch.zeros(len(grids), n_tokens, n_columns, dtype=dtype) for _ in range(3)
    )
    positions = torch.zeros(len(grids), n_tokens, width, dtype=dtype)
    positions[..., -1] = -MASKED
    for head, (grid, column) in enumerate(grids):
        rows = (grid.points, grid.label_points or grid.points, grid.values, grid.offsets)
        points, label_points, values, offsets = torch.tensor(rows, dtype=torch.float64).to(dtype)
        used = slice(len(values))
        key_map[head, used, column], value_map[head, used, column] = points, values
        label_map[head, used, column], positions[head, used, -1] = label_points, offsets
    (first,) = {grid.first for grid, _ in grids}
    tokens = {"key_map": key_map, "value_map": value_map, "positions": positions, "first": first}
    if any(grid.label_points for grid, _ in grids):
        tokens["label_map"] = label_map
    return tokens


def _mirror(heads: Sequence[Heads], layout: Layout, dtype: torch.dtype) -> Tensor:
    """Return the diagonal of the reflection: -1 in the mirrored slots, 1 elsewhere."""
    mirror = torch.ones(layout.width, dtype=dtype)
    for slot in {slot for family in heads for slot in family.mirrored}:
        place = layout.range_of(slot)
        mirror[place.start : place.stop] = -1.0
    return mirror


def _chain_tokens(layer: Layer, program: ChainProgram, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the sequence map (token, 1) and position codes (token, model) of a chain's layer."""
    scales, codes = program.grid_tokens(layer)
    positions = torch.zeros(len(scales), program.layout.width, dtype=torch.float64)
    for slot, numbers in codes.items():
        column = torch.tensor(numbers, dtype=torch.float64)
        positions[:, program.layout.range_of(slot).start] = column
    sequence_map = torch.tensor(scales, dtype=torch.float64).unsqueeze(-1)
    return {"sequence_map": sequence_map.to(dtype), "positions": positions.to(dtype)}
