"""The sizes of layers and transformers, counted from wires without building a weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icgd.program.chain import ChainProgram
from icgd.program.instructions import LayerKind
from icgd.program.layout import Role
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.program.wires import Heads, nonzeros, span
from icgd.reprs import counted, number, with_repr

EXP = 20
"""The flops that an exponential or a hidden unit counts as."""

WEIGHTS = "weights_"
"""The prefix of slots with a network's weights; slots of optimiser state have other names."""


@dataclass(frozen=True)
class LayerSize:
    """The size of one layer of the transformer.

    Grid attention has `n_grid` tokens made from `n_columns` columns. If the layer `is_cached`, only
    the newest token queries, and keys and values of all others are cached.
    """

    title: str
    kind: LayerKind
    d_model: int
    units: int
    width: int
    nonzeros: int
    features: int
    """Query and value features of all heads, each with its own width instead of the common one."""
    n_grid: int = 0
    n_columns: int = 1
    n_maps: int = 2
    is_cached: bool = False

    @property
    def n_heads(self) -> int:
        return 0 if self.kind is LayerKind.MLP else self.units

    @property
    def parameters(self) -> int:
        if self.kind is LayerKind.MLP:
            return self.units * (2 * self.d_model + 1)
        heads = 4 * self.units * self.d_model * self.width
        if self.kind is LayerKind.GRID:  # each head has maps of its own
            return heads + self.units * self.n_grid * (self.n_maps * self.n_columns + self.width)
        if self.kind is LayerKind.MIRROR:
            return heads + self.d_model  # the diagonal that makes mirror images
        return heads + self.n_grid * (1 + self.d_model)  # its sequence map and position codes

    def flops(self, n_tokens: int) -> int:
        """Return the multiplications and additions on `n_tokens` tokens; a chain has one column."""
        if self.kind is LayerKind.GRID:
            projected = 4 * self.units * self.d_model * self.width * (n_tokens + self.n_columns)
            maps = 4 * self.units * self.n_grid * self.width * self.n_columns
            return projected + maps + 4 * self.units * n_tokens * self.n_grid * self.width
        if self.n_grid:
            features = 2 * self.units * self.d_model * self.width
            scores = 4 * self.units * self.n_grid * self.width
            return 2 * self.n_grid * self.d_model + (2 + 2 * self.n_grid) * features + scores
        if self.is_cached:
            return 2 * self.parameters + 4 * self.units * n_tokens * self.width
        projections = 2 * n_tokens * self.parameters
        if self.kind is LayerKind.MIRROR:  # keys, scores and weights of mirror images too
            projections += 2 * n_tokens * self.units * self.d_model * self.width
            return projections + 6 * self.units * n_tokens**2 * self.width
        if self.kind in (LayerKind.ATTENTION, LayerKind.SOFTMAX, LayerKind.KERNEL):
            return projections + 4 * self.units * n_tokens**2 * self.width
        if self.kind is LayerKind.PRODUCT:
            return projections + 3 * self.units * n_tokens * self.width
        return projections

    def sparse_flops(self, n_tokens: int) -> int:
        """Return the flops without products with zero weights.

        Unlike `flops` it also counts the evaluation of scores and hidden units (see `EXP`).
        """
        projections = 2 * self.nonzeros * (1 if self.is_cached else n_tokens)
        if self.is_cached:
            return projections + n_tokens * (2 * self.features + EXP * self.units)
        if self.kind is LayerKind.MLP:
            return projections + EXP * n_tokens * self.units
        if self.kind is LayerKind.PRODUCT:
            return projections + 3 * n_tokens * self.features
        if self.kind is LayerKind.GRID:  # maps along the sequence are ordinary matrices
            projections += 4 * self.units * self.n_grid * self.width * self.n_columns
        n_keys = self.n_grid or (1 + (self.kind is LayerKind.MIRROR)) * n_tokens
        per_score = 1 if self.kind is LayerKind.ATTENTION else EXP
        return projections + n_tokens * n_keys * (2 * self.features + per_score * self.units)


def layer_size(layer: Layer, program: AbstractProgram) -> LayerSize:
    """Return the size of a layer; in the dense one all heads have the width of the widest."""
    families, layout = layer.wires(program), program.layout
    width, n_features, n_grid, n_columns, n_maps, n_nonzeros = 1, 0, 0, 1, 2, 0
    tables: list[tuple[float, ...]] = []  # the constants that make the layer's own tokens
    for family in families:
        if isinstance(family, Heads):
            wires = [wire for projection in family.projections for wire in projection]
            widths = family.widths(layout)
            width, n_features = max(width, *widths), n_features + family.size * sum(widths)
        else:
            wires = [*family.reads, *family.writes]
            n_nonzeros += nonzeros(family.shift, family.axes)
        for wire in wires:
            n_nonzeros += nonzeros(wire.factor, span(wire, family.axes, layout).extents)
    if layer.kind is LayerKind.GRID:
        heads = [family for family in families if isinstance(family, Heads)]
        grids = [grid for family in heads if (grid := family.grid) for _ in range(family.size)]
        n_grid = max(len(grid.values) for grid in grids)
        n_columns = max(
            family.size if family.grid and family.grid.own_column else 1 for family in heads
        )
        tables = [grid.numbers for grid in grids]
        if any(grid.label_points for grid in grids):
            n_maps = 3
            tables += [grid.points for grid in grids if not grid.label_points]
        # All heads have as many tokens as the largest grid; offsets mask the others.
        n_nonzeros += sum(n_grid - len(grid.values) for grid in grids)
    elif layer.kind is LayerKind.MIRROR:
        tables = [(1.0,) * layout.width]  # signs
    elif isinstance(program, ChainProgram):
        scales, codes = program.grid_tokens(layer)
        n_grid, tables = len(scales), [scales, *codes.values()]
    return LayerSize(
        title=layer.title,
        kind=layer.kind,
        d_model=layout.width,
        units=sum(family.size for family in families),
        width=width,
        nonzeros=n_nonzeros + sum(len(table) - table.count(0.0) for table in tables),
        features=n_features,
        n_grid=n_grid,
        n_columns=n_columns,
        n_maps=n_maps,
        is_cached=isinstance(program, ChainProgram) and layer is program.layers[0],
    )


@with_repr
@dataclass(frozen=True)
class Summary:
    """The sizes of one compiled transformer; a repeated block's weights count once.

    `flops` counts a forward pass of the dense transformer, all steps on `n_tokens` tokens and the
    registers; `sparse_flops` one of the literal transformer, without products with zero weights.
    `direct_flops` counts the same training without a transformer: per example and step three
    products with every weight, two in the first layer. `paper_layers` is the number of layers per
    step in the paper, each of attention and an MLP, if that is larger. `chosen_because` is the
    reason for the construction, if it was not named.
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
    sparse_flops: int
    direct_flops: int
    layers: tuple[LayerSize, ...]
    layers_in_words: str
    paper_layers: int | None = None
    chosen_because: str | None = None

    def facts(self) -> dict[str, str]:
        return {
            "construction": self.construction,
            "layers": self.layers_in_words,
            "d_model": f"{self.d_model:,}",
            "heads": f"{self.max_heads:,} in the widest layer, of width {self.d_head:,}",
            "weights": f"{self.parameters:,}",
            "flops": f"{number(self.flops)} on {counted(self.n_tokens, 'token')}",
        }

    @property
    def layers_of_a_step(self) -> tuple[LayerSize, ...]:
        return self.layers[: self.layers_per_step]


def summarise(program: AbstractProgram, n_tokens: int) -> Summary:
    """Return the sizes of a program, counted from wires without building a weight."""
    layers = tuple(layer_size(layer, program) for layer in program.layers)
    stored, counts = list(layers), dict[str, Any]()
    if isinstance(program, StackProgram):
        # The ends of later steps have weights of their own.
        stored += [layer_size(layer, program) for end in program.schedule[1:] for layer in end]
        length, n_block = program.n_registers + n_tokens, len(program.block)

        def of_all_steps(flops: Callable[[LayerSize, int], int]) -> int:
            counts = [flops(layer, length) for layer in layers]
            return sum(counts[:n_block]) * program.n_repeats + sum(counts[n_block:])

        counts = {
            "layers_per_step": program.layers_per_step,
            "n_layers": program.n_layers,
            "n_registers": program.n_registers or max(layer.n_grid for layer in layers),
            "flops": of_all_steps(LayerSize.flops),
            "sparse_flops": of_all_steps(LayerSize.sparse_flops),
            "direct_flops": _direct_flops(program, n_tokens) * program.n_steps,
            "paper_layers": program.paper_layers,
        }
    elif isinstance(program, ChainProgram):
        # The same layers write all blocks, each from one column and its grid. The first layer
        # attends to all columns so far: those of the prompt, and one for each earlier block.
        mask, n_blocks = program.mask, program.n_uses
        n_prompt = 2 * program.n_steps + 1 + mask.depth
        n_read = n_blocks * n_prompt + n_blocks * (n_blocks - 1) // 2
        finder, *others = layers

        def of_chain(flops: Callable[[LayerSize, int], int]) -> int:
            per_block = flops(finder, 0) + sum(flops(layer, 1) for layer in others)
            return n_blocks * per_block + n_read * (flops(finder, 1) - flops(finder, 0))

        weights = [rows * columns for rows, columns in program.shapes]
        direct = 2 * program.batch_size * (3 * sum(weights) - weights[0])
        counts = {
            "layers_per_step": len(layers) * mask.blocks_per_round,
            "n_layers": len(layers) * n_blocks,
            "n_registers": sum(layer.n_grid for layer in layers),
            "flops": of_chain(LayerSize.flops),
            "sparse_flops": of_chain(LayerSize.sparse_flops),
            "direct_flops": direct * program.n_steps,
        }
    return Summary(
        construction=program.construction,
        n_steps=program.n_steps,
        n_tokens=n_tokens,
        d_model=program.layout.width,
        d_head=max(layer.width for layer in layers if layer.n_heads),
        d_mlp=max((layer.units for layer in layers if not layer.n_heads), default=0),
        max_heads=max(layer.n_heads for layer in layers),
        n_heads=sum(layer.n_heads for layer in stored),
        parameters=sum(layer.parameters for layer in stored),
        nonzeros=sum(layer.nonzeros for layer in stored),
        layers=layers,
        layers_in_words=program.layers_in_words,
        **counts,
    )


def _direct_flops(program: StackProgram, n_tokens: int) -> int:
    """Return the flops of a training step without a transformer.

    Forward pass, backward pass and gradient take 2 flops per weight and token each. A functional
    step multiplies the kernel matrix by the residuals. A step of a linear model takes two products
    with its coefficients.
    """
    if program.trains_function:
        (residual,) = program.layout.having(Role.RESIDUAL)
        return 2 * n_tokens**2 * residual.width
    trained = program.layout.having(Role.PARAMETER)
    if not trained:
        return 0  # a lookup of a function trains nothing
    weights = [slot.width for slot in trained if slot.name.startswith(WEIGHTS)]
    weights = weights or [slot.width for slot in trained]
    if program.descent is not None:
        return 2 * n_tokens * 2 * sum(weights)
    return 2 * n_tokens * (3 * sum(weights) - weights[0])


def dense_bytes(summary: Summary, bytes_per_number: int) -> int:
    """Return the memory of the dense weights."""
    return bytes_per_number * summary.parameters
