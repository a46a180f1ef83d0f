"""Transformers of equal size: how sizes are matched, and what a study measures."""

from dataclasses import asdict, replace

import pytest
import torch

from icgd.constructions.recursion import Recursion
from icgd.pipeline import compile
from icgd_papers.results import reproduce
from icgd_papers.studies.ball import ball_sample
from icgd_papers.studies.wang_in_context import (
    BOX,
    FIRST_TEST,
    IN_CONTEXT,
    Budget,
    Study,
    ball_problem,
    equal_width,
    size_of,
)

BUDGET = Budget(n_steps=3, n_examples=6, n_queries=5, n_choice=2, n_test=2, step_sizes=(0.2, 50.0))
STUDY = Study(2, 2, 3, seed=7, budget=BUDGET)


def test_two_layers_get_the_width_whose_transformer_is_nearest_in_weights():
    deep = size_of(2, 3, 2).parameters
    width = equal_width(2, 2)
    off = {each: abs(size_of(2, 2, each).parameters - deep) for each in range(1, 8)}
    assert width == min(off, key=off.get) == 4
    assert replace(STUDY, depth=2).width == 4
    assert STUDY.width == 2
    own = compile(ball_problem(2, 2, 4), Recursion(), n_steps=9).summary()
    assert size_of(2, 2, 4).parameters == own.parameters  # steps repeat the weights


def real_descent(target, x, y, weights, step_size):
    for _ in range(BUDGET.n_steps):
        weights = weights.detach().requires_grad_()
        first, second, third = target.matrices(weights)
        output = torch.tanh(torch.tanh(x @ first.mT) @ second.mT) @ third.mT
        (slope,) = torch.autograd.grad((output - y).square().sum() / (2 * len(y)), weights)
        weights = (weights - step_size * slope).clamp(-BOX, BOX)
    return weights.detach()


def test_errors_are_those_of_real_descent_on_fresh_tasks_with_the_chosen_step():
    found = STUDY.train()
    assert found.step_size == 0.2  # steps of 50 throw the weights about
    assert found.choice_errors[0] < found.choice_errors[1]
    target = ball_problem(2, 3, 2).network
    expected = []
    for number in range(FIRST_TEST, FIRST_TEST + 2):
        sample = ball_sample(2, 11, seed=7, index=number)
        start = target.initial_parameters(number, BOX)
        weights = real_descent(target, sample.x[:6], sample.y[:6, None], start, 0.2)
        first, second, third = target.matrices(weights)
        output = torch.tanh(torch.tanh(sample.x[6:] @ first.mT) @ second.mT) @ third.mT
        expected.append(float((output[:, 0] - sample.y[6:]).square().mean()))
    assert found.errors == pytest.approx(expected, rel=1e-9)
    assert found.off_descent < 1e-9
    assert (found.width, found.layers) == (2, 5)
    assert STUDY.outcome_of(asdict(found)) == found


def test_both_depths_are_tried_at_every_size_and_dimension():
    studies = IN_CONTEXT.studies("laptop", seed=0)
    cases = [(study.dimension, study.deep_width, study.depth) for study in studies]
    assert cases == [(d, w, depth) for d in (2, 4) for w in (2, 4, 8) for depth in (2, 3)]
    assert len({study.budget for study in studies}) == 1


def test_rows_have_every_step_size_and_the_test_of_the_one_chosen(tmp_path):
    done = reproduce(IN_CONTEXT, "smoke", out=tmp_path)
    rows = done.numbers["rows"]
    assert [(row["depth"], row["step_size"]) for row in rows] == [
        (depth, size) for depth in (2, 3) for size in (0.25, 0.5)
    ]
    chosen = [row for row in rows if row["is_chosen"]]
    assert [row["depth"] for row in chosen] == [2, 3]
    for row in chosen:
        assert row["choice_error"] == min(
            each["choice_error"] for each in rows if each["depth"] == row["depth"]
        )
        assert row["least_error"] <= row["median_error"] <= row["largest_error"]
        assert row["n_test"] == 2
    assert {row["error"] for row in rows if not row["is_chosen"]} == {None}
    [cells] = done.summary.rows
    assert cells[:5] == ("2", "4 / 2", "0.50 / 0.48", "660 / 654", "0.5 / 0.5")
