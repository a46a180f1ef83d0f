"""Bounds of functional descent: what they hold against is in tests/end_to_end."""

import pytest
import torch

import icgd
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional_bound import FunctionBounds
from tests.cases import KERNEL_CASES

DOUBLE = Arithmetic.of(torch.float64, 64, "dense")


def problem_of(step_size: float, kernel: str = "rbf") -> icgd.Problem:
    update = icgd.FunctionalStep(step_size)
    return icgd.Problem(icgd.KernelMachine(3, kernel), "squared", update, icgd.Domain(2.0, 4.0))


def bounds_of(problem: icgd.Problem, n_steps: int) -> FunctionBounds:
    return FunctionBounds(problem, icgd.compile(problem, n_steps=n_steps).program, DOUBLE)


def test_where_steps_converge_the_bound_of_a_run_grows_with_the_square_of_its_length():
    """Errors do not multiply: they add up on the examples, and once more where those are read."""
    problem, case = problem_of(0.2), KERNEL_CASES[3]
    task = icgd.as_task(problem, case.x, case.y, queries=case.queries)
    real = problem.oracle.train(task, 400)
    proved = bounds_of(problem, 400).run(task, real, real)
    bounds, one = proved.trajectory, proved.steps
    assert bounds[-1] <= 400**2 * one.max()
    assert bounds[-1] <= 1e-9


def test_on_the_domain_too_if_the_step_is_short_enough_for_any_data():
    short, long = 2 / 64, 2.5 / 64
    assert bounds_of(problem_of(short), 100).domain().trajectory <= 1e-6
    assert bounds_of(problem_of(long), 100).domain().trajectory >= 1.0
    assert bounds_of(problem_of(short, "relu"), 100).domain().trajectory >= 1.0


def test_no_steps_have_no_error():
    bound = bounds_of(problem_of(0.1), 0).domain()
    assert (bound.step, bound.trajectory) == (0.0, 0.0)


def test_a_kernel_of_the_users_own_has_no_bound():
    icgd.register_kernel("own-for-bounds", lambda u, w: u @ w.mT)
    problem, case = problem_of(0.01, "own-for-bounds"), KERNEL_CASES[0]
    report = icgd.verify(icgd.compile(problem, n_steps=2), case.x, case.y)
    assert report.step_bounds.isinf().all()
    assert report.step_errors.max() <= 1e-14


@pytest.mark.parametrize("part", ["kernel", "sum"])
def test_a_wrong_layer_breaks_its_bound(part, monkeypatch):
    """The certificate notices a kernel that is off by 1e-9, and a forgotten example."""
    case = KERNEL_CASES[3]
    compiled = icgd.compile(case.problem, n_steps=2)
    right = icgd.verify(compiled, case.x, case.y)
    assert right.verdict.holds
    if part == "kernel":
        layer = "icgd.backends.functional.sum_of_heads"
        monkeypatch.setattr(layer, lambda heads, u, w: 1.000000001 * heads[0].matrix(u, w))
    else:
        layer = "icgd.backends.functional.known_labels"
        monkeypatch.setattr(layer, lambda task: torch.cat([task.y[:-1], 0 * task.y[-1:]]))
    assert icgd.verify(compiled, case.x, case.y).verdict is icgd.Verdict.BROKEN


def test_where_the_rounding_of_a_kernel_has_no_bound_the_bounds_of_a_run_are_infinite():
    """The scores of softmax are as large as 1e12, and float32 knows none of their digits."""
    update, domain = icgd.FunctionalStep(0.05), icgd.Domain(1e6, 0.01)
    problem = icgd.Problem(icgd.KernelMachine(2, "softmax"), "squared", update, domain)
    compiled = icgd.compile(problem, n_steps=2)
    x = torch.tensor([[1e6, -9e5], [3e5, 7e5]], dtype=torch.float64)
    report = icgd.verify(compiled, x, torch.full((2,), 0.01).double(), dtype="float32")
    assert report.step_bounds.tolist() == report.trajectory_bounds.tolist() == [torch.inf] * 2
    assert report.verdict.holds
