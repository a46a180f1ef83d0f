r"""Bounds for linear models: the error of each step, and its growth over the following steps.

(b) for one run: the error of a step in coefficient j is at most scale * sum_i |x_ij| e_i plus
rounding, where e_i bounds the error of the head at example i: that of its grid, and the effect of
rounding its scores. Soft threshold and clip do not expand distances. The run's own coefficients
give the bound for all steps at once. Mirrored heads also truncate the sum, and multiply the
rounding of their softmax weights by their factors.

A step multiplies earlier errors by at most its Lipschitz constant q in the 2-norm. The curvature of
the risk at the scores of the run bounds q, which is at most 1 for step sizes up to 2 / beta: then
the paper's bound, the sum of the errors of all steps, does hold. The curvature is taken over all
scores within the distance proved so far, because exact descent may be that far from the run.

(a) for every task: the same with the largest numbers that the domain allows.

With momentum a step also keeps a share of the last change.

All bounds are sums of products that are not negative, so that `ROOM` covers the rounding of the
bounds themselves.
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

# Growth of errors in descent with momentum, in function space and for linear models.
#
# A step maps the errors of the residual r and of its last change v linearly. For an eigenvalue t of
# the kernel, with a = step_size * t, momentum m and a look-ahead of c v, the map is
#
#     (r, v)  ->  T (r, v),    T = [[1 - a, m - a c], [-a, m - a c]]
#
# T is not normal: its norm exceeds 1 even if its powers shrink, so multiplying norms step by step
# would be useless. For given examples, the products of T since every step that added an error are
# computed for every eigenvalue. Their largest entry over all eigenvalues bounds the 2-norm, because
# the kernels of all steps have the same eigenvectors.
#
# For all tasks of a domain the eigenvalues are unknown. If all steps are equal, and T has no
# eigenvalue z outside the unit circle, then
#
#     r_k = h_k r_0 - q h_{k-1} (r_0 - v_0),    h_k = sum_i z_1^i z_2^(k-i),    |h_k| <= k + 1
#
# with q = z_1 z_2, so that |r_k| <= (2 k + 1) |r_0| + k |v_0| and v_k = r_k - r_{k-1}.
# Otherwise norms are multiplied.

PAIR_ROUNDING = 1e-12
"""The relative rounding of eigenvalues and of a product of two matrices of size 2."""


class Motion(NamedTuple):
    """The last change of the residual at every token, with two bounds on the transformer's.

    `error` bounds its distance from the exact change, and `mismatch` its distance from the
    difference of two values of the same run: the stream stores the change in a slot of its own.
    """

    change: Tensor
    error: Tensor
    mismatch: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Motion:
        """Return no change, without error."""
        zeros = torch.zeros_like(like)
        return cls(zeros, zeros, zeros)


class Pair(NamedTuple):
    """Numbers for a quantity, the residual or the weights, and for its last change."""

    value: Tensor
    change: Tensor


@dataclass
class Responses:
    """The growth of all errors added so far on the examples, in the 2-norm.

    `eigenvalues` are those of K + noise I, with an axis of tasks or none. `added` has the norm of
    the error that each step added to r and to v; `products` has, for each of these steps, the
    product of the matrices T since then: (*tasks, step, eigenvalue, 2, 2).
    """

    eigenvalues: Tensor
    added: list[Tensor] = field(default_factory=list)
    products: Tensor | None = None

    def after(self, size: float, momentum: float, ahead: float, added: Tensor, now: Pair) -> Pair:
        """Return the norms after a step that adds errors of norm `added` (*tasks, 1, outputs)."""
        descent = size * self.eigenvalues
        velocity_gain = momentum - ahead * descent
        rows = torch.stack([1 - descent, velocity_gain, -descent, velocity_gain], dim=-1)
        matrices = rows.unflatten(-1, (2, 2)).unsqueeze(-4)
        products = None if self.products is None else matrices @ self.products
        unit = torch.eye(2).to(matrices).expand_as(matrices)
        self.products = unit if products is None else torch.cat([products, unit], dim=-4)
        rounding = PAIR_ROUNDING * matrices.abs().amax((-4, -3, -2, -1))[..., None, None]
        self.added.append(ROOM * (added + 8 * rounding * (now.value + now.change)))
        # (*tasks, step, 2): the response of r and of v to an error of 1 in both.
        gains = self.products.abs().amax(-3).sum(-1)
        sums = gains.mT @ torch.cat(self.added, dim=-2)
        value, change = (ROOM * sums).split(1, dim=-2)
        return Pair(value, change)


def multiply_norms(
    contraction: Tensor, reach: Tensor, velocity_norm: Tensor, added: Tensor, now: Pair
) -> Pair:
    """Return the norms after a step, by the norms of its matrices.

    These are `contraction` of I - size K, `reach` of size K, and `velocity_norm` of m - c size K.
    """
    of_change = velocity_norm * now.change + added
    return Pair(
        ROOM * (contraction * now.value + of_change), ROOM * (reach * now.value + of_change)
    )


def is_stable(update: FunctionalStep, largest: float) -> bool:
    """Return whether all steps are equal and T has no eigenvalue outside the unit circle.

    Jury's conditions decide it for all eigenvalues of the kernel from 0 to `largest`.
    """
    if not update.is_constant or update.changes_kernel:
        return False
    momentum, reach = update.momentum_of(0), ROOM * update.size_of(0) * largest
    limit = 1 + 1 / (1 + 2 * momentum) if update.nesterov else 2 * (1 + momentum)
    return ROOM * reach <= limit


# Momentum in the bounds of linear models.
#
# A step from w with the last change v = w - w_before takes the gradient at w + ahead * v. Where a
# step is affine, the matrices T map errors of w and v, with the eigenvalues of the curvature in
# place of a kernel's: for least squares without l1, in a run that the box does not touch. Otherwise
# norms are multiplied: a soft threshold, a clip and a varying curvature have no common
# eigenvectors.


SQUARED = 1 + 2.0**-48
"""Safety factor for the rounding of a product of 2 x 2 matrices and of a sum with it."""


class Velocities(NamedTuple):
    """The momenta and last changes of some steps, a row each.

    `change` has the sizes of the last changes of the weights, and `mismatch` bounds the distance of
    the velocity in the stream from that change.
    """

    momentum: Tensor
    ahead: Tensor
    change: Tensor
    mismatch: Tensor

    @classmethod
    def of(cls, update: ProximalStep, before: Tensor) -> Velocities:
        """Return those of the steps from these weights, with a mismatch of 0 for now."""
        momentum, ahead = momenta(update, before.shape[-2])
        return cls(momentum, ahead, changes(before).abs(), torch.zeros_like(before))


def momenta(update: ProximalStep, n_steps: int) -> tuple[Tensor, Tensor]:
    """Return the momentum and the look-ahead of every step, a row each."""
    pairs = [(update.momentum_of(step), update.lookahead_of(step)) for step in range(n_steps)]
    both = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)
    return both[:, :1], both[:, 1:]


def changes(weights: Tensor) -> Tensor:
    """Return the difference of every row from the row before, 0 for the first row."""
    return weights - torch.cat([weights[..., :1, :], weights[..., :-1, :]], dim=-2)


def points_of(update: ProximalStep, history: History) -> Tensor:
    """Return the points at which a run's steps take gradients: a row for each step."""
    before = history[..., :-1, :].double()
    if update.momentum is None or not before.shape[-2]:
        return before
    return before + momenta(update, before.shape[-2])[1] * changes(before)


def is_affine(problem: Problem, histories: tuple[History, ...], errors: Tensor) -> bool:
    """Return whether every step of these runs, and every exact step near them, is affine."""
    update, largest_error = problem.proximal_step, float(errors.max()) if errors.numel() else 0.0
    if problem.model.link != "identity" or update.l1:
        return False
    largest = max(float(history.abs().max()) for history in histories)
    return ROOM * (largest + largest_error) < (problem.box or inf)


def affine_distances(problem: Problem, task: Task, added: Tensor) -> Iterator[Tensor]:
    """Yield the distance from exact descent after each step, where steps are affine.

    `added` has the norm of each step's error.
    """
    model, update = problem.model, problem.proximal_step
    design = model.design(task.x)
    responses = Responses(eigenvalues(model, update, design, torch.ones_like(design[..., :1])))
    now = Pair(*(torch.zeros_like(added[..., :1, None]),) * 2)
    for step, error in enumerate(added.unbind(-1)):
        momentum = (update.momentum_of(step), update.lookahead_of(step))
        now = responses.after(update.step_size or 0.0, *momentum, error[..., None, None], now)
        yield now.value[..., 0, 0]


def grow_distances(now: Pair, factor: float, momentum: float, ahead: float) -> Pair:
    """Return the distances after a step whose gradient step multiplies distances by `factor`.

    Nesterov's step looks ahead by all of its momentum, so that no momentum is added besides.
    """
    distance = lookahead_distance(now, ahead)
    moved = torch.where(distance > 0, factor * distance, 0.0)  # the factor may be infinite
    if momentum and not ahead:
        moved = moved + momentum * now.change
    return Pair(ROOM * moved, ROOM * (moved + now.value))


def after_many(moved: Callable[[Pair], Pair], error: Tensor, now: Pair, n_steps: int) -> Pair:
    """Return the distances after `n_steps` more steps: a linear map `moved`, then an error.

    No number is negative. Powers of the map are computed by repeated squaring, each with a safety
    factor for its rounding.
    """
    zero, one = torch.zeros_like(now.value), torch.ones_like(now.value)
    unit_images = [torch.stack(moved(unit)) for unit in (Pair(one, zero), Pair(zero, one))]
    matrix, shift = ROOM * torch.cat(unit_images, dim=-1), ROOM * torch.stack([error, error])
    pair = torch.stack(now)
    while n_steps > 0:
        if n_steps % 2:
            pair = SQUARED * (_product(matrix, pair) + shift)
        shift = SQUARED * (_product(matrix, shift) + shift)
        matrix, n_steps = SQUARED * _product(matrix, matrix), n_steps // 2
    return Pair(*pair)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of nonnegative matrices, where 0 times infinity is 0."""
    terms = left[:, :, None] * right[None, :, :]
    return torch.where((left[:, :, None] == 0) | (right[None, :, :] == 0), 0.0, terms).sum(1)


def lookahead_distance(now: Pair, ahead: float) -> Tensor:
    """Return the distance of the points at which gradients are taken."""
    return now.value + ahead * now.change if ahead else now.value


STEPS_ONE_BY_ONE = 1000
"""The number of steps of bound (a) that are followed one by one; later ones are powers of a map."""

NUMBERS_AT_ONCE = 2**22
"""The number of scores that are bounded at once; long runs are split."""

INPUTS_HELD, SCORES_HELD = 3, 16
"""Numbers held at once for every input and for every score."""

EIGENVALUE_ROUNDING = 1e-9
"""The relative safety margin for the rounding of eigenvalues."""

MARGIN = 16.0
"""Look-ahead on the range of scores, so that the Lipschitz constant is rarely recomputed."""


WEIGHT_ROUNDING = 8
"""Rounding errors of a softmax weight that the weights of a row do not share: an exponential is
within 2 units in the last place, its argument within a quarter, a quotient within half of one."""


@dataclass(frozen=True)
class LinearBounds(AbstractBounds):
    """Bounds on any coefficient of a linear model."""

    program: StackProgram

    def domain(self) -> DomainBound:
        """Return bound (a), for up to n_tokens examples.

        The distance of clipped weights is at most 2 box, plus the rounding of a clip by ReLUs.
        """
        model, domain, box = self.problem.model, self.problem.domain, self.problem.box or inf
        n_tokens = self.program.n_examples or self.arithmetic.n_tokens
        n_weights = model.n_parameters
        what = f"Bounding steps on {n_tokens:,} tokens"
        n_bytes = 8 * n_tokens * (INPUTS_HELD * n_weights + SCORES_HELD)
        require_memory(what, n_bytes, "Give a smaller n_tokens, or take fewer inputs.")
        inputs = torch.full((n_tokens, n_weights), domain.x, dtype=torch.float64)
        inputs[:, model.input_width :] = 1.0
        before = torch.full((1, n_weights), box, dtype=torch.float64)
        labels = Interval.symmetric(domain.y, 1, n_tokens)
        largest_score = self.program.score_reach or inf
        reach = Interval.symmetric(largest_score, 1, n_tokens)
        velocities = self._worst_velocities(before, inputs, labels, reach)
        added = self._step(before, inputs, labels, reach, velocities)
        # step_size * beta - 1 with the largest curvature that the domain allows.
        ends = torch.tensor([largest_score], dtype=torch.float64)
        steepest = float(model.link_function.slopes(-ends, ends)[1])
        squares = ROOM * float(inputs.square().sum())
        growth = self._scale(n_tokens) * steepest * squares + self._decay - 1
        factor = max(1.0, growth)
        largest_distance = 2 * box + self.arithmetic.sums_terms * float(added.max())
        momentum, ahead = float(velocities.momentum), float(velocities.ahead)
        error, n_steps = norm(added), self.program.n_steps

        def moved(now: Pair) -> Pair:
            return grow_distances(now, factor, momentum, ahead)

        now = Pair(*(torch.zeros(1, dtype=torch.float64),) * 2)
        for _ in range(min(n_steps, STEPS_ONE_BY_ONE)):
            value, change = moved(now)
            now = Pair(ROOM * (value + error), ROOM * (change + error))
        end = float(after_many(moved, error, now, n_steps - STEPS_ONE_BY_ONE).value)
        step = float(added.nan_to_num(nan=inf, posinf=inf).max())
        if not end < largest_distance:
            end = inf if isnan(largest_distance) else largest_distance
        return DomainBound(step, end)

    def _worst_velocities(
        self, before: Tensor, inputs: Tensor, labels: Interval, scores: Interval
    ) -> Velocities:
        """Return the largest momentum, and a change of twice the box, the most that fits in it."""
        update, n_steps = self.problem.proximal_step, self.program.n_steps
        if update.momentum is None or not n_steps:
            return Velocities.of(replace(update, momentum=None, nesterov=False), before)
        n_different = 1 if update.is_constant else n_steps
        momentum, ahead = (
            numbers.amax(0, keepdim=True) for numbers in momenta(update, n_different)
        )
        velocities = Velocities(momentum, ahead, 2 * before, torch.zeros_like(before))
        _, residual = self._residuals(before, inputs, labels, scores, velocities)
        size = self._term_sizes(before, inputs, residual, velocities)
        return velocities._replace(mismatch=self._mismatch(size, before, len(inputs)))

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
        """Return the propagated error of the weights plus the error of the heads.

        |mu(<w', x>) - mu(<w, x>)| <= slope * sum_j |x_j| error_j.
        """
        queries, weights = self.problem.model.design(task.queries), real[..., -1:, :].double()
        weight_error = error.double().expand_as(real[..., -1, :]).unsqueeze(-2)
        terms = (weights.abs() + weight_error) @ queries.abs().mT
        score_error = weight_error @ queries.abs().mT
        score_error = score_error + self.arithmetic.sum_of(queries.shape[-1], terms)
        scores = Interval.point(weights @ queries.mT).widened(score_error)
        steepest = self.problem.model.link_function.slopes(scores.low, scores.high)[1]
        mean_error = self._mean_error(scores, terms)
        copy_rounding = self.arithmetic.sum_of(4, self._mean_size(scores) + mean_error)
        error = steepest * score_error + mean_error + copy_rounding
        return error.nan_to_num(nan=inf, posinf=inf).mT

    @property
    def widest(self) -> float:
        return 2 * (self.problem.box or inf)

    def errors(self, task: Task, history: History) -> Tensor:
        """Return the error that each step adds to every coefficient, from the run's own weights."""
        design, labels = self.problem.model.design(task.x), Interval.point(task.y.double().mT)
        inputs, before = design.abs(), history[..., :-1, :].double()
        points = points_of(self.problem.proximal_step, history)
        velocities = Velocities.of(self.problem.proximal_step, before)
        length = max(1, NUMBERS_AT_ONCE // design[..., 0].numel())
        bounds: list[Tensor] = []
        size = torch.zeros_like(before[..., :1, :])  # of the terms of the step before
        for start in range(0, before.shape[-2], length):
            rows = slice(start, start + length)
            sizes_before, scores = before[..., rows, :].abs(), points[..., rows, :] @ design.mT
            step_velocities = Velocities(*(numbers[..., rows, :] for numbers in velocities))
            score_interval = Interval.point(scores)
            if self.problem.proximal_step.momentum is not None:
                _, residual = self._residuals(
                    sizes_before, inputs, labels, score_interval, step_velocities
                )
                terms = self._term_sizes(sizes_before, inputs, residual, step_velocities)
                sizes = torch.cat([size, terms], dim=-2)
                mismatch = self._mismatch(sizes[..., :-1, :], sizes_before, inputs.shape[-2])
                step_velocities = step_velocities._replace(mismatch=mismatch)
                size = sizes[..., -1:, :]
            bounds.append(self._step(sizes_before, inputs, labels, score_interval, step_velocities))
        return torch.cat(bounds, dim=-2) if bounds else before

    def _distances(
        self, task: Task, added: Tensor, histories: tuple[History, ...]
    ) -> Iterator[Tensor]:
        """Yield the distance after each step: the grown distance before it plus its error."""
        zero, margin, factor = torch.zeros_like(added[..., :1].sum(-1)), -1.0, 0.0
        update, now = self.problem.proximal_step, Pair(zero, zero)
        points = [points_of(update, history) for history in histories]
        for step, step_error in enumerate(added.unbind(-1)):
            momentum, ahead = update.momentum_of(step), update.lookahead_of(step)
            distance = lookahead_distance(now, ahead)
            if not bool((distance <= margin).all()):
                margin = MARGIN * float(distance.max())
                factor = self.lipschitz(task, *points, margin=margin)
            moved = grow_distances(now, factor, momentum, ahead)
            now = Pair(ROOM * (moved.value + step_error), ROOM * (moved.change + step_error))
            yield now.value

    def lipschitz(self, task: Task, *histories: History, margin: float = 0.0) -> float:
        """Bound the factor by which a step multiplies the distance of two points near these runs.

        A point is near if it lies in the box and at most `margin` from a run, in the 2-norm.
        """
        model, update = self.problem.model, self.problem.proximal_step
        scores = self._scores(task, torch.cat(histories, dim=-2), margin)
        if not bool(model.link_function.slopes(*scores)[1].isfinite().all()):
            return inf
        curvatures, step_size = curvature(model, update, task.x, scores), update.step_size or 0.0
        if not isfinite(curvatures.largest):  # entries of its matrix overflow
            return inf
        rounding = EIGENVALUE_ROUNDING * (1 + step_size * curvatures.largest)
        return max(0.0, curvatures.contraction(step_size)) + rounding

    def _scores(self, task: Task, points: History, margin: float) -> Scores:
        """Return the range of the scores of these points and of points in the box near them."""
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
        self,
        before: Tensor,
        inputs: Tensor,
        labels: Interval,
        scores: Interval,
        velocities: Velocities,
    ) -> Tensor:
        """Return the error that a step adds to every coefficient.

        `before` and `inputs` are the sizes of the coefficients (a row for each step) and of the
        design (a row for each example); `scores` and `velocities` have a row for each step.
        """
        n_examples = inputs.shape[-2]
        scale = self._scale(n_examples)
        residual_error, residual_size = self._residuals(before, inputs, labels, scores, velocities)
        size = self._term_sizes(before, inputs, residual_size, velocities)
        n_terms = 2 * n_examples + 16  # of both heads, and the units of the MLP
        underflow = n_terms * self.arithmetic.least * inputs.sum(-2, keepdim=True)
        rounding = underflow + self.arithmetic.sum_of(n_terms, size)
        error = scale * (residual_error @ inputs) + rounding
        descent = self.program.descent
        if isinstance(descent, Mirrored) and self.arithmetic.sums_terms:
            means = Interval(*self.problem.model.link_function.mean.bounds(scores.low, scores.high))
            residual = (means + labels.times(-1.0)).size + residual_error
            error = error + scale * self._mirrored_error(descent, inputs, residual)
        return ROOM * (error + self._mismatch_effect(inputs, scores, velocities))

    def _mirrored_error(self, descent: Mirrored, inputs: Tensor, residual: Tensor) -> Tensor:
        """Return the truncation error of mirrored heads, and the rounding of their softmax."""
        largest = residual.amax(-1, keepdim=True)
        truncation: Tensor = descent.truncation(largest) * (residual @ inputs)
        # The softmax weights of an example and its mirror image sum to at most cosh(score) / n.
        score = descent.n_heads * descent.probe * largest
        rounding = (
            WEIGHT_ROUNDING * self.arithmetic.roundoff * score.cosh() * inputs.sum(-2, keepdim=True)
        )
        return truncation + sum(map(abs, descent.gains)) * (
            rounding + inputs.shape[-2] * self.arithmetic.least
        )

    def _lookahead_size(self, before: Tensor, velocities: Velocities) -> Tensor:
        """Return the size of the coefficients at which the gradient is taken."""
        return before + velocities.ahead * (velocities.change + velocities.mismatch)

    def _residuals(
        self,
        before: Tensor,
        inputs: Tensor,
        labels: Interval,
        scores: Interval,
        velocities: Velocities,
    ) -> tuple[Tensor, Tensor]:
        """Bound the errors and the sizes of the residuals of the examples."""
        score_terms = self._lookahead_size(before, velocities) @ inputs.mT
        error = self._residual_error(scores, score_terms, labels.size)
        return error, self._mean_size(scores) + labels.size + error

    def _term_sizes(
        self, before: Tensor, inputs: Tensor, residual: Tensor, velocities: Velocities
    ) -> Tensor:
        """Return the total size of the terms that a step adds up for each coefficient."""
        shrinks = (i for i in self._instructions if isinstance(i, ShrinkSlot | ShrinkMoved))
        threshold = sum((shrink.threshold for shrink in shrinks), 0.0)
        decayed = self._decay * self._lookahead_size(before, velocities)
        gradient_terms = self._scale(inputs.shape[-2]) * (residual @ inputs)
        descent = self.program.descent
        if isinstance(descent, Mirrored) and self.arithmetic.sums_terms:
            gradient_terms = descent.spread * gradient_terms
        sizes = before + decayed + gradient_terms + threshold
        if self.problem.proximal_step.momentum is None:
            return sizes
        return sizes + (1 + velocities.momentum) * (velocities.change + velocities.mismatch)

    def _mismatch_effect(self, inputs: Tensor, scores: Interval, velocities: Velocities) -> Tensor:
        """Return the error of a step from the mismatch of velocity and change of the weights."""
        if self.problem.proximal_step.momentum is None:
            return torch.zeros_like(velocities.mismatch)
        ahead = velocities.ahead * velocities.mismatch
        if not bool(ahead.any()):
            return velocities.momentum * velocities.mismatch
        score_change = ahead @ inputs.mT
        widened = scores.widened(score_change)
        steepest = self.problem.model.link_function.slopes(widened.low, widened.high)[1]
        gradient_change = self._scale(inputs.shape[-2]) * ((steepest * score_change) @ inputs)
        return velocities.momentum * velocities.mismatch + self._decay * ahead + gradient_change

    def _mismatch(self, earlier: Tensor, before: Tensor, n_examples: int) -> Tensor:
        """Bound the distance of a velocity from the change of the weights: both were rounded.

        `earlier` are the sizes of the terms of the step before. Each sum counts its rounding twice,
        which also covers the error of these sizes.
        """
        n_terms = 2 * n_examples + 32
        return torch.where(earlier > 0, 3 * self.arithmetic.sum_of(n_terms, earlier + before), 0.0)

    def _mean_size(self, scores: Interval) -> Tensor:
        """Bound the size of an expected label, a monotone function of the score."""
        least, largest = self.problem.model.link_function.mean.bounds(scores.low, scores.high)
        return torch.maximum(least.abs(), largest.abs())

    def _residual_error(self, scores: Interval, terms: Tensor, labels: Tensor) -> Tensor:
        """Bound the error of the residuals, where heads return them, or else of the means."""
        descent = self.program.descent
        if isinstance(descent, DescendSquares) and self.arithmetic.sums_terms:
            n_products = len(descent.weights) * self.problem.model.n_parameters
            return self.arithmetic.sum_of(n_products + 2, terms + labels)
        if not (isinstance(descent, DescendByExample) and self.arithmetic.sums_terms):
            return self._mean_error(scores, terms)
        n_terms, error = self.problem.model.n_parameters + 2, torch.zeros_like(terms)
        for look_up in descent.look_ups:
            sizes = abs(look_up.score) * terms + abs(look_up.label) * labels
            error = error + abs(look_up.factor) * self._head_error(look_up.function, n_terms, sizes)
        return error

    def _head_error(self, function: str, n_terms: int, terms: Tensor) -> Tensor:
        """Bound the error of a head whose argument's terms add up to the size `terms`."""
        fit = self.program.grid_mean(function)
        return fit.error + self.arithmetic.grid(fit, n_terms, terms)

    def _mean_error(self, scores: Interval, terms: Tensor) -> Tensor:
        """Bound the distance of the transformer's expected labels from the oracle's."""
        link, looks_ahead = self.problem.model.link_function, self.problem.proximal_step.nesterov
        n_terms = (1 + looks_ahead) * self.problem.model.n_parameters + 1
        if self.arithmetic.sums_terms:
            return self._head_error(self.problem.model.link, n_terms, terms)
        rounding = self.arithmetic.sum_of(n_terms, terms)
        widened = scores.widened(rounding)
        steepest = link.slopes(widened.low, widened.high)[1]
        return steepest * rounding + 2 * self.arithmetic.evaluation(
            link.mean.name, self._mean_size(widened)
        )

    def _scale(self, n_examples: int) -> float:
        """Return the factor of each of `n_examples` examples in a step."""
        if (descent := self.program.descent) is None:
            raise ProgramError(
                f"The program of {self.program.construction} has no step on a linear model; "
                "bounds of linear models need one."
            )
        return abs(descent.scale) * descent.share(n_examples)

    @property
    def _instructions(self) -> list[Instruction]:
        """The instructions of the first step; others differ from it only in their momentum."""
        instructions: list[Instruction] = []
        for layer in self.program.steps_of_block()[0]:
            for instruction in layer.instructions:
                instructions += [instruction, *getattr(instruction, "moves", ())]
        return instructions

    @property
    def _decay(self) -> float:
        kinds = DecaySlot | MoveByVelocity | DescendByExample
        decays = (part.decay for part in self._instructions if isinstance(part, kinds))
        return sum(map(abs, decays), 0.0)
