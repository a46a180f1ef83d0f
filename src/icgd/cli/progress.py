"""Progress bars, which are shown on stderr if that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from icgd.backends.run import OnProgress
from icgd.reprs import duration


@contextmanager
def progress(title: str) -> Iterator[OnProgress]:
    """Show a bar while the block runs; it pulses until the callback says how much is done."""
    with _bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def training_progress(title: str, unit: str = "steps") -> Iterator[TrainingBar]:
    """Show a bar of training steps with the loss, the speed, and the time that is left."""
    rest = TextColumn("{task.fields[loss]}{task.fields[speed]}")
    with _bar(
        MofNCompleteColumn(), rest, TimeElapsedColumn(), TextColumn("{task.fields[left]}")
    ) as bar:
        yield TrainingBar(bar, title, unit)


def _bar(*columns: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        expand=True,
    )


class TrainingBar:
    """A bar that knows how fast the work goes on, not counting what was done before it started."""

    def __init__(self, bar: Progress, title: str, unit: str = "steps") -> None:
        self.unit = unit
        self.bar, self.task = bar, bar.add_task(title, total=None, loss="", speed="", left="")
        self._first: tuple[float, int, float] | None = None
        self._moves = False
        self._loss: float | None = None

    def update(
        self, done: int, total: int, loss: float | None = None, share: float | None = None
    ) -> None:
        """Show that `done` of `total` steps are taken.

        Without a `loss` the last one stays. `share` is the part of all work that is done, if steps
        are of different size.
        """
        now = monotonic()
        share = done / max(total, 1) if share is None else share
        self._loss = self._loss if loss is None else loss
        start, steps_before, share_before = self._since(now, done, share)
        speed = _ratio(float(done - steps_before), now - start)
        left = _ratio((1 - share) * (now - start), share - share_before)
        self.bar.update(
            self.task,
            completed=done,
            total=total,
            loss="" if self._loss is None else f"loss {self._loss:.4g} ",
            speed="" if speed is None else f"{speed:.3g} {self.unit}/s",
            left="" if left is None else f"{duration(left)} left",
        )

    def _since(self, now: float, done: int, share: float) -> tuple[float, int, float]:
        """Return the moment from which speed is counted: before the first steps workers are
        started.
        """
        moves = self._first is not None and done > self._first[1]
        if self._first is None or (moves and not self._moves):
            self._first, self._moves = (now, done, share), moves
        return self._first


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if part > 0 and whole > 0 else None
