"""Take a well-formed program, break one thing, and read the message."""

from dataclasses import replace
from math import inf, nan

import pytest

import icgd
from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.program.chain import ChainProgram
from icgd.program.chain_instructions import (
    CopyWhere,
    LookUpProduct,
    Multiplied,
    MultiplyByEntries,
    MultiplyEntries,
    SelectWhere,
    ShareColumns,
)
from icgd.program.check import Shapes, check_program
from icgd.program.functions import LatticeFunction, ReluSum
from icgd.program.instructions import (
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    ClipSlots,
    Combination,
    Evaluation,
    Instruction,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import REGISTER_SLOTS, Layout, Role, Slot
from icgd.program.linear_instructions import (
    DescendExamples,
    MoveByVelocity,
    PredictMean,
    ShrinkMoved,
)
from icgd.program.network_instructions import (
    Covary,
    MapDifferences,
    MapRowSums,
    Recombine,
    ScaleCentred,
    ShareClasses,
    TakeTurns,
)
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from tests import cases
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import build, every_construction_on
from tests.linear_cases import PROBLEMS, compiled_of

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
        "block layer 5 (here), ClipSlots: is for mlp layers, and the layer is attention.",
    ),
    "an empty layer": (with_layer(5), "block layer 5 (here) has no instructions."),
    "an unknown slot": (
        with_layer(1, replace(FORWARD, inputs="inptus")),
        "block layer 1 (here), ApplyUnits: uses 'inptus', and the layout has no such slot.",
    ),
    "an unknown function": (
        with_layer(1, replace(FORWARD, function="tanh")),
        "block layer 1 (here), ApplyUnits: needs a ReluSum called 'tanh', and there is none.",
    ),
    "reads what nothing wrote": (
        with_layer(2, CLIP),
        "block layer 3 (here), MultiplySlots: reads 'slope' before it is written.",
    ),
    "reads what the same layer writes": (
        with_layer(3, MULTIPLY, replace(PULL, upstream="delta")),
        "block layer 3 (here), PullBack: reads 'delta' before it is written.",
    ),
    "reads after a write in one layer": (
        program(prediction=((FORWARD,), (WipeSlots(("units",)), COPY))),
        "prediction layer 2 (there), MapSlots: reads 'units', which the same layer writes.",
    ),
    "reads what was wiped": (
        program(*BLOCK, (MULTIPLY,)),
        "block layer 7 (here), MultiplySlots: reads 'slope' before it is written.",
    ),
    "writes to an input": (
        with_layer(1, replace(FORWARD, write="x")),
        "block layer 1 (here), ApplyUnits: writes over 'x', which still holds a value.",
    ),
    "changes a constant": (
        with_layer(6, replace(CLIP, slots=("one",)), WIPE),
        "block layer 6 (here), ClipSlots: writes to 'one', which must stay as the prompt sets it.",
    ),
    "writes twice in a layer": (
        with_layer(1, FORWARD, FORWARD),
        "block layer 1 (here), ApplyUnits: writes 'units' a second time in one layer.",
    ),
    "clips and wipes the same slot": (
        with_layer(6, CLIP, ClipSlots(("delta",), 1.0, "one"), WIPE),
        "block layer 6 (here), WipeSlots: writes 'delta' a second time in one layer.",
    ),
    "writes over scratch": (
        with_layer(3, replace(MULTIPLY, write="slope")),
        "block layer 3 (here), MultiplySlots: writes over 'slope', which still holds a value.",
    ),
    "writes over weights": (
        with_layer(1, replace(FORWARD, write="weights")),
        "block layer 1 (here), ApplyUnits: writes over 'weights', which still holds a value.",
    ),
    "writes over labels at examples": (
        with_layer(2, SLOPE, replace(SLOPE, write="y")),
        "block layer 2 (here), MapSlots: writes over 'y', which still holds a value.",
    ),
    "leaves scratch in the block": (
        with_layer(6, CLIP, WipeSlots(("slope", "pulled"))),
        "The block leaves delta, units filled at its end; wipe it.",
    ),
    "leaves scratch in the prediction": (
        program(prediction=((FORWARD,), (COPY,))),
        "The prediction leaves units filled at its end; wipe it.",
    ),
    "breaks a rule in the prediction": (
        program(prediction=((COPY,),)),
        "prediction layer 1 (there), MapSlots: reads 'units' before it is written.",
    ),
    "units of the wrong shape": (
        with_layer(1, FORWARD, replace(FORWARD, write="pulled")),
        "block layer 1 (here), ApplyUnits: writes (2) to pulled, in pulled = relu(weights @ x) "
        "with pulled (3), one (1), weights (2, 3), x (3).",
    ),
    "factors of different widths": (
        with_layer(3, replace(MULTIPLY, right="x")),
        "block layer 3 (here), MultiplySlots: (2) meets (3), expected equal shapes, in delta = "
        "units * x with delta (2), one (1), units (2), x (3).",
    ),
    "an infinite number": (
        with_layer(2, replace(SLOPE, gate=inf)),
        "gate of MapSlots in layer 'here' is inf; every number of a program must be finite.",
    ),
    "a number that is none, deep in an instruction": (
        with_layer(
            2,
            replace(
                SLOPE,
                summands=(replace(RESIDUAL, argument=Combination(("units", "y"), (1.0, nan))),),
            ),
        ),
        "coefficients of MapSlots in layer 'here' is nan; every number of a program must be "
        "finite.",
    ),
    "a number that is none in a function": (
        program(functions=(replace(RELU, slopes=(0.0, nan, 2.0)),)),
        "slopes of function 'relu' is nan; every number of a program must be finite.",
    ),
    "a number that is none in a later step": (
        program(schedule=((Layer("end", (CLIP,)),), (Layer("end", (replace(CLIP, bound=nan),)),))),
        "bound of ClipSlots in layer 'end' is nan; every number of a program must be finite.",
    ),
}


@pytest.mark.parametrize(("broken", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_is_named_with_its_instruction(broken, message):
    with pytest.raises(ProgramError) as caught:
        check_program(broken)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "name", ["x", "y", "weights", "units", "slope", "one", "is_query", "tokens_per_example"]
)
def test_every_slot_that_is_used_must_exist(name):
    with pytest.raises(ProgramError, match=f": uses '{name}', and the layout has no such slot"):
        check_program(program(layout=without_slot(name)))


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


def test_a_good_program_with_registers_passes():
    check_program(softmax_program())


def test_a_product_may_add_to_what_another_instruction_left():
    check_program(softmax_program(*SOFTMAX_BLOCK[:2], (PRODUCT,), *SOFTMAX_BLOCK[2:]))


BROKEN_SOFTMAX = {
    "a look-up of the wrong shape": (
        with_softmax_layer(1, replace(LOOK_UP, into=("units", "pulled"))),
        "block layer 1 (here), LookUp: writes (2) to pulled, in units, pulled = tanh, tanh' at "
        "weights @ x with units (2), pulled (3), x (3), weights (2, 3).",
    ),
    "a gradient of the wrong shape": (
        with_softmax_layer(4, replace(GRADIENT, right="delta")),
        "block layer 4 (here), AddGradient: products of (2) and (2) are added to (2, 3), in "
        "weights += -0.5 * mean(delta (x) delta) with weights (2, 3), delta (2).",
    ),
    "a product added to weights": (
        with_softmax_layer(2, replace(PRODUCT, write="weights")),
        "block layer 2 (here), AddProduct: writes over 'weights', which still holds a value.",
    ),
    "a product added to labels": (
        with_softmax_layer(2, replace(PRODUCT, write="y")),
        "block layer 2 (here), AddProduct: writes over 'y', which still holds a value.",
    ),
    "a look-up over what holds a value": (
        softmax_program(*SOFTMAX_BLOCK[:1], *SOFTMAX_BLOCK),
        "block layer 2 (here), LookUp: writes over 'slope', which still holds a value.",
    ),
    "an argument that nothing wrote": (
        softmax_program(*SOFTMAX_BLOCK[1:]),
        "block layer 1 (here), AddProduct: reads 'slope' before it is written.",
    ),
    "attention and an MLP in one layer": (
        with_softmax_layer(4, GRADIENT, CLIP_REGISTERS),
        "block layer 4 (here), ClipSlots: is for mlp layers, and the layer is softmax.",
    ),
    "a copy that registers have too": (
        softmax_program(prediction=((LOOK_UP,), (COPY, WipeSlots(("units", "slope"))))),
        "prediction layer 2 (there), MapSlots: its flags are is_query, is_example, "
        "expected is_example, is_query, is_register or one.",
    ),
}


@pytest.mark.parametrize(("broken", "message"), BROKEN_SOFTMAX.values(), ids=BROKEN_SOFTMAX)
def test_what_is_wrong_with_registers_is_named_with_its_instruction(broken, message):
    with pytest.raises(ProgramError) as caught:
        check_program(broken)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["tanh'", "identity", "square"])
def test_every_look_up_must_exist_and_sums_do_not_count(name):
    functions = tuple(f for f in LOOK_UPS if f.name != name)
    with pytest.raises(ProgramError) as caught:
        check_program(softmax_program(functions=(*functions, replace(RELU, name=name), RELU)))
    assert f"needs a LatticeFunction called {name!r}, and there is none." in str(caught.value)


SHAPES_LAYOUT = Layout(
    (
        *LAYOUT.slots,
        Slot("w", (1, 3), Role.PARAMETER),
        Slot("residual", (1,), Role.RESIDUAL),
        Slot("v", (1,), Role.VELOCITY),
        Slot("wide_v", (2,), Role.VELOCITY),
        Slot("mean", (1,), Role.SCRATCH),
    )
)


def descend(*terms: KernelTerm, **changes: object) -> DescendFunction:
    step = DescendFunction(terms, 0.1, 0.0, None, residual="residual")
    return replace(step, **changes)


RBF = KernelTerm("rbf", None, 1.0, None)
PREDICT = PredictMean("logistic", ("w",), ("x",), 1.0, "is_query", "mean")
BACK = Argument(Combination.of("x"), "weights", transposed=True)

FITTING = [
    FORWARD,
    WIPE,
    CLIP,
    PREDICT,
    PROJECT,
    descend(RBF),
    descend(RBF, velocity="v", momentum=0.5),
    descend(KernelTerm("rbf", ((1.0, 0.0, 0.0),), 1.0, None)),
]

UNFIT = {
    "too few inputs": (replace(FORWARD, inputs="y"), "a matrix (2, 3) meets (2) coordinates"),
    "no matrix": (replace(FORWARD, weights="x"), "(3) is no matrix that all tokens share"),
    "no matrix to pull back by": (
        replace(PULL, weights="x", upstream="one", write="pulled"),
        "(3) is no matrix that all tokens share",
    ),
    "too many columns to pull back": (
        replace(PULL, weights="w", upstream="mean", write="mean"),
        "a matrix (1, 3) has no 1 columns, or one more for a bias",
    ),
    "a slope of another width": (replace(PULL, slope="y"), "(2) meets (3), expected equal shapes"),
    "a transposed matrix": (Project(BACK, 9.0, "pulled"), "a matrix (3, 2) meets (3) coordinates"),
    "a sum of different widths": (
        replace(SLOPE, summands=(Summand(Combination(("units", "x"), (1.0, 1.0)), "relu"),)),
        "(2) meets (3), expected equal shapes",
    ),
    "weights that a token maps for itself": (
        MapSlots((Summand(Combination.of("weights"), "relu"),), "one", (), 0.0, "units"),
        "(2, 3) meets (2), expected equal shapes",
    ),
    "a mean of matrices": (replace(PREDICT, weights=("weights",)), "writes (2) to mean"),
    "scores that are checked nowhere": (
        replace(PREDICT, checked="somewhere"),
        "checks scores where 'somewhere', expected is_example or is_query",
    ),
    "a transform without rows": (
        descend(KernelTerm("rbf", (), 1.0, None)),
        "a constant matrix without (3) columns, or without rows",
    ),
    "a transform of other inputs": (
        descend(KernelTerm("rbf", None, 1.0, None, ((1.0, 0.0),))),
        "a constant matrix without (3) columns, or without rows",
    ),
    "inputs that are moved elsewhere": (
        descend(RBF, transform=((1.0, 0.0, 0.0),)),
        "(3) meets (1), expected equal shapes",
    ),
    "a velocity of another width": (
        descend(RBF, velocity="wide_v", momentum=0.5),
        "(2) meets (1), expected equal shapes",
    ),
}


@pytest.mark.parametrize("instruction", FITTING)
def test_an_instruction_whose_shapes_fit_has_no_problem(instruction):
    assert Shapes(SHAPES_LAYOUT, is_chain=False).problem_with(instruction) is None


@pytest.mark.parametrize(("instruction", "problem"), UNFIT.values(), ids=UNFIT)
def test_shapes_that_do_not_fit_are_named_with_all_slots(instruction, problem):
    found = Shapes(SHAPES_LAYOUT, is_chain=False).problem_with(instruction)
    assert found is not None
    assert found.startswith(f"{problem}, in {instruction.formula()} with ")
    for name in (*instruction.reads(), *instruction.writes()):
        shape = SHAPES_LAYOUT.slot(name).shape
        assert f"{name} ({', '.join(map(str, shape))})" in found


MOMENTUM_LAYOUT = Layout(
    (
        Slot("w", (1, 2), Role.PARAMETER),
        Slot("v", (1, 2), Role.VELOCITY),
        Slot("u", (2, 1), Role.VELOCITY),
        Slot("s", (1, 2), Role.SCRATCH),
        Slot("one", (1,), Role.CONSTANT),
    )
)


def test_a_velocity_is_as_its_weights_are():
    shapes = Shapes(MOMENTUM_LAYOUT, is_chain=False)
    assert shapes.problem_with(MoveByVelocity("w", "v", 0.5, 0.0, 0.0)) is None
    for move in (MoveByVelocity("w", "u", 0.5, 0.0, 0.0), ShrinkMoved("w", "u", 0.0, 2.0)):
        problem = shapes.problem_with(move)
        assert problem is not None
        assert problem.endswith(" with w (1, 2), u (2, 1), one (1)")
    # What tokens hold each for themselves is no velocity of weights that they share.
    assert shapes.problem_with(ShrinkMoved("w", "s", 0.0, 2.0)) is not None


def compiled(construction: str, widths: tuple[int, ...], update=None, loss="squared", **options):
    """A program as a construction builds it."""
    update = update or GradientStep(0.1, 2.0)
    target = MLP(widths, options.pop("activation", "relu"), **options)
    problem = icgd.Problem(target, loss, update, icgd.Domain(1.0, 1.0))
    return icgd.compile(problem, construction, n_steps=2).program


def momentum(**options: float) -> StackProgram:
    update = icgd.MomentumStep(0.1, 2.0, batch_size=2, momentum=0.5, **options)
    return compiled("relu-stack", (2, 3, 1), update)


def test_an_average_is_as_wide_as_what_it_averages():
    good = momentum(average=0.5)
    update = good.block[-1].instructions[0]
    shapes = Shapes(good.layout, is_chain=False)
    assert shapes.problem_with(update) is None
    broken = replace(update.assignments[0], average="average_2")
    problem = shapes.problem_with(Recombine((broken,), "one"))
    assert problem is not None
    assert problem.startswith("writes (3, 2) to average_2, in weights_1 = ")
    assert "average_2 (1, 3)" in problem


FORWARD_NORM = ScaleCentred("linear_2", "scale_2", "normed_2", reach=4.0)
BACKWARD_NORM = ScaleCentred("passed_2", "scale_2", "delta_2", "normed_2", "shared_2")


def normed() -> StackProgram:
    shape = {"norms": (2,), "shortcuts": ((1, 2), (2, 3))}
    return compiled("relu-stack", (3, 3, 3, 3), activation="tanh", **shape)


def test_a_program_with_norms_and_shortcuts_has_their_instructions():
    parts = [part for layer in normed().block for part in layer.instructions]
    passed_on = PullBack("weights_3", "loss_slope", "slope_2", "passed_2", ("loss_slope",))
    assert passed_on in parts
    assert replace(passed_on, slope="one", write="upstream_2") in parts
    assert Covary("linear_2", "linear_2", "variance_2") in parts


@pytest.mark.parametrize(
    ("instruction", "problem"),
    [
        (Covary("passed_2", "one", "shared_2"), "(3) meets (1), expected equal shapes"),
        (Covary("passed_2", "normed_2", "delta_2"), "writes (1) to delta_2"),
        (replace(FORWARD_NORM, scale="slope_2"), "(3) coordinates, expected one number a token"),
        (replace(FORWARD_NORM, source="one"), "writes (1) to normed_2"),
        (replace(BACKWARD_NORM, along="one"), "(3) meets (1), expected equal shapes"),
    ],
)
def test_shapes_of_norms_that_do_not_fit_are_named(instruction, problem):
    shapes = Shapes(normed().layout, is_chain=False)
    assert shapes.problem_with(FORWARD_NORM) is shapes.problem_with(BACKWARD_NORM) is None
    found = shapes.problem_with(instruction)
    assert found is not None
    assert found.startswith(f"{problem}, in {instruction.formula()} with ")


def changed(good: StackProgram, kind: type, **change: object) -> StackProgram:
    """The program in which the instructions of a kind are changed."""
    block = tuple(
        Layer(
            layer.title,
            tuple(
                replace(part, **change) if isinstance(part, kind) else part
                for part in layer.instructions
            ),
        )
        for layer in good.block
    )
    assert block != good.block
    return replace(good, block=block)


def classes(construction: str) -> StackProgram:
    return compiled(construction, (2, 3, 3), loss="cross_entropy")


def linear() -> StackProgram:
    return compiled_of(PROBLEMS["logistic"]).program


def reassigned(**change: object) -> dict[str, object]:
    """The assignments of an update, of which the first is changed."""
    first, *others = momentum(average=0.0).block[-1].instructions[0].assignments
    return {"assignments": (replace(first, **change), *others)}


BROKEN_BUILT = {
    "classes": (
        lambda: classes("softmax-stack"),
        ShareClasses,
        {"classes": ("class_1", "class_2")},
        "shares 3 scores 'units_2' among 2 classes",
    ),
    "pairs": (
        lambda: classes("relu-stack"),
        MapDifferences,
        {"write": "shares"},
        r"writes \(9\) to shares",
    ),
    "row sums": (
        lambda: classes("relu-stack"),
        MapRowSums,
        {"source": "units_2"},
        r"reads coordinate 7 of \(3\), .* units_2 \(3\)",
    ),
    "what a cap misses": (
        lambda: classes("relu-stack"),
        MapRowSums,
        {"missed": nan},
        "missed of MapRowSums in layer .* is nan",
    ),
    "an assignment": (
        lambda: momentum(average=0.0),
        Recombine,
        reassigned(value=Combination.of("weights_2")),
        r"Recombine: writes \(1, 3\) to weights_1, in ",
    ),
    "a bound": (
        lambda: momentum(average=0.0),
        Recombine,
        reassigned(bound=nan),
        "bound of Recombine in layer 'update' is nan",
    ),
    "a unit": (
        momentum,
        Recombine,
        {"unit": "is_query"},
        "its unit is 'is_query', expected one or",
    ),
    "turns": (
        momentum,
        TakeTurns,
        {"n_examples": "x"},
        r"TakeTurns: \(1\) meets \(2\), .*, x \(2\)",
    ),
    "inputs": (
        linear,
        DescendExamples,
        {"inputs": ("one", "x")},
        r"products of \(1\) and \(1\) are added to \(1, 3\), .* w \(1, 3\)",
    ),
    "a label": (linear, DescendExamples, {"label": "x"}, r"\(1\) meets \(3\), .* x \(3\)"),
    "a scale": (
        linear,
        DescendExamples,
        {"scale": nan},
        "scale of DescendExamples in layer .* is nan",
    ),
    "a gate": (
        linear,
        DescendExamples,
        {"gate": inf},
        "gate of DescendExamples in layer .* is inf",
    ),
}


@pytest.mark.parametrize(
    ("build", "kind", "change", "rule"), BROKEN_BUILT.values(), ids=BROKEN_BUILT
)
def test_what_is_wrong_in_a_built_program_is_named(build, kind, change, rule):
    good = build()
    check_program(good)
    with pytest.raises(ProgramError, match=rule):
        check_program(changed(good, kind, **change))


CHAIN = program_of(problem_of(MLP((3, 4, 2), "relu"), batch_size=2))
SCHEDULE = program_of(
    replace(problem_of(MLP((2, 1))), update=GradientStep((0.3, 0.2, 0.1, 0.3), 1.0, 1))
)
CLASSES = program_of(problem_of(MLP((3, 4, 2), "relu"), 2, loss="cross_entropy"))


def with_part(number: int, *added: Instruction, chain: ChainProgram = CHAIN) -> ChainProgram:
    """The chain with instructions added to one of its layers, counted from 1."""
    layers = list(chain.layers)
    layer = layers[number - 1]
    layers[number - 1] = replace(layer, instructions=(*layer.instructions, *added))
    return replace(chain, layers=tuple(layers))


def copy(source: str, write: str, *flags: str, gate: float = 8.0) -> CopyWhere:
    return CopyWhere(Combination.of(source), flags, gate, write)


def by_entries(entries: str, matrix: Multiplied) -> MultiplyByEntries:
    return MultiplyByEntries(entries, 1.0, (matrix,))


def select(write: str, *flags: str) -> SelectWhere:
    """One of three sums, by the first flags and as many others."""
    ones, zeros = flags[::2], flags[1::2]
    return SelectWhere((Combination.of("weights"),) * 3, ones, zeros, (), 8.0, write)


@pytest.mark.parametrize("chain", [CHAIN, CLASSES, SCHEDULE])
def test_a_chain_as_built_obeys_the_rules(chain):
    check_program(chain)


ROUTER, PRODUCTS, NEXT = (
    "chain layer 2 (router)",
    "chain layer 3 (products)",
    "chain layer 4 (next block)",
)
BROKEN_CHAIN = [
    (
        with_part(2, copy("near.first", "inptus")),
        f"{ROUTER}, CopyWhere: uses 'inptus', and the layout has no such slot.",
    ),
    (with_part(2, copy("z", "inputs")), f"{ROUTER}, CopyWhere: reads 'z' before it is written."),
    (
        with_part(4, copy("delta", "inputs")),
        f"{NEXT}, CopyWhere: writes over 'inputs', which still holds a value.",
    ),
    (
        with_part(2, copy("near.first", "weights")),
        f"{ROUTER}, CopyWhere: (4, 4) meets (4, 2), expected a common shape, in weights += "
        "near.first with weights (4, 4), near.first (4, 2).",
    ),
    (
        with_part(2, copy("near.first", "inputs", "far.first")),
        f"{ROUTER}, CopyWhere: (4, 2) is no flag: one number, or one for each unit, in inputs += "
        "near.first unless far.first with inputs (4, 2), near.first (4, 2), far.first (4, 2).",
    ),
    (
        with_part(1, copy("near.first", "inputs")),
        "chain layer 1 (mask), CopyWhere: is for mlp layers, and the layer is softmax.",
    ),
    (
        with_part(3, by_entries("delta", Multiplied("weights", "outer"))),
        f"{PRODUCTS}, MultiplyByEntries: writes (4, 2) to outer, in outer = weights @ delta with "
        "outer (4, 4), delta (4, 2), weights (4, 4).",
    ),
    (
        with_part(3, by_entries("weights", Multiplied("delta", "outer"))),
        f"{PRODUCTS}, MultiplyByEntries: a matrix (4, 2) is multiplied by (4, 4), in ",
    ),
    (
        with_part(3, by_entries("delta", Multiplied("delta", "z", outer=True))),
        f"{PRODUCTS}, MultiplyByEntries: writes (4, 4) to z, in z = delta @ delta^T with ",
    ),
    (
        with_part(3, MultiplyEntries("delta", "weights", 1.0, "back")),
        f"{PRODUCTS}, MultiplyEntries: (4, 2) meets (4, 4), expected equal shapes, in back = delta "
        "* weights with back (4, 2), delta (4, 2), weights (4, 4).",
    ),
    (
        with_part(3, LookUpProduct("weights", "delta", 1.0, "outer", ())),
        f"{PRODUCTS}, LookUpProduct: writes (4, 2) to outer, in outer = weights @ delta with ",
    ),
    (
        with_part(4, ShareColumns("delta", ("class_1",) * 5, "shares"), chain=CLASSES),
        "chain layer 4 (products), ShareColumns: shares 5 classes among (4, 2) scores, in ",
    ),
    (
        with_part(4, ShareColumns("weights", ("class_1",), "shares"), chain=CLASSES),
        "chain layer 4 (products), ShareColumns: writes (4, 4) to shares, in shares = softmax(",
    ),
    (
        with_part(3, LookUpProduct("weights", "inputs", 1.0, "z", (Evaluation("tanh", "back"),))),
        f"{PRODUCTS}, LookUpProduct: needs a LatticeFunction called 'tanh', and there is none.",
    ),
    (
        with_part(3, copy("delta", "z")),
        f"{PRODUCTS}, CopyWhere: is for mlp layers, and the layer is softmax.",
    ),
    (
        with_part(2, copy("near.first", "inputs", gate=inf)),
        "gate of CopyWhere in layer 'router' is inf; every number of a program must be finite.",
    ),
    (
        with_part(4, select("out.first", "linear", "kinked")),
        f"{NEXT}, SelectWhere: selects one of 3 sums by 1 bits, in ",
    ),
    (
        with_part(4, select("out.first", "linear", "kinked", "forward", "backward")),
        f"{NEXT}, SelectWhere: (4, 2) meets (4, 4), expected a common shape, in ",
    ),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN_CHAIN)
def test_what_is_wrong_with_a_chain_is_named_with_its_instruction(broken, message):
    with pytest.raises(ProgramError) as caught:
        check_program(broken)
    assert str(caught.value).startswith(message)


def test_a_chain_writes_every_row_of_the_next_block():
    with pytest.raises(ProgramError, match=r"^The chain writes no out\.first, out\.flat, "):
        check_program(replace(CHAIN, layers=CHAIN.layers[:-1]))
