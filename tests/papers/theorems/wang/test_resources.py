from math import log

import pytest

from icgd_papers.theorems.wang.resources import theorem_3, theorem_4


def test_three_layers_grow_with_the_square_of_the_inverse_error():
    finding = theorem_3(0)
    assert finding.right[1].measured == pytest.approx(1e4)
    assert finding.printed[0].measured == finding.right[1].measured


def test_the_deep_network_is_dearer_at_moderate_errors():
    # (ln(1/eps) + 1)^3 eps^(-2/3) over 8 eps^-1 at eps = 0.001
    expected = (log(1000) + 1) ** 3 * 1000 ** (2 / 3) / (8 * 1000)
    assert theorem_4(0).printed[0].measured == pytest.approx(expected)
