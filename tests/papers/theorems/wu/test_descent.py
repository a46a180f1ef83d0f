import torch

from icgd_papers.theorems.wu.descent import Descent

START = torch.zeros(1, dtype=torch.float64)


def test_the_gradient_mapping_is_the_gradient_inside_the_box_and_vanishes_at_its_edge():
    descent = Descent(torch.ones_like, box=1.0, step=0.1)
    assert abs(descent.mapping(START) - 1.0) < 1e-12
    assert descent.mapping(START - 1.0) == 0.0


def test_errors_have_the_norm_that_is_asked_for_and_steps_are_clipped():
    descent = Descent(torch.zeros_like, box=0.3, step=0.5, eps=0.2)
    path = torch.stack(descent.path(torch.zeros(3, dtype=torch.float64), 20, seed=0))
    assert abs(float((path[1] - path[0]).norm()) - 0.1) < 1e-12
    assert float(path.abs().max()) <= 0.3


def test_without_errors_it_is_exact_descent():
    descent = Descent(lambda w: 2 * (w - 1), box=10.0, step=0.25)
    path = descent.path(START, 3)
    assert [float(w) for w in path] == [0.0, 0.5, 0.75, 0.875]
