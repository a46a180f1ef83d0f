"""All backends by name."""

from __future__ import annotations

from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.run import AbstractBackend
from icgd.errors import UnknownNameError

BACKENDS: dict[str, AbstractBackend] = {
    backend.name: backend for backend in (FusedBackend(), DenseBackend())
}


def backend_named(name: str) -> AbstractBackend:
    """The backend called `name`."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise UnknownNameError.of("backend", name, known=list(BACKENDS))
    return BACKENDS[name]
