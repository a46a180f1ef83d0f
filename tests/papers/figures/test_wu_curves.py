"""Which studies the panels have, and what table and picture say of outcomes made by hand."""

from pathlib import Path

import pytest

from icgd.errors import UnknownNameError
from icgd_papers.figures.wu_baselines import BaselineStudy
from icgd_papers.figures.wu_curves import FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4
from icgd_papers.figures.wu_learnt import LearntStudy
from icgd_papers.figures.wu_lines import Outcome, Point
from icgd_papers.registry import REPRODUCTIONS
from tests.papers.committed import committed

ROOT = Path(__file__).parents[3]
FIGURES = [FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4]
LINES = ("direct, last epoch", "direct, best epoch", "label mean", "ridge", "arc-cosine")


def outcome(study):
    """The decoder has 0.9, less 0.01 for each seed and each law; the other lines have 0.5."""
    budget = study.budget
    if isinstance(study, LearntStudy):
        points = [
            Point(
                law.inputs,
                law.teachers,
                "learnt decoder",
                n,
                0.9 - 0.01 * (place + study.seed),
                0.0,
            )
            for place, law in enumerate(study.laws)
            for n in budget.lengths
        ]
    else:
        names = (*LINES, *(f"constructed, {n} steps" for n in budget.baselines.step_counts))
        points = [
            Point(study.law.inputs, study.law.teachers, line, n, 0.5, 0.25, 0.01)
            for line in names
            for n in budget.lengths
        ]
    return Outcome(tuple(points), 1.0)


def rows_of(figure, preset="laptop"):
    studies = figure.studies(preset, seed=0)
    return figure.rows(studies, [outcome(study) for study in studies])


def test_there_is_a_decoder_for_each_depth_and_seed_and_other_lines_for_each_panel():
    studies = FIGURE_1.studies("laptop", seed=4)
    learnt = [study for study in studies if isinstance(study, LearntStudy)]
    rest = [study for study in studies if isinstance(study, BaselineStudy)]
    assert {study.seed for study in studies} == {4, 5, 6}
    assert (len(learnt), len(rest)) == (3 * 3, 3 * 4 * 3)
    assert {study.n_layers for study in learnt} == {3, 4, 6}
    assert {study.law.inputs for study in rest} == {
        "(1, 0)",
        "(0.9, 0.1)",
        "(0.7, 0.3)",
        "(0.5, 0.5)",
    }
    assert [figure.attention for figure in FIGURES] == ["relu", "softmax"] * 2


def test_decoders_with_relu_attention_learn_longer_on_a_laptop_and_other_lines_are_shared():
    relu, softmax = (figure.studies("laptop", seed=0) for figure in (FIGURE_1, FIGURE_2))
    assert relu[9:] == softmax[9:]  # behind the decoders
    for studies, expected in ((relu, (2000, 0.003, 100)), (softmax, (1200, 0.002, 50))):
        budgets = {study.budget for study in studies[:9]}
        assert [(b.n_steps, b.learning_rate, b.warmup_steps) for b in budgets] == [expected]
    paper = {study.budget for study in FIGURE_1.studies("paper", seed=0)}
    assert paper == {study.budget for study in FIGURE_2.studies("paper", seed=0)}


def test_figures_3_and_4_shift_the_teachers_of_4_layers():
    for figure in (FIGURE_3, FIGURE_4):
        studies = figure.studies("laptop", seed=0)
        assert {study.n_layers for study in studies} == {4}
        laws = {study.law for study in studies if isinstance(study, BaselineStudy)}
        assert {law.teachers for law in laws} == {"N(0, I)", "N(-0.5, I)", "N(0.5, I)"}
        assert {law.inputs for law in laws} == {"(1, 0)"}


def test_a_panel_has_its_own_studies_and_rows_and_keeps_its_letter():
    part = FIGURE_1.only(["panel-f"])
    studies = part.studies("laptop", seed=0)
    assert set(studies) <= set(FIGURE_1.studies("laptop", seed=0))
    assert {study.n_layers for study in studies} == {4}
    assert len(studies) == 3 + 3
    rows = part.rows(studies, [outcome(study) for study in studies])
    assert {(row["panel"], row["n_layers"], row["inputs"]) for row in rows} == {
        ("f", 4, "(0.9, 0.1)")
    }
    with pytest.raises(UnknownNameError, match="panel-z"):
        FIGURE_1.only(["panel-z"])


def test_an_unknown_preset_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown preset 'huge'; known are smoke, laptop"):
        FIGURE_1.studies("huge", seed=0)


def test_rows_have_every_setting_that_decides_the_outcome():
    row = rows_of(FIGURE_2)[0]
    assert (row["panel"], row["n_layers"], row["line"]) == ("a", 3, "learnt decoder")
    assert row["attention"] == "softmax"
    for name in ("input_width", "hidden_width", "pretraining_length", "n_steps", "learning_rate"):
        assert row[name]


def test_the_summary_has_means_at_the_length_of_pretraining():
    summary = FIGURE_1.summary(rows_of(FIGURE_1))
    assert len(summary.rows) == 12
    first = dict(zip(summary.names, summary.rows[1], strict=True))
    assert (first["layers"], first["test law"]) == ("3", "mixture (0.9, 0.1)")
    assert first["learnt decoder"] == "0.880"
    assert first["range of learnt"] == "0.870 to 0.890"
    assert first["constructed, 1000 steps"] == "0.500"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_committed_results_are_whole_and_of_a_clean_commit(figure):
    numbers = committed(figure.name)
    assert "dirty" not in numbers["commit"]
    assert REPRODUCTIONS[figure.name] is figure
    summary = figure.summary(numbers["rows"])
    assert [tuple(row.values()) for row in numbers["summary"]] == list(summary.rows)
    assert {row["seed"] for row in numbers["rows"]} == {0, 1, 2}
