"""What the two panels of wang-rates show."""

import pytest

from icgd_papers.studies.wang_rates_picture import draw

ROWS = [
    {"curve": curve, "case": case, "size": size, "error": error, "allowed": allowed}
    for curve, case, size, error, allowed in (
        ("heads and units", "relu", 100, 0.1, None),
        ("heads and units", "relu", 400, 0.01, None),
        ("heads and units", "sigmoid", 120, 1e-6, None),
        ("drawn units", "4", 1, 4.0, 20.0),
        ("drawn units", "4", 16, 1.0, 5.0),
        ("greedy units", "4", 1, 0.2, 20.0),
        ("greedy units", "4", 16, 0.0, 5.0),
    )
]


@pytest.fixture(scope="module")
def panels():
    return draw(ROWS).axes


def test_heads_have_a_curve_for_each_activation_and_the_promised_rate(panels):
    relu, sigmoid, promised = panels[0].lines
    assert relu.get_xydata().tolist() == [[100, 0.1], [400, 0.01]]
    assert sigmoid.get_xydata().tolist() == [[120, 1e-6]]
    assert [text.get_text() for text in panels[0].texts] == ["relu", "sigmoid", "Theorem 1"]
    assert promised.get_ydata() == pytest.approx([0.1, 0.05])  # 4 times the heads, half the error
    assert panels[0].get_xscale() == panels[0].get_yscale() == "log"


def test_units_have_the_bound_above_what_is_drawn_and_chosen(panels):
    drawn, bound, greedy = panels[1].lines[:3]
    assert drawn.get_ydata() == pytest.approx([4.0, 1.0])
    assert bound.get_ydata() == pytest.approx([20.0, 5.0])
    assert greedy.get_ydata() == pytest.approx([0.2, 1e-16])  # 0 has no place on this axis
    assert (bound.get_linestyle(), greedy.get_linestyle()) == ("--", ":")
