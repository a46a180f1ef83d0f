"""The verdict on every statement of cot, and that no verdict hangs on the seed."""

import time

import pytest

from icgd_papers.theorems.cot.registry import STATEMENTS
from icgd_papers.theorems.statement import Verdict
from tests.papers.theorems.cot.findings import finding_of

HOLDS = {"Lemma A.1", "Remark 4.1", "Appendix C.1"}
FAILS = {"Appendix D"}

ASKED = {
    *(f"Lemma A.{number}" for number in range(1, 6)),
    "Lemma 3.1",
    *(f"Theorem 3.{number}" for number in range(1, 4)),
    *(f"Theorem 4.{number}" for number in range(1, 3)),
    *(f"Proposition 4.{number}" for number in range(1, 5)),
    "Remark 4.1",
}


def expected(label: str) -> Verdict:
    if label in HOLDS:
        return Verdict.HOLDS
    return Verdict.FAILS if label in FAILS else Verdict.CORRECTED


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.key)
def test_the_verdict_comes_in_seconds(statement):
    start = time.process_time()
    finding = finding_of(statement.key)
    assert time.process_time() - start < 10
    assert statement.verdict(finding) is expected(statement.label)


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.key)
def test_no_verdict_hangs_on_the_seed(statement):
    for seed in range(1, 10):
        verdict = statement.verdict(finding_of(statement.key, seed))
        assert verdict is expected(statement.label), seed


def test_all_numbered_statements_are_there_once():
    labels = [statement.label for statement in STATEMENTS]
    assert set(labels) >= ASKED
    assert len({statement.key for statement in STATEMENTS}) == len(labels)
    assert {statement.paper for statement in STATEMENTS} == {"cot"}
