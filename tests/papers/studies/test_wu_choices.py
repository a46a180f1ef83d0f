from dataclasses import replace
from pathlib import Path

import pytest

from icgd.errors import SizeError
from icgd_papers.figures.wu_learnt import LearntStudy
from icgd_papers.figures.wu_lines import Outcome, Point
from icgd_papers.results import reproduce
from icgd_papers.studies.wu_choices import BUDGETS, CHOICES, CHOICES_FIGURE, changed
from tests import machines
from tests.papers.committed import committed

ROOT = Path(__file__).parents[3]
LAPTOP = BUDGETS["laptop"]


def outcome(study):
    value = 0.9 - 0.01 * study.seed if isinstance(study, LearntStudy) else 0.5
    learnt = isinstance(study, LearntStudy)
    laws = study.laws if learnt else (study.law,)
    lines = (
        ("learnt decoder",) if learnt else ("direct, last epoch", "label mean", "ridge", "other")
    )
    points = [
        Point(law.inputs, law.teachers, line, 20, value, value - 0.25)
        for law in laws
        for line in lines
    ]
    return Outcome(tuple(points), 1.0)


def rows_of(preset="laptop"):
    studies = CHOICES_FIGURE.studies(preset, seed=0)
    return CHOICES_FIGURE.rows(studies, [outcome(study) for study in studies])


def test_one_thing_is_changed_at_a_time():
    assert changed(LAPTOP, "as chosen") == LAPTOP
    wide = changed(LAPTOP, "teachers four times as wide")
    assert (wide.hidden_width, replace(wide, hidden_width=20)) == (80, LAPTOP)
    assert changed(LAPTOP, "teachers a quarter as wide").hidden_width == 5
    assert changed(LAPTOP, "half the learning rate").learning_rate == 0.001
    assert changed(LAPTOP, "twice the steps").n_steps == 1000
    assert changed(LAPTOP, "interleaved tokens").tokens == "interleaved"


def test_every_choice_has_a_decoder_and_the_lines_beside_it():
    studies = CHOICES_FIGURE.studies("laptop", seed=0)
    assert len(studies) == len(set(studies)) == len(CHOICES) * 3 * 3
    assert {row["choice"] for row in rows_of()} == set(CHOICES)


def test_a_preset_of_which_one_decoder_is_too_large_is_refused_before_any_study(
    tmp_path, monkeypatch
):
    """Interleaved tokens, which come last, take the most memory."""
    machines.of_memory(monkeypatch, 20_000)
    monkeypatch.setattr(LearntStudy, "train_with", lambda *_: pytest.fail("a study has begun"))
    message = "Training a decoder of 593 weights on 4 prompts of 9 places at a time takes about"
    with pytest.raises(SizeError, match=message):
        reproduce(CHOICES_FIGURE, "smoke", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_summary_has_both_forms_of_r_squared():
    summary = CHOICES_FIGURE.summary(rows_of())
    first = dict(zip(summary.names, summary.rows[0], strict=True))
    assert (first["choice"], first["mixture"]) == ("as chosen", "(1, 0)")
    assert first["learnt decoder, R^2"] == "0.890 (0.880 to 0.900)"
    assert first["learnt decoder, within prompts"] == "0.640 (0.630 to 0.650)"
    assert first["ridge, R^2"] == "0.500"
    assert len(summary.rows) == 2 * len(CHOICES)


def test_the_picture_has_a_panel_for_each_law_and_form():
    axes = CHOICES_FIGURE.picture(rows_of()).axes
    assert [ax.get_title(loc="left") for ax in axes] == [
        f"mixture {law}, R^2 {form}"
        for law in ("(1, 0)", "(0.5, 0.5)")
        for form in ("over all prompts", "within prompts")
    ]
    assert len(axes[0].lines[0].get_xdata()) == 3 * len(CHOICES)


def test_an_axis_says_that_worse_points_stand_at_its_end():
    rows = rows_of()
    rows[0] = {**rows[0], "r_squared_within": -1.9}
    axes = CHOICES_FIGURE.picture(rows).axes
    cut = "R^2; what is below -1 stands at -1"
    assert [ax.get_xlabel() for ax in axes] == ["R^2", cut, "R^2", "R^2"]
    assert min(axes[1].lines[0].get_xdata()) == -1.0


def test_committed_results_are_whole_and_of_a_clean_commit():
    numbers = committed("wu-choices")
    assert "dirty" not in numbers["commit"]
    summary = CHOICES_FIGURE.summary(numbers["rows"])
    assert [tuple(row.values()) for row in numbers["summary"]] == list(summary.rows)
