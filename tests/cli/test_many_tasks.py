"""`icgd run --tasks`."""

import json

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from icgd import many_tasks
from tests.cli.files import compiled_run, listing, write_all

RNG = np.random.default_rng(0)
X, Y, QUERIES = (RNG.uniform(-1, 1, shape) for shape in [(5, 3, 4), (5, 3), (5, 2, 4)])


@pytest.fixture
def run(command, tmp_path):
    """`icgd run --tasks` on a folder of five tasks, in this process."""
    write_all(tmp_path)
    (tmp_path / "tasks").mkdir()
    save_file({"x": X, "y": Y, "queries": QUERIES}, tmp_path / "tasks/a.safetensors")
    options = ("--tasks", "tasks", "-o", "out", "--workers", "1", "--chunk-size", "2")
    return lambda *more: command("run", "run.safetensors", *options, *more)


def test_results_are_those_of_the_library(run, tmp_path):
    outcome = run("--seed", "3", "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    counts = {"output": "out", "tasks": 5, "failed": 0, "unreadable files": 0, "failures": []}
    assert json.loads(outcome.stdout) == counts
    rows = pl.read_parquet(tmp_path / "out/part-*.parquet")
    for place, predictions in enumerate(rows["predictions"].to_list()):
        alone = compiled_run().run(X[place], Y[place], queries=QUERIES[place], seed=3)
        assert predictions == pytest.approx(alone.predictions.flatten().tolist(), abs=1e-13)
    parts = [f"out/part-000000-00000{place}.parquet" for place in range(3)]
    expected = ["out", "out/.lock", "out/failures.csv", "out/manifest.json", *parts]
    assert [name for name in listing(tmp_path) if name.startswith("out")] == expected


def test_a_bad_task_is_shown_and_ends_with_1(run, tmp_path):
    x = X.copy()
    x[3, 1, 2] = 9
    save_file({"x": x, "y": Y}, tmp_path / "tasks/b.safetensors")
    (tmp_path / "tasks/c.parquet").write_bytes(b"half")
    outcome = run()
    assert outcome.code == 1
    text = " ".join(outcome.stdout.split())
    assert "tasks 10 failed 1 unreadable files 1" in text
    assert "b.safetensors" in text
    assert "X[1, 2] is 9, outside" in text
    assert "c.parquet" in text
    assert outcome.stdout.endswith("Saved out\n")


def test_ctrl_c_says_how_to_go_on(run, monkeypatch):
    write, n_written = many_tasks._write, []

    def interrupted(*given):
        if len(n_written) == 2:
            raise KeyboardInterrupt
        n_written.append(write(*given))

    with monkeypatch.context() as patch:
        patch.setattr(many_tasks, "_write", interrupted)
        outcome = run()
    assert (outcome.code, outcome.stdout) == (130, "")
    expected = "icgd: The run was interrupted; 4 of 5 tasks are finished and saved in out. Run it"
    assert outcome.stderr == f"{expected} again to resume.\n"
    assert run().code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train.csv"], "DATA has no effect beside --tasks"),
        (["--queries", "new.csv"], "--queries has no effect beside --tasks"),
        (["--plot", "a.svg"], "--plot has no effect beside --tasks"),
        (["--stop-below", "1"], "--stop-below has no effect beside --tasks"),
        (["--standardize"], "--standardize has no effect without DATA"),
        (["--target", "y"], "--target has no effect without DATA"),
        (["--chunk-size", "0"], "chunk_size"),
        (["--workers", "0"], "n_workers"),
        (["--ray", "auto"], "n_workers has no effect with ray_address"),
    ],
)
def test_options_that_do_not_fit_are_refused(run, tmp_path, options, message):
    assert message in run(*options).refusal()
    assert not (tmp_path / "out").exists()


def test_one_of_table_and_folder_is_needed(run, command):
    assert (
        "Give DATA, a table of examples, or --tasks" in command("run", "run.safetensors").refusal()
    )
    assert (
        "--tasks needs --output" in command("run", "run.safetensors", "--tasks", "tasks").refusal()
    )
    assert (
        "--workers has no effect without --tasks"
        in command("run", "run.safetensors", "train.csv", "--workers", "2").refusal()
    )
    assert (
        "There is no folder none"
        in command("run", "run.safetensors", "--tasks", "none", "-o", "out").refusal()
    )
