"""The domain of shapes: primitives check that shapes fit, and return that of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from icgd.program.instructions import Combination, Instruction
from icgd.program.kernel_instructions import KernelTerm
from icgd.program.layout import Layout, Role
from icgd.program.meaning import BlockDomain, Domain, FunctionDomain
from icgd.program.table_instructions import LookUpStep

Shape = tuple[int, ...]
"""That of a matrix that all tokens share, or TOKENS and the shape that every token has."""

TOKENS = -1
"""The length of the axis of tokens, which no other axis has."""

A_NUMBER = (TOKENS, 1)
NO_MATRIX = "{} is no matrix that all tokens share"


class ShapeError(Exception):
    """Shapes that do not fit; the message says why."""


def shown(shape: Shape) -> str:
    """A shape as text, without the axis of tokens."""
    return f"({', '.join(str(n) for n in shape if n != TOKENS)})"


def require(fits: bool, problem: str, *shapes: Shape) -> None:
    """Raise `ShapeError` unless the shapes fit; the problem has a `{}` for each of them."""
    if not fits:
        raise ShapeError(problem.format(*map(shown, shapes)))


def alike(first: Shape, *others: Shape) -> Shape:
    """The shape that all have."""
    for other in others:
        require(other == first, "{} meets {}, expected equal shapes", first, other)
    return first


@lru_cache
def broadcast(*shapes: Shape) -> Shape:
    """The shape of what is computed entry by entry, where axes of length 1 are repeated."""
    n_axes = max(map(len, shapes))
    padded = [(1,) * (n_axes - len(shape)) + shape for shape in shapes]
    axes = [{*axis} - {1} for axis in zip(*padded, strict=True)]
    fits = all(len(axis) <= 1 for axis in axes)
    require(fits, " meets ".join(["{}"] * len(shapes)) + ", expected a common shape", *shapes)
    return tuple(max(axis, default=1) for axis in axes)


def as_argument(place: int) -> Any:
    """A primitive whose result has the shape of one of its arguments."""
    return lambda domain, *arguments, **options: arguments[place]


class Shapes(Domain[Shape], BlockDomain[Shape], FunctionDomain[Shape]):
    """The primitives on the shapes of a program's slots."""

    def __init__(self, layout: Layout, *, is_chain: bool) -> None:
        self.layout, self._summed = layout, broadcast if is_chain else alike
        shared = (Role.PARAMETER, Role.VELOCITY, Role.SHARED)
        self.slots = {
            slot.name: slot.shape
            if is_chain or (slot.role in shared and len(slot.shape) == 2)
            else (TOKENS, slot.width)
            for slot in layout.slots
        }

    def problem_with(self, instruction: Instruction) -> str | None:
        """What does not fit in the shapes of an instruction's slots, or None."""
        try:
            for name, shape in instruction.meaning(self.slots, self).items():
                if shape != self.slots[name]:
                    raise ShapeError(f"writes {shown(shape)} to {name}")
        except ShapeError as error:
            used = dict.fromkeys((*instruction.writes(), *instruction.reads()))
            slots = ", ".join(f"{name} {shown(self.slots[name])}" for name in used)
            return f"{error}, in {instruction.formula()} with {slots}"
        return None

    softmax = clip = zero = not_negative = mark_flat = as_argument(0)
    apply = evaluate = as_read = by_units = read_examples = from_lattice = as_argument(1)
    replace = mix = written_over = as_argument(1)  # which must have the shape of the slot

    def combine(self, terms: Sequence[tuple[float, Shape]]) -> Shape:
        return self._summed(*(shape for _, shape in terms))

    def add(self, *values: Shape) -> Shape:
        return self._summed(*values)

    def multiply(self, left: Shape, right: Shape) -> Shape:
        """One row or column of a token's matrix may stand for all of the other's."""
        return broadcast(left, right) if len(left) == len(right) == 3 else alike(left, right)

    def scale(self, number: Shape, value: Shape) -> Shape:
        require(number == A_NUMBER, "{} coordinates, expected one number a token", number)
        return value

    def matmul(self, weights: Shape, inputs: Shape) -> Shape:
        require(TOKENS not in weights, NO_MATRIX, weights)
        fits = inputs == (TOKENS, weights[1])
        require(fits, "a matrix {} meets {} coordinates", weights, inputs)
        return (TOKENS, weights[0])

    def transpose(self, weights: Shape, n_rows: int) -> Shape:
        require(TOKENS not in weights, NO_MATRIX, weights)
        fits = weights[1] - n_rows in (0, 1)
        require(fits, f"a matrix {{}} has no {n_rows} columns, or one more for a bias", weights)
        return (n_rows, weights[0])

    def above_one(self, inputs: Shape) -> Shape:
        return (*inputs[:-1], inputs[-1] + 1)

    def take(self, value: Shape, places: Sequence[int]) -> Shape:
        require(max(places) < value[-1], f"reads coordinate {max(places) + 1} of {{}}", value)
        return (TOKENS, len(places))

    def constant_map(self, rows: Sequence[Sequence[float]], value: Shape) -> Shape:
        fits = {len(row) for row in rows} == {value[-1]}
        require(fits, "a constant matrix without {} columns, or without rows", value)
        return (TOKENS, len(rows))

    def loss_slope(self, loss: str, prediction: Shape, label: Shape) -> Shape:
        return alike(prediction, label)

    def accumulate(
        self, weights: Shape, left: Shape, right: Shape, scale: float, by: Any, **_: Any
    ) -> Shape:
        fits = weights == (left[-1], right[-1])
        require(fits, "products of {} and {} are added to {}", left, right, weights)
        return weights

    def accumulate_rows(
        self, weights: Shape, left: Shape, matrix: Shape, scale: float, by: Any
    ) -> Shape:
        fits = matrix[1:] == (left[-1], prod(weights))
        require(fits, "products of {} and {} are added to {}", left, matrix, weights)
        return weights

    def average_examples(self, score: Shape, value: Shape) -> Shape:
        return self.scale(score, value)

    def where(self, flag: str, closed_by: Sequence[str], value: Shape, otherwise: Shape) -> Shape:
        if TOKENS in otherwise and value[0] == 1:  # one row of shared weights, alike in all tokens
            value = (TOKENS, *value[1:])
        return alike(value, otherwise)

    def take_turns(self, turns: Instruction, slots: Mapping[str, Shape]) -> dict[str, Shape]:
        alike(A_NUMBER, *(slots[name] for name in turns.reads()))
        return {name: slots[name] for name in turns.writes()}

    def guard(self, score: Shape, reach: float, checked: str) -> Shape:
        require(checked in self.layout.names, f"checks scores where {checked!r}, which is no slot")
        return score

    def unflatten(self, value: Shape, n_rows: int) -> Shape:
        return (TOKENS, n_rows, value[-1] // n_rows)

    def flatten(self, matrix: Shape) -> Shape:
        return (TOKENS, prod(matrix[1:]))

    def matmul_rows(self, weights: Shape, matrix: Shape) -> Shape:
        self.transpose(weights, matrix[1])
        return (TOKENS, weights[0], matrix[2])

    def scale_rows(self, weights: Shape, matrix: Shape) -> Shape:
        self.transpose(weights, matrix[1])
        return (TOKENS, weights[0] * prod(matrix[1:]))

    def step_from_table(self, step: LookUpStep, key: Shape, slots: Mapping[str, Shape]) -> Shape:
        alike(A_NUMBER, key, *(slots.get(name, ()) for name in step.levels))
        return (1, 1)

    def kernel(self, terms: Sequence[KernelTerm], points: Shape) -> Shape:
        for matrix in (matrix for term in terms for matrix in term.matrices if matrix is not None):
            self.constant_map(matrix, points)
        return (TOKENS, TOKENS)

    # The blocks of a chain.

    def product(self, left: Shape, right: Shape) -> Shape:
        require(left[1:] == right[:1], "a matrix {} is multiplied by {}", left, right)
        return (*left[:1], *right[1:])

    def transposed(self, matrix: Shape) -> Shape:
        return matrix[::-1]

    def unless(self, flags: Sequence[Shape], value: Shape) -> Shape:
        for flag in flags:
            require(flag[-1] == 1, "{} is no flag: one number, or one for each unit", flag)
        return broadcast(value, *flags)

    def copied(
        self,
        sources: Sequence[Combination],
        bits: Sequence[Shape],
        bound: float | None,
        slots: Mapping[str, Shape],
    ) -> Shape:
        fits = 0 < len(sources) <= 2 ** len(bits)
        require(fits, f"selects one of {len(sources)} sums by {len(bits)} bits")
        return self.unless(bits, broadcast(*(source.value(slots, self) for source in sources)))

    def activate(self, argument: Shape, kinked: Shape, leak: float) -> Shape:
        return self.unless([kinked], argument)

    def pass_back(self, back: Any, upstream: Shape, flat: Shape) -> Shape:
        return broadcast(upstream, flat)

    def look_up_product(self, heads: Any, product: Shape, left: Shape, right: Shape) -> Shape:
        return alike(product, self.layout.slot(heads.product).shape)

    def softmax_columns(self, scores: Shape, n_rows: int) -> Shape:
        require(0 < n_rows <= scores[0], f"shares {n_rows} classes among {{}} scores", scores)
        return scores
