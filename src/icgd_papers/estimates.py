"""What the studies of a figure take: their steps are timed before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn

from icgd_papers.reproduction import AbstractStudy
from icgd_papers.training.devices import device_named
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.tasks import AbstractTask

TIMED_TASKS = 1000
"""A processor is timed on so many tasks at most; it takes ten times as long for ten times more."""

TIMED_STEPS = 3

HOUR = 3600.0


@dataclass(frozen=True)
class Estimate:
    """The work of a figure: its studies, their steps, and the time if they go one by one."""

    n_studies: int
    n_steps: int
    seconds: float | None
    """None if a study does not train step by step."""
    device: str

    @property
    def text(self) -> str:
        """The estimate in words."""
        steps = f" with {self.n_steps:,} steps in all" if self.n_steps > self.n_studies else ""
        work = f"{self.n_studies:,} studies{steps}"
        if self.seconds is None:
            return work
        return f"{work}, about {self._hours} {'core-hours' if self.device == 'cpu' else 'hours'}"

    @property
    def _hours(self) -> str:
        """Two digits are more than such an estimate is worth."""
        return f"{float(f'{(self.seconds or 0) / HOUR:.2g}'):,.10g}"


def estimate(studies: Sequence[AbstractStudy[Any]], device: str = "cpu") -> Estimate:
    """Time a step of every kind of study; those that differ in their seed are of one kind."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        kinds = dict.fromkeys(_kind(study) for study in studies)
        times = {kind: kind.step_seconds(device) for kind in kinds}
    finally:
        torch.set_num_threads(n_threads)
    n_steps = sum(study.n_steps for study in studies)
    return Estimate(len(studies), n_steps, _total(studies, times), device_named(device).place.type)


def _kind(study: AbstractStudy[Any]) -> Any:
    return replace(study, seed=0) if "seed" in study.__dataclass_fields__ else study


def _total(
    studies: Sequence[AbstractStudy[Any]], times: Mapping[Any, float | None]
) -> float | None:
    """The seconds of all steps; None if those of some study are not known."""
    parts = [(study.n_steps, times[_kind(study)]) for study in studies]
    known = [n_steps * seconds for n_steps, seconds in parts if seconds is not None]
    return sum(known) if len(known) == len(parts) else None


def timed_step(model: nn.Module, task: AbstractTask, settings: Settings) -> float:
    """The seconds of a step, with its share of drawing a batch; on a processor, those of a core."""
    on_processor = device_named(settings.device).place.type == "cpu"
    clock = process_time if on_processor else perf_counter
    n_tasks = min(settings.batch_size, TIMED_TASKS) if on_processor else settings.batch_size
    start = clock()
    task.sample(n_tasks, seed=settings.seed, index=0)
    ticks = [clock()]
    n_steps = TIMED_STEPS + 1  # the first one warms up
    few = {"n_steps": n_steps, "resample_every": n_steps, "batch_size": n_tasks}
    train(
        model,
        task,
        replace(settings, **few),  # type: ignore[arg-type]
        on_step=lambda *_: ticks.append(clock()),
    )
    drawing, steps = ticks[0] - start, (ticks[-1] - ticks[1]) / TIMED_STEPS
    return (steps + drawing / settings.resample_every) * settings.batch_size / n_tasks
