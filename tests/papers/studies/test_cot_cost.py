"""The smoke preset from measurement to files, and what the rows are made of."""

import csv
import json
from dataclasses import replace
from importlib import import_module

import pytest

from icgd_papers.results import reproduce
from icgd_papers.studies.cost_cases import Measured
from icgd_papers.studies.cost_steps import VARIANTS
from icgd_papers.studies.cot_cost import AXES, COST, Outcome

MODULE = import_module("icgd_papers.studies.cot_cost")


TINY = replace(
    MODULE.PRESETS["smoke"],
    depths=(2,),
    counted_depths=(4, 8),
    widths=(2,),
    lengths=(16,),
    counted_lengths=(32,),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The smoke preset of two constructions, with one size of each kind and some to be counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODULE.PRESETS, "smoke", TINY)
        patch.setattr(MODULE, "VARIANTS", VARIANTS[::2])  # relu-stack and cot-network
        return reproduce(COST, "smoke", out=tmp_path_factory.mktemp("results"))


def rows_where(rows, **wanted):
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def test_the_smoke_preset_writes_numbers_and_picture(finished):
    names = sorted(path.name for path in finished.folder.iterdir())
    assert names == ["smoke.csv", "smoke.json", "smoke.png"]
    data = json.loads((finished.folder / "smoke.json").read_text())
    assert (data["figure"], data["place"]) == ("cot-cost", "Remark 4.1")
    assert data["budgets"][0]["depths"] == [2]
    with (finished.folder / "smoke.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(data["rows"])


def test_every_case_has_its_counts_and_says_if_it_was_not_run(finished):
    rows = finished.numbers["rows"]
    assert list(dict.fromkeys(row["axis"] for row in rows)) == list(AXES)
    deepest = rows_where(rows, axis="depth", size=8)
    assert len(deepest) == 4
    assert {row["why_not_measured"] for row in deepest} == {"counted only"}
    assert {row["flops_measured"] for row in deepest} == {None}
    for row in rows_where(rows, axis="depth", size=2) + rows_where(rows, axis="length", size=16):
        assert row["why_not_measured"] is None
        assert row["flops_measured"] == pytest.approx(row["flops_counted"], rel=0.05)
        assert row["bytes_measured"] > 0
    assert [row["seconds"] for row in rows_where(rows, axis="wide box")] == [None] * 2


def test_the_summary_has_the_exponents_of_every_line(finished):
    summary = finished.summary
    assert summary.names == ("over", "what", "time", "at", "FLOPs", "memory", "both at")
    chain = next(row for row in summary.rows if row[:2] == ("depth", "cot-network, dense"))
    assert chain[4:] == ("1.00", "0.00", "2-8")
    stack = next(row for row in summary.rows if row[:2] == ("depth", "relu-stack, dense"))
    assert 1.5 < float(stack[4]) < 2
    assert len(summary.rows) == 4 + 4 + 5


def test_a_row_has_the_median_of_its_turns_and_the_counts_of_the_first():
    runs = COST.studies("smoke", seed=0)
    budget = runs[0].budget
    turns = [MODULE.Study("wide box", turn, 0, budget) for turn in range(3)]
    n_cases = len(turns[0].cases())
    measured = [Measured(3.0, 7, 5), Measured(1.0), Measured(None)]
    outcomes = [Outcome((each,) * n_cases, 1.0) for each in measured]
    row = COST.rows(turns, outcomes)[0]
    assert (row["seconds"], row["fastest_turn"], row["slowest_turn"]) == (2.0, 1.0, 3.0)
    assert (row["flops_measured"], row["bytes_measured"]) == (7, 5)
    assert (row["depth"], row["width"], row["axis"]) == (2, 2, "wide box")


def test_the_laptop_preset_covers_depths_to_64_and_is_timed_turn_by_turn():
    runs = COST.studies("laptop", seed=3)
    assert [run.axis for run in runs[:5]] == [*AXES, "depth"]
    assert {run.turn for run in runs} == set(range(4))
    cases = runs[0].cases()
    run = [case for case in cases if case.is_run]
    assert sorted({case.size for case in run}) == [2, 4, 8, 16, 32, 64]
    assert {case.network.width for case in cases} == {8}
    assert {case.network.depth for case in runs[1].cases()} == {4}
    assert all(case.is_run for case in runs[1].cases())
    assert {case.network.seed for case in cases} == {3}


def test_an_outcome_comes_back_from_its_file():
    run = COST.studies("smoke", seed=0)[0]
    outcome = Outcome((Measured(1.0, 2, 3), Measured(why_not="too large")), 4.0)
    data = {
        "measured": [
            {"seconds": 1.0, "flops": 2, "bytes": 3, "why_not": None},
            {"seconds": None, "flops": None, "bytes": None, "why_not": "too large"},
        ],
        "seconds": 4.0,
    }
    assert run.outcome_of(data) == outcome
