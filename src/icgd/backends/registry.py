"""All backends by name, and the choice of "auto"."""

from __future__ import annotations

from typing import NamedTuple

from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.literal import (
    MOST_FLOPS,
    LiteralBackend,
    in_words,
    literal_bytes,
    literal_flops,
)
from icgd.backends.run import AbstractBackend
from icgd.environment import SURELY_FREE, usable_memory
from icgd.problems.data import Task
from icgd.problems.settings import by_name, named
from icgd.program.program import AbstractProgram

BACKENDS: dict[str, AbstractBackend] = by_name(FusedBackend(), LiteralBackend(), DenseBackend())
"""The backends that runs and bounds look up by name."""

AUTO = "auto"
"""The literal backend if its run is short, otherwise the fused one."""


class Chosen(NamedTuple):
    """A backend by name, and the reason if "auto" chose the fused one."""

    name: str
    fused_because: str | None = None


def chosen_backend(backend: str, program: AbstractProgram, task: Task) -> Chosen:
    """Return the backend to run on, resolving "auto".

    The choice depends on counts of operations, not on measured time, so that it is reproducible.
    Free memory matters only if a literal run would not fit.
    """
    if backend != AUTO:
        named("backend", backend, {**BACKENDS, AUTO: None})
        return Chosen(backend)
    flops, n_bytes = literal_flops(program, task), literal_bytes(program, task)
    if flops > MOST_FLOPS:
        return Chosen("fused", f"a literal run takes {in_words(flops)}; backend='literal' waits")
    if n_bytes > SURELY_FREE and n_bytes > usable_memory().n_bytes:
        return Chosen("fused", f"a literal run takes {n_bytes / 2**30:,.1f} GiB")
    return Chosen("literal")
