"""Theorems 4.5 and 4.6: the gradient stays on the family, and only where they say so."""

from itertools import product

import pytest
import torch

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.labels import KernelProcess, LinearFunctions, ReluNetworks
from icgd_papers.training.stationarity import LARGEST_RATIO, family_point, measure_stationarity
from icgd_papers.training.tasks import InContextTask

ROUND = Ellipsoid(torch.tensor([[1.2, 0.7, 0], [0.7, 0.9, 0], [0, 0, 0.3]], dtype=torch.float64))

LABELS = {
    "exp": KernelProcess(KernelMachine(3, "exp"), ROUND.whitening),
    "relu": KernelProcess(KernelMachine(3, "relu"), ROUND.whitening),
    "linear": LinearFunctions(ROUND.whitening),
    "networks": ReluNetworks(8, ROUND.whitening),
}


def measured(kernel, labels, transforms_covariates):
    return measure_stationarity(
        kernel,
        InContextTask(ROUND, labels, 5),
        transforms_covariates=transforms_covariates,
        n_layers=2,
        n_batches=10,
        batch_size=800,
    )


@pytest.mark.parametrize(
    ("kernel", "labels", "transforms_covariates"),
    [
        *product(("linear", "relu", "softmax"), ("exp",), (False, True)),
        ("softmax", "relu", True),
        ("exp", "linear", True),
        ("relu", "networks", True),
    ],
)
def test_no_gradient_leaves_the_family(kernel, labels, transforms_covariates):
    found = measured(kernel, LABELS[labels], transforms_covariates)
    assert found.ratio <= LARGEST_RATIO, found
    assert found.elsewhere > 6 * found.standard_error, found


@pytest.mark.parametrize("transforms_covariates", [False, True])
def test_it_does_if_the_labels_know_another_covariance(transforms_covariates):
    found = measured("softmax", KernelProcess(KernelMachine(3, "exp")), transforms_covariates)
    assert found.ratio > 3, found


def test_the_family_is_that_of_the_theorem():
    task = InContextTask(ROUND, LABELS["exp"], 5)
    model = family_point("exp", task, 2, True)
    identity = torch.eye(3, dtype=torch.float64)
    product_of_both = ROUND.root @ model.B[1, 0].mT @ model.C[1, 0] @ ROUND.root
    assert (product_of_both - 0.6 * identity).abs().max() <= 1e-12
    assert (model.A[0, 0] - -0.06 * identity).abs().max() <= 1e-12
    assert model.r[:, 0].tolist() == pytest.approx([-0.2, -0.12])
