"""What all kinds of bounds share: progress, shapes, and one set of bounds however one asks."""

import pytest
import torch

import icgd
from icgd.certificates.abstract_bounds import one_by_one
from icgd.problems.mlp import MLP
from tests import linear_cases
from tests.backends import chain_cases
from tests.cases import FEW, KERNEL_CASES

N_STEPS = 3
CHAIN = chain_cases.problem_of(MLP((2, 3, 1), "tanh"))


def compiled_and_task(kind):
    if kind == "linear":
        problem = linear_cases.PROBLEMS["logistic"]
        return linear_cases.compiled_of(problem, N_STEPS), linear_cases.task_of(problem)
    if kind == "chain":
        compiled = icgd.compile(CHAIN, n_steps=N_STEPS, construction="cot-network")
        return compiled, chain_cases.task_of(CHAIN)
    case = KERNEL_CASES[0] if kind == "function" else FEW[0]
    return icgd.compile(case.problem, n_steps=N_STEPS), case.task()


@pytest.mark.parametrize("kind", ["network", "chain", "function", "linear"])
def test_a_run_has_the_bounds_of_its_steps_and_tells_how_far_it_is(kind):
    compiled, task = compiled_and_task(kind)
    history = compiled.run_task(task).parameters
    real = compiled.problem.oracle.train(task, N_STEPS)
    calls: list[tuple[int, int]] = []
    bounds = compiled.bounds_for(task, "fused")
    proved = bounds.run(task, history, real, lambda *call: calls.append(call))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    torch.testing.assert_close(proved.steps, bounds.steps(task, history), rtol=1e-12, atol=0)
    assert proved.steps.shape == proved.trajectory.shape == (N_STEPS,)
    assert (
        (compiled.problem.oracle.stepped(task, history) - history[1:])
        .abs()
        .amax(-1)
        .le(proved.steps)
        .all()
    )


@pytest.mark.parametrize("kind", ["function", "linear"])
def test_the_papers_have_no_closed_form_for_these(kind):
    compiled, _ = compiled_and_task(kind)
    assert compiled.certificate().paper_step is None


def test_bounds_found_one_by_one_are_a_row_with_progress_after_each():
    history, calls = torch.zeros(2, 4, 5), []
    found = (torch.full((2,), float(step)) for step in range(3))
    rows = one_by_one(found, history, lambda *call: calls.append(call))
    assert rows.tolist() == [[0.0, 1.0, 2.0]] * 2
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_no_steps_have_no_bounds():
    none = one_by_one((), torch.zeros(2, 1, 5))
    assert none.shape == (2, 0)
    assert none.dtype == torch.float64
