"""Bounds on the rounding of kernels, against kernels in low precision and moved points."""

import pytest
import torch

from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.kernel_rounding import (
    Rounded,
    kernel_error,
    largest_kernel,
    worst_kernel_error,
)
from icgd.problems.kernel_machine import KernelHead
from icgd.problems.kernels import KERNELS

SINGLE = Arithmetic.of(torch.float32, 9, "dense")
G = ((0.7, -0.3, 0.2), (0.1, 0.9, -0.4))
H = ((-0.2, 0.5, 0.1), (0.3, 0.8, 0.6))
NAMES = [name for name, kernel in KERNELS.items() if not kernel.is_own]
every_head = pytest.mark.parametrize(
    "head",
    [
        KernelHead(name, *matrices)
        for name in NAMES
        for matrices in ((None, 1.5), (G, 1.5), (G, 1.5, None, H))
    ],
    ids=lambda head: (
        f"{head.kernel}-{'G' if head.transform else 'I'}{'H' if head.key_transform else ''}"
    ),
)


def points(seed: int) -> torch.Tensor:
    """Numbers that float32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(9, 3, generator=generator).clamp(-2, 2).double()


@every_head
def test_float32_kernels_err_by_less_than_their_bound_and_not_by_far(head):
    x = points(0)
    exact = Rounded(x, torch.zeros_like(x))
    bound = kernel_error(head, exact, exact, SINGLE)
    measured = (head.matrix(x.float(), x.float()).double() - head.matrix(x, x)).abs()
    assert (measured <= bound).all()
    assert bound.max() <= 3000 * measured.max()


@every_head
def test_moved_points_move_the_kernel_by_less_than_its_bound(head):
    x, way = points(1), points(2)
    moved = x + 1e-3 * way
    bound = kernel_error(head, *[Rounded(x, 1e-3 * way.abs())] * 2, SINGLE)
    measured = (head.matrix(moved, moved) - head.matrix(x, x)).abs()
    assert (measured <= bound).all()
    assert bound.max() <= 60 * measured.max()


@every_head
def test_no_kernel_in_the_domain_is_larger_or_rounds_more_than_the_worst(head):
    worst = Rounded(torch.full((1, 3), 2.0).double(), torch.full((1, 3), 1e-4).double())
    x = points(3)
    found = Rounded(x, torch.full_like(x, 1e-4))
    assert head.matrix(x, x).abs().max() <= largest_kernel(head, worst.points)
    assert kernel_error(head, found, found, SINGLE).max() <= worst_kernel_error(head, worst, SINGLE)


@pytest.mark.parametrize("kernel", ["exp", "polynomial"])
def test_the_largest_kernel_is_not_rounded_below_the_kernel_itself(kernel):
    """In float32, 0.01 would be a little less."""
    head, x = KernelHead(kernel), torch.tensor([[0.1]], dtype=torch.float64)
    assert largest_kernel(head, x) >= float(head.matrix(x, x))


def test_nothing_is_known_about_a_kernel_of_the_users_own():
    KERNELS["secret"] = KERNELS["rbf"]
    try:
        head = KernelHead("secret")
        x = Rounded(points(4), torch.zeros(9, 3).double())
        assert kernel_error(head, x, x, SINGLE).isinf().all()
        assert largest_kernel(head, x.points[:1]) == float("inf")
    finally:
        del KERNELS["secret"]
