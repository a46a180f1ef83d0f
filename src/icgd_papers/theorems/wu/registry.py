"""The statements of wu, in the order of the paper."""

from __future__ import annotations

from icgd_papers.theorems.statement import Statement
from icgd_papers.theorems.wu.backward import LEMMA_5, LEMMA_6
from icgd_papers.theorems.wu.curves import COROLLARY_1_1
from icgd_papers.theorems.wu.descent import LEMMA_14
from icgd_papers.theorems.wu.experiments import BEST_EPOCH, SIMPLE_LINES
from icgd_papers.theorems.wu.forward import LEMMA_2, LEMMA_3, LEMMA_4
from icgd_papers.theorems.wu.gradients import EQUATION_3_5, EQUATION_D_16, LEMMA_1, LEMMA_15
from icgd_papers.theorems.wu.relu_sums import LEMMA_7
from icgd_papers.theorems.wu.score import LEMMA_19
from icgd_papers.theorems.wu.softmax import (
    EQUATION_F_10,
    EQUATION_F_12,
    LEMMA_16,
    LEMMA_17,
    THEOREM_6,
)
from icgd_papers.theorems.wu.theorem_1 import THEOREM_1, THEOREM_1_RELU, THEOREM_5

STATEMENTS: tuple[Statement, ...] = (
    EQUATION_3_5,
    LEMMA_1,
    LEMMA_2,
    LEMMA_3,
    LEMMA_4,
    LEMMA_5,
    LEMMA_6,
    THEOREM_1,
    THEOREM_1_RELU,
    COROLLARY_1_1,
    LEMMA_7,
    EQUATION_D_16,
    LEMMA_14,
    LEMMA_15,
    THEOREM_5,
    LEMMA_16,
    THEOREM_6,
    LEMMA_17,
    EQUATION_F_10,
    EQUATION_F_12,
    BEST_EPOCH,
    SIMPLE_LINES,
    LEMMA_19,
)
