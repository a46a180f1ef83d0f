from dataclasses import replace

import pytest

import icgd
from icgd.errors import ProgramError
from icgd.program.check import Shapes, check_program, from_data
from icgd.program.instructions import Combination, LayerKind
from icgd.program.network_instructions import Assignment, Recombine, TakeTurns
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

MOVED = Assignment(Combination(("w", "g"), (1.0, -0.5)), "w", bound=2.0)
KEPT = Assignment(Combination(("m", "g"), (0.9, 1.0)), "m")
TURNS = TakeTurns(3, "place", "out_of_batch", "n_examples")


def test_instructions_read_as_formulas_and_know_their_slots():
    both = Recombine((MOVED, KEPT), "one")
    assert both.formula() == "w = clip(+1 w -0.5 g, 2), m = +0.9 m +1 g"
    assert replace(both, unit="scale").formula().endswith("+1 g, bounds times scale")
    assert set(both.reads()) == {"w", "g", "m", "one"}
    assert set(both.writes()) == {"w", "m"}
    assert TURNS.formula() == "place -= 3, modulo n_examples"
    assert set(TURNS.reads()) == {"place", "out_of_batch", "n_examples", "one", "is_example"}
    assert set(TURNS.writes()) == {"place", "out_of_batch"}
    assert both.kind is TURNS.kind is LayerKind.MLP


def test_a_change_has_no_term_that_does_nothing():
    assert MOVED.change("w") == {"g": -0.5}
    assert KEPT.change("m") == {"m": 0.9 - 1.0, "g": 1.0}
    assert Assignment(Combination.of("w"), "w").change("w") == {}
    assert Assignment(Combination.of("g"), "w").change("w") == {"g": 1.0, "w": -1.0}


def test_a_value_may_be_averaged_as_it_is_written():
    averaged = replace(MOVED, average="a", keeps=0.75)
    assert averaged.formula() == "w = clip(+1 w -0.5 g, 2), a = +0.75 a +0.25 w"
    assert averaged.shares == {"w": 1.0, "a": 0.25}
    assert averaged.change("w") == MOVED.change("w")
    assert averaged.change("a") == {"w": 0.25, "g": -0.125, "a": -0.25}
    both = Recombine((averaged,), "one")
    assert set(both.reads()) == {"w", "g", "a", "one"}
    assert set(both.writes()) == {"w", "a"}


def program(**options: float) -> StackProgram:
    update = icgd.MomentumStep(0.1, 2.0, batch_size=2, momentum=0.5, **options)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "relu"), "squared", update, icgd.Domain(1.0, 1.0))
    return icgd.compile(problem, "relu-stack", n_steps=2).program


def test_a_program_of_them_is_data():
    assert from_data(program().to_data()) == program()
    assert from_data(program(average=0.5).to_data()) == program(average=0.5)
    assert program().batch_size == 2


def test_an_average_is_as_wide_as_what_it_averages():
    good = program(average=0.5)
    update = good.block[-1].instructions[0]
    shapes = Shapes(good.layout, is_chain=False)
    assert shapes.problem_with(update) is None
    broken = replace(update.assignments[0], average="average_2")
    problem = shapes.problem_with(Recombine((broken,), "one"))
    assert problem is not None
    assert problem.startswith("writes (3, 2) to average_2, in weights_1 = ")
    assert "average_2 (1, 3)" in problem


def with_last(good: StackProgram, number: int, **change: object) -> StackProgram:
    """The program in which an instruction of the last layer of a step is changed."""
    *others, last = good.block
    parts = list(last.instructions)
    parts[number] = replace(parts[number], **change)
    return replace(good, block=(*others, Layer(last.title, tuple(parts))))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"value": Combination.of("weights_2")}, r"Recombine: writes \(1, 3\) to weights_1, in "),
        ({"bound": float("nan")}, "bound of Recombine in layer 'update' is nan"),
    ],
)
def test_a_broken_assignment_is_named(change, rule):
    good = program(average=0.0)
    first, *parts = good.block[-1].instructions[0].assignments
    broken = (replace(first, **change), *parts)
    with pytest.raises(ProgramError, match=rule):
        check_program(with_last(good, 0, assignments=broken))


@pytest.mark.parametrize(
    ("number", "change", "rule"),
    [
        (0, {"unit": "is_query"}, "its unit is 'is_query', expected one or"),
        (-1, {"n_examples": "x"}, r"TakeTurns: \(1\) meets \(2\), .*, x \(2\)"),
    ],
)
def test_a_broken_instruction_is_named(number, change, rule):
    with pytest.raises(ProgramError, match=rule):
        check_program(with_last(program(), number, **change))
