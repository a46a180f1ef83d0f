from dataclasses import replace

import pytest

from icgd.errors import ProgramError
from icgd.program.check import check_program, from_data
from icgd.program.linear_instructions import (
    DecaySlot,
    DescendExamples,
    PredictMean,
    ShrinkSlot,
)
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from tests.linear_cases import PROBLEMS, compiled_of

STEP = DescendExamples(
    "mean", "y", ("x", "one"), ("w", "b"), "tokens_per_example", gate=8.0, scale=-0.5
)


def test_instructions_read_as_formulas_and_know_their_slots():
    assert STEP.formula() == "w, b += -0.5 / n * sum_i (mean_i - y_i) (x_i, 1)"
    assert set(STEP.reads()) == {"mean", "y", "x", "one", "tokens_per_example", "is_query"}
    assert STEP.writes() == ("w", "b")
    summed = replace(STEP, tokens="n_tokens", weights=("w",), inputs=("x",))
    assert summed.formula() == "w += -0.5 * sum_i (mean_i - y_i) (x_i)"
    assert (STEP.share(4), summed.share(4)) == (0.25, 1.0)
    assert DecaySlot("w", -0.25).formula() == "w += -0.25 * w"
    predict = PredictMean("probit", ("w", "b"), ("x", "one"), 3.0, "is_query", "mean")
    assert predict.formula() == "mean = probit(<w, x> + b)"
    assert (predict.writes(), predict.functions()) == (("mean",), ("probit",))
    assert ShrinkSlot("w", 0.5, 2.0).formula() == "shrink w by 0.5, clip to [-2, 2]"


def test_a_program_of_them_is_data():
    program = compiled_of(PROBLEMS["poisson"]).program
    assert from_data(program.to_data()) == program
    assert program.n_examples is None
    assert program.score_reach == 5 * (1 + 2.0**-10)
    assert program.n_registers == 0


def broken(program: StackProgram, **change: object) -> StackProgram:
    means, step, penalty = program.block
    descent = replace(step.instructions[0], **change)
    return replace(program, block=(means, Layer(step.title, (descent,)), penalty))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            {"tokens": "one"},
            "reads the share of an example in 'one', expected tokens_per_example or n_tokens",
        ),
        ({"inputs": ("x",)}, "has 2 weights for 1 inputs"),
        (
            {"inputs": ("one", "x")},
            r"products of \(1\) and \(1\) are added to \(1, 3\), .* w \(1, 3\)",
        ),
        ({"label": "x"}, r"\(1\) meets \(3\), .* x \(3\)"),
        ({"scale": float("nan")}, "scale of DescendExamples in layer .* is nan"),
        ({"gate": float("inf")}, "gate of DescendExamples in layer .* is inf"),
    ],
)
def test_a_broken_step_is_named(change, rule):
    with pytest.raises(ProgramError, match=rule):
        check_program(broken(compiled_of(PROBLEMS["logistic"]).program, **change))
