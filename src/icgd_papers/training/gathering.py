r"""One head of kernel attention with its gradients by hand: what readers gather from examples.

Tokens are columns, as in the paper, so that every batched product has long contiguous rows. A head
computes

    gathered_i = sum_j values_j K(scores_ji),    scores = examples^T M readers,

with M = B^T C, since <B x_j, C x_i> = x_j^T M x_i:

    linear      associated as ((values examples^T) M) readers, without the matrix of all pairs
    relu        elementwise, in place
    exp         powers of 2, in place, which torch computes faster than those of e
    softmax     exp, with a row of ones below the values that gathers the normaliser

The gradient of M readers is examples (values^T gradient * K'). With one or two rows of values, as
in a model without A, the matrix in brackets is never formed: the sum of
((examples * values_c) K') * gradient_c over the rows c is the same. For exp and softmax K' = K, so
these products and what is gathered are one product, on the way forward.

One task of n examples, m readers, c rows of values and d inputs costs O((c + d) n m); with the
linear kernel O(c d (n + m)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import log
from typing import NamedTuple, final

import torch
from torch import Tensor

SAFE_SCORE = 30.0
"""Up to 2^30, powers of scores and their sums stay far from float32's limits, 2^-126 and 2^128."""

FEW_ROWS = 2
"""Up to so many rows of values, a product for each costs less than the matrix of gradients."""


class Read(NamedTuple):
    """The columns that a head reads: values and inputs of the examples, inputs of the readers."""

    values: Tensor
    examples: Tensor
    readers: Tensor


class Places(NamedTuple):
    """Memory for two matrices of all pairs: the kernel, which is kept, and one for the moment."""

    kernel: Tensor | None = None
    moment: Tensor | None = None


class Targets(NamedTuple):
    """Where the gradients of what a head reads are added; None where they are not needed."""

    values: Tensor | None = None
    examples: Tensor | None = None
    readers: Tensor | None = None


class AbstractHead(ABC):
    """A head that has read: `gathered` is ready, and `pull_back` gives the gradients, once."""

    gathered: Tensor

    def __init__(self, read: Read, M: Tensor, places: Places) -> None:
        self.read, self.M, self.places = read, M, places
        self._gather()

    @abstractmethod
    def _gather(self) -> None: ...

    @abstractmethod
    def pull_back(self, gradient: Tensor, targets: Targets) -> Tensor:
        """From the gradient of `gathered` to that of M, for each task; others go to `targets`."""


@final
class LinearHead(AbstractHead):
    """K(s) = s."""

    def _gather(self) -> None:
        self.moments = product(self.read.values, self.read.examples.mT)
        self.asked = self.moments @ self.M
        self.gathered = product(self.asked, self.read.readers)

    def pull_back(self, gradient: Tensor, targets: Targets) -> Tensor:
        values, examples, readers = self.read
        to_asked = product(gradient, readers.mT)
        to_moments = to_asked @ self.M.mT
        _add(targets.values, to_moments, examples)
        _add(targets.examples, to_moments.mT, values)
        _add(targets.readers, self.asked.mT, gradient)
        return product(self.moments.mT, to_asked)


class _AbstractPairwise(AbstractHead):
    """A kernel that needs the matrix of all pairs."""

    unit = 1.0
    """The unit of scores."""

    def _gather(self) -> None:
        self.scored = times(self.M / self.unit, self.read.readers)
        scores = torch.bmm(self.read.examples.mT, self.scored, out=self.places.kernel)
        self.pattern = self._kernel(scores)
        self.gathered = self._gathered()

    @property
    def _has_few_rows(self) -> bool:
        return self.read.values.shape[1] <= FEW_ROWS

    @abstractmethod
    def _kernel(self, scores: Tensor) -> Tensor:
        """The kernel of the scores, computed in their place."""

    @abstractmethod
    def _gathered(self) -> Tensor:
        """The values times the pattern."""

    @abstractmethod
    def _weighted(self) -> Tensor:
        """(examples * values_c) times the slope of the kernel, for few rows c of values."""

    @abstractmethod
    def _times_slope(self, gradient: Tensor) -> Tensor:
        """The gradient of the kernel times its slope, in place."""

    def pull_back(self, gradient: Tensor, targets: Targets) -> Tensor:
        if targets.values is not None:
            _add(targets.values, gradient[:, : targets.values.shape[1]], self.pattern.mT)
        through = self._row_by_row if self._has_few_rows else self._at_once
        to_scored = through(gradient, targets)
        if targets.readers is not None:
            targets.readers.add_(times(self.M.mT, to_scored))
        return product(to_scored, self.read.readers.mT)

    def _row_by_row(self, gradient: Tensor, targets: Targets) -> Tensor:
        """The gradient of M times the readers, without that of the scores."""
        weighted = self._weighted()
        if targets.examples is not None:
            back = _row_products(gradient, self.scored, self.pattern.mT)
            of_examples = _sum_of_rows(back, self.read.values)
            targets.examples.add_(of_examples, alpha=self.unit)
        return _sum_of_rows(weighted, gradient)

    def _at_once(self, gradient: Tensor, targets: Targets) -> Tensor:
        """The gradient of M times the readers, through that of the scores."""
        to_pattern = torch.bmm(self.read.values.mT, gradient, out=self.places.moment)
        to_scores = self._times_slope(to_pattern)
        _add(targets.examples, self.scored, to_scores.mT, alpha=self.unit)
        return product(self.read.examples, to_scores)


@final
class ReLUHead(_AbstractPairwise):
    """K(s) = max(0, s)."""

    def _kernel(self, scores: Tensor) -> Tensor:
        return scores.relu_()

    def _gathered(self) -> Tensor:
        return product(self.read.values, self.pattern)

    def _weighted(self) -> Tensor:
        self.pattern.sign_()  # the kernel has been used, from here on its slope is
        return _row_products(self.read.values, self.read.examples, self.pattern)

    def _times_slope(self, gradient: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward.grad_input(  # type: ignore[no-any-return]
            gradient, self.pattern, 0, grad_input=gradient
        )


class _AbstractExponential(_AbstractPairwise):
    """Powers of 2, of scores in units of log 2."""

    unit = log(2)

    def _gathered(self) -> Tensor:
        values, examples, _ = self.read
        if not self._has_few_rows:
            return product(values, self.pattern)
        n_tasks, n_rows, n_examples = values.shape
        rows = values.new_empty(n_tasks, n_rows, 1 + examples.shape[1], n_examples)
        rows[:, :, 0] = values
        torch.mul(values[:, :, None], examples[:, None], out=rows[:, :, 1:])
        products: Tensor = product(rows.flatten(1, 2), self.pattern).unflatten(1, rows.shape[1:3])
        self.weighted = products[:, :, 1:]
        return products[:, :, 0]

    def _weighted(self) -> Tensor:
        return self.weighted

    def _times_slope(self, gradient: Tensor) -> Tensor:
        return gradient.mul_(self.pattern)


@final
class ExpHead(_AbstractExponential):
    """K(s) = e^s."""

    def _kernel(self, scores: Tensor) -> Tensor:
        return scores.exp2_()


@final
class SoftmaxHead(_AbstractExponential):
    """exp up to a factor of each reader, which the normaliser removes."""

    def _gather(self) -> None:
        values = self.read.values
        with_ones = torch.cat([values, torch.ones_like(values[:, :1])], dim=1)
        self.read = self.read._replace(values=with_ones)
        super()._gather()
        self.normaliser = self.gathered[:, -1:]
        self.gathered = self.gathered[:, :-1] / self.normaliser

    def _kernel(self, scores: Tensor) -> Tensor:
        if scores.numel():
            smallest, largest = (bound.item() for bound in scores.aminmax())
            if not -SAFE_SCORE <= smallest <= largest <= SAFE_SCORE:
                scores -= scores.amax(dim=1, keepdim=True)
        return scores.exp2_()

    def pull_back(self, gradient: Tensor, targets: Targets) -> Tensor:
        """Of q = a / s, for the rows a of the values and the row s of ones."""
        scaled = gradient / self.normaliser
        of_normaliser = -(scaled * self.gathered).sum(dim=1, keepdim=True)
        return super().pull_back(torch.cat([scaled, of_normaliser], dim=1), targets)


FAST: dict[str, type[AbstractHead]] = {
    "linear": LinearHead,
    "relu": ReLUHead,
    "exp": ExpHead,
    "softmax": SoftmaxHead,
}
"""The kernels whose gradients are written by hand."""


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right; a batched product is slow where the inner width is 1."""
    return left * right if left.shape[-1] == 1 else torch.bmm(left, right)


def times(matrix: Tensor, columns: Tensor) -> Tensor:
    """A matrix times the columns of every task."""
    return product(matrix.expand(len(columns), -1, -1), columns)


def _add(target: Tensor | None, left: Tensor, right: Tensor, alpha: float = 1.0) -> None:
    """Add alpha left @ right to the target, if there is one."""
    if target is not None:
        target.add_(product(left, right), alpha=alpha)


def _row_products(rows: Tensor, columns: Tensor, matrix: Tensor) -> Tensor:
    """(columns * rows_c) @ matrix for every row c."""
    blocks = rows[:, :, None] * columns[:, None]
    products: Tensor = product(blocks.flatten(1, 2), matrix).unflatten(1, blocks.shape[1:3])
    return products


def _sum_of_rows(blocks: Tensor, rows: Tensor) -> Tensor:
    """The sum over c of blocks_c * rows_c."""
    if rows.shape[1] == 1:
        return blocks[:, 0] * rows
    return (blocks * rows[:, :, None]).sum(dim=1)
