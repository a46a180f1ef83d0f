"""What the blocks of wu-score show."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from icgd_papers.studies.wu_score_picture import FAINT, METHODS, draw

EMPTY = dict.fromkeys(("time", "relative_error", "distance", "floor", "points", "step", "loss"))
TIMES = (5.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05)


def rows_of(law, points):
    rows = []
    for targets in ("exact", "denoising"):
        for seed in (0, 1):
            about = {**EMPTY, "law": law, "targets": targets, "seed": seed, "label_power": 2.0}
            for method in (*METHODS, "N(0, I)"):
                for place, time in enumerate(TIMES):
                    timed = {**about, "method": method, "time": time}
                    if method != "exact score":
                        timed["relative_error"] = 0.1 * (1 + place) * (1 + seed)
                    if method != "N(0, I)":
                        timed |= {"distance": 0.3 * (1 + seed / 10), "floor": 0.2 * (1 + seed / 10)}
                        timed["points"] = points if seed == 0 else None
                    rows.append(timed)
                losses = [(step, 4.0 / (1 + step)) for step in (0, 1, 3)]
                if method in ("in context", "direct", "Adam"):
                    rows += [
                        {**about, "method": method, "step": step, "loss": loss}
                        for step, loss in losses
                    ]
    return rows


ROWS = rows_of("ring", "0.50 1.00;-1.00 0.25")


def titled(figure, title):
    return [panel for panel in figure.axes if panel.get_title("left") == title]


def test_a_block_shows_samples_at_five_times_in_four_rows():
    figure = draw(ROWS)
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == ["t = 5", "t = 1", "t = 0.5", "t = 0.2", "t = 0.05"]
    dots = [panel for panel in figure.axes if not panel.get_title("left")]
    assert len(dots) == 4 * 5
    places = dots[0].collections[0].get_offsets()
    assert np.array_equal(places, [[0.5, 1.0], [-1.0, 0.25]])
    words = [panel.get_ylabel() for panel in figure.axes if panel.get_ylabel()]
    assert [text for text in words if "over" not in text] == [
        "exact\nscore",
        "in context,\nfrom scores",
        "direct,\nfrom scores",
        "in context,\ndenoising",
    ]


def test_lines_are_means_over_the_seeds_with_time_running_to_the_data():
    [errors] = titled(draw(ROWS), "score: relative error")
    wide = [line for line in errors.lines if line.get_color() == METHODS["direct"]]
    assert [line.get_linestyle() for line in wide] == ["-", "--"]
    expected = [0.1 * (1 + place) * 2**0.5 for place in range(7)]  # the geometric mean
    assert wide[0].get_ydata() == pytest.approx(expected)
    assert wide[0].get_xdata() == pytest.approx(TIMES)
    left, right = errors.get_xlim()
    assert left > right
    [normal] = [line for line in errors.lines if line.get_color() == FAINT]
    assert normal.get_ydata() == pytest.approx(expected)


def test_losses_are_shares_of_the_loss_of_predicting_nothing():
    [losses] = titled(draw(ROWS), "loss on the prompt")
    drawn = {(line.get_color(), line.get_linestyle()) for line in losses.lines}
    assert drawn == {(METHODS[m], s) for m in ("in context", "direct") for s in ("-", "--")}
    assert losses.lines[0].get_xdata() == pytest.approx([1, 3])
    assert losses.lines[0].get_ydata() == pytest.approx([1.0, 0.5])


def test_distances_at_the_first_time_are_dots_of_seeds_around_their_mean():
    [distances] = titled(draw(ROWS), "samples at T_0")
    names = [label.get_text().replace(",\n", " ") for label in distances.get_yticklabels()]
    learnt = ["in context", "direct", "Adam"]
    assert names == ["data", "exact score", *learnt, *(f"{name} denoising" for name in learnt)]
    dots, means = distances.collections[::2], distances.collections[1::2]
    floor, exact = (each.get_offsets().tolist() for each in dots[:2])
    assert floor == [[0.2, 0.0], [pytest.approx(0.22), 0.0]]
    assert exact == [[0.3, -1.0], [pytest.approx(0.33), -1.0]]
    assert means[1].get_offsets().tolist() == [[pytest.approx(0.315), -1.0]]
    filled = [to_hex(each.get_facecolors()[0]) for each in dots]
    assert [colour == "#ffffff" for colour in filled] == [False] * 5 + [True] * 3


def test_points_of_more_dimensions_are_images():
    text = ";".join([" ".join(["0.00"] * 4)] * 9)
    figure = draw([*ROWS, *rows_of("digits", text)])
    images = [panel.images[0] for panel in figure.axes if panel.images]
    assert len(images) == 4 * 5
    sheet = images[0].get_array()
    assert sheet.shape == (26, 26)  # three images of 8 pixels, and two lines between them
    assert np.array_equal(sheet[:8, :8], sheet[9:17, 18:26])  # nine times the mean digit
    assert sheet.max() > 10
