import numpy as np
import pytest
import torch

import icgd
from icgd.estimators.networks import FLAT, sharpness


def network(loss="squared"):
    target = icgd.MLP((3, 5, 2))
    return icgd.Problem(target, loss, icgd.GradientStep(1.0, 9.0), icgd.Domain(9.0, 9.0))


def test_it_is_the_largest_eigenvalue_of_the_hessian():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    problem = network("logistic")
    task = icgd.as_task(problem, x, (x[:, :2] > 0).double(), seed=0)

    def risk(weights):
        return problem.oracle.risk(task, weights)

    hessian = torch.autograd.functional.hessian(risk, task.initial)
    largest = float(torch.linalg.eigvalsh(hessian).abs().max())
    assert sharpness(problem.oracle, task) == pytest.approx(largest, rel=0.05)


def test_a_flat_start_has_a_floor():
    problem = network()
    zeros = np.zeros(problem.target.n_parameters)
    task = icgd.as_task(problem, np.zeros((4, 3)), np.zeros((4, 2)), initial=zeros)
    assert sharpness(problem.oracle, task) == FLAT
