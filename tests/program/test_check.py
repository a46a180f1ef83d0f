"""Every rule of a program: take one that obeys them all, break one thing, read the message."""

from dataclasses import replace
from math import inf, nan

import pytest

from icgd.errors import LayoutError, ProgramError, UnknownNameError
from icgd.program.check import check_program
from icgd.program.functions import LatticeFunction, ReluSum
from icgd.program.instructions import (
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    ClipSlots,
    Combination,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.registers import REGISTER_SLOTS
from icgd.program.stack import StackProgram
from tests import cases
from tests.cases import Juggle, build, every_construction_on

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
RESIDUAL = Summand(Combination(("units", "y"), (1.0, -1.0)), "relu")
SLOPE = MapSlots((RESIDUAL,), "is_example", ("is_query",), 99.0, "slope")
MULTIPLY = MultiplySlots("units", "slope", write="delta")
PULL = PullBack("weights", "delta", "x", write="pulled")
STEP = AccumulateOuterProduct("delta", "x", -0.5, write="weights")
CLIP = ClipSlots(("weights",), 3.0, "one")
WIPE = WipeSlots(("units", "slope", "delta", "pulled"))
COPIED = Summand(Combination.of("units"), "relu")
COPY = MapSlots((COPIED,), "is_query", ("is_example",), 99.0, "y")

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


@every_construction_on(cases.SMALL)
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
    "two functions of one name": (
        program(functions=(RELU, replace(RELU, high=1.0))),
        "function 'relu': is there 2 times, expected one",
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
        with_layer(6, CLIP, ClipSlots(("delta",), 1.0, "one"), WIPE),
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
        with_layer(
            2,
            replace(
                SLOPE,
                summands=(replace(RESIDUAL, argument=Combination(("units", "x"), (1.0, 1.0))),),
            ),
        ),
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
        "Juggle: has no shape rule in program/shape_rules.py",
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
        "its flags are is_exmaple, is_query, expected is_example, is_query, or only one",
    ),
    "a map of nothing": (
        with_layer(2, replace(SLOPE, summands=())),
        "block layer 2 (here): maps nothing, expected a summand",
    ),
    "labels overwritten at examples": (
        with_layer(2, SLOPE, replace(SLOPE, write="y")),
        "writes over 'y', the examples' labels",
    ),
    "knots that are no multiples of their unit": (
        program(functions=(replace(RELU, knot_unit=0.75),)),
        "function 'relu': has knots that are no multiples of its knot_unit 0.75",
    ),
    "no knot unit": (
        program(functions=(replace(RELU, knot_unit=0.0),)),
        "has knots that are no multiples of its knot_unit 0.0",
    ),
    "a slope that is no number": (
        program(functions=(replace(RELU, slopes=(0.0, nan, 2.0)),)),
        "function 'relu': ReluSum.slopes[1] is nan, expected a finite number",
    ),
    "a negative error": (
        program(functions=(replace(RELU, errors=(0.0, -1.0, 0.0)),)),
        "function 'relu': needs one certified error a piece",
    ),
    "an infinite gate": (
        with_layer(2, replace(SLOPE, gate=inf)),
        "block layer 2 (here): MapSlots.gate is inf, expected a finite number",
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


TANH = LatticeFunction("tanh", 9.0, 0.5, 1.4, (-1.0, 0.0, 1.0), 0.1, 1.0, 1.0)
LOOK_UPS = tuple(replace(TANH, name=name) for name in ("tanh", "tanh'", "identity", "square"))
REGISTER_LAYOUT = Layout(
    (
        *LAYOUT.slots[:-1],
        Slot("log_examples", (1,), Role.CONSTANT),
        *(Slot(name, (1,), Role.CONSTANT) for name in REGISTER_SLOTS),
        *(Slot(f"value of {function.name}", (1,), Role.CONSTANT) for function in LOOK_UPS),
    )
)
"""The slots of a program with registers; it does without `tokens_per_example`."""

Z = Argument(Combination.of("x"), "weights")
LOOK_UP = LookUp(Z, ("tanh", "tanh'"), ("units", "slope"))
GAP = Argument(Combination(("units", "y"), (2.0, -2.0)))
PRODUCT = AddProduct(GAP, 9.0, "slope", 1.0, "delta")
PROJECT = Project(Argument(Combination.of("delta"), "weights", transposed=True), 9.0, "pulled")
GRADIENT = AddGradient(Combination.of("delta"), "x", -0.5, 0.01, "weights")
CLIP_REGISTERS = ClipSlots(("weights",), 3.0, "scale_size")
COPY_AT_QUERIES = replace(COPY, never_where=("is_example", "is_register"))

SOFTMAX_BLOCK = ((LOOK_UP,), (PRODUCT,), (PROJECT,), (GRADIENT,), (CLIP_REGISTERS, WIPE))
SOFTMAX_PREDICTION = ((LOOK_UP,), (COPY_AT_QUERIES, WipeSlots(("units", "slope"))))


def softmax_program(*block, prediction=SOFTMAX_PREDICTION, **changes) -> StackProgram:
    """A program with registers, of layers that each are a tuple of instructions."""
    layers = {"prediction": prediction, "layout": REGISTER_LAYOUT, "functions": (RELU, *LOOK_UPS)}
    return program(*(block or SOFTMAX_BLOCK), **layers | changes)


def with_softmax_layer(number: int, *instructions) -> StackProgram:
    """The good program with registers and other instructions in one layer, counted from 1."""
    return softmax_program(*SOFTMAX_BLOCK[: number - 1], instructions, *SOFTMAX_BLOCK[number:])


def with_role(name: str, role: Role) -> Layout:
    slots = [
        Slot(slot.name, slot.shape, role) if slot.name == name else slot
        for slot in REGISTER_LAYOUT.slots
    ]
    return Layout(tuple(slots))


def with_look_up(name: str, **changes) -> StackProgram:
    """The good program with registers and one of its look-ups changed."""
    functions = [replace(f, **changes) if f.name == name else f for f in LOOK_UPS]
    return softmax_program(functions=(RELU, *functions))


def test_a_good_program_with_registers_passes():
    check_program(softmax_program())


def test_a_product_may_add_to_what_another_instruction_left():
    check_program(softmax_program(*SOFTMAX_BLOCK[:2], (PRODUCT,), *SOFTMAX_BLOCK[2:]))


BROKEN_SOFTMAX = {
    "a function too few": (
        with_softmax_layer(1, replace(LOOK_UP, lookups=("tanh",))),
        "block layer 1 (here): looks up 1 functions into 2 slots",
    ),
    "a range of nothing": (
        with_softmax_layer(2, replace(PRODUCT, factor_reach=0.0)),
        "layer 'here': has factor_reach 0.0, expected what is positive",
    ),
    "a look-up of the wrong shape": (
        with_softmax_layer(1, replace(LOOK_UP, into=("units", "pulled"))),
        "block layer 1 (here): widths differ: units 2, pulled 3",
    ),
    "a look-up by inputs of the wrong width": (
        with_softmax_layer(1, replace(LOOK_UP, argument=replace(Z, inputs=Combination.of("y")))),
        "block layer 1 (here): 'weights' has shape (2, 3), expected (2, 2)",
    ),
    "a look-up by the transpose of the wrong shape": (
        with_softmax_layer(1, replace(LOOK_UP, argument=replace(Z, transposed=True))),
        "block layer 1 (here): 'weights' has shape (2, 3), expected (3, 2)",
    ),
    "a look-up without weights of the wrong width": (
        with_softmax_layer(1, replace(LOOK_UP, argument=Argument(Combination.of("x")))),
        "block layer 1 (here): widths differ: x 3, units 2, slope 2",
    ),
    "a projection of the wrong shape": (
        with_softmax_layer(
            3, replace(PROJECT, argument=replace(PROJECT.argument, transposed=False))
        ),
        "block layer 3 (here): 'weights' has shape (2, 3), expected (3, 2)",
    ),
    "a factor of the wrong width": (
        with_softmax_layer(2, replace(PRODUCT, factor="x")),
        "block layer 2 (here): widths differ: units 2, x 3, delta 2",
    ),
    "inputs of different widths": (
        with_softmax_layer(
            2, replace(PRODUCT, argument=Argument(Combination(("units", "x"), (1.0, 1.0))))
        ),
        "block layer 2 (here): widths differ: units 2, x 3",
    ),
    "a gradient of the wrong shape": (
        with_softmax_layer(4, replace(GRADIENT, right="delta")),
        "block layer 4 (here): 'weights' has shape (2, 3), expected (2, 2)",
    ),
    "a gradient by slots of different widths": (
        with_softmax_layer(4, replace(GRADIENT, left=Combination(("delta", "x"), (1.0, 1.0)))),
        "block layer 4 (here): widths differ: delta 2, x 3",
    ),
    "a gradient added to scratch": (
        with_softmax_layer(4, replace(GRADIENT, write="units")),
        "block layer 4 (here): accumulates into scratch slot 'units'",
    ),
    "a product added to weights": (
        with_softmax_layer(2, replace(PRODUCT, write="weights")),
        "block layer 2 (here): writes over 'weights', which still holds a value",
    ),
    "a product added to labels": (
        with_softmax_layer(2, replace(PRODUCT, write="y")),
        "block layer 2 (here): writes over 'y', the examples' labels",
    ),
    "a look-up over what holds a value": (
        softmax_program(*SOFTMAX_BLOCK[:1], *SOFTMAX_BLOCK),
        "block layer 2 (here): writes over 'units', which still holds a value",
    ),
    "an argument that nothing wrote": (
        softmax_program(*SOFTMAX_BLOCK[1:]),
        "block layer 1 (here): reads 'units' before anything was written to it",
    ),
    "a factor that nothing wrote": (
        with_softmax_layer(1, LookUp(Z, ("tanh",), ("units",))),
        "block layer 2 (here): reads 'slope' before anything was written to it",
    ),
    "attention and an MLP in one layer": (
        with_softmax_layer(4, GRADIENT, CLIP_REGISTERS),
        "block layer 4 (here): needs instructions of exactly one kind of layer",
    ),
    "a clip by another slot": (
        with_softmax_layer(5, replace(CLIP_REGISTERS, unit="scale"), WIPE),
        "block layer 5 (here): its unit is 'scale', expected one or scale_size",
    ),
    "a copy that registers have too": (
        softmax_program(prediction=((LOOK_UP,), (COPY, WipeSlots(("units", "slope"))))),
        "prediction layer 2 (there): its flags are is_example, is_query, "
        "expected is_example, is_query, is_register, or only one",
    ),
    "a map everywhere and nowhere": (
        with_softmax_layer(2, MapSlots((COPIED,), "one", ("one",), 99.0, "delta")),
        "block layer 2 (here): its flags are one, "
        "expected is_example, is_query, is_register, or only one",
    ),
    "look-ups over two grids of registers": (
        with_look_up("square", values=(0.0,) * 5),
        "program: has look-ups over lattices of half [1, 2]",
    ),
    "two spacings in one look-up": (
        with_look_up("tanh'", spacing=0.25),
        "block layer 1 (here): looks up tanh, tanh' at once, which have different lattices",
    ),
    "two ratios in one look-up": (
        with_look_up("tanh'", ratio=1.25),
        "block layer 1 (here): looks up tanh, tanh' at once, which have different lattices",
    ),
    "register constants in scratch": (
        softmax_program(layout=with_role("offset", Role.SCRATCH)),
        "program: keeps register constants in 'offset'",
    ),
    "the count of examples in scratch": (
        softmax_program(layout=with_role("log_examples", Role.SCRATCH)),
        "program: keeps register constants in 'log_examples'",
    ),
    "an even number of values": (
        with_look_up("square", values=(0.0, 1.0)),
        "function 'square': has 2 values, expected an odd number",
    ),
    "no spacing": (
        with_look_up("square", spacing=0.0),
        "function 'square': needs a positive reach, spacing and ratio, and errors of at least 0",
    ),
    "a negative size": (
        with_look_up("square", size=-1.0),
        "function 'square': needs a positive reach, spacing and ratio, and errors of at least 0",
    ),
    "a value that is no number": (
        with_look_up("square", values=(0.0, nan, 0.0)),
        "function 'square': LatticeFunction.values[1] is nan, expected a finite number",
    ),
    "an infinite probe": (
        with_softmax_layer(4, replace(GRADIENT, probe=inf)),
        "block layer 4 (here): AddGradient.probe is inf, expected a finite number",
    ),
    "an infinite reach": (
        with_softmax_layer(3, replace(PROJECT, reach=inf)),
        "block layer 3 (here): Project.reach is inf, expected a finite number",
    ),
    "a factor of infinite reach": (
        with_softmax_layer(2, replace(PRODUCT, factor_reach=inf)),
        "block layer 2 (here): AddProduct.factor_reach is inf, expected a finite number",
    ),
}


@pytest.mark.parametrize(("broken", "message"), BROKEN_SOFTMAX.values(), ids=BROKEN_SOFTMAX)
def test_a_broken_rule_of_registers_is_named_with_its_layer(broken, message):
    with pytest.raises(ProgramError) as caught:
        check_program(broken)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "name", ["one", "is_example", "log_examples", *REGISTER_SLOTS, "value of square"]
)
def test_every_slot_that_registers_use_must_exist(name):
    layout = Layout(tuple(slot for slot in REGISTER_LAYOUT.slots if slot.name != name))
    with pytest.raises(LayoutError, match=f"^Layout has no slot '{name}'"):
        check_program(softmax_program(layout=layout))


@pytest.mark.parametrize("name", ["tanh'", "identity", "square"])
def test_every_look_up_must_exist_and_sums_do_not_count(name):
    functions = tuple(f for f in LOOK_UPS if f.name != name)
    with pytest.raises(UnknownNameError, match=f"^Unknown function of the program {name!r}"):
        check_program(softmax_program(functions=(*functions, replace(RELU, name=name), RELU)))


@pytest.mark.parametrize("shape", [(), (0,), (-1,), (2, 3, 4)])
def test_a_slot_has_one_or_two_axes(shape):
    layout = replace(LAYOUT, slots=(*LAYOUT.slots, Slot("odd", shape, Role.SCRATCH)))
    with pytest.raises(ProgramError, match=r"slot 'odd': has .* expected one or two axes, each at"):
        check_program(program(layout=layout))


def test_a_constant_is_one_number():
    layout = replace(LAYOUT, slots=(*LAYOUT.slots, Slot("odd", (2,), Role.CONSTANT)))
    with pytest.raises(ProgramError, match=r"slot 'odd': has shape \(2,\); a constant is one"):
        check_program(program(layout=layout))


@pytest.mark.parametrize("steps", [0, -1])
def test_a_block_performs_a_step_at_least(steps):
    with pytest.raises(ProgramError, match=f"program: has blocks of {steps} steps"):
        check_program(program(steps_per_block=steps))
