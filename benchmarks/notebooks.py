"""Notebooks without jupyter: code cells are executed one after the other."""

import ast
import json
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def cells_of(name: str) -> list[dict]:
    return json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]


def executed(name: str) -> tuple[dict[str, object], list[object]]:
    """The names that a notebook leaves behind, and what its cells show."""
    names: dict[str, object] = {}
    shown = []
    for cell in cells_of(name):
        if cell["cell_type"] == "code":
            shown.append(_last_value("".join(cell["source"]), names))
    return names, shown


def _last_value(source: str, names: dict[str, object]) -> object:
    """Execute a cell; its last line, if that is an expression, is what a notebook shows."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return (
        None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    )
