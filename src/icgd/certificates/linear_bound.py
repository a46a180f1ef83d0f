r"""Bounds for linear models: what heads err by, times the inputs, and what a step makes of it.

(b) for one run: a step is off in coefficient j by at most scale * sum_i |x_ij| e_i and rounding,
where e_i bounds the error of the head at example i: what its grid leaves, and what the rounding of
its scores moves. Soft threshold and box bring nothing further apart. The run's own coefficients
give it for all steps at once.

What was off before is multiplied by at most q, the step's Lipschitz constant in the 2-norm. It is
known from the curvature of the risk at the scores of the run, and at most 1 up to a step size of
2 / beta: here the paper's line, the sum of what the steps add, does hold. Exact descent is as far
from the run as is proved so far, so that scores within this distance count too.

(a) for every task: the same with the largest numbers that the domain allows.

All of these are sums of products that are not negative, so that `ROOM` covers what rounding takes
from the bounds themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds, one_by_one
from icgd.certificates.intervals import ROOM, Interval
from icgd.errors import ProgramError
from icgd.problems.curvature import Scores, common, curvature, over_box, spanned
from icgd.problems.task import Task
from icgd.program.grid_instructions import DecaySlot, DescendExamples, ShrinkSlot
from icgd.program.stack import StackProgram
from icgd.shapes import History, Predictions

NUMBERS_AT_ONCE = 2**22
"""The number of scores that are bounded at once; long runs are taken in parts."""

EIGENVALUE_ROUNDING = 1e-9
"""The relative room for the rounding of eigenvalues."""

MARGIN = 16.0
"""How much further than proved so far scores are looked at, so that this is seldom done again."""


@dataclass(frozen=True)
class LinearBounds(AbstractBounds):
    """Bounds on any coefficient of a linear model."""

    program: StackProgram

    def domain(self) -> DomainBound:
        """The bounds hold for up to n_tokens examples.

        Clipped weights are at most 2 box apart, and what a clip by ReLUs rounds.
        """
        model, domain, box = self.problem.model, self.problem.domain, self.problem.box or inf
        inputs = torch.full((self.how.n_tokens, model.n_parameters), domain.x).double()
        inputs[:, model.input_width :] = 1.0
        before = torch.full((1, model.n_parameters), box).double()
        labels = torch.full((1, self.how.n_tokens), domain.y).double()
        added = self._step(before, inputs, labels, Interval.symmetric(self._reach, *labels.shape))
        factor = max(1.0, self._worst_growth(inputs))
        most, distance = 2 * box + self.how.sums_terms * float(added.max()), 0.0
        for _ in range(self.program.n_steps):
            distance = ROOM * ((factor * distance if distance else 0.0) + float(norm(added)))
            if not distance < most:
                distance = most
                break
        return DomainBound(float(added.max()), distance)

    def steps(self, task: Task, history: History) -> Tensor:
        return self.errors(task, history).amax(-1)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        errors = self.errors(task, history)
        added = norm(errors)
        distances = self._distances(task, added, (history.double(), real))
        trajectory = one_by_one(distances, history, on_progress)
        return RunBounds(errors.amax(-1), trajectory, added.cumsum(-1))

    def predictions(
        self, task: Task, history: History, real: History, error: Tensor
    ) -> Predictions:
        """|mu(<w', x>) - mu(<w, x>)| <= slope * sum_j |x_j| error_j, and what the head errs by."""
        queries, weights = self.problem.model.design(task.queries), real[..., -1:, :].double()
        off = error.double().expand_as(real[..., -1, :]).unsqueeze(-2)
        apart, terms = off @ queries.abs().mT, (weights.abs() + off) @ queries.abs().mT
        apart = apart + self.how.sum_of(queries.shape[-1], terms)
        scores = Interval.point(weights @ queries.mT).widened(apart)
        steepest = self.problem.model.link_function.slopes(scores.low, scores.high)[1]
        wrong = self._mean_error(scores, terms)
        copied = self.how.sum_of(4, self._mean_size(scores) + wrong)
        return (steepest * apart + wrong + copied).nan_to_num(nan=inf, posinf=inf).mT

    @property
    def widest(self) -> float:
        return 2 * (self.problem.box or inf)

    def errors(self, task: Task, history: History) -> Tensor:
        """What each step adds to the error of every coefficient, from the run's own ones."""
        design, labels = self.problem.model.design(task.x), task.y.double().mT.abs()
        before = history[..., :-1, :].double()
        parts = before.split(max(1, NUMBERS_AT_ONCE // design[..., 0].numel()), dim=-2)
        bounds = [
            self._step(part.abs(), design.abs(), labels, Interval.point(part @ design.mT))
            for part in parts
        ]
        return torch.cat(bounds, dim=-2)

    def _distances(
        self, task: Task, added: Tensor, histories: tuple[History, ...]
    ) -> Iterator[Tensor]:
        """The distance after each step: what it adds, and what it makes of the one before."""
        distance, margin, factor = torch.zeros_like(added[..., :1].sum(-1)), -1.0, 0.0
        for more in added.unbind(-1):
            if not bool((distance <= margin).all()):
                margin = MARGIN * float(distance.max())
                factor = self.lipschitz(task, *histories, margin=margin)
            grown = torch.where(distance > 0, factor * distance, 0.0)
            distance = ROOM * (grown + more)
            yield distance

    def lipschitz(self, task: Task, *histories: History, margin: float = 0.0) -> float:
        """The largest factor by which a step multiplies the distance of two points near these runs.

        A point is near if it lies in the box and at most `margin` from a run, in the 2-norm.
        """
        model, update = self.problem.model, self.problem.proximal_step
        where = self._scores(task, torch.cat(histories, dim=-2), margin)
        if not bool(model.link_function.slopes(*where)[1].isfinite().all()):
            return inf
        curved, step_size = curvature(model, update, task.x, where), update.step_size or 0.0
        if not isfinite(curved.largest):  # its matrix has entries beyond all numbers
            return inf
        room = EIGENVALUE_ROUNDING * (1 + step_size * curved.largest)
        return max(0.0, curved.contraction(step_size)) + room

    def _scores(self, task: Task, points: History, margin: float) -> Scores:
        """The scores of these points, of points in the box near them, and those between."""
        model = self.problem.model
        scores = points @ model.design(task.x).mT
        ends = (scores.amin(-2).unsqueeze(-1), scores.amax(-2).unsqueeze(-1))
        if not margin:
            return ends
        reach = margin * model.design(task.x).norm(dim=-1, keepdim=True)
        in_box = over_box(model, task.x, self.problem.box or inf)
        return spanned(ends, common((ends[0] - reach, ends[1] + reach), in_box))

    def _step(self, before: Tensor, inputs: Tensor, labels: Tensor, scores: Interval) -> Tensor:
        """What a step adds to the error of every coefficient.

        `before`, `inputs` and `labels` are the sizes of the coefficients (a row a step), of the
        design (a row an example) and of the labels; `scores` has a row a step.
        """
        n_examples = inputs.shape[-2]
        scale, wrong = self._scale(n_examples), self._mean_error(scores, before @ inputs.mT)
        left = self._mean_size(scores) + labels + wrong
        size = (1 + self._decay) * before + scale * (left @ inputs) + self._threshold
        n_terms = 2 * n_examples + 16  # of both heads, and the units of the MLP
        underflow = n_terms * self.how.least * inputs.sum(-2, keepdim=True)
        return ROOM * (scale * (wrong @ inputs) + underflow + self.how.sum_of(n_terms, size))

    def _mean_size(self, scores: Interval) -> Tensor:
        """The largest size of an expected label, which rises with the score."""
        least, largest = self.problem.model.link_function.mean.bounds(scores.low, scores.high)
        return torch.maximum(least.abs(), largest.abs())

    def _mean_error(self, scores: Interval, terms: Tensor) -> Tensor:
        """The error of the expected labels, of the transformer's and of the oracle's."""
        n_terms = self.problem.model.n_parameters + 1
        if self.how.sums_terms:
            return self._head(n_terms, terms)
        off, link = self.how.sum_of(n_terms, terms), self.problem.model.link_function
        near = scores.widened(off)
        steepest = link.slopes(near.low, near.high)[1]
        return steepest * off + 2 * self.how.evaluation(link.mean.name, self._mean_size(near))

    def _head(self, n_terms: int, terms: Tensor) -> Tensor:
        """The error of the head where the terms of its score add up to this size."""
        fit = self.program.grid_mean(self.problem.model.link)
        moved = self.how.sum_of(n_terms + 2, fit.per_argument * terms + fit.per_offset)
        moved = moved.clamp(max=max(fit.values) - min(fit.values))
        summed = self.how.sum_of(len(fit.values), torch.full_like(terms, fit.size))
        return fit.error + moved + summed

    def _worst_growth(self, inputs: Tensor) -> float:
        """step_size * beta - 1 with the largest curvature that the domain allows."""
        ends = torch.tensor([self._reach], dtype=torch.float64)
        steepest = float(self.problem.model.link_function.slopes(-ends, ends)[1])
        squares = ROOM * float(inputs.square().sum())
        return self._scale(len(inputs)) * steepest * squares + self._decay - 1

    def _scale(self, n_examples: int) -> float:
        """The factor of each example in the step, if there are `n_examples` of them."""
        return abs(self._descent.scale) * self._descent.share(n_examples)

    @property
    def _descent(self) -> DescendExamples:
        if (descent := self.program.descent) is None:
            raise ProgramError.broken(self.program.construction, "has no step on a linear model")
        return descent

    @property
    def _reach(self) -> float:
        return self.program.score_reach or inf

    @property
    def _decay(self) -> float:
        parts = (part for layer in self.program.block for part in layer.instructions)
        return sum((abs(part.decay) for part in parts if isinstance(part, DecaySlot)), 0.0)

    @property
    def _threshold(self) -> float:
        parts = (part for layer in self.program.block for part in layer.instructions)
        return sum((part.threshold for part in parts if isinstance(part, ShrinkSlot)), 0.0)


def norm(errors: Tensor) -> Tensor:
    """The 2-norm over coefficients. It is scaled, because squares of small errors would be 0."""
    largest = errors.amax(-1, keepdim=True).clamp(min=torch.finfo(errors.dtype).tiny)
    length: Tensor = (errors / largest).norm(dim=-1)
    return ROOM * length * largest.squeeze(-1)
