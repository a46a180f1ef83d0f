"""Names of your own functions in a config file, such as "my_data.py:draw"."""

from __future__ import annotations

import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from icgd.errors import OwnCodeError, did_you_mean, quoted


def imported(module: str) -> ModuleType:
    """Import a module by name, or a Python file by path; a file is run once."""
    try:
        return _imported_file(Path(module)) if module.endswith(".py") else import_module(module)
    except Exception as problem:  # whatever the user's code raises
        raise OwnCodeError(
            f"{module} cannot be imported ({type(problem).__name__}: {problem})."
        ) from problem


def function_named(reference: str) -> Any:
    """Return the function that "my_data.py:draw" or "package.module:draw" names."""
    module, separator, name = reference.rpartition(":")
    if not separator or not name.isidentifier():
        raise OwnCodeError(
            f"{quoted(reference)} does not name a function; expected a file or a module, a colon "
            "and a name, such as my_data.py:draw."
        )
    names = vars(imported(module))
    if not callable(names.get(name)):
        functions = [key for key, value in names.items() if callable(value)]
        raise OwnCodeError(
            f"{module} has no function called {quoted(name)}.{did_you_mean(name, functions)}"
        )
    return names[name]


def _imported_file(path: Path) -> ModuleType:
    name = str(path.resolve())
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        sys.modules[name] = util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
