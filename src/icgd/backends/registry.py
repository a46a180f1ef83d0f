"""All backends by name."""

from __future__ import annotations

from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.run import AbstractBackend
from icgd.problems.settings import by_name, named

BACKENDS: dict[str, AbstractBackend] = by_name(FusedBackend(), DenseBackend())


def backend_named(name: str) -> AbstractBackend:
    """The backend called `name`."""
    return named("backend", name, BACKENDS)
