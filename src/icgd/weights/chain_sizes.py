"""How large the layers of a chain program become: counted, never built."""

from __future__ import annotations

from icgd.program.chain import ChainProgram
from icgd.program.chain_instructions import MultiplyMatrices
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import LayerKind
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.weights.chain_lowering import relus_of
from icgd.weights.sizes import LayerSize


def chain_layer_size(layer: Layer, program: ChainProgram) -> LayerSize:
    """The size of one of the block's layers."""
    if layer.kind is LayerKind.MLP:
        return _mlp_size(layer, program.layout)
    (grid,) = program.functions
    return _attention_size(layer, program.layout, grid)


def _mlp_size(layer: Layer, layout: Layout) -> LayerSize:
    units = nonzeros = 0
    for instruction in layer.instructions:
        width = layout.slot(instruction.writes()[0]).width
        for relu in relus_of(instruction):
            units += width
            reads = len(relu.slots.slots) + len(relu.closed_by) + (relu.shift != 0.0)
            nonzeros += width * (reads + 1)
    return LayerSize(layer.title, layer.kind, layout.width, units, 1, nonzeros)


def _attention_size(layer: Layer, layout: Layout, grid: LatticeFunction) -> LayerSize:
    """Query and key of a head hold the terms of an entry and the offset; value, output one each."""
    heads = nonzeros = widest = 0
    for product in layer.instructions:
        if isinstance(product, MultiplyMatrices):
            shape = layout.slot(product.left).shape
            n_terms = shape[0] if product.left_transposed else shape[1]
            n_heads = layout.slot(product.write).width
            heads += n_heads
            nonzeros += n_heads * (2 * (n_terms + 1) + 2)
            widest = max(widest, n_terms + 1)
    nonzeros += 3 * 2 * grid.half  # scale, offset and value of each token but the middle one
    n_tokens = len(grid.values)
    return LayerSize(layer.title, layer.kind, layout.width, heads, widest, nonzeros, n_tokens)
