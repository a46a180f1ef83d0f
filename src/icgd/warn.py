"""Warnings that name the line of the user's program."""

from __future__ import annotations

import sys
import warnings

INNER = ("icgd", "contextlib")
"""The package, and what its context managers put around a function."""


def warn(warning: Warning) -> None:
    """Issue a warning at the line outside icgd that led here.

    In Python 3.12 this is `skip_file_prefixes` of `warnings.warn`.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)
