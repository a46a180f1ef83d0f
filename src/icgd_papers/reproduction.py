"""A reproduction: the studies of each preset, a table of their numbers, and a picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from string import ascii_lowercase
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from icgd.errors import SettingError, UnknownNameError
from icgd.pictures.plotting import Figure
from icgd_papers.training.loop import OnStep

Value = str | int | float | bool | None
Row = dict[str, Value]
"""One line of the numbers; all rows of a figure have the same columns."""

PRESETS = ("smoke", "laptop", "paper")
"""They take seconds, take minutes on two cores, and have the paper's own sizes."""


@runtime_checkable
class Found(Protocol):
    """What a study found: a frozen dataclass that JSON can hold."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seconds(self) -> float: ...


Outcome = TypeVar("Outcome", bound=Found)


@dataclass(frozen=True)
class Conduct:
    """How a study is carried out: where it computes, and who hears of its steps."""

    device: str = "cpu"
    on_step: OnStep | None = None


class AbstractStudy(ABC, Generic[Outcome]):
    """One unit of a figure's work, such as one model to train: a dataclass that JSON can hold."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    uses_device: ClassVar[bool] = False
    """Whether it computes where its conduct says; otherwise it does so on the processor."""

    budget: Any
    """A frozen dataclass: how long and on how much the study works."""

    @abstractmethod
    def train(self, folder: Path | None = None) -> Outcome:
        """Do the work; with a `folder`, continue where it was interrupted."""

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        """Do the work in this way; what has no steps and no device does it as always."""
        return self.train(folder)

    def require(self, device: str) -> None:
        """Raise an error if the work cannot be done there; asked of all studies before the first.

        Most studies fit everywhere.
        """

    @property
    def n_steps(self) -> int:
        """The steps that it tells of; 1 if it does not train step by step."""
        return 1

    @property
    def work(self) -> float:
        """How much it has to do, in any unit that all studies of a figure share."""
        return 1.0

    def step_seconds(self, device: str) -> float | None:
        """The time of a step, measured now; None if it does not train step by step."""
        return None

    @abstractmethod
    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        """The outcome whose fields were read from JSON."""


Study = TypeVar("Study", bound=AbstractStudy[Any])
Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Summary:
    """The numbers that a reader looks for first, as text."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class AbstractReproduction(ABC, Generic[Study, Outcome]):
    """A figure of a paper. Its numbers are a table, and its picture is drawn from the table."""

    name: str
    place: str
    """Where the paper shows it."""
    shows: str
    laptop_time: str
    """The time that the laptop preset takes with one worker, measured on a busy machine."""

    @abstractmethod
    def studies(self, preset: str, seed: int) -> list[Study]:
        """The work to do; the first seed is `seed`."""

    @abstractmethod
    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """All numbers that the studies found."""

    @abstractmethod
    def summary(self, rows: Sequence[Row]) -> Summary:
        """The result in a table of few columns."""

    @abstractmethod
    def picture(self, rows: Sequence[Row]) -> Figure:
        """The figure, drawn from the numbers alone."""

    @property
    def parts(self) -> dict[str, Any]:
        """The figure's panels by name: panel-a, panel-b, ... in their order, if it has any."""
        panels = getattr(self, "panels", ())
        return {
            f"panel-{letter}": panel for letter, panel in zip(ascii_lowercase, panels, strict=False)
        }

    def only(self, names: Sequence[str]) -> AbstractReproduction[Study, Outcome]:
        """The figure with these panels alone; with all of them, if none is named."""
        if not names:
            return self
        if not self.parts:
            raise SettingError(f"{self.name} has no panels to choose from. Leave out --only.")
        for name in names:
            if name not in self.parts:
                raise UnknownNameError.of(f"part of {self.name}", name, known=list(self.parts))
        chosen = tuple(panel for name, panel in self.parts.items() if name in names)
        return replace(self, panels=chosen)  # type: ignore[call-arg]


def preset_of(sizes: Mapping[str, Sizes], preset: str) -> Sizes:
    """The sizes of `preset`."""
    if preset not in sizes:
        raise UnknownNameError.of("preset", preset, known=list(sizes))
    return sizes[preset]


def groups(rows: Sequence[Row], *names: str) -> dict[tuple[Value, ...], list[Row]]:
    """The rows, grouped by their values in the columns `names`, in their order."""
    found: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def number(row: Row, name: str) -> float:
    """The number in a cell; NaN if the cell is empty."""
    value = row[name]
    return float("nan") if value is None else float(value)


def six_digits(value: float) -> float | None:
    """The value with six digits, so that files stay small; None for what JSON cannot hold."""
    return float(f"{value:.6g}") if isfinite(value) else None
