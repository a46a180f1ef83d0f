"""Which gradients are compared, and that those that can be exact are."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from icgd_papers.studies.meta_gradients import ASKED, CASES, GRADIENTS, Outcome

ROOT = Path(__file__).parents[3]


def rows_of(preset="laptop"):
    studies = GRADIENTS.studies(preset, seed=0)
    found = [Outcome(1e-12, 10.0 ** -(9 + study.seed), 0.0, 1.0) for study in studies]
    return GRADIENTS.rows(studies, found)


def test_pieces_are_compared_beside_what_is_exact():
    studies = GRADIENTS.studies("laptop", seed=2)
    assert len(studies) == 3 * len(CASES)
    assert {study.seed for study in studies} == {2, 3, 4}
    assert [case.pieces for case in CASES if case.activation == "tanh"] == [None, 32, 128, 512]
    assert CASES[-1].name == "relu-stack, tanh, squared, 512 pieces"


def test_a_study_measures_both_gradients():
    softmax, relu, pieces = (study.train() for study in GRADIENTS.studies("smoke", seed=0))
    for exact in (softmax, relu):
        assert max(exact.predictions, exact.step_sizes, exact.start) < ASKED / 10
    assert 1e-3 < pieces.start < 0.2
    study = GRADIENTS.studies("smoke", seed=0)[0]
    assert study.outcome_of(asdict(softmax)) == softmax


def test_rows_and_summary():
    rows = rows_of()
    assert rows[1] == {
        **{"case": "softmax-stack, tanh, squared", "construction": "softmax-stack"},
        **{"activation": "tanh", "loss": "squared", "pieces": None, "seed": 1, "n_steps": 3},
        **{"n_examples": 5, "n_tasks": 3, "prediction_error": 1e-12, "step_size_error": 1e-10},
        **{"start_error": 0.0, "seconds": 1.0},
    }
    summary = GRADIENTS.summary(rows)
    assert summary.rows[0] == ("softmax-stack, tanh, squared", "1.0e-12", "1.0e-09", "0.0e+00")
    assert len(summary.rows) == len(CASES)


def test_the_picture_has_a_point_for_each_seed_and_gradient():
    [panel] = GRADIENTS.picture(rows_of()).axes
    sizes, start, asked = panel.lines
    assert len(sizes.get_xdata()) == len(start.get_xdata()) == 3 * len(CASES)
    assert set(start.get_xdata()) == {1e-17}
    assert asked.get_xdata() == [ASKED, ASKED]
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels == [case.name for case in CASES]


def test_the_docs_show_the_committed_numbers():
    path = ROOT / "results/meta-gradients/laptop.json"
    if not path.exists():
        pytest.skip("there are no results yet")
    numbers = json.loads(path.read_text())
    page = (ROOT / "docs/training/through_the_run.md").read_text(encoding="utf-8")
    for row in numbers["summary"]:
        assert f"| {' | '.join(row.values())} |" in page
    assert "dirty" not in numbers["commit"]
    exact = [row for row in numbers["rows"] if row["pieces"] is None]
    assert max(max(row["step_size_error"], row["start_error"]) for row in exact) < ASKED
