import pytest

from icgd.errors import SettingError
from icgd.problems.optimisers import GRADIENT, MOMENTUM, WEIGHTS, MomentumStep


def test_the_first_step_has_no_dampening():
    step = MomentumStep(0.5, 2.0, momentum=0.9, dampening=0.25)
    assert [step.rule(number).state[MOMENTUM][GRADIENT] for number in (0, 1)] == [1.0, 0.75]
    assert not step.is_constant
    assert MomentumStep(0.5, 2.0, momentum=0.9).is_constant


def test_nesterov_looks_ahead():
    step = MomentumStep(0.5, 2.0, momentum=0.75, nesterov=True)
    assert step.rule(0).weights == {WEIGHTS: 1.0, GRADIENT: -0.5, MOMENTUM: -0.375}


def test_without_momentum_nothing_is_remembered():
    step = MomentumStep(0.5, 2.0, momentum=0.0, weight_decay=0.25)
    assert step.state == ()
    assert step.rule(0).linear == {WEIGHTS: {WEIGHTS: 1.0 - 0.125, GRADIENT: -0.5}}


def test_words_name_the_kind():
    assert MomentumStep(0.5, 2.0).in_words() == "momentum steps (0.9) of 0.5, box 2"
    step = MomentumStep(0.5, 2.0, nesterov=True, weight_decay=0.1)
    assert step.in_words() == "Nesterov steps (0.9, weight decay 0.1) of 0.5, box 2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": -0.5}, "momentum must be a finite number that is not negative, got -0.5."),
        ({"dampening": float("inf")}, "dampening must be a finite number, got inf."),
        ({"gradient_scale": 0.0}, "gradient_scale must be a positive finite number, got 0.0."),
        (
            {"nesterov": True, "dampening": 0.5},
            "nesterov=True needs a momentum above 0 and no dampening, got momentum=0.9 and "
            "dampening=0.5.",
        ),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(SettingError) as refused:
        MomentumStep(0.5, 2.0, **options)
    assert str(refused.value) == message
