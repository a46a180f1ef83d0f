import pytest

from icgd.pictures import plotting
from icgd.pictures.diagram import diagram
from icgd.pictures.program_picture import KINDS, MARKS, TONES, draw
from icgd.program.chain import FAR, NEAR, OUT
from icgd.program.instructions import LayerKind
from icgd.program.layout import Role
from tests.pictures import drawn


def texts_of(picture) -> list[str]:
    return [text.get_text() for text in picture.figure.axes[0].texts]


@pytest.mark.parametrize("construction", drawn.MAKE)
def test_every_construction_is_drawn_with_all_that_its_layers_read_and_write(construction):
    program = drawn.compiled(construction).program
    picture = draw(program, "A title")
    rows = [row for section in diagram(program).sections for row in section.rows]
    expected = {
        f"layer-{row.number}-{use}-{name}"
        for row in rows
        for line in row.lines
        for use in MARKS
        for name in getattr(line, use)
    }
    names = {line.get_gid() or "" for line in picture.figure.axes[0].lines}
    assert {name for name in names if name.startswith("layer-")} == expected
    assert {row.title for row in rows} | {row.size for row in rows} <= set(texts_of(picture))


def test_equal_programs_give_equal_files(tmp_path):
    for ending in ("svg", "png"):
        first, second = (tmp_path / f"{name}.{ending}" for name in "ab")
        draw(drawn.MAKE["functional"]().program, "functional", first)
        draw(drawn.MAKE["functional"]().program, "functional", second)
        assert first.read_bytes() == second.read_bytes()


def test_it_says_kinds_and_sizes_in_words():
    texts = texts_of(draw(drawn.compiled("relu-stack").program, "A title"))
    assert texts[0] == "A title"
    assert {"relu attention", "MLP", "product", "24 heads of width 3", "forward 1"} <= set(texts)
    assert "every token multiplies features of its own" in texts
    assert "units_1 = tanh(weights_1 @ x)" in texts
    assert "weights_1 (3×2)" in texts


@pytest.mark.parametrize("construction", drawn.MAKE)
def test_no_text_leaves_the_sheet(construction):
    figure = drawn.compiled(construction).draw().figure
    plotting.png(figure)
    width, height = figure.bbox.max
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text


def test_a_chain_is_drawn_above_its_block():
    texts = texts_of(draw(drawn.compiled("cot-network").program, "A title"))
    assert "The chain: round 1 of 4, each a step on 2 examples" in texts


def test_every_kind_of_layer_and_slot_has_its_look():
    assert set(LayerKind) <= set(KINDS)
    tones = {c.tone for name in drawn.MAKE for c in diagram(drawn.compiled(name).program).columns}
    assert tones <= set(TONES) == {NEAR, FAR, OUT, *(role.name.lower() for role in Role)}
