"""Every rule of a program: take one that obeys them all, break one thing, read the message."""

from dataclasses import replace
from math import inf, nan

import pytest

from icgd.errors import LayoutError, ProgramError, UnknownNameError
from icgd.program.check import check_program
from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    MapSlots,
    MultiplySlots,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer, StackProgram
from tests import cases
from tests.cases import Juggle, build, every_construction, over

LAYOUT = Layout(
    (
        Slot("x", (3,), Role.INPUT),
        Slot("y", (2,), Role.LABEL),
        Slot("weights", (2, 3), Role.PARAMETER),
        Slot("units", (2,), Role.SCRATCH),
        Slot("slope", (2,), Role.SCRATCH),
        Slot("delta", (2,), Role.SCRATCH),
        Slot("pulled", (3,), Role.SCRATCH),
        Slot("one", (1,), Role.CONSTANT),
        Slot("is_example", (1,), Role.CONSTANT),
        Slot("is_query", (1,), Role.CONSTANT),
        Slot("tokens_per_example", (1,), Role.CONSTANT),
    )
)
RELU = ReluSum("relu", -9.0, 9.0, 1.0, (0.0, 1.0), (0.0, 1.0, 2.0), 0.0, 0.0, (0.0,) * 3)

FORWARD = ApplyUnits("weights", "x", "relu", write="units")
SLOPE = MapSlots(
    (Summand(("units", "y"), (1.0, -1.0), "relu"),), "is_example", "is_query", 99.0, "slope"
)
MULTIPLY = MultiplySlots("units", "slope", write="delta")
PULL = PullBack("weights", "delta", "x", write="pulled")
STEP = AccumulateOuterProduct("delta", "x", -0.5, write="weights")
CLIP = ClipSlots(("weights",), 3.0)
WIPE = WipeSlots(("units", "slope", "delta", "pulled"))
COPY = MapSlots((Summand(("units",), (1.0,), "relu"),), "is_query", "is_example", 99.0, "y")

BLOCK = ((FORWARD,), (SLOPE,), (MULTIPLY,), (PULL,), (STEP,), (CLIP, WIPE))


PREDICTION = ((FORWARD,), (COPY, WipeSlots(("units",))))


def program(*block, prediction=PREDICTION, **changes) -> StackProgram:
    """The layers of `block`, each a tuple of instructions."""
    good = StackProgram(
        construction="by hand",
        layout=LAYOUT,
        functions=(RELU,),
        block=tuple(Layer("here", instructions) for instructions in block or BLOCK),
        n_steps=2,
        prediction=tuple(Layer("there", instructions) for instructions in prediction),
    )
    return replace(good, **changes)


def with_layer(number: int, *instructions) -> StackProgram:
    """The good program with other instructions in one layer, counted from 1."""
    return program(*BLOCK[: number - 1], instructions, *BLOCK[number:])


def without_slot(name: str) -> Layout:
    return Layout(tuple(slot for slot in LAYOUT.slots if slot.name != name))


def test_a_good_program_passes():
    check_program(program())


@every_construction
@over(cases.SMALL)
def test_every_construction_obeys_the_rules(construction, case):
    check_program(build(construction, case))


BROKEN = {
    "two kinds in a layer": (
        with_layer(5, STEP, CLIP),
        "block layer 5 (here): needs instructions of exactly one kind of layer",
    ),
    "an empty layer": (
        with_layer(5),
        "block layer 5 (here): needs instructions of exactly one kind of layer",
    ),
    "reads what nothing wrote": (
        with_layer(2, CLIP),
        "block layer 3 (here): reads 'slope' before anything was written to it",
    ),
    "reads what the same layer writes": (
        with_layer(3, MULTIPLY, replace(PULL, upstream="delta")),
        "block layer 3 (here): reads 'delta' before anything was written to it",
    ),
    "reads what was wiped": (
        program(*BLOCK, (MULTIPLY,)),
        "block layer 7 (here): reads 'units' before anything was written to it",
    ),
    "writes to an input": (
        with_layer(1, replace(FORWARD, write="x")),
        "block layer 1 (here): writes to 'x', which must stay as it is",
    ),
    "writes to a constant": (
        with_layer(6, replace(CLIP, slots=("one",)), WIPE),
        "block layer 6 (here): writes to 'one', which must stay as it is",
    ),
    "writes twice in a layer": (
        with_layer(1, FORWARD, FORWARD),
        "block layer 1 (here): writes 'units' twice in one layer",
    ),
    "clips and wipes the same slot": (
        with_layer(6, CLIP, ClipSlots(("delta",), 1.0), WIPE),
        "block layer 6 (here): writes 'delta' twice in one layer",
    ),
    "writes over scratch": (
        with_layer(3, replace(MULTIPLY, write="slope")),
        "block layer 3 (here): writes over 'slope', which still holds a value",
    ),
    "writes over weights": (
        with_layer(1, replace(FORWARD, write="weights")),
        "block layer 1 (here): writes over 'weights', which still holds a value",
    ),
    "leaves scratch in the block": (
        with_layer(6, CLIP, WipeSlots(("slope", "pulled"))),
        "block: leaves delta, units unwiped at its end",
    ),
    "leaves scratch in the prediction": (
        program(prediction=((FORWARD,), (COPY,))),
        "prediction: leaves units unwiped at its end",
    ),
    "breaks a rule in the prediction": (
        program(prediction=((COPY,),)),
        "prediction layer 1 (there): reads 'units' before anything was written to it",
    ),
    "units of the wrong shape": (
        with_layer(1, FORWARD, replace(FORWARD, write="pulled")),
        "block layer 1 (here): 'weights' has shape (2, 3), expected (3, 3)",
    ),
    "outer product of the wrong shape": (
        with_layer(5, replace(STEP, right="delta")),
        "block layer 5 (here): 'weights' has shape (2, 3), expected (2, 2)",
    ),
    "pull back of the wrong shape": (
        with_layer(4, replace(PULL, upstream="x")),
        "block layer 4 (here): 'weights' has shape (2, 3), expected (3, 3)",
    ),
    "pull back by a slope of the wrong width": (
        with_layer(4, replace(PULL, slope="slope")),
        "block layer 4 (here): widths differ: slope 2, pulled 3",
    ),
    "factors of different widths": (
        with_layer(3, replace(MULTIPLY, right="x")),
        "block layer 3 (here): widths differ: units 2, x 3, delta 2",
    ),
    "summands of different widths": (
        with_layer(2, replace(SLOPE, summands=(Summand(("units", "x"), (1.0, 1.0), "relu"),))),
        "block layer 2 (here): widths differ: units 2, x 3, slope 2",
    ),
    "knots out of order": (
        program(functions=(replace(RELU, knots=(1.0, 0.0)),)),
        "function 'relu': needs increasing knots and one slope more than knots",
    ),
    "a knot twice": (
        program(functions=(replace(RELU, knots=(0.0, 0.0)),)),
        "function 'relu': needs increasing knots and one slope more than knots",
    ),
    "a slope too few": (
        program(functions=(replace(RELU, slopes=(0.0, 1.0)),)),
        "function 'relu': needs increasing knots and one slope more than knots",
    ),
    "a piece without an error": (
        program(functions=(replace(RELU, errors=(0.0,)),)),
        "function 'relu': needs one certified error a piece",
    ),
    "an instruction without a shape rule": (
        with_layer(6, CLIP, WIPE, Juggle()),
        "Juggle: has no shape rule in program/check.py",
    ),
}


@pytest.mark.parametrize(("broken", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_named_with_its_layer(broken, message):
    with pytest.raises(ProgramError) as caught:
        check_program(broken)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "name", ["x", "y", "weights", "units", "slope", "one", "is_query", "tokens_per_example"]
)
def test_every_slot_that_is_used_must_exist(name):
    with pytest.raises(LayoutError, match=f"^Layout has no slot '{name}'"):
        check_program(program(layout=without_slot(name)))


def test_every_function_that_is_used_must_exist():
    with pytest.raises(
        UnknownNameError, match=r"^Unknown function of the program 'tanh'; known are relu"
    ):
        check_program(with_layer(1, replace(FORWARD, function="tanh")))


RELIED_ON = {
    "an unknown flag": (
        with_layer(2, replace(SLOPE, only_where="is_exmaple")),
        "its flags are is_exmaple, is_query, expected is_example and is_query",
    ),
    "labels overwritten at examples": (
        with_layer(2, SLOPE, replace(SLOPE, write="y")),
        "writes over 'y', the examples' labels",
    ),
    "knots off the grid": (
        program(functions=(replace(RELU, grid=0.75),)),
        "function 'relu': has knots off its grid 0.75",
    ),
    "no grid": (program(functions=(replace(RELU, grid=0.0),)), "has knots off its grid 0.0"),
    "a slope that is no number": (
        program(functions=(replace(RELU, slopes=(0.0, nan, 2.0)),)),
        "function 'relu': is nan, expected a finite number",
    ),
    "a negative error": (
        program(functions=(replace(RELU, errors=(0.0, -1.0, 0.0)),)),
        "function 'relu': needs one certified error a piece",
    ),
    "an infinite gate": (
        with_layer(2, replace(SLOPE, gate=inf)),
        "gate: is inf, expected a finite number",
    ),
    "steps that cannot be counted": (
        program(n_steps=-3),
        "program: needs a block and a whole number of steps",
    ),
    "a read after a write in one layer": (
        program(prediction=((FORWARD,), (WipeSlots(("units",)), COPY))),
        "reads 'units' after writing it in the same layer",
    ),
    "accumulating what queries have too": (
        with_layer(5, replace(STEP, left="units")),
        "accumulates 'units', not zero on queries",
    ),
}


@pytest.mark.parametrize(("broken", "message"), RELIED_ON.values(), ids=RELIED_ON)
def test_what_the_backends_rely_on_is_checked_too(broken, message):
    with pytest.raises(ProgramError) as caught:
        check_program(broken)
    assert message in str(caught.value)
