"""Bounds of a stack that trains a network: one propagation, fed with the domain or with a run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds
from icgd.certificates.closed_form import closed_form_bound
from icgd.certificates.domain_bound import domain_bound
from icgd.certificates.run_bound import stepwise_bounds, trajectory_bounds
from icgd.problems.task import Task
from icgd.program.stack import StackProgram
from icgd.shapes import History


@dataclass(frozen=True)
class StackBounds(AbstractBounds):
    """Bounds by enclosures of every slot, carried through the layers."""

    program: StackProgram

    def domain(self) -> DomainBound:
        return domain_bound(self.program, self.problem, self.how)

    def steps(self, task: Task, history: History) -> Tensor:
        return stepwise_bounds(self.program, task, history, self.how)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        trajectory = trajectory_bounds(
            self.program, self.problem, task, real, self.how, on_progress
        )
        return RunBounds(self.steps(task, history), trajectory)

    def paper_step(self) -> float | None:
        return closed_form_bound(self.program, self.problem, self.how)
