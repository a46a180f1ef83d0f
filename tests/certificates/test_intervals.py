import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd.certificates.enclosures import Interval


def interval_and_points(seed: int, *shape: int) -> tuple[Interval, torch.Tensor]:
    """A random interval and a point inside, which sits on an end every third time."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randn(2, *shape, generator=generator, dtype=torch.float64).sort(0).values
    share = (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.5).clamp(0, 1)
    return Interval(ends[0], ends[1]), torch.lerp(ends[0], ends[1], share)


def assert_inside(interval: Interval, value: torch.Tensor) -> None:
    assert (interval.low - 1e-12 <= value).all()
    assert (value <= interval.high + 1e-12).all()


@given(st.integers(0, 10_000))
def test_operations_contain_the_operation_on_points(seed: int):
    left, a = interval_and_points(seed, 3, 4)
    right, b = interval_and_points(seed + 1, 3, 4)
    matrix, c = interval_and_points(seed + 2, 4, 2)
    assert_inside(left + right, a + b)
    assert_inside(left * right, a * b)
    assert_inside(left @ matrix, a @ c)
    assert_inside(left.times(-2.5), -2.5 * a)
    assert_inside(left.clipped(0.7), a.clamp(-0.7, 0.7))
    assert_inside(left.mT, a.mT)
    assert (a.abs() <= left.size).all()
    assert ((a - b).abs() <= left.distance_to(right) + 1e-12).all()


def test_the_product_of_points_is_a_point_but_for_rounding():
    a, b = torch.tensor([[2.0, -1.0]]).double(), torch.tensor([[3.0], [5.0]]).double()
    product = Interval.point(a) @ Interval.point(b)
    assert 1.0 - 1e-14 < product.low.item() < 1.0 < product.high.item() < 1.0 + 1e-14


def test_widening_and_common_parts():
    interval = Interval.symmetric(2.0, 1).widened(torch.tensor([0.5]).double())
    assert -2.5 - 1e-14 < interval.low.item() < -2.5 < 2.5 < interval.high.item() < 2.5 + 1e-14
    common = interval.within(Interval.point(torch.tensor([1.0]).double()))
    assert (common.low.item(), common.high.item()) == (1.0, 1.0)
