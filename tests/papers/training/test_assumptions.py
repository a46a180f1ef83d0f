"""Each assumption holds where the theory says so, and each check can fail."""

import numpy as np
import pytest
import torch

from icgd.errors import UnknownNameError
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd_papers.training.assumptions import (
    Check,
    attention_is_invariant,
    covariance_is_invariant,
    covariates_are_round,
)
from icgd_papers.training.covariates import AbstractCovariates, Ellipsoid, Gaussian, GaussianMixture
from icgd_papers.training.labels import KernelProcess, LinearFunctions, ReluNetworks

ELLIPSOID = Ellipsoid.of_seed(3)


class Cube(AbstractCovariates):
    """Uniform on a cube: the moments of order 1 to 3 are round, those of order 4 are not."""

    def sample(self, n_tasks, n_tokens, generator):
        size = (n_tasks, n_tokens, self.input_width)
        return torch.from_numpy(generator.uniform(-1, 1, size=size)) @ self.root


class MisjudgedGaussian(AbstractCovariates):
    """Gaussian, but with another covariance than it says."""

    def sample(self, n_tasks, n_tokens, generator):
        return Gaussian(torch.eye(5).double()).sample(n_tasks, n_tokens, generator)


class SharedSquare(AbstractCovariates):
    """Each token is uniform on the circle, but the second is the first with a sign changed."""

    def sample(self, n_tasks, n_tokens, generator):
        first = Ellipsoid.sphere(2).sample(n_tasks, 1, generator)
        return torch.cat([first, *[first * torch.tensor([1.0, -1.0])] * (n_tokens - 1)], dim=1)


@pytest.mark.parametrize("law", [Ellipsoid, Gaussian, GaussianMixture])
def test_the_laws_of_examples_4_and_5_are_round(law):
    check = covariates_are_round(law(ELLIPSOID.covariance))
    assert check.holds, check


@pytest.mark.parametrize(
    "law",
    [
        Cube(torch.eye(2)),
        MisjudgedGaussian(ELLIPSOID.covariance),
        SharedSquare(torch.eye(2)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_laws_that_are_not_round_are_found_out(law):
    check = covariates_are_round(law)
    assert not check.holds, check


@pytest.mark.parametrize("kernel", ["linear", "relu", "exp", "rbf", "matern", "polynomial"])
def test_whitened_kernel_processes_do_not_see_the_rotation(kernel):
    labels = KernelProcess(KernelMachine(5, (KernelHead(kernel),)), ELLIPSOID.whitening)
    assert covariance_is_invariant(labels, ELLIPSOID).measured < 1e-13


def test_the_laplace_kernel_measures_along_the_axes_so_it_sees_the_rotation():
    labels = KernelProcess(KernelMachine(5, (KernelHead("laplace"),)), ELLIPSOID.whitening)
    assert covariance_is_invariant(labels, ELLIPSOID).measured > 1e-3


@pytest.mark.parametrize(
    "make",
    [LinearFunctions, lambda w: ReluNetworks(4, w), lambda w: KernelProcess(KernelMachine(5), w)],
)
def test_labels_need_the_whitening(make):
    assert covariance_is_invariant(make(ELLIPSOID.whitening), ELLIPSOID).holds
    assert not covariance_is_invariant(make(None), ELLIPSOID).holds
    assert covariance_is_invariant(make(None), Ellipsoid.sphere(5)).holds


def test_covariances_of_networks_are_sampled_and_others_exact():
    networks = covariance_is_invariant(ReluNetworks(4), Ellipsoid.sphere(3))
    linear = covariance_is_invariant(LinearFunctions(), Ellipsoid.sphere(3))
    assert (networks.tolerance, networks.unit) == (5.0, "sampling errors")
    assert (linear.tolerance, linear.unit) == (1e-10, "of the largest entry")


@pytest.mark.parametrize(
    ("kernel", "holds"),
    [
        ("linear", True),
        ("relu", True),
        ("exp", True),
        ("softmax", True),
        ("polynomial", True),
        ("rbf", False),
        ("laplace", False),
        ("matern", False),
    ],
)
def test_attention_is_invariant_where_it_reads_products_only(kernel, holds):
    check = attention_is_invariant(kernel)
    assert check.holds is holds
    assert check.measured < 1e-13 if holds else check.measured > 0.1
    assert check.claim == f"Assumption 4.3 for {kernel} attention: h(W, V) = h(S^T W, S^-1 V)"


def test_a_check_that_measured_nothing_does_not_hold():
    assert not Check("", np.nan, 1.0, "").holds


def test_an_unknown_kernel_is_named():
    with pytest.raises(UnknownNameError, match=r"Unknown kernel 'sotfmax'.*Did you mean 'softmax'"):
        attention_is_invariant("sotfmax")
