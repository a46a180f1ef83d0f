from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icgd.program.functions import Band, LatticeFunction, ReluSum, ReluTerm, RidgeSum, RidgeUnit


def relu_sum(
    knots: tuple[float, ...],
    slopes: tuple[float, ...],
    anchor: float = 0.0,
    anchor_value: float = 0.0,
    errors: tuple[float, ...] | None = None,
) -> ReluSum:
    errors = (0.0,) * len(slopes) if errors is None else errors
    return ReluSum("f", -9.0, 9.0, 1.0, knots, slopes, anchor, anchor_value, errors)


TENT = relu_sum((-1.0, 0.0, 2.0), (0.0, 3.0, -0.5, 1.0), anchor=0.0, anchor_value=5.0)
"""2 up to -1, up by 3 to 5 at 0, down by 1 to 4 at 2, then up."""


@pytest.mark.parametrize(
    ("z", "value"),
    [(-7.0, 2.0), (-1.0, 2.0), (-0.5, 3.5), (0.0, 5.0), (1.0, 4.5), (2.0, 4.0), (3.5, 5.5)],
)
def test_the_value_follows_knots_and_slopes(z, value):
    assert TENT(z) == value


def test_terms_count_outwards_from_the_anchor():
    assert TENT.terms() == (
        ReluTerm(0.0, 1.0, 5.0),
        ReluTerm(1.0, -0.0, -0.5),
        ReluTerm(-1.0, 0.0, -3.0),
        ReluTerm(-1.0, -1.0, 3.0),
        ReluTerm(1.0, -2.0, 1.5),
    )


def test_terms_that_vanish_are_left_out():
    assert relu_sum((0.0,), (0.0, 1.0)).terms() == (ReluTerm(1.0, 0.0, 1.0),)
    assert relu_sum((), (0.0,)).terms() == ()


def test_a_function_without_terms_is_zero():
    value = relu_sum((), (0.0,))(3.0)
    assert value == 0.0
    assert type(value) is float


def test_an_anchor_between_two_knots_has_the_same_slope_on_both_sides():
    function = relu_sum((-1.0, 1.0), (0.0, 1.0, 0.0), anchor=0.5, anchor_value=0.5)
    assert [function(z) for z in (-2.0, -1.0, 0.25, 1.0, 4.0)] == [-1.0, -1.0, 0.25, 1.0, 1.0]


def test_the_error_is_the_largest_of_the_pieces():
    function = relu_sum((0.0,), (0.0, 1.0), errors=(0.25, 0.125))
    assert function.n_pieces == 2
    assert function.error == 0.25
    assert not function.is_exact
    assert TENT.is_exact


integers = st.integers(-20, 20).map(float)


@st.composite
def parts(draw):
    """Knots, slopes, anchor and its value: what `relu_sum` takes."""
    knots = tuple(sorted(draw(st.sets(integers, max_size=6))))
    slopes = draw(st.tuples(*[integers] * (len(knots) + 1)).filter(any))
    anchor = draw(st.sampled_from(knots) | integers if knots else integers)
    return knots, slopes, anchor, draw(integers)


@given(parts(), st.integers(-100, 100).map(lambda n: n / 4))
def test_terms_slopes_and_intercepts_are_the_same_function(parts, z):
    """Everything is a small dyadic number here, so all of it is exact."""
    function = relu_sum(*parts)
    piece = sum(knot < z for knot in function.knots)
    assert function(z) == function.slopes[piece] * z + function.intercepts()[piece]
    assert function(function.anchor) == function.anchor_value


@given(parts())
def test_neighbouring_pieces_meet_at_their_knot(parts):
    function = relu_sum(*parts)
    constants = function.intercepts()
    for piece, knot in enumerate(function.knots):
        left = function.slopes[piece] * knot + constants[piece]
        right = function.slopes[piece + 1] * knot + constants[piece + 1]
        assert left == right == function(knot)


def test_a_sum_whose_error_is_unknown_is_not_exact():
    assert not relu_sum((), (1.0,), errors=(nan,)).is_exact


def test_a_sum_says_how_fine_it_is():
    assert TENT.fineness == "4 pieces"
    assert relu_sum((), (1.0,)).fineness == "1 piece"


def test_a_sum_can_be_taken_for_the_real_function():
    rough = relu_sum((0.0,), (0.0, 1.0), errors=(0.25, 0.125))
    assert rough.without_error() == relu_sum((0.0,), (0.0, 1.0), errors=(0.0, 0.0))


LOOK_UP = LatticeFunction("f", 2.0, 0.5, 1.4, (1.0, 2.0, 3.0, 4.0, 5.0), 0.125, 5.0, 7.0)


def test_a_look_up_has_its_grid_tokens_on_both_sides_of_zero():
    assert LOOK_UP.half == 2
    assert LOOK_UP.fineness == "5 lattice points"


def test_a_look_up_can_be_taken_for_the_real_function():
    assert not LOOK_UP.is_exact
    exact = LOOK_UP.without_error()
    assert exact.is_exact
    assert exact == LatticeFunction("f", 2.0, 0.5, 1.4, LOOK_UP.values, 0.0, 5.0, 7.0)


UNITS = (RidgeUnit((0.5,), -1.0, 3.0), RidgeUnit((0.0,), 2.0, -4.0))
LINE = RidgeSum("f", "relu", (6.0,), UNITS, 0.25)


def test_a_unit_reaches_as_far_as_the_box_and_its_offset_take_it():
    assert RidgeUnit((-0.5, 2.0), -1.0, 3.0).reach((6.0, 0.25)) == 3.0 + 0.5 + 1.0


def test_size_counts_what_each_unit_can_be():
    assert LINE.size == 3.0 * (1.0 + 4.0) + 4.0 * (1.0 + 2.0)


def test_a_sum_of_one_argument_is_laid_along_an_axis_of_the_plane():
    laid = LINE.along((2.0, -1.0), -2.0)
    assert laid.units == (RidgeUnit((1.0, -0.5), -1.0, -6.0), RidgeUnit((0.0, -0.0), 2.0, 8.0))
    assert laid.error == 0.5


def test_bands_are_where_the_error_is_largest():
    banded = RidgeSum("f", "relu", (6.0,), UNITS, 0.0, (Band(-1.0, 1.0, 2.0), Band(2.0, 3.0, 0.5)))
    assert (banded.error, banded.largest_error) == (0.0, 2.0)
    assert not banded.is_exact
    assert banded.without_error().is_exact
    assert LINE.largest_error == 0.25


def test_a_sum_with_bands_that_is_laid_along_an_axis_has_their_error_everywhere():
    banded = RidgeSum("f", "relu", (6.0,), UNITS, 0.25, (Band(-1.0, 1.0, 2.0),))
    laid = banded.along((2.0, -1.0), -3.0)
    assert (laid.error, laid.bands) == (6.0, ())


def test_what_a_listing_says_of_a_sum_of_units():
    assert (LINE.n_units, LINE.fineness, LINE.largest_coefficient) == (2, "2 relu units", 4.0)
    one = RidgeSum("f", "cos", (1.0,), UNITS[:1], 0.0)
    assert one.fineness == "1 cos unit"


def test_a_sum_without_units_is_zero_everywhere():
    empty = RidgeSum("zero", "relu", (1.0,), (), 0.0)
    assert (empty.largest_coefficient, empty.size) == (0.0, 0.0)


@pytest.mark.parametrize(("error", "exact"), [(0.0, True), (1e-300, False)])
def test_only_an_error_of_zero_is_exact(error, exact):
    fit = RidgeSum("f", "relu", (1.0,), UNITS, error)
    assert fit.is_exact is exact
    assert fit.without_error().is_exact
