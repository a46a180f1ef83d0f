from pathlib import Path

import pytest

from icgd.errors import FileError
from icgd.pictures import plotting
from icgd.pictures.canvas import Canvas
from icgd.pictures.picture import Picture, saved
from icgd.pictures.plotting import BLUE, svg


def test_a_figure_becomes_a_png_of_its_size():
    figure, panels = plotting.new_figure(4.0, 2.0, n_panels=2)
    content = plotting.png(figure)
    assert len(panels) == 2
    assert content.startswith(b"\x89PNG\r\n")
    size = [int.from_bytes(content[start : start + 4], "big") for start in (16, 20)]
    assert size == [4 * plotting.DOTS_PER_INCH, 2 * plotting.DOTS_PER_INCH]


def test_equal_figures_give_equal_bytes():
    def drawn() -> bytes:
        figure, [panel] = plotting.new_figure(3.0, 2.0, n_panels=1)
        plotting.describe(panel, "A message", "x", "y")
        plotting.note(panel, "note", (0.5, 0.5), plotting.BLUE)
        plotting.tag(panel, "tag", (0.2, 0.2))
        return plotting.png(figure)

    assert drawn() == drawn()


def test_a_grid_lists_its_panels_row_by_row():
    _, panels = plotting.new_grid(4.0, 3.0, n_rows=2, n_columns=3)
    places = [panel.get_subplotspec() for panel in panels]
    assert [(at.rowspan.start, at.colspan.start) for at in places] == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (1, 1), (1, 2)),
    ]


def test_a_band_spans_the_values_around_their_geometric_mean():
    _, [panel] = plotting.new_figure(3.0, 2.0, n_panels=1)
    plotting.band(panel, [1.0, 2.0], [[1.0, 4.0], [2.0, 8.0]], plotting.BLUE)
    assert panel.lines[0].get_ydata().tolist() == pytest.approx([2.0, 4.0])
    edges = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (1.0, 8.0)


def test_a_logarithmic_axis_has_plain_numbers():
    figure, [panel] = plotting.new_figure(3.0, 2.0, n_panels=1)
    plotting.logarithmic_height(panel)
    panel.set_ylim(0.15, 0.9)
    plotting.png(figure)
    texts = {text.get_text() for text in panel.yaxis.get_minorticklabels()}
    assert {"0.2", "0.6"} <= texts
    assert not any("10" in text for text in texts)


@pytest.mark.parametrize(
    ("low", "texts"),
    [(0.0005, {"0.001", "0.01", "0.1"}), (1e-6, {"$10^{-4}$", "$10^{-2}$"})],
)
def test_an_axis_of_tiny_numbers_has_powers_of_ten_and_no_other_notation(low, texts):
    figure, [panel] = plotting.new_figure(3.0, 2.0, n_panels=1)
    plotting.logarithmic_height(panel)
    panel.set_ylim(low, 0.5)
    plotting.png(figure)
    shown = {text.get_text() for text in panel.yaxis.get_majorticklabels()}
    assert texts <= shown
    assert not any("e-" in text for text in shown)


def test_a_legend_names_every_colour_in_one_line():
    figure, _ = plotting.new_figure(3.0, 2.0, n_panels=1)
    plotting.legend(figure, [("first", plotting.BLUE), ("second", plotting.GREEN)])
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["first", "second"]
    assert [line.get_color() for line in legend.get_lines()] == [plotting.BLUE, plotting.GREEN]


def test_ticks_of_things_that_are_counted_are_whole_numbers():
    figure, [panel] = plotting.new_figure(6.0, 2.0, n_panels=1)
    panel.plot([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    plotting.whole_numbers(panel)
    plotting.png(figure)
    assert {tick % 1 for tick in panel.get_xticks()} == {0.0}


def test_an_svg_holds_its_texts_and_no_date():
    def drawn() -> bytes:
        figure, [panel] = plotting.new_figure(3.0, 2.0, n_panels=1)
        plotting.describe(panel, "A message", "x", "y")
        return plotting.svg(figure)

    content = drawn()
    assert content == drawn()
    assert b">A message</text>" in content
    assert b"dc:date" not in content


def test_no_global_state_of_pyplot_is_used():
    assert "pyplot" not in Path(plotting.__file__).read_text()


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


@pytest.fixture
def picture() -> Picture:
    figure, [panel] = plotting.new_figure(3.0, 2.0, 1)
    plotting.describe(panel, "Hello", "x", "y")
    return Picture("hello", figure)


def test_it_becomes_the_file_that_the_ending_names(picture, tmp_path):
    picture.save(tmp_path / "a.svg")
    picture.save(str(tmp_path / "a.PNG"))
    assert (tmp_path / "a.svg").read_bytes() == plotting.svg(picture.figure)
    assert (tmp_path / "a.PNG").read_bytes() == plotting.png(picture.figure)


def test_another_ending_is_refused(picture, tmp_path):
    with pytest.raises(FileError, match=r"must end in .svg or .png, got .*a.gif"):
        picture.save(tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_shows_the_picture_itself(picture):
    assert picture._repr_png_() == plotting.png(picture.figure)
    assert repr(picture) == "Picture(title: hello; inches: 3.0 x 2.0)"


def test_it_is_saved_where_it_is_asked_for(picture, tmp_path):
    assert saved(picture, None) is picture
    assert saved(picture, tmp_path / "b.svg") is picture
    assert (tmp_path / "b.svg").exists()
