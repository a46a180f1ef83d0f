import itertools

import pytest

from icgd.pictures.diagram import diagram
from icgd.pictures.program_picture import LINE, MOST_TEXTS, WRAPPED, plan
from tests.pictures import drawn


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
    wiped = heights["wipe 7 slots: they are 0 again"]
    assert spans == [(at["slope_1"], heights["slope_1 = tanh'(weights_1 @ x)"], wiped)]
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
