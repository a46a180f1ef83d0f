"""The sizes of the layers of a chain program, counted without building them."""

from __future__ import annotations

from icgd.program.chain import ChainProgram
from icgd.program.chain_instructions import LookUpProduct, MultiplyMatrices, ShareColumns
from icgd.program.instructions import Instruction, LayerKind
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.weights.chain_lowering import classes_of, functions_of, relus_of
from icgd.weights.sizes import LayerSize


def chain_layer_size(layer: Layer, program: ChainProgram) -> LayerSize:
    """The size of one of the block's layers."""
    if layer.kind is LayerKind.MLP:
        return _mlp_size(layer, program.layout)
    return _attention_size(layer, program)


def _mlp_size(layer: Layer, layout: Layout) -> LayerSize:
    units = nonzeros = 0
    for instruction in layer.instructions:
        width = layout.slot(instruction.writes()[0]).width
        for relu in relus_of(instruction):
            units += width
            factors = (*relu.slots.coefficients, relu.shift)
            reads = sum(factor != 0.0 for factor in factors) + len(relu.closed_by)
            nonzeros += width * (reads + 1)
    return LayerSize(layer.title, layer.kind, layout.width, units, 1, nonzeros)


def _attention_size(layer: Layer, program: ChainProgram) -> LayerSize:
    """Query and key hold the terms of an entry and the offset, value and output one number.

    Heads over classes read and write a number for each class.
    """
    layout, n_classes = program.layout, len(classes_of(layer))
    heads = nonzeros = widest = 0
    for part in layer.instructions:
        n_heads, n_terms = layout.slot(part.writes()[0]).width, _n_terms(part, layout)
        n_values = 1
        if isinstance(part, ShareColumns):
            n_heads, n_terms, n_values = layout.slot(part.scores).shape[1], n_classes, n_classes
        heads += n_heads
        nonzeros += n_heads * (2 * (n_terms + 1) + 2 * n_values)
        widest = max(widest, n_terms + 1)
    n_tokens = len(program.functions[0].values)
    nonzeros += 2 * (n_tokens - 1)  # scale and offset of each token but the middle one
    for function in functions_of(layer, program):
        nonzeros += sum(value != 0.0 for value in function.values)
    if n_classes:
        nonzeros += n_tokens + 2 * n_classes  # the masks of both kinds, and the class
    n_tokens += n_classes
    return LayerSize(layer.title, layer.kind, layout.width, heads, widest, nonzeros, n_tokens)


def _n_terms(instruction: Instruction, layout: Layout) -> int:
    """How many products a head of the instruction adds up."""
    if not isinstance(instruction, MultiplyMatrices | LookUpProduct):
        return 1
    shape = layout.slot(instruction.left).shape
    is_transposed = isinstance(instruction, MultiplyMatrices) and instruction.left_transposed
    return shape[0] if is_transposed else shape[1]
