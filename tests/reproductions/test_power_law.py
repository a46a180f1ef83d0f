import pytest

from icgd.reproductions.power_law import fitted_exponent


def test_the_exponent_of_a_power_law_is_found():
    assert fitted_exponent([2, 4, 8, 16], [3.0 * n**1.5 for n in (2, 4, 8, 16)]) == pytest.approx(
        1.5, abs=1e-12
    )


def test_it_is_that_of_least_squares():
    # logs to base 2: (0, 0), (1, 2), (2, 1): slope (0*(-1) + 1*1) / 2 = 1/2
    assert fitted_exponent([1, 2, 4], [1.0, 4.0, 2.0]) == pytest.approx(0.5, abs=1e-12)
