import pytest

from icgd.errors import SettingError
from icgd.problems.optimisers import (
    FIRST,
    GRADIENT,
    SCALED,
    SECOND,
    SQUARE,
    WEIGHTS,
    AdamStep,
    RmspropStep,
    Root,
)


def test_corrections_fade():
    step = AdamStep(0.5, 2.0, betas=(0.5, 0.75), eps=0.1)
    first, second = step.rule(0), step.rule(1)
    assert first.weights == {WEIGHTS: 1.0, SCALED: -0.5 / 0.5}
    assert second.weights == {WEIGHTS: 1.0, SCALED: -0.5 / 0.75}
    assert first.root == Root(FIRST, {SECOND: 0.75 / 0.25, SQUARE: 1.0}, 0.1)
    assert first.state == {FIRST: {FIRST: 0.5, GRADIENT: 0.5}, SECOND: {SECOND: 0.75, SQUARE: 0.25}}
    assert not step.is_constant
    assert step.state == (FIRST, SECOND)


def test_decay_is_part_of_the_gradient_or_of_the_weights():
    together = AdamStep(0.5, 2.0, weight_decay=0.25).rule(0)
    assert (together.decay, together.weights[WEIGHTS]) == (0.25, 1.0)
    decoupled = AdamStep(0.5, 2.0, weight_decay=0.25, decoupled=True).rule(0)
    assert (decoupled.decay, decoupled.weights[WEIGHTS]) == (0.0, 0.875)


def test_rmsprop_divides_the_gradient_itself():
    rule = RmspropStep(0.5, 2.0, alpha=0.75, eps=0.1).rule(3)
    assert rule.root == Root(GRADIENT, {SECOND: 0.75, SQUARE: 0.25}, 0.1)
    assert rule.state == {SECOND: {SECOND: 0.75, SQUARE: 0.25}}
    assert RmspropStep(0.5, 2.0).is_constant
    assert not RmspropStep((0.5, 0.25), 2.0).is_constant


def test_words_name_the_kind():
    assert AdamStep(0.5, 2.0).in_words() == "Adam steps (0.9, 0.999, eps 0.001) of 0.5, box 2"
    decoupled = AdamStep(0.5, 2.0, weight_decay=0.1, decoupled=True)
    assert decoupled.name_in_words() == "AdamW steps (0.9, 0.999, eps 0.001, weight decay 0.1)"
    assert RmspropStep(0.5, 2.0).name_in_words() == "RMSprop steps (0.99, eps 0.001)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.9, 1.0)}, "betas[1] must be a number from 0 to below 1, got 1.0."),
        ({"betas": (-0.5, 0.0)}, "betas[0] must be a number from 0 to below 1, got -0.5."),
        ({"eps": 0.0}, "eps must be a positive finite number, got 0.0."),
        ({"eps": 1e-200}, "eps must lie between 1e-30 and 1e+30, got 1e-200."),
        (
            {"weight_decay": -1.0},
            "weight_decay must be a finite number that is not negative, got -1.0.",
        ),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(SettingError) as refused:
        AdamStep(0.5, 2.0, **options)
    assert str(refused.value) == message
    if "betas" not in options:
        with pytest.raises(SettingError) as refused:
            RmspropStep(0.5, 2.0, **options)
        assert str(refused.value) == message
