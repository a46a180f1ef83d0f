"""The statements of cheng, in the order of the paper."""

from __future__ import annotations

from icgd_papers.theorems.cheng import (
    assumptions,
    flow,
    lemma_a_1,
    proposition_3_1,
    proposition_3_4,
    proposition_d_1,
    rotations,
    stationarity,
    steepest_descent,
)
from icgd_papers.theorems.statement import Statement

STATEMENTS: tuple[Statement, ...] = (
    *assumptions.ARCHITECTURE,
    steepest_descent.EQUATION_7,
    *proposition_3_1.STATEMENTS,
    proposition_3_4.DEFINITION_3_3,
    proposition_3_4.PROPOSITION_3_4,
    proposition_3_4.EQUATION_13,
    *assumptions.STATEMENTS,
    stationarity.THEOREM_4_5,
    rotations.EQUATION_17,
    stationarity.THEOREM_4_6,
    *lemma_a_1.STATEMENTS,
    proposition_3_1.EQUATION_24,
    *proposition_3_4.APPENDIX_C,
    *proposition_d_1.STATEMENTS,
    flow.THEOREM_E_1,
    stationarity.REMARK_E_2,
    flow.EQUATION_31,
    stationarity.PROPOSITION_E_3,
    *rotations.STATEMENTS,
    flow.THEOREM_F_1,
    stationarity.REMARK_F_2,
    flow.EQUATION_48,
    rotations.EQUATION_58,
    *stationarity.PROPOSITIONS_F,
    assumptions.LEMMA_F_5,
    *steepest_descent.STATEMENTS,
    proposition_3_1.APPENDIX_I_2,
)
