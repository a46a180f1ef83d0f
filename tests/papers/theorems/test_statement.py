"""What a check found of a statement, as a verdict; and the book that holds all statements."""

from math import inf, nan

import pytest

from icgd.errors import UnknownNameError
from icgd_papers.theorems.book import (
    from_data,
    paper_named,
    papers,
    statement_named,
    statements,
    to_data,
)
from icgd_papers.theorems.statement import (
    CHECKS,
    Entry,
    Statement,
    Verdict,
    at_most,
    in_proof,
    printed,
)

GOOD, BAD = (0.5, 1.0, "case", "unit"), (2.0, 1.0, "case", "unit")


def entry(*comparisons, **words: str) -> Entry:
    return Entry(Statement("wu", "Lemma 1", "It is so.", **words), comparisons)


@pytest.mark.parametrize(
    ("comparisons", "words", "verdict"),
    [
        ([at_most(*GOOD)], {}, Verdict.HOLDS),
        ([at_most(*GOOD), printed(*BAD)], {"correction": "Twice."}, Verdict.CORRECTED),
        ([printed(*BAD)], {}, Verdict.FAILS),
        # Without a correction in words, what is printed has failed.
        ([at_most(*GOOD), printed(*BAD)], {}, Verdict.FAILS),
        ([at_most(*GOOD), in_proof(*BAD)], {"correction": "A step."}, Verdict.PROOF_FAILS),
        ([at_most(*GOOD), in_proof(*BAD)], {}, Verdict.PROOF_FAILS),
        # A counterexample to the statement itself weighs more than one to its proof.
        (
            [at_most(*GOOD), printed(*BAD), in_proof(*BAD)],
            {"correction": "Twice."},
            Verdict.CORRECTED,
        ),
        ([at_most(*GOOD)], {"undecided": "Constants."}, Verdict.UNDECIDED),
        ([], {"undecided": "Constants."}, Verdict.UNDECIDED),
        ([], {"reason": "Too large."}, Verdict.NOT_EXECUTABLE),
        ([at_most(*BAD)], {}, Verdict.UNCONFIRMED),
        ([at_most(*BAD)], {"undecided": "Constants."}, Verdict.UNCONFIRMED),
        ([at_most(nan, 1.0, "case", "unit")], {}, Verdict.UNCONFIRMED),
        # A correction of what does not fail, a check that tries nothing.
        ([at_most(*GOOD), printed(*GOOD)], {"correction": "Twice."}, Verdict.UNCONFIRMED),
        ([], {}, Verdict.UNCONFIRMED),
        ([in_proof(*BAD)], {}, Verdict.UNCONFIRMED),
    ],
)
def test_the_verdict_follows_from_the_comparisons(comparisons, words, verdict):
    assert entry(*comparisons, **words).verdict is verdict


def test_the_closest_case_and_the_worst_counterexample():
    made = entry(
        at_most(1.0, 4.0, "far", "u"),
        at_most(3.0, 4.0, "near", "u"),
        printed(5.0, 4.0, "a little", "u"),
        in_proof(nan, 4.0, "not a number", "u"),
        printed(1.0, 4.0, "fine", "u"),
    )
    assert made.closest.case == "near"
    assert made.counterexample.case == "not a number"
    assert at_most(0.0, 0.0, "exact", "u").ratio == 0.0
    assert at_most(1e-300, 0.0, "not exact", "u").ratio == inf


def test_entries_are_read_back():
    made = entry(at_most(*GOOD), printed(inf, 1.0, "case", "unit"), correction="Twice.")
    data = to_data(made)
    assert data["verdict"] == "CORRECTED"
    assert data["comparisons"][1]["measured"] == "inf"
    assert from_data(made.statement, data) == made


def test_every_statement_has_a_check_or_a_reason_and_every_check_a_statement():
    checked = {(item.paper, item.label) for item in statements().values() if not item.reason}
    assert checked == CHECKS.keys()


def test_the_words_of_the_book_are_whole():
    for item in statements().values():
        assert item.paper in papers(), item.key
        assert item.claim.endswith("."), item.key
        for text in (item.claim, item.correction, item.undecided, item.reason):
            assert text == text.strip(), item.key
        assert not (item.reason and (item.correction or item.undecided)), item.key
    assert list(papers()) == ["wu", "wang", "cheng", "cot"]
    assert all(paper.numbering for paper in papers().values())


def test_names_are_looked_up():
    assert statement_named("wu-theorem-1").label == "Theorem 1"
    with pytest.raises(UnknownNameError, match="Did you mean 'wu-theorem-1'"):
        statement_named("wu-theorm-1")
    with pytest.raises(UnknownNameError, match="Unknown paper 'theorem' in the key 'theorem-1'"):
        statement_named("theorem-1")
    with pytest.raises(UnknownNameError, match="Did you mean 'cheng'"):
        paper_named("chng")
