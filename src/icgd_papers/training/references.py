"""Names of your own functions in a config file, such as "my_data.py:draw"."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from icgd.errors import OwnCodeError, brief, did_you_mean


def imported(module: str, folder: Path) -> ModuleType:
    """The module of this name, or of this file; a relative path starts at `folder`.

    "mine" is the file mine.py if `folder` has one, and otherwise an installed module. A file is run
    once and then known by its path.
    """
    file = file_of(module, folder)
    try:
        return import_module(module) if file is None else _of_file(folder / file)
    except Exception as problem:  # whatever the user's code raises
        raise OwnCodeError(
            f"{module} cannot be imported ({type(problem).__name__}: {problem})."
        ) from problem


def file_of(module: str, folder: Path) -> str | None:
    """The file that a module's name means in `folder`; None if it means an installed module."""
    if module.endswith(".py"):
        return module
    file = f"{module.replace('.', '/')}.py"
    with suppress(OSError, ValueError):  # no system has such a name
        return file if (folder / file).is_file() else None
    return None


def function_named(reference: str, folder: Path) -> Any:
    """The function that a reference such as "my_data.py:draw" or "package.module:draw" names."""
    module, separator, name = reference.rpartition(":")
    if not separator or not name.isidentifier():
        raise OwnCodeError(
            f"{brief(reference)} does not name a function; expected a file or a module, a colon "
            "and a name, such as my_data.py:draw."
        )
    found = imported(module, folder)
    if not callable(getattr(found, name, None)):
        known = [each for each in vars(found) if callable(vars(found)[each])]
        raise OwnCodeError(
            f"{module} has no function called {brief(name)}.{did_you_mean(name, known)}"
        )
    return getattr(found, name)


def _of_file(path: Path) -> ModuleType:
    known = str(path.resolve())
    if known not in sys.modules:
        spec = util.spec_from_file_location(known, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = util.module_from_spec(spec)
        sys.modules[known] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[known]
            raise
    return sys.modules[known]
