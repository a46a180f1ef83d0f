"""The picture of cot-fig2: which curves are where, and numbers that are none."""

import pytest

from icgd_papers.figures.cot_operators_picture import BLUE, ORANGE, PURPLE, RED, draw
from tests.papers.figures.test_cot_operators import BUDGET, OPERATORS, Study, outcome

STUDIES = [
    Study(name, n_teachers, 2, 2, seed, BUDGET)
    for name, n_teachers in (
        ("plain", 4),
        ("products, steep slopes", 4),
        ("products, steep slopes", 9),
    )
    for seed in (0, 1)
]
LOSSES = [3.0, 3.2, 0.3, 0.4, 0.02, 0.03]
ROWS = OPERATORS.rows(STUDIES, [outcome(loss) for loss in LOSSES])


def lines_of(panel, colour):
    return [list(line.get_ydata()) for line in panel.lines if line.get_color() == colour]


def test_each_architecture_is_drawn_with_the_most_teachers_it_had():
    forward, _, near, far = draw(ROWS).axes
    validation, training = lines_of(forward, ORANGE)
    assert validation[-1] == pytest.approx((0.02 * 0.03) ** 0.5)
    assert training == [1.0, 1.0]
    assert lines_of(forward, BLUE)[0][-1] == pytest.approx((3.0 * 3.2) ** 0.5)
    for chain in (near, far):
        assert len(lines_of(chain, ORANGE)[0]) == 1  # round 0 has no distance
    assert (lines_of(near, PURPLE), lines_of(far, PURPLE)) == ([], [[pytest.approx(1e-26)]])
    assert "Forward operator, d = 2, N = 2" in forward.get_title(loc="left")


def test_the_papers_losses_are_lines():
    forward, backward, *_ = draw(ROWS).axes
    assert lines_of(forward, RED)[0][0] == 3.0
    assert lines_of(backward, RED)[0][0] == 0.139


def test_a_chain_that_overflows_is_drawn_as_far_as_it_goes():
    rows = [dict(row) for row in ROWS]
    for row in rows:
        if row["operator"] == "chain" and row["architecture"] == "plain":
            row["learnt"] = None
    chain = draw(rows).axes[2]
    assert lines_of(chain, BLUE) == [[]]
