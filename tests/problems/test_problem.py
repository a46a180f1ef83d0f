"""Problems: their parts, their data, and checks of single settings."""

import json
from dataclasses import dataclass, replace
from math import inf, nan

import numpy as np
import pytest

from icgd.errors import SettingError, UnknownNameError
from icgd.problems.data import Domain
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.losses import HUBER
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.settings import (
    below_one,
    by_name,
    count,
    entries,
    finite,
    flag,
    instance,
    is_row,
    named,
    not_negative,
    positive,
    power_of_two,
    require_between,
    set_fields,
)
from icgd.problems.steps import FunctionalStep, ProximalStep
from tests import cases
from tests.cases import over

PROBLEM = Problem(MLP((3, 4, 2), "gelu"), "huber", GradientStep(0.1, 3.0), Domain(4.0, 2.5))


@over(cases.SMALL)
def test_a_problem_survives_its_json_text_unchanged(case):
    data = json.loads(json.dumps(case.problem.to_data()))
    assert Problem.from_data(data) == case.problem


def test_its_data_is_plain():
    assert json.loads(json.dumps(PROBLEM.to_data())) == {
        "target": {"widths": [3, 4, 2], "activation": "gelu", "output_activation": "identity"},
        "loss": "huber",
        "update": {"step_size": 0.1, "box": 3.0},
        "domain": {"x": 4.0, "y": 2.5},
    }


def test_a_batch_size_is_part_of_the_data():
    problem = Problem(PROBLEM.target, "huber", GradientStep(0.1, 3.0, 2), PROBLEM.domain)
    data = json.loads(json.dumps(problem.to_data()))
    assert data["update"] == {"step_size": 0.1, "box": 3.0, "batch_size": 2}
    assert Problem.from_data(data) == problem


def test_biases_are_part_of_the_data():
    problem = replace(PROBLEM, target=MLP((3, 4, 2), "gelu", biases=True))
    data = json.loads(json.dumps(problem.to_data()))
    assert data["target"]["biases"] is True
    assert Problem.from_data(data) == problem


def test_problems_are_compared_by_value():
    other = Problem(PROBLEM.target, "huber", GradientStep(0.2, 3.0), PROBLEM.domain)
    assert other != PROBLEM
    assert hash(PROBLEM) == hash(Problem.from_data(PROBLEM.to_data()))


def test_the_loss_is_found_by_its_name():
    assert PROBLEM.loss_function is HUBER


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda bad: GradientStep(step_size=bad, box=1.0), "step_size"),
        (lambda bad: GradientStep(step_size=0.1, box=bad), "box"),
        (lambda bad: Domain(x=bad, y=1.0), "domain.x"),
        (lambda bad: Domain(x=1.0, y=bad), "domain.y"),
    ],
    ids=["step_size", "box", "domain.x", "domain.y"],
)
@pytest.mark.parametrize("bad", [0.0, -1.5, float("nan"), float("inf")])
def test_bounds_and_sizes_must_be_positive_and_finite(make, name, bad):
    with pytest.raises(SettingError) as caught:
        make(bad)
    assert str(caught.value) == f"{name} must be a positive finite number, got {bad!r}."


def test_an_unknown_loss_is_refused_at_once():
    with pytest.raises(UnknownNameError, match=r"^Unknown loss 'mse'; known are squared, "):
        Problem(PROBLEM.target, "mse", PROBLEM.update, PROBLEM.domain)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("target", "MLP, KernelMachine or LinearModel"),
        ("update", "GradientStep"),
        ("domain", "Domain"),
    ],
)
def test_a_part_of_the_wrong_kind_is_named(part, kind):
    parts = {"target": MLP((2, 1)), "loss": "squared", "update": GradientStep(0.1, 1.0)}
    raw = object.__new__(Problem)  # the type checker would refuse it first
    raw.__dict__.update({**parts, "domain": Domain(1.0, 1.0), part: "x"})
    with pytest.raises(SettingError, match=f"^{part} must be of type {kind}.*, got 'x'"):
        raw.__post_init__()


KERNEL = Problem(KernelMachine(3), "squared", FunctionalStep(0.1), PROBLEM.domain)
LINEAR = Problem(LinearModel(3), "matching", ProximalStep(0.1, box=2.0), PROBLEM.domain)
PARTS = {
    PROBLEM: ("network", "gradient_step", "network_oracle"),
    KERNEL: ("machine", "functional_step", "function_oracle"),
    LINEAR: ("model", "proximal_step", "linear_oracle"),
}


@pytest.mark.parametrize("problem", PARTS, ids=["network", "function", "linear"])
def test_the_parts_of_its_kind_have_names_and_others_are_refused(problem):
    target, update, oracle = (getattr(problem, name) for name in PARTS[problem])
    assert (target, update, oracle) == (problem.target, problem.update, problem.oracle)
    for other in PARTS.keys() - {problem}:
        for name in PARTS[other]:
            with pytest.raises(SettingError, match=r"^(target|update|oracle) must be of type "):
                getattr(problem, name)


def test_the_box_is_that_of_the_update():
    assert [problem.box for problem in (PROBLEM, KERNEL, LINEAR)] == [3.0, None, 2.0]


@pytest.mark.parametrize(("problem", "update"), [(KERNEL, PROBLEM), (LINEAR, KERNEL)])
def test_an_update_of_another_target_is_refused(problem, update):
    kind = type(problem.update).__name__
    with pytest.raises(SettingError, match=f"^update must be of type {kind}.*, got "):
        replace(problem, update=update.update)


@pytest.mark.parametrize("problem", [PROBLEM, KERNEL])
def test_only_linear_models_have_a_bound_on_scores(problem):
    with pytest.raises(SettingError, match=r"^domain\.score has no effect without a linear model"):
        replace(problem, domain=Domain(1.0, 1.0, score=2.0))


@pytest.mark.parametrize(("problem", "only"), [(KERNEL, "squared"), (LINEAR, "matching")])
def test_the_loss_of_machines_and_linear_models_is_given(problem, only):
    with pytest.raises(SettingError, match=f"^loss of a .* must be '{only}', got 'huber'"):
        replace(problem, loss="huber")


def test_a_problem_shows_itself_in_a_line():
    assert repr(PROBLEM) == (
        "Problem(target: 3-4-2 gelu network; loss: huber; update: gradient steps of 0.1, box 3; "
        "domain: |x| <= 4, |y| <= 2.5)"
    )
    assert '<td style="text-align: left">|x| &lt;= 4, |y| &lt;= 2.5</td>' in PROBLEM._repr_html_()


def test_targets_and_updates_say_what_they_are():
    assert MLP((2, 3, 1), "relu", "tanh", biases=True).in_words() == (
        "2-3-1 relu network with biases, tanh at the output"
    )
    deep = MLP((3, *(2,) * 159, 1))
    assert deep.in_words() == "3-2-2-…-1 tanh network of 160 layers"
    assert LinearModel(1, "poisson", intercept=True).in_words() == (
        "linear model of 1 input, poisson link, intercept"
    )
    assert KernelMachine(3, "rbf").in_words() == "function of 3 inputs, rbf kernel"
    assert GradientStep(0.1, 2.0, 4).in_words() == "gradient steps of 0.1, box 2, batches of 4"
    assert FunctionalStep((0.1, 0.3), noise=0.2, transforms=0.5).in_words() == (
        "functional steps of 0.1 to 0.3, noise 0.2, inputs are moved"
    )
    assert ProximalStep(l1=0.5, box=2.0).in_words() == (
        "proximal steps of 1 / curvature, l1 0.5, box 2"
    )
    assert Domain(2.0, 1.0, score=5.0).in_words() == "|x| <= 2, |y| <= 1, |<w, x>| <= 5"


def test_long_schedules_and_matrices_are_not_written_out():
    head = KernelHead("matern", [[1.0, 0.5]] * 40, weight=2.0, shape=2.5)
    assert repr(head) == "KernelHead(2 matern[2.5], G 40 x 2)"
    step = FunctionalStep([0.1 + k / 1000 for k in range(500)], heads=[head] * 500)
    assert repr(step) == "FunctionalStep(steps of 0.1 to 0.599, each with its own kernel)"


def test_data_name_shortcuts_norms_and_rates_only_if_there_are_any():
    target = MLP((3, 4, 3), "gelu", shortcuts=((0, 2),), norms=(2,), norm_eps=0.5)
    shaped = Problem(target, "squared", GradientStep(0.1, 1.0), Domain(1.0, 1.0, rate=0.5))
    data = json.loads(json.dumps(shaped.to_data()))
    assert data["target"]["shortcuts"] == [[0, 2]]
    assert (data["target"]["norms"], data["target"]["norm_eps"]) == ([2], 0.5)
    assert data["domain"] == {"x": 1.0, "y": 1.0, "rate": 0.5}
    assert Problem.from_data(data) == shaped
    plain = replace(shaped, target=MLP((3, 2)), domain=Domain(1.0, 1.0)).to_data()
    assert plain["target"].keys() == {"widths", "activation", "output_activation"}
    assert plain["domain"].keys() == {"x", "y"}


# Checks of single settings.


@pytest.mark.parametrize("check", [positive, not_negative, finite, power_of_two])
@pytest.mark.parametrize("value", [0.5, 4, np.float32(0.5), np.int64(4), 2.0**60])
def test_numbers_of_all_libraries_become_floats(check, value):
    assert check("step_size", value) == float(value)
    assert type(check("step_size", value)) is float


@pytest.mark.parametrize(
    ("check", "expected", "wrong"),
    [
        (positive, "a positive finite number", [0, -0.5]),
        (not_negative, "a finite number that is not negative", [-0.5]),
        (below_one, "a number from 0 to below 1", [1, -0.5]),
        (finite, "a finite number", []),
        (power_of_two, "a power of two, such as 2**-13, so that dividing by it is exact", [0.3, 3]),
    ],
    ids=["positive", "not_negative", "below_one", "finite", "power_of_two"],
)
def test_other_numbers_are_refused_with_name_value_and_what_is_expected(check, expected, wrong):
    for value in (*wrong, nan, inf, -inf, "0.1", None, True):
        with pytest.raises(SettingError) as caught:
            check("step_size", value)
        assert str(caught.value) == f"step_size must be {expected}, got {value!r}."


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0, 0), (7, 1), (np.int32(5), 2)])
def test_whole_numbers_of_all_libraries_become_ints(value, least):
    assert count("n_steps", value, least=least) == int(value)
    assert type(count("n_steps", value, least=least)) is int


@pytest.mark.parametrize(
    ("value", "least"), [(0, 1), (-3, 0), (2, 3), (2.0, 1), (True, 1), ("2", 1), (None, 1)]
)
def test_anything_else_is_no_count(value, least):
    with pytest.raises(SettingError) as caught:
        count("n_steps", value, least=least)
    assert str(caught.value) == (
        f"n_steps must be a whole number of at least {least}, got {value!r}."
    )


def test_a_number_out_of_its_range_is_refused():
    require_between("registers", 32, 32.0, 1024.0)
    with pytest.raises(SettingError, match=r"^registers must lie between 32 and 1024, got 31\.$"):
        require_between("registers", 31, 32.0, 1024.0)
    with pytest.raises(SettingError, match=r"^n_steps must be at most 10, got 11\.$"):
        count("n_steps", 11, most=10)


def test_a_part_of_another_kind_is_refused():
    instance("head", "rbf", str)
    with pytest.raises(SettingError, match=r"^head must be of type str, got 1\.$"):
        instance("head", 1, str)


@dataclass(frozen=True)
class Thing:
    name: str
    size: int = 0


def test_things_are_found_by_their_names():
    things = by_name(Thing("small", 1), Thing("large", 2))
    assert list(things) == ["small", "large"]
    assert named("thing", "large", things) == Thing("large", 2)


@pytest.mark.parametrize(("name", "hint"), [("larg", " Did you mean 'large'?"), (None, "")])
def test_an_unknown_name_is_refused_with_the_known_ones(name, hint):
    with pytest.raises(UnknownNameError) as caught:
        named("thing", name, by_name(Thing("small"), Thing("large")))
    assert str(caught.value) == f"Unknown thing {name!r}; known are small, large.{hint}"


def test_settings_are_written_into_frozen_parts():
    thing = Thing("small")
    set_fields(thing, name="large", size=2)
    assert thing == Thing("large", 2)


@pytest.mark.parametrize("value", [(), [1], np.zeros(2), range(3)])
def test_what_has_entries_is_a_row(value):
    assert is_row(value)


@pytest.mark.parametrize("value", ["ab", 3, None, np.array(1.0)])
def test_texts_and_arrays_without_axes_are_no_rows(value):
    assert not is_row(value)


def test_entries_of_arrays_become_plain_numbers():
    found = entries(np.array([1, 2], np.int32))
    assert found == [1, 2]
    assert {type(entry) for entry in found} == {int}


@pytest.mark.parametrize("value", ["no", nan, 1, None])
def test_a_switch_is_true_or_false(value):
    assert flag("biases", np.False_) is False
    with pytest.raises(SettingError, match="biases must be True or False, got"):
        flag("biases", value)


def test_a_whole_number_beyond_floats_is_no_finite_number():
    with pytest.raises(SettingError, match="step_size must be a positive finite number"):
        positive("step_size", 10**400)
