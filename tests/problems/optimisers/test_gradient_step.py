import pytest

from icgd.errors import SettingError
from icgd.problems.optimisers import GRADIENT, WEIGHTS, GradientStep, MomentumStep


def test_one_step_size_is_plain_and_a_schedule_is_not():
    plain, schedule = GradientStep(0.5, 2.0), GradientStep((0.5, 0.25), 2.0)
    assert plain.is_plain
    assert plain.is_constant
    assert not schedule.is_plain
    assert not schedule.is_constant
    assert [schedule.size_of(step) for step in (0, 1)] == [0.5, 0.25]
    assert schedule.rule(1).weights == {WEIGHTS: 1.0, GRADIENT: -0.25}
    assert plain.state == ()


def test_a_schedule_may_warm_up_from_0_and_a_single_size_is_positive():
    assert GradientStep((0.0, 0.5), 2.0).step_size == (0.0, 0.5)
    with pytest.raises(SettingError, match="step_size must be a positive finite number, got"):
        GradientStep(0.0, 2.0)


def test_words_have_the_range_of_a_schedule():
    assert GradientStep(0.5, 2.0).in_words() == "gradient steps of 0.5, box 2"
    schedule = GradientStep((0.5, 0.25), 2.0, batch_size=4)
    assert schedule.in_words() == "gradient steps of 0.25 to 0.5, box 2, batches of 4"


def test_the_first_step_begins_the_average():
    step = GradientStep(0.5, 2.0, average=0.75)
    assert [step.kept_of_average(number) for number in (0, 1, 2)] == [0.0, 0.75, 0.75]
    assert (step.is_plain, step.is_constant) == (False, False)
    assert (step.state, step.remembered) == ((), ("average",))
    assert step.in_words() == "gradient steps of 0.5, box 2, averages of weights (0.75)"
    assert GradientStep(0.5, 2.0).remembered == ()
    nothing_kept = GradientStep(0.5, 2.0, average=0.0)
    assert (nothing_kept.is_plain, nothing_kept.is_constant) == (False, True)
    assert MomentumStep(0.5, 2.0, average=0.5).remembered == ("momentum", "average")


@pytest.mark.parametrize("average", [1.0, -0.5, float("nan")])
def test_an_average_keeps_a_share(average):
    expected = f"average must be a number from 0 to below 1, got {average!r}."
    with pytest.raises(SettingError) as refused:
        GradientStep(0.5, 2.0, average=average)
    assert str(refused.value) == expected


def test_batches_go_round():
    step = GradientStep(0.5, 2.0, batch_size=3)
    assert [step.examples_of(number, 4) for number in range(3)] == [(0, 1, 2), (3, 0, 1), (2, 3, 0)]
    assert GradientStep(0.5, 2.0).examples_of(5, 2) == (0, 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((), "step_size is empty; give one number for each step."),
        ((0.5, -0.25), "step_size must be a finite number that is not negative, got -0.25."),
        ((float("nan"),), "step_size must be a finite number that is not negative, got nan."),
    ],
)
def test_step_sizes_that_are_none_are_refused(sizes, message):
    with pytest.raises(SettingError) as refused:
        GradientStep(sizes, 2.0)
    assert str(refused.value) == message


def test_a_schedule_has_an_entry_a_step():
    GradientStep((0.5, 0.25), 2.0).require_steps(2)
    GradientStep(0.5, 2.0).require_steps(7)
    with pytest.raises(SettingError, match="step_size has 2 entries; expected 3, one for each"):
        GradientStep((0.5, 0.25), 2.0).require_steps(3)
