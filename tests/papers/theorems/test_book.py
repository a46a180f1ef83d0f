import json

import pytest

from icgd.errors import UnknownNameError
from icgd_papers.theorems import book
from icgd_papers.theorems.book import Entry, from_data, paper_named, statement_named, to_data, tried
from icgd_papers.theorems.papers import CHENG
from icgd_papers.theorems.statement import Comparison, Finding, Statement, Verdict


def comparison(case: str, measured: float, allowed: float = 1.0) -> Comparison:
    return Comparison(case, measured, allowed, "units")


def entry(right=(), printed=(), correction=None) -> Entry:
    finding = Finding(tuple(right), tuple(printed))
    check = lambda seed: finding  # noqa: E731
    statement = Statement("wu", "Theorem 1", "So.", "a = b", check, correction=correction)
    return tried(statement, seed=0)


def test_the_telling_comparison_is_the_one_nearest_to_its_limit():
    parts = [comparison("a", 0.5), comparison("b", 1.6, 2.0), comparison("c", 0.0, 0.0)]
    assert entry(parts).telling.case == "b"
    assert entry([*parts, comparison("d", float("nan"))]).telling.case == "d"
    assert entry([*parts, comparison("e", 0.1, 0.0)]).telling.case == "e"
    assert entry().telling is None
    assert entry(parts).counterexample is None


def test_the_counterexample_is_the_worst_failure_of_the_printed_form():
    printed = [comparison("a", 0.5), comparison("b", 3.0), comparison("c", 3.0, 2.0)]
    found = entry([comparison("right", 0.5)], printed, correction="Mend it.")
    assert found.counterexample.case == "b"
    assert found.verdict is Verdict.CORRECTED


def test_a_statement_without_a_check_is_not_tried():
    found = tried(Statement("wu", "Theorem 1", "So.", "a = b", reason="It is too large."), seed=0)
    assert found.finding is None
    assert found.telling is None
    assert found.counterexample is None
    assert found.to_data()["verdict"] == "NOT_EXECUTABLE"
    assert found.to_data()["reason"] == "It is too large."


def test_the_check_is_given_the_seed():
    check = lambda seed: Finding((comparison("a", float(seed), 10.0),))  # noqa: E731
    statement = Statement("wu", "Theorem 1", "So.", "a = b", check)
    assert tried(statement, seed=7).finding.right[0].measured == 7


def test_a_finding_survives_as_json():
    finding = Finding(
        (comparison("a", 0.1),), (comparison("b", float("inf")), comparison("c", -1.0, 0.0))
    )
    assert from_data(json.loads(json.dumps(to_data(finding), allow_nan=False))) == finding
    assert from_data(to_data(None)) is None


def test_what_does_not_exist_is_refused_with_what_does(monkeypatch):
    statements = [Statement("wu", f"Theorem {n}", "So.", "a = b") for n in (1, 2)]
    monkeypatch.setattr(book, "STATEMENTS", {each.key: each for each in statements})
    assert statement_named("wu-theorem-2") is statements[1]
    with pytest.raises(UnknownNameError) as caught:
        statement_named("wu-theorm-2")
    assert str(caught.value) == (
        "Unknown statement 'wu-theorm-2'; known are wu-theorem-1, wu-theorem-2. "
        "Did you mean 'wu-theorem-2'?"
    )
    with pytest.raises(UnknownNameError) as caught:
        statement_named("chen-theorem-4.5")
    assert str(caught.value) == (
        "Unknown paper 'chen' in the key 'chen-theorem-4.5'; known are wu, wang, cheng, cot. "
        "Did you mean 'cheng'?"
    )
    with pytest.raises(UnknownNameError, match="Unknown paper 'woo'; known are wu, wang, cheng"):
        paper_named("woo")
    assert paper_named("cheng") is CHENG
