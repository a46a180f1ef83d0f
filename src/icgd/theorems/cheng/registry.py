"""The statements of cheng, in the order of the paper."""

from __future__ import annotations

from icgd.theorems.cheng import (
    assumptions,
    lemma_a_1,
    proposition_3_1,
    proposition_3_4,
    proposition_d_1,
    rotations,
    stationarity,
    steepest_descent,
)
from icgd.theorems.statement import Statement

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
    *stationarity.PROOF_OF_4_5,
    *rotations.STATEMENTS,
    *stationarity.PROOF_OF_4_6,
    assumptions.LEMMA_F_5,
    *steepest_descent.STATEMENTS,
    proposition_3_1.APPENDIX_I_2,
)
