"""No instruction and no kind of function lacks the rule of a stage."""

import ast
from inspect import isabstract
from pathlib import Path

import pytest
import torch

import icgd
from icgd.backends import chain_fused
from icgd.backends import rules as running
from icgd.certificates import chain_bound
from icgd.certificates import rules as proving
from icgd.certificates.enclosures import fit_error
from icgd.certificates.intervals import Interval
from icgd.program import chain_instructions, chain_shapes, render, shape_rules
from icgd.program.chain_instructions import LookUpProduct
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum
from icgd.program.grid_instructions import DecaySlot, DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import Instruction, LayerKind
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.momentum_instructions import MoveByVelocity, ShrinkMoved
from icgd.program.ridge import RidgeSum, RidgeUnit
from icgd.weights import chain_lowering, grid_heads
from icgd.weights import rules as writing

SOURCE = Path(icgd.__file__).parent


def final_subclasses(kind: type) -> set[type]:
    """All subclasses in the library of which there can be objects."""
    below = kind.__subclasses__()
    found = {sub for sub in below if not isabstract(sub) and sub.__module__.startswith("icgd.")}
    return found.union(*(final_subclasses(sub) for sub in below))


VERBS = final_subclasses(Instruction)
OF_CHAINS = {verb for verb in VERBS if verb.__module__ == chain_instructions.__name__}
OF_STACKS = VERBS - OF_CHAINS


def of_kind(verbs: set[type], *kinds: LayerKind) -> set[type]:
    return {verb for verb in verbs if verb.kind in kinds}


BY_GRID = of_kind(OF_STACKS, LayerKind.GRID)
BOUNDED_ELSEWHERE = {
    DescendFunction: "functional_bound.py bounds a whole run in function space",
    DescendExamples: "linear_bound.py bounds a whole run of a linear model",
    DecaySlot: "linear_bound.py, likewise",
    ShrinkSlot: "linear_bound.py, likewise",
    PredictMean: "linear_bound.py, likewise",
    MoveByVelocity: "linear_bound.py, likewise",
    ShrinkMoved: "linear_bound.py, likewise",
}
RUN_ELSEWHERE = {DescendFunction: "functional.py runs all steps in function space"}
LOOKED_UP_ELSEWHERE = {LookUpProduct: "the fused generator looks up what it multiplied before"}

STAGES = {
    "shape in a stack": (shape_rules.shape_problem, OF_STACKS),
    "size in a stack": (writing.instruction_size, OF_STACKS - BY_GRID),
    "heads or units in a stack": (writing.fill, OF_STACKS - BY_GRID),
    "heads and size of a grid": (grid_heads.grid_head, BY_GRID),
    "operation in a stack": (running.operation, OF_STACKS - RUN_ELSEWHERE.keys()),
    "bound in a stack": (proving.rule, OF_STACKS - BOUNDED_ELSEWHERE.keys()),
    "shape in a chain": (chain_shapes.chain_shape_problem, OF_CHAINS),
    "units in a chain": (chain_lowering.relus_of, of_kind(OF_CHAINS, LayerKind.MLP)),
    "heads in a chain": (chain_lowering.heads_of, of_kind(OF_CHAINS, LayerKind.SOFTMAX)),
    "operation in a chain": (chain_fused.result, OF_CHAINS - LOOKED_UP_ELSEWHERE.keys()),
    "bound in a chain": (chain_bound.rule, OF_CHAINS),
}


@pytest.mark.parametrize(("rule", "verbs"), STAGES.values(), ids=STAGES)
def test_every_instruction_has_its_rule_in_every_stage_and_no_other(rule, verbs):
    missing = rule.dispatch(object)
    with_rule = {verb for verb in VERBS if rule.dispatch(verb) is not missing}
    assert with_rule == verbs


def test_all_instructions_can_be_saved_and_loaded_and_read():
    assert set(render.INSTRUCTIONS.values()) == VERBS
    assert len(VERBS) >= 36
    for name, verb in render.INSTRUCTIONS.items():
        assert name == verb.__name__
        assert "formula" in vars(verb)


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
def test_every_kind_of_function_has_its_rule_in_every_stage(function):
    assert render.read(Function, render.data_of(function)) == function
    (line,) = render.function_lines([function])
    assert function.fineness in line
    inside = torch.tensor(-0.5, dtype=torch.float64)
    assert float(fit_error(function, Interval.point(inside))) == 0.5
    exact = function.without_error()
    assert exact.is_exact
    assert float(fit_error(exact, Interval.point(inside))) == 0.0


STAGE_FILES = {
    "backends": (running, {"operation"}),
    "weights": (writing, {"fill", "instruction_size"}),
    "certificates": (proving, {"rule", "propagate"}),
}


@pytest.mark.parametrize("stage", STAGE_FILES)
def test_files_that_register_rules_stand_in_the_stage_s_list(stage):
    """And nobody else imports the dispatchers but through that list."""
    listed, names = STAGE_FILES[stage]
    registering = {Path(module.__file__).stem for module in listed.RULE_FILES}
    for path in (SOURCE / stage).glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in modules_of(listed)
            for alias in node.names
        }
        is_rule_file = path.stem in registering
        assert not imported & names or is_rule_file, path.name
    registered = {path.stem for path in (SOURCE / stage).glob("*.py") if registers(path, names)}
    assert registered - {"chain_bound"} <= registering


def modules_of(listed) -> set[str]:
    return {module.__name__ for module in listed.RULE_FILES}


def registers(path: Path, names: set[str]) -> bool:
    text = path.read_text(encoding="utf-8")
    return any(f"@{name}.register" in text for name in names)


def test_every_registered_function_has_a_name():
    nameless = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "_"
    ]
    assert nameless == []
