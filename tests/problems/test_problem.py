import json
from dataclasses import replace

import pytest

from icgd.errors import SettingError, UnknownNameError
from icgd.problems.domain import Domain
from icgd.problems.losses import HUBER
from icgd.problems.mlp import MLP
from icgd.problems.oracles.network import NetworkOracle
from icgd.problems.problem import Problem
from icgd.problems.updates import GradientStep
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
    ("owner", "part", "kind"),
    [
        (Problem, "target", "MLP, KernelMachine or LinearModel"),
        (NetworkOracle, "update", "GradientStep"),
        (Problem, "domain", "Domain"),
    ],
)
def test_a_part_of_the_wrong_kind_is_named(owner, part, kind):
    parts = {"target": MLP((2, 1)), "loss": "squared", "update": GradientStep(0.1, 1.0)}
    raw = object.__new__(owner)  # the type checker would refuse it first
    raw.__dict__.update({**parts, "domain": Domain(1.0, 1.0), part: "x"})
    with pytest.raises(SettingError, match=f"^{part} must be of type {kind}, got 'x'"):
        raw.__post_init__()
