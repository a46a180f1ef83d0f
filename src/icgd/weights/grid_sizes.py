"""How large a layer of grid attention becomes: counted, never built."""

from __future__ import annotations

from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.grid_heads import GridHead, layer_heads
from icgd.weights.sizes import LayerSize


def grid_layer_size(layer: Layer, program: StackProgram) -> LayerSize:
    """All heads have as many features and tokens as the largest."""
    heads = layer_heads(layer, program)
    n_grid = max(head.n_tokens for head in heads)
    return LayerSize(
        title=layer.title,
        kind=layer.kind,
        d_model=program.layout.width,
        units=len(heads),
        width=max(max(head.n_features, head.n_values) for head in heads),
        nonzeros=sum(_nonzeros(head, n_grid) for head in heads),
        n_grid=n_grid,
    )


def _nonzeros(head: GridHead, n_grid: int) -> int:
    """Of the projections, of both maps, and of the offsets, which close the tokens left over."""
    projections = 2 * len(head.query) + 1 + 2 * head.n_values
    left_over = n_grid - head.n_tokens
    numbers = (*head.grid.points, *head.grid.values, *head.grid.offsets)
    return projections + sum(number != 0 for number in numbers) + left_over
