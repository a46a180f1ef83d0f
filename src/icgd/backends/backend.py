"""A backend says which executor runs each kind of program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, final

from icgd.backends.driver import drive
from icgd.backends.executor import AbstractExecutor
from icgd.backends.groups import run_in_groups
from icgd.backends.prompt import require_entry
from icgd.backends.run import PLAIN, Run, RunOptions
from icgd.errors import ProgramError
from icgd.problems.task import Task
from icgd.program.program import AbstractProgram

MakeExecutor = Callable[[Any, Task, RunOptions], AbstractExecutor[Any]]
"""A function that makes the executor of a program on a task."""


class AbstractBackend(ABC):
    """A backend runs a program on a task. Subclasses are final."""

    name: ClassVar[str]
    sums_terms: ClassVar[bool]
    """Whether functions are evaluated ReLU by ReLU, which rounds more; bounds ask for it."""
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]]

    @abstractmethod
    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        """How many tasks of a batch run together."""

    @final
    def run(self, program: AbstractProgram, task: Task, options: RunOptions = PLAIN) -> Run:
        """Run the whole program, or up to the step after which weights move no more.

        On Ctrl-C it raises `InterruptedRunError`, whose `partial` is the run up to the last whole
        step, with predictions if they can be made.
        """
        require_entry(program, task)
        make = self.executors.get(type(program))
        if make is None:
            raise ProgramError(
                f"{type(program).__name__} has no executor in the {self.name} backend"
            )
        n_at_once = len(task.x) if options.stop_below else self.tasks_at_once(program, task)

        def run(group: Task, options: RunOptions) -> Run:
            make_for = partial(make, program, group, options)
            return drive(make_for, program, group, options)

        return run_in_groups(run, task, n_at_once, options)  # tasks of one group stop together
