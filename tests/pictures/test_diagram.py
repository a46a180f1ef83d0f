import pytest

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.pictures.diagram import MOST_COLUMNS, MOST_ROWS, diagram, folded
from icgd.pictures.program_picture import draw
from icgd.program.instructions import LayerKind, Use, names_used
from tests.pictures import drawn


def rows_of(construction: str) -> list:
    found = diagram(drawn.compiled(construction).program)
    return [row for section in found.sections for row in section.rows]


def test_every_construction_is_tried_here():
    assert set(drawn.MAKE) == set(CONSTRUCTIONS)


@pytest.mark.parametrize("construction", drawn.MAKE)
def test_every_layer_has_a_row_with_what_it_reads_and_writes(construction):
    program = drawn.compiled(construction).program
    rows = rows_of(construction)
    assert [row.title for row in rows] == [layer.title for layer in program.layers]
    assert [row.kind for row in rows] == [layer.kind for layer in program.layers]
    for row, layer in zip(rows, program.layers, strict=True):
        read = {
            name for part in layer.instructions for name in names_used(part, Use.READ, Use.FLAG)
        }
        written = {name for part in layer.instructions for name in part.writes()}
        assert read == {name for line in row.lines for name in line.reads | line.flags}
        assert written == {n for line in row.lines for n in line.sets | line.adds | line.wipes}
        sentences = [line.sentence for line in row.lines]
        for part in layer.instructions:
            assert part.formula() in sentences or part.formula().startswith("wipe")


@pytest.mark.parametrize("construction", drawn.MAKE)
def test_every_slot_has_a_column_in_the_order_of_the_layout(construction):
    program = drawn.compiled(construction).program
    found = diagram(program)
    order = [slot.name for column in found.columns for slot in column.slots]
    assert tuple(order) == program.layout.names
    assert found.place_of[order[-1]] == len(found.columns) - 1


def test_a_layer_says_what_it_is_in_words():
    program = drawn.compiled("relu-stack").program
    first, *_, last = diagram(program).sections[0].rows
    [line] = first.lines
    assert (first.number, first.title, first.kind) == ("1", "forward 1", LayerKind.ATTENTION)
    assert first.size == "33 heads of width 3"
    assert line.sentence == "units_1, slope_1 = tanh, tanh' at weights_1 @ x"
    assert line.reads == {"weights_1", "x", "one"}
    assert line.sets == {"units_1", "slope_1"}
    clip, wipe = last.lines
    assert clip.sets == {"weights_1", "weights_2"}
    assert wipe.sentence == "wipe 5 slots"
    assert wipe.wipes == {"units_1", "units_2", "slope_1", "loss_slope", "delta_1"}


def test_flags_are_told_from_what_is_read():
    rows = rows_of("relu-stack")
    [slope] = next(row for row in rows if row.title == "loss slope").lines
    assert slope.reads == {"units_2", "y"}
    assert slope.flags == {"is_query"}


def test_what_is_added_to_is_told_from_what_is_set():
    rows = rows_of("relu-stack")
    first, second = next(row for row in rows if row.title == "gradient step").lines
    assert (first.adds, first.sets) == ({"weights_1"}, frozenset())
    assert second.adds == {"weights_2"}
    [step] = rows_of("functional")[0].lines
    assert (step.adds, step.reads) == ({"y"}, {"x", "y", "is_example"})


def test_steps_that_are_alike_are_one_section():
    step, prediction = diagram(drawn.compiled("relu-stack").program).sections
    heading = "Step 1 of 4: the others run the same layers, with the same weights"
    assert (step.heading, step.n_times) == (heading, 4)
    assert [row.number for row in step.rows] == [str(number) for number in range(1, 7)]
    assert (prediction.heading, prediction.n_times) == ("Prediction", 1)
    assert [row.number for row in prediction.rows] == ["25", "26", "27"]


def test_steps_with_sizes_of_their_own_are_all_steps():
    found = diagram(drawn.functional((0.1, 0.2, 0.3)).program)
    assert [section.heading for section in found.sections] == ["All 3 steps"]


def test_the_ends_say_what_goes_in_and_what_comes_out():
    found = diagram(drawn.compiled("relu-stack").program)
    assert found.start.sets == {
        "x", "y", "weights_1", "weights_2", "one", "is_example", "is_query", "tokens_per_example"
    }  # fmt: skip
    assert found.end.reads == {"y", "weights_1", "weights_2"}
    assert found.facts == "6 layers used 4 times, 3 to predict, residual stream of width 27"
    softmax = diagram(drawn.compiled("softmax-stack").program)
    n_registers = drawn.compiled("softmax-stack").program.n_registers
    assert softmax.start.sentence.startswith(f"{n_registers} registers, then a token for each")


def test_the_block_of_a_chain_reads_two_blocks_and_writes_one():
    found = diagram(drawn.compiled("cot-network").program)
    assert {column.tone for column in found.columns} == {
        "near", "far", "out", "scratch", "constant"
    }  # fmt: skip
    near = [column.name for column in found.columns if column.tone == "near"]
    assert near == [column.name for column in found.columns if column.tone == "out"]
    assert "weights" in near
    assert found.end.reads == {f"out.{name}" for name in near}
    [section] = found.sections
    assert section.heading == (
        "The layers that write block t from block t - 1 and block t - 3 or data"
    )


def test_five_hundred_layers_and_slots_are_folded():
    program = drawn.network("relu-stack", (3, *(2,) * 159, 1), pieces=4, n_steps=2).program
    assert (program.n_layers, len(program.layout.slots)) == (805, 645)
    found = diagram(program)
    assert len(found.columns) <= MOST_COLUMNS
    shown = [column.name for column in found.columns]
    assert shown[2:6] == ["weights_1", "weights_2", "weights_3 … weights_159", "weights_160"]
    assert [column.shape for column in found.columns[2:6]] == ["2×3", "2×2", "157 slots", "1×2"]
    step = found.sections[0]
    assert len(step.rows) <= MOST_ROWS
    assert [row.number for row in step.rows[:4]] == ["1", "2", "3 – 159", "160"]
    fold = step.rows[2]
    assert fold.title == "157 layers like these: forward 3 … forward 159"
    assert fold.size == "2,198 heads in all"
    assert fold.lines[0].sentence == (
        "units_3, slope_3 = tanh, tanh' at weights_3 @ units_2  …  "
        "units_159, slope_159 = tanh, tanh' at weights_159 @ units_158"
    )
    assert {"weights_3", "weights_159", "units_2"} <= fold.lines[0].reads
    gradient = next(row for row in step.rows if row.title == "gradient step")
    assert gradient.lines[2].sentence == "… 157 more like these"


def test_layers_of_several_kinds_are_folded_too():
    found = diagram(drawn.functional(tuple(0.1 + k / 1e4 for k in range(500)), 500).program)
    [section] = found.sections
    assert [row.number for row in section.rows] == ["1", "2", "3 – 499", "500"]
    assert section.rows[2].title == "497 layers like these"


def test_steps_of_a_schedule_differ_in_their_last_layers():
    update = icgd.AdamStep(0.1, 2.0, batch_size=2)
    problem = icgd.Problem(icgd.MLP((2, 1)), "cross_entropy", update, icgd.Domain(1.0, 1.0))
    program = icgd.compile(problem, "relu-stack", n_steps=3).program
    drawing = diagram(program)
    assert drawing.sections[0].heading == (
        "Step 1 of 3: the others run the same layers, with the same weights except in the last 4 "
        "layers"
    )
    groups = {column.slots[0].name: column.group for column in drawing.columns}
    assert (groups["gradient_1"], groups["place"], groups["second_moment_1"]) == (
        "scratch",
        "turns",
        "weights",
    )
    filled = drawing.start.sets
    assert {"place", "out_of_batch", "first_moment_1"} <= filled
    assert not filled & {"gradient_1", "square_1", "root_1", "scaled_1"}
    texts = [text.get_text() for text in draw(program, "A title").figure.axes[0].texts]
    assert {"position in the order of batches", "gradients and steps"} <= set(texts)


LETTERS = ["a", "b1", "b2", "b3", "b4", "b5", "c"]


def first_letter(word: str) -> str:
    return word[0]


def test_few_things_are_all_shown():
    assert folded(LETTERS, first_letter, 7) == [(word,) for word in LETTERS]


def test_of_a_run_the_first_two_and_the_last_are_shown():
    expected = [("a",), ("b1",), ("b2",), ("b3", "b4"), ("b5",), ("c",)]
    assert folded(LETTERS, first_letter, 6) == expected


def test_a_fold_is_of_two_or_more():
    words = ["b1", "b2", "b3", "b4"]
    assert folded(words, first_letter, 3) == [(word,) for word in words]


def test_of_many_that_differ_the_middle_is_folded():
    groups = folded(list(range(20)), lambda number: number, 4)
    assert groups == [(0,), (1,), (2,), tuple(range(3, 16)), (16,), (17,), (18,), (19,)]


def test_nothing_is_lost_or_moved():
    words = [f"{letter}{number}" for letter in "abcde" for number in range(40)]
    for most in range(2, 60):
        groups = folded(words, first_letter, most)
        assert [word for group in groups for word in group] == words
        assert len(groups) <= 2 * most or most >= len(words)
