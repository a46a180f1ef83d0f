"""All backends by name."""

from __future__ import annotations

from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.run import AbstractBackend
from icgd.problems.settings import by_name

BACKENDS: dict[str, AbstractBackend] = by_name(FusedBackend(), DenseBackend())
"""The backends that runs and bounds look up by name."""
