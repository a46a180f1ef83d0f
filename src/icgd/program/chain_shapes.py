"""The shapes that an instruction of a chain asks of its slots: a rule for each instruction."""

from __future__ import annotations

from functools import singledispatch

from icgd.errors import ProgramError
from icgd.program import chain_instructions as chain
from icgd.program.instructions import Instruction
from icgd.program.layout import Layout
from icgd.program.uses import Use, names


@singledispatch
def chain_shape_problem(instruction: Instruction, layout: Layout) -> str | None:
    """What is wrong with the shapes of an instruction's slots, or None."""
    raise ProgramError(f"{type(instruction).__name__} has no shape rule in {__file__}.")


@chain_shape_problem.register
def _shape_of_gated(instruction: chain.Gated, layout: Layout) -> str | None:
    shape = layout.slot(instruction.write).shape
    alike = (shape, (*shape[:-1], 1), (1,))  # a number for all entries, for each unit, for all
    for name in names(instruction, Use.READ):
        if (found := layout.slot(name).shape) not in alike:
            return f"{name} has shape {found}, {instruction.write} has {shape}"
    for name in names(instruction, Use.FLAG):
        if (found := layout.slot(name).shape) not in alike[1:]:
            return f"{name} has shape {found}; a flag is one number, or one for each unit"
    return None


@chain_shape_problem.register
def _shape_of_select_where(instruction: chain.SelectWhere, layout: Layout) -> str | None:
    n_sums, n_bits = len(instruction.sources), len(instruction.ones)
    if n_bits != len(instruction.zeros) or not 0 < n_sums <= 2**n_bits:
        return f"selects one of {n_sums} sums by {n_bits} and {len(instruction.zeros)} flags"
    problems = (chain_shape_problem(instruction.sum_of(rule), layout) for rule in range(n_sums))
    return next((problem for problem in problems if problem), None)


@chain_shape_problem.register
def _shape_of_multiply_matrices(instruction: chain.MultiplyMatrices, layout: Layout) -> str | None:
    left, right = layout.slot(instruction.left).shape, layout.slot(instruction.right).shape
    left = left[::-1] if instruction.left_transposed else left
    right = right[::-1] if instruction.right_transposed else right
    return _product_problem(left, right, instruction.write, layout)


def _product_problem(
    left: tuple[int, ...], right: tuple[int, ...], write: str, layout: Layout
) -> str | None:
    shape = layout.slot(write).shape
    if left[1:] == right[:1] and shape == (*left[:1], *right[1:]):
        return None
    return f"multiplies shapes {left} and {right} into {write} of shape {shape}"


@chain_shape_problem.register
def _shape_of_look_up_product(instruction: chain.LookUpProduct, layout: Layout) -> str | None:
    left, right = layout.slot(instruction.left).shape, layout.slot(instruction.right).shape
    written = (instruction.write, instruction.product)
    problems = (_product_problem(left, right, write, layout) for write in written)
    return next((problem for problem in problems if problem), None)


@chain_shape_problem.register
def _shape_of_share_columns(instruction: chain.ShareColumns, layout: Layout) -> str | None:
    layout.slot(chain.NO_CLASS)
    scores, write = (layout.slot(name).shape for name in (instruction.scores, instruction.write))
    if not 0 < len(instruction.classes) <= scores[0]:
        return f"shares {len(instruction.classes)} classes among {scores[0]} scores"
    return None if scores == write else f"shares scores of {scores} into {write}"


@chain_shape_problem.register
def _shape_of_multiply_entries(instruction: chain.MultiplyEntries, layout: Layout) -> str | None:
    shapes = {layout.slot(name).shape for name in (*instruction.reads(), instruction.write)}
    return None if len(shapes) == 1 else f"multiplies entries of {sorted(shapes)}"
