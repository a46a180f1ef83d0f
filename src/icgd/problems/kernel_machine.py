"""The target of functional descent: a function that is a sum of kernels around the examples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from icgd.errors import KernelError, SettingError
from icgd.facts import counted
from icgd.problems.arrays import first_set
from icgd.problems.kernels import Kernel, kernel_named
from icgd.problems.settings import count, instance, is_sequence, positive, settle
from icgd.shapes import KernelMatrix, OtherPoints, Points

Rows = tuple[tuple[float, ...], ...]
"""A matrix as plain data."""

ASYMMETRY = 1e-9
"""How far a kernel matrix may be from symmetric, relative to its largest entry: rounding."""


def as_rows(name: str, matrix: object) -> Rows:
    """`matrix` as plain data, if it is a rectangle of numbers."""
    try:
        tensor = torch.as_tensor(matrix, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise SettingError.wrong_kind(name, matrix, "a matrix of numbers") from None
    if tensor.ndim != 2 or not tensor.isfinite().all():
        raise SettingError.wrong_kind(name, matrix, "a matrix of finite numbers")
    return tuple(tuple(row) for row in tensor.tolist())


def unit_rows(factor: float, width: int) -> Rows:
    """The matrix factor * I as plain data."""
    return tuple(tuple(factor * (i == j) for j in range(width)) for i in range(width))


def as_matrix(rows: Rows, like: Tensor) -> Tensor:
    """Plain data as a tensor, rounded once to the precision of `like`."""
    return torch.tensor(rows, dtype=torch.float64).to(like)


@dataclass(frozen=True)
class KernelHead:
    """The kernel `weight * K(G u, G w)`, with G = `transform`, or no transform.

    A length scale s is the transform I / s. `shape` is the smoothness of the matern kernel, the
    degree of the polynomial one. With a `key_transform` H it is `weight * K(G u, H w)`, where w is
    an example: that is how heads are learnt. It then counts as not symmetric.
    """

    kernel: str = "rbf"
    transform: Any = None
    """It may be given as anything that torch reads as a matrix, and is kept as `Rows`."""
    weight: float = 1.0
    shape: float | None = None
    key_transform: Any = None

    def __post_init__(self) -> None:
        kernel_named(self.kernel, self.shape)
        settle(self, weight=positive("weight", self.weight))
        for name in ("transform", "key_transform"):
            if getattr(self, name) is not None:
                settle(self, **{name: as_rows(name, getattr(self, name))})
        if self.key_transform is not None:
            self._require_same_rows()

    def _require_same_rows(self) -> None:
        """Scores and distances are of vectors of one length."""
        if self.transform is None:
            raise SettingError.without("key_transform", "transform")
        if len(self.key_transform) != len(self.transform):
            expected = f"{len(self.transform)}, one for each row of transform"
            raise SettingError.wrong_length("key_transform", len(self.key_transform), expected)

    def __repr__(self) -> str:
        """The head without the numbers of its matrices."""
        shape = "" if self.shape is None else f"[{self.shape:g}]"
        maps = {"G": self.transform, "H": self.key_transform}
        sizes = [f", {name} {len(m)} x {len(m[0])}" for name, m in maps.items() if m is not None]
        return f"KernelHead({self.weight:g} {self.kernel}{shape}{''.join(sizes)})"

    @property
    def function(self) -> Kernel:
        return kernel_named(self.kernel, self.shape)

    @property
    def is_symmetric(self) -> bool:
        return self.function.is_symmetric and self.key_transform is None

    @property
    def is_positive(self) -> bool:
        return self.function.is_positive and self.key_transform is None

    @cached_property
    def keys(self) -> KernelHead:
        """The head whose transform is that of the examples."""
        if self.key_transform is None:
            return self
        return replace(self, transform=self.key_transform, key_transform=None)

    def matrix(self, left: Points, right: OtherPoints) -> KernelMatrix:
        """This head's kernel of every pair."""
        return self.weight * self.function.matrix(self.moved(left), self.keys.moved(right))

    def moved(self, points: Points) -> Tensor:
        """Every point u as G u."""
        if self.transform is None:
            return points
        return points @ as_matrix(self.transform, points).mT


@dataclass(frozen=True, init=False)
class KernelMachine:
    """f(x) = sum_i a_i K(x, x_i), where K is the sum of the heads' kernels.

    `heads` may be the name of a kernel, or one head. What is trained is the function itself: its
    parameters are its values at all tokens.
    """

    input_width: int
    heads: tuple[KernelHead, ...]
    output_width: int

    def __init__(
        self,
        input_width: int,
        heads: str | KernelHead | Iterable[KernelHead] = "rbf",
        output_width: int = 1,
    ) -> None:
        if isinstance(heads, str):
            heads = KernelHead(heads)
        widths = {"input_width": input_width, "output_width": output_width}
        settle(
            self,
            heads=tuple(heads) if is_sequence(heads) else (heads,),
            **{name: count(name, width) for name, width in widths.items()},
        )
        if not self.heads:
            raise SettingError.wrong_length("heads", 0, "at least one")
        for head in self.heads:
            instance("head", head, KernelHead)
            self._require_width(head)

    def _require_width(self, head: KernelHead) -> None:
        expected = f"{self.input_width}, one for each input"
        for name in ("transform", "key_transform"):
            for row in getattr(head, name) or ():
                if len(row) != self.input_width:
                    raise SettingError.wrong_length(f"A row of {name}", len(row), expected)

    def in_words(self) -> str:
        """The machine in a few words, such as "function of 3 inputs, rbf kernel"."""
        kernels = " + ".join(dict.fromkeys(head.kernel for head in self.heads))
        return f"function of {counted(self.input_width, 'input')}, {kernels} kernel"

    @property
    def is_symmetric(self) -> bool:
        return all(head.is_symmetric for head in self.heads)

    @property
    def is_positive(self) -> bool:
        """Whether its matrices are known to have no negative eigenvalue."""
        return all(head.is_positive for head in self.heads)

    def matrix(self, left: Points, right: OtherPoints) -> KernelMatrix:
        """The machine's kernel of every pair."""
        return sum_of_heads(self.heads, left, right)

    def require_symmetric(self, purpose: str) -> None:
        """Raise `KernelError` if a head's kernel is known not to be symmetric."""
        for head in self.heads:
            if not head.is_symmetric:
                raise KernelError.needs_symmetry(head.kernel, purpose)

    def gram(self, points: Points) -> KernelMatrix:
        """The kernel of every pair of `points`, if it is finite and as symmetric as it claims."""
        matrices = [head.matrix(points, points) for head in self.heads]
        for head, matrix in zip(self.heads, matrices, strict=True):
            _require_gram(head, matrix)
        return reduce(torch.add, matrices)


def sum_of_heads(heads: tuple[KernelHead, ...], left: Points, right: OtherPoints) -> KernelMatrix:
    """The sum of the heads' kernels of every pair."""
    return reduce(torch.add, (head.matrix(left, right) for head in heads))


def _require_gram(head: KernelHead, matrix: Tensor) -> None:
    if index := first_set(~matrix.isfinite()):
        raise KernelError.not_finite(head.kernel, index, matrix[tuple(index)].item())
    if not head.is_symmetric:
        return
    excess = (matrix - matrix.mT).abs() - ASYMMETRY * matrix.abs().amax()
    if index := first_set(excess > 0):
        mirrored = [*index[:-2], index[-1], index[-2]]
        values = matrix[tuple(index)].item(), matrix[tuple(mirrored)].item()
        raise KernelError.not_symmetric(head.kernel, index, *values)
