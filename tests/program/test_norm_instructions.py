from dataclasses import replace

import pytest

import icgd
from icgd.errors import ProgramError
from icgd.program.check import Shapes, check_program, from_data
from icgd.program.instructions import ONE, LayerKind, PullBack
from icgd.program.network_instructions import Covary, ScaleCentred
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

COVARY = Covary("passed_2", "normed_2", "shared_2")
FORWARD = ScaleCentred("linear_2", "scale_2", "normed_2", reach=4.0)
BACKWARD = ScaleCentred("passed_2", "scale_2", "delta_2", "normed_2", "shared_2")


def program() -> StackProgram:
    target = icgd.MLP((3, 3, 3, 3), "tanh", norms=(2,), shortcuts=((1, 2), (2, 3)))
    update, domain = icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(target, "squared", update, domain)
    return icgd.compile(problem, "relu-stack", n_steps=2).program


def changed(found: StackProgram, old: object, new: object) -> StackProgram:
    """The program with one instruction in place of another."""
    layers = [
        Layer(layer.title, tuple(new if part == old else part for part in layer.instructions))
        for layer in found.block
    ]
    assert tuple(layers) != found.block
    return replace(found, block=tuple(layers))


def test_instructions_read_as_formulas_and_know_their_slots():
    assert COVARY.formula() == "shared_2 = cov(passed_2, normed_2)"
    assert FORWARD.formula() == "normed_2 = scale_2 * (linear_2 - mean(linear_2))"
    assert BACKWARD.formula() == (
        "delta_2 = scale_2 * (passed_2 - mean(passed_2) - shared_2 * normed_2)"
    )
    assert set(COVARY.reads()) == {"passed_2", "normed_2", ONE}
    assert set(FORWARD.reads()) == {"linear_2", "scale_2", ONE}
    assert set(BACKWARD.reads()) == {"passed_2", "scale_2", "normed_2", "shared_2", ONE}
    assert [part.writes() for part in (COVARY, FORWARD)] == [("shared_2",), ("normed_2",)]
    assert {part.kind for part in (COVARY, FORWARD, BACKWARD)} == {LayerKind.PRODUCT}


def test_a_program_with_norms_and_shortcuts_keeps_all_rules_and_comes_back_from_its_data():
    found = program()
    check_program(found)
    assert from_data(found.to_data()) == found
    parts = [part for layer in found.block for part in layer.instructions]
    passed_on = PullBack("weights_3", "delta_3", "slope_2", "passed_2", ("loss_slope",))
    assert passed_on in parts
    assert replace(passed_on, slope=ONE, write="upstream_2") in parts
    assert Covary("linear_2", "linear_2", "variance_2") in parts
    assert passed_on.formula() == "passed_2 = slope_2 * (weights_3^T @ delta_3 + loss_slope)"
    assert passed_on.constants == (ONE,)
    assert PullBack("V", "s", "dr", "t").constants == ()


@pytest.mark.parametrize(
    ("instruction", "problem"),
    [
        (Covary("passed_2", "one", "shared_2"), "(3) meets (1), expected equal shapes"),
        (Covary("passed_2", "normed_2", "delta_2"), "writes (1) to delta_2"),
        (replace(FORWARD, scale="slope_2"), "(3) coordinates, expected one number a token"),
        (replace(FORWARD, source="one"), "writes (1) to normed_2"),
        (replace(BACKWARD, along="one"), "(3) meets (1), expected equal shapes"),
    ],
)
def test_shapes_that_do_not_fit_are_named(instruction, problem):
    shapes = Shapes(program().layout, is_chain=False)
    assert shapes.problem_with(FORWARD) is shapes.problem_with(BACKWARD) is None
    found = shapes.problem_with(instruction)
    assert found is not None
    assert found.startswith(f"{problem}, in {instruction.formula()} with ")


@pytest.mark.parametrize(
    ("instruction", "change", "problem"),
    [
        (BACKWARD, {"share": None}, "has one of `along` and `share`, expected both or neither"),
        (BACKWARD, {"reach": 4.0}, "promises a reach of 4, which only a norm has"),
        (FORWARD, {"reach": 0.0}, "promises a reach of 0, which only a norm has"),
    ],
)
def test_what_no_norm_has_is_refused(instruction, change, problem):
    with pytest.raises(ProgramError, match=f"ScaleCentred: {problem}"):
        replace(instruction, **change)
