"""A figure: a table of settings, a function from a setting to rows, and a drawing of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl

from icgd.errors import UnknownNameError
from icgd.pictures import plotting
from icgd_papers.checksummed_json import read_checksummed, write_checksummed
from icgd_papers.training.loop import OnStep

PRESETS = ("smoke", "laptop", "paper")
"""Seconds, minutes on two cores, and the paper's own sizes."""

Setting = TypeVar("Setting")
"""A frozen dataclass that JSON can hold, which determines the rows of one job.

A figure with panels has a field or property `panel` here: the letters of the panels that show it.
"""


@dataclass(frozen=True)
class Job:
    """Context of a job: its folder for checkpoints, its device, and a callback for its steps."""

    folder: Path | None = None
    device: str = "cpu"
    on_step: OnStep | None = None

    def cached(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, from the job's folder if it was computed before.

        The result must be plain data. JSON keeps all digits of a float64, so bits are the same.
        """
        if self.folder is None:
            return compute()
        path = self.folder / f"{name}.json"
        if path.exists():
            return read_checksummed(path)
        result = compute()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_checksummed(path, result)
        return result


def _one(_: Any) -> float:
    return 1.0


@dataclass(frozen=True)
class Figure(Generic[Setting]):
    """A figure of a paper, or of a study beside the papers.

    Attributes:
        name: the name on the command line.
        place: where the paper shows it.
        shows: what is plotted.
        settings: the settings of a preset, one for each job, from the first seed on.
        run: runs one job and returns its rows; all rows of a figure have the same columns.
        summarise: the most important numbers, as a small frame of texts.
        draw: the picture, drawn from the rows alone.
        work: the cost of a job, in any unit that all jobs of the figure share.
        memory: the bytes that a job needs, where that may exceed the memory.
        uses_device: whether jobs compute on the job's device, or always on the processor.
    """

    name: str
    place: str
    shows: str
    settings: Callable[[str, int], Sequence[Setting]]
    run: Callable[[Setting, Job], pl.DataFrame]
    summarise: Callable[[pl.DataFrame], pl.DataFrame]
    draw: Callable[[pl.DataFrame], plotting.Figure]
    work: Callable[[Setting], float] = _one
    memory: Callable[[Setting], float] | None = None
    uses_device: bool = False


def draw_band(
    panel: plotting.Axes, rows: pl.DataFrame, x: str, y: str, colour: str, **style: Any
) -> None:
    """Draw the geometric mean of `y` over the seeds at each `x`, in a band of their range."""
    seeds = rows.group_by(x, maintain_order=True).agg(y)
    plotting.band(panel, seeds[x].cast(pl.Float64).to_list(), seeds[y].to_list(), colour, **style)


def of_preset(table: dict[str, Any], preset: str) -> Any:
    """Return the entry of `preset` in a table of presets."""
    if preset not in table:
        raise UnknownNameError.of("preset", preset, known=list(table))
    return table[preset]


def six_digits(value: float) -> float | None:
    """Round to six significant digits, so that files stay small; None for what is not finite."""
    return float(f"{value:.6g}") if isfinite(value) else None
