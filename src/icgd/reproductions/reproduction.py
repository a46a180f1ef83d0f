"""What a reproduction is: runs to train for each preset, a table of their numbers, a picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from icgd.errors import UnknownNameError
from icgd.reproductions.plotting import Figure

Value = str | int | float | bool | None
Row = dict[str, Value]
"""One line of the numbers; all rows of a figure have the same columns."""

PRESETS = ("smoke", "laptop", "paper")
"""Seconds; minutes on two cores; the paper's own sizes."""


@runtime_checkable
class Trained(Protocol):
    """What a run gave: a frozen dataclass of what JSON can hold."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seconds(self) -> float: ...


Outcome = TypeVar("Outcome", bound=Trained)


class AbstractRun(ABC, Generic[Outcome]):
    """One training of a figure: a frozen dataclass of what JSON can hold."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    budget: Any
    """A frozen dataclass: how long and on how much is trained."""

    @abstractmethod
    def train(self, folder: Path | None = None) -> Outcome:
        """Train; with a `folder`, go on where it was interrupted."""

    @abstractmethod
    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        """The outcome whose fields were read from JSON."""


Run = TypeVar("Run", bound=AbstractRun[Any])
Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Summary:
    """The numbers that a reader looks for first, as text."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class AbstractReproduction(ABC, Generic[Run, Outcome]):
    """A figure of a paper. Its numbers are a table, and its picture is drawn from the table."""

    name: str
    place: str
    """Where the paper shows it."""
    shows: str
    laptop_time: str
    """How long the laptop preset takes with one worker, as measured on a busy machine."""

    @abstractmethod
    def runs(self, preset: str, seed: int) -> list[Run]:
        """What to train; the first seed is `seed`."""

    @abstractmethod
    def rows(self, runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[Row]:
        """All numbers that training gave."""

    @abstractmethod
    def summary(self, rows: Sequence[Row]) -> Summary:
        """What came out, in a table of few columns."""

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
