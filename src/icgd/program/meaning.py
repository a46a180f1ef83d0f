"""Domains: the primitives over which instructions define their `meaning`, once for all uses.

A domain interprets the primitives on one kind of value. One meaning gives

    recorded operations     the fused run                           backends/recorder.py
    enclosures              error bounds                            certificates/propagation.py
    shapes                  the check of a program when it is built program/check.py

A value has a row for each token, or is a matrix that all tokens share: weights, the state of an
optimiser, a gradient. All instructions of a layer read the slots as they were before the layer.
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
EvaluatedBy = Literal["attention", "mlp", "lattice", "grid"]
"""The kinds of layer that evaluate functions; rounding, and so the bounds, depend on the kind."""

NOWHERE = -1
"""The index for which `take` returns 0."""


class PerStep(float):
    """A number that changes from step to step, in a program whose steps have a schedule.

    As a float it is NaN, so that it equals no number.
    """

    numbers: tuple[float, ...]

    def __new__(cls, numbers: Iterable[float]) -> PerStep:
        schedule = super().__new__(cls, nan)
        schedule.numbers = tuple(numbers)
        return schedule

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
        """Return the sum of all values times their factors."""

    @abstractmethod
    def add(self, *values: Value) -> Value:
        """Return the sum, adding one value after the other."""

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
        """Return zeros of the same shape."""

    @abstractmethod
    def where(self, flag: str, closed_by: Sequence[str], value: Value, otherwise: Value) -> Value:
        """Return the value at tokens with `flag` and no flag of `closed_by`, else `otherwise`."""


class StackDomain(TokenDomain[Value]):
    """The primitives of stacks."""

    layout: Layout

    # Linear algebra.

    @abstractmethod
    def scale(self, number: Value, value: Value) -> Value:
        """Return all coordinates of each token times its number."""

    @abstractmethod
    def scale_columns(self, value: Value, factor: float, last: float) -> Value:
        """Return the value times `factor`, but its last column, that of a bias, times `last`."""

    @abstractmethod
    def matmul(self, weights: Value, inputs: Value) -> Value:
        """Return `weights @ inputs` at every token."""

    @abstractmethod
    def transpose(self, weights: Value, n_rows: int) -> Value:
        """Return the first `n_rows` rows of the transposed matrix, which leave out a bias."""

    @abstractmethod
    def above_one(self, inputs: Value) -> Value:
        """Return the inputs with a constant 1 appended, which multiplies the biases."""

    @abstractmethod
    def take(self, value: Value, places: Sequence[int]) -> Value:
        """Return the coordinates at these indices, and 0 for `NOWHERE`."""

    # Functions.

    @abstractmethod
    def apply(self, function: str, argument: Value, by: EvaluatedBy) -> Value:
        """Return the program's function of this name, entry by entry."""

    @abstractmethod
    def softmax(self, scores: Value) -> Value:
        """Return the shares exp(z_k) / sum_j exp(z_j) of a token's coordinates."""

    @abstractmethod
    def evaluate(self, function: str, argument: Value) -> Value:
        """Return the exact function of this name, entry by entry; `by_units` approximates it."""

    @abstractmethod
    def loss_slope(self, loss: str, prediction: Value, label: Value) -> Value:
        """Return the exact slope of the loss; `by_units` approximates it."""

    @abstractmethod
    def by_units(
        self,
        function: str,
        exact: Value,
        arguments: Sequence[tuple[Value, float]],
        n_sums: int = 1,
    ) -> Value:
        """Return `exact`, computed by units as reach * function(arguments / their reaches).

        The reach of the result is that of the first argument. The layer adds up `n_sums` such sums
        of units.
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
        """Return `weights + scale * mean(left right^T)` over the examples.

        The heads of the instruction `by` compute the mean; without `mean` it is the sum.
        """

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
        """Return (sum of the first j columns - total) / j in column j = 1, 2, ..."""

    @abstractmethod
    def threshold(self, value: Value, threshold: Value, most: float) -> Value:
        """Return max(first columns - first column of `threshold`, 0), which is at most `most`."""

    @abstractmethod
    def replace(self, before: Value, value: Value, bound: float | None) -> Value:
        """Return the clipped value, with which a residual layer replaces `before`."""

    @abstractmethod
    def mix(self, before: Value, after: Value, keeps: float) -> Value:
        """Return `keeps * before + (1 - keeps) * after`, from the layer that computes `after`."""

    @abstractmethod
    def take_turns(self, turns: TakeTurns, slots: Mapping[str, Value]) -> dict[str, Value]:
        """Return the slots that tell which examples are in the next batch."""

    # Errors of heads, and mathematical facts.

    @abstractmethod
    def as_read(self, heads: Instruction, value: Value, *inputs: Value) -> Value:
        """Return the value with the error of the heads that approximate it."""

    @abstractmethod
    def written_over(self, before: Value, value: Value) -> Value:
        """Return the value plus the residue that an inexact wipe left in the slot."""

    @abstractmethod
    def guard(self, score: Value, reach: float, checked: str) -> Value:
        """Return the score; a run stops if |score| > reach at a token with the flag `checked`."""

    @abstractmethod
    def not_negative(self, value: Value) -> Value:
        """Return the value, a mean of squares or a square, which is not negative."""

    # Jacobians: a matrix at every token.

    @abstractmethod
    def unflatten(self, value: Value, n_rows: int) -> Value:
        """Return the coordinates of every token as a matrix with `n_rows` rows."""

    @abstractmethod
    def flatten(self, matrix: Value) -> Value:
        """Return the matrix of every token as a row of coordinates."""

    @abstractmethod
    def matmul_rows(self, weights: Value, matrix: Value) -> Value:
        """Return `weights @ matrix` for the matrix of every token, without the biases."""

    @abstractmethod
    def scale_rows(self, weights: Value, matrix: Value) -> Value:
        """Return `weights[o, k] * matrix[k, l]` as coordinates (o, k, l) of every token."""

    @abstractmethod
    def accumulate_rows(
        self, weights: Value, left: Value, matrix: Value, scale: float, by: Instruction
    ) -> Value:
        """Return `weights + scale * mean(left^T matrix)` over the examples, by these heads."""

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
    """The primitives of chains, whose slots hold a matrix or a known number."""

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
        """Return the source selected by these bits, lowest first, clipped if there is a bound."""

    @abstractmethod
    def activate(self, argument: Value, kinked: Value, leak: float) -> Value:
        """Return the argument, times `leak` where it is negative if the flag `kinked` is set."""

    @abstractmethod
    def mark_flat(self, argument: Value, width: float) -> Value:
        """Return relu(width - argument) / width: 0 for a steep unit, at least 1 for a flat one."""

    @abstractmethod
    def pass_back(self, back: PassBack, upstream: Value, flat: Value) -> Value:
        """Return the clipped `upstream` times the slope that the mark `flat` encodes."""

    @abstractmethod
    def within_reach(self, heads: Product, value: Value) -> Value:
        """Return the value, which heads look up; a run stops if it is beyond their reach."""

    @abstractmethod
    def by_entries(
        self, heads: MultiplyByEntries | MultiplyEntries, value: Value, left: Value, right: Value
    ) -> Value:
        """Return the product with the error of heads whose queries hold entries of `right`.

        Their values hold `left`.
        """

    @abstractmethod
    def by_rows(self, heads: LookUpProduct, value: Value, left: Value, right: Value) -> Value:
        """Return the product with the error of heads that compute it in their scores.

        A run stops if it is beyond their reach.
        """

    @abstractmethod
    def look_up_product(
        self, heads: LookUpProduct, function: str, product: Value, left: Value, right: Value
    ) -> Value:
        """Return a function of the product, looked up by heads that compute it in their scores."""

    @abstractmethod
    def softmax_columns(self, scores: Value, n_rows: int) -> Value:
        """Return the softmax of the first rows in every column, and 0 in all other rows."""


def scheduled(variants: Sequence[Any]) -> Any:
    """Merge one part of a program over all steps; numbers that differ become a `PerStep`."""
    first = variants[0]
    if isinstance(first, float):
        is_constant = all(number == first for number in variants)
        return first if is_constant else PerStep(variants)
    if isinstance(first, tuple):
        return tuple(scheduled(entries) for entries in zip(*variants, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        merged = {name: scheduled([getattr(step, name) for step in variants]) for name in names}
        return replace(first, **merged)
    return first
