from dataclasses import replace

import pytest
import torch

import icgd
from icgd.problems.data import Task
from tests.bare_oracles import bare_task

X = torch.arange(15.0).reshape(5, 3)
Y, WEIGHTS = torch.zeros(5, 1), torch.zeros(16)


def test_its_counts_follow_from_its_data():
    task = Task(X, Y, -X[:2], WEIGHTS)
    assert (task.n_examples, task.n_queries, task.n_tokens, task.batch) == (5, 2, 7, ())
    alone = bare_task(X, Y, WEIGHTS)
    assert (alone.n_queries, alone.n_tokens) == (0, 5)


def test_a_batch_has_an_axis_in_front():
    task = Task(X.expand(4, 5, 3), Y.expand(4, 5, 1), -X[:2].expand(4, 2, 3), WEIGHTS.expand(4, 16))
    assert (task.n_examples, task.n_queries, task.n_tokens, task.batch) == (5, 2, 7, (4,))


def test_its_points_are_the_examples_then_the_queries_in_float64():
    points = Task(X, Y, -X[:2], WEIGHTS).points
    assert points.dtype is torch.float64
    assert points.tolist() == [*X.tolist(), *(-X[:2]).tolist()]


def test_it_shows_the_names_of_its_inputs_if_it_has_any():
    named = Task(X, Y, X[:0], WEIGHTS, input_names=("age", "<size>", "bmi"))
    assert "1 label; inputs: age, <size>, bmi; queries: 0;" in repr(named)
    assert ">age, &lt;size&gt;, bmi</td>" in named._repr_html_()


def test_it_shows_itself_in_a_line():
    assert repr(Task(X, Y, -X[:2], WEIGHTS)) == (
        "Task(examples: 5 of 3 inputs, 1 label; queries: 2; initial: 16 numbers; dtype: float32)"
    )
    batch = Task(X.expand(4, 5, 3), Y.expand(4, 5, 1), X[:0].expand(4, 0, 3), WEIGHTS.expand(4, 16))
    assert repr(batch).startswith("Task(tasks: 4; examples: 5 of 3 inputs, 1 label; queries: 0;")


def test_tasks_of_a_batch_keep_their_own_rates():
    network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0, rate=1.0))
    rates = torch.tensor([[0.0, 0.5, 1.0], [1.0, 0.25, 0.0]], dtype=torch.float64)
    batch = icgd.as_task(problem, torch.ones(2, 3, 2), torch.ones(2, 3), rates=rates)
    assert batch.facts()["rates"] == "one for each example"
    assert torch.equal(batch.of_batch(1).rates, rates[1, :, None])
    assert torch.equal(batch.of_batch(slice(1, 2)).rates, rates[1:, :, None])
    assert batch.of_batch(slice(1, 2)).batch == (1,)
    plain = replace(problem, domain=icgd.Domain(1.0, 1.0))
    without = icgd.as_task(plain, torch.ones(2, 3, 2), torch.ones(2, 3))
    assert without.of_batch(0).rates is None
    assert "rates" not in without.facts()


def test_places_that_are_not_there_are_refused():
    problem = icgd.Problem(
        icgd.MLP((2, 1)), "squared", icgd.GradientStep(0.1, box=1.0), icgd.Domain(x=1.0, y=1.0)
    )
    batch = icgd.as_task(problem, torch.ones(2, 3, 2), torch.ones(2, 3))
    with pytest.raises(icgd.errors.SettingError, match="place must lie between -2 and 1, got 2"):
        batch.of_batch(2)
    with pytest.raises(icgd.errors.DataError, match="This is one task, which has no places"):
        batch.of_batch(0).of_batch(0)


def test_a_task_in_float64_has_the_same_numbers_and_names():
    network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0, rate=1.0))
    task = icgd.as_task(problem, X[:, :2] / 15, Y, rates=X[:, 2] / 15, dtype="float32")
    named = replace(task, input_names=("a", "b")).double()
    assert named.input_names == ("a", "b")
    for part in ("x", "y", "queries", "initial", "rates"):
        assert getattr(named, part).dtype == torch.float64
        assert torch.equal(getattr(named, part), getattr(task, part).double())
