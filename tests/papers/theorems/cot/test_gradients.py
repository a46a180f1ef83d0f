"""The misprints of backward blocks are seen in every layer."""

import pytest

from icgd_papers.theorems.cot import gradients
from icgd_papers.theorems.cot.network import draw_round


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_the_factor_is_the_output_of_the_layer_below(layer):
    round_ = draw_round(4)
    assert gradients._right_factor(round_, layer).holds
    assert gradients.wrong_factor(round_, layer).measured > 1e-3


def test_the_wrong_sign_doubles_the_derivative():
    round_ = draw_round(4)
    assert gradients._slope_gap(round_, 1.0) < 1e-13
    delta = round_.deltas[-1].abs().max()
    assert gradients._slope_gap(round_, -1.0) == pytest.approx(2 * float(delta))
