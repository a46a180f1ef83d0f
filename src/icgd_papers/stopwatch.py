"""The time that a piece of work takes, over all its interruptions."""

from __future__ import annotations

from math import inf
from pathlib import Path
from time import perf_counter

from icgd_papers.checksummed_json import read_checksummed, write_checksummed
from icgd_papers.training.checkpoints import damaged

KEEP_EVERY = 1.0
"""Seconds between two writings of the file; a kill loses no more."""


class Stopwatch:
    """The seconds since it was made, and those of earlier legs, which a file in `folder` keeps."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = folder and folder / "seconds.json"
        self._earlier = _kept(self._path) if self._path and self._path.exists() else 0.0
        self._start = self._written = perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds of all legs."""
        return self._earlier + perf_counter() - self._start

    def keep(self) -> None:
        """Write the seconds, unless that was done a moment ago; the folder must exist."""
        if self._path and perf_counter() - self._written >= KEEP_EVERY:
            write_checksummed(self._path, self.seconds)
            self._written = perf_counter()


def _kept(path: Path) -> float:
    seconds = read_checksummed(path)
    if not isinstance(seconds, float) or not 0 <= seconds < inf:
        raise damaged(path, f"it says {seconds!r:.40}, expected seconds")
    return seconds
