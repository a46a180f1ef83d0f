"""What a reproduction is: runs to train for each preset, a table of their numbers, a picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar

from icgd.errors import UnknownNameError
from icgd.reproductions.cheng_training import Outcome, Run
from icgd.reproductions.plotting import Figure

Sizes = TypeVar("Sizes")

Value = str | int | float | bool | None
Row = dict[str, Value]
"""One line of the numbers; all rows of a figure have the same columns."""

PRESETS = ("smoke", "laptop", "paper")
"""Seconds; minutes on two cores; the paper's own sizes."""


@dataclass(frozen=True)
class Summary:
    """The numbers that a reader looks for first, as text."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class AbstractReproduction(ABC):
    """A figure of a paper. Its numbers are a table, and its picture is drawn from the table."""

    name: str
    place: str
    """Where the paper shows it."""
    shows: str
    laptop_time: str
    """How long the laptop preset takes with one worker, as measured on a busy machine."""

    @abstractmethod
    def runs(self, preset: str, seed: int) -> list[Run]:
        """The models to train; their first seed is `seed`."""

    @abstractmethod
    def rows(self, runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[Row]:
        """All numbers of the trained models."""

    @abstractmethod
    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means over the seeds, at the end of training."""

    @abstractmethod
    def picture(self, rows: Sequence[Row]) -> Figure:
        """The figure, from the numbers alone."""


def preset_of(sizes: Mapping[str, Sizes], preset: str) -> Sizes:
    """The sizes of `preset`."""
    if preset not in sizes:
        raise UnknownNameError.of("preset", preset, known=list(sizes))
    return sizes[preset]


def groups(rows: Sequence[Row], *names: str) -> dict[tuple[Value, ...], list[Row]]:
    """Rows that agree in the columns `names`, in the order in which they come."""
    found: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def number(row: Row, name: str) -> float:
    """A cell that holds a number."""
    value = row[name]
    return float("nan") if value is None else float(value)


def six_digits(value: float) -> float | None:
    """As many digits as can matter, so that files stay small; None for what JSON cannot hold."""
    return float(f"{value:.6g}") if isfinite(value) else None
