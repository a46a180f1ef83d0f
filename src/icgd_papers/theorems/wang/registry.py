"""The statements of wang, in the order of the paper."""

from __future__ import annotations

from icgd_papers.theorems.statement import Statement
from icgd_papers.theorems.wang.attention import FORWARD_LAYERS, GRADIENT_LAYER
from icgd_papers.theorems.wang.barron import LEMMA_5
from icgd_papers.theorems.wang.descent import EQUATION_4, REMARK_2, THEOREM_1, THEOREM_2
from icgd_papers.theorems.wang.resources import THEOREM_3, THEOREM_4

STATEMENTS: tuple[Statement, ...] = (
    THEOREM_1,
    THEOREM_2,
    REMARK_2,
    THEOREM_3,
    THEOREM_4,
    LEMMA_5,
    EQUATION_4,
    FORWARD_LAYERS,
    GRADIENT_LAYER,
)
