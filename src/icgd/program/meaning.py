"""What instructions compute: each says it once, in `meaning`, over the primitives of a domain.

A domain is a kind of value with these primitives. From one meaning follow

    recorded operations     the fused run                           backends/recorder.py
    enclosures              error bounds                            certificates/propagation.py
    shapes                  the check of a program when it is built program/check.py

A value has a row for each token, or is a matrix that all tokens share: weights, what an optimiser
remembers, a gradient. Instructions of one layer read what stood in the slots before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from math import nan
from operator import add, mul, neg
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from icgd.program.chain_instructions import (
        LookUpProduct,
        MultiplyByEntries,
        MultiplyEntries,
        PassBack,
        Product,
    )
    from icgd.program.instructions import Combination, Instruction
    from icgd.program.kernel_instructions import KernelTerm
    from icgd.program.layout import Layout
    from icgd.program.network_instructions import LookUpStep, TakeTurns
    from icgd.program.set_instructions import Faces

Value = TypeVar("Value")
Means = Literal["attention", "mlp", "lattice", "grid"]
"""The layers that evaluate a function: bounds depend on it, because rounding does."""

NOWHERE = -1
"""The place from which `take` gathers 0."""


class PerStep(float):
    """A number that changes from step to step, in a program whose steps have a schedule.

    As a float it is no number, so that it equals none.
    """

    numbers: tuple[float, ...]

    def __new__(cls, numbers: Iterable[float]) -> PerStep:
        made = super().__new__(cls, nan)
        made.numbers = tuple(numbers)
        return made

    def __iter__(self) -> Iterator[float]:
        return iter(self.numbers)

    def __neg__(self) -> PerStep:
        return PerStep(map(neg, self))

    def __mul__(self, other: float) -> PerStep:
        return PerStep(map(mul, self, self._like(other)))

    def __add__(self, other: float) -> PerStep:
        return PerStep(map(add, self, self._like(other)))

    def _like(self, other: float) -> Iterable[float]:
        return other if isinstance(other, PerStep) else [other] * len(self.numbers)

    __rmul__, __radd__ = __mul__, __add__


class AnyDomain(ABC, Generic[Value]):
    """The primitives that all domains have."""

    @abstractmethod
    def combine(self, terms: Sequence[tuple[float, Value]]) -> Value:
        """Return the sum of all values, each times its factor."""

    @abstractmethod
    def add(self, *values: Value) -> Value:
        """Return the sum, one value after the other."""

    @abstractmethod
    def multiply(self, left: Value, right: Value) -> Value:
        """Return the product, entry by entry."""


class TokenDomain(AnyDomain[Value]):
    """The primitives of all domains whose values have a row for each token."""

    @abstractmethod
    def constant_map(self, rows: Sequence[Sequence[float]], value: Value) -> Value:
        """Return a constant matrix times the value at every token."""

    @abstractmethod
    def zero(self, value: Value) -> Value:
        """Zeros of the same shape."""

    @abstractmethod
    def where(self, flag: str, closed_by: Sequence[str], value: Value, otherwise: Value) -> Value:
        """Return the value at the tokens with this flag and none of the others; elsewhere
        `otherwise`.
        """


class StackDomain(TokenDomain[Value]):
    """The primitives that meanings are made of."""

    layout: Layout

    # Linear algebra.

    @abstractmethod
    def scale(self, number: Value, value: Value) -> Value:
        """All coordinates of a token times its number."""

    @abstractmethod
    def scale_columns(self, value: Value, factor: float, last: float) -> Value:
        """Return the value times `factor`, but its last column, that of a bias, times `last`."""

    @abstractmethod
    def matmul(self, weights: Value, inputs: Value) -> Value:
        """`weights @ inputs` at every token."""

    @abstractmethod
    def transpose(self, weights: Value, n_rows: int) -> Value:
        """Return the first rows of the transposed matrix: nothing is passed back to a bias."""

    @abstractmethod
    def above_one(self, inputs: Value) -> Value:
        """Return the inputs with a constant 1 below them, which the last column of weights
        multiplies.
        """

    @abstractmethod
    def take(self, value: Value, places: Sequence[int]) -> Value:
        """Return the coordinates at these places; 0 from `NOWHERE`."""

    # Functions.

    @abstractmethod
    def apply(self, function: str, argument: Value, by: Means) -> Value:
        """Return the program's function of this name, entry by entry."""

    @abstractmethod
    def softmax(self, scores: Value) -> Value:
        """Return the shares exp(z_k) / sum_j exp(z_j) of a token's coordinates."""

    @abstractmethod
    def evaluate(self, function: str, argument: Value) -> Value:
        """Return the real function of this name, entry by entry; `by_units` says how it is
        computed.
        """

    @abstractmethod
    def loss_slope(self, loss: str, prediction: Value, label: Value) -> Value:
        """Return the slope of the real loss; `by_units` says how it is computed."""

    @abstractmethod
    def by_units(
        self,
        function: str,
        exact: Value,
        arguments: Sequence[tuple[Value, float]],
        n_sums: int = 1,
    ) -> Value:
        """`exact`, computed as reach * function(arguments / their reaches), a sum of units.

        The first argument's reach is that of the result. As many as `n_sums` such sums are added
        up by the layer.
        """

    # The sum over examples.

    @abstractmethod
    def accumulate(
        self,
        weights: Value,
        left: Value,
        right: Value,
        scale: float,
        by: Instruction,
        *,
        mean: bool = True,
    ) -> Value:
        """`weights + scale * mean(left right^T)` over the examples, or the sum, by these heads."""

    @abstractmethod
    def average_examples(self, score: Value, value: Value) -> Value:
        """Return the mean of the examples' values, weighted by the softmax of their scores."""

    # What MLP layers do to a slot.

    @abstractmethod
    def clip(self, value: Value, bound: float, by: str | None = None) -> Value:
        """Return the value clipped to [-bound, bound], by ReLUs or by the units of a function."""

    @abstractmethod
    def project(self, value: Value, faces: Faces) -> Value:
        """Return the nearest matrix whose weights lie between these faces."""

    @abstractmethod
    def exchange(self, value: Value, pairs: Sequence[tuple[int, int]]) -> Value:
        """Return the rows with the larger entry of each pair of columns in the first of them."""

    @abstractmethod
    def mean_excess(self, value: Value, total: float) -> Value:
        """(sum of the first j columns - total) / j in column j = 1, 2, ..."""

    @abstractmethod
    def threshold(self, value: Value, threshold: Value, most: float) -> Value:
        """Return the first columns less the first of `threshold`, or 0 if that is negative."""

    @abstractmethod
    def replace(self, before: Value, value: Value, bound: float | None) -> Value:
        """Return the value, clipped, which a residual layer puts in the place of `before`."""

    @abstractmethod
    def mix(self, before: Value, after: Value, keeps: float) -> Value:
        """`keeps * before + (1 - keeps) * after`, in the layer that makes `after`."""

    @abstractmethod
    def take_turns(self, turns: TakeTurns, slots: Mapping[str, Value]) -> dict[str, Value]:
        """Whose turn the next batch is."""

    # What heads add to the error, and what mathematics knows.

    @abstractmethod
    def as_read(self, heads: Instruction, value: Value, *inputs: Value) -> Value:
        """Return the value as heads return it that approximate it."""

    @abstractmethod
    def written_over(self, before: Value, value: Value) -> Value:
        """Return the value, added to what the units of a wipe left in the slot."""

    @abstractmethod
    def guard(self, score: Value, reach: float, checked: str) -> Value:
        """Return the score; a run stops if it is beyond its reach at a token with the flag
        `checked`.
        """

    @abstractmethod
    def not_negative(self, value: Value) -> Value:
        """Return a mean of squares."""

    # Jacobians: a matrix at every token.

    @abstractmethod
    def unflatten(self, value: Value, n_rows: int) -> Value:
        """Return the coordinates of every token as a matrix with so many rows."""

    @abstractmethod
    def flatten(self, matrix: Value) -> Value:
        """Return the matrix of every token as a row of coordinates."""

    @abstractmethod
    def matmul_rows(self, weights: Value, matrix: Value) -> Value:
        """`weights @ matrix` for the matrix of every token, without the column of a bias."""

    @abstractmethod
    def scale_rows(self, weights: Value, matrix: Value) -> Value:
        """`weights[o, k] * matrix[k, l]` as coordinates (o, k, l) of every token."""

    @abstractmethod
    def accumulate_rows(
        self, weights: Value, left: Value, matrix: Value, scale: float, by: Instruction
    ) -> Value:
        """`weights + scale * mean(left^T matrix)` over the examples, by these heads."""

    # Tables of whole steps.

    @abstractmethod
    def step_from_table(self, step: LookUpStep, key: Value, slots: Mapping[str, Value]) -> Value:
        """Return the new weight that the table holds for this key."""


class FunctionDomain(TokenDomain[Value]):
    """The primitives of a step in function space."""

    @abstractmethod
    def kernel(self, terms: Sequence[KernelTerm], points: Value) -> Value:
        """Return the kernel of every token (row) and every example (column)."""

    @abstractmethod
    def read_examples(self, kernel: Value, value: Value) -> Value:
        """Return the sum over examples j of kernel[i, j] value[j], at every token i."""


class BlockDomain(AnyDomain[Value]):
    """The primitives of chains, whose slots hold a matrix or a number that is known."""

    @abstractmethod
    def product(self, left: Value, right: Value) -> Value:
        """Return the product of two matrices."""

    @abstractmethod
    def transposed(self, matrix: Value) -> Value:
        """Return the transposed matrix."""

    @abstractmethod
    def unless(self, flags: Sequence[Value], value: Value) -> Value:
        """Return the value where all flags are 0, and exactly 0 elsewhere."""

    @abstractmethod
    def copied(
        self,
        sources: Sequence[Combination],
        bits: Sequence[Value],
        bound: float | None,
        slots: Mapping[str, Value],
    ) -> Value:
        """Return the source whose number has these bits, the lowest first, clipped to +-bound if
        given.
        """

    @abstractmethod
    def activate(self, argument: Value, kinked: Value, leak: float) -> Value:
        """Return the argument, times `leak` where it is negative if the flag `kinked` is set."""

    @abstractmethod
    def mark_flat(self, argument: Value, width: float) -> Value:
        """relu(width - argument) / width: 0 where a unit is steep, at least 1 where it is flat."""

    @abstractmethod
    def pass_back(self, back: PassBack, upstream: Value, flat: Value) -> Value:
        """Upstream, clipped, times the slope that the mark `flat` stands for."""

    @abstractmethod
    def within_reach(self, heads: Product, value: Value) -> Value:
        """Return what heads ask for; a run stops if it is beyond their reach."""

    @abstractmethod
    def by_entries(
        self, heads: MultiplyByEntries | MultiplyEntries, value: Value, left: Value, right: Value
    ) -> Value:
        """Return the product as heads return it that hold entries of `right`, and carry `left`."""

    @abstractmethod
    def by_rows(self, heads: LookUpProduct, value: Value, left: Value, right: Value) -> Value:
        """Return the product as heads return it that have it in their scores, if within their
        reach.
        """

    @abstractmethod
    def look_up_product(
        self, heads: LookUpProduct, function: str, product: Value, left: Value, right: Value
    ) -> Value:
        """Return a function of the product, read by heads that have it in their scores."""

    @abstractmethod
    def softmax_columns(self, scores: Value, n_rows: int) -> Value:
        """Return the softmax of the first rows in every column, and 0 in all other rows."""


def scheduled(variants: Sequence[Any]) -> Any:
    """One part of a program for all steps, in which numbers that differ are `PerStep`."""
    first = variants[0]
    if isinstance(first, float):
        same = all(number == first for number in variants)
        return first if same else PerStep(variants)
    if isinstance(first, tuple):
        return tuple(scheduled(entries) for entries in zip(*variants, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        own = {
            field.name: [getattr(each, field.name) for each in variants] for field in fields(first)
        }
        return replace(first, **{name: scheduled(values) for name, values in own.items()})
    return first
