"""The numbers of docs/reproductions/cot.md are those that the checks measure."""

import re
from pathlib import Path

import pytest

from icgd_papers.theorems.cot import passes, rounds
from icgd_papers.theorems.cot.registry import STATEMENTS
from tests.papers.theorems.cot.findings import finding_of

PAGE = (Path(__file__).parents[4] / "docs" / "reproductions" / "cot.md").read_text(encoding="utf-8")
KINDS = {
    "Theorem 4.1": ("forward",),
    "Theorem 4.2": ("backward",),
    "Proposition 4.1": ("x",),
    "Proposition 4.2": ("y",),
    "Proposition 4.3": ("forward", "backward", "x", "y"),
}


def cells(start: str) -> list[str]:
    (row,) = re.findall(rf"^\| {re.escape(start)}.*\|$", PAGE, flags=re.MULTILINE)
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("label", KINDS)
def test_errors_of_blocks_are_of_the_size_that_the_page_says(label):
    *_, dense, fused = cells(f"{label} | ")
    for backend, said in (("dense", dense), ("fused", fused)):
        errors = passes.measured_errors(0, backend)
        measured = max(errors[kind] for kind in KINDS[label])
        assert measured <= 3 * max(float(said), 1e-16)
        assert float(said) <= 3 * max(measured, 1e-16)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("icgd's chain in float32", rounds.chain_in_float32),
        ("icgd's literal chain", lambda: rounds.deep_chain(0, "literal")),
        ("icgd's fused chain", lambda: rounds.deep_chain(0, "fused")),
    ],
)
def test_the_lines_of_proposition_4_4_are_those_that_the_page_says(row, found):
    _, reached, line, piled, bound = cells(row)
    run = found()
    rounding = {"rel": 0.5, "abs": 1e-15}  # other machines add in other orders
    assert float(reached) == pytest.approx(run.error, **rounding)
    assert float(bound) == pytest.approx(run.bound, **rounding)
    assert float(line) == pytest.approx(run.paper, rel=0.1)
    assert float(piled or "nan") == pytest.approx(run.piled, **rounding, nan_ok=True)


def test_counterexamples_have_the_numbers_that_the_page_says():
    printed = [c for key in ("cot-lemma-a.5", "cot-theorem-3.1") for c in finding_of(key).printed]
    for said, comparison in zip(("0.79", "stays 1", "0.66", "49"), printed, strict=True):
        assert said in PAGE
        assert float(said.split()[-1]) == pytest.approx(comparison.measured, abs=0.01)


def test_every_statement_is_named_on_the_page():
    numbers = {statement.label.split(",")[0].split()[-1] for statement in STATEMENTS}
    assert {number for number in numbers if number not in PAGE} == set()
