from dataclasses import replace

import pytest

from icgd.errors import UnknownNameError
from icgd.program.functions import ReluSum
from icgd.program.instructions import ClipSlots, LayerKind, MultiplySlots
from icgd.program.layout import Layout
from icgd.program.program import Layer, StackProgram

RELU = ReluSum("relu", -1.0, 1.0, 1.0, (0.0,), (0.0, 1.0), 0.0, 0.0, (0.0, 0.0))
TWICE = replace(RELU, name="double", knots=(), slopes=(2.0,), errors=(0.0,))
FIRST = Layer("first", (MultiplySlots("a", "b", write="c"),))
SECOND = Layer("second", (ClipSlots(("w",), 1.0),))
LAST = Layer("last", (ClipSlots(("v",), 1.0),))
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
