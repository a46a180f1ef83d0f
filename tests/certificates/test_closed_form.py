"""Bound (c), by hand and against sampled slopes."""

from math import isclose, sqrt

import pytest
import torch
from torch import Tensor

import icgd
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.network import StackBounds, closed_form_step, step_lipschitz, table_step
from icgd.errors import ProgramError
from tests.bare_oracles import on_network
from tests.cases import make_case

# Networks.


HOW = Arithmetic.of(torch.float64, n_tokens=8, backend="fused")


def compiled(widths=(2, 3, 1), activation="tanh", box=1.0) -> icgd.Compiled:
    problem = icgd.Problem(
        target=icgd.MLP(widths, activation, "identity"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.5, box=box),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, "relu-stack", n_steps=1, pieces=32)


def test_depth_one_by_hand():
    """N = 1, K = 4, P = 2, exact identity: every error term vanishes."""
    run = compiled(widths=(4, 1))
    assert closed_form_step(run.program, run.problem) == 0.0


def test_depth_two_by_hand():
    run = compiled(widths=(2, 4, 1))
    eps, slope_eps = (run.program.relu_sum(name).error for name in ("tanh", "tanh'"))
    norm, vector = 2.0, 2.0
    forward = norm * (1 + norm * vector * 1.0)
    output = 4.0 * 1.0 * (torch.tanh(torch.tensor(4.0).double()).item() + eps)
    loss = 2 * (output + 1.0)
    slope = 1.0 + slope_eps
    largest_curve = 4 / (3 * sqrt(3))  # max |tanh''|
    d_slope = slope_eps + largest_curve * vector * forward * eps
    d_loss = 2.0 * forward * eps
    ratio = slope * vector * norm
    delta = ratio * slope * loss
    d_delta = d_slope * norm * vector * delta + ratio * (loss * d_slope + slope * d_loss)
    inputs = max(1.0, torch.tanh(torch.tensor(4.0).double()).item() + eps)
    expected = 0.5 * 2 / 2 * norm * (d_delta * norm * inputs + delta * forward * eps)
    assert closed_form_step(run.program, run.problem) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("widths", [(2, 3, 1), (3, 4, 4, 2), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "softplus"])
def test_it_is_never_below_the_propagated_bound(widths, activation):
    run = compiled(widths, activation)
    propagated = StackBounds(run.problem, run.program, HOW).domain().step
    assert StackBounds(run.problem, run.program, HOW).paper_step() >= propagated


def test_rounding_is_part_of_it():
    run = compiled(activation="identity")
    assert closed_form_step(run.program, run.problem) == 0.0
    assert 0 < StackBounds(run.problem, run.program, HOW).paper_step() < 1e-12


def test_there_is_none_for_look_ups():
    problem = compiled().problem
    run = icgd.compile(problem, n_steps=1, construction="softmax-stack", registers=40)
    assert StackBounds(run.problem, run.program, HOW).paper_step() is None
    assert run.certificate().paper_step is None


def test_there_is_none_for_shortcuts_norms_and_rates():
    update, plain = icgd.GradientStep(0.1, box=1.0), icgd.MLP((2, 2), "relu")
    rated = icgd.Domain(1.0, 1.0, rate=1.0)
    cases = [
        (plain, icgd.Domain(1.0, 1.0), True),
        (plain, rated, False),
        (icgd.MLP((2, 2), "relu", shortcuts=((0, 1),)), icgd.Domain(1.0, 1.0), False),
        (icgd.MLP((2, 2), "relu", norms=(1,)), icgd.Domain(1.0, 1.0), False),
    ]
    for target, domain, is_known in cases:
        problem = icgd.Problem(target, "squared", update, domain)
        certificate = icgd.compile(problem, "relu-stack", n_steps=1).certificate()
        assert (certificate.paper_step is not None) == is_known


# Tables of whole steps.


DOMAIN = icgd.Domain(2.0, 1.0)


def problem(output: str = "identity", loss: str = "squared") -> icgd.Problem:
    target = icgd.MLP((1, 1), output_activation=output)
    return icgd.Problem(target, loss, icgd.GradientStep(0.7, 1.5), DOMAIN)


def sampled_lipschitz(problem: icgd.Problem, n: int) -> float:
    """Largest slope of a step at random points: of the data, and of the weight in n copies."""
    generator = torch.Generator().manual_seed(0)

    def anywhere(bound: float, *shape: int) -> Tensor:
        share = 2 * torch.rand(20_000, *shape, generator=generator, dtype=torch.float64) - 1
        return (bound * share).requires_grad_()

    x, y, w = anywhere(DOMAIN.x, n, 1), anywhere(DOMAIN.y, n, 1), anywhere(1.5, 1)
    step = w - 0.7 * on_network.gradient(problem, w, x, y)
    by_x, by_y, by_w = torch.autograd.grad(step.sum(), (x, y, w))
    squares = by_x.square().sum((-2, -1)) + by_y.square().sum((-2, -1))
    return float((squares + by_w.square().sum(-1) / n).max().sqrt())


@pytest.mark.parametrize("output", ["identity", "tanh", "sigmoid", "softplus", "gelu", "silu"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_the_lipschitz_constant_bounds_every_slope_and_is_not_far_above(output, loss):
    sampled = sampled_lipschitz(problem(output, loss), 2)
    proved = step_lipschitz(problem(output, loss), 2)
    assert sampled <= proved <= 1.6 * sampled


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_lipschitz_constant_of_least_squares_is_known(n):
    """f = 2 (w x - y) x at a corner: f_x = 4 w x - 2 y = 14, f_y = -2 x = -4, f_w = 2 x^2 = 8."""
    expected = sqrt(n * (0.7 / (2 * n)) ** 2 * (14**2 + 4**2) + (1 - 0.7 * 8 / 2) ** 2 / n)
    assert isclose(step_lipschitz(problem(), n), expected, rel_tol=1e-9)


@pytest.mark.parametrize(("levels", "n"), [(2, 2), (3, 2), (2, 3)])
def test_the_bound_is_that_of_the_lemma(levels, n):
    compiled = icgd.compile(
        problem(), n_steps=1, construction="universal", levels=levels, n_examples=n
    )
    expected = step_lipschitz(problem(), n) * (8 * sqrt(3 * n) + sqrt(n)) * 4.0 / (2 * levels)
    assert isclose(table_step(compiled.program, problem()), expected)
    proved = compiled.certificate().paper_step
    assert proved is not None
    assert expected < proved < expected + 1e-6  # and rounding


def test_a_program_without_a_table_has_no_such_bound():
    case = make_case(icgd.MLP((1, 1)), "squared")
    program = icgd.compile(case.problem, "relu-stack", n_steps=1).program
    with pytest.raises(ProgramError) as caught:
        table_step(program, case.problem)
    assert str(caught.value) == "The program has no table of steps."
