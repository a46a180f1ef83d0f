"""The backends by name."""

from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.literal import LiteralBackend
from icgd.backends.run import Backend

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (FusedBackend(), LiteralBackend(), DenseBackend())
}
