from math import isclose, sqrt

import pytest
import torch
from torch import Tensor

import icgd
from icgd.certificates.table_bound import step_lipschitz, table_step
from icgd.errors import ProgramError
from tests.bare_oracles import on_network
from tests.cases import make_case

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
