"""A batch of tasks runs in groups, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from icgd.backends.run import OnProgress, Run, RunOptions
from icgd.errors import InterruptedRunError
from icgd.problems.task import Task

RunGroup = Callable[[Task, RunOptions], Run]


def run_in_groups(run: RunGroup, task: Task, n_at_once: int, options: RunOptions) -> Run:
    """Run `n_at_once` tasks at a time.

    On Ctrl-C the tasks that are done are known; if none is, the steps of the first group are.
    """
    groups, runs = in_groups(task, n_at_once), list[Run]()
    if len(groups) == 1:
        return run(task, options)
    try:
        for number, group in enumerate(groups):
            progress = _shifted(options.on_progress, number, len(groups))
            runs.append(run(group, replace(options, on_progress=progress)))
        return joined(runs)
    except InterruptedRunError as interruption:
        known, n_known = interruption.partial, len(groups[0].x)
    except KeyboardInterrupt:  # between two groups
        if not runs:
            raise
    if runs:
        known, n_known = joined(runs), sum(len(done.parameters) for done in runs)
    raise InterruptedRunError(
        f"The run was interrupted: the {'whole runs' if runs else 'runs so far'} of the first "
        f"{n_known} of {len(task.x)} tasks are in the error's `partial`. Run the other tasks "
        "again.",
        known,
    )


def in_groups(task: Task, size: int) -> list[Task]:
    """The task itself, or a batch cut into groups of `size` tasks."""
    if not task.batch:
        return [task]
    size = max(size, 1)
    starts = range(0, len(task.x), size)
    return [task.of_batch(slice(start, start + size)) for start in starts]


def joined(runs: list[Run]) -> Run:
    """The runs of groups as the run of the whole batch."""
    return Run(
        parameters=torch.cat([run.parameters for run in runs]),
        predictions=torch.cat([run.predictions for run in runs]),
        trace={name: torch.cat([run.trace[name] for run in runs]) for name in runs[0].trace},
        steps=runs[0].steps,
    )


def _shifted(on_progress: OnProgress | None, group: int, n_groups: int) -> OnProgress | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(group * total + done, n_groups * total)
