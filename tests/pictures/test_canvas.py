import pytest

from icgd.pictures.canvas import Canvas
from icgd.pictures.plotting import BLUE, svg


@pytest.fixture
def canvas() -> Canvas:
    return Canvas(144.0, 72.0)


def test_its_size_is_in_points_and_y_runs_downwards(canvas):
    assert canvas.figure.get_size_inches().tolist() == [2.0, 1.0]
    corners = canvas.panel.transData.transform([(0, 0), (144, 72)]).tolist()
    assert corners == [pytest.approx([0.0, 150.0]), pytest.approx([300.0, 0.0])]


def test_marks_carry_their_name_into_an_svg(canvas):
    canvas.mark((10, 10), "o", BLUE, size=5, fill=BLUE, name="layer-1-reads-x")
    assert b'id="layer-1-reads-x"' in svg(canvas.figure)


def test_texts_are_written_as_they_are(canvas):
    canvas.text((10, 10), "a_1 = $b$ @ c", mono=True)
    canvas.text((10, 30), "second")
    assert canvas.texts() == ["a_1 = $b$ @ c", "second"]
    assert b"a_1 = $b$ @ c" in svg(canvas.figure)


def test_lines_boxes_and_arrows_stand_where_they_are_put(canvas):
    canvas.line((1, 2), (3, 4), BLUE)
    canvas.box((5, 6), (7, 8), BLUE)
    canvas.arrow((0, 0), (10, 10), BLUE, bend=0.3)
    assert canvas.panel.lines[0].get_xydata().tolist() == [[1, 2], [3, 4]]
    box, arrow = canvas.panel.patches
    assert (box.get_x(), box.get_y(), box.get_width(), box.get_height()) == (5, 6, 7, 8)
    assert arrow.get_connectionstyle().rad == 0.3
