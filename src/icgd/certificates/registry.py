"""The one place that picks the bounds of a program."""

from __future__ import annotations

from math import prod

from icgd.certificates.abstract_bounds import INTERVALS, AbstractBounds
from icgd.certificates.chain import ChainBounds
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import FunctionBounds
from icgd.certificates.linear import LinearBounds
from icgd.certificates.network import StackBounds
from icgd.memory import require_memory
from icgd.problems.oracles.function import FunctionOracle
from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.oracles.network import NetworkOracle
from icgd.problems.problem import Problem
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram

BOUNDS: dict[tuple[type, type], type[AbstractBounds]] = {
    (NetworkOracle, StackProgram): StackBounds,
    (NetworkOracle, ChainProgram): ChainBounds,
    (FunctionOracle, StackProgram): FunctionBounds,
    (LinearOracle, StackProgram): LinearBounds,
}
"""The bounds for what is trained and for the program that trains it, by their types."""

REMEDY = "Take a narrower network, or run without bounds."


def bounds_of(problem: Problem, program: AbstractProgram, how: Arithmetic) -> AbstractBounds:
    """The bounds of a program that trains `problem`, computed as `how` says.

    Raises `SizeError` if the intervals of all weights do not fit into memory.
    """
    n_weights = sum(map(prod, program.weight_shapes))
    require_memory(f"Bounding {n_weights:,} weights", INTERVALS * 8 * n_weights, REMEDY)
    return BOUNDS[type(problem.oracle), type(program)](problem, program, how)
