import pytest

from icgd_papers.theorems.statement import Comparison, Finding, Statement, Verdict

RIGHT = Comparison("a", 1.0, 2.0, "units")
WRONG = Comparison("b", 3.0, 2.0, "units")


def statement(**fields) -> Statement:
    return Statement("wu", "Theorem 1", "It is so.", "a = b", **fields)


def test_a_number_that_is_allowed_holds_and_nan_does_not():
    assert RIGHT.holds
    assert Comparison("a", 2.0, 2.0, "units").holds
    assert not WRONG.holds
    assert not Comparison("a", float("nan"), 2.0, "units").holds


@pytest.mark.parametrize(
    ("finding", "correction", "verdict"),
    [
        (None, None, Verdict.NOT_EXECUTABLE),
        (Finding((RIGHT,)), None, Verdict.HOLDS),
        (Finding((RIGHT, WRONG)), None, Verdict.UNCONFIRMED),
        (Finding((RIGHT,), (WRONG,)), "Mend it.", Verdict.CORRECTED),
        (Finding((RIGHT,), (RIGHT, WRONG)), "Mend it.", Verdict.CORRECTED),
        (Finding((WRONG,), (WRONG,)), "Mend it.", Verdict.UNCONFIRMED),
        (Finding((RIGHT,), (RIGHT,)), "Mend it.", Verdict.UNCONFIRMED),
        (Finding((RIGHT,)), "Mend it.", Verdict.UNCONFIRMED),
        (Finding((), (WRONG,)), None, Verdict.FAILS),
        (Finding((RIGHT,), (WRONG,)), None, Verdict.FAILS),
        (Finding(()), None, Verdict.UNCONFIRMED),
    ],
)
def test_the_verdict_follows_from_the_finding(finding, correction, verdict):
    assert statement(correction=correction).verdict(finding) is verdict


@pytest.mark.parametrize(
    ("label", "key"),
    [
        ("Theorem 1", "wu-theorem-1"),
        ("Lemma A.1, last line", "wu-lemma-a.1-last-line"),
        ("Equation (24)", "wu-equation-24"),
        ("Figure 4(c), kernel", "wu-figure-4-c-kernel"),
    ],
)
def test_a_key_is_made_of_the_label(label, key):
    assert Statement("wu", label, "It is so.", "a = b").key == key
