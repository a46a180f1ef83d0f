import torch

from icgd_papers.theorems.wu.relu_sums import CONSTANT, least_coefficients
from icgd_papers.theorems.wu.sums import SumOfRelus


def test_the_lower_bound_lies_below_the_coefficients_of_a_fit():
    m = 50
    fit = SumOfRelus(lambda z: torch.sin(m * z) / m, 1.0, 100)
    assert fit.error <= 1 / (4 * m)
    # The coefficients count bends at z by 1 + |z|; the bound counts them once.
    assert 0.2 * fit.total < least_coefficients(m) < fit.total


def test_what_a_wave_needs_grows_with_its_frequency():
    assert least_coefficients(1000) / least_coefficients(100) > 9
    assert least_coefficients(100) > CONSTANT
