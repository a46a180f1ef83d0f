"""icgd compiles a training run into the weights of a transformer and proves how close it comes.

What a user may call stands in `__init__.pyi`. Each name is imported from its home when it is first
used, so that `import icgd` takes no time and `icgd --help` needs no torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STAGES = ("training", "exports")
"""Modules that a user calls by name, such as `icgd.exports.to_onnx`."""

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOME_OF = {
    alias.name: node.module
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom) and node.module and node.module != "icgd"
    for alias in node.names
}
"""The module that defines each public name."""

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Return what is called `name`, imported now."""
    if name in _STAGES:
        return import_module(f"icgd.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'icgd' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, *_STAGES, "__version__"]
