"""Every kind of target that a program trains has its bounds."""

import pytest
import torch

import icgd
from icgd.certificates.chain import ChainBounds
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import FunctionBounds
from icgd.certificates.linear import LinearBounds
from icgd.certificates.network import StackBounds
from icgd.certificates.registry import BOUNDS, bounds_of
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.problems.mlp import MLP
from icgd.problems.problem import ORACLES
from icgd.program.chain import ChainProgram
from icgd.program.stack import StackProgram
from tests import cases, linear_cases
from tests.backends import chain_cases
from tests.cases import KERNEL_CASES, build
from tests.contracts.functional import N_STEPS

CHAIN = chain_cases.problem_of(MLP((2, 3, 1), "tanh"))
DOUBLE = Arithmetic.of(torch.float64, 64, "dense")


def test_every_target_has_bounds_and_every_shape_of_program():
    assert {oracle for oracle, _ in BOUNDS} == {oracle for oracle, _ in ORACLES.values()}
    assert {shape for _, shape in BOUNDS} == {StackProgram, ChainProgram}


@pytest.mark.parametrize("kind", ["network", "chain", "function", "linear"])
def test_each_is_picked_by_its_problem_and_program(kind):
    linear = linear_cases.PROBLEMS["logistic"]
    chain = CHAIN
    kernel, network = KERNEL_CASES[0].problem, cases.FEW[0]
    parts = {
        "network": (network.problem, build(CONSTRUCTIONS["relu-stack"], network), StackBounds),
        "chain": (chain, chain_cases.program_of(chain), ChainBounds),
        "function": (kernel, icgd.compile(kernel, n_steps=N_STEPS).program, FunctionBounds),
        "linear": (linear, linear_cases.compiled_of(linear).program, LinearBounds),
    }
    problem, program, expected = parts[kind]
    picked = bounds_of(problem, program, DOUBLE)
    assert type(picked) is expected
    assert (picked.problem, picked.program, picked.how) == (problem, program, DOUBLE)
    assert 0 < picked.domain().step < float("inf")
