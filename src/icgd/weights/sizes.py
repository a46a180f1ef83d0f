"""The sizes of layers, counted from their heads and hidden units without building them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from icgd.errors import ProgramError
from icgd.facts import counted, number, shown
from icgd.program.chain import ChainProgram
from icgd.program.instructions import LayerKind
from icgd.program.layout import Layout, Role
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
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


# -----------------------------------------------------------------------------
# The size of a transformer, computed from its program without building a weight.


WEIGHTS = "weights_"
"""How slots of a network's weights are called; what an optimiser remembers is called otherwise."""


@shown
@dataclass(frozen=True)
class Summary:
    """The sizes of one compiled transformer; a repeated block's weights count once.

    `flops` counts one forward pass of the dense transformer on `n_tokens` tokens and its registers,
    with all steps. `direct_flops` counts the same training done directly: for each example and step
    three products with every weight, two in the first layer. Where the paper takes more layers for
    a step, `paper_layers` says how many, each of attention and an MLP. If nobody named the
    construction, `chosen_because` says why it was chosen.
    """

    construction: str
    n_steps: int
    layers_per_step: int
    n_layers: int
    d_model: int
    d_head: int
    d_mlp: int
    max_heads: int
    n_heads: int
    parameters: int
    nonzeros: int
    n_registers: int
    n_tokens: int
    flops: int
    direct_flops: int
    layers: tuple[LayerSize, ...]
    paper_layers: int | None = None
    chosen_because: str | None = None

    def facts(self) -> dict[str, str]:
        return {
            "construction": self.construction,
            "layers": f"{self.n_layers:,}, {self.layers_per_step:,} a step",
            "d_model": f"{self.d_model:,}",
            "heads": f"{self.max_heads:,} in the widest layer, of width {self.d_head:,}",
            "weights": f"{self.parameters:,}",
            "flops": f"{number(self.flops)} on {counted(self.n_tokens, 'token')}",
        }

    @property
    def layers_of_a_step(self) -> tuple[LayerSize, ...]:
        return self.layers[: self.layers_per_step]


@singledispatch
def summarise(program: AbstractProgram, n_tokens: int) -> Summary:
    """Count everything without building a weight, so that any size is counted quickly."""
    raise ProgramError(f"{type(program).__name__} has no rule in weights/sizes.py")


@summarise.register
def _summarise_stack(program: StackProgram, n_tokens: int) -> Summary:
    layers = tuple(layer_size(layer, program) for layer in program.layers)
    flops = [layer.flops(program.n_registers + n_tokens) for layer in layers]
    n_block = len(program.block)
    others = [layer_size(layer, program) for end in program.schedule[1:] for layer in end]
    return _summary(
        program,
        layers,
        others,
        layers_per_step=program.layers_per_step,
        n_layers=program.n_layers,
        n_registers=program.n_registers or max(layer.n_grid for layer in layers),
        n_tokens=n_tokens,
        flops=sum(flops[:n_block]) * program.n_repeats + sum(flops[n_block:]),
        direct_flops=_direct_flops(program, n_tokens) * program.n_steps,
        paper_layers=program.paper_layers,
    )


@summarise.register
def _summarise_chain(program: ChainProgram, n_tokens: int) -> Summary:
    """The same layers write all blocks, each from one column and its grid."""
    layers = tuple(layer_size(layer, program) for layer in program.layers)
    n_blocks = program.n_blocks + len(program.shapes)
    weights = [rows * columns for rows, columns in program.shapes]
    direct = 2 * program.batch_size * (3 * sum(weights) - weights[0])
    return _summary(
        program,
        layers,
        layers_per_step=len(layers) * program.mask.blocks_per_round,
        n_layers=len(layers) * n_blocks,
        n_registers=sum(layer.n_grid for layer in layers),
        n_tokens=n_tokens,
        flops=n_blocks * sum(layer.flops(1) for layer in layers),
        direct_flops=direct * program.n_steps,
    )


def _summary(
    program: AbstractProgram,
    layers: tuple[LayerSize, ...],
    others: Sequence[LayerSize] = (),
    **counts: Any,
) -> Summary:
    """The summary of a program: the given counts, and those that all programs share.

    `others` are layers of later steps that have weights of their own.
    """
    stored = (*layers, *others)
    return Summary(
        construction=program.construction,
        n_steps=program.n_steps,
        d_model=program.layout.width,
        d_head=max(layer.width for layer in layers if layer.n_heads),
        d_mlp=max((layer.units for layer in layers if not layer.n_heads), default=0),
        max_heads=max(layer.n_heads for layer in layers),
        n_heads=sum(layer.n_heads for layer in stored),
        parameters=sum(layer.parameters for layer in stored),
        nonzeros=sum(layer.nonzeros for layer in stored),
        layers=layers,
        **counts,
    )


def _direct_flops(program: StackProgram, n_tokens: int) -> int:
    """The flops of a step done directly: forward, backward and gradient take 2 a weight and token.

    A functional step multiplies the kernel of every token with every example by what is left to
    learn. A step on a linear model takes two products with its coefficients.
    """
    if program.trains_function:
        (residual,) = program.layout.having(Role.RESIDUAL)
        return 2 * n_tokens**2 * residual.width
    trained = program.layout.having(Role.PARAMETER)
    weights = [slot.width for slot in trained if slot.name.startswith(WEIGHTS)]
    weights = weights or [slot.width for slot in trained]
    if program.descent is not None:
        return 2 * n_tokens * 2 * sum(weights)
    return 2 * n_tokens * (3 * sum(weights) - weights[0])


def dense_bytes(summary: Summary, bytes_per_number: int) -> int:
    """The memory that the dense weights take."""
    return bytes_per_number * summary.parameters
