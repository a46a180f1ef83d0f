"""The page of the theorem book is what its statements and its last findings make of it."""

import json

import pytest

from benchmarks import theorem_book
from benchmarks.theorem_book import DOCS, SEED, render
from icgd_papers.theorems.book import check_statement, from_data, statements
from icgd_papers.theorems.statement import Statement, Verdict

DATA = json.loads((DOCS / "theorems.json").read_text(encoding="utf-8"))
STALE = "docs/theorems.json and docs/theorems.md are not up to date: run `make theorems`."

TOYS = (
    Statement("wu", "Lemma 1", "It is x_i.", correction="No <sign>.", gist="x_i."),
    Statement("wang", "Theorem 2", "It is so.", reason="It is too large.", gist="So."),
)
FOUND = {
    "wu-lemma-1": {
        "comparisons": [
            {
                "about": "STATEMENT",
                "case": "|K|",
                "measured": 0.123,
                "allowed": 2.0,
                "unit": "units",
            },
            {
                "about": "PRINTED",
                "case": "K",
                "measured": "inf",
                "allowed": 1e-12,
                "unit": "units",
            },
        ],
    },
    "wang-theorem-2": {"comparisons": []},
}


def test_every_statement_has_its_last_finding():
    stored, there = DATA["statements"].keys(), statements().keys()
    assert stored == there, f"{STALE} Only in one of them: {sorted(stored ^ there)}."


def test_the_page_is_made_of_the_statements_and_the_findings():
    page = (DOCS / "theorems.md").read_text(encoding="utf-8")
    assert page == render(statements().values(), DATA), STALE


def test_the_verdicts_follow_from_the_findings_and_none_is_unconfirmed():
    assert DATA["seed"] == SEED
    for key, statement in statements().items():
        verdict = from_data(statement, DATA["statements"][key]).verdict
        assert DATA["statements"][key]["verdict"] == verdict.name, f"{key}: {STALE}"
        assert verdict is not Verdict.UNCONFIRMED, key


def test_a_page_by_hand():
    page = render(TOYS, {"statements": FOUND})
    lines = (
        "| paper | statements | corrected | not tried |",
        "| [wu](#wu) | 1 | 1 | 0 |",
        '| <a id="wu-lemma-1"></a>Lemma 1 | x\\_i. | corrected | 0.12 ≤ 2 (units) '
        "| No &lt;sign&gt;. Printed: inf &gt; 1.0e-12 |",
        '| <a id="wang-theorem-2"></a>Theorem 2 | So. | not tried |  | It is too large. |',
    )
    for line in lines:
        assert f"{line}\n" in page
    assert "*Chain-of-Thought Gradient Descent*. Statements are numbered as in" in page
    assert "([arXiv:2411.16549](https://arxiv.org/abs/2411.16549))." in page


def test_a_row_is_short():
    for key, item in statements().items():
        assert 1 <= len(item.gist.split()) <= 30, key
        assert len(item.in_a_line.split()) <= 30, key


def test_what_is_written_is_what_is_rendered(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(theorem_book, "DOCS", tmp_path)
    book = {TOYS[1].key: TOYS[1]}
    monkeypatch.setattr(theorem_book, "statements", lambda: book)
    theorem_book.main([])
    data = json.loads((tmp_path / "theorems.json").read_text())
    empty = {"verdict": "NOT_EXECUTABLE", "comparisons": []}
    assert data == {"seed": 0, "statements": {"wang-theorem-2": empty}}
    assert (tmp_path / "theorems.md").read_text() == render(TOYS[1:], data)
    assert "wang-theorem-2: not executable" in capsys.readouterr().out
    book[TOYS[0].key] = TOYS[0]
    with pytest.raises(SystemExit, match="has no finding of wu-lemma-1: run `make theorems`"):
        theorem_book.main(["--page"])


@pytest.mark.slow
@pytest.mark.parametrize("key", statements())
def test_every_check_still_gives_the_verdict_of_the_page(key):
    assert (
        check_statement(statements()[key], SEED).verdict.name == DATA["statements"][key]["verdict"]
    )
