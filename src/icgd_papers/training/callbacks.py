"""Callbacks: objects that receive the rows of a log while a model trains."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, final, runtime_checkable

from icgd.errors import MissingExtraError

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # the extra `train` is not installed
    SummaryWriter = None


@runtime_checkable
class Callback(Protocol):
    """Receive each row of the log once it is measured.

    A training that was killed sends the rows after its last checkpoint again when it resumes.
    """

    def on_row(self, step: int, row: Mapping[str, float]) -> None:
        """Take the numbers that were measured after `step` updates."""

    def on_end(self) -> None:
        """Close whatever is open: training has ended, been interrupted or failed."""


@final
class TensorBoard:
    """Write the rows into a TensorBoard event file in `folder`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if SummaryWriter is None:
            raise MissingExtraError(
                "Logging for TensorBoard needs tensorboard. Install it with: pip install "
                "'icgd[train]'"
            )
        self._folder = str(folder)
        self._writer: Any = None

    def on_row(self, step: int, row: Mapping[str, float]) -> None:
        if self._writer is None:
            # Readers drop what an interrupted training wrote at this step and later.
            self._writer = SummaryWriter(self._folder, purge_step=step)
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_end(self) -> None:
        if self._writer is not None:
            self._writer.close()
