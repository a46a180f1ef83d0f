"""Bounds on the rounding of kernels, against kernels in low precision and moved points."""

import pytest
import torch

from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import (
    Rounded,
    kernel_error,
    largest_kernel,
    own_error,
    worst_kernel_error,
)
from icgd.problems import kernel_machine as kernels
from icgd.problems.kernel_machine import KERNELS, KernelHead, register_kernel

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


def test_no_kernel_of_the_users_own_is_bounded_without_a_statement(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    register_kernel("secret", lambda u, w: torch.exp(-(u @ w.mT).abs()))
    head, x = KernelHead("secret"), Rounded(points(4), torch.zeros(9, 3).double())
    assert largest_kernel(head, x.points[:1]) == float("inf")
    assert worst_kernel_error(head, Rounded(*(part[:1] for part in x)), SINGLE) == float("inf")


def test_a_head_of_the_users_own_kernel_has_its_transform_and_weight(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    register_kernel("known", lambda u, w: torch.tanh(u @ w.mT), lipschitz=lambda r: r, bound=1.0)
    x = Rounded(points(4), torch.full((9, 3), 1e-4).double())
    head, moved = KernelHead("known", G, 1.5), points(4) + 1e-4
    bound = kernel_error(head, x, x, SINGLE)
    assert torch.allclose(bound, 1.5 * own_error(head, x, x, SINGLE), rtol=1e-9)
    measured = (head.matrix(moved, moved) - head.matrix(x.points, x.points)).abs()
    assert (measured <= bound).all()
    worst = Rounded(torch.full((1, 3), 2.0).double(), torch.full((1, 3), 1e-4).double())
    assert largest_kernel(head, worst.points) == 1.5
    assert bound.max() <= worst_kernel_error(head, worst, SINGLE)


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "matern", "softmax"])
@pytest.mark.parametrize("off", [10.0, 1e30, float("inf")])
def test_what_lies_between_0_and_1_is_off_by_at_most_1_however_far_its_points_are(kernel, off):
    x = Rounded(points(5), torch.full((9, 3), off).double())
    assert (kernel_error(KernelHead(kernel), x, x, SINGLE) <= 1 + 1e-4).all()
    one = Rounded(*(part[:1] for part in x))
    assert worst_kernel_error(KernelHead(kernel), one, SINGLE) <= 1 + 1e-4


@pytest.mark.parametrize("shape", [0.5, 1.5, 2.5])
def test_every_matern_kernel_is_as_steep_as_its_bound_says(shape):
    """Pairs of points on a line, from next to each other to far apart."""
    far = torch.linspace(0, 6, 200).double()[:, None]
    origin, head = torch.zeros(1, 1).double(), KernelHead("matern", shape=shape)
    double = Arithmetic.of(torch.float64, 200, "dense")
    off = torch.full_like(far, 1e-4)
    bound = kernel_error(
        head, Rounded(far, off), Rounded(origin, torch.zeros(1, 1).double()), double
    )
    exact = head.matrix(far, origin)
    moved = torch.maximum(*((head.matrix(far + way, origin) - exact).abs() for way in (off, -off)))
    assert (moved <= bound).all()
    assert (bound[2:] <= 1.1 * moved[2:] + 1e-13).all()
