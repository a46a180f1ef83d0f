"""Deprecated alias of `icgd_papers.training`, to be removed in the next release."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from warnings import warn

_MOVED = {"LearnableRun", "UntiedRun", "unrolled_descent"}


def __getattr__(name: str) -> Any:
    """Return `name` from its new module, with a warning that tells where it is."""
    if name.startswith("__"):
        raise AttributeError(f"module 'icgd.training' has no attribute {name!r}")
    home = "icgd" if name in _MOVED else "icgd_papers.training"
    value = getattr(import_module(home), name)
    text = (
        f"icgd.training.{name} has moved to {home}.{name}; the old name will be removed in the "
        "next release."
    )
    warn(text, DeprecationWarning, stacklevel=2)
    return value
