import pytest
import torch

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.theorems.cheng.stationarity import derivatives
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.tasks import InContextTask


@pytest.mark.parametrize(("matrix", "moves"), [("B", False), ("A", True)])
def test_labels_that_violate_the_assumption_are_noticed(matrix, moves):
    inputs = Ellipsoid(torch.diag(torch.tensor([1.0, 1.0, 0.1, 4.0, 1.0], dtype=torch.float64)))
    plain = InContextTask(inputs, KernelProcess(KernelMachine(5, "linear")), 10)
    found = list(derivatives([matrix], plain, 0, moves=moves, n_batches=30, batch_size=200))
    assert len(found) == 3
    assert not any(comparison.holds for comparison in found)
