import pytest

from icgd_papers.studies.cost_lines import (
    Points,
    best_points,
    crossing,
    exponents,
    fitted_exponent,
    points,
)

SIZES = (2, 4, 8, 16, 32)


def line(backend, n_measured=5):
    """Time grows like the size, FLOPs like its square, memory not at all; counts are all there."""
    return [
        {
            "size": size,
            "backend": backend,
            "seconds": 0.5 * size if place < n_measured else None,
            "flops_counted": 3 * size**2,
            "flops_measured": 4 * size**3 if place < n_measured else None,
            "bytes_counted": 7,
            "bytes_measured": 9 * size if place < n_measured else None,
        }
        for place, size in enumerate(SIZES)
    ]


def test_what_was_not_measured_is_no_point():
    assert points(line("fused", 2), "seconds") == Points((2, 4), (1.0, 2.0))


def test_dense_lines_are_counted_and_fused_ones_measured():
    assert best_points(line("dense", 2), "FLOPs").costs == (12.0, 48.0, 192.0, 768.0, 3072.0)
    assert best_points(line("fused", 2), "FLOPs") == Points((2, 4), (32.0, 256.0))


def test_exponents_are_those_of_the_four_largest_sizes():
    assert exponents(line("dense", 3)) == ("1.00", "2-8", "2.00", "0.00", "4-32")
    assert exponents(line("fused")) == ("1.00", "4-32", "3.00", "1.00", "4-32")
    assert exponents(line("fused", 1)) == ("-", "-", "-", "-", "-")


def test_lines_cross_where_their_costs_are_equal():
    squares = Points(SIZES, tuple(float(size**2) for size in SIZES))
    line_above = Points((*SIZES, 64), tuple(10.0 * size for size in (*SIZES, 64)))
    size, cost = crossing(squares, line_above)
    assert (size, cost) == (pytest.approx(10), pytest.approx(100))
    assert crossing(line_above, squares) is None  # it falls below, and never rises above


def test_the_exponent_of_a_power_law_is_found():
    assert fitted_exponent([2, 4, 8, 16], [3.0 * n**1.5 for n in (2, 4, 8, 16)]) == pytest.approx(
        1.5, abs=1e-12
    )


def test_the_exponent_is_that_of_least_squares():
    # logs to base 2: (0, 0), (1, 2), (2, 1): slope (0*(-1) + 1*1) / 2 = 1/2
    assert fitted_exponent([1, 2, 4], [1.0, 4.0, 2.0]) == pytest.approx(0.5, abs=1e-12)
