"""Optimisers: a rule as the reference evaluates it, and as sums of what was there before."""

import json
import tomllib
from dataclasses import dataclass, replace

import pytest
import torch

import icgd
from icgd.errors import DataError, SettingError
from icgd.problems.optimisers import (
    FIRST,
    GRADIENT,
    MOMENTUM,
    SCALED,
    SECOND,
    SQUARE,
    WEIGHTS,
    AbstractGradientStep,
    AdamStep,
    GradientStep,
    MomentumStep,
    RmspropStep,
    Root,
    Rule,
    evaluated,
)

KNOWN = {WEIGHTS: torch.tensor([1.0, 2.0]), GRADIENT: torch.tensor([0.5, -1.0])}
VELOCITY = {"m": torch.tensor([4.0, 8.0])}


def test_a_sum_is_that_of_coefficients_times_quantities():
    assert evaluated({WEIGHTS: 2.0, GRADIENT: -1.0}, KNOWN).tolist() == [1.5, 5.0]
    assert evaluated({}, KNOWN).tolist() == [0.0, 0.0]


def test_new_weights_see_the_new_state_and_decay_is_part_of_the_gradient():
    rule = Rule({WEIGHTS: 1.0, "m": -1.0}, {"m": {"m": 0.5, GRADIENT: 1.0}}, decay=0.25)
    weights, state = rule.applied(KNOWN[WEIGHTS], KNOWN[GRADIENT], VELOCITY)
    assert state["m"].tolist() == [2.0 + 0.5 + 0.25, 4.0 - 1.0 + 0.5]
    assert weights.tolist() == [1.0 - 2.75, 2.0 - 3.5]


def test_a_root_divides_and_counts_nothing_below_0():
    rule = Rule({SCALED: 1.0}, root=Root(GRADIENT, {SQUARE: 4.0, WEIGHTS: -3.0}, eps=0.5))
    weights, _ = rule.applied(KNOWN[WEIGHTS], KNOWN[GRADIENT], {})
    assert weights.tolist() == [0.5 / 0.5, -1.0 / 0.5]  # of sqrt(max(0, -2)), twice


@pytest.mark.parametrize(
    "rule",
    [
        Rule({WEIGHTS: 1.0, GRADIENT: -0.1}, decay=0.5),
        Rule({WEIGHTS: 1.0, "m": -0.1}, {"m": {"m": 0.9, GRADIENT: 0.3}}, decay=0.5),
        Rule({WEIGHTS: 1.0, "m": -0.1, GRADIENT: -0.2}, {"m": {"m": 0.9, GRADIENT: 1.0}}),
    ],
)
def test_sums_of_old_quantities_are_the_same_step(rule):
    state = VELOCITY if rule.state else {}
    weights, moved = rule.applied(KNOWN[WEIGHTS], KNOWN[GRADIENT], state)
    by_sums = {name: evaluated(terms, KNOWN | state) for name, terms in rule.linear.items()}
    torch.testing.assert_close(by_sums.pop(WEIGHTS), weights)
    assert by_sums.keys() == moved.keys()
    for name, value in moved.items():
        torch.testing.assert_close(by_sums[name], value)


def test_sums_name_the_same_quantities_whatever_their_coefficients_are():
    for size, left in ((0.5, 0.0), (0.25, 0.5), (0.0, 1.0)):
        rule = Rule({WEIGHTS: 1.0, GRADIENT: -size}, decay=2.0)
        assert rule.linear == {WEIGHTS: {WEIGHTS: left, GRADIENT: -size}}
    assert Rule({WEIGHTS: 1.0, "m": -0.5}, {"m": {"m": 0.5, GRADIENT: 0.0}}).linear == {
        WEIGHTS: {WEIGHTS: 1.0, "m": -0.25, GRADIENT: 0.0},
        "m": {"m": 0.5, GRADIENT: 0.0},
    }


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


def test_words_name_the_moments():
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
def test_impossible_moments_are_refused(options, message):
    with pytest.raises(SettingError) as refused:
        AdamStep(0.5, 2.0, **options)
    assert str(refused.value) == message
    if "betas" not in options:
        with pytest.raises(SettingError) as refused:
            RmspropStep(0.5, 2.0, **options)
        assert str(refused.value) == message


# Groups of weights with options of their own.

DECAYS = {"bias_1": {"weight_decay": 0.0}, "bias_2": {"weight_decay": 0.0}}


def test_the_rule_of_a_weight_is_that_of_its_group():
    groups = {**DECAYS, "weights_2": {"step_size": (0.25, 0.125)}}
    step = AdamStep((0.5, 0.25), 2.0, weight_decay=0.5, decoupled=True, groups=groups)
    weights = [
        step.of_weights(name).rule(1).weights[WEIGHTS]
        for name in ("weights_1", "bias_1", "weights_2", "bias_2")
    ]
    assert weights == [1 - 0.25 * 0.5, 1.0, 1 - 0.125 * 0.5, 1.0]
    assert step.of_weights("bias_1") is step.of_weights("bias_2")
    assert step.of_weights("weights_1") is step
    assert [len(variant.groups) for variant in step.variants] == [3, 0, 0]
    assert step.in_words().endswith(
        "box 2, weight decay 0 for bias_1 and bias_2, step size 0.125 to 0.25 for weights_2"
    )
    with pytest.raises(SettingError, match="step_size of weights_2 has 2 entries; expected 3"):
        replace(step, step_size=0.5).require_steps(3)


def test_a_group_with_the_same_options_is_none():
    step = MomentumStep(0.5, 2.0, weight_decay=0.25, groups={"bias_1": {"weight_decay": 0.25}})
    assert step.of_weights("bias_1") is step
    assert step.variants == (step,)


def test_descent_with_groups_is_not_plain():
    step = GradientStep(0.5, 2.0, groups={"weights_1": {"step_size": 0.25}})
    assert not step.is_plain
    assert step.is_constant
    assert not replace(step, groups={"weights_1": {"step_size": (0.25,)}}).is_constant
    assert step == GradientStep(0.5, 2.0, groups=[("weights_1", [("step_size", 0.25)])])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"bias": {}}, "groups has the name 'bias'; expected names of weights"),
        ({"bias_1": {"eps": 0.1}}, "groups['bias_1'] has the option 'eps'; expected one of"),
        ({"bias_1": DECAYS["bias_1"]}, "groups['bias_1'] has weight_decay, which GradientStep"),
        ({"bias_1": {"step_size": -1.0}}, "groups['bias_1']: step_size must be a positive finite"),
        ({"bias_1": {"step_size": []}}, "groups['bias_1']: step_size is empty"),
        ({"bias_1": {}}, "groups['bias_1'] must map options to numbers"),
        ({"bias_1": ["step_size"]}, "groups['bias_1'] must map options to numbers"),
        (["bias_1"], "groups must map names of weights to options"),
        ([("bias_1", {"step_size": n}) for n in (0.1, 0.2)], "groups must map names of weights"),
        ({"bias_1": 3}, "groups['bias_1'] must map options to numbers"),
        (3, "groups must map names of weights to options"),
    ],
)
def test_impossible_groups_are_refused(groups, message):
    with pytest.raises(SettingError) as refused:
        GradientStep(0.5, 2.0, groups=groups)
    assert str(refused.value).startswith(message)


def test_the_order_of_groups_does_not_matter():
    groups = {"bias_1": {"step_size": 0.2}, "weights_2": {"step_size": 0.1}}
    backwards = dict(reversed(groups.items()))
    assert GradientStep(0.5, 2.0, groups=groups) == GradientStep(0.5, 2.0, groups=backwards)


def test_schedules_of_different_lengths_are_refused():
    message = "step_size has 3 entries and step_size of bias_1 has 2; expected as many in both"
    with pytest.raises(SettingError, match=message):
        GradientStep((0.1, 0.2, 0.3), 2.0, groups={"bias_1": {"step_size": (0.1, 0.2)}})


def test_state_is_small_beside_the_largest_step_of_a_group():
    step = MomentumStep(1e-8, 2.0, groups={"bias_1": {"step_size": 1.0}})
    problem = icgd.Problem(
        icgd.MLP((1, 1), biases=True), "squared", step, icgd.Domain(x=1.0, y=1.0)
    )
    start = [0.0, 0.0, 0.0, 1e17]  # two weights, and their momentum
    with pytest.raises(DataError, match="leave no digit of a weight"):
        icgd.as_task(problem, [[1.0]], [1.0], initial=start)


def test_groups_are_about_weights_of_the_network():
    step = MomentumStep(0.5, 2.0, weight_decay=0.1, groups=DECAYS)
    with pytest.raises(SettingError, match="bias_1 is no name of weights of this network"):
        icgd.Problem(icgd.MLP((2, 3, 1)), "squared", step, icgd.Domain(1.0, 1.0))


def test_groups_are_described_as_in_a_file():
    table = tomllib.loads(
        """
        target = {widths = [2, 3, 1], biases = true}
        domain = {x = 1.0, y = 1.0}
        [update]
        optimiser = "sgd"
        step_size = 0.1
        box = 2.0
        groups.weights_1.weight_decay = 0.25
        groups.bias_2.step_size = [0.2, 0.1]
        """
    )
    problem = icgd.Problem.from_data(table)
    groups = {"weights_1": {"weight_decay": 0.25}, "bias_2": {"step_size": (0.2, 0.1)}}
    assert problem.update == MomentumStep(0.1, 2.0, momentum=0.0, groups=groups)
    assert problem.n_steps == 2
    assert problem.to_data()["update"]["groups"] == groups
    assert icgd.Problem.from_data(json.loads(json.dumps(problem.to_data()))) == problem
    table["update"]["groups"] = {"bias_1": {"weight_decay": 0.0}}
    assert icgd.Problem.from_data(table).update.groups == (("bias_1", (("weight_decay", 0.0),)),)
    for wrong in (3, ["bias_1"], {"bias_1": 3}):
        table["update"]["groups"] = wrong
        with pytest.raises(SettingError, match=r"groups.* must map "):
            icgd.Problem.from_data(table)


@dataclass(frozen=True)
class FadingStep(AbstractGradientStep):
    """An update rule of a user's own, which depends on the step."""

    def rule(self, step):
        factor = 0.5**step
        return Rule({"weights": 1.0, "gradient": -factor * self.size_of(step)})

    def name_in_words(self):
        return "fading steps"


def test_a_rule_of_ones_own_that_depends_on_the_step_is_compiled_step_by_step():
    network, domain = icgd.MLP((2, 3, 1), "relu"), icgd.Domain(x=1.0, y=1.0)
    problem = icgd.Problem(network, "squared", FadingStep(0.4, box=2.0), domain)
    compiled = icgd.compile(problem, "relu-stack", n_steps=4)
    report = icgd.verify(compiled, [[0.5, 1.0], [-0.5, 0.25]], [1.0, -0.5], seed=0)
    assert report.verdict.holds
    assert report.trajectory_errors.max() < 1e-12
    sizes = report.step_sizes.flatten().tolist()
    assert 0 < sizes[3] < sizes[0] / 4


def test_a_file_refuses_a_rule_of_ones_own(tmp_path):
    network, domain = icgd.MLP((2, 1)), icgd.Domain(x=1.0, y=1.0)
    problem = icgd.Problem(network, "squared", FadingStep(0.4, box=2.0), domain)
    compiled = icgd.compile(problem, "relu-stack", n_steps=2)
    with pytest.raises(SettingError, match="FadingStep is an update rule of your own"):
        compiled.save(tmp_path / "run.safetensors")
    assert not list(tmp_path.iterdir())
