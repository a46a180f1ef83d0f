import torch

from icgd_papers.theorems.wu.sums import SumOfRelus, largest


def test_it_is_the_interpolation_inside_and_a_straight_line_beyond():
    fit = SumOfRelus(torch.square, 2.0, 4)
    z = torch.tensor([-2.0, -1.5, 0.0, 0.5, 2.0, 5.0], dtype=torch.float64)
    expected = torch.tensor([4.0, 2.5, 0.0, 0.5, 4.0, 4.0 + 3 * 3.0], dtype=torch.float64)
    torch.testing.assert_close(fit(z), expected)


def test_its_error_is_that_of_a_parabola():
    assert abs(SumOfRelus(torch.square, 2.0, 4).error - 0.25) < 1e-12  # h^2 / 4 with h = 1


def test_every_vector_has_a_norm_of_one_at_most_and_coefficients_are_summed():
    fit = SumOfRelus(torch.square, 2.0, 4)
    scales, shifts, coefficients = fit.terms
    assert float((scales.abs() + shifts.abs()).max()) <= 1 + 1e-15
    assert fit.n_terms == 3 + 3
    # constant -2, line 3 twice, bends of 2 at -1, 0, 1, scaled by 2, 1, 2
    assert abs(fit.total - (2 + 6 + 2 * (2 + 1 + 2))) < 1e-12
    assert len(coefficients) == 6


def test_the_largest_value_includes_both_ends():
    assert largest(torch.exp, 1.0) == float(torch.exp(torch.tensor(1.0, dtype=torch.float64)))
