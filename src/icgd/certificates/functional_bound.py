r"""Bounds for functional descent. It approximates nothing, so all of its error is rounding.

(b) for one run: a step adds at most what the rounding of the kernel and of its sums moves, and
what was off before is multiplied by I - step_size (K + noise I), whose norm is known from the
kernel matrix: where steps converge, errors do not grow.

(a) for every task: the same with the largest kernel and the largest residual that the domain
allows. A kernel without negative eigenvalues lets the residual grow only if step_size times the
largest possible eigenvalue exceeds 2.

With momentum the last change is off too, and what both become is in `momentum_bound.py`.

All numbers here are sums of products that are not negative, so that `ROOM` covers what rounding
takes from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.backends.prompt import known_labels
from icgd.backends.run import OnProgress
from icgd.certificates import intervals
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds, one_by_one
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional_worst import Worst, known
from icgd.certificates.intervals import ROOM
from icgd.certificates.kernel_rounding import kernel_error
from icgd.certificates.momentum_bound import Motion, Pair, Responses, multiplied
from icgd.certificates.rounded_points import Rounded
from icgd.problems.kernel_machine import as_matrix, sum_of_heads
from icgd.problems.kernels import Kernel
from icgd.problems.task import Task
from icgd.shapes import History, Predictions

MOST_FOLLOWED = 3 * 10**5
"""The most steps that bound (a) follows; of more nothing is known, as they would take minutes."""


@dataclass(frozen=True)
class _Step:
    """One step of a task: its size, the exact kernel of tokens and examples, and its rounding."""

    size: float
    noise: float
    kernel: Tensor
    error: Tensor
    momentum: float = 0.0
    ahead: float = 0.0

    def rounding(
        self, labels: Tensor, values: Tensor, carried: Tensor, motion: Motion, how: Arithmetic
    ) -> Tensor:
        """What the step may add to the error of every value, and of its last change.

        `values` are exact; `carried` is how far the transformer's own may be off already.
        """
        n_examples = self.kernel.shape[-1]
        size, change = values.abs() + carried + labels.abs(), _largest_change(motion)
        off = how.sum_of(4, size)  # what is left is read off the values
        read_off = off + self.ahead * motion.apart
        if self.ahead:
            read_off = read_off + how.sum_of(4, self.ahead * change)
        left = (labels - values + self.ahead * motion.change).abs() + self.ahead * motion.carried
        left = (left + carried + read_off)[..., :n_examples, :]
        largest = self.kernel.abs() + self.error
        sums = largest @ left
        wrong = self.error @ left + largest @ read_off[..., :n_examples, :]
        wrong = wrong + how.sum_of(n_examples, sums)
        own = how.sum_of(4, self.noise * left) + self.noise * read_off[..., :n_examples, :]
        wrong[..., :n_examples, :] += own
        kept = self.momentum * motion.apart
        ends = how.sum_of(4, size + change + self.size * sums)
        return ROOM * (off + kept + self.size * wrong + ends)

    def apart(
        self, labels: Tensor, values: Tensor, after: Tensor, motion: Motion, how: Arithmetic
    ) -> Tensor:
        """How far the change in the stream may be from that of the values before and after."""
        n_examples = self.kernel.shape[-1]
        size = values.abs() + after.abs() + 2 * labels.abs()
        change = _largest_change(motion)
        left = ((labels - values).abs() + self.ahead * change)[..., :n_examples, :]
        sums = (self.kernel.abs() + self.error) @ left
        sums[..., :n_examples, :] += self.noise * left
        # Each sum counts its rounding twice, which also covers that its terms are off.
        return ROOM * 3 * how.sum_of(n_examples + 8, size + change + self.size * sums)

    def moved(
        self, tokens: Rounded, examples: Rounded, transform: Tensor, how: Arithmetic
    ) -> Rounded:
        """The inputs after x <- x + A sum_j K x_j."""
        points = tokens.points + self.kernel @ examples.points @ transform.mT
        size = examples.points.abs() + examples.error
        largest = self.kernel.abs() + self.error
        wrong = self.error @ size + self.kernel.abs() @ examples.error
        wrong = wrong + how.sum_of(examples.points.shape[-2], largest @ size)
        added = wrong @ transform.abs().mT
        added = added + how.sum_of(len(transform), largest @ size @ transform.abs().mT)
        error = tokens.error + added + how.sum_of(4, tokens.points.abs())
        return Rounded(points, (ROOM * error).nan_to_num(nan=inf, posinf=inf))


@dataclass(frozen=True)
class FunctionBounds(AbstractBounds):
    """Bounds on any value of the function. The paper has no closed form: its step is exact."""

    @property
    def stated(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self._own if kernel.lipschitz is not None)

    @property
    def estimated(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self._own if kernel.lipschitz is None)

    @property
    def _own(self) -> list[Kernel]:
        """The kernels of the user's own, each once."""
        update, machine = self.problem.functional_step, self.problem.machine
        n_different = self.program.n_steps if update.heads else min(self.program.n_steps, 1)
        steps = (update.machine_of(step, machine) for step in range(n_different))
        kernels = {head.kernel: head.function for each in steps for head in each.heads}
        return [kernel for kernel in kernels.values() if kernel.is_own]

    def domain(self) -> DomainBound:
        worst = Worst(self.problem, self.how)
        if self.program.n_steps > MOST_FOLLOWED:
            return DomainBound(inf, inf)
        for step in range(self.program.n_steps):
            worst.take(step)
            if worst.is_lost:
                return DomainBound(inf, inf)
        return DomainBound(known(worst.step_error), known(worst.error + worst.query_error))

    def steps(self, task: Task, history: History) -> Tensor:
        labels = known_labels(task).double()
        before = history[..., :-1, :].double().unflatten(-1, labels.shape[-2:]).unbind(-3)
        none, steps = torch.zeros_like(labels), self._steps(task, len(before))
        motions = self._motions(labels, before, steps)
        bounds = (
            _largest(step.rounding(labels, values, none, motion, self.how))
            for step, values, motion in zip(steps, before, motions, strict=True)
        )
        return one_by_one(bounds, history)

    def _motions(
        self, labels: Tensor, values: Sequence[Tensor], steps: list[_Step]
    ) -> Iterator[Motion]:
        """The last change of what is left before every step of a run."""
        motion = Motion.none(labels)
        is_plain = self.problem.functional_step.momentum is None
        for number, step in enumerate(steps):
            yield motion
            if not is_plain and number + 1 < len(values):
                now, after = values[number], values[number + 1]
                apart = step.apart(labels, now, after, motion, self.how)
                motion = Motion(now - after, motion.carried, apart)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        trajectory = one_by_one(self._trajectory(task, real), real, on_progress)
        return RunBounds(self.steps(task, history), trajectory)

    def predictions(
        self, task: Task, history: History, real: History, error: Tensor
    ) -> Predictions:
        """The function's values at the queries are learnt as those at the examples are."""
        every = error.double().expand_as(real[..., -1, :])
        return self.problem.oracle.predict(task, every)

    def _trajectory(self, task: Task, real: History) -> Iterator[Tensor]:
        """Errors on examples are in the Euclidean norm: a step that converges lets none grow."""
        n, labels = task.n_examples, known_labels(task).double()
        values = real[..., :-1, :].unflatten(-1, labels.shape[-2:]).unbind(-3)
        if self.problem.functional_step.momentum is not None:
            yield from self._trajectory_of_momentum(task, labels, values)
            return
        error, none = torch.zeros_like(labels), Motion.none(labels)
        norm = error[..., :1, :]
        steps = self._steps(task, len(values))
        factors = self._contractions(steps, n)
        for step, factor, before in zip(steps, factors, values, strict=True):
            added = step.rounding(labels, before, error, none, self.how)
            reading = step.size * (step.kernel[..., n:, :].norm(dim=-1, keepdim=True) * norm)
            norm = ROOM * (factor * norm + _norm(added[..., :n, :]))
            queries = ROOM * (error[..., n:, :] + reading + added[..., n:, :])
            error = torch.cat([norm.expand_as(labels[..., :n, :]), queries], dim=-2)
            yield _largest(error)

    def _trajectory_of_momentum(
        self, task: Task, labels: Tensor, values: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """The same with a last change, which is off at examples and queries too."""
        n, steps = task.n_examples, self._steps(task, len(values))
        off = Pair(torch.zeros_like(labels), torch.zeros_like(labels))
        norms = Pair(*(part[..., :1, :] for part in off))
        grow = self._growth(steps, n)
        for number, (step, before) in enumerate(zip(steps, values, strict=True)):
            change = values[max(0, number - 1)] - before
            motion = Motion(change, off.change, torch.zeros_like(change))
            added = step.rounding(labels, before, off.left, motion, self.how)
            read = norms.left + step.ahead * norms.change
            reading = step.size * (step.kernel[..., n:, :].norm(dim=-1, keepdim=True) * read)
            moved = step.momentum * off.change[..., n:, :] + reading + added[..., n:, :]
            norms = grow(number, _norm(added[..., :n, :]), norms)
            queries = Pair(ROOM * (off.left[..., n:, :] + moved), ROOM * moved)
            off = Pair(
                *(
                    torch.cat([norm.expand_as(labels[..., :n, :]), part], dim=-2)
                    for norm, part in zip(norms, queries, strict=True)
                )
            )
            yield _largest(off.left)

    def _growth(self, steps: list[_Step], n: int) -> Callable[[int, Tensor, Pair], Pair]:
        """What a step makes of the norms of errors on the examples, and of what it adds."""
        update, machine = self.problem.functional_step, self.problem.machine
        if steps and machine.is_symmetric and not update.changes_kernel:
            values = torch.linalg.eigvalsh(steps[0].kernel[..., :n, :]) + update.noise
            responses = Responses(values)
            return lambda number, added, now: responses.after(
                steps[number].size, steps[number].momentum, steps[number].ahead, added, now
            )
        factors = list(self._contractions(steps, n))

        def grow(number: int, added: Tensor, now: Pair) -> Pair:
            step = steps[number]
            norm = torch.linalg.matrix_norm(step.kernel[..., :n, :], ord=2)[..., None, None]
            reach = step.size * (norm * (1 + 1e-9) + step.noise)
            return multiplied(
                factors[number], reach, step.momentum + step.ahead * reach, added, now
            )

        return grow

    def _steps(self, task: Task, n_steps: int) -> list[_Step]:
        """Every step, with inputs that move and carry their own rounding."""
        update, machine, how = self.problem.functional_step, self.problem.machine, self.how
        tokens = Rounded(points := task.points, torch.zeros_like(points))
        steps: list[_Step] = []
        for step in range(n_steps):
            if step == 0 or update.changes_kernel:
                examples = Rounded(*(part[..., : task.n_examples, :] for part in tokens))
                heads = update.machine_of(step, machine).heads
                kernel = sum_of_heads(heads, tokens.points, examples.points)
                errors = [kernel_error(head, tokens, examples, how) for head in heads]
                error = torch.stack(errors).sum(0) + how.sum_of(len(errors), kernel.abs())
            kept = (update.momentum_of(step), update.lookahead_of(step))
            steps.append(_Step(update.size_of(step), update.noise, kernel, error, *kept))
            transform = update.transform_of(step, machine.input_width)
            if transform is not None:
                tokens = steps[-1].moved(tokens, examples, as_matrix(transform, points), how)
        return steps

    def _contractions(self, steps: list[_Step], n: int) -> Iterator[Tensor]:
        """The norm of I - step_size (K + noise I) on the examples, for each step."""
        eigenvalues: Tensor | None = None
        update = self.problem.functional_step
        for number, step in enumerate(steps):
            kernel = step.kernel[..., :n, :]
            if not update.machine_of(number, self.problem.machine).is_symmetric:
                whole = (1 - step.size * step.noise) * torch.eye(n).to(kernel) - step.size * kernel
                factor = _stretch(whole)
            else:
                if eigenvalues is None or update.changes_kernel:
                    eigenvalues = torch.linalg.eigvalsh(kernel) + step.noise
                factor = (1 - step.size * eigenvalues).abs().amax(-1)
            # Room for the rounding of the norm itself.
            yield (factor * (1 + 1e-9) + 1e-12)[..., None, None]


def _stretch(matrix: Tensor) -> Tensor:
    """By how much a matrix stretches any vector at most; infinite if an entry of it is."""
    known = matrix.isfinite().flatten(-2).all(-1)
    finite = matrix.where(known[..., None, None], 0.0)
    stretched: Tensor = torch.linalg.matrix_norm(finite, ord=2)
    return stretched.where(known, inf)


def _largest_change(motion: Motion) -> Tensor:
    return motion.change.abs() + motion.carried + motion.apart


def _largest(errors: Tensor) -> Tensor:
    """The largest error at any token, which is infinite where nothing is known."""
    return errors.flatten(-2).amax(-1).nan_to_num(nan=inf, posinf=inf)


def _norm(errors: Tensor) -> Tensor:
    """The norm over tokens, of every output."""
    return intervals.norm(errors.mT).unsqueeze(-2)
