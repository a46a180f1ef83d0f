r"""Evaluate the slope u(t, y) of a loss by MLP layers if it is not a sum of one-variable functions.

The expression tree of the slope is evaluated bottom-up. A subtree that depends on t and y through
one linear combination is a single function, however deeply nested. A product becomes a difference
of two squares,

    a b = ((a / s + s b) / 2)^2 - ((a / s - s b) / 2)^2,

where the power of two s brings both factors to about the same size. Every other operation is a
function of its argument. Each of these writes a slot, and one MLP layer writes all slots of the
same depth. A single layer that sums functions of combinations of t and y would take more units:
519 for -y sigmoid(-t y) on |t| <= 4 to 1e-3.

An error e in a slot changes u by at most A e, where A bounds |du/dslot|. A function with K pieces
has the error m^2 / K^2, where m = integral sqrt|f''| / 4. For a given total number of pieces the
total error, the sum of A m^2 / K^2, is smallest if K is proportional to (A m^2)^(1/3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, reduce
from math import ceil, floor, frexp

import torch

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.errors import ConstructionError, SettingError
from icgd.problems.expressions import (
    NUMBER,
    PRODUCT,
    SUM,
    Node,
    add,
    multiply,
    number,
    power,
    rebuilt,
    substitute,
    variable,
    variables,
)
from icgd.problems.losses import along_one_direction, linear, loss_named
from icgd.problems.piecewise import Function
from icgd.program.functions import ReluSum
from icgd.program.instructions import Combination, MapSlots, Summand
from icgd.program.layout import ONE
from icgd.program.program import Layer

ROOM, LEAST_ROOM = 2.0**-5, 2.0**-10
"""Margins on both sides of an argument's range, relative to the range, for the argument's error.
The smaller one serves if the larger one leaves the function's domain, as sqrt's below 0."""

LEAST_RANGE = 1e-6
"""The shortest range on which a function is fitted."""


@dataclass(frozen=True)
class Term:
    """A linear combination of slots plus a constant, with the range of its values.

    Attributes:
        factors: the factor of each slot.
        constant: the constant term.
        low: the smallest value.
        high: the largest value.
        depth: the number of layers that compute the slots.
    """

    factors: dict[str, float]
    constant: float
    low: float
    high: float
    depth: int

    @property
    def size(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def times(self, factor: float) -> Term:
        low, high = sorted((factor * self.low, factor * self.high))
        factors = {slot: factor * value for slot, value in self.factors.items()}
        return Term(factors, factor * self.constant, low, high, self.depth)

    def plus(self, other: Term) -> Term:
        factors = dict(self.factors)
        for slot, factor in other.factors.items():
            factors[slot] = factors.get(slot, 0.0) + factor
        return Term(
            {slot: factor for slot, factor in factors.items() if factor},
            self.constant + other.constant,
            self.low + other.low,
            self.high + other.high,
            max(self.depth, other.depth),
        )

    @property
    def combination(self) -> Combination:
        return Combination(tuple(self.factors), tuple(self.factors.values()))


@dataclass(frozen=True)
class Operation:
    """The slot that holds a sum of functions of combinations of slots."""

    slot: str
    summands: tuple[tuple[Combination, Function], ...]
    depth: int


class Composition:
    """The operations that compute a slope u(t, y) for |t| <= sizes[0] and |y| <= sizes[1]."""

    def __init__(self, slope: Node, prediction: str, sizes: tuple[float, float]) -> None:
        self.operations: list[Operation] = []
        self._terms: dict[Node, Term] = {}  # a repeated subtree is computed once
        self._t = Term({prediction: 1.0}, 0.0, -sizes[0], sizes[0], 0)
        self._y = Term({"y": 1.0}, 0.0, -sizes[1], sizes[1], 0)
        self.term = self._evaluated(slope)
        if self.term.constant:  # a `Combination` has no constant term
            self.term = self._written([(variable("x"), self.term)])

    @property
    def functions(self) -> dict[str, Function]:
        """The functions that layers evaluate, by name."""
        return {f.name: f for operation in self.operations for _, f in operation.summands}

    def _evaluated(self, node: Node) -> Term:
        if node not in self._terms:
            self._terms[node] = self._evaluate(node)
        return self._terms[node]

    def _evaluate(self, node: Node) -> Term:
        if (line := linear(node)) is not None:
            a, b, c = map(float, line)
            return self._t.times(a).plus(self._y.times(b)).plus(Term({}, c, c, c, 0))
        if (ridge := along_one_direction(node)) is not None:
            a, b = map(float, ridge[0])
            tree = ridge[1]
            return self._written([(tree, self._t.times(a).plus(self._y.times(b)))])
        if node.kind in (SUM, PRODUCT):
            join, combine = (add, Term.plus) if node.kind == SUM else (multiply, self._product)
            # Subtrees of the same combination of t and y are joined first, into one function.
            constants, groups = _grouped(node.parts)
            total = reduce(combine, (self._evaluated(join(*group)) for group in groups))
            if node.kind == PRODUCT and all(part.kind == NUMBER for part in constants):
                return total.times(float(multiply(*constants).number))
            if node.kind == SUM and all(part.kind == NUMBER for part in constants):
                c = float(add(*constants).number)
                return total.plus(Term({}, c, c, c, 0))
            return self._written([(join(*constants, variable("x")), total)])
        (inner,) = node.parts
        return self._written([(rebuilt(node, (variable("x"),)), self._evaluated(inner))])

    def _product(self, a: Term, b: Term) -> Term:
        """Write a b as a difference of two squares."""
        scale = 2.0 ** (frexp(max(a.size, LEAST_RANGE) / max(b.size, LEAST_RANGE))[1] // 2)
        half, other = a.times(0.5 / scale), b.times(0.5 * scale)
        square = power(variable("x"), 2)
        difference = half.plus(other.times(-1.0))
        squares = self._written(
            [(square, half.plus(other)), (multiply(number(-1), square), difference)]
        )
        # The range of the product is tighter than the difference of the squares' ranges.
        products = [left * right for left in (a.low, a.high) for right in (b.low, b.high)]
        return replace(squares, low=min(products), high=max(products))

    def _written(self, summands: Sequence[tuple[Node, Term]]) -> Term:
        """Append the operation that writes a sum of functions of terms, and return its slot."""
        fitted, low, high = [], 0.0, 0.0
        for tree, term in summands:
            # A `Combination` has no constant term c, so the function is x -> f(x + c).
            ends = term.low - term.constant, term.high - term.constant
            function = _function(tree, term.constant, *ends)
            fitted.append((term.combination, function))
            least, largest = function.bounds(*(torch.tensor(e, dtype=torch.float64) for e in ends))
            low, high = low + float(least), high + float(largest)
        slot, depth = f"loss_part_{len(self.operations) + 1}", max(t.depth for _, t in summands)
        self.operations.append(Operation(slot, tuple(fitted), depth + 1))
        return Term({slot: 1.0}, 0.0, low, high, depth + 1)

    # Fits and layers.

    def fitted(self, pieces: int, kink_width: float | None) -> tuple[ReluSum, ...]:
        """Fit every function on its range, with `pieces` pieces per function on average."""
        weights = {}
        amplifications = self._amplifications()
        for name, function in self.functions.items():
            x = torch.linspace(function.low, function.high, 1001, dtype=torch.float64)
            bend = function.derivative().derivative()(x).abs().sqrt()
            mass = float(torch.trapezoid(bend, x)) / 4
            # The optimal share of the pieces: see the module's docstring.
            weights[name] = (amplifications[name] * mass * mass) ** (1 / 3)
        share = pieces * len(weights) / max(sum(weights.values()), 1e-300)
        return tuple(
            fit_relu_sum(f, f.low, f.high, max(2, ceil(share * weights[name])), kink_width)
            for name, f in self.functions.items()
        )

    def _amplifications(self) -> dict[str, float]:
        """Bound |du / df| for each function f, by the chain rule from the last slot backward."""
        of_slots = {slot: abs(factor) for slot, factor in self.term.factors.items()}
        of_functions: dict[str, float] = {}
        for operation in reversed(self.operations):
            amplification = of_slots.get(operation.slot, 0.0)
            for argument, function in operation.summands:
                of_functions[function.name] = of_functions.get(function.name, 0.0) + amplification
                ends = (torch.tensor(e, dtype=torch.float64) for e in (function.low, function.high))
                steepest = float(function.lipschitz(*ends))
                for slot, factor in argument.terms():
                    passed_on = amplification * steepest * abs(factor)
                    of_slots[slot] = of_slots.get(slot, 0.0) + passed_on
        return of_functions

    def layers(self) -> list[Layer]:
        """Return the MLP layers that write all slots."""
        depths = sorted({operation.depth for operation in self.operations})
        return [
            Layer(
                "loss slope, parts",
                tuple(
                    MapSlots(
                        tuple(Summand(at, function.name) for at, function in operation.summands),
                        ONE,
                        (),
                        0.0,
                        operation.slot,
                    )
                    for operation in self.operations
                    if operation.depth == depth
                ),
            )
            for depth in depths
        ]


def _grouped(parts: Sequence[Node]) -> tuple[list[Node], list[list[Node]]]:
    """Return the constants, and the other parts grouped by their combination of t and y."""
    constants = [part for part in parts if not variables(part)]
    groups: dict[object, list[Node]] = {}
    for part in parts:
        if variables(part):
            ridge = along_one_direction(part)
            groups.setdefault(part if ridge is None else ridge[0], []).append(part)
    return constants, [*groups.values()]


def _function(tree: Node, constant: float, low: float, high: float, room: float = ROOM) -> Function:
    """Return x -> f(x + constant) on [low, high], widened by a margin on both sides."""
    margin = max(room * (high - low), LEAST_RANGE)
    unit = 2.0 ** (frexp(margin)[1] - 3)  # round the ends outward, to few digits
    ends = floor((low - margin) / unit) * unit, ceil((high + margin) / unit) * unit
    shifted = substitute(tree, add(variable("x"), number(Fraction(constant))))
    try:
        return Function._of_tree(shifted, *ends)
    except SettingError:
        if room == LEAST_ROOM:
            raise
    return _function(tree, constant, low, high, LEAST_ROOM)


@lru_cache(maxsize=64)
def composition_of(loss: str, prediction: str, sizes: tuple[float, float]) -> Composition:
    """Return the composition that evaluates the slope of a loss for |t| and |y| up to `sizes`.

    Raise `SettingError` if the slope or one of its subexpressions is not finite there.
    """
    slope = loss_named(loss).node
    if slope is None:
        raise ConstructionError(f"The slope of the {loss} loss couples all outputs.")
    return Composition(slope, prediction, sizes)
