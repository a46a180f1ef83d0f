"""The old home of `icgd_papers.training`, kept for one release."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from warnings import warn

_MOVED = {"LearnableRun", "UntiedRun", "unrolled_descent"}


def __getattr__(name: str) -> Any:
    """Return what is called `name` in its new home, with a warning that names it."""
    if name.startswith("__"):
        raise AttributeError(f"module 'icgd.training' has no attribute {name!r}")
    home = "icgd" if name in _MOVED else "icgd_papers.training"
    found = getattr(import_module(home), name)
    text = (
        f"icgd.training.{name} has moved to {home}.{name}; the old name goes with the next release."
    )
    warn(text, DeprecationWarning, stacklevel=2)
    return found
