"""Settings of the proximal step."""

import pytest

from icgd.errors import SettingError
from icgd.problems.steps import ProximalStep


def test_the_step_size_may_be_left_to_the_data():
    assert ProximalStep() == ProximalStep(None, l2=0.0, l1=0.0)
    assert ProximalStep(0.1).step_size == 0.1


def test_momentum_is_one_number_or_one_for_each_step():
    plain, heavy = ProximalStep(0.1), ProximalStep(0.1, momentum=0.5)
    fista = ProximalStep(0.1, momentum=[0.0, 0.5], nesterov=True)
    assert [update.is_constant for update in (plain, heavy, fista)] == [True, True, False]
    assert [fista.momentum_of(step) for step in (0, 1)] == [0.0, 0.5]
    assert (heavy.momentum_of(7), heavy.lookahead_of(7), fista.lookahead_of(1)) == (0.5, 0.0, 0.5)
    assert [update.overshoot for update in (plain, heavy, fista)] == [1.0, 1.0, 2.0]
    assert fista.in_words() == "proximal steps of 0.1, Nesterov momentum 0 to 0.5"
    fista.require_steps(2)
    with pytest.raises(SettingError, match="momentum has 2 entries; expected 3, one for each step"):
        fista.require_steps(3)


def test_either_penalty_penalises():
    assert not ProximalStep(0.1).penalises
    assert ProximalStep(l2=0.1).penalises
    assert ProximalStep(l1=0.1).penalises


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"l2": -0.5}, "l2 must not be negative, got -0.5"),
        ({"l1": -1.0}, "l1 must not be negative, got -1.0"),
        ({"l1": float("nan")}, "l1 must be a finite number, got nan"),
        ({"step_size": 0.0}, "step_size must be a positive finite number, got 0.0"),
        ({"momentum": 1.5}, "momentum must lie between 0 and 1, got 1.5"),
        ({"nesterov": True}, "nesterov"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(SettingError, match=text):
        ProximalStep(**settings)
