"""Intervals hold what they must, enclosures of functions too, and rounding is counted."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd.approximation.lattice import Lattice, fit_on_lattice, fit_to_accuracy
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.backends.registry import BACKENDS
from icgd.certificates import enclosures
from icgd.certificates.enclosures import Arithmetic, Interval, drift_response, fit_error, n_knots
from icgd.problems.functions import FUNCTIONS, OWN, function_named
from icgd.program.functions import LatticeFunction


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
    common = interval.intersected(Interval.point(torch.tensor([1.0]).double()))
    assert (common.low.item(), common.high.item()) == (1.0, 1.0)


# Enclosures: how rounding and fits enter them.


# Arithmetic and fits.


def doubles(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


FLOAT64 = Arithmetic.of(torch.float64, n_tokens=8, backend="dense")


@given(
    name=st.sampled_from([name for name in sorted(FUNCTIONS) if name.rstrip("'") not in OWN]),
    low=st.floats(-7.5, 7.5),
    width=st.floats(0, 3),
    share=st.floats(0, 1),
)
def test_the_error_of_a_fit_is_bounded_piece_by_piece(name, low, width, share):
    function = function_named(name)
    fit = fit_relu_sum(function, -8.0, 8.0, 16, kink_width=2.0**-13)
    high = min(low + width, 8.0)
    point = torch.tensor([low + share * (high - low)]).double()
    interval = Interval(torch.tensor([low]).double(), torch.tensor([high]).double())
    gap = abs(fit(float(point)) - float(function(point)))
    assert gap <= float(fit_error(fit, interval)) + 1e-9 * (1 + abs(float(point)))


def test_a_ramp_errs_only_where_the_argument_can_touch_it():
    fit = fit_relu_sum(function_named("relu'"), -8.0, 8.0, kink_width=2.0**-10)
    low = torch.tensor([-1.0, -1.0, 2.0**-10, 1e-4, -1.0]).double()
    high = torch.tensor([-0.5, 0.0, 3.0, 1e-4, 1.0]).double()
    assert fit_error(fit, Interval(low, high)).tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_nothing_is_promised_outside_the_interval_of_a_smooth_fit():
    fit = fit_relu_sum(function_named("tanh"), -8.0, 8.0, 16)
    outside = Interval(torch.tensor([7.0]).double(), torch.tensor([8.5]).double())
    assert fit_error(fit, outside).isinf().all()


def test_a_look_up_errs_as_proved_within_its_reach_and_by_anything_beyond():
    (fit,) = fit_on_lattice((function_named("tanh"),), 3.0, 20)
    high = torch.tensor([0.0, 3.0, 3.1, 0.0]).double()
    low = torch.tensor([-1.0, -3.0, 0.0, -3.1]).double()
    assert fit_error(fit, Interval(low, high)).tolist() == [fit.error, fit.error, inf, inf]
    assert fit_error(fit.without_error(), Interval(low, high)).tolist() == [0.0] * 4


def test_a_look_up_that_saturates_errs_as_proved_everywhere():
    (fit,) = fit_to_accuracy((function_named("tanh"),), 100.0, 1e-6)
    assert fit.saturates
    assert fit.reach < 50
    far = Interval.symmetric(1e9, 1)
    assert fit_error(fit, far).item() == fit.error <= 1e-6


def shifted_head(fit: LatticeFunction, s: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """What a head returns if each of its tokens sees the argument off by its own shift."""
    g = Lattice(fit.reach, fit.spacing, fit.ratio, fit.half).numbers()
    scores = ((s[:, None] + shifts) / fit.spacing * g - g**2 / 2) / fit.ratio**2
    return torch.softmax(scores, -1) @ torch.tensor(fit.values, dtype=torch.float64)


@pytest.mark.parametrize("name", ["tanh", "tanh'", "silu'"])
def test_copies_that_differ_by_token_move_a_head_by_no_more_than_its_response(name):
    (fit,) = fit_on_lattice((function_named(name),), 3.0, 25)
    s = torch.linspace(-3, 3, 501, dtype=torch.float64)
    values = torch.tensor(fit.values, dtype=torch.float64)
    grid = torch.arange(-fit.half, fit.half + 1, dtype=torch.float64)
    still = shifted_head(fit, s, torch.zeros_like(grid))
    worst = 1e-6 * torch.sign((values - still[:, None]) * grid)
    moved = (shifted_head(fit, s, worst) - still).abs().max() / 1e-6
    assert 0.95 * drift_response(fit) <= moved <= drift_response(fit)


def test_rounding_grows_with_the_number_of_terms_and_the_unit_roundoff():
    sizes = torch.tensor([1.0]).double()
    assert FLOAT64.sum_of(10, sizes) < FLOAT64.sum_of(100, sizes)
    float32 = Arithmetic.of(torch.float32, n_tokens=8, backend="dense")
    ratio = float(float32.sum_of(10, sizes) / FLOAT64.sum_of(10, sizes))
    assert ratio == pytest.approx(2**29, rel=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_relu_that_is_off_rounds_nothing(backend):
    relu, arithmetic = (
        fit_relu_sum(function_named("relu"), -8.0, 8.0),
        Arithmetic.of(torch.float64, 9, backend),
    )
    where = Interval(doubles([-4.0, -1e-300, -1e-9]), doubles([-3.0, 0.0, 1e-9]))
    rounding = arithmetic.function(relu, 5, doubles([6.0, 1.0, 1.0]), 9, where)
    assert rounding[:2].tolist() == [0.0, 0.0]
    assert rounding[2] > 1e-16


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_narrow_ramp_that_is_read_at_relu_rounds_like_its_levels(backend):
    """And elsewhere, in the dense transformer, by as much as it is steep."""
    ramp, arithmetic = (
        fit_relu_sum(function_named("relu'"), -8.0, 8.0),
        Arithmetic.of(torch.float64, 9, backend),
    )
    where = Interval(doubles([0.0, 2.0, -2.0]), doubles([0.0, 3.0, -1.0]))
    rounding = arithmetic.function(ramp, 1, where.size, 1, where)
    assert 1e-16 < float(rounding[:2].max()) < 2e-14
    assert float(rounding[2]) < 2e-14 if backend == "fused" else float(rounding[2]) > 1


# Which pieces of a function an interval touches.


FIT = fit_relu_sum(function_named("tanh"), -6.0, 6.0, pieces=16)
KNOTS = torch.tensor(FIT.knots, dtype=torch.float64)
VALUES = torch.cat([KNOTS, KNOTS.nextafter(KNOTS + 1), KNOTS.nextafter(KNOTS - 1)])
VALUES = torch.cat([VALUES, torch.tensor([-inf, -1e300, 0.0, 1e300, inf], dtype=torch.float64)])


def test_the_table_counts_the_knots_that_a_search_finds():
    assert n_knots(FIT, VALUES, below=True).tolist() == [
        sum(knot < value for knot in FIT.knots) for value in VALUES.tolist()
    ]
    assert n_knots(FIT, VALUES).tolist() == [
        sum(knot <= value for knot in FIT.knots) for value in VALUES.tolist()
    ]


def test_without_a_table_the_counts_are_the_same(monkeypatch):
    below, up_to = n_knots(FIT, VALUES, below=True), n_knots(FIT, VALUES)
    monkeypatch.setattr(enclosures, "MOST_CELLS", 1)
    assert torch.equal(n_knots(FIT, VALUES, below=True), below)
    assert torch.equal(n_knots(FIT, VALUES), up_to)


def test_a_knot_belongs_to_the_piece_on_its_left_and_what_is_no_number_to_the_last():
    first, last = enclosures.touched(FIT, Interval.point(KNOTS))
    assert first.tolist() == last.tolist() == list(range(len(FIT.knots)))
    unknown = torch.tensor([nan, 0.0], dtype=torch.float64)
    assert n_knots(FIT, unknown, below=True)[0] == len(FIT.knots)


def test_a_function_without_knots_has_one_piece():
    line = fit_relu_sum(function_named("identity"), -1.0, 1.0, pieces=1)
    assert replace(line, name="line").knots == ()
    first, last = enclosures.touched(line, Interval.symmetric(5.0, 2))
    assert first.tolist() == last.tolist() == [0, 0]
