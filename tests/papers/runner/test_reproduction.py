import pytest

from icgd.errors import SettingError, UnknownNameError
from icgd_papers.figures.cheng_loss import FIGURE_2
from icgd_papers.reproduction import (
    AbstractStudy,
    Conduct,
    groups,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.studies.cot_cost import COST


def test_rows_are_grouped_in_their_order():
    rows = [{"kernel": "exp", "n": 2}, {"kernel": "relu", "n": 2}, {"kernel": "exp", "n": 4}]
    assert groups(rows, "kernel") == {("exp",): [rows[0], rows[2]], ("relu",): [rows[1]]}
    assert list(groups(rows, "n", "kernel")) == [(2, "exp"), (2, "relu"), (4, "exp")]


def test_an_unknown_preset_is_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError) as caught:
        preset_of({"smoke": 1, "laptop": 2}, "labtop")
    assert str(caught.value) == (
        "Unknown preset 'labtop'; known are smoke, laptop. Did you mean 'laptop'?"
    )


def test_numbers_keep_six_digits_and_stay_json():
    assert six_digits(0.123456789) == 0.123457
    assert six_digits(float("nan")) is None
    assert number({"loss": 3}, "loss") == 3.0
    assert number({"loss": None}, "loss") != number({"loss": None}, "loss")


def test_a_part_has_the_studies_of_its_panels():
    assert list(FIGURE_2.parts) == ["panel-a", "panel-b", "panel-c", "panel-d"]
    whole, part = FIGURE_2.studies("smoke", 0), FIGURE_2.only(["panel-b"]).studies("smoke", 0)
    assert {(study.labels, study.n_examples) for study in part} == {("exp", 14)}
    assert [study for study in whole if (study.labels, study.n_examples) == ("exp", 14)] == part
    assert FIGURE_2.only([]) is FIGURE_2
    assert FIGURE_2.only(["panel-d", "panel-a"]).panels == FIGURE_2.panels[::3]  # in their order


def test_parts_that_are_not_there_are_refused():
    with pytest.raises(UnknownNameError) as caught:
        FIGURE_2.only(["panel-e"])
    assert str(caught.value) == (
        "Unknown part of cheng-fig2 'panel-e'; known are panel-a, panel-b, panel-c, panel-d. Did "
        "you mean 'panel-d'?"
    )
    with pytest.raises(SettingError, match=r"^cot-cost has no panels to choose from"):
        COST.only(["panel-a"])


def test_a_study_without_steps_is_done_as_always(tmp_path):
    given, found = [], COST.studies("smoke", 0)[0].outcome_of({"measured": [], "seconds": 1.0})

    class Plain(AbstractStudy):
        def train(self, folder=None):
            given.append(folder)
            return found

        def outcome_of(self, data):
            raise NotImplementedError

    study = Plain()
    assert study.train_with(Conduct("cpu", print), tmp_path) is found
    assert given == [tmp_path]
    assert (study.n_steps, study.work, study.step_seconds("cpu")) == (1, 1.0, None)
