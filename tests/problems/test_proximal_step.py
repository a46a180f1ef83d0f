"""Settings of the proximal step."""

import pytest

from icgd.errors import SettingError
from icgd.problems.proximal_step import ProximalStep


def test_the_step_size_may_be_left_to_the_data():
    assert ProximalStep() == ProximalStep(None, l2=0.0, l1=0.0)
    assert ProximalStep(0.1).step_size == 0.1


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
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(SettingError, match=text):
        ProximalStep(**settings)
