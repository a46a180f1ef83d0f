"""Progress bars, shown on stderr if that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

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
    with _bar(
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
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
    """A bar that measures the speed of the work since the first steps.

    Starting workers takes long, and a resumed training has steps from before: neither counts.
    """

    def __init__(self, bar: Progress, title: str, unit: str = "steps") -> None:
        self.unit = unit
        self.bar, self.task = bar, bar.add_task(title, total=None, loss="", speed="", left="")
        self._start: tuple[float, int, float] | None = None
        self._has_moved = False

    def update(
        self, done: int, total: int, loss: float | None = None, share: float | None = None
    ) -> None:
        """Show that `done` of `total` steps are taken.

        Without a `loss` the last one stays. `share` is the part of all work that is done, if steps
        are of different size.
        """
        share = done / max(total, 1) if share is None else share
        now = monotonic(), done, share
        if self._start is None:
            self._start = now
        elif done > self._start[1] and not self._has_moved:
            self._start, self._has_moved = now, True
        seconds, steps, work = (a - b for a, b in zip(now, self._start, strict=True))
        texts: dict[str, Any] = {} if loss is None else {"loss": f"loss {loss:.4g} "}
        texts["speed"] = f"{steps / seconds:.3g} {self.unit}/s" if steps > 0 < seconds else ""
        is_known = work > 0 < seconds
        texts["left"] = f"{duration((1 - share) * seconds / work)} left" if is_known else ""
        self.bar.update(self.task, completed=done, total=total, **texts)
