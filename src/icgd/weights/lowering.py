r"""Lowering: each instruction spelt out as numbers in W_Q, W_K, W_V, W_O or W_in, b_in, W_out.

The instructions of a layer get consecutive heads (or hidden units). The rules that fill them are in
the files that `rules.py` lists.
"""

from __future__ import annotations

import torch
from torch import nn

from icgd.layers.activation_attention import ActivationAttention
from icgd.layers.kernel_attention import Itself, KernelAttention, Pattern
from icgd.layers.mlp import MLPLayer
from icgd.layers.product import ProductLayer
from icgd.layers.softmax_attention import SoftmaxAttention
from icgd.layers.transformer import Transformer
from icgd.problems.kernels import kernel_named
from icgd.problems.unit_activations import unit_activation_named
from icgd.program.instructions import IS_EXAMPLE, LayerKind
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.grid_heads import lower_grid_attention
from icgd.weights.heads import Heads, Units, coordinate_of
from icgd.weights.rules import fill, instruction_size
from icgd.weights.sizes import layer_size


def lower_program(program: StackProgram, dtype: torch.dtype = torch.float64) -> Transformer:
    """The program as a transformer with ordinary weights; a schedule's first end is the block's."""
    block = [lower_layer(layer, program, dtype) for layer in program.block]
    first = [block[len(program.common) :]] if program.schedule else []
    others = [[lower_layer(part, program, dtype) for part in end] for end in program.schedule[1:]]
    return Transformer(
        block=block,
        n_repeats=program.n_repeats,
        final=[lower_layer(layer, program, dtype) for layer in program.prediction],
        ends=[*first, *others],
    )


def lower_layer(layer: Layer, program: StackProgram, dtype: torch.dtype) -> nn.Module:
    """One layer of the program as one layer of the transformer."""
    if layer.kind is LayerKind.GRID:
        return lower_grid_attention(layer, program, dtype)
    size, activation = layer_size(layer, program), unit_activation_named(program.activation).value
    if layer.kind is LayerKind.MLP:
        units = Units.zeros(size.units, size.d_model, dtype)
        _fill_in_turn(layer, program, units)
        return MLPLayer(units.reads.T.contiguous(), units.bias, units.writes, activation)
    heads = Heads.zeros(size.units, size.d_model, size.width, dtype)
    _fill_in_turn(layer, program, heads)
    if layer.kind is LayerKind.KERNEL:
        return _kernel_attention(layer, program.layout, heads)
    if layer.kind is LayerKind.ATTENTION:
        return ActivationAttention(*heads, activation)
    return ProductLayer(*heads) if layer.kind is LayerKind.PRODUCT else SoftmaxAttention(*heads)


def _kernel_attention(layer: Layer, layout: Layout, heads: Heads) -> KernelAttention:
    """Attention whose heads have kernels; those of noise and momentum have none, and come last."""
    patterns: list[Pattern] = []
    for instruction in layer.instructions:
        if isinstance(instruction, DescendFunction):
            patterns += [kernel_named(term.kernel, term.shape).matrix for term in instruction.terms]
            patterns += [Itself.EXAMPLES] * (instruction.noise > 0)
            patterns += [Itself.TOKENS] * (instruction.velocity is not None)
    return KernelAttention(*heads, patterns, coordinate_of(layout, IS_EXAMPLE))


def _fill_in_turn(layer: Layer, program: StackProgram, weights: Heads | Units) -> None:
    start = 0
    for instruction in layer.instructions:
        length = instruction_size(instruction, program).units
        fill(instruction, program, weights.part(start, length))
        start += length
