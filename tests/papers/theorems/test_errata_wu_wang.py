"""Every statement of wu and wang has the verdict that was found, and every erratum is shown."""

import pytest

from icgd_papers.theorems.statement import Finding, Verdict
from icgd_papers.theorems.wang.registry import STATEMENTS as WANG
from icgd_papers.theorems.wu.registry import STATEMENTS as WU

STATEMENTS = {statement.key: statement for statement in (*WU, *WANG)}

HOLD = {"wu-lemma-1", "wu-lemma-5", "wu-lemma-15", "wu-lemma-19", "wang-lemma-5"}
"""The statements that hold as printed; all others need a correction."""

ERRATA = {
    "wu (3.5): w^(0) = 0": "wu-equation-3.5",
    "wu Thm 1: smooth r, yet a ReLU network": "wu-theorem-1-for-relu-networks",
    "wu Cor 1.1: (1 + n L_f)^l": "wu-corollary-1.1",
    "wu Lemma 14: (1 + n L_f)^l": "wu-lemma-14",
    "wu Lemma 14: eta <= L_f": "wu-lemma-14",
    "wu Thm 1: error inside the projection; constants differ": "wu-theorem-1",
    "wu (D.16): i and s exchanged": "wu-equation-d.16",
    "wu (D.15): row norms for V^T s": "wu-lemma-6",
    "wu (F.12): penalty over all tokens": "wu-equation-f.12",
    "wu Lemma 17: separation": "wu-lemma-17",
    "wu App. G: best epoch on the test query": "wu-appendix-g-baseline",
    "wu App. G: R^2 near 0.95": "wu-appendix-g-r-2",
    "wang App. A, forward layers": "wang-appendix-a-forward-layers",
    "wang App. A, gradient layer": "wang-appendix-a-gradient-layer",
    "wang (4): 1/N": "wang-equation-4",
    "wang Thm 2: O(n^2) layers": "wang-remark-2",
}
"""The known errata of the two papers, each with the statement that shows it."""


def finding(key: str) -> Finding:
    check = STATEMENTS[key].check
    assert check is not None
    return check(0)


@pytest.mark.parametrize("key", STATEMENTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_comparison_of_a_right_form_holds_and_every_misprint_fails(key: str):
    found, statement = finding(key), STATEMENTS[key]
    expected = Verdict.HOLDS if key in HOLD else Verdict.CORRECTED
    assert statement.verdict(found) is expected
    assert found.right
    assert [c.case for c in found.right if not c.holds] == []
    assert [c.case for c in found.printed if c.holds] == []
    assert bool(found.printed) == bool(statement.correction) == (key not in HOLD)


@pytest.mark.parametrize("key", ERRATA.values(), ids=ERRATA)
def test_every_erratum_is_shown_by_a_statement_that_needs_a_correction(key: str):
    assert key not in HOLD
    assert STATEMENTS[key].correction


def test_both_papers_are_complete():
    wu = [f"wu-lemma-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 14, 15, 16, 19)]
    wu += ["wu-theorem-1", "wu-theorem-5", "wu-theorem-6", "wu-corollary-1.1"]
    wang = [*(f"wang-theorem-{n}" for n in (1, 2, 3, 4)), "wang-lemma-5"]
    assert set(wu + wang) <= set(STATEMENTS)


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_a_statement_is_said_in_one_sentence_and_in_symbols(statement):
    assert statement.claim.endswith(".")
    assert statement.formula
    assert statement.reason is None
