"""Which models the figures of losses train, and what their table and picture say."""

from dataclasses import replace

import pytest

from icgd.pictures import plotting
from icgd_papers.figures.cheng_loss import FIGURE_1, FIGURE_2, FIGURE_4, LOSSES, SMALLEST_LOSS
from icgd_papers.figures.cheng_training import Outcome


def outcome(run):
    """A loss of 0.25 for the matched kernel, more for others, and more for later seeds."""
    loss = 0.25 if run.attention == (run.labels,) else 0.5
    return Outcome(loss * (1 + 2 * run.seed), 0.125, 0.02, 1.0, ())


def rows_of(figure, preset):
    runs = figure.studies(preset, seed=0)
    return figure.rows(runs, [outcome(run) for run in runs])


def test_figure_1_varies_the_examples_of_three_layers():
    runs = FIGURE_1.studies("laptop", seed=4)
    assert {run.n_layers for run in runs} == {3}
    assert {run.n_examples for run in runs} == {2, 4, 6, 8, 10, 12, 14}
    assert {run.seed for run in runs} == {4, 5, 6}
    pairs = {(run.labels, run.attention) for run in runs}
    assert len(pairs) == 12
    assert ("exp", ("softmax",)) in pairs
    assert all(run.transforms_covariates for run in runs)


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_figure_2_varies_the_layers_for_14_and_6_examples(preset):
    runs = FIGURE_2.studies(preset, seed=0)
    assert {run.n_layers for run in runs} == set(range(1, 9))
    assert {(run.panel, run.labels, run.n_examples) for run in runs} == {
        ("a", "relu", 14),
        ("b", "exp", 14),
        ("c", "relu", 6),
        ("d", "exp", 6),
    }


def test_figure_4_has_one_head_or_two():
    runs = FIGURE_4.studies("smoke", seed=0)
    assert {run.attention for run in runs} == {("linear",), ("exp",), ("linear", "exp")}
    assert {run.labels for run in runs} == {"linear", "exp", "linear + exp"}


def test_all_models_of_a_panel_learn_from_the_same_loss():
    for figure, plain in ((FIGURE_1, {"a"}), (FIGURE_2, set()), (FIGURE_4, set())):
        for run in figure.studies("laptop", seed=0):
            assert run.budget.logarithmic == (run.panel not in plain)
        assert not any(run.budget.logarithmic for run in figure.studies("paper", seed=0))


def test_the_control_trains_every_panel_of_figure_1_on_the_other_loss():
    ours, theirs = (
        {(run.panel, run.labels, run.attention): run.budget for run in figure.studies("laptop", 0)}
        for figure in (LOSSES, FIGURE_1)
    )
    assert ours.keys() == theirs.keys()
    for place, budget in ours.items():
        assert budget == replace(theirs[place], logarithmic=not theirs[place].logarithmic)


def test_a_row_has_the_place_the_outcome_and_every_setting_of_a_model():
    assert rows_of(FIGURE_2, "laptop")[-1] == {
        "panel": "d",
        "labels": "exp",
        "attention": "softmax",
        "n_examples": 6,
        "n_layers": 8,
        "transforms_covariates": True,
        "seed": 2,
        "test_loss": 0.5 * 5,
        "bayes_loss": 0.125,
        "learning_rate": 0.02,
        "seconds": 1.0,
        "n_steps": 500,
        "batch_size": 250,
        "n_test": 4000,
        "resample_every": 4,
        "averages_labels": True,
        "logarithmic": True,
        "clip_norm": 1.0,
    }


def test_the_summary_names_the_attention_with_the_least_mean_loss():
    summary = FIGURE_1.summary(rows_of(FIGURE_1, "laptop"))
    assert summary.names == (
        *("labels", "n", "linear", "relu", "exp", "softmax"),
        *("Bayes", "best"),
    )
    found = {row[:2]: row[2:] for row in summary.rows}
    assert len(found) == 21
    assert found["relu", "6"] == ("1.5000", "0.7500", "1.5000", "1.5000", "0.1250", "relu")


def test_the_summary_shows_small_losses_too():
    rows = [row | {"bayes_loss": 0.0, "test_loss": 2e-5} for row in rows_of(FIGURE_4, "smoke")]
    assert FIGURE_4.summary(rows).rows[0][2:6] == ("2.0e-05", "2.0e-05", "2.0e-05", "0")


def test_the_summary_has_a_column_for_each_size_that_varies():
    assert FIGURE_2.summary(rows_of(FIGURE_2, "smoke")).names[:3] == ("labels", "n", "layers")
    assert FIGURE_4.summary(rows_of(FIGURE_4, "smoke")).names[:3] == ("labels", "layers", "linear")


def test_the_picture_shows_the_geometric_mean_and_the_range_of_the_seeds():
    figure = FIGURE_2.picture(rows_of(FIGURE_2, "laptop"))
    panel = figure.axes[0]
    assert panel.get_title(loc="left") == "(a) relu labels, n = 14"
    relu, _, softmax, best = panel.lines
    assert relu.get_xdata().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert relu.get_ydata().tolist() == pytest.approx([(0.25 * 0.75 * 1.25) ** (1 / 3)] * 8)
    assert softmax.get_ydata().tolist() == pytest.approx([(0.5 * 1.5 * 2.5) ** (1 / 3)] * 8)
    assert best.get_ydata().tolist() == pytest.approx([0.125] * 8)
    edges = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (0.25, 1.25)


def test_a_best_loss_of_0_has_no_place_on_a_logarithmic_axis():
    rows = [row | {"bayes_loss": 0.0} for row in rows_of(FIGURE_4, "smoke")]
    figure = FIGURE_4.picture([rows[0] | {"test_loss": 0.0}, *rows[1:]])
    assert [len(panel.lines) for panel in figure.axes] == [3, 3, 3]
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([SMALLEST_LOSS, 0.25])
    assert plotting.png(figure).startswith(b"\x89PNG")
