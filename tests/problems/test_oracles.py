"""Oracles: what every one owes, and each against autograd, scikit-learn and numbers by hand."""

import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from torch import Tensor
from torch.nn import functional

import icgd
from icgd.errors import DataError, OverflowedRunError, SettingError
from icgd.problems import oracles as network
from icgd.problems.data import Domain, as_task, checked_task
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.linear_model import LINKS, LinearModel
from icgd.problems.losses import LOSSES
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.oracles import AbstractOracle, LinearOracle, predict, soft_threshold
from icgd.problems.problem import Problem
from icgd.problems.spectrum import over_box, sized
from icgd.problems.steps import FunctionalStep, ProximalStep
from tests import cases
from tests.bare_oracles import bare_task, on_linear_model, on_network
from tests.cases import KERNEL_CASES, batch_of, make_case, over, tasks_of

DOMAIN = Domain(4.0, 2.0)
NETWORK = Problem(MLP((3, 4, 2)), "squared", GradientStep(0.1, 3.0), DOMAIN)
FUNCTION = Problem(KernelMachine(3, "rbf", 2), "squared", FunctionalStep(0.1, 0.2), DOMAIN)
LINEAR = Problem(LinearModel(3, intercept=True), "matching", ProximalStep(0.1, l1=0.05), DOMAIN)
PROBLEMS = {"network": NETWORK, "function": FUNCTION, "linear": LINEAR}

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(2, 5, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.rand(2, 5, 2, generator=GENERATOR, dtype=torch.float64)

each_kind = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def task_of(problem: Problem, batch: bool = False, **settings):
    x, y = (X, Y) if batch else (X[0], Y[0])
    y = y[..., : problem.target.output_width]
    return as_task(problem, x, y, queries=-x[..., :2, :], **settings)


def test_it_is_abstract():
    with pytest.raises(TypeError, match="exact_step"):
        AbstractOracle(MLP((1, 1)), "squared", GradientStep(0.1, 1.0), DOMAIN)


@each_kind
def test_a_run_starts_at_the_initial_weights_and_goes_step_by_step(problem):
    task, oracle = task_of(problem), problem.oracle
    history = oracle.train(task, 3)
    assert history.shape == (4, task.initial.shape[-1])
    assert history.dtype is torch.float64
    assert torch.equal(history[0], task.initial)
    for number in range(3):
        after = oracle.step(task, history[number], number)
        torch.testing.assert_close(after, history[number + 1], rtol=1e-13, atol=1e-14)
    assert torch.equal(oracle.train(task, 0), task.initial[None])


@each_kind
def test_stepping_from_a_run_gives_what_each_step_gives(problem):
    task, oracle = task_of(problem), problem.oracle
    elsewhere = torch.rand(4, task.initial.shape[-1], generator=GENERATOR, dtype=torch.float64)
    after = [oracle.step(task, elsewhere[number], number) for number in range(3)]
    # A network takes steps together, whose sums are rounded in another order.
    assert torch.allclose(oracle.stepped(task, elsewhere), torch.stack(after), rtol=0, atol=1e-15)
    assert oracle.stepped(task, elsewhere[:1]).shape == (0, elsewhere.shape[1])


@each_kind
def test_a_batch_is_each_of_its_tasks(problem):
    batch, oracle = task_of(problem, batch=True), problem.oracle
    history = oracle.train(batch, 3)
    risks = oracle.risk(batch, history[:, -1])
    predictions = oracle.predict(batch, history[:, -1])
    assert risks.shape == (2,)
    assert predictions.shape == (2, 2, problem.target.output_width)
    for number in range(2):
        y = batch.y[number]
        task = as_task(problem, X[number], y, queries=-X[number, :2], initial=batch.initial[number])
        alone = oracle.train(task, 3)
        torch.testing.assert_close(history[number], alone, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(risks[number], oracle.risk(task, alone[-1]))
        torch.testing.assert_close(predictions[number], oracle.predict(task, alone[-1]))


@each_kind
def test_training_lowers_what_it_descends(problem):
    task, oracle = task_of(problem), problem.oracle
    history = oracle.train(task, 20)
    assert oracle.risk(task, history[-1]) < oracle.risk(task, history[0])


@each_kind
def test_all_is_computed_in_float64(problem):
    task = task_of(problem, dtype="float32")
    wide = replace(
        task, **{name: getattr(task, name).double() for name in ("x", "y", "queries", "initial")}
    )
    assert task.x.dtype is torch.float32
    assert torch.equal(problem.oracle.train(task, 2), problem.oracle.train(wide, 2))
    last = problem.oracle.train(task, 2)[-1]
    for ask in (problem.oracle.risk, problem.oracle.predict):
        assert torch.equal(ask(task, last), ask(wide, last))


@each_kind
def test_a_task_that_was_made_is_one_of_its_problem(problem):
    task = task_of(problem, batch=True)
    again = checked_task(problem, task)
    for name in ("x", "y", "queries", "initial"):
        assert torch.equal(getattr(again, name), getattr(task, name))


def test_weight_shapes_count_the_weights():
    shapes = {name: problem.oracle.weight_shapes for name, problem in PROBLEMS.items()}
    assert shapes == {"network": ((4, 3), (2, 4)), "function": (), "linear": ((1, 3), (1, 1))}


def test_networks_start_from_a_seed_and_others_from_0():
    assert torch.equal(task_of(NETWORK, seed=3).initial, NETWORK.target.initial_parameters(3, 3.0))
    assert torch.equal(task_of(LINEAR).initial, torch.zeros(4).double())
    assert torch.equal(task_of(FUNCTION, batch=True).initial, torch.zeros(2, 7 * 2).double())


@each_kind
@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("seed", ["a", 1.5, True, -1])
def test_a_seed_is_a_whole_number_for_every_kind(problem, seed):
    x, y = X[0], Y[0, :, : problem.target.output_width]
    with pytest.raises(SettingError) as refused:
        as_task(problem, x, y, seed=seed)
    assert str(refused.value) == f"seed must be a whole number of at least 0, got {seed!r}."


def test_weights_that_are_given_have_the_right_shape():
    given = torch.ones(4, dtype=torch.float64)
    assert torch.equal(task_of(LINEAR, batch=True, initial=given).initial, given.expand(2, 4))
    with pytest.raises(DataError, match=r"^initial has shape \(3,\); expected \(4,\)\.$"):
        task_of(LINEAR, initial=given[:3])
    with pytest.raises(DataError, match=r"^initial has shape \(3, 4\); expected \(2, 4\)\.$"):
        task_of(LINEAR, batch=True, initial=given.expand(3, 4))
    with pytest.raises(SettingError, match=r"^Give either initial or seed, not both"):
        task_of(LINEAR, initial=given, seed=0)


@pytest.mark.parametrize("given", [torch.ones(14), torch.zeros(13), [0.0] * 14])
def test_a_function_starts_from_0_alone(given):
    with pytest.raises(SettingError, match=r"^initial has no effect for a kernel machine"):
        task_of(FUNCTION, initial=given)


def test_labels_are_checked_by_their_oracle():
    logistic = replace(NETWORK, loss="logistic")
    with pytest.raises(DataError, match=r"y\[1, 0\] is 1.5; the logistic loss needs labels"):
        logistic.oracle.require_labels(torch.tensor([[0.5], [1.5]]))
    counts = replace(LINEAR, target=LinearModel(3, "poisson"))
    with pytest.raises(DataError, match=r"y\[0, 0\] is -1; the poisson link needs labels of"):
        counts.oracle.require_labels(torch.tensor([[-1.0]]))


def test_a_step_uses_all_examples_or_its_batch():
    batches = replace(NETWORK, update=GradientStep(0.1, 3.0, batch_size=2))
    assert [tuple(batches.oracle.examples_of(step, 3)) for step in (0, 1)] == [(0, 1), (2, 0)]
    for problem in PROBLEMS.values():
        assert tuple(problem.oracle.examples_of(5, 3)) == (0, 1, 2)


def test_only_networks_have_preactivations():
    task = task_of(NETWORK)
    first, last = NETWORK.oracle.preactivations(task, task.initial, 0)
    matrices = NETWORK.target.matrices(task.initial)
    torch.testing.assert_close(first, task.x @ matrices[0].mT)
    torch.testing.assert_close(last, torch.tanh(first) @ matrices[1].mT)
    for problem in (FUNCTION, LINEAR):
        task = task_of(problem)
        assert problem.oracle.preactivations(task, task.initial, 0) == []


def test_only_linear_models_have_penalties_names_and_an_unusual_loss():
    task, weights = task_of(LINEAR), torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    risk, objective = LINEAR.oracle.risk(task, weights), LINEAR.oracle.objective(task, weights)
    torch.testing.assert_close(objective, risk + 0.05 * 3.5)
    names = {"a": 1.0, "b": -2.0, "c": 0.5, "(intercept)": 3.0}
    assert LINEAR.oracle.named(weights, ("a", "b", "c")) == names
    assert LINEAR.oracle.unusual_loss == "(z - y)^2 / 2 less y^2 / 2"
    for problem in (NETWORK, FUNCTION):
        task = task_of(problem)
        assert problem.oracle.objective(task, task.initial) is None
        assert problem.oracle.named(task.initial, ()) is None
        assert problem.oracle.unusual_loss is None


def test_functions_take_all_their_steps_and_others_may_stop():
    for problem in (NETWORK, LINEAR):
        problem.oracle.require_end(task_of(problem))
    with pytest.raises(SettingError, match="this run trains a function"):
        FUNCTION.oracle.require_end(task_of(FUNCTION))


def test_an_overflow_blames_what_is_too_large():
    moving = replace(FUNCTION, update=FunctionalStep(0.1, transforms=[0.5, -3.0]))
    messages = {
        NETWORK: "step_size=0.1 is too large",
        FUNCTION: "step_size=0.1 is too large",
        LINEAR: "step_size=0.1 is too large",
        moving: "transforms with entries of up to 3 are too large",
    }
    for problem, message in messages.items():
        error = problem.oracle.overflow("float32")
        assert isinstance(error, OverflowedRunError)
        assert f"The run leaves the range of float32: {message}" in str(error)


def test_steps_that_are_too_long_for_a_kernel_are_doubted():
    long = replace(FUNCTION, update=FunctionalStep(5.0))
    [doubt] = long.oracle.warnings_before(task_of(long), 3)
    assert "step_size is 5; it must be below" in str(doubt)
    for problem in PROBLEMS.values():
        assert list(problem.oracle.warnings_before(task_of(problem), 3)) == []


def test_coefficients_at_the_box_are_warned_of_afterwards():
    narrow = replace(LINEAR, update=ProximalStep(0.1, box=0.5))
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.1, -0.5, 0.3, 0.4]], dtype=torch.float64)
    task = task_of(narrow)
    [warning] = narrow.oracle.warnings_after(task, weights)
    assert str(warning).startswith("Coefficient 1 (counted from 0) ends at the box, 0.5")
    named = replace(task, input_names=("age", "income", "size"))
    [warning] = narrow.oracle.warnings_after(named, weights)
    assert str(warning).startswith("The coefficient of 'income' ends at the box, 0.5")
    assert list(narrow.oracle.warnings_after(task, weights[0])) == []
    for problem in PROBLEMS.values():
        assert list(problem.oracle.warnings_after(task, weights)) == []


# Runs of steps that know where the run was one step earlier.


class Fibonacci(LinearOracle):
    """The numbers of Fibonacci from 1, 1; each step adds its own number, too, in another entry."""

    def exact_step(self, task):
        def step(now, number, before=None):
            earlier = before[..., 0] if number else 0.0
            return torch.stack([now[..., 0] + earlier, now[..., 1] + number], -1)

        return step


START = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
RABBITS = Fibonacci(LinearModel(2), "matching", ProximalStep(0.1), DOMAIN)
PAIRS = bare_task(X[..., :2], Y[..., :1], START)


def test_a_run_begins_at_rest_and_remembers_one_step():
    run = RABBITS.train(PAIRS, 6)
    assert run[0, :, 0].tolist() == [1, 1, 2, 3, 5, 8, 13]
    assert run[1, :, 0].tolist() == [2, 2, 4, 6, 10, 16, 26]
    assert run[0, :, 1].tolist() == [0, 0, 1, 3, 6, 10, 15]


def test_every_step_is_taken_from_the_runs_own_entries():
    run = RABBITS.train(PAIRS, 6)
    assert torch.equal(RABBITS.stepped(PAIRS, run), run[:, 1:])
    off = run.clone()
    off[0, 2, 0] = 7.0
    assert RABBITS.stepped(PAIRS, off)[0, :, 0].tolist() == [1, 2, 8, 10, 8, 13]


def test_a_run_without_steps_has_nothing_to_step_from():
    assert RABBITS.stepped(PAIRS, START[:, None]).shape == (2, 0, 2)


# Networks, against torch.autograd and numbers computed by hand.


ALL = (
    *cases.SMALL,
    make_case(MLP((3, 4, 3), "tanh"), "cross_entropy"),
    make_case(MLP((3, 4, 4, 3), "gelu", "gelu"), "cross_entropy"),
    make_case(MLP((3, 4, 4, 2), "tanh", "relu", biases=True), "squared"),
)


def gradient_by_autograd(problem: Problem, weights, x, y):
    weights = weights.clone().requires_grad_()
    risk = on_network.risk(problem, weights, x, y)
    (gradient,) = torch.autograd.grad(risk.sum(), weights)
    return gradient


def test_steps_taken_together_are_those_taken_one_by_one(monkeypatch):
    for case in (ALL[0], batch_of(ALL[0], 3)):
        task, oracle = case.task(), case.problem.oracle
        history = oracle.train(task, 5)
        one_by_one = torch.stack(
            [oracle.step(task, weights) for weights in history[..., :-1, :].unbind(-2)], dim=-2
        )
        for at_once in (1, 2**16, 2 * task.n_examples * max(case.problem.target.widths)):
            monkeypatch.setattr(network, "NUMBERS_AT_ONCE", at_once)
            torch.testing.assert_close(
                oracle.stepped(task, history), one_by_one, rtol=1e-13, atol=1e-15
            )


def test_all_losses_are_tested():
    known = {case.problem.loss for case in ALL}
    assert known == {"squared", "logistic", "huber", "cross_entropy"}
    assert known <= LOSSES.keys()  # tests of balls and of torch's losses have the others


@over(ALL)
def test_the_gradient_is_that_of_autograd(case):
    task = case.task()
    ours = on_network.gradient(case.problem, task.initial, task.x, task.y)
    truth = gradient_by_autograd(case.problem, task.initial, task.x, task.y)
    assert truth.abs().max() > 1e-3
    torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-14)


@over(ALL)
def test_the_gradient_of_a_batch_is_that_of_each_task(case):
    batch = batch_of(case, n_tasks=3).task()
    ours = on_network.gradient(case.problem, batch.initial, batch.x, batch.y)
    truth = [
        gradient_by_autograd(case.problem, task.initial, task.x, task.y) for task in tasks_of(batch)
    ]
    torch.testing.assert_close(ours, torch.stack(truth), rtol=1e-11, atol=1e-14)


@over(ALL)
def test_predictions_are_those_of_the_formula(case):
    task, target = case.task(), case.problem.target
    p = task.x
    for layer, matrix in enumerate(target.matrices(task.initial), start=1):
        if target.biases:
            p = torch.cat([p, torch.ones(len(p), 1)], dim=-1)
        p = target.layer_activation(layer).value(torch.einsum("kj,ij->ik", matrix, p))
    torch.testing.assert_close(predict(target, task.initial, task.x), p)


# One output w . x; two examples x = (1, 2), (3, -1) with labels 1, -2; weights (0.5, 1).
ONE_LAYER = Problem(MLP((2, 1)), "squared", GradientStep(0.1, 3.0), Domain(4.0, 4.0))
HAND_X = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
HAND_Y = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
HAND_W = torch.tensor([0.5, 1.0], dtype=torch.float64)


def test_one_step_of_linear_regression_by_hand():
    """Predictions 2.5, 0.5; residuals 1.5, 2.5; gradient (1.5 + 7.5, 3 - 2.5) / 2."""
    assert predict(ONE_LAYER.target, HAND_W, HAND_X).flatten().tolist() == [2.5, 0.5]
    assert on_network.risk(ONE_LAYER, HAND_W, HAND_X, HAND_Y) == (1.5**2 + 2.5**2) / 4
    assert on_network.gradient(ONE_LAYER, HAND_W, HAND_X, HAND_Y).tolist() == [4.5, 0.25]
    torch.testing.assert_close(
        on_network.step(ONE_LAYER, HAND_W, HAND_X, HAND_Y),
        torch.tensor([0.05, 0.975], dtype=torch.float64),
    )


def test_a_step_is_clipped_to_the_box():
    large = replace(ONE_LAYER, update=GradientStep(1.0, 0.8))
    assert on_network.step(large, HAND_W, HAND_X, HAND_Y).tolist() == [-0.8, 0.75]


def test_the_history_starts_at_the_initial_weights_and_goes_step_by_step():
    history = on_network.train(ONE_LAYER, HAND_W, HAND_X, HAND_Y, n_steps=4)
    assert history.shape == (5, 2)
    assert torch.equal(history[0], HAND_W)
    for before, after in pairwise(history):
        assert torch.equal(after, on_network.step(ONE_LAYER, before, HAND_X, HAND_Y))
    assert torch.equal(on_network.train(ONE_LAYER, HAND_W, HAND_X, HAND_Y, n_steps=0), HAND_W[None])


def test_one_example_a_step_takes_them_in_turn():
    one = replace(ONE_LAYER, update=GradientStep(0.1, 3.0, batch_size=1))
    history = on_network.train(one, HAND_W, HAND_X, HAND_Y, n_steps=3)
    for number, (before, after) in enumerate(pairwise(history)):
        row = slice(number % 2, number % 2 + 1)
        assert torch.equal(after, on_network.step(ONE_LAYER, before, HAND_X[row], HAND_Y[row]))
    assert not torch.equal(history[1], on_network.step(ONE_LAYER, HAND_W, HAND_X, HAND_Y))


def test_training_a_batch_trains_each_task():
    case = cases.SMALL[0]
    batch = batch_of(case, n_tasks=3).task()
    together = on_network.train(case.problem, batch.initial, batch.x, batch.y, n_steps=3)
    assert together.shape == (3, 4, case.problem.target.n_parameters)
    for task, history in zip(tasks_of(batch), together, strict=True):
        alone = on_network.train(case.problem, task.initial, task.x, task.y, n_steps=3)
        torch.testing.assert_close(history, alone, rtol=1e-12, atol=1e-13)


@over(cases.SMALL)
def test_training_lowers_the_risk(case):
    task = case.task()
    history = on_network.train(case.problem, task.initial, task.x, task.y, n_steps=20)
    first, last = (
        on_network.risk(case.problem, w, task.x, task.y) for w in (history[0], history[-1])
    )
    assert last < first


def test_training_is_in_float64_whatever_comes_in():
    history = on_network.train(ONE_LAYER, HAND_W.float(), HAND_X.float(), HAND_Y.float(), n_steps=1)
    assert history.dtype is torch.float64
    assert torch.equal(history, on_network.train(ONE_LAYER, HAND_W, HAND_X, HAND_Y, n_steps=1))


SHAPED = {
    "ttt": MLP((3, 6, 3), "gelu", shortcuts=((0, 2),), norms=(2,)),
    "shortcut": MLP((3, 3, 2), "tanh", shortcuts=((0, 1),)),
    "nested": MLP((3, 4, 4, 4, 4), "silu", "tanh", shortcuts=((1, 2), (2, 4), (1, 4), (1, 3))),
    "norms": MLP((3, 5, 4, 2), "tanh", "sigmoid", biases=True, norms=(1, 2, 3), norm_eps=0.3),
    "both": MLP((2, 4, 4, 4), "relu", norms=(1, 3), shortcuts=((1, 2), (2, 3)), norm_eps=1e-8),
}


def by_torch(target: MLP, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The network by torch's own modules' functions."""
    named = {"silu": functional.silu, "identity": lambda z: z, "gelu": functional.gelu}
    outputs = [x]
    for layer, matrix in enumerate(target.matrices(weights), start=1):
        columns = target.widths[layer - 1]
        bias = matrix[..., columns] if target.biases else None
        z = functional.linear(outputs[-1], matrix[..., :columns], bias)
        if layer in target.norms:
            z = functional.layer_norm(z, z.shape[-1:], eps=target.norm_eps)
        name = target.output_activation if layer == target.depth else target.activation
        value = named[name](z) if name in named else getattr(torch, name)(z)
        outputs.append(value + sum(outputs[a] for a, b in target.shortcuts if b == layer))
    return outputs[-1]


@pytest.mark.parametrize("target", SHAPED.values(), ids=SHAPED)
def test_shortcuts_and_norms_are_those_of_torch_and_so_are_their_gradients(target):
    case = make_case(target, "squared", seed=4)
    task = case.task()
    torch.testing.assert_close(
        case.problem.oracle.predict(task, task.initial),
        by_torch(target, task.initial, task.queries),
        rtol=1e-12,
        atol=1e-12,
    )
    weights = task.initial.clone().requires_grad_()
    squares = (by_torch(target, weights, task.x) - task.y) ** 2
    (truth,) = torch.autograd.grad(squares.sum(-1).mean() / 2, weights)
    assert truth.abs().max() > 1e-3
    ours = case.problem.oracle.gradient(task, task.initial)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


def test_a_batch_of_shaped_networks_is_each_of_them():
    batch = batch_of(make_case(SHAPED["both"], "squared"), 3).task()
    oracle = make_case(SHAPED["both"], "squared").problem.oracle
    together = oracle.train(batch, 3)
    for one, alone in zip(together, tasks_of(batch), strict=True):
        torch.testing.assert_close(one, oracle.train(alone, 3), rtol=1e-12, atol=1e-13)


def test_rates_multiply_what_each_example_adds_to_the_gradient():
    target = SHAPED["ttt"]
    case = make_case(target, "squared", domain=Domain(x=2.0, y=2.0, rate=2.0))
    rates = torch.tensor([0.0, 0.5, 1.0, 2.0, 0.25], dtype=torch.float64)
    task = as_task(case.problem, case.x, case.y, queries=case.queries, seed=0, rates=rates)
    weights = task.initial.clone().requires_grad_()
    squares = ((by_torch(target, weights, task.x) - task.y) ** 2).sum(-1)
    risk = (rates * squares).mean() / 2
    (truth,) = torch.autograd.grad(risk, weights)
    oracle = case.problem.oracle
    torch.testing.assert_close(oracle.gradient(task, task.initial), truth, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(oracle.risk(task, task.initial), risk.detach())
    assert oracle.loss_in_words.endswith("loss of all examples, each times its rate")
    history = oracle.train(task, 3)
    together = oracle.stepped(task, history)
    torch.testing.assert_close(together, history[1:], rtol=1e-13, atol=1e-15)


def test_batches_keep_the_rates_of_their_examples():
    problem = Problem(
        MLP((3, 2)), "squared", GradientStep(0.5, 3.0, batch_size=2), Domain(2.0, 2.0, rate=1.0)
    )
    case = make_case(MLP((3, 2)), "squared")
    rates = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    task = as_task(problem, case.x, case.y, seed=0, rates=rates)
    history = problem.oracle.train(task, 2)
    assert torch.equal(history[1], history[0])
    assert not torch.equal(history[2], history[1])


# Linear models, by hand, against autograd, and against scikit-learn.


def numbers(*values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_one_step_of_the_lasso_by_hand():
    """Scores 2.5, 0.5; residuals 1.5, 2.5; gradient (1.5 + 7.5, 3 - 2.5) / 2, then 0.1 off."""
    model, update = LinearModel(2), ProximalStep(0.1, l1=1.0)
    assert on_linear_model.oracle(model, update).scores(HAND_W, HAND_X).flatten().tolist() == [
        2.5,
        0.5,
    ]
    assert on_linear_model.gradient(model, update, HAND_W, HAND_X, HAND_Y).tolist() == [4.5, 0.25]
    torch.testing.assert_close(
        on_linear_model.step(model, update, HAND_W, HAND_X, HAND_Y), numbers(0, 0.875)
    )


def test_penalties_leave_the_intercept_alone_and_the_sum_is_n_times_the_mean():
    """With b = -1: scores 1.5, -0.5; residuals 0.5, 1.5; gradient (5, -0.5, 2)."""
    model = LinearModel(2, intercept=True, reduction="sum")
    update, w = ProximalStep(0.1, l2=2.0, l1=0.5), numbers(0.5, 1, -1)
    assert on_linear_model.gradient(model, update, w, HAND_X, HAND_Y).tolist() == [6, 1.5, 2]
    torch.testing.assert_close(
        on_linear_model.step(model, update, w, HAND_X, HAND_Y),
        numbers(-0.05, 0.8, -1.2),
        rtol=0,
        atol=1e-15,
    )
    risk = (1.5**2 / 2 - 1.5) + (0.5**2 / 2 - 1.0)
    assert float(
        on_linear_model.oracle(model, update).risk(bare_task(HAND_X, HAND_Y, w), w)
    ) == pytest.approx(risk)
    objective = risk + 2.0 * (0.5**2 + 1) / 2 + 0.5 * 1.5
    assert float(on_linear_model.objective(model, update, w, HAND_X, HAND_Y)) == pytest.approx(
        objective
    )


def test_the_soft_threshold_stops_at_zero():
    values = numbers(-3, -1, -0.5, 0, 0.5, 1, 3)
    moved = soft_threshold(values, torch.ones_like(values))
    assert moved.tolist() == [-2, 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_gradient_is_that_of_autograd_for_every_task_of_a_batch(link, reduction):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(3, 6, 2, generator=generator), torch.rand(3, 6, 1, generator=generator)
    x, y, w = x.double(), y.double(), torch.randn(3, 3, generator=generator).double()
    w.requires_grad_()
    model, update = LinearModel(2, link, True, reduction), ProximalStep(0.1, l2=0.7)
    objective = on_linear_model.objective(model, update, w, x, y)
    assert objective.shape == (3,)
    (truth,) = torch.autograd.grad(objective.sum(), w)
    ours = on_linear_model.gradient(model, update, w.detach(), x, y)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_the_recurrence_of_the_textbooks(nesterov):
    """FISTA in its own sequences x and y (Beck and Teboulle 2009), and the heavy ball."""
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(9, 2, generator=generator).double(), torch.rand(9, 1, generator=generator)
    model, momenta = LinearModel(2, "logistic", intercept=True), (0.0, 0.3, 0.5, 0.9)
    update = ProximalStep(0.7, l2=0.1, l1=0.05, momentum=momenta, nesterov=nesterov)
    plain, threshold = ProximalStep(0.7, l2=0.1), numbers(0.035, 0.035, 0)
    found = on_linear_model.train(model, update, numbers(0.5, -1, 0.2), x, y.double(), 4)
    before = now = numbers(0.5, -1, 0.2)
    for step, momentum in enumerate(momenta):
        ahead = now + momentum * (now - before)
        slope = on_linear_model.gradient(model, plain, ahead if nesterov else now, x, y.double())
        moved = ahead - 0.7 * slope
        before, now = now, moved.sign() * (moved.abs() - threshold).clamp(min=0.0)
        torch.testing.assert_close(found[step + 1], now, rtol=1e-13, atol=1e-14)
    assert (found[4] - found[3]).abs().max() > 1e-2


def test_fista_needs_fewer_steps_than_descent():
    x = (
        torch.diag(numbers(10, 1, 0.3))
        @ torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()).Q
    )
    model, w, y = LinearModel(3, reduction="sum"), numbers(0, 0, 0), x @ numbers(1, -2, 3)
    found = {}
    for momentum in (None, 0.94):
        update = ProximalStep(0.01, momentum=momentum, nesterov=momentum is not None)
        oracle, task = on_linear_model.oracle(model, update), bare_task(x, y[:, None], w)
        found[momentum] = oracle.descend(task, tolerance=1e-8, most_steps=100_000)
        assert found[momentum].converged
        again = oracle.train(task, found[momentum].n_steps)
        assert torch.equal(again[-1], found[momentum].weights)
        assert (oracle.stepped(task, again) - again[1:]).abs().max() == 0
    assert found[None].n_steps > 10 * found[0.94].n_steps


def test_the_history_goes_step_by_step_with_the_step_size_of_the_data():
    model, update = LinearModel(2, "logistic"), ProximalStep(l1=0.1)
    y = numbers((0,), (1,))
    history = on_linear_model.train(model, update, HAND_W, HAND_X, y, n_steps=3)
    assert torch.equal(history[0], HAND_W)
    for before, after in pairwise(history):
        assert torch.equal(
            after, on_linear_model.step(model, sized(model, update, HAND_X), before, HAND_X, y)
        )
    assert torch.equal(on_linear_model.step(model, update, HAND_W, HAND_X, y), history[1])


def test_a_batch_runs_each_task_and_stops_when_all_have_settled():
    model, update = LinearModel(2), ProximalStep(0.1, l2=0.5, l1=0.1)
    x, y, start = (
        torch.stack([HAND_X, HAND_X / 2]),
        torch.stack([HAND_Y, HAND_Y]),
        torch.stack([HAND_W, HAND_W]),
    )
    together = on_linear_model.train(model, update, start, x, y, n_steps=3)
    limits = {"tolerance": 1e-6, "most_steps": 500}
    n_steps = []
    for task in range(2):
        alone = on_linear_model.train(model, update, HAND_W, x[task], y[task], n_steps=3)
        torch.testing.assert_close(together[task], alone, rtol=1e-14, atol=0)
        stopped = on_linear_model.descend(model, update, HAND_W, x[task], y[task], **limits)
        n_steps.append(stopped.n_steps)
    assert n_steps[0] != n_steps[1]
    assert on_linear_model.descend(model, update, start, x, y, **limits).n_steps == max(n_steps)


def test_a_run_stops_at_the_first_change_below_the_tolerance():
    model, update = LinearModel(2), ProximalStep(0.1)
    history = on_linear_model.train(model, update, HAND_W, HAND_X, HAND_Y, n_steps=40)
    changes = history.diff(dim=0).abs().amax(-1)
    tolerance = float(changes[24])
    stopped = on_linear_model.descend(
        model, update, HAND_W, HAND_X, HAND_Y, tolerance=tolerance, most_steps=40
    )
    assert stopped.n_steps == 25
    assert stopped.last_change == tolerance
    assert stopped.converged
    assert torch.equal(stopped.weights, history[25])
    short = on_linear_model.descend(
        model, update, HAND_W, HAND_X, HAND_Y, tolerance=tolerance, most_steps=24
    )
    assert (short.n_steps, short.converged) == (24, False)


def test_runs_that_cannot_be_are_refused():
    model = LinearModel(2)
    limits = {"tolerance": 1e-9, "most_steps": 10_000}
    problem = Problem(model, "matching", ProximalStep(), Domain(4.0, 4.0))
    with pytest.raises(OverflowedRunError, match="step_size=10 is too large for these data"):
        on_linear_model.descend(model, ProximalStep(10.0), HAND_W, HAND_X, HAND_Y, **limits)
    with pytest.raises(DataError, match=r"initial has shape \(3,\); expected \(2,\)"):
        as_task(problem, HAND_X, HAND_Y, initial=numbers(1, 2, 3))
    with pytest.raises(SettingError, match="The slope of the poisson link is unbounded"):
        on_linear_model.train(
            LinearModel(2, "poisson"), ProximalStep(), HAND_W, HAND_X, HAND_Y**2, n_steps=1
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """Data, a model of ours and the coefficients that scikit-learn finds, intercept last."""

    model: LinearModel
    update: ProximalStep
    x: Tensor
    y: Tensor
    truth: Tensor
    n_steps: int
    box: float | None = None


@cache
def diabetes():
    data = load_diabetes()
    return standardised(data.data), data.target


@cache
def breast_cancer():
    data = load_breast_cancer()
    return standardised(data.data), data.target.astype(float)


@cache
def counts():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5))
    return x, generator.poisson(np.exp(x @ [0.3, -0.2, 0.4, 0.0, 0.1] + 0.5)).astype(float)


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def fitted(data, estimator, link, reduction, n_steps, *, box=None, **penalty) -> Fitted:
    x, y = data
    estimator.fit(x, y)
    truth = np.append(estimator.coef_, estimator.intercept_)
    return Fitted(
        LinearModel(x.shape[1], link, True, reduction),
        ProximalStep(**penalty),
        torch.tensor(x),
        torch.tensor(y)[:, None],
        torch.tensor(truth),
        n_steps,
        box,
    )


def ridge(alpha, n_steps):
    """sum (z - y)^2 + alpha |w|^2: half of it, over n."""
    x, y = diabetes()
    estimator = Ridge(alpha=alpha, solver="cholesky")
    return fitted((x, y), estimator, "identity", "mean", n_steps, l2=alpha / len(y))


def lasso(alpha, n_steps):
    """(1 / 2n) sum (z - y)^2 + alpha |w|_1: the same."""
    estimator = Lasso(alpha=alpha, tol=1e-14, max_iter=10**5)
    return fitted(diabetes(), estimator, "identity", "mean", n_steps, l1=alpha)


def elastic_net(alpha, share, n_steps):
    """(1 / 2n) sum (z - y)^2 + alpha share |w|_1 + alpha (1 - share) |w|^2 / 2: the same."""
    estimator = ElasticNet(alpha=alpha, l1_ratio=share, tol=1e-14, max_iter=10**5)
    penalty = {"l1": alpha * share, "l2": alpha * (1 - share)}
    return fitted(diabetes(), estimator, "identity", "mean", n_steps, **penalty)


def logistic(c, n_steps):
    """c sum loss + |w|^2 / 2: the same over c."""
    estimator = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    return fitted(breast_cancer(), estimator, "logistic", "sum", n_steps, l2=1 / c)


def poisson(alpha, n_steps):
    """(1 / n) sum (half the deviance) + alpha |w|^2 / 2: the same, less a constant."""
    estimator = PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-12)
    return fitted(counts(), estimator, "poisson", "mean", n_steps, box=0.6, l2=alpha)


FITTED = {
    "ridge": lambda: ridge(100.0, 160),
    "lasso": lambda: lasso(1.0, 198),
    "elastic net": lambda: elastic_net(0.5, 0.4, 116),
    "logistic": lambda: logistic(0.01, 564),
    "poisson": lambda: poisson(0.1, 752),
}


@pytest.mark.parametrize("name", FITTED)
def test_descent_finds_the_coefficients_of_scikit_learn_in_the_steps_that_are_documented(name):
    assert_found_at_the_last_step(FITTED[name]())


def assert_found_at_the_last_step(case):
    scores = over_box(case.model, case.x, case.box) if case.box else None
    update = sized(case.model, case.update, case.x, scores)
    start = case.model.initial_parameters()
    history = on_linear_model.train(case.model, update, start, case.x, case.y, case.n_steps)
    errors = (history - case.truth).abs().amax(-1) / case.truth.abs().max()
    assert errors[-1] <= 1e-6 < errors[-2]


WEAKLY_PENALISED = {
    "ridge": lambda: ridge(1.0, 4514),
    "lasso": lambda: lasso(0.1, 2848),
    "logistic": lambda: logistic(1.0, 21322),
}


@pytest.mark.parametrize("name", WEAKLY_PENALISED)
def test_the_coefficients_of_scikit_learn_stay_where_they_are(name):
    """Where descent from 0 takes thousands of steps."""
    case = WEAKLY_PENALISED[name]()
    slightly_more = replace(case.update, l2=case.update.l2 + 0.01)
    after, moved = (
        on_linear_model.step(case.model, update, case.truth, case.x, case.y) - case.truth
        for update in (case.update, slightly_more)
    )
    assert after.abs().max() <= 1e-9 * case.truth.abs().max() < moved.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("name", WEAKLY_PENALISED)
def test_descent_from_zero_finds_them_too(name):
    assert_found_at_the_last_step(WEAKLY_PENALISED[name]())


def test_the_example_of_the_page_runs():
    page = Path(__file__).parents[2] / "docs" / "problems" / "statistical_models.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["found"].converged
    assert names["found"].weights[0] > 0.5


# Functions, against autograd in the function space, and their limit.


@over(KERNEL_CASES[:9])
def test_it_descends_the_squared_error_in_the_space_of_functions(case):
    """For f = sum a_j K(., x_j) the gradient in function space has coefficients e, not K e."""
    task, update = case.task(), case.problem.functional_step
    gram = case.problem.machine.gram(task.x)
    gram = gram + update.noise * torch.eye(7).double()
    coefficients = torch.zeros_like(task.y, requires_grad=True)
    residual = gram @ coefficients - task.y
    functional = torch.autograd.grad(residual.square().sum() / 2, residual)[0]
    values = (-update.size_of(0) * gram @ functional).flatten()
    first = case.problem.oracle.train(task, 1)[1]
    assert (first[: len(values)] - values).abs().max() <= 1e-14


@over(KERNEL_CASES)
def test_stepping_from_its_own_run_leads_along_it(case):
    task = case.task()
    run = case.problem.oracle.train(task, 3)
    again = case.problem.oracle.stepped(task, run)
    assert (again - run[1:]).abs().max() <= 1e-13
    assert case.problem.oracle.stepped(task, run[:1]).shape == (0, run.shape[1])


def machine_task(noise: float):
    """Points far enough apart that the kernel matrix has a modest condition number."""
    generator = np.random.default_rng(0)
    x, queries = generator.uniform(-4, 4, (12, 2)), generator.uniform(-4, 4, (5, 2))
    y = np.sin(x).sum(1)
    problem = Problem(
        icgd.KernelMachine(2, "rbf"), "squared", FunctionalStep(0.1, noise), Domain(4.0, 2.0)
    )
    return problem, icgd.as_task(problem, x, y, queries=queries), (x, y, queries)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_limit_is_kernel_ridge_and_the_mean_of_a_gaussian_process(noise):
    problem, task, (x, y, queries) = machine_task(noise)
    ours = problem.function_oracle.limit(task).flatten().numpy()
    ridge = KernelRidge(alpha=max(noise, 1e-12), kernel="rbf", gamma=0.5).fit(x, y)
    np.testing.assert_allclose(ours, ridge.predict(queries), rtol=1e-8)
    process = GaussianProcessRegressor(RBF(1.0), alpha=max(noise, 1e-12), optimizer=None)
    np.testing.assert_allclose(ours, process.fit(x, y).predict(queries), rtol=1e-8)


def test_steps_with_kernels_of_their_own_add_what_each_of_them_learns():
    """Every value by loops over tokens, examples and heads, for queries G x and keys H x."""
    case = next(case for case in KERNEL_CASES if case.name == "learnt")
    task, update = case.task(), case.problem.functional_step
    values = torch.zeros(task.n_tokens, 2).double()
    for step, heads in enumerate(update.heads):
        added = torch.zeros_like(values)
        for head in heads:
            query, key = (
                torch.eye(3).double() if rows is None else torch.tensor(rows, dtype=torch.float64)
                for rows in (head.transform, head.key_transform or head.transform)
            )
            for i, point in enumerate(task.points):
                learnt = [_kernel(head.kernel, query @ point, key @ x) for x in task.x]
                share = sum(learnt) if head.kernel == "softmax" else 1.0
                for j, value in enumerate(learnt):
                    added[i] += head.weight * value / share * (task.y[j] - values[j])
        values = values + update.size_of(step) * added
    real = case.problem.oracle.train(task, 3)[-1]
    assert (real - values.flatten()).abs().max() <= 1e-13
    assert values.abs().max() > 0.1


@pytest.mark.parametrize("name", ["heavy-ball", "sum-heavy-ball", "nesterov", "nesterov-moved"])
def test_momentum_keeps_a_share_of_the_last_change(name):
    """The recurrence in two sequences, as textbooks have it, beside the kernels of the steps."""
    case = next(case for case in KERNEL_CASES if case.name == name)
    task, update = case.task(), case.problem.functional_step
    oracle = case.problem.function_oracle
    values, points = [torch.zeros(10, task.y.shape[-1]).double()] * 2, []
    for number, kernel in zip(range(3), oracle.kernels(task), strict=False):
        momentum = update.momentum[number] if isinstance(update.momentum, tuple) else 0.6
        momentum = 0.5 if name == "nesterov-moved" else momentum
        points.append((1 + momentum) * values[-1] - momentum * values[-2])
        read = points[-1] if update.nesterov else values[-1]
        values.append(points[-1] + update.size_of(number) * kernel @ (task.y - read[:7]))
    real = oracle.train(task, 3)
    assert (real - torch.stack(values[1:]).flatten(-2)).abs().max() <= 1e-14
    assert (real[-1] - real[-2]).abs().max() > 1e-2


def test_a_step_by_itself_starts_from_rest():
    case = next(case for case in KERNEL_CASES if case.name == "heavy-ball")
    task, oracle = case.task(), case.problem.oracle
    run = oracle.train(task, 2)
    change = run[2] - oracle.step(task, run[1], 1)
    assert (change - 0.6 * (run[1] - run[0])).abs().max() <= 1e-15


def _kernel(name, u, w):
    if name == "rbf":
        return torch.exp(-(u - w).square().sum() / 2)
    return (1 + u @ w) ** 2 if name == "polynomial" else torch.exp(u @ w)


@pytest.mark.parametrize("name", ["learnt", "learnt-moved"])
def test_what_needs_one_kernel_refuses_steps_that_have_kernels(name):
    case = next(case for case in KERNEL_CASES if case.name == name)
    with pytest.raises(
        SettingError, match="The limit of the function is defined for one kernel in all"
    ):
        case.problem.function_oracle.limit(case.task())
