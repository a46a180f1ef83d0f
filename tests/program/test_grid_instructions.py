from dataclasses import replace

import pytest

from icgd.errors import ProgramError
from icgd.program.check import check_program
from icgd.program.grid_instructions import DescendExamples, PredictMean, ShrinkSlot
from icgd.program.program import Layer
from icgd.program.registry import from_data
from icgd.program.stack import StackProgram
from tests.linear_cases import PROBLEMS, compiled_of

STEP = DescendExamples("logistic", ("w", "b"), ("x", "one"), "y", -0.5, -0.25, 3.0, 4, False)


def test_instructions_read_as_formulas_and_know_their_slots():
    left = "logistic(<w, x_i> + b) - y_i"
    assert STEP.formula() == f"w, b += -0.5 * sum_i ({left}) (x_i, 1); w += -0.25 * w"
    assert set(STEP.reads()) == {"w", "b", "x", "one", "y"}
    assert STEP.writes() == ("w", "b")
    assert STEP.functions() == ("logistic", "label")
    joined = replace(
        STEP, mean="identity", weights=("w",), inputs=("x",), decay=0.0, joins_label=True
    )
    assert joined.formula() == "w += -0.5 * sum_i (identity(<w, x_i>) - y_i) (x_i)"
    assert joined.functions() == ("identity",)
    predict = PredictMean("probit", ("w", "b"), ("x", "one"), 3.0, "mean")
    assert predict.formula() == "mean = probit(<w, x> + b)"
    assert (predict.writes(), predict.functions()) == (("mean",), ("probit",))
    assert ShrinkSlot("w", 0.5, 2.0).formula() == "shrink w by 0.5, clip to [-2, 2]"


def test_a_program_of_them_is_data():
    program = compiled_of(PROBLEMS["poisson"]).program
    assert from_data(program.to_data()) == program
    assert program.n_examples == 6
    assert program.n_registers == 0


def broken(program: StackProgram, **change: object) -> StackProgram:
    step, penalty = program.block
    descent = replace(step.instructions[0], **change)
    return replace(program, block=(Layer(step.title, (descent,)), penalty))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"n_examples": 0}, "has heads for 0 examples"),
        ({"inputs": ("x",)}, "has 2 weights for 1 inputs"),
        ({"inputs": ("one", "x")}, "widths differ: w 3, one 1"),
        ({"label": "x"}, r"'x' has shape \(3,\), expected \(1,\)"),
        ({"scale": float("nan")}, "DescendExamples.scale is nan, expected a finite number"),
        ({"decay": float("inf")}, "DescendExamples.decay is inf, expected a finite number"),
    ],
)
def test_a_broken_step_is_named(change, rule):
    with pytest.raises(ProgramError, match=rule):
        check_program(broken(compiled_of(PROBLEMS["logistic"]).program, **change))


def test_a_grid_has_a_point_an_offset_and_a_value_for_each_token():
    program = compiled_of(PROBLEMS["logistic"]).program
    mean, *others = program.functions
    with pytest.raises(ProgramError, match="a point, an offset and a value for each token"):
        check_program(replace(program, functions=(replace(mean, points=(0.0,)), *others)))
    with pytest.raises(ProgramError, match="a positive reach"):
        check_program(replace(program, functions=(replace(mean, reach=0.0), *others)))
