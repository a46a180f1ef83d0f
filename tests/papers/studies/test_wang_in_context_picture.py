"""What the panels of wang-in-context show."""

import pytest

from icgd_papers.studies.wang_in_context_picture import draw


def row(dimension, depth, width, weights, error):
    return {
        "dimension": dimension,
        "depth": depth,
        "width": width,
        "weights": weights,
        "error": error,
        "standard_error": 0.01,
    }


ROWS = [
    row(dimension, depth, width, weights, error)
    for dimension in (2, 4)
    for depth, width, weights, error in (
        (2, 4, 1000, 0.2),
        (3, 2, 1100, 0.1),
        (2, 9, 9000, 0.15),
        (3, 5, 9100, 0.05),
    )
]


def test_each_dimension_has_a_panel_with_both_depths():
    panels = draw(ROWS).axes
    assert [panel.get_title("left") for panel in panels] == [
        f"Indicator of the ball in dimension {dimension}, learnt in context" for dimension in (2, 4)
    ]
    shallow, deep = panels[0].containers
    assert shallow.lines[0].get_xdata() == pytest.approx([940, 8460])
    assert deep.lines[0].get_xdata() == pytest.approx([1166, 9646])
    assert shallow.lines[0].get_ydata().tolist() == [0.2, 0.15]
    assert deep.lines[0].get_ydata().tolist() == [0.1, 0.05]
    top = deep.lines[1][1].get_ydata()
    assert list(top) == pytest.approx([0.12, 0.07])  # two standard errors
    assert [text.get_text().strip() for text in panels[0].texts] == [
        "width 4",
        "width 9",
        "width 2",
        "width 5",
    ]
