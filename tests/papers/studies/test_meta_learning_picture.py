import pytest

from icgd_papers.studies.meta_learning_picture import LINES, NEAREST, draw

ROWS = [
    {
        "line": name,
        "step": step,
        "loss": (place + 1) / (step + 1) * 2.0**seed,
        "prediction_distance": 0.0 if name == LINES[4] else place * step * 1e-3,
    }
    for place, name in enumerate((*LINES, NEAREST))
    for seed in (0, 2)
    for step in range(6)
]


def test_losses_are_on_the_left_from_the_start_on():
    losses, _ = draw(ROWS).axes
    assert len(losses.lines) == 6
    assert losses.lines[2].get_ydata().tolist() == pytest.approx([6 / (k + 1) for k in range(6)])
    assert losses.get_xticks().tolist() == [0, 1, 2, 3, 4, 5]
    assert losses.get_yscale() == "log"


def test_distances_are_on_the_right_from_the_first_step_on():
    _, distances = draw(ROWS).axes
    start, tuned, nearest = distances.lines
    assert start.get_ydata().tolist() == pytest.approx([1e-17] * 5)
    assert tuned.get_ydata().tolist() == pytest.approx([5e-3 * k for k in range(1, 6)])
    assert nearest.get_ydata().tolist() == pytest.approx([6e-3 * k for k in range(1, 6)])
    assert nearest.get_linestyle() == "--"
