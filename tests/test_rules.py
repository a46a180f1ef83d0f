"""Every instruction and every kind of function is whole: it can be read, saved and bounded."""

from inspect import isabstract

import pytest
import torch

from icgd.certificates.enclosures import Interval, fit_error
from icgd.program import render
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum, RidgeSum, RidgeUnit
from icgd.program.instructions import Instruction


def final_subclasses(kind: type) -> set[type]:
    below = {sub for sub in kind.__subclasses__() if sub.__module__.startswith("icgd.")}
    return {sub for sub in below if not sub.__subclasses__()}.union(*map(final_subclasses, below))


def test_every_instruction_says_what_it_means_and_which_wires_compute_it():
    instructions = final_subclasses(Instruction)
    assert set(render.INSTRUCTIONS.values()) == instructions
    lacking = {i.__name__: set(i.__abstractmethods__) for i in instructions if isabstract(i)}
    assert lacking == {}
    for name, instruction in render.INSTRUCTIONS.items():
        assert name == instruction.__name__
        assert {"formula", "meaning", "wires"} <= {n for k in instruction.__mro__ for n in vars(k)}


FUNCTIONS = {
    ReluSum: ReluSum("f", -1.0, 1.0, 1.0, (0.0,), (0.0, 1.0), 0.0, 0.0, (0.5, 0.25)),
    LatticeFunction: LatticeFunction("f", 1.0, 0.5, 1.4, (0.0, 0.5, 1.0), 0.5, 1.0, 1.0),
    GridMean: GridMean("f", 1.0, (0.0, 1.0), (0.0, 0.0), (0.0, 1.0), 0.5, 1.0, 1.0, 1.0),
    RidgeSum: RidgeSum("f", "relu", (1.0,), (RidgeUnit((1.0,), 0.0, 1.0),), 0.5),
}


def test_the_table_of_functions_here_has_all_kinds():
    assert set(FUNCTIONS) == final_subclasses(Function) == set(render.FUNCTIONS.values())


@pytest.mark.parametrize(
    "function", FUNCTIONS.values(), ids=lambda function: type(function).__name__
)
def test_every_kind_of_function_can_be_saved_read_and_bounded(function):
    assert render.read(Function, render.data_of(function)) == function
    (line,) = render.function_lines([function])
    assert function.fineness in line
    inside = torch.tensor(-0.5, dtype=torch.float64)
    assert float(fit_error(function, Interval.point(inside))) == 0.5
    exact = function.without_error()
    assert exact.is_exact
    assert float(fit_error(exact, Interval.point(inside))) == 0.0
