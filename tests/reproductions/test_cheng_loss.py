"""Which models the figures of losses train, and what their table and picture say."""

import pytest

from icgd.reproductions import plotting
from icgd.reproductions.cheng_loss import FIGURE_1, FIGURE_2, FIGURE_4, SMALLEST_LOSS
from icgd.reproductions.cheng_training import Outcome


def outcome(run):
    """A loss of 0.25 for the matched kernel, more for others, and more for the second seed."""
    loss = 0.25 if run.attention == (run.labels,) else 0.5
    return Outcome(loss * (1 + 2 * run.seed), 0.125, 0.02, 1.0, ())


def rows_of(figure, preset):
    runs = figure.studies(preset, seed=0)
    return figure.rows(runs, [outcome(run) for run in runs])


def test_figure_1_varies_the_examples_of_three_layers():
    runs = FIGURE_1.studies("laptop", seed=4)
    assert {run.n_layers for run in runs} == {3}
    assert {run.n_examples for run in runs} == {2, 6, 10, 14}
    assert {run.seed for run in runs} == {4, 5}
    pairs = {(run.labels, run.attention) for run in runs}
    assert len(pairs) == 12
    assert ("exp", ("softmax",)) in pairs
    assert all(run.transforms_covariates for run in runs)


def test_figure_2_varies_the_layers_for_14_and_6_examples():
    runs = FIGURE_2.studies("paper", seed=0)
    assert {run.n_layers for run in runs} == set(range(1, 9))
    assert {(run.labels, run.n_examples) for run in runs} == {
        ("relu", 14),
        ("exp", 14),
        ("relu", 6),
        ("exp", 6),
    }


def test_figure_4_has_one_head_or_two():
    runs = FIGURE_4.studies("smoke", seed=0)
    assert {run.attention for run in runs} == {("linear",), ("exp",), ("linear", "exp")}
    assert {run.labels for run in runs} == {"linear", "exp", "linear + exp"}


def test_exp_attention_learns_from_the_logarithm_of_the_averaged_loss():
    for run in FIGURE_2.studies("laptop", seed=0):
        assert run.budget.logarithmic == ("exp" in run.attention)
    assert all(run.budget.logarithmic for run in FIGURE_4.studies("laptop", seed=0))
    assert not any(run.budget.logarithmic for run in FIGURE_4.studies("paper", seed=0))


def test_the_summary_names_the_attention_with_the_least_mean_loss():
    summary = FIGURE_1.summary(rows_of(FIGURE_1, "laptop"))
    assert summary.names == (
        *("labels", "n", "linear", "relu", "exp", "softmax"),
        *("Bayes", "best"),
    )
    found = {row[:2]: row[2:] for row in summary.rows}
    assert len(found) == 12
    assert found["relu", "6"] == ("1.0000", "0.5000", "1.0000", "1.0000", "0.1250", "relu")


def test_the_summary_shows_small_losses_too():
    rows = [row | {"bayes_loss": 0.0, "test_loss": 2e-5} for row in rows_of(FIGURE_4, "smoke")]
    assert FIGURE_4.summary(rows).rows[0][2:6] == ("2.0e-05", "2.0e-05", "2.0e-05", "0")


def test_the_summary_has_a_column_for_each_size_that_varies():
    assert FIGURE_2.summary(rows_of(FIGURE_2, "smoke")).names[:3] == ("labels", "n", "layers")
    assert FIGURE_4.summary(rows_of(FIGURE_4, "smoke")).names[:3] == ("labels", "layers", "linear")


def test_the_picture_shows_the_geometric_mean_and_the_range_of_the_seeds():
    figure = FIGURE_2.picture(rows_of(FIGURE_2, "laptop"))
    panel = figure.axes[0]
    assert panel.get_title(loc="left") == "relu labels, n = 14"
    relu, _, softmax, best = panel.lines
    assert relu.get_xdata().tolist() == [1, 2, 4, 8]
    assert relu.get_ydata().tolist() == pytest.approx([(0.25 * 0.75) ** 0.5] * 4)
    assert softmax.get_ydata().tolist() == pytest.approx([(0.5 * 1.5) ** 0.5] * 4)
    assert best.get_ydata().tolist() == pytest.approx([0.125] * 4)
    edges = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (0.25, 0.75)


def test_a_best_loss_of_0_has_no_place_on_a_logarithmic_axis():
    rows = [row | {"bayes_loss": 0.0} for row in rows_of(FIGURE_4, "smoke")]
    figure = FIGURE_4.picture([rows[0] | {"test_loss": 0.0}, *rows[1:]])
    assert [len(panel.lines) for panel in figure.axes] == [3, 3, 3]
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([SMALLEST_LOSS, 0.25])
    assert plotting.png(figure).startswith(b"\x89PNG")
