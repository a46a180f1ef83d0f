"""The heads and hidden units of classes: a rule for each instruction of `class_instructions.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.program.class_instructions import MapDifferences, MapRowSums, ShareClasses
from icgd.program.functions import ReluSum
from icgd.program.instructions import ONE
from icgd.program.registers import IS_MEMORY, MASKED
from icgd.program.stack import StackProgram
from icgd.weights.heads import Heads, Units, fill, joined, put, relu_terms


@fill.register
def _fill_share_classes(instruction: ShareClasses, program: StackProgram, weights: Heads) -> None:
    """Query [scores; 1], key [class; 0 at a class, -MASKED elsewhere], value the class.

    The memory reads itself, and has the value 0.
    """
    layout, n_classes = program.layout, len(instruction.classes)
    feature = torch.arange(n_classes)
    classes = joined(layout, *instruction.classes)
    weights.query[0, joined(layout, instruction.scores), feature] = 1.0
    weights.key[0, classes, feature] = 1.0
    put(weights.query, layout, n_classes, {ONE: 1.0})
    put(weights.key, layout, n_classes, {ONE: -MASKED})
    weights.key[0, classes, n_classes] = MASKED
    put(weights.query, layout, n_classes + 1, {IS_MEMORY: 3 * MASKED})
    put(weights.key, layout, n_classes + 1, {IS_MEMORY: 1.0})
    weights.value[0, classes, feature] = 1.0
    weights.output[0, feature, joined(layout, instruction.write)] = 1.0


@fill.register
def _fill_map_differences(
    instruction: MapDifferences, program: StackProgram, weights: Units
) -> None:
    """relu(scale * (z_j - z_k) + shift) for every pair and term."""
    source = joined(program.layout, instruction.source)
    n_classes = len(source)
    row, column = torch.arange(n_classes**2) // n_classes, torch.arange(n_classes**2) % n_classes
    matrix = torch.zeros(n_classes**2, weights.reads.shape[1], dtype=weights.reads.dtype)
    pair = torch.arange(n_classes**2)
    matrix[pair, source[column]] += 1.0
    matrix[pair, source[row]] -= 1.0
    function = program.relu_sum(instruction.function)
    _fill_mapped(matrix, function, joined(program.layout, instruction.write), weights)


@fill.register
def _fill_map_row_sums(instruction: MapRowSums, program: StackProgram, weights: Units) -> None:
    """relu(scale * sum_j source[k, j] + shift) for every class and term."""
    layout = program.layout
    write = joined(layout, instruction.write)
    source = joined(layout, instruction.source).view(len(write), -1)
    matrix = torch.zeros(len(write), weights.reads.shape[1], dtype=weights.reads.dtype)
    matrix[torch.arange(len(write))[:, None], source] = 1.0
    _fill_mapped(matrix, program.relu_sum(instruction.function), write, weights)


def _fill_mapped(matrix: Tensor, function: ReluSum, write: Tensor, weights: Units) -> None:
    """The function of each row of `matrix @ stream`, into its coordinate of the stream."""
    scale, shift, coefficient = relu_terms(function, weights.reads.dtype)
    n_rows, n_terms = len(matrix), len(scale)
    weights.reads[:] = matrix.repeat_interleave(n_terms, 0) * scale.repeat(n_rows)[:, None]
    weights.bias[:] = shift.repeat(n_rows)
    unit = torch.arange(n_rows * n_terms)
    weights.writes[unit, write.repeat_interleave(n_terms)] = coefficient.repeat(n_rows)
