from dataclasses import replace

import pytest

from icgd.errors import UnknownNameError
from icgd.program.functions import Band, LatticeFunction, ReluSum, RidgeSum
from icgd.program.instructions import ClipSlots, LayerKind, MultiplySlots
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

RELU = ReluSum("relu", -1.0, 1.0, 1.0, (0.0,), (0.0, 1.0), 0.0, 0.0, (0.0, 0.0))
TWICE = replace(RELU, name="double", knots=(), slopes=(2.0,), errors=(0.0,))
FIRST = Layer("first", (MultiplySlots("a", "b", write="c"),))
SECOND = Layer("second", (ClipSlots(("w",), 1.0, "one"),))
LAST = Layer("last", (ClipSlots(("v",), 1.0, "one"),))
PROGRAM = StackProgram("by hand", Layout(()), (RELU, TWICE), (FIRST, SECOND), 3, (LAST,))


def test_a_layer_is_of_the_kind_of_its_instructions():
    assert [layer.kind for layer in (FIRST, SECOND)] == [LayerKind.PRODUCT, LayerKind.MLP]


def test_the_block_is_repeated_once_a_step_and_prediction_follows():
    titles = [layer.title for layer in PROGRAM.unrolled()]
    assert titles == ["first", "second"] * 3 + ["last"]
    assert PROGRAM.n_layers == 7


def test_functions_are_found_by_name():
    assert PROGRAM.relu_sum("double") is TWICE


def test_an_unknown_function_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        PROGRAM.relu_sum("rleu")
    assert str(caught.value) == (
        "Unknown function of the program 'rleu'; known are relu, double. Did you mean 'relu'?"
    )


CUBE = LatticeFunction("cube", 1.0, 0.5, 1.4, (8.0, 1.0, 0.0, 1.0, 8.0), 0.0, 8.0, 1.0)
LOOKING_UP = replace(PROGRAM, functions=(RELU, CUBE, replace(CUBE, name="relu")))


def test_a_program_without_look_ups_has_no_registers():
    assert PROGRAM.n_registers == 0
    assert PROGRAM.registers() == {}
    assert PROGRAM.lattice_functions == ()


def test_a_program_with_look_ups_has_a_register_for_each_grid_token_and_one_for_the_memory():
    assert LOOKING_UP.n_registers == 6
    constants = LOOKING_UP.registers()
    assert constants["scale"] == (1.0, -1.0, -0.5, 0.0, 0.5, 1.0)
    assert constants["value of cube"] == (0.0, *CUBE.values)
    assert constants["value of relu"] == (0.0, *CUBE.values)


def test_a_sum_and_a_look_up_may_have_the_same_name():
    assert LOOKING_UP.relu_sum("relu") is RELU
    assert LOOKING_UP.look_up("relu") is LOOKING_UP.functions[2]
    assert LOOKING_UP.lattice_functions == LOOKING_UP.functions[1:]


def test_a_sum_is_not_found_as_a_look_up():
    with pytest.raises(UnknownNameError, match=r"^Unknown function of the program 'double'; known"):
        LOOKING_UP.look_up("double")
    with pytest.raises(UnknownNameError, match=r"known are relu\.$"):
        LOOKING_UP.relu_sum("cube")


STEP = ReluSum("relu'", -1.0, 1.0, 0.25, (0.0, 0.25), (0.0, 4.0, 0.0), 0.0, 0.0, (0.0, 1.0, 0.0))
PRODUCT = RidgeSum("s relu'(t)", "relu", (1.0, 1.0), (), 0.125, (Band(-0.5, 0.5, 1.0),))


def test_ramps_are_where_a_sum_of_relus_climbs_or_in_the_bands_of_a_sum_of_units():
    assert replace(PROGRAM, functions=(RELU, STEP)).ramps("relu'") == ((0.0, 0.25),)
    assert replace(PROGRAM, functions=(PRODUCT,)).ramps("relu'") == ((-0.5, 0.5),)
    assert replace(PROGRAM, functions=(PRODUCT,)).ramps("tanh'") == ()


@pytest.mark.parametrize(
    ("function", "expected"),
    [(RELU, False), (STEP, True), (PRODUCT, True), (replace(PRODUCT, bands=()), False)],
    ids=["relu", "its slope", "a number times it", "a smooth product"],
)
def test_a_program_has_kinks_if_a_ramp_stands_in_for_a_step(function, expected):
    assert replace(PROGRAM, functions=(function,)).has_kinks is expected


def test_it_shows_itself_in_a_line():
    assert repr(PROGRAM) == (
        "StackProgram(construction: by hand; steps: 3; "
        "layers: 7: 2 layers for 1 step, 1 to predict; d_model: 0 in 0 slots)"
    )
