"""No instruction and no kind of function lacks the rule of a stage."""

import ast
from functools import _SingleDispatchCallable
from inspect import isabstract
from pathlib import Path
from typing import get_args

import pytest

import icgd
from icgd.approximation import grid_mean, lattice, relu_sum, ridge_sum
from icgd.backends import chain_fused, rules as running
from icgd.certificates import chain_bound, rules as proving
from icgd.certificates.enclosures import fit_error
from icgd.program import chain_check, chain_instructions, check, render, shape_rules
from icgd.program.functions import Function
from icgd.program.instructions import Instruction, LayerKind
from icgd.program.kernel_instructions import DescendFunction
from icgd.weights import chain_lowering, grid_heads, rules as writing

SOURCE = Path(icgd.__file__).parent


def final_subclasses(kind: type) -> set[type]:
    """All subclasses in the library from which nothing is derived."""
    below = kind.__subclasses__()
    found = {kind for kind in below if not isabstract(kind) and kind.__module__.startswith("icgd.")}
    return found.union(*(final_subclasses(sub) for sub in below))


VERBS = sorted(final_subclasses(Instruction), key=lambda verb: verb.__name__)
OF_CHAINS = {verb for verb in VERBS if verb.__module__ == chain_instructions.__name__}
OF_STACKS = set(VERBS) - OF_CHAINS
BY_GRID = {verb for verb in OF_STACKS if verb.kind is LayerKind.GRID}

STAGES = {
    "shape in a stack": (shape_rules.shape_problem, OF_STACKS),
    "size in a stack": (writing.instruction_size, OF_STACKS - BY_GRID),
    "heads in a stack": (writing.fill, OF_STACKS - BY_GRID),
    "heads by a grid": (grid_heads.grid_heads, BY_GRID),
    "kernel in a stack": (running.kernel, OF_STACKS - {DescendFunction}),
    "shape in a chain": (chain_check._shape_problem, OF_CHAINS),
    "units in a chain": (
        chain_lowering.relus_of,
        {verb for verb in OF_CHAINS if verb.kind is LayerKind.MLP},
    ),
    "heads in a chain": (
        chain_lowering.heads_of,
        {verb for verb in OF_CHAINS if verb.kind is LayerKind.SOFTMAX},
    ),
    "kernel in a chain": (chain_fused.result, OF_CHAINS),
    "bound in a chain": (chain_bound.rule, OF_CHAINS),
}
