"""Which networks the figure trains, and which it compiles."""

import json
from importlib import import_module

import pytest

from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import ConstructionError
from icgd.pipeline import compile
from icgd_papers.results import reproduce, stored_rows
from icgd_papers.studies.wang_resources import RESOURCES
from icgd_papers.studies.wang_training import Outcome

MODULE = import_module("icgd_papers.studies.wang_resources")


@pytest.fixture
def one_construction(monkeypatch):
    """relu-stack alone, whose functions are quick to fit."""
    monkeypatch.setattr(MODULE, "CONSTRUCTIONS", {"relu-stack": CONSTRUCTIONS["relu-stack"]})


def outcome(run):
    """0.12 for narrow networks of 2 layers, 0.04 for all others."""
    error = 0.12 if (run.depth, run.width) == (2, 4) else 0.04
    error, weight = (0.5, 9.0) if run.start == 0 else (error, 2.5)
    return Outcome(error / 2, error, "converged", 30, 0.001, weight, 1.0)


def rows_of(preset):
    runs = RESOURCES.studies(preset, seed=0)
    return RESOURCES.rows(runs, [outcome(run) for run in runs])


def test_both_depths_have_one_budget_and_dimensions_2_to_8():
    runs = RESOURCES.studies("laptop", seed=5)
    assert {run.dimension for run in runs} == set(range(2, 9))
    assert {run.seed for run in runs} == {5}
    assert {run.start for run in runs} == {0, 1, 2}
    assert len({run.budget for run in runs}) == 1
    widths = {
        depth: [r.width for r in runs if (r.dimension, r.depth, r.start) == (8, depth, 2)]
        for depth in (2, 3)
    }
    assert widths == {2: [4, 8, 16, 32, 64], 3: [4, 8, 16]}
    assert max(run.width for run in RESOURCES.studies("paper", seed=0)) == 256


def test_only_best_starts_of_networks_that_suffice_are_compiled(one_construction):
    rows = [row for row in rows_of("smoke") if row["dimension"] == 2]
    assert {row["construction"] for row in rows if row["start"] == 0} == {None}
    found = {(row["depth"], row["width"]): row for row in rows if row["start"] == 1}
    assert {key: row["construction"] for key, row in found.items()} == {
        (2, 4): None,
        (2, 8): "relu-stack",
        (3, 4): "relu-stack",
        (3, 8): None,
    }
    compiled = found[2, 8]
    assert (compiled["error"], compiled["training_error"]) == (0.04, 0.02)
    assert (compiled["ended"], compiled["iterations"]) == ("converged", 30)
    assert (compiled["n_train"], compiled["most_iterations"]) == (400, 3)
    assert (compiled["largest_weight"], compiled["network_weights"]) == (2.5, 32)
    assert (compiled["layers"], compiled["heads"]) == (6, 612)
    assert found[3, 4]["layers"] == 8


def test_every_construction_for_networks_compiles_them_in_a_box_that_holds_them(monkeypatch):
    run, given = RESOURCES.studies("smoke", seed=0)[0], []

    def compiled(problem, *, n_steps, construction):
        given.append((construction, n_steps, problem.gradient_step.box, problem.domain.x))
        return compile(problem, n_steps=n_steps, construction="relu-stack")

    monkeypatch.setattr(MODULE, "compile", compiled)
    names = [row["construction"] for row in MODULE.compiled_sizes(run, 2.5)]
    assert {"relu-stack", "softmax-stack", "recursion"} <= set(names)
    assert not {"functional", "cot-ridge", "universal"} & set(names)
    assert given == [(name, 1, 3.0, 2.0) for name in names]


def test_a_construction_that_cannot_compile_a_network_is_left_out(monkeypatch):
    def refused(problem, *, n_steps, construction):
        raise ConstructionError("registers=3 is too few for these ranges")

    monkeypatch.setattr(MODULE, "compile", refused)
    rows = rows_of("smoke")
    assert len(rows) == 16  # every network is there all the same
    assert {row["construction"] for row in rows} == {None}


def test_the_summary_compares_both_depths(one_construction):
    summary = RESOURCES.summary(rows_of("smoke"))
    assert summary.names == ("d", "error", "width", "relu-stack")
    assert summary.rows[:3] == (
        ("2", "0.1", "8 / 4", "612 / 644"),
        ("2", "0.05", "8 / 4", "612 / 644"),
        ("2", "0.03", ">8 / >8", "- / -"),
    )


def test_the_smoke_preset_writes_numbers_and_picture(one_construction, tmp_path):
    done = reproduce(RESOURCES, "smoke", out=tmp_path)
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "smoke.csv",
        "smoke.json",
        "smoke.png",
    ]
    data = json.loads((done.folder / "smoke.json").read_text())
    assert data["n_models"] == 16
    assert data["budgets"] == [
        {
            "n_train": 400,
            "n_curvature": 200,
            "n_test": 500,
            "n_starts": 2,
            "n_iterations": 3,
            "least_decrease": 0.005,
            "low_enough": 0.015,
        }
    ]
    assert stored_rows(done.folder / "smoke.json") == done.numbers["rows"]
