import torch

from icgd_papers.theorems.wu.curves import (
    CURVE_STEP,
    Followed,
    convergence,
    curvature_of_one_weight,
    largest_curvature,
)


def test_the_share_of_a_bound_is_that_of_its_worst_step():
    followed = Followed(eps=0.1, lipschitz=2.0, distances=[0.0, 0.05, 0.9])
    # bounds with rate 1/2: 0.05, 0.1, 0.2
    assert abs(followed.share(0.5) - 4.5) < 1e-12


def test_the_curvature_of_one_unit_is_largest_at_zero_where_the_label_is_zero():
    x, y = torch.tensor([[2.0]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    assert abs(curvature_of_one_weight(x, y, box=3.0) - 4.0) < 1e-9


def test_the_step_of_the_curve_is_below_one_over_the_curvature():
    assert largest_curvature(0, 20) < 0.5 / CURVE_STEP


def test_gradient_mappings_converge_below_the_bound_of_lemma_14():
    curve = convergence(0, (1, 10, 40))
    assert [point.length for point in curve] == [1, 10, 40]
    for point in curve:
        assert point.least <= point.mean <= point.bound
    assert curve[-1].mean < 0.2 * curve[0].mean
