import json

import pytest

from icgd_papers.cli import theorems
from icgd_papers.theorems import book
from icgd_papers.theorems.statement import CHECKS, Statement, at_most, printed

WORDS = {"claim": "It is so.", "formula": "a = b"}
TOYS = (
    Statement("wu", "Toy 1", **WORDS),
    Statement("wu", "Toy 2", **WORDS, correction="The sign is wrong."),
    Statement("wang", "Toy 3", **WORDS, reason="It is too large."),
)
UNCONFIRMED = Statement("cot", "Toy 4", **WORDS)


def case(compare, number):
    return lambda seed: compare(number, 1.0, f"case {number} of seed {seed}", "units")


CASES = {
    ("wu", "Toy 1"): (case(at_most, 0.25), case(at_most, 0.5)),
    ("wu", "Toy 2"): (case(at_most, 0.125), case(printed, 8.0)),
    ("cot", "Toy 4"): (case(at_most, 2.0),),
}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    for key, cases in CASES.items():
        monkeypatch.setitem(CHECKS, key, lambda seed, cases=cases: [make(seed) for make in cases])

    def use(*chosen: Statement) -> None:
        for module in (book, theorems):
            monkeypatch.setattr(module, "statements", lambda: {item.key: item for item in chosen})

    use(*TOYS)
    return use


def test_the_book_shows_every_verdict_and_the_closest_numbers(command):
    ran = command("theorems")
    assert ran.code == 0
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ["Toy", "1", "holds", "0.5", "1"] in rows
    assert ["Toy", "2", "holds", "with", "a", "correction", "0.12", "1", "8", ">", "1"] in rows
    assert ["Toy", "3", "not", "executable"] in rows
    assert ["Toy", "2", "The", "sign", "is", "wrong."] in rows
    assert "cheng:" not in ran.stdout
    last = ran.stdout.rstrip().replace("\n", " ")
    assert last.endswith("3 statements. holds: 1; holds with a correction: 1; not executable: 1.")
    alone = command("theorems", "wang").stdout
    assert "Toy 3" in alone
    assert "Toy 1" not in alone


def test_a_statement_that_is_not_confirmed_fails_the_command(command, toys):
    toys(*TOYS, UNCONFIRMED)
    assert command("theorems").code == 1
    ran = command("theorems", "--run", "cot-toy-4")
    assert ran.code == 1
    assert "FAILS" in ran.stdout
    assert ran.stdout.endswith("UNCONFIRMED: the check did not confirm it.\n")
    assert command("theorems", "wu").code == 0


def test_one_statement_is_shown_with_all_its_comparisons(command):
    ran = command("theorems", "--run", "wu-toy-2", "--seed", 3)
    rows = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert "claim It is so." in rows
    assert "correction The sign is wrong." in rows
    assert "holds 0.12 1 units case 0.125 of seed 3" in rows
    assert "FAILS 8 1 units case 8.0 of seed 3" in rows
    assert rows[-1] == "CORRECTED: holds with a correction."


def test_json_has_every_comparison(command):
    found = json.loads(command("theorems", "--json").stdout)
    assert [entry["key"] for entry in found] == ["wu-toy-1", "wu-toy-2", "wang-toy-3"]
    assert found[1]["verdict"] == "CORRECTED"
    assert found[1]["comparisons"][1] == {
        "about": "PRINTED",
        "case": "case 8.0 of seed 0",
        "measured": 8.0,
        "allowed": 1.0,
        "unit": "units",
        "holds": False,
    }
    assert found[2]["comparisons"] == []


def test_the_list_runs_nothing(command, monkeypatch):
    monkeypatch.setattr(theorems, "check_statement", None)
    assert "wu-toy-1" in command("theorems", "--list").stdout
    listed = json.loads(command("theorems", "wang", "--list", "--json").stdout)
    assert listed == [{"key": "wang-toy-3", "label": "Toy 3", "claim": "It is so."}]


def test_the_example_of_the_help_is_a_statement(command, monkeypatch):
    example = command("theorems", "--help").example()
    assert example[:2] == ["theorems", "--run"]
    assert example[2] in book._book()[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chng"], "Unknown paper 'chng'; known are wu, wang, cheng, cot. Did you mean 'cheng'?"),
        (
            ["--run", "wu-tyo-1"],
            "Unknown statement 'wu-tyo-1'; known are wu-toy-1, wu-toy-2. Did you mean 'wu-toy-1'?",
        ),
        (["wu", "--run", "wu-toy-1"], "Give either a paper or --run, not both."),
        (["--list", "--run", "wu-toy-1"], "Give either --list or --run, not both."),
        (["--seed", "-1"], "seed must be a whole number of at least 0, got -1."),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(command, arguments, message):
    assert command("theorems", *arguments).refusal() == message
