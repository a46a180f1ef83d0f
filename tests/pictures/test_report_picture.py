from math import inf, nan

import icgd
from icgd.pictures import report_picture
from tests.pictures import drawn
from tests.pictures.test_run_picture import X, Y


def test_measured_errors_stand_beside_their_bounds(tmp_path):
    report = icgd.verify(drawn.compiled("relu-stack"), X, Y)
    steps, runs = report.plot(tmp_path / "report.png").figure.axes
    assert steps.lines[0].get_ydata().tolist() == report.step_errors.tolist()
    assert steps.lines[1].get_ydata().tolist() == report.step_bounds.tolist()
    assert runs.lines[0].get_ydata().tolist() == report.trajectory_errors.tolist()
    assert {panel.get_yscale() for panel in (steps, runs)} == {"log"}
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_of_a_batch_the_largest_are_drawn():
    report = icgd.verify(drawn.compiled("relu-stack"), X.expand(2, -1, -1), Y * Y.new_ones(2, 1, 1))
    steps, _ = report.plot().figure.axes
    assert steps.lines[0].get_ydata().tolist() == report.step_errors.amax(0).tolist()


def test_a_run_without_steps_has_a_picture_without_curves():
    compiled = icgd.compile(drawn.compiled("relu-stack").problem, "relu-stack", n_steps=0)
    report = icgd.verify(compiled, X, Y)
    assert [len(panel.lines[0].get_ydata()) for panel in report.plot().figure.axes] == [0, 0]


def test_a_bound_that_says_nothing_is_said_so():
    curve_label = report_picture.curve_label
    assert curve_label("proved", [1.0, 2.0]) == "proved"
    assert curve_label("proved", [nan, nan]) == "proved: says nothing"
    assert curve_label("proved", [1.0, nan, inf]) == "proved: says nothing from step 2 on"
    assert curve_label("proved", [1.0, nan, 2.0]) == "proved: says nothing at some steps"


def test_the_legend_of_a_real_report_names_them():
    report = icgd.verify(drawn.compiled("cot-network"), X, Y)
    assert report.empty == ("domain_step", "domain_trajectory")
    for panel in report.plot().figure.axes:
        names = [text.get_text() for text in panel.get_legend().get_texts()]
        assert names[:3] == [
            "measured", "proved for this run (b)", "proved for every run (a): says nothing"
        ]  # fmt: skip


def test_an_error_of_0_is_drawn_at_the_bottom():
    picture = report_picture.draw({"Errors": {"measured": [0.0, 1e-3]}}, "title")
    [line] = picture.figure.axes[0].lines
    assert line.get_ydata().tolist() == [report_picture.SMALLEST, 1e-3]
