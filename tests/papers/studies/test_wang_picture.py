"""What the four panels show."""

import pytest

from icgd_papers.studies.wang_picture import draw

ROWS = [
    {
        "dimension": dimension,
        "depth": depth,
        "width": width,
        "error": error,
        "construction": "relu-stack",
        "heads": 100 * width,
    }
    for dimension, depth, width, error in (
        (2, 2, 8, 0.04),
        (2, 3, 4, 0.02),
        (3, 2, 8, 0.09),
        (3, 3, 16, 0.05),
    )
]


@pytest.fixture(scope="module")
def panels():
    return draw(ROWS).axes


def test_theorem_3_crosses_where_its_curves_meet(panels):
    shallow, deep, printed, crossing = panels[0].lines
    [place, _] = crossing.get_xdata()
    for error, ours, theirs in zip(
        shallow.get_xdata(), shallow.get_ydata(), deep.get_ydata(), strict=True
    ):
        assert (theirs < ours) == (error < place)
    assert printed.get_ydata()[-1] == pytest.approx(1e6)
    assert panels[0].xaxis_inverted()


def test_theorem_4_has_a_function_for_which_the_deep_network_never_wins(panels):
    smooth, rough, shallow, _ = panels[1].lines
    assert smooth.get_ydata()[-1] < shallow.get_ydata()[-1] < rough.get_ydata()[-1]
    assert [text.get_text() for text in panels[1].get_legend().get_texts()] == [
        "d = 1, 6 derivatives",
        "d = 2, 4 derivatives",
    ]


def test_a_width_that_was_not_found_is_hollow_and_above_the_grid(panels):
    points = [
        (round(line.get_xdata()[0]), line.get_ydata()[0], line.get_markerfacecolor())
        for line in panels[2].lines
        if len(line.get_xdata()) == 1
    ]
    blue, orange = "#0072B2", "#E69F00"
    assert points[4:8] == [  # error 0.05: 2 layers, then 3
        (2, 8, blue),
        (3, 16, "white"),
        (2, 4, orange),
        (3, 16, orange),
    ]


def test_transformers_are_compared_where_both_reach_the_error(panels):
    drawn = [line.get_xydata().tolist() for line in panels[3].lines if len(line.get_xdata())]
    assert drawn == [[[2, 800]], [[2, 400], [3, 1600]]]
