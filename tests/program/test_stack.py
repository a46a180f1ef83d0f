"""Programs: what every kind says of itself, stacks, their registers and their step size."""

from dataclasses import is_dataclass, replace
from math import exp, log

import pytest
import torch

import icgd
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.functions import FUNCTIONS, StepFunction
from icgd.program.check import PROGRAMS
from icgd.program.functions import Band, LatticeFunction, ReluSum, RidgeSum
from icgd.program.instructions import ApplyUnits, ClipSlots, LayerKind, LookUp, MultiplySlots
from icgd.program.layout import MASKED, REGISTER_SLOTS, SHARE, Layout, value_slot
from icgd.program.network_instructions import class_slot
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram, of_unit_step, step_layer
from icgd.weights.lowering import lower_program
from tests import cases
from tests.cases import build, every_construction_on
from tests.contracts.backend import RELU_STACK
from tests.linear_cases import PROBLEMS, compiled_of

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
        "layers: 2 layers used 3 times, 1 to predict; d_model: 0 in 0 slots)"
    )


def test_programs_are_of_two_kinds_both_final_and_frozen():
    assert set(AbstractProgram.__subclasses__()) == set(PROGRAMS.values())
    for kind in PROGRAMS.values():
        assert is_dataclass(kind)
        assert kind.__final__
        assert kind.__dataclass_params__.frozen


def test_the_first_instruction_of_a_kind_is_found_in_the_order_of_the_layers():
    program = build(RELU_STACK, cases.FEW[0])
    first = program.block[0].instructions[0]
    assert program.first(ApplyUnits) is first
    assert program.first(LookUp) is None


def test_the_abstract_program_is_not_made():
    with pytest.raises(TypeError, match="abstract"):
        AbstractProgram()


@every_construction_on(cases.SMALL)
def test_a_program_knows_from_its_numbers_alone_whether_it_has_ramps(construction, case):
    """The catalogue of functions knows which of them are steps; without knots they are constant."""
    program, steps = build(construction, case), []
    for fit in program.functions:
        real = FUNCTIONS.get(fit.name.removeprefix("s ").removesuffix("(t)"))
        is_step = isinstance(real, StepFunction)
        jumps = is_step and bool(real.knots)
        assert fit.is_ramp is (is_step if isinstance(fit, ReluSum) else jumps)
        steps.append(jumps)
    assert program.has_kinks is any(steps)


@every_construction_on(cases.SMALL)
def test_a_program_says_which_weights_it_trains(construction, case):
    program = build(construction, case)
    assert program.weight_shapes == case.problem.network.matrix_shapes
    assert program.layers == (*program.block, *program.prediction)
    assert program.traceable == program.layout.names


BUMP = LatticeFunction("bump", 1.0, 0.5, 1.4, (1.0, 2.0, 5.0, 3.0, 4.0), 0.0, 5.0, 1.0)


def registers_of(*functions: LatticeFunction) -> dict[str, tuple[float, ...]]:
    return StackProgram("by hand", Layout(()), functions, (), 0, ()).registers()


CONSTANTS = registers_of(BUMP)
"""The memory, then the grid -2, -1, 0, 1, 2."""


def test_every_slot_of_registers_has_a_value_for_each():
    assert set(CONSTANTS) == {*REGISTER_SLOTS, "value of bump"}
    assert {len(values) for values in CONSTANTS.values()} == {6}


def test_the_first_register_is_the_memory():
    assert CONSTANTS["is_register"] == (1.0,) * 6
    assert CONSTANTS["is_memory"] == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_the_memory_holds_the_weights_themselves_and_the_grid_holds_multiples():
    assert CONSTANTS["scale"] == (1.0, -1.0, -0.5, 0.0, 0.5, 1.0)
    assert CONSTANTS["scale_size"] == (1.0, 1.0, 0.5, 0.0, 0.5, 1.0)
    assert CONSTANTS["scale_sign"] == (1.0, -1.0, -1.0, 0.0, 1.0, 1.0)


def test_a_grid_token_holds_its_value_of_every_function_and_the_memory_holds_0():
    other = LatticeFunction("other", 1.0, 0.5, 1.4, (9.0, 8.0, 7.0, 6.0, 5.0), 0.0, 9.0, 1.0)
    both = registers_of(BUMP, other)
    assert value_slot("bump") == "value of bump"
    assert both["value of bump"] == (0.0, 1.0, 2.0, 5.0, 3.0, 4.0)
    assert both["value of other"] == (0.0, 9.0, 8.0, 7.0, 6.0, 5.0)


def test_the_offset_completes_the_square_of_a_grid_token():
    assert CONSTANTS["offset"][1:] == (-2.0, -0.5, 0.0, -0.5, -2.0)


@pytest.mark.parametrize("half", [15, 119, 511])
def test_the_memory_scores_below_the_best_grid_token_whatever_the_argument(half):
    """A memory has the scale of the last token: for arguments beyond it only offsets differ."""
    offset = registers_of(replace(BUMP, values=(0.0,) * (2 * half + 1)))["offset"]
    for cells in (0.0, 0.5 * half, float(half), 3.0 * half, -2.0 * half):
        best = max(g * cells + offset[1 + half + g] for g in range(-half, half + 1))
        assert half * cells + offset[0] <= best - MASKED


def test_a_masked_score_has_a_softmax_weight_of_exactly_0():
    """Scores over the grid are divided by ratio^2, at most 1.5^2."""
    assert exp(-MASKED / 1.5**2) == 0.0


def test_beside_the_memory_examples_of_total_1_keep_a_share_in_proportion_to_the_scale():
    for scale, sink in zip(CONSTANTS["scale_size"], CONSTANTS["sink"], strict=True):
        share = exp(0.0 - sink) / (1 + exp(0.0 - sink))
        assert share == pytest.approx(SHARE * scale, rel=1e-11, abs=0)


def test_the_register_of_scale_0_leaves_examples_exactly_nothing():
    assert CONSTANTS["sink"][3] == MASKED
    assert exp(log(1e6) - MASKED) == 0.0


def test_the_registers_after_the_memory_are_those_of_the_classes():
    update, domain = icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 3), "relu"), "cross_entropy", update, domain)
    registers = icgd.compile(problem, "softmax-stack", n_steps=1).program.registers()
    for number in (1, 2, 3):
        flags = registers[class_slot(number)]
        assert [place for place, flag in enumerate(flags) if flag] == [number]
        assert sum(flags) == 1.0


def test_a_linear_model_has_a_reach_and_no_registers():
    program = compiled_of(PROBLEMS["poisson"]).program
    assert program.score_reach == 5 * (1 + 2.0**-10)
    assert (program.n_examples, program.n_registers) == (None, 0)


def compiled(construction, step_size, **settings):
    problem = icgd.Problem(
        target=icgd.MLP((2, 3, 2, 1), "relu"),
        loss="squared",
        update=icgd.GradientStep(step_size=step_size, box=1.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, construction, n_steps=2, **settings)


@pytest.mark.parametrize(("construction", "place"), [("relu-stack", 6), ("softmax-stack", 8)])
def test_the_layer_of_the_step_is_the_last_but_one(construction, place):
    program = compiled(construction, 0.3).program
    assert step_layer(program) == place
    assert program.block[place].title == "gradient step"
    assert place == len(program.block) - 2


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("step_size", [1e-3, 0.3, 7.0])
def test_the_derivative_of_every_weight_by_the_step_size_is_known_exactly(construction, step_size):
    """It is W_O(1) in one layer and 0 elsewhere; a transformer of any step size follows from it."""
    real = dict(compiled(construction, step_size).transformer().named_parameters())
    program = compiled(construction, 0.3).stack
    unit = dict(lower_program(of_unit_step(program, 0.3)).named_parameters())
    moved = f"block.{step_layer(program)}.W_O"
    assert unit.keys() == real.keys()
    assert unit[moved].abs().max() > 0
    for name, weights in unit.items():
        if name == moved:
            torch.testing.assert_close(step_size * weights, real[name], rtol=4e-16, atol=0)
        else:
            assert torch.equal(weights, real[name]), name


@pytest.mark.parametrize(
    ("construction", "widths", "batch_size"),
    [("universal", (1, 1), None), ("cot-network", (2, 3, 1), 4), ("recursion", (2, 3, 1), None)],
)
def test_a_program_whose_step_size_is_no_such_factor_is_refused(construction, widths, batch_size):
    problem = icgd.Problem(
        target=icgd.MLP(widths, "relu"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.3, box=1.0, batch_size=batch_size),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    settings = {"n_examples": 1} if construction == "universal" else {}
    program = icgd.compile(problem, construction, n_steps=1, **settings).program
    with pytest.raises(SettingError, match=f"^In {construction} the step size is not a factor"):
        step_layer(program)
