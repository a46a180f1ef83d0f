"""Which models the figures of distances train, and what their table and picture say."""

import pytest

from icgd_papers.figures.cheng_matrices import FIGURE_3, FIGURE_5, FIGURE_6
from icgd_papers.figures.cheng_training import Outcome


def outcome(run, last):
    """Distances that fall from 0.8 to `last`."""
    names = ["BC_0", "BC_1", "BC_2", *(["A_0", "A_1"] if run.transforms_covariates else [])]
    curve = (
        {"step": 0.0, **dict.fromkeys(names, 0.8)},
        {"step": 9.0, **dict.fromkeys(names, last)},
    )
    return Outcome(0.5, 0.25, 0.02, 1.0, curve)


def rows_of(figure, last, preset="smoke"):
    runs = figure.studies(preset, seed=0)
    return figure.rows(runs, [outcome(run, last) for run in runs])


def test_three_layers_read_30_examples():
    for figure, free in ((FIGURE_5, {False}), (FIGURE_6, {True}), (FIGURE_3, {False, True})):
        runs = figure.studies("laptop", seed=2)
        assert {(run.n_layers, run.n_examples) for run in runs} == {(3, 30)}
        assert {run.transforms_covariates for run in runs} == free
        assert {run.seed for run in runs} == {2, 3, 4}
    assert {(run.labels, run.attention) for run in FIGURE_3.studies("paper", 0)} == {
        ("exp", ("softmax",))
    }


def test_panels_have_a_row_for_each_attention():
    pairs = [(panel.labels, panel.attention) for panel in FIGURE_5.panels]
    assert pairs[:4] == [
        ("linear", "linear"),
        ("relu", "linear"),
        ("exp", "linear"),
        ("linear", "relu"),
    ]
    assert len(set(pairs)) == 9
    assert "".join(panel.letter for panel in FIGURE_6.panels) == "abcdefghi"


def test_a_row_has_the_place_the_outcome_and_every_setting_of_a_model():
    row = rows_of(FIGURE_3, last=0.04)[-1]
    assert (row["panel"], row["step"], row["A_1"], row["test_loss"]) == ("b", 9, 0.04, 0.5)
    settings = FIGURE_3.studies("smoke", seed=0)[-1].budget
    columns = ("n_steps", "batch_size", "n_test", "resample_every", "averages_labels")
    for name in (*columns, "logarithmic", "clip_norm"):
        assert row[name] == getattr(settings, name)
    assert row["n_steps"] == 10


def test_the_summary_says_whether_all_matrices_are_close():
    summary = FIGURE_3.summary(rows_of(FIGURE_3, last=0.04))
    assert summary.names == (
        *("pair", "A", "seed"),
        *("BC_0", "BC_1", "BC_2", "A_0", "A_1", "near"),
    )
    fixed, free = summary.rows
    close = "0.040"
    assert fixed == ("exp, softmax", "0", "0", close, close, close, "", "", "yes")
    assert free == ("exp, softmax", "free", "0", close, close, close, close, close, "yes")
    assert [row[-1] for row in FIGURE_3.summary(rows_of(FIGURE_3, last=0.3)).rows] == ["no", "no"]
    assert "A_0" not in FIGURE_5.summary(rows_of(FIGURE_5, last=0.3)).names


def test_the_picture_follows_every_matrix_over_the_steps():
    figure = FIGURE_3.picture(rows_of(FIGURE_3, last=0.04, preset="laptop"))
    fixed, free = figure.axes
    assert (len(fixed.lines), len(free.lines)) == (1 + 3, 1 + 5)  # a line at 0.1, and the matrices
    assert free.lines[5].get_xdata().tolist() == [0, 9]
    assert free.lines[5].get_ydata().tolist() == pytest.approx([0.8, 0.04])
    [legend] = figure.legends
    assert len(legend.get_texts()) == 5
