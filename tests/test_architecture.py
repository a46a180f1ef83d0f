"""Rules on the shape of the source tree; the order of the stages is held by import-linter."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from icgd.backends.backend import AbstractBackend
from icgd.backends.executor import AbstractExecutor
from icgd.backends.registry import BACKENDS
from icgd.certificates.abstract_bounds import AbstractBounds
from icgd.certificates.registry import BOUNDS
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.problems.optimisers.gradient_step import AbstractGradientStep
from icgd.problems.oracles.oracle import AbstractOracle
from icgd.problems.problem import ORACLES
from icgd.program.program import AbstractProgram
from icgd.program.registry import PROGRAMS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "icgd"

# Modules without a test file of their own, each with the reason.
NOT_MIRRORED = {
    "backends/rules.py": "a list; tests/test_rules.py asks it for every rule",
    "certificates/rules.py": "a list; tests/test_rules.py asks it for every rule",
    "cli/exit_codes.py": "two constants, whose values the tests of subcommands hold",
    "cli/app.py": "joins the subcommands, each of which is tested in its own file",
    "constructions/base.py": "abstract; the test matrix runs it through every construction",
    "constructions/registry.py": "a list; the test matrix is made from it",
    "weights/rules.py": "a list; tests/test_rules.py asks it for every rule",
}


KINDS = {
    "AbstractProgram", "StackProgram", "ChainProgram",
    "MLP", "KernelMachine", "LinearModel",
    "NetworkOracle", "FunctionOracle", "LinearOracle",
    "GradientStep", "FunctionalStep", "ProximalStep",
    "StackBounds", "ChainBounds", "FunctionBounds", "LinearBounds",
}  # fmt: skip

# Where the library still asks which kind of problem or program it has, with the reason.
KIND_QUESTIONS = {
    "backends/causal.py:run_causal": "only a stack has a prompt that a causal mask can run along",
    "backends/fused.py:_stack": "the one place where the fused backend asks what a stack trains",
    "backends/prompt.py:read_learnt": "what was learnt of a function is at the tokens",
    "backends/prompt.py:read_predictions": "slot y holds the negative of a function",
    "certificates/linear_bound.py:_descent": "a step on a linear model, or an error",
    "cli/fitting.py:_sized": "--step-from makes sense for linear models only",
    "compiled.py:for_depth": "only a chain's block trains networks of every depth",
    "compiled.py:stack": "what only a stack has is refused for a chain, by name",
    "constructions/base.py:trains": "a construction says which kind of target it trains",
    "constructions/base.py:why_not": "batches and biases are of networks",
    "pipeline.py:guarantee": "the theorems promise something of linear models only",
    "reproductions/comparison.py:_in_one_batch": "only gradient steps take batches",
    "reproductions/cost_steps.py:chain_of": "the figure is about chains",
    "weights/summary.py:_direct_flops": "what direct training multiplies; two questions",
}


def dotted_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {dotted_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in PATHS.items()}


def place(name: str, line: int) -> str:
    return f"{PATHS[name].relative_to(ROOT)}:{line}"


def imports_in(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_names(module: str) -> Iterator[str]:
    """Dotted names that `module` imports, `from a import b` both as `a` and as `a.b`."""
    for node in imports_in(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            origin = origin_of(node, module)
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def origin_of(node: ast.ImportFrom, module: str) -> str:
    """The module after `from`, with the dots of a relative import resolved."""
    if not node.level:
        return node.module or ""
    is_package = PATHS[module].name == "__init__.py"
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def reachable_from(package: str) -> dict[str, str]:
    """Modules of icgd that `package` imports, however indirectly, each with what led to it.

    The root `icgd` is not followed: it is loaded before any of its modules, and imports them all.
    """
    reached = {name: package for name in PATHS if f"{name}.".startswith(f"{package}.")}
    frontier = list(reached)
    while frontier:
        module = frontier.pop()
        found = set(imported_names(module)) & PATHS.keys() - reached.keys() - {"icgd"}
        reached |= dict.fromkeys(found, module)
        frontier += found
    return reached


def test_no_import_stands_inside_a_function():
    functions = [
        (name, node)
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert functions, f"no function found under {SOURCE}"
    offenders = [place(name, node.lineno) for name, f in functions for node in imports_in(f)]
    assert not offenders, f"import inside a function: {', '.join(offenders)}"


def test_every_module_of_a_folder_has_a_test_file_of_its_name():
    modules = [path for path in SOURCE.glob("*/*.py") if path.name != "__init__.py"]
    assert modules, f"no module found under {SOURCE}"
    wanted = {
        path: ROOT / "tests" / path.parent.name / f"test_{path.name}"
        for path in modules
        if path.relative_to(SOURCE).as_posix() not in NOT_MIRRORED
    }
    missing = [str(test.relative_to(ROOT)) for test in wanted.values() if not test.exists()]
    assert not missing, f"test file missing: {', '.join(sorted(missing))}"


def test_program_needs_neither_torch_nor_numpy():
    reached = reachable_from("icgd.program")
    assert "icgd.program" in reached, f"no folder program under {SOURCE}"
    offenders = [
        f"{module} (reached from {reached[module]}) imports {name}"
        for module in sorted(reached)
        for name in imported_names(module)
        if name.split(".")[0] in {"torch", "numpy"}
    ]
    assert not offenders, "; ".join(offenders)


def test_importing_icgd_leaves_heavy_packages_alone():
    heavy = (
        "matplotlib",
        "typer",
        "rich",
        "sklearn",
        "onnx",
        "onnxruntime",
        "transformer_lens",
        "ray",
    )
    script = f"import sys, icgd; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], f"`import icgd` also imports {done.stdout}"


def test_no_module_is_a_drawer_for_leftovers():
    assert PATHS, f"no module found under {SOURCE}"
    offenders = [
        str(path.relative_to(ROOT))
        for path in SOURCE.rglob("*")
        if path.stem in {"utils", "helpers", "common"}
    ]
    assert not offenders, f"name what it holds: {', '.join(offenders)}"


# Caches without a bound, each with the reason why it cannot grow.
ENDLESS = {
    "certificates/domain_bound.py": "it ends with the function that made it",
    "cli/options.py": "one entry for each command",
    "cli/problem_options.py": "one entry",
}


def test_caches_are_bounded():
    endless = re.compile(r"(?<!lru_)\bcache\b|maxsize=None")
    imported = re.compile(r"^from functools import .*$", re.MULTILINE)
    used = {
        name
        for name, path in PATHS.items()
        if endless.search(" ".join(imported.findall(path.read_text("utf-8"))))
        or "maxsize=None" in path.read_text("utf-8")
    }
    assert {str(PATHS[name].relative_to(SOURCE)) for name in used} == ENDLESS.keys()


def functions_of(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def names_in(parts: Iterable[ast.AST]) -> set[str]:
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def asks_for_a_kind(node: ast.AST) -> bool:
    """A question by a class, by the type of an object, or by a property that only one kind has.

    These are `isinstance(x, Kind)`, `issubclass`, `type(x) is y`, `x is Kind`, `case Kind():`,
    `hasattr(target, ...)`, `trains_function`, and `descent is None`.
    """
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"isinstance", "issubclass"}:
        return bool(names_in(node.args[1:]) & KINDS)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"hasattr", "getattr"}:
        return bool(names_in(node.args[:1]) & {"target", "update", "oracle", "program"})
    if isinstance(node, ast.Compare):
        return bool(names_in(node.comparators) & KINDS) or asks_by_comparison(node)
    if isinstance(node, ast.MatchClass):
        return bool(names_in([node.cls]) & KINDS)
    return isinstance(node, ast.Attribute) and node.attr == "trains_function"


def asks_by_comparison(node: ast.Compare) -> bool:
    """`type(x) is ...`, but not a look-up of a type in a table, and `descent is None`."""
    is_type = isinstance(node.left, ast.Call) and getattr(node.left.func, "id", "") == "type"
    if is_type and isinstance(node.ops[0], ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        return bool(names_in(node.left.args) & {"self", "problem", "program"})
    left = node.left.value if isinstance(node.left, ast.NamedExpr) else node.left
    return isinstance(left, ast.Attribute) and left.attr == "descent"


def test_kind_questions_are_few_and_each_has_its_reason():
    found = [
        f"{PATHS[name].relative_to(SOURCE).as_posix()}:{function.name}"
        for name, tree in TREES.items()
        for function in functions_of(tree)
        for node in ast.walk(function)
        if asks_for_a_kind(node)
    ]
    assert set(found) == KIND_QUESTIONS.keys()
    assert len(found) <= 15


def body_length(function: ast.FunctionDef) -> int:
    """Lines of the body without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def code_length(path: Path, tree: ast.Module) -> int:
    """Lines of a file without docstrings, whose examples and sections are for users."""
    holders = [
        n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    docstrings = [node.body[0] for node in holders if ast.get_docstring(node)]
    lines = path.read_text(encoding="utf-8").splitlines()
    return len(lines) - sum(part.end_lineno - part.lineno + 1 for part in docstrings)


def test_functions_and_files_are_short():
    lengths = sorted(body_length(f) for tree in TREES.values() for f in functions_of(tree))
    assert lengths[len(lengths) // 2] <= 4
    assert lengths[9 * len(lengths) // 10] <= 12
    n_lines = {path: code_length(path, TREES[name]) for name, path in PATHS.items()}
    assert [path.name for path, n in n_lines.items() if n > 440] == []
    assert n_lines[SOURCE / "pipeline.py"] < 125


def concrete(kind: type) -> set[type]:
    below = {sub for sub in kind.__subclasses__() if sub.__module__.startswith("icgd.")}
    final = {sub for sub in below if not sub.__name__.startswith("Abstract")}
    return final.union(*map(concrete, below))


def test_architecture_counts_the_implementations_of_every_protocol():
    protocols = {
        "AbstractOracle": AbstractOracle,
        "AbstractGradientStep": AbstractGradientStep,
        "AbstractProgram": AbstractProgram,
        "AbstractConstruction": AbstractConstruction,
        "AbstractExecutor": AbstractExecutor,
        "AbstractBackend": AbstractBackend,
        "AbstractBounds": AbstractBounds,
    }
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(Abstract\w+)` \|.*\| (\d+) \|$", text, re.MULTILINE)
    counted = {name: len(concrete(kind)) for name, kind in protocols.items()}
    assert {name: int(number) for name, number in rows} == counted
    assert len(CONSTRUCTIONS) == counted["AbstractConstruction"]
    assert len(BACKENDS) == counted["AbstractBackend"]
    assert len(PROGRAMS) == counted["AbstractProgram"]
    assert {oracle for oracle, _ in ORACLES.values()} == concrete(AbstractOracle)
    assert set(BOUNDS.values()) == concrete(AbstractBounds)


def test_every_path_that_the_documents_name_exists():
    folders = "|".join(sorted({path.parent.name for path in SOURCE.glob("*/*.py")}))
    for document in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        named = re.findall(rf"`((?:{folders})/[\w/]*\w+\.py)`", text)
        assert named
        missing = [path for path in named if not (SOURCE / path).exists()]
        assert missing == [], document


def test_every_name_that_the_architecture_gives_a_place_is_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    placed = re.findall(r"`([\w.]+)`(?: and `(\w+)`)? in `([\w/]+\.py)`", text)
    assert len(placed) > 8
    missing = [
        f"{name} in {path}"
        for first, second, path in placed
        for name in filter(None, (first, second))
        if name.split(".")[-1] not in words_of(SOURCE / path)
    ]
    assert missing == []


def words_of(path: Path) -> set[str]:
    return set(re.findall(r"\w+", path.read_text(encoding="utf-8")))


def test_no_number_is_rounded_to_the_default_precision_on_its_way_to_float64():
    """`torch.tensor(0.3).double()` is not 0.3: the precision belongs into the call."""
    rounded = re.compile(r"torch\.(tensor|full|linspace)\((?!.*dtype=).*\)\.double\(\)")
    found = {
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if rounded.search(line)
    }
    assert not found
