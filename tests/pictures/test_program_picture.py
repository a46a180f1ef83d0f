import itertools
import re
from pathlib import Path

import pytest

from icgd.pictures import plotting
from icgd.pictures import program_picture as chain_strip
from icgd.pictures.canvas import Canvas
from icgd.pictures.diagram import diagram
from icgd.pictures.program_picture import KINDS, LINE, MARKS, MOST_TEXTS, TONES, WRAPPED, draw, plan
from icgd.program.chain import FAR, NEAR, OUT, ChainMask
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
    assert {"relu attention", "MLP", "product", "33 heads of width 3", "forward 1"} <= set(texts)
    assert "products of features at every token" in texts
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


def planned(construction: str):
    return plan(diagram(drawn.compiled(construction).program))


@pytest.mark.parametrize("construction", drawn.MAKE)
def test_nothing_overlaps_and_all_is_on_the_sheet(construction):
    placed = planned(construction)
    ends = [(line.y - LINE / 2, line.y + LINE * (len(line.texts) - 0.5)) for line in placed.lines]
    assert all(bottom <= top for (_, bottom), (top, _) in itertools.pairwise(ends))
    rows = [row for section in placed.sections for row in section.rows]
    assert all(above.bottom < below.top for above, below in itertools.pairwise(rows))
    assert placed.names < placed.start.y < placed.end.y < placed.legend < placed.height
    assert placed.x(len(placed.diagram.columns)) < placed.sentences < placed.width


def test_columns_stand_side_by_side():
    placed = planned("relu-stack")
    assert placed.x(3) - placed.x(2) == 19.0


def test_a_slot_holds_something_from_where_it_is_written_to_where_it_is_wiped():
    placed = planned("relu-stack")
    at = placed.diagram.place_of
    lines = list(placed.lines)
    heights = {line.line.sentence: line.y for line in lines}
    spans = [span for span in placed.lifelines() if span[0] == at["slope_1"]]
    wiped = heights["wipe 5 slots"]
    assert spans == [
        (at["slope_1"], heights["units_1, slope_1 = tanh, tanh' at weights_1 @ x"], wiped)
    ]
    assert [s for s in placed.lifelines() if s[0] == at["weights_1"]] == [
        (at["weights_1"], placed.start.y, placed.end.y)
    ]
    assert len([s for s in placed.lifelines() if s[0] == at["units_1"]]) == 2  # also to predict


def test_long_sentences_are_wrapped_and_the_longest_lose_their_middle():
    deep = plan(diagram(drawn.network("relu-stack", (3, *(2,) * 59, 1), pieces=4).program))
    clip = next(line for line in deep.lines if line.line.sentence.startswith("clip"))
    assert len(clip.texts) == MOST_TEXTS
    assert clip.texts[1] == "    …"
    assert clip.texts[-1].endswith("weights_60 to [-1, 1]")
    assert all(len(text) <= WRAPPED for line in deep.lines for text in line.texts)


def names(mask: ChainMask) -> list[str]:
    return [chain_strip.block_name(mask, number) for number in chain_strip.block_places(mask)]


def test_the_blocks_of_the_prompt_come_before_those_of_the_round():
    assert names(ChainMask(2)) == ["B2", "B1", "F1", "F2", "B2", "B1"]
    assert names(ChainMask(1)) == ["B1", "F1", "B1"]


def test_arrows_join_the_blocks_of_one_layer():
    mask = ChainMask(3)
    joined = [
        tuple(chain_strip.block_name(mask, number) for number in pair)
        for pair in chain_strip.far_arrows(mask)
    ]
    assert joined == [("B2", "F2"), ("B3", "F3"), ("F2", "B2"), ("F1", "B1")]
    assert chain_strip.far_arrows(mask) == [(-1, 2), (-2, 3), (2, 5), (1, 6)]


def test_a_deep_network_is_folded():
    mask = ChainMask(400)
    assert names(mask) == [
        *("B400", "B2", "B1"), *("F1", "F2", "F400"), *("B400", "B2", "B1")
    ]  # fmt: skip
    places = list(chain_strip.block_places(mask).values())
    gaps = [right - left for left, right in itertools.pairwise(places)]
    wide = chain_strip.BLOCK_PITCH + chain_strip.FOLD
    assert gaps == [
        wide,
        *[chain_strip.BLOCK_PITCH] * 3,
        wide,
        chain_strip.BLOCK_PITCH,
        wide,
        chain_strip.BLOCK_PITCH,
    ]


@pytest.mark.parametrize("depth", [1, 2, 6, 400])
def test_no_arrow_leaves_the_strip(depth):
    mask = ChainMask(depth)
    assert chain_strip.strip_height(mask) <= 40 + chain_strip.HIGHEST + 22 + chain_strip.BELOW


def test_the_strip_says_which_blocks_read_data_and_what_comes_next():
    canvas = Canvas(800.0, 400.0)
    chain_strip.draw_chain(drawn.compiled("cot-network").program, canvas)
    texts = canvas.texts()
    assert texts[0] == "The chain: round 1 of 4, each a step on 2 examples"
    assert {"X", "Y", "F1", "F2", "B1", "B2", "forward", "next round"} <= set(texts)
    assert texts.count("B1") == 2


# What docs/drawing.md shows works as shown.

PAGE = Path(__file__).parents[2] / "docs" / "drawing.md"


def test_its_example_runs_and_writes_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["descent.gif", "report.svg", "run.svg", "stream.png", "transformer.svg"]
    printed = capsys.readouterr().out
    assert printed.startswith("half the mean squared loss of all examples tensor(")
    assert "{'weights_1': (4, 3), 'weights_2': (1, 4)}" in printed
    assert names["run"].loss_curve[-1] < names["run"].loss_curve[0]


def test_its_pictures_are_there():
    paths = re.findall(r"!\[.*?\]\((.*?)\)", PAGE.read_text("utf-8"))
    assert len(paths) == 2
    assert all((PAGE.parent / path).exists() for path in paths)


def test_its_numbers_of_a_deep_network_are_right():
    program = drawn.network("relu-stack", (3, *(2,) * 159, 1), pieces=4, n_steps=2).program
    found = diagram(program)
    n_rows = sum(len(section.rows) for section in found.sections)
    said = (
        f"a network of 160 layers, whose transformer has {len(program.block)} layers per step and "
        f"{len(program.layout.slots)} slots, fits in {n_rows} rows and "
        f"{len(found.columns)} columns"
    )
    assert said in PAGE.read_text("utf-8")
