"""What every kind of program says of itself."""

from dataclasses import is_dataclass

import pytest

from icgd.problems.functions import FUNCTIONS, StepFunction
from icgd.program.check import PROGRAMS
from icgd.program.functions import ReluSum
from icgd.program.instructions import (
    ApplyUnits,
    ClipSlots,
    LayerKind,
    LookUp,
    MultiplySlots,
)
from icgd.program.program import AbstractProgram, Layer
from tests import cases
from tests.cases import build, every_construction_on
from tests.contracts.backend import RELU_STACK


def test_a_layer_is_of_the_kind_of_its_instructions():
    first = Layer("first", (MultiplySlots("a", "b", write="c"),))
    second = Layer("second", (ClipSlots(("w",), 1.0, "one"),))
    assert [layer.kind for layer in (first, second)] == [LayerKind.PRODUCT, LayerKind.MLP]


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
    assert program.recordable == program.layout.names
