r"""Bounds for linear models: what heads err by, times the inputs, and what a step makes of it.

(b) for one run: a step is off in coefficient j by at most scale * sum_i |x_ij| e_i and
rounding, where e_i bounds the error of the head at example i: what its grid leaves, and what
the rounding of its scores moves. Soft threshold and box bring nothing further apart. The run's
own coefficients give it for all steps at once. Mirrored heads also miss a share of the sum, and
multiply the rounding of their softmax weights by their factors.

What was off before is multiplied by at most q, the step's Lipschitz constant in the 2-norm. It
is known from the curvature of the risk at the scores of the run, and at most 1 up to a step
size of 2 / beta: here the paper's line, the sum of what the steps add, does hold. Exact descent
is as far from the run as is proved so far, so that scores within this distance count too.

(a) for every task: the same with the largest numbers that the domain allows.

With momentum a step also keeps a share of the last change.

All of these are sums of products that are not negative, so that `ROOM` covers what rounding
takes from the bounds themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates.enclosures import (
    ROOM,
    AbstractBounds,
    DomainBound,
    Interval,
    RunBounds,
    norm,
    one_by_one,
)
from icgd.environment import require_memory
from icgd.errors import ProgramError
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.problems.spectrum import Scores, common, curvature, eigenvalues, over_box, spanned
from icgd.problems.steps import FunctionalStep, ProximalStep
from icgd.program.instructions import Instruction
from icgd.program.linear_instructions import (
    DecaySlot,
    DescendByExample,
    DescendSquares,
    Mirrored,
    MoveByVelocity,
    ShrinkMoved,
    ShrinkSlot,
)
from icgd.program.stack import StackProgram
from icgd.shapes import History, Predictions

# How errors of descent with momentum grow, in function space and of linear models.
#
# What is left, r, and its last change, v, are off by errors that a step takes along: for an
# eigenvalue t of the kernel, with a = step_size * t, and what is read a share c of v ahead,
#
#     (r, v)  ->  T (r, v),    T = [[1 - a, m - a c], [-a, m - a c]]
#
# T is not normal: its norm is larger than 1 though its powers shrink. So norms must not be
# multiplied step by step. On given examples the products of T are followed from every step at which
# something was added, for every eigenvalue. The largest entry over all eigenvalues is a norm,
# because kernels of all steps have the same eigenvectors.
#
# For every task in a domain the eigenvalues are not known. If all steps are alike and lie where T
# has no eigenvalue z outside the unit circle, then
#
#     r_k = h_k r_0 - q h_{k-1} (r_0 - v_0),    h_k = sum_i z_1^i z_2^(k-i),    |h_k| <= k + 1
#
# with q = z_1 z_2, so that |r_k| <= (2 k + 1) |r_0| + k |v_0| and v_k = r_k - r_{k-1}.
# Otherwise norms are multiplied.

PAIR_ROUNDING = 1e-12
"""The relative rounding of eigenvalues and of a product of two matrices of size 2."""


class Motion(NamedTuple):
    """The last change of what is left at every token, how far the transformer's own may be off
    from that of its twin, and from the difference of two values of the same run.
    """

    change: Tensor
    carried: Tensor
    apart: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Motion:
        """No change, exactly."""
        zeros = torch.zeros_like(like)
        return cls(zeros, zeros, zeros)


class Pair(NamedTuple):
    """Numbers for what is left, and for its last change."""

    left: Tensor
    change: Tensor


@dataclass
class Responses:
    """What all errors that were added so far have become on the examples, in the 2-norm.

    `eigenvalues` are those of K + noise I, with an axis of tasks or none. `added` has the norm of
    what each step added to r and to v; `grown` has, for each of these steps, the product of the
    matrices T since then: (*tasks, step, eigenvalue, 2, 2).
    """

    eigenvalues: Tensor
    added: list[Tensor] = field(default_factory=list)
    grown: Tensor | None = None

    def after(self, size: float, momentum: float, ahead: float, added: Tensor, now: Pair) -> Pair:
        """Return the norms after a step that adds errors of norm `added` (*tasks, 1, outputs)."""
        descent = size * self.eigenvalues
        kept = momentum - ahead * descent
        rows = torch.stack([1 - descent, kept, -descent, kept], dim=-1)
        matrices = rows.unflatten(-1, (2, 2)).unsqueeze(-4)
        grown = None if self.grown is None else matrices @ self.grown
        unit = torch.eye(2).to(matrices).expand_as(matrices)
        self.grown = unit if grown is None else torch.cat([grown, unit], dim=-4)
        rounding = PAIR_ROUNDING * matrices.abs().amax((-4, -3, -2, -1))[..., None, None]
        self.added.append(ROOM * (added + 8 * rounding * (now.left + now.change)))
        gains = self.grown.abs().amax(-3).sum(-1)  # (*tasks, step, 2): an error in r and one in v
        sums = gains.mT @ torch.cat(self.added, dim=-2)
        left, change = (ROOM * sums).split(1, dim=-2)
        return Pair(left, change)


def multiplied(contraction: Tensor, reach: Tensor, kept: Tensor, added: Tensor, now: Pair) -> Pair:
    """Return the norms after a step whose matrices have these norms: I - size K, size K, m - c size
    K.
    """
    of_change = kept * now.change + added
    return Pair(ROOM * (contraction * now.left + of_change), ROOM * (reach * now.left + of_change))


def is_stable(update: FunctionalStep, largest: float) -> bool:
    """Return whether all steps are alike and T has no eigenvalue outside the unit circle.

    That is for every eigenvalue of the kernel from 0 to `largest`: Jury's conditions.
    """
    if not update.is_constant or update.changes_kernel:
        return False
    momentum, reach = update.momentum_of(0), ROOM * update.size_of(0) * largest
    limit = 1 + 1 / (1 + 2 * momentum) if update.nesterov else 2 * (1 + momentum)
    return ROOM * reach <= limit


# Momentum in the bounds of linear models.
#
# A step from w with the last change v = w - w_before takes the gradient at w + ahead * v. What is
# off in w and v is taken along by the matrices T, with an eigenvalue of the curvature for that of a
# kernel, as long as a step is affine: for least squares without l1, in a run that the box does not
# touch. Else only norms are known: a soft threshold, a clip and a curvature that varies have no
# common eigenvectors.


SQUARED = 1 + 2.0**-48
"""Room for the rounding of a product of matrices of size 2 and of a sum with it."""


class Kept(NamedTuple):
    """The momenta of some steps (a row each), the size of the last changes, and how far the
    velocity in the stream may be from the change of the weights.
    """

    momentum: Tensor
    ahead: Tensor
    change: Tensor
    apart: Tensor

    @classmethod
    def of(cls, update: ProximalStep, before: Tensor) -> Kept:
        """Of the steps from these weights, a row each; `apart` is not known yet."""
        momentum, ahead = momenta(update, before.shape[-2])
        return cls(momentum, ahead, changes(before).abs(), torch.zeros_like(before))


def momenta(update: ProximalStep, n_steps: int) -> tuple[Tensor, Tensor]:
    """Return the momentum of every step and how far ahead it looks, a row each."""
    pairs = [(update.momentum_of(step), update.lookahead_of(step)) for step in range(n_steps)]
    both = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)
    return both[:, :1], both[:, 1:]


def changes(weights: Tensor) -> Tensor:
    """Return what every row differs by from the row before; the first row is at rest."""
    return weights - torch.cat([weights[..., :1, :], weights[..., :-1, :]], dim=-2)


def points_of(update: ProximalStep, history: History) -> Tensor:
    """Return where the gradients of a run's steps are taken: a row for each step."""
    before = history[..., :-1, :].double()
    if update.momentum is None or not before.shape[-2]:
        return before
    return before + momenta(update, before.shape[-2])[1] * changes(before)


def is_affine(problem: Problem, histories: tuple[History, ...], errors: Tensor) -> bool:
    """Return whether every step of these runs; every exact step beside them, is an affine map."""
    update, most = problem.proximal_step, float(errors.max()) if errors.numel() else 0.0
    if problem.model.link != "identity" or update.l1:
        return False
    largest = max(float(history.abs().max()) for history in histories)
    return ROOM * (largest + most) < (problem.box or inf)


def affine_distances(problem: Problem, task: Task, added: Tensor) -> Iterator[Tensor]:
    """Yield the distance after each step, where steps are affine; `added` has the norm of each
    error.
    """
    model, update = problem.model, problem.proximal_step
    design = model.design(task.x)
    responses = Responses(eigenvalues(model, update, design, torch.ones_like(design[..., :1])))
    now = Pair(*(torch.zeros_like(added[..., :1, None]),) * 2)
    for step, error in enumerate(added.unbind(-1)):
        kept = (update.momentum_of(step), update.lookahead_of(step))
        now = responses.after(update.step_size or 0.0, *kept, error[..., None, None], now)
        yield now.left[..., 0, 0]


def grown(now: Pair, factor: float, momentum: float, ahead: float) -> Pair:
    """Distances after a step whose gradient step multiplies distances by at most `factor`.

    Nesterov's looks as far ahead as its momentum goes, so that all of it is a gradient step.
    """
    looked = apart(now, ahead)
    left = torch.where(looked > 0, factor * looked, 0.0)  # the factor may be infinite
    if momentum and not ahead:
        left = left + momentum * now.change
    return Pair(ROOM * left, ROOM * (left + now.left))


def after_many(moved: Callable[[Pair], Pair], error: Tensor, now: Pair, n_steps: int) -> Pair:
    """Distances after so many steps more, each of which is `moved`, a linear map, and an error.

    No number is negative. Powers are made by squaring, with room for the rounding of each.
    """
    zero, one = torch.zeros_like(now.left), torch.ones_like(now.left)
    columns = [torch.stack(moved(unit)) for unit in (Pair(one, zero), Pair(zero, one))]
    matrix, shift = ROOM * torch.cat(columns, dim=-1), ROOM * torch.stack([error, error])
    found = torch.stack(now)
    while n_steps > 0:
        if n_steps % 2:
            found = SQUARED * (_product(matrix, found) + shift)
        shift = SQUARED * (_product(matrix, shift) + shift)
        matrix, n_steps = SQUARED * _product(matrix, matrix), n_steps // 2
    return Pair(*found)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of matrices without negative entries, in which 0 times infinity is 0."""
    parts = left[:, :, None] * right[None, :, :]
    return torch.where((left[:, :, None] == 0) | (right[None, :, :] == 0), 0.0, parts).sum(1)


def apart(now: Pair, ahead: float) -> Tensor:
    """Return how far the points at which gradients are taken may be apart."""
    return now.left + ahead * now.change if ahead else now.left


STEPS_ONE_BY_ONE = 1000
"""Steps of any task followed one by one; those after them are powers of one map."""

NUMBERS_AT_ONCE = 2**22
"""Scores bounded at once; long runs are taken in parts."""

INPUTS_HELD, SCORES_HELD = 3, 16
"""Numbers held at once for every input and for every score."""

EIGENVALUE_ROUNDING = 1e-9
"""The relative room for the rounding of eigenvalues."""

MARGIN = 16.0
"""Look-ahead on the range of scores, so that the Lipschitz constant is rarely recomputed."""


WEIGHT_ROUNDING = 8
"""Rounding errors of a softmax weight, besides what all weights of a row have in common: an
exponential is within 2 units in the last place, its argument within a quarter, a quotient within
half of one."""


@dataclass(frozen=True)
class LinearBounds(AbstractBounds):
    """Bounds on any coefficient of a linear model."""

    program: StackProgram

    def domain(self) -> DomainBound:
        """The bounds hold for up to n_tokens examples.

        Clipped weights are at most 2 box apart, and what a clip by ReLUs rounds.
        """
        model, domain, box = self.problem.model, self.problem.domain, self.problem.box or inf
        n_tokens, n_weights = (
            self.program.n_examples or self.arithmetic.n_tokens,
            model.n_parameters,
        )
        what = f"Bounding steps on {n_tokens:,} tokens"
        n_bytes = 8 * n_tokens * (INPUTS_HELD * n_weights + SCORES_HELD)
        require_memory(what, n_bytes, "Give a smaller n_tokens, or take fewer inputs.")
        inputs = torch.full((n_tokens, n_weights), domain.x, dtype=torch.float64)
        inputs[:, model.input_width :] = 1.0
        before = torch.full((1, n_weights), box, dtype=torch.float64)
        labels = Interval.symmetric(domain.y, 1, n_tokens)
        largest_score = self.program.score_reach or inf
        reach = Interval.symmetric(largest_score, 1, n_tokens)
        kept = self._worst_kept(before, inputs, labels, reach)
        added = self._step(before, inputs, labels, reach, kept)
        # step_size * beta - 1 with the largest curvature that the domain allows.
        ends = torch.tensor([largest_score], dtype=torch.float64)
        steepest = float(model.link_function.slopes(-ends, ends)[1])
        squares = ROOM * float(inputs.square().sum())
        growth = self._scale(n_tokens) * steepest * squares + self._decay - 1
        factor = max(1.0, growth)
        most = 2 * box + self.arithmetic.sums_terms * float(added.max())
        momentum, ahead = float(kept.momentum), float(kept.ahead)
        error, n_steps = norm(added), self.program.n_steps

        def moved(now: Pair) -> Pair:
            return grown(now, factor, momentum, ahead)

        now = Pair(*(torch.zeros(1, dtype=torch.float64),) * 2)
        for _ in range(min(n_steps, STEPS_ONE_BY_ONE)):
            left, change = moved(now)
            now = Pair(ROOM * (left + error), ROOM * (change + error))
        end = float(after_many(moved, error, now, n_steps - STEPS_ONE_BY_ONE).left)
        step = float(added.nan_to_num(nan=inf, posinf=inf).max())
        return DomainBound(step, end if end < most else (inf if isnan(most) else most))

    def _worst_kept(
        self, before: Tensor, inputs: Tensor, labels: Interval, scores: Interval
    ) -> Kept:
        """Return the largest momentum; weights in the box change by at most twice the box in a
        step.
        """
        update, n_steps = self.problem.proximal_step, self.program.n_steps
        if update.momentum is None or not n_steps:
            return Kept.of(replace(update, momentum=None, nesterov=False), before)
        n_different = 1 if update.is_constant else n_steps
        momentum, ahead = (part.amax(0, keepdim=True) for part in momenta(update, n_different))
        kept = Kept(momentum, ahead, 2 * before, torch.zeros_like(before))
        size = self._size(before, inputs, self._left(before, inputs, labels, scores, kept), kept)
        return kept._replace(apart=self._apart(size, before, len(inputs)))

    def steps(self, task: Task, history: History, on_progress: OnProgress | None = None) -> Tensor:
        return self.errors(task, history).amax(-1)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        errors = self.errors(task, history)
        added, both = norm(errors), (history.double(), real)
        distances, is_plain = self._distances(task, added, both), True
        if self.problem.proximal_step.momentum is not None:
            is_plain = False
            if is_affine(self.problem, both, errors):
                distances = affine_distances(self.problem, task, added)
        trajectory = one_by_one(distances, history, on_progress)
        return RunBounds(errors.amax(-1), trajectory, added.cumsum(-1) if is_plain else None)

    def predictions(self, task: Task, real: History, error: Tensor) -> Predictions:
        """|mu(<w', x>) - mu(<w, x>)| <= slope * sum_j |x_j| error_j, and what the head errs by."""
        queries, weights = self.problem.model.design(task.queries), real[..., -1:, :].double()
        off = error.double().expand_as(real[..., -1, :]).unsqueeze(-2)
        apart, terms = off @ queries.abs().mT, (weights.abs() + off) @ queries.abs().mT
        apart = apart + self.arithmetic.sum_of(queries.shape[-1], terms)
        scores = Interval.point(weights @ queries.mT).widened(apart)
        steepest = self.problem.model.link_function.slopes(scores.low, scores.high)[1]
        wrong = self._mean_error(scores, terms)
        copied = self.arithmetic.sum_of(4, self._mean_size(scores) + wrong)
        return (steepest * apart + wrong + copied).nan_to_num(nan=inf, posinf=inf).mT

    @property
    def widest(self) -> float:
        return 2 * (self.problem.box or inf)

    def errors(self, task: Task, history: History) -> Tensor:
        """Return what each step adds to the error of every coefficient, from the run's own ones."""
        design, labels = self.problem.model.design(task.x), Interval.point(task.y.double().mT)
        before, points = (
            history[..., :-1, :].double(),
            points_of(self.problem.proximal_step, history),
        )
        kept = Kept.of(self.problem.proximal_step, before)
        length = max(1, NUMBERS_AT_ONCE // design[..., 0].numel())
        bounds: list[Tensor] = []
        size = torch.zeros_like(before[..., :1, :])  # of the step before
        for start in range(0, before.shape[-2], length):
            rows = slice(start, start + length)
            part, scores = before[..., rows, :].abs(), points[..., rows, :] @ design.mT
            own = Kept(*(each[..., rows, :] for each in kept))
            where = Interval.point(scores)
            if self.problem.proximal_step.momentum is not None:
                left = self._left(part, design.abs(), labels, where, own)
                sizes = torch.cat([size, self._size(part, design.abs(), left, own)], dim=-2)
                off = self._apart(sizes[..., :-1, :], part, design.shape[-2])
                own, size = own._replace(apart=off), sizes[..., -1:, :]
            bounds.append(self._step(part, design.abs(), labels, where, own))
        return torch.cat(bounds, dim=-2) if bounds else before

    def _distances(
        self, task: Task, added: Tensor, histories: tuple[History, ...]
    ) -> Iterator[Tensor]:
        """Yield the distance after each step: what it adds, and what it makes of the one before."""
        nothing, margin, factor = torch.zeros_like(added[..., :1].sum(-1)), -1.0, 0.0
        update, now = self.problem.proximal_step, Pair(nothing, nothing)
        points = [points_of(update, history) for history in histories]
        for step, more in enumerate(added.unbind(-1)):
            momentum, ahead = update.momentum_of(step), update.lookahead_of(step)
            looked = apart(now, ahead)
            if not bool((looked <= margin).all()):
                margin = MARGIN * float(looked.max())
                factor = self.lipschitz(task, *points, margin=margin)
            moved = grown(now, factor, momentum, ahead)
            now = Pair(ROOM * (moved.left + more), ROOM * (moved.change + more))
            yield now.left

    def lipschitz(self, task: Task, *histories: History, margin: float = 0.0) -> float:
        """Return the largest factor by which a step multiplies the distance of two points near
        these runs.

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
        """Return the scores of these points, of points in the box near them, and those between."""
        model = self.problem.model
        scores = points @ model.design(task.x).mT
        ends = (scores.amin(-2).unsqueeze(-1), scores.amax(-2).unsqueeze(-1))
        if not margin:
            return ends
        reach = margin * model.design(task.x).norm(dim=-1, keepdim=True)
        box = (self.problem.box or inf) * self.problem.proximal_step.overshoot
        in_box = over_box(model, task.x, box)
        return spanned(ends, common((ends[0] - reach, ends[1] + reach), in_box))

    def _step(
        self, before: Tensor, inputs: Tensor, labels: Interval, scores: Interval, kept: Kept
    ) -> Tensor:
        """Return what a step adds to the error of every coefficient.

        `before` and `inputs` are the sizes of the coefficients (a row a step) and of the design (a
        row an example); `scores` and `kept` have a row a step.
        """
        n_examples = inputs.shape[-2]
        scale = self._scale(n_examples)
        wrong = self._left_error(scores, self._looked(before, kept) @ inputs.mT, labels.size)
        size = self._size(before, inputs, self._mean_size(scores) + labels.size + wrong, kept)
        n_terms = 2 * n_examples + 16  # of both heads, and the units of the MLP
        underflow = n_terms * self.arithmetic.least * inputs.sum(-2, keepdim=True)
        own = scale * (wrong @ inputs) + underflow + self.arithmetic.sum_of(n_terms, size)
        descent = self.program.descent
        if isinstance(descent, Mirrored) and self.arithmetic.sums_terms:
            means = Interval(*self.problem.model.link_function.mean.bounds(scores.low, scores.high))
            left = (means + labels.times(-1.0)).size + wrong
            own = own + scale * self._mirrored_error(descent, inputs, left)
        return ROOM * (own + self._off(inputs, scores, kept))

    def _mirrored_error(self, descent: Mirrored, inputs: Tensor, left: Tensor) -> Tensor:
        """Return what mirrored heads miss of the sum over examples; what their softmax rounds."""
        largest = left.amax(-1, keepdim=True)
        missed: Tensor = descent.missed(largest) * (left @ inputs)
        # The weights of an example and its mirror image add up to 1 / n times cosh(score) at most.
        score = descent.n_heads * descent.probe * largest
        rounded = (
            WEIGHT_ROUNDING * self.arithmetic.roundoff * score.cosh() * inputs.sum(-2, keepdim=True)
        )
        return missed + sum(map(abs, descent.gains)) * (
            rounded + inputs.shape[-2] * self.arithmetic.least
        )

    def _looked(self, before: Tensor, kept: Kept) -> Tensor:
        """Return the size of the coefficients at which the gradient is taken."""
        return before + kept.ahead * (kept.change + kept.apart)

    def _left(
        self, before: Tensor, inputs: Tensor, labels: Interval, scores: Interval, kept: Kept
    ) -> Tensor:
        """Return the size of what is left of the labels of the examples."""
        wrong = self._left_error(scores, self._looked(before, kept) @ inputs.mT, labels.size)
        return self._mean_size(scores) + labels.size + wrong

    def _size(self, before: Tensor, inputs: Tensor, left: Tensor, kept: Kept) -> Tensor:
        """Return the sizes of all terms that a step adds up for a coefficient."""
        kinds = ShrinkSlot | ShrinkMoved
        threshold = sum((part.threshold for part in self._parts if isinstance(part, kinds)), 0.0)
        decayed = self._decay * self._looked(before, kept)
        summed = self._scale(inputs.shape[-2]) * (left @ inputs)
        descent = self.program.descent
        if isinstance(descent, Mirrored) and self.arithmetic.sums_terms:
            summed = descent.spread * summed
        size = before + decayed + summed + threshold
        if self.problem.proximal_step.momentum is None:
            return size
        return size + (1 + kept.momentum) * (kept.change + kept.apart)

    def _off(self, inputs: Tensor, scores: Interval, kept: Kept) -> Tensor:
        """Return what becomes of a velocity that is not the change of the weights."""
        if self.problem.proximal_step.momentum is None:
            return torch.zeros_like(kept.apart)
        ahead = kept.ahead * kept.apart
        if not bool(ahead.any()):
            return kept.momentum * kept.apart
        moved = ahead @ inputs.mT
        near = scores.widened(moved)
        steepest = self.problem.model.link_function.slopes(near.low, near.high)[1]
        bent = self._scale(inputs.shape[-2]) * ((steepest * moved) @ inputs)
        return kept.momentum * kept.apart + self._decay * ahead + bent

    def _apart(self, earlier: Tensor, before: Tensor, n_examples: int) -> Tensor:
        """Return how far a velocity may be from the change of the weights: both were rounded.

        `earlier` are the sizes of the terms of the step before. Each sum counts its rounding twice,
        which also covers that these sizes are off themselves.
        """
        n_terms = 2 * n_examples + 32
        return torch.where(earlier > 0, 3 * self.arithmetic.sum_of(n_terms, earlier + before), 0.0)

    def _mean_size(self, scores: Interval) -> Tensor:
        """Return the largest size of an expected label, which rises with the score."""
        least, largest = self.problem.model.link_function.mean.bounds(scores.low, scores.high)
        return torch.maximum(least.abs(), largest.abs())

    def _left_error(self, scores: Interval, terms: Tensor, labels: Tensor) -> Tensor:
        """Return error of what is left of the labels, where heads return it, or of the means."""
        descent = self.program.descent
        if isinstance(descent, DescendSquares) and self.arithmetic.sums_terms:
            n_products = len(descent.weights) * self.problem.model.n_parameters
            return self.arithmetic.sum_of(n_products + 2, terms + labels)
        if not (isinstance(descent, DescendByExample) and self.arithmetic.sums_terms):
            return self._mean_error(scores, terms)
        n_terms, error = self.problem.model.n_parameters + 2, torch.zeros_like(terms)
        for part in descent.look_ups:
            read = abs(part.score) * terms + abs(part.label) * labels
            error = error + abs(part.factor) * self._head_error(part.function, n_terms, read)
        return error

    def _head_error(self, function: str, n_terms: int, terms: Tensor) -> Tensor:
        """Return the error of a head where the terms of its argument add up to this size."""
        fit = self.program.grid_mean(function)
        return fit.error + self.arithmetic.grid(fit, n_terms, terms)

    def _mean_error(self, scores: Interval, terms: Tensor) -> Tensor:
        """Return the error of the expected labels, of the transformer's and of the oracle's."""
        link, looks_ahead = self.problem.model.link_function, self.problem.proximal_step.nesterov
        n_terms = (1 + looks_ahead) * self.problem.model.n_parameters + 1
        if self.arithmetic.sums_terms:
            return self._head_error(self.problem.model.link, n_terms, terms)
        off = self.arithmetic.sum_of(n_terms, terms)
        near = scores.widened(off)
        steepest = link.slopes(near.low, near.high)[1]
        return steepest * off + 2 * self.arithmetic.evaluation(
            link.mean.name, self._mean_size(near)
        )

    def _scale(self, n_examples: int) -> float:
        """Return the factor of each example in the step, if there are `n_examples` of them."""
        if (descent := self.program.descent) is None:
            raise ProgramError(f"{self.program.construction} has no step on a linear model")
        return abs(descent.scale) * descent.share(n_examples)

    @property
    def _parts(self) -> list[Instruction]:
        """The instructions of the first step; steps differ in their momentum alone."""
        parts: list[Instruction] = []
        for layer in self.program.steps_of_block()[0]:
            for part in layer.instructions:
                parts += [part, *getattr(part, "moves", ())]
        return parts

    @property
    def _decay(self) -> float:
        kinds = DecaySlot | MoveByVelocity | DescendByExample
        return sum((abs(part.decay) for part in self._parts if isinstance(part, kinds)), 0.0)
