"""What every oracle owes, over all three kinds of target."""

import inspect
from dataclasses import replace

import pytest
import torch

from icgd.errors import DataError, OverflowedRunError, SettingError
from icgd.problems.data import Domain, as_task, checked_task
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.oracles import AbstractOracle, LinearOracle
from icgd.problems.problem import Problem
from icgd.problems.steps import FunctionalStep, ProximalStep
from tests.bare_oracles import bare_task

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
@pytest.mark.parametrize("seed", ["a", 1.5, True, -1])
def test_a_seed_is_a_whole_number_for_every_kind(problem, seed):
    x, y = X[0], Y[0, :, : problem.target.output_width]
    with pytest.raises(SettingError) as refused:
        inspect.unwrap(as_task)(problem, x, y, seed=seed)  # without the tests' type checker
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
    with pytest.raises(SettingError, match=r"^A kernel machine starts from the function 0"):
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
    with pytest.raises(SettingError, match="a function takes all its steps"):
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
    [doubt] = long.oracle.doubts(task_of(long), 3)
    assert "step_size is 5; it must be below" in str(doubt)
    for problem in PROBLEMS.values():
        assert list(problem.oracle.doubts(task_of(problem), 3)) == []


def test_coefficients_at_the_box_are_warned_of_afterwards():
    narrow = replace(LINEAR, update=ProximalStep(0.1, box=0.5))
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.1, -0.5, 0.3, 0.4]], dtype=torch.float64)
    task = task_of(narrow)
    [warning] = narrow.oracle.afterthoughts(task, weights)
    assert str(warning).startswith("Coefficient 1 (counted from 0) ends at the box, 0.5")
    named = replace(task, input_names=("age", "income", "size"))
    [warning] = narrow.oracle.afterthoughts(named, weights)
    assert str(warning).startswith("The coefficient of 'income' ends at the box, 0.5")
    assert list(narrow.oracle.afterthoughts(task, weights[0])) == []
    for problem in PROBLEMS.values():
        assert list(problem.oracle.afterthoughts(task, weights)) == []


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
