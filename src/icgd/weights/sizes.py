"""The sizes of layers, counted from their heads and hidden units without building them."""

from __future__ import annotations

from dataclasses import dataclass

from icgd.program.chain import ChainProgram
from icgd.program.instructions import LayerKind
from icgd.program.layout import Layout
from icgd.program.program import AbstractProgram, Layer
from icgd.program.wires import Heads, Units, nonzeros, span


@dataclass(frozen=True)
class LayerSize:
    """The size of one layer of the transformer; a layer of grid attention has `n_grid` tokens."""

    title: str
    kind: LayerKind
    d_model: int
    units: int
    width: int
    nonzeros: int
    n_grid: int = 0

    @property
    def n_heads(self) -> int:
        return 0 if self.kind is LayerKind.MLP else self.units

    @property
    def parameters(self) -> int:
        if self.kind is LayerKind.MLP:
            return self.units * (2 * self.d_model + 1)
        if self.kind is LayerKind.GRID:
            maps = self.units * self.n_grid * (2 + self.width)  # each head has its own
            return 4 * self.units * self.d_model * self.width + maps
        grid = self.n_grid * (1 + self.d_model)  # its sequence map and its position codes
        return 4 * self.units * self.d_model * self.width + grid

    def flops(self, n_tokens: int) -> int:
        """Multiplications and additions on `n_tokens` tokens; a chain's layers have one column."""
        if self.kind is LayerKind.GRID:
            projected = 4 * self.units * self.d_model * self.width * (n_tokens + 1)
            maps = 4 * self.units * self.n_grid * self.width
            return projected + maps + 4 * self.units * n_tokens * self.n_grid * self.width
        if self.n_grid:
            features = 2 * self.units * self.d_model * self.width
            scores = 4 * self.units * self.n_grid * self.width
            return 2 * self.n_grid * self.d_model + (2 + 2 * self.n_grid) * features + scores
        projections = 2 * n_tokens * self.parameters
        if self.kind in (LayerKind.ATTENTION, LayerKind.SOFTMAX, LayerKind.KERNEL):
            return projections + 4 * self.units * n_tokens**2 * self.width
        if self.kind is LayerKind.PRODUCT:
            return projections + 3 * self.units * n_tokens * self.width
        return projections


def layer_size(layer: Layer, program: AbstractProgram) -> LayerSize:
    """The size of a layer, whose heads share the width of the widest."""
    families, layout = layer.wires(program), program.layout
    n_tokens, n_codes = _tokens(layer, families, program)
    widths = [family.width(layout) if isinstance(family, Heads) else 1 for family in families]
    return LayerSize(
        title=layer.title,
        kind=layer.kind,
        d_model=layout.width,
        units=sum(family.size for family in families),
        width=max(widths),
        nonzeros=sum(_nonzeros(family, layout) for family in families) + n_codes,
        n_grid=n_tokens,
    )


def _nonzeros(family: Heads | Units, layout: Layout) -> int:
    """How many weights of a family are not 0."""
    if isinstance(family, Heads):
        wires, shifts = [wire for part in family.projections for wire in part], 0
    else:
        wires, shifts = [*family.reads, *family.writes], nonzeros(family.shift, family.axes)
    spans = (nonzeros(wire.factor, span(wire, family.axes, layout).extents) for wire in wires)
    return sum(spans, shifts)


def _tokens(
    layer: Layer, families: tuple[Heads | Units, ...], program: AbstractProgram
) -> tuple[int, int]:
    """How many tokens a layer makes of its own, and how many of their numbers are not 0.

    Heads of grid attention have as many tokens as the largest grid, and an offset closes those that
    they do not need.
    """
    if layer.kind is LayerKind.GRID:
        grids = [family.grid for family in families if isinstance(family, Heads) and family.grid]
        n_tokens = max(len(grid.values) for grid in grids)
        tables = [(*grid.points, *grid.offsets, *grid.values) for grid in grids]
        closed = sum(n_tokens - len(grid.values) for grid in grids)
        return n_tokens, closed + sum(len(table) - table.count(0.0) for table in tables)
    if isinstance(program, ChainProgram) and layer.kind is not LayerKind.MLP:
        scales, codes = program.grid_tokens(layer)
        tables = [scales, *codes.values()]
        return len(scales), sum(len(table) - table.count(0.0) for table in tables)
    return 0, 0
