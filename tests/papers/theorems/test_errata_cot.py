"""Every known misprint of cot: its printed form fails, its corrected form holds."""

import pytest

from icgd_papers.theorems.cot.registry import STATEMENTS
from icgd_papers.theorems.statement import Verdict
from tests.papers.theorems.cot.findings import BY_KEY, finding_of

# Where the paper is misprinted -> the statements that show it.
ERRATA = {
    "Definition 4.4: t - 1, t - 2t mod N and floor(t/N) - 1": ["cot-definition-4.4"],
    "Definition 4.3: delta_i O_i^T, and rows of X_l": ["cot-definition-4.3"],
    "(21): r'(z) by a ramp": ["cot-theorem-4.1", "cot-proposition-4.1"],
    "Appendix C.7: delta_N = 2 (y - o_N) r'": ["cot-appendix-c.7-sign"],
    "Appendix C.7: o_N for the outer product": [
        "cot-appendix-c.7-outer-product",
        "cot-proposition-4.2",
    ],
    "Appendix C.8: sigma_0 returns 0 when off": ["cot-appendix-c.8-gate", "cot-proposition-4.3"],
    "Appendix C.8: gates for backward and x types": ["cot-appendix-c.8-tags"],
    "Proposition 4.4: the exact update is 1-Lipschitz": ["cot-proposition-4.4"],
    "Theorems 3.1-3.3: eta <= 2/beta, eta <= beta/2": [
        "cot-theorem-3.1",
        "cot-theorem-3.2",
        "cot-theorem-3.3",
    ],
    "Lemma A.5: the error (b - a)/p": ["cot-lemma-a.5"],
    "Appendix D: losses 3.00 and 0.139": ["cot-appendix-d"],
    "Appendix C.5: heads of the outer product": ["cot-appendix-c.5", "cot-theorem-4.2"],
    # Found by these checks.
    "Definition 3.1: 2d + 3 rows": ["cot-definition-3.1"],
    "Lemma 3.1: one attention for every eps": ["cot-lemma-3.1"],
    "Lemmas A.2 and A.4: R >= 2 |w*|, and no start": ["cot-lemma-a.2", "cot-lemma-a.4"],
    "Lemma A.3: the gradient of f + h": ["cot-lemma-a.3"],
    "Appendix C.3: 1/n for 1/(2n)": ["cot-appendix-c.3"],
    "Section 4.1: the order of the prompt": ["cot-section-4.1-input-format"],
}

# w^(0) = 0 is misprinted for networks; cot has it for linear models alone, where it is right.
RIGHT_AS_PRINTED = {"w^(0) = 0": "cot-appendix-c.1"}


@pytest.mark.parametrize("row", ERRATA)
def test_the_printed_form_fails_and_the_right_form_holds(row):
    for key in ERRATA[row]:
        finding = finding_of(key)
        assert any(not comparison.holds for comparison in finding.printed), key
        assert [comparison for comparison in finding.right if not comparison.holds] == [], key
        assert finding.right, key


@pytest.mark.parametrize("row", RIGHT_AS_PRINTED)
def test_what_is_right_in_cot_holds(row):
    statement = BY_KEY[RIGHT_AS_PRINTED[row]]
    assert statement.verdict(finding_of(statement.key)) is Verdict.HOLDS


def test_every_correction_belongs_to_a_row():
    rows = {key for keys in ERRATA.values() for key in keys}
    assert {statement.key for statement in STATEMENTS if statement.correction} <= rows
