"""Laws of every figure: it runs, and its committed rows are summarised, drawn and timed."""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path

import polars as pl
import pytest

from icgd.pictures import plotting
from icgd_papers.figure import PRESETS
from icgd_papers.registry import FIGURES
from icgd_papers.runner import Reproduction, core_seconds, reproduce, stored_results, stored_rows

RESULTS = Path(__file__).parents[2] / "results"

each_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)


def test_every_committed_result_belongs_to_a_figure():
    assert {path.name for path in RESULTS.iterdir()} == FIGURES.keys()


@each_figure
def test_the_smoke_preset_runs_to_the_end(figure, tmp_path):
    done = reproduce(Reproduction(figure, "smoke", tmp_path))
    assert done.rows.height >= len(figure.settings("smoke", 0))
    assert done.summary.height > 0
    assert [done.files[0], done.files[2]] == ["smoke.json", "smoke.png"]
    # A resumed run finds what it kept; a run from scratch finds the same rows.
    again = reproduce(Reproduction(figure, "smoke", tmp_path / "again", seed=0))
    measured = [name for name in done.rows.columns if "second" in name]
    if figure.name != "cot-cost":  # which measures times
        assert again.rows.drop(measured).equals(done.rows.drop(measured))


@each_figure
def test_settings_are_plain_data_and_told_apart(figure):
    for preset in PRESETS:
        settings = figure.settings(preset, 0)
        texts = [json.dumps(asdict(setting), sort_keys=True) for setting in settings]
        assert all(is_dataclass(setting) for setting in settings)
        assert len(set(texts)) == len(texts)
        assert all(figure.work(setting) > 0 for setting in settings)


@each_figure
def test_committed_rows_are_summarised_and_drawn(figure):
    path = RESULTS / figure.name / "laptop.json"
    rows, facts = stored_rows(path), stored_results(path)
    assert figure.summarise(rows).to_dicts() == facts["summary"]
    assert len(plotting.png(figure.draw(rows))) > 10_000
    written = pl.read_csv(path.with_suffix(".csv"), infer_schema_length=None)
    assert written.columns == rows.columns
    assert written.height == rows.height


@each_figure
def test_listed_times_are_those_of_the_committed_runs(figure):
    facts = stored_results(RESULTS / figure.name / "laptop.json")
    took = facts.get("core_seconds", facts.get("training_seconds"))
    times = core_seconds(figure.name)
    assert times["laptop"] == took
    assert times["paper"] > 0
