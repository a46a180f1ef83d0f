r"""Bounds for functional descent. It approximates nothing, so all of its error is rounding.

(b) for one run: a step adds at most what the rounding of the kernel and of its sums moves, and
what was off before is multiplied by I - step_size (K + noise I), whose norm is known from the
kernel matrix: where steps converge, errors do not grow.

(a) for every task: the same with the largest kernel and the largest residual that the domain
allows. A kernel without negative eigenvalues lets the residual grow only if step_size times the
largest possible eigenvalue exceeds 2.

All numbers here are sums of products that are not negative, so that `ROOM` covers what rounding
takes from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isnan, sqrt

import torch
from torch import Tensor

from icgd.backends.prompt import known_labels
from icgd.backends.run import OnProgress
from icgd.certificates.abstract_bounds import AbstractBounds, DomainBound, RunBounds, one_by_one
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.intervals import ROOM
from icgd.certificates.kernel_rounding import kernel_error, largest_kernel, worst_kernel_error
from icgd.certificates.rounded_points import Rounded
from icgd.problems.kernel_machine import KernelHead, as_matrix, sum_of_heads
from icgd.problems.kernels import Kernel
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.shapes import History, Predictions


@dataclass(frozen=True)
class _Step:
    """One step of a task: its size, the exact kernel of tokens and examples, and its rounding."""

    size: float
    noise: float
    kernel: Tensor
    error: Tensor

    def rounding(self, labels: Tensor, values: Tensor, carried: Tensor, how: Arithmetic) -> Tensor:
        """What the step may add to the error of every value.

        `values` are exact; `carried` is how far the transformer's own may be off already.
        """
        n_examples = self.kernel.shape[-1]
        size = values.abs() + carried + labels.abs()
        off = how.sum_of(4, size)  # what is left is read off the values
        left = ((labels - values).abs() + carried + off)[..., :n_examples, :]
        largest = self.kernel.abs() + self.error
        sums = largest @ left
        wrong = self.error @ left + largest @ off[..., :n_examples, :]
        wrong = wrong + how.sum_of(n_examples, sums)
        own = how.sum_of(4, self.noise * left) + self.noise * off[..., :n_examples, :]
        wrong[..., :n_examples, :] += own
        return ROOM * (off + self.size * wrong + how.sum_of(4, size + self.size * sums))

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
        steps = (update.machine_of(step, machine) for step in range(self.program.n_steps))
        kernels = {head.kernel: head.function for each in steps for head in each.heads}
        return [kernel for kernel in kernels.values() if kernel.is_own]

    def domain(self) -> DomainBound:
        worst = _Worst(self.problem, self.how)
        for step in range(self.program.n_steps):
            worst.take(step)
        return DomainBound(_known(worst.step_error), _known(worst.error + worst.query_error))

    def steps(self, task: Task, history: History) -> Tensor:
        labels = known_labels(task).double()
        before = history[..., :-1, :].double().unflatten(-1, labels.shape[-2:]).unbind(-3)
        none, steps = torch.zeros_like(labels), self._steps(task, len(before))
        bounds = (
            _largest(step.rounding(labels, values, none, self.how))
            for step, values in zip(steps, before, strict=True)
        )
        return one_by_one(bounds, history)

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
        error = torch.zeros_like(labels)
        norm = error[..., :1, :]
        steps = self._steps(task, len(values))
        factors = self._contractions(steps, n)
        for step, factor, before in zip(steps, factors, values, strict=True):
            added = step.rounding(labels, before, error, self.how)
            reading = step.size * (step.kernel[..., n:, :].norm(dim=-1, keepdim=True) * norm)
            norm = ROOM * (factor * norm + added[..., :n, :].norm(dim=-2, keepdim=True))
            queries = ROOM * (error[..., n:, :] + reading + added[..., n:, :])
            error = torch.cat([norm.expand_as(labels[..., :n, :]), queries], dim=-2)
            yield _largest(error)

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
            steps.append(_Step(update.size_of(step), update.noise, kernel, error))
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
                factor: Tensor = torch.linalg.matrix_norm(whole, ord=2)
            else:
                if eigenvalues is None or update.changes_kernel:
                    eigenvalues = torch.linalg.eigvalsh(kernel) + step.noise
                factor = (1 - step.size * eigenvalues).abs().amax(-1)
            # Room for the rounding of the norm itself.
            yield (factor * (1 + 1e-9) + 1e-12)[..., None, None]


def _largest(errors: Tensor) -> Tensor:
    """The largest error at any token, which is infinite where nothing is known."""
    return errors.flatten(-2).amax(-1).nan_to_num(nan=inf, posinf=inf)


def _known(bound: float) -> float:
    """The bound, which is infinite where infinities met: nothing is known there."""
    return inf if isnan(bound) else bound


class _Worst:
    """The largest quantities that any task in the domain can reach, step by step.

    `left` bounds the Euclidean norm of what is left on the examples, `value` any value of the
    function, `error` how far examples may be off (in that norm) and `query_error` a query.
    """

    def __init__(self, problem: Problem, how: Arithmetic) -> None:
        self._problem, self._how = problem, how
        self._root = sqrt(how.n_tokens)
        width = problem.machine.input_width
        reach = torch.full((1, width), problem.domain.x, dtype=torch.float64)
        self._inputs = Rounded(reach, torch.zeros_like(reach))
        self._label = problem.domain.y
        self.left = self._root * problem.domain.y
        self.value = self.error = self.query_error = self.step_error = 0.0

    def take(self, step: int) -> None:
        """Go through one step."""
        update = self._problem.functional_step
        size, root = ROOM * update.size_of(step), self._root
        machine = update.machine_of(step, self._problem.machine)
        kernel, wrong = self._kernel(machine.heads)
        largest = self._how.n_tokens * kernel + update.noise  # no eigenvalue is larger
        grows = ROOM * (1 + size * largest)
        if machine.is_positive:
            grows = max(1.0, ROOM * size * largest - 1) * ROOM
        left = self.left + self.error
        one = self._rounding(size, update.noise, kernel, wrong, self.left, self.value)
        added = self._rounding(size, update.noise, kernel, wrong, left, self.value + self.error)
        self.step_error = max(self.step_error, one)
        self.query_error = ROOM * (self.query_error + size * root * kernel * self.error + added)
        self.error = ROOM * (grows * self.error + root * added)
        self.value = ROOM * (self.value + size * (root * kernel + update.noise) * self.left)
        self.left *= grows
        self._move(step, kernel, wrong)

    def _kernel(self, heads: tuple[KernelHead, ...]) -> tuple[float, float]:
        kernel = sum(largest_kernel(head, self._inputs.points) for head in heads)
        errors = (worst_kernel_error(head, self._inputs, self._how) for head in heads)
        return kernel, sum(errors) + self._sum(len(heads), kernel)

    def _sum(self, n_terms: int, size: float) -> float:
        return float(self._how.sum_of(n_terms, torch.tensor(size, dtype=torch.float64)))

    def _rounding(
        self, size: float, noise: float, kernel: float, wrong: float, left: float, value: float
    ) -> float:
        """What `_Step.rounding` is at most; Cauchy's inequality bounds the sums."""
        read = value + self.query_error + self._label
        off = self._sum(4, read)
        left = left + self._root * off
        sums = self._root * (kernel + wrong) * left
        moved = self._root * wrong * left + self._root**2 * (kernel + wrong) * off
        moved += self._sum(self._how.n_tokens, sums) + self._sum(4, noise * left) + noise * off
        return _known(ROOM * (off + size * moved + self._sum(4, read + size * sums)))

    def _move(self, step: int, kernel: float, wrong: float) -> None:
        machine, update = self._problem.machine, self._problem.functional_step
        transform = update.transform_of(step, machine.input_width)
        if transform is None:
            return
        n = self._how.n_tokens
        sums = as_matrix(transform, self._inputs.points).abs().sum(-1)
        points, error = self._inputs.points, self._inputs.error
        reach = float((points + error).max())
        moved = n * (wrong * reach + kernel * float(error.max()))
        moved += self._sum(n + len(sums), n * (kernel + wrong) * reach)
        error = error + sums * moved + self._sum(4, reach)
        self._inputs = Rounded(ROOM * (points + sums * n * kernel * reach), ROOM * error)
