"""The statements of cot, in the order of the paper."""

from __future__ import annotations

from icgd_papers.theorems.cot import (
    cost,
    descent,
    gates,
    gradients,
    heads,
    linear_models,
    mask,
    passes,
    rounds,
    training,
)
from icgd_papers.theorems.statement import Statement

STATEMENTS: tuple[Statement, ...] = (
    linear_models.PROMPT_ROWS,
    heads.ONE_STEP,
    linear_models.GENERALISED,
    linear_models.RIDGE,
    linear_models.LASSO,
    gradients.BLOCKS,
    mask.MASK,
    cost.SAVING,
    passes.FORWARD_PASS,
    passes.BACKWARD_PASS,
    passes.FIRST_BLOCK,
    passes.LAST_BLOCK,
    passes.ONE_BLOCK,
    mask.PROMPT_ORDER,
    rounds.ROUNDS,
    descent.RATES,
    descent.PILING_UP,
    descent.PROXIMAL_RATES,
    descent.PROXIMAL_PILING_UP,
    heads.TRUNCATED_LINE,
    linear_models.FROM_ZERO,
    linear_models.SMOOTH_PART,
    heads.OUTER_PRODUCTS,
    gradients.SIGN,
    gradients.LAST_FACTOR,
    gates.GATE,
    gates.TYPES,
    training.TRAINED,
)
"""Numbered statements, and definitions and parts of proofs that are misprinted."""
