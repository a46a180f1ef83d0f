import pytest

from icgd.program.functions import Band, RidgeSum, RidgeUnit

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


def test_what_a_listing_says_of_it():
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
