from math import nan

import pytest

from icgd.errors import DataError
from icgd.pictures import plotting
from icgd_papers.training.log_picture import log_picture
from icgd_papers.training.logs import Log


def log_of(**columns: list[float]) -> Log:
    rows = zip(*columns.values(), strict=True)
    return Log(
        tuple(
            {"step": 10.0 * k, **dict(zip(columns, row, strict=True))} for k, row in enumerate(rows)
        )
    )


def test_losses_share_a_panel_and_every_other_column_has_its_own():
    log = log_of(
        loss=[2.0, 1.0, 0.5], validation_loss=[2.5, 1.5, 0.7], gradient_norm=[1.0, nan, 3.0]
    )
    figure = log_picture(log, "my run")
    first, second = figure.axes
    assert first.get_title(loc="left") == "my run"
    assert [list(line.get_ydata()) for line in first.lines] == [[2.0, 1.0, 0.5], [2.5, 1.5, 0.7]]
    assert list(first.lines[0].get_xdata()) == [0.0, 10.0, 20.0]
    assert first.get_yscale() == "log"
    assert second.get_title(loc="left") == "gradient norm"


def test_a_loss_that_is_not_positive_has_a_plain_axis():
    assert log_picture(log_of(loss=[1.0, -1.0]), "run").axes[0].get_yscale() == "linear"


@pytest.mark.parametrize("losses", [(1e308, 1.7e308), (1e308, -1e308), (1e-320, 1e308)])
def test_numbers_near_the_largest_float_are_drawn(losses):
    rows = tuple({"step": float(step), "loss": loss} for step, loss in enumerate(losses))
    picture = log_picture(Log(rows), "run")
    assert plotting.png(picture)
    heights = picture.axes[0].lines[0].get_ydata()
    assert list(heights) == [max(-1e150, min(1e150, loss)) for loss in losses]


def test_a_log_of_one_row_has_no_curve():
    with pytest.raises(DataError, match=r"The log of run has 1 row; a curve needs two\."):
        log_picture(log_of(loss=[1.0]), "run")


def test_at_most_twelve_panels_are_drawn():
    log = log_of(loss=[1.0, 0.5], **{f"column {k}": [0.0, 1.0] for k in range(30)})
    assert len(log_picture(log, "run").axes) == 12
