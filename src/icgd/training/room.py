"""Whether something fits in the memory that may be used now."""

from __future__ import annotations

from icgd.backends.memory import usable_memory
from icgd.errors import ModelSizeError


def require_memory(what: str, n_bytes: int, remedy: str) -> None:
    """Raise `ModelSizeError` if `what` takes more than may be used; `remedy` says what to do."""
    room = usable_memory()
    if n_bytes > room.n_bytes:
        raise ModelSizeError.too_large(what, n_bytes, room.n_bytes, room.limit, remedy)
