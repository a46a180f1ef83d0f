"""Rules on the shape of the source tree; the order of the stages is held by import-linter."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "icgd"


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


def test_every_path_that_the_documents_name_exists():
    folders = "|".join(sorted({path.parent.name for path in SOURCE.glob("*/*.py")}))
    for document in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        named = re.findall(rf"`((?:{folders})/[\w/]*\w+\.py)`", text)
        assert named
        missing = [path for path in named if not (SOURCE / path).exists()]
        assert missing == [], document
        for line in text.splitlines():
            top = re.findall(r"`(\w+\.py)`", line)
            paths = re.findall(r"`([\w/]+\.py)`", line) if line.startswith("|") else top
            assert len(paths) == len(set(paths)), f"{document} names a file twice: {line}"


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
