"""icgd compiles a training run into the weights of a transformer and proves how close it comes.

`__init__.pyi` lists the public names. Each is imported on first use, so `import icgd` is fast and
`icgd --help` does not need torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STAGES = ("training", "exports")
"""Public modules, for names such as `icgd.exports.to_onnx`."""

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
    """Import and return the public name or module `name`."""
    if name in _STAGES:
        return import_module(f"icgd.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'icgd' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, *_STAGES, "__version__"]
