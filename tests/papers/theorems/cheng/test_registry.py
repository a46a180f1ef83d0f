"""Every statement of cheng has the verdict that was worked out by hand."""

from collections.abc import Callable

import pytest

from icgd_papers.theorems.cheng import stationarity
from icgd_papers.theorems.cheng.registry import STATEMENTS
from icgd_papers.theorems.statement import Finding, Verdict

BOOK = {statement.key.removeprefix("cheng-"): statement for statement in STATEMENTS}

SMALL: dict[str, Callable[[int], Finding]] = {
    "theorem-4.5": lambda seed: stationarity.theorem_4_5(seed, n_batches=6, batch_size=200),
    "theorem-4.6": lambda seed: stationarity.theorem_4_6(seed, n_batches=6, batch_size=200),
    "proposition-e.3": lambda seed: stationarity.proposition_e_3(seed, n_batches=20, batch_size=50),
    "proposition-f.3": lambda seed: stationarity.proposition_f_3(seed, n_batches=20, batch_size=50),
    "proposition-f.4": lambda seed: stationarity.proposition_f_4(seed, n_batches=20, batch_size=50),
}

ERRATA = {
    "App. C, step": "appendix-c-step-size",
    "App. C, sign": "appendix-c-limit",
    "App. C, exponent and factor": "appendix-c-layers",
    "(7)": "equation-7",
    "(13)": "equation-13",
    "(24)": "equation-24",
    "(40)": "equation-40",
    "(43)": "equation-43",
    "(58)": "equation-58",
    "Lemma A.1, last line": "lemma-a.1-last-line",
    "Lemma G.3": "lemma-g.3-constant",
    "Lemma G.3, f left out": "lemma-g.3-lagrangian",
    "App. G, sign": "appendix-g-linear-regression",
    "Example 8": "example-8",
    "App. D, heads": "figure-4-heads",
    "App. D, kernel": "figure-4-c-kernel",
}
"""What is misprinted, and the statement that shows it."""

NOT_EXECUTABLE = {"assumption-2.1", "assumption-4.4", "theorem-g.1"}


def finding(key: str, seed: int) -> Finding | None:
    check = SMALL.get(key, BOOK[key].check)
    return None if check is None else check(seed)


@pytest.mark.parametrize("key", sorted(BOOK.keys() - ERRATA.values() - NOT_EXECUTABLE))
def test_what_is_not_misprinted_holds(key):
    assert BOOK[key].verdict(finding(key, 0)) is Verdict.HOLDS


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("key", ERRATA.values())
def test_every_printed_form_fails_and_its_correction_holds(key, seed):
    found = finding(key, seed)
    assert BOOK[key].correction
    assert BOOK[key].verdict(found) is Verdict.CORRECTED
    assert [part.case for part in found.right if not part.holds] == []
    assert [part.case for part in found.printed if part.holds] == []


@pytest.mark.parametrize("key", sorted(NOT_EXECUTABLE))
def test_what_cannot_be_executed_says_why(key):
    assert BOOK[key].check is None
    assert BOOK[key].reason.endswith(".")


def test_the_statements_stand_in_the_order_of_the_paper():
    numbered = [key for key in BOOK if key.split("-")[0] in ("proposition", "theorem", "lemma")]
    assert numbered == [
        "proposition-3.1",
        "proposition-3.4",
        "theorem-4.5",
        "theorem-4.6",
        "lemma-a.1",
        "lemma-a.1-last-line",
        "proposition-d.1-a",
        "proposition-d.1-b",
        "theorem-e.1",
        "proposition-e.3",
        "theorem-f.1",
        "proposition-f.3",
        "proposition-f.4",
        "lemma-f.5",
        "theorem-g.1",
        "theorem-g.2",
        "lemma-g.3",
        "lemma-g.3-constant",
        "lemma-g.3-lagrangian",
    ]
