"""Bound (a) of functional descent: the largest quantities that any task in the domain can reach."""

from __future__ import annotations

from math import inf, isnan, sqrt
from typing import NamedTuple

import torch

from icgd.certificates.abstract_bounds import INTERVALS
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.intervals import ROOM
from icgd.certificates.kernel_rounding import largest_kernel, worst_kernel_error
from icgd.certificates.momentum_bound import is_stable
from icgd.certificates.rounded_points import Rounded
from icgd.memory import require_memory
from icgd.problems.kernel_machine import KernelHead, as_matrix
from icgd.problems.problem import Problem


def known(bound: float) -> float:
    """The bound, which is infinite where infinities met: nothing is known there."""
    return inf if isnan(bound) else bound


class _Step(NamedTuple):
    """One step: its numbers, the largest kernel of two points, and how far that may be off."""

    size: float
    noise: float
    momentum: float
    ahead: float
    kernel: float
    wrong: float


class _Sizes(NamedTuple):
    """What a step starts from: the norm of what is left on the examples and of its last change,
    the largest value and the largest change at a token, and how far that change may be off from
    the difference of two values.
    """

    left: float
    change: float
    value: float
    token_change: float
    apart: float = 0.0


class Worst:
    """The largest quantities of any task, step by step.

    `left` bounds the Euclidean norm of what is left on the examples, `value` any value of the
    function, `error` how far examples may be off (in that norm) and `query_error` a query. With
    momentum, `change` and the others of that name bound the same of the last change.
    """

    def __init__(self, problem: Problem, how: Arithmetic) -> None:
        self._problem, self._how = problem, how
        self._root = sqrt(how.n_tokens)
        width = problem.machine.input_width
        require_memory(f"Bounding {width:,} inputs", INTERVALS * 8 * width, "Take fewer inputs.")
        reach = torch.full((1, width), problem.domain.x, dtype=torch.float64)
        self._inputs = Rounded(reach, torch.zeros_like(reach))
        self._label = problem.domain.y
        self._start = self.left = self._root * problem.domain.y
        self.value = self.error = self.query_error = self.step_error = 0.0
        self.change = self.token_change = self.change_error = self.query_change_error = 0.0
        self._apart = 0.0
        self._summed = self._aged = 0.0
        self._kernels: dict[tuple[KernelHead, ...], tuple[float, float]] = {}

    @property
    def is_lost(self) -> bool:
        """Whether no bound is finite any more; it never is again."""
        return not (self.step_error < inf or self.error + self.query_error < inf)

    def take(self, number: int) -> None:
        """Go through one step."""
        update, how = self._problem.functional_step, self._how
        kept = (update.momentum_of(number), update.lookahead_of(number))
        machine = update.machine_of(number, self._problem.machine)
        size = ROOM * update.size_of(number)
        step = _Step(size, update.noise, *kept, *self._kernel(machine.heads))
        largest = how.n_tokens * step.kernel + step.noise  # no eigenvalue is larger
        is_slow = update.momentum is not None and machine.is_positive and is_stable(update, largest)
        added, read = self._round(step), self.left + step.ahead * self.change
        self._read_at_queries(step, added)
        self._note_apart(step, read)
        if is_slow:
            self._grow_slowly(number + 1, self._root * added)
        else:
            self._grow(step, largest, machine.is_positive, self._root * added)
        self._move(number, step.kernel, step.wrong)

    def _round(self, step: _Step) -> float:
        """What the step adds to any error, after noting what it would add to a run without any."""
        exact = _Sizes(self.left, self.change, self.value, self.token_change, self._apart)
        self.step_error = max(self.step_error, self._rounding(step, exact))
        changed = self.token_change + self.query_change_error + self.change_error
        off = _Sizes(
            self.left + self.error,
            self.change + self.change_error,
            self.value + self.error,
            changed,
        )
        return self._rounding(step, off)

    def _read_at_queries(self, step: _Step, added: float) -> None:
        """What queries learn and are off by; examples learn no more than that and the noise."""
        read = self.left + step.ahead * self.change
        error = self.error + step.ahead * self.change_error
        moved = step.momentum * self.query_change_error
        moved += step.size * self._root * step.kernel * error + added
        self.query_error, self.query_change_error = ROOM * (self.query_error + moved), ROOM * moved
        learnt = step.momentum * self.token_change
        learnt += step.size * (self._root * step.kernel + step.noise) * read
        self.value, self.token_change = ROOM * (self.value + learnt), ROOM * learnt

    def _grow(self, step: _Step, largest: float, is_positive: bool, added: float) -> None:
        """Norms are multiplied by those of the matrices of the step."""
        reach = ROOM * step.size * largest
        grows = max(1.0, reach - 1) * ROOM if is_positive else ROOM * (1 + reach)
        kept = ROOM * (step.momentum + step.ahead * reach)
        error, left = kept * self.change_error + added, kept * self.change
        self.error, self.change_error = (
            ROOM * (grows * self.error + error),
            ROOM * (reach * self.error + error),
        )
        self.left, self.change = grows * self.left + left, reach * self.left + left

    def _grow_slowly(self, n_done: int, added: float) -> None:
        """Where no product of steps is larger than `momentum_bound.py` says.

        What a step added is older by one after every further step; all of it is summed, and summed
        times its age.
        """
        self._aged += self._summed
        self._summed += added
        self.error = ROOM * (3 * self._aged + self._summed)
        self.change_error = ROOM * (6 * self._aged + self._summed)
        self.left, self.change = (2 * n_done + 1) * self._start, 4 * n_done * self._start

    def _kernel(self, heads: tuple[KernelHead, ...]) -> tuple[float, float]:
        """The largest kernel of heads and its error, found again only after inputs moved."""
        if heads not in self._kernels:
            self._kernels[heads] = self._kernel_of(heads)
        return self._kernels[heads]

    def _kernel_of(self, heads: tuple[KernelHead, ...]) -> tuple[float, float]:
        kernel = sum(largest_kernel(head, self._inputs.points) for head in heads)
        errors = (worst_kernel_error(head, self._inputs, self._how) for head in heads)
        return kernel, sum(errors) + self._sum(len(heads), kernel)

    def _sum(self, n_terms: int, size: float) -> float:
        return self._how.sum_of_size(n_terms, size)

    def _rounding(self, step: _Step, sizes: _Sizes) -> float:
        """What `rounding` of a step of a run is at most; Cauchy's inequality bounds the sums."""
        read = sizes.value + self.query_error + self._label
        off = self._sum(4, read)
        read_off = off + step.ahead * sizes.apart + self._sum(4, step.ahead * sizes.token_change)
        left = sizes.left + step.ahead * sizes.change + self._root * read_off
        sums = self._root * (step.kernel + step.wrong) * left
        moved = self._root * step.wrong * left
        moved += self._root**2 * (step.kernel + step.wrong) * read_off
        moved += self._sum(self._how.n_tokens, sums) + self._sum(4, step.noise * left)
        moved += step.noise * read_off
        ends = self._sum(4, read + sizes.token_change + step.size * sums)
        return known(ROOM * (off + step.momentum * sizes.apart + step.size * moved + ends))

    def _note_apart(self, step: _Step, left: float) -> None:
        """What `apart` of this step of a run is at most; values have grown, changes are learnt."""
        values = 2 * (self.value + self._label) + 2 * self.value
        sums = (self._root * (step.kernel + step.wrong) + step.noise) * left
        apart = 3 * self._sum(self._how.n_tokens + 8, values + step.size * sums)
        self._apart = known(ROOM * apart)

    def _move(self, number: int, kernel: float, wrong: float) -> None:
        machine, update = self._problem.machine, self._problem.functional_step
        transform = update.transform_of(number, machine.input_width)
        if transform is None:
            return
        n = self._how.n_tokens
        sums = as_matrix(transform, self._inputs.points).abs().sum(-1)
        points, error = self._inputs.points, self._inputs.error
        reach = float((points + error).max())
        moved = n * (wrong * reach + kernel * float(error.max()))
        moved += self._sum(n + len(sums), n * (kernel + wrong) * reach)
        error = error + sums * moved + self._sum(4, reach)
        self._kernels.clear()
        self._inputs = Rounded(ROOM * (points + sums * n * kernel * reach), ROOM * error)
