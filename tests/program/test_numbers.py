"""Every number of a program is found, however deep it stands, and must be finite."""

from dataclasses import fields, is_dataclass, replace
from math import inf, nan

import numpy as np
import pytest
import torch

from icgd.constructions.registry import construction_named
from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.program.check import check_program
from icgd.program.instructions import Combination, MapSlots, Summand
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import Layout, Role, Slot
from icgd.program.numbers import beyond, constants, floats_of, numbers_of, require_finite
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from tests import cases
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import build
from tests.linear_cases import PROBLEMS, compiled_of

TERM = KernelTerm("rbf", ((1.0, 0.0), (0.0, 1.0)), 0.5, 2.0)
DESCENT = DescendFunction((TERM,), 0.1, 0.0, None)
LAYOUT = Layout(
    (
        Slot("x", (2,), Role.INPUT),
        Slot("y", (1,), Role.RESIDUAL),
        Slot("is_example", (1,), Role.CONSTANT),
    )
)


def descending(instruction: DescendFunction) -> StackProgram:
    return StackProgram("by hand", LAYOUT, (), (Layer("descend", (instruction,)),), 3, ())


BROKEN = {
    "the weight of a kernel": (
        replace(DESCENT, terms=(replace(TERM, weight=inf),)),
        "DescendFunction.terms[0].weight is inf",
    ),
    "the shape of a kernel": (
        replace(DESCENT, terms=(TERM, replace(TERM, shape=nan))),
        "DescendFunction.terms[1].shape is nan",
    ),
    "an entry of a kernel's matrix": (
        replace(DESCENT, terms=(replace(TERM, transform=((1.0, 0.0), (-inf, 1.0))),)),
        "DescendFunction.terms[0].transform[1][0] is -inf",
    ),
    "an entry of the matrix that moves inputs": (
        replace(DESCENT, transform=((1.0, nan), (0.0, 1.0))),
        "DescendFunction.transform[0][1] is nan",
    ),
}


@pytest.mark.parametrize(("instruction", "message"), BROKEN.values(), ids=BROKEN)
def test_a_number_deep_in_an_instruction_is_named_with_its_path(instruction, message):
    check_program(descending(DESCENT))
    with pytest.raises(ProgramError) as caught:
        check_program(descending(instruction))
    where = "block layer 1 (descend)"
    assert str(caught.value) == f"{where}: {message}, expected a finite number"


FOREIGN = {
    "a number of numpy's": ("step_size", np.float32(inf), "float32"),
    "a finite number of numpy's, which no file can hold": ("step_size", np.float32(1.0), "float32"),
    "a tensor": ("noise", torch.tensor(nan), "Tensor"),
    "a list": ("transform", [[inf, 0.0], [0.0, 1.0]], "list"),
}


@pytest.mark.parametrize(("field", "value", "kind"), FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_python_number_is_refused(field, value, kind):
    instruction = replace(DESCENT)
    object.__setattr__(instruction, field, value)
    with pytest.raises(ProgramError) as caught:
        require_finite(descending(instruction))
    assert str(caught.value) == (
        f"block layer 1 (descend): DescendFunction.{field} is of type {kind}, expected a float, "
        "or floats in a tuple"
    )


@pytest.mark.parametrize("number", [inf, nan])
def test_coefficients_of_what_is_read_are_checked(number):
    summand = Summand(Combination(("x", "y"), (1.0, number)), "relu")
    program = descending(DESCENT)
    copy = MapSlots((summand,), "one", (), 0.0, "y")
    with pytest.raises(ProgramError) as caught:
        require_finite(replace(program, prediction=(Layer("copy", (copy,)),)))
    assert str(caught.value) == (
        "prediction layer 1 (copy): MapSlots.summands[0].argument.coefficients[1] "
        f"is {number}, expected a finite number"
    )


def program_with(name: str):
    """A small program of a construction, whatever it trains."""
    if name == "cot-network":
        return program_of(problem_of(MLP((2, 3, 1), "softplus")))
    if name == "cot-glm":
        return compiled_of(PROBLEMS["poisson"]).program
    construction = construction_named(name)
    served = (case for case in cases.SMALL if construction.why_not(case.problem) is None)
    return build(construction, next(served))


def count_of_floats(part: object) -> int:
    """Counted by another road than the library takes."""
    if is_dataclass(part):
        return sum(count_of_floats(getattr(part, field.name)) for field in fields(part))
    if isinstance(part, tuple):
        return sum(map(count_of_floats, part))
    return int(isinstance(part, float))


NAMES = ["relu-stack", "softmax-stack", "recursion", "universal", "cot-network", "cot-glm"]


@pytest.mark.parametrize("name", NAMES)
def test_no_number_of_any_construction_is_missed(name):
    program = program_with(name)
    assert len(list(constants(program))) == count_of_floats(program) > 10
    check_program(program)


def test_constants_are_named_by_field_and_layer_or_function():
    program = program_with("cot-network")
    names = {name for name, _ in constants(program)}
    title = program.layers[0].title
    assert f"CopyWhere.gate of layer 1 ({title})" in names
    assert "LatticeFunction.values of function 'identity'" in names
    assert {found.where for found in numbers_of(program)} >= {"function 'identity'"}


@pytest.mark.parametrize("name", NAMES)
def test_numbers_without_their_names_are_the_same_numbers(name):
    program = program_with(name)
    assert sorted(floats_of(program)) == sorted(value for _, value in constants(program))


def test_the_first_number_beyond_a_limit_is_named():
    program = program_with("relu-stack")
    largest = max(map(abs, floats_of(program)))
    assert beyond(program, largest) is None
    name, value = beyond(program, largest / 2)
    assert (name, value) in set(constants(program))
    assert abs(value) > largest / 2
