"""What learns in each line, what is measured of it, and what table and picture say."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from icgd_papers.studies.meta_learning import (
    ALL,
    BEST,
    BUDGETS,
    HAND,
    LONGER,
    META_LEARNING,
    NEAREST,
    SIZES,
    START,
    Line,
    Outcome,
)

ROOT = Path(__file__).parents[3]
NAMES = [HAND, BEST, SIZES, START, LONGER, ALL, NEAREST]


def outcome(loss):
    """Lines whose losses fall from step to step, the later the lower."""
    lines = {
        name: Line(
            losses=tuple(loss / (place + step + 1) for step in range(6)),
            weight_distances=(0.0, *(1e-3 * step for step in range(1, 6))),
            prediction_distances=(0.0, *(1e-2 * step for step in range(1, 6))),
            mean_distances=(0.0, *(1e-1 * step for step in range(1, 6))),
            step_sizes=(0.1, 0.2, 0.3, 0.4, 0.5),
        )
        for place, name in enumerate(NAMES)
    }
    return Outcome(lines, seconds=2.0)


def rows_of(preset="laptop"):
    studies = META_LEARNING.studies(preset, seed=0)
    return META_LEARNING.rows(studies, [outcome(1.0 + study.seed) for study in studies])


def test_laptop_has_three_seeds_and_five_steps():
    studies = META_LEARNING.studies("laptop", seed=4)
    assert [study.seed for study in studies] == [4, 5, 6]
    assert studies[0].n_steps == BUDGETS["laptop"].n_steps
    assert BUDGETS["paper"].n_seeds == 5


def test_a_study_learns_stage_by_stage_and_measures_distances_from_descent(tmp_path):
    study = META_LEARNING.studies("smoke", seed=0)[0]
    study = replace(study, budget=replace(study.budget, start_steps=8, batch_size=4, n_test=20))
    found = study.train(tmp_path)
    assert list(found.lines) == NAMES
    assert study.outcome_of(asdict(found)) == found
    hand, best, sizes, start, longer, tuned, nearest = found.lines.values()
    assert hand.losses[0] == best.losses[0] == sizes.losses[0] != start.losses[0]
    assert best.losses[-1] < hand.losses[-1]
    assert start.losses[-1] < best.losses[-1]
    assert hand.step_sizes == (0.1,) * 5
    assert len(set(best.step_sizes)) == 1 < len(set(sizes.step_sizes))
    for line in (hand, best, sizes, start, longer):
        assert max(line.weight_distances + line.prediction_distances) < 1e-12
        assert line.mean_distances[0] < 1e-12
    assert tuned.step_sizes == longer.step_sizes != start.step_sizes
    assert tuned.prediction_distances[-1] > 1e-6
    assert tuned.mean_distances[-1] > 1e-6
    assert nearest.prediction_distances != tuned.prediction_distances
    (tmp_path / "outcome.json").unlink(missing_ok=True)
    assert study.train(tmp_path).lines == found.lines  # all stages are read again


def test_there_is_a_row_for_each_seed_line_and_step():
    rows = rows_of("smoke")
    assert len(rows) == 7 * 6
    assert rows[1] == {
        **{"line": HAND, "seed": 0, "step": 1, "loss": 0.5, "weight_distance": 0.001},
        **{"prediction_distance": 0.01, "mean_distance": 0.1, "step_size": 0.1, "width": 3},
        **{
            "learning_steps": 0,
            "learning_rate": None,
            "n_examples": 10,
            "n_queries": 10,
            "n_test": 4,
            "batch_size": 2,
            "seconds": 2.0,
        },
    }
    assert rows[0]["step_size"] is None
    steps = {row["line"]: (row["learning_steps"], row["learning_rate"]) for row in rows}
    expected = [(0, None)] * 2 + [(1, 0.05), (2, 0.02), (4, 0.02), (5, 3e-6), (5, 0.003)]
    assert list(steps.values()) == expected


def test_the_summary_has_means_and_the_spread_over_the_seeds():
    summary = META_LEARNING.summary(rows_of())
    assert [row[0] for row in summary.rows] == NAMES
    assert summary.rows[0] == (
        *(HAND, "2.0000", "1.0000", "0.5000", "0.3333", "0.1667 to 0.5000"),
        *("5.0e-03", "5.0e-02", "5.0e-01"),
    )


def test_the_docs_show_the_committed_numbers():
    path = ROOT / "results/meta-learning/laptop.json"
    if not path.exists():
        pytest.skip("there are no results yet")
    numbers = json.loads(path.read_text())
    page = (ROOT / "docs/training/through_the_run.md").read_text(encoding="utf-8")
    for row in numbers["summary"]:
        assert f"| {' | '.join(row.values())} |" in page
    assert META_LEARNING.summary(numbers["rows"]).rows == tuple(
        tuple(row.values()) for row in numbers["summary"]
    )
    assert "dirty" not in numbers["commit"]
