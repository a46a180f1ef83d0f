import pytest
import torch

from icgd.training.checkpoint_rules import (
    DEEPEST,
    header_problem,
    log_problem,
    size_problem,
    tensor_problem,
)

HEADER = {
    "step": 3,
    "columns": ["step", "loss"],
    "configuration": {"settings": {"n_steps": 5}, "model": "own"},
}
SHAPES = {"weight": [2], "bias": []}
TENSORS = {
    "model.weight": torch.zeros(2),
    "model.bias": torch.tensor(1.0),
    "adam.weight.step": torch.tensor(3.0),
    "adam.weight.exp_avg": torch.zeros(2),
    "adam.weight.exp_avg_sq": torch.zeros(2),
}


def nested(depth):
    data = {}
    for _ in range(depth):
        data = {"a": data}
    return data


def test_a_header_that_training_writes_is_sound():
    assert header_problem(HEADER) is None
    assert header_problem({**HEADER, "configuration": {}}) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step": -1}, "its step is -1, expected a whole number from 0 on"),
        ({"step": True}, "its step is True, expected a whole number from 0 on"),
        ({"step": 6}, "it is at step 6 of 5"),
        ({"columns": "ab"}, "its columns are 'ab', expected a list of names"),
        ({"columns": ["a", 1]}, "its columns are ['a', 1], expected a list of names"),
        ({"columns": ["a", "a"]}, "two columns of its log have the same name"),
        ({"configuration": []}, "its configuration is no table"),
        ({"configuration": nested(100)}, f"its configuration is deeper than {DEEPEST} tables"),
        ({"configuration": {"settings": 1}}, "its n_steps is None, expected a whole number"),
        (
            {"configuration": {"settings": {"n_steps": "9"}}},
            "its n_steps is '9', expected a whole number",
        ),
    ],
)
def test_what_is_wrong_with_a_header_is_said(change, problem):
    assert header_problem({**HEADER, **change}) == problem


def rows(*steps):
    return torch.tensor([[step, 0.5] for step in steps], dtype=torch.float64).reshape(-1, 2)


@pytest.mark.parametrize("log", [rows(), rows(0), rows(0, 2, 3)])
def test_a_log_that_training_writes_is_sound(log):
    assert log_problem(log, ["step", "loss"], 3) is None


@pytest.mark.parametrize(
    ("log", "columns", "problem"),
    [
        (rows(0).float(), ["step", "loss"], "its log is no table of float64"),
        (rows(0)[0], ["step", "loss"], "its log is no table of float64"),
        (rows(0), ["step"], "its log has 2 columns, and names 1"),
        (rows(0), ["step", "losses"], "its log has no column 'loss'"),
        (rows(0, 4), ["step", "loss"], "the steps of its log do not rise from 0 to 3"),
        (rows(1, 1), ["step", "loss"], "the steps of its log do not rise from 0 to 3"),
        (rows(-1), ["step", "loss"], "the steps of its log do not rise from 0 to 3"),
        (rows(0.5), ["step", "loss"], "the steps of its log do not rise from 0 to 3"),
        (rows(torch.nan), ["step", "loss"], "the steps of its log do not rise from 0 to 3"),
        (rows(0, torch.inf), ["step", "loss"], "the steps of its log do not rise from 0 to 3"),
    ],
)
def test_what_is_wrong_with_a_log_is_said(log, columns, problem):
    assert log_problem(log, columns, 3) == problem


def test_the_tensors_of_a_training_are_sound():
    assert tensor_problem(TENSORS, SHAPES, 3) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model.bias": None}, "it has no 'model.bias'"),
        ({"adam.weight.exp_avg": None}, "it has no 'adam.weight.exp_avg'"),
        ({"model.more": torch.zeros(1)}, "it has 'model.more', which the model has not"),
        ({"model.weight": torch.zeros(3)}, "'model.weight' has shape [3], expected [2]"),
        (
            {"adam.weight.step": torch.tensor(-1.0)},
            "'adam.weight.step' is -1.0, expected a float from 0 to 3",
        ),
        (
            {"adam.weight.step": torch.tensor(1)},
            "'adam.weight.step' is 1, expected a float from 0 to 3",
        ),
        (
            {"adam.weight.step": torch.tensor(torch.nan)},
            "'adam.weight.step' is nan, expected a float from 0 to 3",
        ),
    ],
)
def test_what_is_wrong_with_tensors_is_said(change, problem):
    tensors = {name: tensor for name, tensor in {**TENSORS, **change}.items() if tensor is not None}
    assert tensor_problem(tensors, SHAPES, 3) == problem


def test_what_adam_remembers_of_no_parameter_is_refused():
    more = {f"adam.other.{name}": torch.zeros(()) for name in ("step", "exp_avg", "exp_avg_sq")}
    problem = tensor_problem({**TENSORS, **more}, SHAPES, 3)
    assert problem == "it has 'adam.other.step', which the model has not"


def test_no_size_exceeds_what_is_stored():
    described = {"kind": "decoder", "width": 2, "seed": 10**9, "parts": [{"n_layers": 3}, 0.5]}
    assert size_problem(described, TENSORS) is None
    described["parts"][0]["n_layers"] = 10**9
    assert size_problem(described, TENSORS) == "its n_layers is 1000000000, and it holds 8 numbers"
