r"""Bounds for linear models: what heads err by, times the inputs, and what a step makes of it.

(b) for one run: a step is off in coefficient j by at most scale * sum_i |x_ij| e_i and rounding,
where e_i bounds the error of the head at example i: what its grid leaves, and what the rounding of
its scores moves. Soft threshold and box bring nothing further apart. From the run's own
coefficients, for all steps at once.

What was off before is multiplied by at most q, the step's Lipschitz constant in the 2-norm. It is
known from the curvature of the risk at the scores of the run, and at most 1 up to a step size of
2 / beta: here the paper's line, the sum of what the steps add, does hold.

(a) for every task: the same with the largest numbers that the domain allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.intervals import Interval
from icgd.errors import ProgramError
from icgd.problems.curvature import curvature
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.functions import GridMean
from icgd.program.grid_instructions import DecaySlot, DescendExamples, ShrinkSlot
from icgd.program.stack import StackProgram
from icgd.shapes import History

NUMBERS_AT_ONCE = 2**22
"""Scores that are bounded at once: long runs are taken in parts."""

EIGENVALUE_ROUNDING = 1e-9
"""Room for the rounding of eigenvalues, relatively."""


@dataclass(frozen=True)
class _Step:
    """The step of a program: its numbers, and how it is computed."""

    problem: Problem
    mean: GridMean
    descent: DescendExamples
    reach: float
    decay: float
    threshold: float
    how: Arithmetic

    @classmethod
    def of(cls, problem: Problem, program: StackProgram, how: Arithmetic) -> _Step:
        """The step of a program that trains a linear model."""
        descent, reach = program.descent, program.score_reach
        if descent is None or reach is None:
            raise ProgramError.broken(program.construction, "has no step on a linear model")
        parts = [part for layer in program.block for part in layer.instructions]
        decay = sum((abs(part.decay) for part in parts if isinstance(part, DecaySlot)), 0.0)
        threshold = sum((part.threshold for part in parts if isinstance(part, ShrinkSlot)), 0.0)
        mean = program.grid_mean(problem.model.link)
        return cls(problem, mean, descent, reach, decay, threshold, how)

    def scale(self, n_examples: int) -> float:
        """What the step takes of each of `n_examples` examples."""
        return abs(self.descent.scale) * self.descent.share(n_examples)

    def errors(self, before: Tensor, inputs: Tensor, labels: Tensor, scores: Interval) -> Tensor:
        """What a step adds to the error of every coefficient.

        `before`, `inputs` and `labels` are the sizes of the coefficients (a row a step), of the
        design (a row an example) and of the labels; `scores` has a row a step.
        """
        n_examples = inputs.shape[-2]
        wrong, scale = self.mean_error(scores, before @ inputs.mT), self.scale(n_examples)
        left = self.mean_size(scores) + labels + wrong
        size = (1 + self.decay) * before + scale * (left @ inputs) + self.threshold
        n_terms = 2 * n_examples + 16  # of both heads, and the units of the MLP
        return scale * (wrong @ inputs) + self.how.sum_of(n_terms, size)

    def mean_size(self, scores: Interval) -> Tensor:
        """Largest size of an expected label; it rises with the score."""
        mean = self.problem.model.link_function.mean
        return torch.maximum(mean(scores.low).abs(), mean(scores.high).abs())

    def mean_error(self, scores: Interval, terms: Tensor) -> Tensor:
        """Error of the expected labels."""
        n_terms = self.problem.model.n_parameters + 1
        if self.how.sums_terms:
            return self.head(n_terms, terms)
        off, link = self.how.sum_of(n_terms, terms), self.problem.model.link_function
        near = scores.widened(off)
        steepest = link.slopes(near.low, near.high)[1]
        return steepest * off + self.how.sum_of(8, self.mean_size(near))

    def head(self, n_terms: int, terms: Tensor) -> Tensor:
        """Error of the head where the terms of its score add up to this size."""
        fit = self.mean
        moved = self.how.sum_of(n_terms + 2, fit.per_argument * terms + fit.per_offset)
        moved = moved.clamp(max=max(fit.values) - min(fit.values))
        return (
            fit.error + moved + self.how.sum_of(len(fit.values), torch.full_like(terms, fit.size))
        )


def linear_bounds(
    problem: Problem,
    program: StackProgram,
    task: Task,
    history: History,
    real: History,
    how: Arithmetic,
) -> RunBounds:
    """Bounds for a run's own `history`, and for its distance from the `real` one."""
    errors = linear_step_errors(problem, program, task, history, how)
    added = norm(errors)
    factor = lipschitz(problem, task, history.double(), real)
    distance, bounds = torch.zeros_like(added[..., :1].sum(-1)), []
    for step in range(added.shape[-1]):
        distance = factor * distance + added[..., step]
        bounds.append(distance)
    trajectory = torch.stack(bounds, dim=-1) if bounds else added
    return RunBounds(errors.amax(-1), trajectory, added.cumsum(-1))


def norm(errors: Tensor) -> Tensor:
    """The 2-norm over coefficients; scaled, because squares of small errors would be 0."""
    largest = errors.amax(-1, keepdim=True).clamp(min=torch.finfo(errors.dtype).tiny)
    length: Tensor = (errors / largest).norm(dim=-1)
    return length * largest.squeeze(-1)


def lipschitz(problem: Problem, task: Task, *histories: History) -> float:
    """What a step multiplies the distance of two points by, at most, between these runs."""
    update, design = problem.proximal_step, problem.model.design(task.x)
    scores = torch.cat([history @ design.mT for history in histories], dim=-2)
    ends = (scores.amin(-2).unsqueeze(-1), scores.amax(-2).unsqueeze(-1))
    curved = curvature(problem.model, update, task.x, ends)
    step_size = update.step_size or 0.0
    return max(0.0, curved.contraction(step_size)) + EIGENVALUE_ROUNDING * (
        1 + step_size * curved.largest
    )


def linear_step_errors(
    problem: Problem, program: StackProgram, task: Task, history: History, how: Arithmetic
) -> Tensor:
    """What each step adds to the error of every coefficient, from the run's own coefficients."""
    step, design = _Step.of(problem, program, how), problem.model.design(task.x)
    labels = task.y.double().mT
    before = history[..., :-1, :].double()
    parts = before.split(max(1, NUMBERS_AT_ONCE // design[..., 0].numel()), dim=-2)
    bounds = [
        step.errors(part.abs(), design.abs(), labels.abs(), Interval.point(part @ design.mT))
        for part in parts
    ]
    return torch.cat(bounds, dim=-2)


def linear_domain_bound(problem: Problem, program: StackProgram, how: Arithmetic) -> DomainBound:
    """For every task in the domain with up to n_tokens examples: one step, and the whole run.

    Clipped weights are at most 2 box apart, and what a clip by ReLUs rounds.
    """
    step = _Step.of(problem, program, how)
    model, domain, box = problem.model, problem.domain, problem.box or inf
    inputs = torch.full((how.n_tokens, model.n_parameters), domain.x).double()
    inputs[:, model.input_width :] = 1.0
    before = torch.full((1, model.n_parameters), box).double()
    labels = torch.full((1, how.n_tokens), domain.y).double()
    scores = Interval.symmetric(step.reach, *labels.shape)
    added = step.errors(before, inputs, labels, scores)
    factor = max(1.0, _worst_growth(step, inputs))
    most, distance = 2 * box + how.sums_terms * float(added.max()), 0.0
    for _ in range(program.n_steps):
        distance = (factor * distance if distance else 0.0) + float(norm(added))
        if not distance < most:
            distance = most
            break
    return DomainBound(float(added.max()), distance)


def _worst_growth(step: _Step, inputs: Tensor) -> float:
    """step_size * beta - 1 with the largest curvature that the domain allows."""
    ends = torch.tensor([step.reach], dtype=torch.float64)
    steepest = float(step.problem.model.link_function.slopes(-ends, ends)[1])
    squares = float(inputs.square().sum())
    return step.scale(len(inputs)) * steepest * squares + step.decay - 1


@dataclass(frozen=True)
class LinearBounds(AbstractBounds):
    """Bounds on any coefficient of a linear model."""

    program: StackProgram

    def domain(self) -> DomainBound:
        return linear_domain_bound(self.problem, self.program, self.how)

    def steps(self, task: Task, history: History) -> Tensor:
        return linear_step_errors(self.problem, self.program, task, history, self.how).amax(-1)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        bounds = linear_bounds(self.problem, self.program, task, history, real, self.how)
        if on_progress:  # all steps are bounded at once
            for step in range(self.program.n_steps):
                on_progress(step + 1, self.program.n_steps)
        return bounds
