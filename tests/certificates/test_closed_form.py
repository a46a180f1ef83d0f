from math import sqrt

import pytest
import torch

import icgd
from icgd.certificates.closed_form import closed_form_step
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.stack_bounds import StackBounds

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
