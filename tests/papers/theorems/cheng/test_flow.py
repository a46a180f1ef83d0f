"""The finite law is as round as the theorems need, and a family that is not theirs is noticed."""

import pytest
import torch

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.theorems.cheng.flow import ClosedLaw, flow_speed, signed_shifts, stationary_point
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.labels import KernelProcess

INPUTS = Ellipsoid.of_seed(0)
PROCESS = KernelMachine(5, "exp")
LAW = ClosedLaw.of(INPUTS, KernelProcess(PROCESS, INPUTS.whitening), seed=0)


def test_signed_shifts_are_a_group_of_rotations_with_the_mean_of_all():
    shifts = signed_shifts()
    assert len(shifts) == 160
    eye = torch.eye(5, dtype=torch.float64)
    assert torch.equal(shifts.mT @ shifts, eye.expand_as(shifts))
    codes = {tuple(shift.flatten().tolist()) for shift in shifts}
    products = shifts[37] @ shifts
    assert {tuple(shift.flatten().tolist()) for shift in products} == codes
    R = torch.arange(25.0, dtype=torch.float64).reshape(5, 5) ** 1.5
    mean = (shifts.mT @ R @ shifts).mean(0)
    assert torch.allclose(mean, R.trace() / 5 * eye, atol=1e-12)


@pytest.mark.parametrize("moves", [False, True])
def test_another_family_is_not_stationary(moves):
    right = stationary_point("linear", LAW, INPUTS, moves=moves)
    wrong = stationary_point("linear", LAW, Ellipsoid.sphere(5), moves=moves)
    assert right.holds
    assert wrong.measured > 0.01


@pytest.mark.parametrize("moves", [False, True])
def test_labels_that_violate_the_assumption_slow_the_flow(moves):
    plain = ClosedLaw.of(INPUTS, KernelProcess(PROCESS), seed=0)
    assert flow_speed("relu", LAW, moves=moves).holds
    assert flow_speed("relu", plain, moves=moves).measured > 0.001
