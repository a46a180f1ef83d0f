"""The oracle itself: against torch.autograd, and against numbers computed by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from icgd.problems import oracles as network
from icgd.problems.data import Domain, as_task
from icgd.problems.functions import LOSSES
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.oracles import predict
from icgd.problems.problem import Problem
from tests import cases
from tests.bare_oracles import on_network as reference
from tests.cases import batch_of, make_case, over, tasks_of

ALL = (
    *cases.SMALL,
    make_case(MLP((3, 4, 3), "tanh"), "cross_entropy"),
    make_case(MLP((3, 4, 4, 3), "gelu", "gelu"), "cross_entropy"),
    make_case(MLP((3, 4, 4, 2), "tanh", "relu", biases=True), "squared"),
)


def gradient_by_autograd(problem: Problem, weights, x, y):
    weights = weights.clone().requires_grad_()
    risk = reference.risk(problem, weights, x, y)
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
    assert {case.problem.loss for case in ALL} == LOSSES.keys()


@over(ALL)
def test_the_gradient_is_that_of_autograd(case):
    task = case.task()
    ours = reference.gradient(case.problem, task.initial, task.x, task.y)
    truth = gradient_by_autograd(case.problem, task.initial, task.x, task.y)
    assert truth.abs().max() > 1e-3
    torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-14)


@over(ALL)
def test_the_gradient_of_a_batch_is_that_of_each_task(case):
    batch = batch_of(case, n_tasks=3).task()
    ours = reference.gradient(case.problem, batch.initial, batch.x, batch.y)
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
LINEAR = Problem(MLP((2, 1)), "squared", GradientStep(0.1, 3.0), Domain(4.0, 4.0))
X = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
Y = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
W = torch.tensor([0.5, 1.0], dtype=torch.float64)


def test_one_step_of_linear_regression_by_hand():
    """Predictions 2.5, 0.5; residuals 1.5, 2.5; gradient (1.5 + 7.5, 3 - 2.5) / 2."""
    assert predict(LINEAR.target, W, X).flatten().tolist() == [2.5, 0.5]
    assert reference.risk(LINEAR, W, X, Y) == (1.5**2 + 2.5**2) / 4
    assert reference.gradient(LINEAR, W, X, Y).tolist() == [4.5, 0.25]
    torch.testing.assert_close(
        reference.step(LINEAR, W, X, Y), torch.tensor([0.05, 0.975], dtype=torch.float64)
    )


def test_a_step_is_clipped_to_the_box():
    large = replace(LINEAR, update=GradientStep(1.0, 0.8))
    assert reference.step(large, W, X, Y).tolist() == [-0.8, 0.75]


def test_the_history_starts_at_the_initial_weights_and_goes_step_by_step():
    history = reference.train(LINEAR, W, X, Y, n_steps=4)
    assert history.shape == (5, 2)
    assert torch.equal(history[0], W)
    for before, after in pairwise(history):
        assert torch.equal(after, reference.step(LINEAR, before, X, Y))
    assert torch.equal(reference.train(LINEAR, W, X, Y, n_steps=0), W[None])


def test_one_example_a_step_takes_them_in_turn():
    one = replace(LINEAR, update=GradientStep(0.1, 3.0, batch_size=1))
    history = reference.train(one, W, X, Y, n_steps=3)
    for number, (before, after) in enumerate(pairwise(history)):
        row = slice(number % 2, number % 2 + 1)
        assert torch.equal(after, reference.step(LINEAR, before, X[row], Y[row]))
    assert not torch.equal(history[1], reference.step(LINEAR, W, X, Y))


def test_training_a_batch_trains_each_task():
    case = cases.SMALL[0]
    batch = batch_of(case, n_tasks=3).task()
    together = reference.train(case.problem, batch.initial, batch.x, batch.y, n_steps=3)
    assert together.shape == (3, 4, case.problem.target.n_parameters)
    for task, history in zip(tasks_of(batch), together, strict=True):
        alone = reference.train(case.problem, task.initial, task.x, task.y, n_steps=3)
        torch.testing.assert_close(history, alone, rtol=1e-12, atol=1e-13)


@over(cases.SMALL)
def test_training_lowers_the_risk(case):
    task = case.task()
    history = reference.train(case.problem, task.initial, task.x, task.y, n_steps=20)
    first, last = (
        reference.risk(case.problem, w, task.x, task.y) for w in (history[0], history[-1])
    )
    assert last < first


def test_training_is_in_float64_whatever_comes_in():
    history = reference.train(LINEAR, W.float(), X.float(), Y.float(), n_steps=1)
    assert history.dtype is torch.float64
    assert torch.equal(history, reference.train(LINEAR, W, X, Y, n_steps=1))


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
