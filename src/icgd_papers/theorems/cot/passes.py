r"""Theorems 4.1 and 4.2 and Propositions 4.1 to 4.3: one block takes every step of both passes.

icgd's block is shown blocks that hold the exact numbers of a random network, and what it writes is
compared with the exact next block, row by row.
"""

from __future__ import annotations

from functools import lru_cache, partial

from icgd_papers.theorems.cot import gates
from icgd_papers.theorems.cot.gradients import wrong_factor
from icgd_papers.theorems.cot.network import (
    BACKWARD,
    FORWARD,
    FROM_X,
    FROM_Y,
    block_errors,
    draw_round,
    slope_on_kink,
)
from icgd_papers.theorems.statement import Comparison, Finding, Statement

BACKENDS = ("literal", "fused")

EPS = 1e-10
"""The eps that the block must stay below; it is accurate to rounding."""

UNIT = "largest error of a row"

measured_errors = lru_cache(maxsize=64)(block_errors)


def _steps(kinds: tuple[str, ...], seed: int) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            f"5 networks of 3 layers, width 5, {kind} type, {backend} block",
            measured_errors(seed, backend)[kind],
            EPS,
            UNIT,
        )
        for kind in kinds
        for backend in BACKENDS
    )


def _on_kink() -> Comparison:
    case = "a network of one weight, z = c/2 inside the ramp of (21): r'(z)"
    return Comparison(case, slope_on_kink(), EPS, UNIT)


def _off_kinks(kind: str, seed: int) -> Finding:
    return Finding(_steps((kind,), seed), printed=(_on_kink(),))


KINKS = (
    "For inputs of which no z_i lies within the ramp, 0 < z <= c. r'(z) jumps at 0 and a "
    "transformer is continuous, so that no one serves all inputs."
)

FORWARD_PASS = Statement(
    paper="cot",
    label="Theorem 4.1",
    claim=(
        "For any eps there is a single-layer transformer that makes block F_i from [F_{i-1}; B_i] "
        "to within eps, for all inputs that the mask shows it."
    ),
    formula="|F_forward([F_{i-1}; B_i]) - F_i| <= eps; r'(z) = (relu(z) - relu(z - c))/c  (21)",
    check=partial(_off_kinks, FORWARD),
    correction=f"{KINKS} Theorem C.4 excludes such a region, Theorem 4.1 does not.",
)

FIRST_BLOCK = Statement(
    paper="cot",
    label="Proposition 4.1",
    claim=(
        "For any eps there is a single transformer block that makes F_1 from [B_1; X_s] to within "
        "eps, for all inputs."
    ),
    formula="|F_x([B_1; X_s]) - F_1| <= eps",
    check=partial(_off_kinks, FROM_X),
    correction=f"{KINKS} Neither the proposition nor its proof says so.",
)


def _backward_pass(seed: int) -> Finding:
    printed = wrong_factor(draw_round(seed), layer=1)
    return Finding(_steps((BACKWARD,), seed), printed=(printed,))


BACKWARD_PASS = Statement(
    paper="cot",
    label="Theorem 4.2",
    claim=(
        "For any eps there is a single-layer transformer that makes block B_i of Definition 4.3, "
        "which holds the weights after a step of backpropagation, from [B_{i+1}; F_i] to within "
        "eps."
    ),
    formula="|F_backprop([B_{i+1}; F_i]) - B_i| <= eps, B_i with W_i - eta delta_i O_i^T",
    check=_backward_pass,
    correction=(
        "B_i with W_i - eta delta_i o_{i-1}^T; with the printed o_i it holds no step of "
        "backpropagation. No region need be excluded, because the slopes in F_i are 0 or 1."
    ),
)


def _last_block(seed: int) -> Finding:
    round_ = draw_round(seed)
    printed = wrong_factor(round_, layer=round_.depth)
    return Finding(_steps((FROM_Y,), seed), printed=(printed,))


LAST_BLOCK = Statement(
    paper="cot",
    label="Proposition 4.2",
    claim=(
        "For any eps there is a single transformer block that makes B_N of Definition 4.3 from "
        "[F_N; Y_s] to within eps."
    ),
    formula="|F_y([F_N; Y_s]) - B_N| <= eps, B_N with W_N - eta delta_N O_N^T",
    check=_last_block,
    correction="B_N with W_N - eta delta_N o_{N-1}^T, and delta_N = 2 (o_N - y) r'(z_N).",
)


def _one_block(seed: int) -> Finding:
    right = _steps((FORWARD, BACKWARD, FROM_X, FROM_Y), seed)
    return Finding(right, printed=(_on_kink(), gates.printed_router(seed)))


ONE_BLOCK = Statement(
    paper="cot",
    label="Proposition 4.3",
    claim=(
        "For any eps one single-layer transformer block makes the right next block to within eps "
        "from every input of the four types, by gates that the tags of the two blocks open."
    ),
    formula="|TF(Z) - T(Z)| <= eps for forward-, backward-, x- and y-type Z",
    check=_one_block,
    correction=(
        f"{KINKS} The gates of Appendix C.8 have to be those that its entries here name; icgd "
        "closes copies by flags instead."
    ),
)
