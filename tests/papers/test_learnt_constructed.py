"""learnt-constructed: a learnt model beside the constructions, and what is shown of both."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from icgd_papers.figure import Job
from icgd_papers.runner import stored_results, stored_rows
from icgd_papers.studies import learnt_constructed
from icgd_papers.training.constructed import FAMILIES, NEAR

ROOT = Path(__file__).parents[2]


def test_labels_and_attention_have_the_same_kernel_and_inputs_stay_where_they_are():
    settings = learnt_constructed.settings("laptop", seed=4)
    assert {(setting.labels, setting.n_layers, setting.seed) for setting in settings} == {
        (kernel, n_layers, seed)
        for kernel in ("linear", "relu", "exp")
        for n_layers in (1, 2, 3)
        for seed in (4, 5, 6)
    }
    assert all(setting.attention == (setting.labels,) for setting in settings)
    assert not any(setting.transforms_covariates for setting in settings)


def test_a_job_trains_a_model_and_fits_the_constructions():
    setting = learnt_constructed.settings("smoke", 0)[-1]
    budget = replace(setting.budget, n_steps=30, batch_size=50, n_test=50)
    rows = learnt_constructed.run(replace(setting, budget=budget), Job())
    assert rows["family"].to_list() == [*FAMILIES, NEAR]
    row = rows.row(0, named=True)
    assert (row["kernel"], row["n_layers"]) == ("exp", 2)
    assert row["bayes_loss"] < rows["loss"].min()  # the best predictor of all
    assert row["bayes_loss"] < row["learnt_loss"] < 3
    # Each family contains the one before it, and all are fitted on one batch.
    assert rows["loss"][0] > rows["loss"][1] > 0.9 * rows["loss"][2]
    assert 0 < row["off_descent"] < 1
    assert rows["cosine"].is_between(-1, 1).all()


@pytest.fixture(scope="module")
def committed():
    return stored_rows(ROOT / "results/learnt-constructed/laptop.json")


def test_the_picture_has_losses_above_and_cosines_below(committed):
    axes = learnt_constructed.draw(committed).axes
    assert [len(panel.lines) for panel in axes] == [5, 6, 6, 4, 4, 4]  # linear labels: Bayes 0
    relu = (
        committed.filter(kernel="relu", family="steps")
        .group_by("n_layers")
        .agg(pl.col("loss").log().mean().exp(), apart=(1 - pl.col("cosine")).log().mean().exp())
    )
    relu = relu.sort("n_layers")
    assert axes[1].lines[1].get_ydata() == pytest.approx(relu["loss"].to_numpy())
    assert axes[4].lines[1].get_ydata() == pytest.approx(relu["apart"].to_numpy())
    assert axes[1].get_xticks().tolist() == [1, 2, 3]


def test_the_page_shows_the_committed_numbers():
    page = (ROOT / "docs/training/models.md").read_text(encoding="utf-8")
    for line in stored_results(ROOT / "results/learnt-constructed/laptop.json")["summary"]:
        assert f"| {' | '.join(line.values())} |" in page
