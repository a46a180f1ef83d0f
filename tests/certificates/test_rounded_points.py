"""Bounds on the rounding of points that a head moves, against float32."""

import pytest
import torch

from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import Rounded, moved_error, sizes_of
from icgd.problems.kernel_machine import KernelHead

SINGLE = Arithmetic.of(torch.float32, 9, "dense")
G = ((0.7, -0.3, 0.2), (0.1, 0.9, -0.4))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_moved_points_are_off_by_less_than_their_bound_and_not_by_far(scale):
    generator = torch.Generator().manual_seed(0)
    x = (scale * torch.randn(50, 3, generator=generator)).double()
    head, off = KernelHead("rbf", G), 1e-6 * scale * torch.ones_like(x)
    bound = moved_error(head, Rounded(x, off), SINGLE)
    measured = (head.moved((x + off).float()).double() - head.moved(x)).abs()
    assert (measured <= bound).all()
    assert bound.max() <= 20 * measured.max()


def test_sizes_are_those_of_the_terms_and_not_of_their_sum():
    x = torch.tensor([[1.0, -1.0, 2.0]]).double()
    assert sizes_of(KernelHead("rbf", G), x)[0].tolist() == pytest.approx([1.4, 1.8])
    assert sizes_of(KernelHead("rbf"), x)[0].tolist() == [1.0, 1.0, 2.0]
