"""Bounds on the Hessian against autograd's, and the step size that comes of them."""

import pytest
import torch

from icgd.errors import SettingError
from icgd.problems import spectrum as module
from icgd.problems.linear_model import LINKS, LinearModel
from icgd.problems.spectrum import (
    Curvature,
    common,
    curvature,
    everywhere,
    over_ball,
    over_box,
    spanned,
)
from icgd.problems.steps import ProximalStep
from tests.bare_oracles import on_linear_model as reference

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.rand(12, 1, generator=GENERATOR, dtype=torch.float64)
RIDGE = ProximalStep(l2=0.3)


def hessian_eigenvalues(model, update, w):
    hessian = torch.autograd.functional.hessian(
        lambda v: reference.objective(model, update, v, X, Y), w
    )
    return torch.linalg.eigvalsh(hessian)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_least_squares_has_one_hessian_whose_ends_are_found(reduction):
    model = LinearModel(3, intercept=True, reduction=reduction)
    values = hessian_eigenvalues(model, RIDGE, torch.randn(4, generator=GENERATOR).double())
    found = curvature(model, RIDGE, X)
    assert found.smallest == pytest.approx(float(values[0]), rel=1e-9)
    assert found.largest == pytest.approx(float(values[-1]), rel=1e-12)
    assert found.condition == pytest.approx(float(values[-1] / values[0]), rel=1e-9)


@pytest.mark.parametrize("name", LINKS)
def test_no_hessian_of_the_box_or_the_ball_leaves_the_bounds(name):
    model = LinearModel(3, name, intercept=True)
    center = torch.tensor([0.4, -0.2, 0.1, 0.3], dtype=torch.float64)
    box, ball = over_box(model, X, 0.5), over_ball(model, X, center, 0.5)
    inside_box, inside_ball = (curvature(model, RIDGE, X, scores) for scores in (box, ball))
    for _ in range(4):
        direction = torch.randn(4, generator=GENERATOR, dtype=torch.float64)
        for found, w in (
            (inside_box, direction.sign() * 0.5),
            (inside_ball, center + 0.5 * direction / direction.norm()),
        ):
            values = hessian_eigenvalues(model, RIDGE, w)
            assert found.smallest <= values[0] + 1e-12
            assert values[-1] <= found.largest + 1e-12


def test_the_bounds_are_those_of_single_examples_not_of_the_worst_one():
    """On x = 1 and 2 with |w| <= 1 exp has slopes up to e and e^2: (e + 4 e^2) / 2."""
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    model = LinearModel(1, "poisson")
    e = torch.e
    found = curvature(model, ProximalStep(), x, over_box(model, x, 1.0))
    assert found.largest == pytest.approx((e + 4 * e**2) / 2)
    assert found.smallest == pytest.approx((1 / e + 4 / e**2) / 2)
    moved = over_ball(model, x, torch.tensor([3.0]).double(), 1.0)
    assert tuple(end.flatten().tolist() for end in moved) == ([2.0, 4.0], [4.0, 8.0])


def test_a_slope_without_bound_needs_a_range():
    model = LinearModel(3, "poisson")
    with pytest.raises(SettingError, match="The poisson link has no largest slope"):
        curvature(model, RIDGE, X)
    assert all(end.isinf().all() for end in everywhere(X))


def test_the_step_is_one_over_beta_of_the_worst_task_unless_given():
    model = LinearModel(3, "logistic")
    batch = torch.stack([X, 2 * X])
    alone = curvature(model, ProximalStep(), 2 * X).largest
    assert module.step_size(model, ProximalStep(), batch) == pytest.approx(1 / alone)
    assert module.sized(model, RIDGE, X).l2 == 0.3
    assert module.sized(model, ProximalStep(0.7), X) == ProximalStep(0.7)
    assert module.step_size(model, ProximalStep(), 0 * X) == 1.0


def test_contraction_is_decided_by_the_nearer_end():
    assert Curvature(1.0, 4.0).contraction(0.25) == 0.75
    assert Curvature(1.0, 4.0).contraction(0.5) == 1.0
    assert Curvature(0.0, 4.0).condition == float("inf")


def test_ranges_of_scores_are_joined_and_narrowed_example_by_example():
    first = (torch.tensor([[-1.0], [0.0]]), torch.tensor([[1.0], [4.0]]))
    second = (torch.tensor([[-2.0], [1.0]]), torch.tensor([[0.5], [5.0]]))
    assert [end.flatten().tolist() for end in common(first, second)] == [[-1.0, 1.0], [0.5, 4.0]]
    assert [end.flatten().tolist() for end in spanned(first, second)] == [[-2.0, 0.0], [1.0, 5.0]]
