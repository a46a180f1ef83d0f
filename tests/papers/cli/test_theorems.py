import json

import pytest

from icgd_papers.cli import theorems
from icgd_papers.theorems import book
from icgd_papers.theorems.registry import STATEMENTS as BOOK
from icgd_papers.theorems.statement import Comparison, Finding, Statement


def statement(paper, label, right=(), printed=(), **fields) -> Statement:
    def check(seed: int) -> Finding:
        parts = [
            tuple(Comparison(f"case {number} of seed {seed}", number, 1.0, "units") for number in n)
            for n in (right, printed)
        ]
        return Finding(*parts)

    return Statement(paper, label, f"{label} is so.", "a = b", check, **fields)


TOYS = (
    statement("wu", "Theorem 1", right=(0.25, 0.5)),
    statement("wu", "Lemma 2", (0.125,), (8.0,), correction="The sign is wrong."),
    Statement("wang", "Theorem 3", "It is so.", "a = b", reason="It is too large."),
)
UNCONFIRMED = statement("cot", "Theorem 4", right=(2.0,))


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    def use(*statements: Statement) -> None:
        for module in (book, theorems):
            monkeypatch.setattr(module, "STATEMENTS", {each.key: each for each in statements})

    use(*TOYS)
    return use


def test_the_book_shows_every_verdict_and_the_telling_numbers(command):
    ran = command("theorems")
    assert ran.code == 0
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ["Theorem", "1", "holds", "0.5", "1"] in rows
    assert ["Lemma", "2", "corrected", "0.12", "1", "8", ">", "1"] in rows
    assert ["Theorem", "3", "not", "executable"] in rows
    assert ["Lemma", "2", "The", "sign", "is", "wrong."] in rows
    assert "wu: In-Context Deep Learning via Transformer Models" in ran.stdout
    assert "cheng:" not in ran.stdout
    assert (
        ran.stdout.rstrip()
        .replace("\n", " ")
        .endswith("3 statements. holds: 1; holds with a correction: 1; cannot be executed: 1.")
    )


def test_one_paper_alone(command):
    ran = command("theorems", "wang")
    assert ran.code == 0
    assert "Theorem 3" in ran.stdout
    assert "Theorem 1" not in ran.stdout


def test_a_statement_that_is_not_confirmed_fails_the_command(command, toys):
    toys(*TOYS, UNCONFIRMED)
    assert command("theorems").code == 1
    ran = command("theorems", "--run", "cot-theorem-4")
    assert ran.code == 1
    assert "FAILS" in ran.stdout
    assert ran.stdout.endswith("UNCONFIRMED: the check did not confirm it.\n")
    assert command("theorems", "wu").code == 0


def test_one_statement_is_shown_with_all_its_comparisons(command):
    ran = command("theorems", "--run", "wu-lemma-2", "--seed", 3)
    assert ran.code == 0
    rows = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert "claim Lemma 2 is so." in rows
    assert "formula a = b" in rows
    assert "correction The sign is wrong." in rows
    assert "holds 0.12 1 units case 0.125 of seed 3" in rows
    assert "FAILS 8 1 units case 8.0 of seed 3" in rows
    assert rows[-1] == "CORRECTED: holds with a correction."
    assert "reason It is too large." in " ".join(
        command("theorems", "--run", "wang-theorem-3").stdout.split()
    )


def test_json_has_every_comparison(command):
    found = json.loads(command("theorems", "--json").stdout)
    assert [entry["key"] for entry in found] == ["wu-theorem-1", "wu-lemma-2", "wang-theorem-3"]
    assert found[1]["verdict"] == "CORRECTED"
    assert found[1]["printed"] == [
        {
            "case": "case 8.0 of seed 0",
            "measured": 8.0,
            "allowed": 1.0,
            "unit": "units",
            "holds": False,
        }
    ]
    assert found[2]["right"] == []


def test_the_list_runs_nothing(command, toys):
    def never(seed: int) -> Finding:
        raise AssertionError

    toys(Statement("wu", "Theorem 1", "It is so.", "a = b", never))
    assert "wu-theorem-1" in command("theorems", "--list").stdout
    assert json.loads(command("theorems", "wu", "--list", "--json").stdout) == [
        {"key": "wu-theorem-1", "label": "Theorem 1", "claim": "It is so."}
    ]


def test_the_example_of_the_help_is_a_statement(command):
    example = command("theorems", "--help").example()
    assert example[:2] == ["theorems", "--run"]
    assert example[2] in BOOK


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chng"], "Unknown paper 'chng'; known are wu, wang, cheng, cot. Did you mean 'cheng'?"),
        (
            ["--run", "wu-theorm-1"],
            "Unknown statement 'wu-theorm-1'; known are wu-theorem-1, wu-lemma-2. "
            "Did you mean 'wu-theorem-1'?",
        ),
        (
            ["--run", "theorem-1"],
            "Unknown paper 'theorem' in the key 'theorem-1'; known are wu, wang, cheng, cot.",
        ),
        (["wu", "--run", "wu-theorem-1"], "Give either a paper or --run, not both."),
        (["--list", "--run", "wu-theorem-1"], "Give either --list or --run, not both."),
        (["--seed", "-1"], "seed must be a whole number of at least 0, got -1."),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(command, arguments, message):
    assert command("theorems", *arguments).refusal() == message
