r"""The domain of error bounds: the primitives of meanings on enclosures.

Each slot carries an enclosure: an interval for the exact value, an interval for the transformer's
value, and a bound on the distance between the two. The meaning of an instruction
(`program/meaning.py`) maps the enclosures of the slots that the instruction reads to those of the
slots that it writes; the instruction bounds the error of its own heads in `own_error` and
`product_error`. The same domain serves two bounds:

- whole domain: the exact values are intervals, given by the domain and the box;
- this run, one step: the exact values are points, computed from the run's own weights.

The error of a sum of units is its certified error plus its rounding. For arguments bounded by z,
the value of a unit and its change under a rounded argument are at most

    |coefficient| (1 + STEEPEST_UNIT (|direction| . z + |offset|)).

The fused backend evaluates a sufficiently fine fit as the function itself, so that only rounding is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce, wraps
from math import ceil, inf
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from icgd.approximation.ridge import PRODUCT
from icgd.backends.recorder import is_computed_as_such
from icgd.certificates import enclosures
from icgd.certificates.enclosures import ROOM, Arithmetic, Enclosure, Interval, function_at, touched
from icgd.problems.functions import (
    STEEPEST_UNIT,
    activation_named,
    function_named,
    numbered_function,
    unit_activation_named,
)
from icgd.problems.losses import loss_named
from icgd.problems.surface import surface_of
from icgd.program.functions import ReluSum, RidgeSum
from icgd.program.instructions import IDENTITY, Combination, HeadError
from icgd.program.layout import IS_QUERY, ONE, Layout, Role, Slot
from icgd.program.meaning import NOWHERE, EvaluatedBy, PerStep, StackDomain
from icgd.program.network_instructions import AverageExamples, LookUpStep, TakeTurns
from icgd.program.program import Layer
from icgd.program.set_instructions import Faces, running_means
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import WipeByUnits
from icgd.shapes import Parameters

NO_DRIFT = torch.zeros((), dtype=torch.float64)
"""The drift of a slot without copies in the registers."""

Data = dict[str, Interval]
"""The intervals of the data of the examples, or of the queries, by slot."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """The enclosure of a sum, with what its rounding depends on.

    Before it is stored in a slot, the value may be a sum of `n_terms` terms. `lazy_sizes` then
    computes the sum of the terms' absolute values, which may exceed that of the value. `drift`
    bounds the distance of the registers' copies from the memory's, if there are copies.
    """

    value: Enclosure
    drift: Tensor | None = None
    n_terms: int = 1
    lazy_sizes: Callable[[], Tensor] | None = None

    @classmethod
    def point(cls, numbers: Tensor) -> Bounded:
        """Return numbers that are known exactly."""
        return cls(Enclosure.common(Interval.point(numbers)))

    @cached_property
    def sizes(self) -> Tensor:
        """The sum of the absolute values of all terms."""
        return self.value.size if self.lazy_sizes is None else self.lazy_sizes()

    @property
    def drift_or_zero(self) -> Tensor:
        """The drift of the copies, or 0 if there are none."""
        return NO_DRIFT if self.drift is None else self.drift

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Bounded:
        """Return the same value with all its numbers rearranged."""
        drift = None if self.drift is None else change(self.drift)
        return Bounded(self.value.mapped(change), drift, self.n_terms, lambda: change(self.sizes))

    def stored(self) -> Bounded:
        """Return the value as a slot holds it: as one term, with an infinite error where
        infinities cancelled.
        """
        drift = self.drift
        if drift is not None and bool(drift.sum().isnan()):
            drift = drift.nan_to_num(nan=inf, posinf=inf)
        return Bounded(self.value.without_nan(), drift)


State = dict[str, Bounded]
Method = TypeVar("Method", bound=Callable[..., Any])


def _once(method: Method) -> Method:
    """Cache results by the identity of the operands; strings and integers are compared by value.

    The cache holds the operands too, so that their identities are not reused by other objects.
    """

    @wraps(method)
    def cached(self: Enclosures, *operands: Any) -> Any:
        identities = (item if isinstance(item, str | int) else id(item) for item in operands)
        key = (method.__name__, *identities)
        if key not in self.cache:
            self.cache[key] = (*operands, method(self, *operands))
        return self.cache[key][-1]

    return cast("Method", cached)


class Enclosures(StackDomain[Bounded]):
    """The primitives on enclosures, for one pass through the layers of a program.

    `cache` holds the results that several instructions share.
    """

    room = ROOM  # instructions use it in `own_error`

    def __init__(self, program: StackProgram, arithmetic: Arithmetic) -> None:
        self.program, self.arithmetic, self.layout = program, arithmetic, program.layout
        # Whether registers hold copies of the weights, each rounded independently.
        self.have_copies = arithmetic.sums_terms and program.n_registers > 0
        self.cache: dict[tuple[object, ...], tuple[Any, ...]] = {}

    # Streams.

    def start(self, data: Data, weights: Enclosure, drift: Parameters) -> State:
        """Return the slots before the first layer, from data and the vector of all weights.

        Copies of the weights in the registers, if there are any, differ by at most `drift`. Scratch
        slots hold the residue of the previous step where units wipe them inexactly.
        """
        leading, like = data["x"].low.shape[:-1], data["x"].low
        slots = {name: Bounded(Enclosure.common(column)) for name, column in data.items()}
        slots |= {name: Bounded.point(like.new_ones(1)) for name in (ONE, IS_QUERY)}
        drifts = self.layout.split(ROOM * drift) if self.have_copies else {}
        for name, matrix in split(self.layout, weights).items():
            slots[name] = Bounded(matrix, drifts.get(name))
        for slot in self.layout.having(Role.SHARED):
            zeros = like.new_zeros(*leading[:-1], *slot.shape)
            slots[slot.name] = Bounded(
                Enclosure.common(Interval.point(zeros)), zeros if self.have_copies else None
            )
        left_over = dict.fromkeys((slot.name for slot in self.layout.having(Role.SCRATCH)), 0.0)
        for instruction in (
            instruction for layer in self.program.block for instruction in layer.instructions
        ):
            if isinstance(instruction, WipeByUnits):
                left_over |= dict.fromkeys(instruction.slots, instruction.residue(self))
        for name, largest in left_over.items():
            zeros = like.new_zeros(*leading, self.layout.width_of(name))
            slots[name] = Bounded(Enclosure.around(Interval.point(zeros), zeros + largest))
        return slots

    def after(self, layers: Iterable[Layer], slots: Mapping[str, Bounded]) -> State:
        """Return all slots after `layers`."""
        after = dict(slots)
        for layer in layers:
            written = layer.written(after, self)
            after.update({name: value.stored() for name, value in written.items()})
            self._forget(after)
        return after

    def _forget(self, slots: Mapping[str, Bounded]) -> None:
        """Drop cached results that no later layer can use: retained memory costs page faults."""
        live = set(map(id, slots.values()))
        # The cache is in order of insertion, so results of live results come after them.
        for key, (*operands, result) in [*self.cache.items()]:
            if all(id(item) in live for item in operands if isinstance(item, Bounded)):
                live.add(id(result))
            else:
                del self.cache[key]

    # Linear algebra.

    def combine(self, terms: Sequence[tuple[float, Bounded]]) -> Bounded:
        (first, alone), *others = terms
        if first == 1.0 and not others:  # the same object, so that results of it stay cached
            return alone
        total, sizes = enclosures.combination(
            [(f, term.value) for f, term in terms], self.arithmetic
        )
        drifts = [
            enclosures.largest(factor) * term.drift
            for factor, term in terms
            if term.drift is not None
        ]
        drift = reduce(torch.add, drifts) if drifts else None
        return Bounded(total, drift, len(terms), lambda: sizes)

    def add(self, *values: Bounded) -> Bounded:
        total, *others = values
        for value in others:
            if not total.value.size.any():  # adding to 0 is exact
                total = value
            else:
                total = Bounded(enclosures.add(total.value, value.value, self.arithmetic))
        return total

    def multiply(self, left: Bounded, right: Bounded) -> Bounded:
        return Bounded(enclosures.multiply(left.value, right.value, self.arithmetic))

    def scale(self, number: Bounded, value: Bounded) -> Bounded:
        return self.multiply(number, value)

    def scale_columns(self, value: Bounded, factor: float, last: float) -> Bounded:
        columns = [
            value.mapped(lambda part: part[..., :-1]),
            value.mapped(lambda part: part[..., -1:]),
        ]
        scaled, bias = (
            self.combine([(number, part)])
            for number, part in zip((factor, last), columns, strict=True)
        )

        def beside(matrix: Tensor, column: Tensor) -> Tensor:
            return torch.cat([matrix, column], dim=-1)

        drift = None
        if scaled.drift is not None and bias.drift is not None:
            drift = beside(scaled.drift, bias.drift)
        together = enclosures.merged(scaled.value, bias.value, beside)
        return Bounded(together, drift, 1, lambda: beside(scaled.sizes, bias.sizes))

    @_once
    def matmul(self, weights: Bounded, inputs: Bounded) -> Bounded:
        value = enclosures.matrix_product(weights.value, inputs.value, self.arithmetic)
        drift = None if weights.drift is None else inputs.sizes @ weights.drift.mT
        n_terms = weights.value.error.shape[-1] + inputs.n_terms - 1

        def term_sizes() -> Tensor:
            sizes = inputs.sizes @ weights.value.actual.size.mT
            return sizes if drift is None else sizes + drift

        return Bounded(value, drift, n_terms, term_sizes)

    def transpose(self, weights: Bounded, n_rows: int) -> Bounded:
        return weights.mapped(lambda matrix: matrix[..., :n_rows].mT)

    @_once
    def above_one(self, inputs: Bounded) -> Bounded:
        def with_last(tensor: Tensor, number: float) -> Tensor:
            padded: Tensor = torch.cat([tensor, torch.full_like(tensor[..., :1], number)], dim=-1)
            return padded

        value = inputs.value
        exact = value.exact.mapped(lambda tensor: with_last(tensor, 1.0))
        actual = exact
        if not value.is_common:
            actual = value.actual.mapped(lambda tensor: with_last(tensor, 1.0))
        above = Enclosure(exact, actual, with_last(value.error, 0.0))
        return Bounded(above, None, inputs.n_terms, lambda: with_last(inputs.sizes, 1.0))

    def take(self, value: Bounded, places: Sequence[int]) -> Bounded:
        index, is_empty = torch.tensor(places).clamp(min=0), torch.tensor(places) == NOWHERE
        return value.mapped(lambda tensor: tensor[..., index].masked_fill(is_empty, 0.0))

    def constant_map(self, rows: Sequence[Sequence[float]], value: Bounded) -> Bounded:
        matrix = Enclosure.common(Interval.point(self.matrix(rows)))
        return Bounded(enclosures.matrix_product(matrix, value.value, self.arithmetic))

    def matrix(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Return a constant matrix as a tensor."""
        return _tensor(tuple(map(tuple, rows)))

    # Functions.

    def apply(self, function: str, argument: Bounded, by: EvaluatedBy) -> Bounded:
        if by == "grid":  # the instruction adds the rounding of heads in its `own_error`
            mean, where = self.program.grid_mean(function), argument.value.actual
            size = Interval(*function_named(function).bounds(where.low, where.high)).size
            fused_rounding = self.arithmetic.evaluation(function, size)
            return Bounded(enclosures.fitted_at(mean, argument.value, fused_rounding))
        if by == "lattice":
            look_up = self.program.look_up(function)
            rounding = self.arithmetic.head(
                look_up, argument.n_terms, argument.sizes, argument.drift_or_zero
            )
            return Bounded(enclosures.fitted_at(look_up, argument.value, rounding))
        fit = self.program.relu_sum(function)
        if by == "mlp":
            rounding = self.mlp_rounding(function, argument)
        else:
            n_copies, where = self.arithmetic.n_tokens, argument.value.actual
            rounding = self.arithmetic.function(
                fit, argument.n_terms, argument.sizes, n_copies, where
            )
        return Bounded(enclosures.fitted_at(fit, argument.value, rounding))

    @_once
    def mlp_rounding(self, function: str, argument: Bounded) -> Tensor:
        """Bound the rounding of a sum of ReLUs in an MLP.

        Reciprocals, exponentials and roots are steeper by many powers of ten at one end of their
        interval than elsewhere, so a bound by the steepest slope would be useless. All terms of
        their fits have one sign, and those that are positive at t lie on one side of t: the sizes
        add up to a few times the function's value at t, plus the slope at t times the argument.
        Beyond the steep end the fit is flat: one term cancels all others, and the size of each is
        at most the last slope times the argument.
        """
        fit, actual = self.program.relu_sum(function), argument.value.actual
        real = numbered_function(fit.name)
        if real is None:
            return self.arithmetic.function(fit, argument.n_terms, argument.sizes, 1, actual)
        first, last = touched(fit, actual)
        slopes = torch.tensor(fit.slopes, dtype=torch.float64).abs()
        # Absolute slopes are monotone: the largest is that of an outermost piece or of the next.
        pieces = (first, first + 1, last - 1, last)
        nearby_slopes = [slopes[piece.clamp(0, len(slopes) - 1)] for piece in pieces]
        steepest = 2 * reduce(torch.maximum, nearby_slopes)
        largest = real.bounds(actual.low, actual.high)[1]
        n_terms = fit.n_pieces + argument.n_terms + 1
        return self.arithmetic.sum_of(n_terms, steepest * argument.sizes + 8 * largest)

    def lattice_error(self, function: str, n_terms: int, sizes: Tensor, drift: Tensor) -> Tensor:
        """Bound the error of the identity or the square when heads read them from the lattice."""
        fit = self.program.look_up(function)
        return enclosures.lattice_error(fit, n_terms, sizes, drift, self.arithmetic)

    def softmax(self, scores: Bounded) -> Bounded:
        n_classes = scores.value.error.shape[-1]
        return Bounded(
            enclosures.shares_of(
                scores.value, n_classes + self.arithmetic.n_tokens, self.arithmetic
            )
        )

    @_once
    def evaluate(self, function: str, argument: Bounded) -> Bounded:
        return Bounded(function_at(function_named(function), argument.value))

    def loss_slope(self, loss: str, prediction: Bounded, label: Bounded) -> Bounded:
        values, real = [], loss_named(loss)
        if real.slope_terms is None:  # the instruction adds the heads' error in its `own_error`
            fit = self.program.grid_mean(loss)
            return Bounded(enclosures.slope_at(real, fit, prediction.value, label.value))
        for term in real.slope_terms:
            arguments = [(term.prediction, prediction), (term.label, label)]
            values.append(Bounded(function_at(term.function, self.combine(arguments).value)))
        return self.add(*values)

    # Sums of units.

    def by_units(
        self,
        function: str,
        exact: Bounded,
        arguments: Sequence[tuple[Bounded, float]],
        n_sums: int = 1,
    ) -> Bounded:
        fit, (first, reach) = self.program.ridge_sum(function), arguments[0]
        scaled = [
            argument.value.actual.times(1 / argument_reach)
            for argument, argument_reach in arguments
        ]
        sizes = [
            (argument.value.actual.size if argument.n_terms == 1 else argument.sizes)
            / argument_reach
            for argument, argument_reach in arguments
        ]
        n_terms = n_sums * fit.n_units + sum(argument.n_terms - 1 for argument, _ in arguments)
        real = exact.value
        shrunk = real.actual if reach == 1.0 else real.actual.mapped(lambda end: end / reach)
        smooth = replace(fit, bands=()) if fit.is_ramp else fit
        units_error = reach * self._units_error(smooth, *scaled)
        units_error = units_error + reach * self._units_rounding(fit, n_terms, shrunk, *sizes)
        if not (fit.is_ramp and fit.slope):
            return Bounded(real.perturbed(units_error))
        # Near a kink units return a value between s times one slope and s times the other.
        jumps = enclosures.ridge_error(replace(fit, error=0.0), *scaled)
        slope = function_named(fit.slope)
        end = torch.full_like(scaled[-1].low, inf)
        hull, s = first.value.actual * Interval(*slope.bounds(-end, end)), first.value.actual
        actual = Interval(
            torch.where(jumps > 0, hull.low, real.actual.low),
            torch.where(jumps > 0, hull.high, real.actual.high),
        ).widened(units_error)
        return Bounded(
            Enclosure.around(real.exact, real.error + jumps * s.size + units_error, actual)
        )

    def _units_error(self, fit: RidgeSum, *arguments: Interval) -> Tensor:
        """Return the certified error of a fit, which is 0 if the backend evaluates the function."""
        has_none = fit.is_exact or (not self.arithmetic.sums_terms and is_computed_as_such(fit))
        return enclosures.ridge_error(replace(fit, error=0.0) if has_none else fit, *arguments)

    def _units_rounding(
        self, fit: RidgeSum, n_terms: int, value: Interval, *sizes: Tensor
    ) -> Tensor:
        """Bound the rounding of a sum of units of `n_terms` terms, for arguments of these sizes.

        `value` encloses the value of the function itself.
        """
        if not self.arithmetic.sums_terms and is_computed_as_such(fit):
            rounding = self.arithmetic.sum_of(len(sizes), value.size)
            if fit.name == PRODUCT:
                return rounding
            # In s f(t) the factor s, divided by its reach, is at most 1, so that the error of the
            # product is at most that of the slope f(t).
            return rounding + self.arithmetic.evaluation(fit.slope or fit.name, value.size)
        total = torch.zeros_like(value.low)
        for number, size in enumerate(sizes):
            per_size = sum(abs(unit.coefficient * unit.direction[number]) for unit in fit.units)
            total = total + STEEPEST_UNIT * per_size * size
        constant = sum(
            abs(unit.coefficient) * (1 + STEEPEST_UNIT * abs(unit.offset)) for unit in fit.units
        )
        n_copies = self.arithmetic.n_tokens if self.arithmetic.sums_terms else 1
        ulps = ceil(unit_activation_named(fit.activation).ulps)
        return self.arithmetic.sum_of(n_terms + n_copies + len(sizes) + ulps, total + constant)

    @_once
    def units_at_one(self, function: str) -> float:
        """Bound the error at 1 of units that approximate the identity."""
        fit, one = self.program.ridge_sum(function), torch.ones((), dtype=torch.float64)
        point = Interval.point(one)
        error = enclosures.ridge_error(fit, point)
        return float(error + self._units_rounding(fit, fit.n_units, point, one))

    def product_by_units(
        self, function: str, reaches: tuple[float, float], factors: tuple[Interval, Interval]
    ) -> Tensor:
        """Bound the error of each product of two factors that units compute."""
        fit, (reach, other_reach) = self.program.ridge_sum(function), reaches
        left, right = factors[0].times(1 / reach), factors[1].times(1 / other_reach)
        error = self._units_error(fit, left, right)
        product = Interval.point((left.size * right.size).expand_as(error))
        n_terms = error.shape[-2] * fit.n_units
        rounding = self._units_rounding(fit, n_terms, product, left.size, right.size)
        return reach * other_reach * (error + rounding)

    # The sum over examples.

    def accumulate(
        self,
        weights: Bounded,
        left: Bounded,
        right: Bounded,
        scale: float,
        by: Any,
        *,
        mean: bool = True,
    ) -> Bounded:
        if not mean:
            return self._accumulated(weights, left, right, scale * by.n_examples)
        head_error = by.product_error(self, left, right)
        is_shared = self.layout.slot(by.write).role is Role.SHARED
        return self._accumulated(weights, left, right, scale, head_error, is_shared)

    def _accumulated(
        self,
        before: Bounded,
        left_factor: Bounded,
        right_factor: Bounded,
        scale: float,
        head_error: HeadError | None = None,
        is_shared: bool = False,
    ) -> Bounded:
        """Add scale * mean(left right^T), which heads compute up to `head_error`.

        With a head error the registers' copies, each rounded differently, drift apart. The
        transformer rounds its own products and the oracle the exact ones, hence both sizes.
        """
        weights, left, right = before.value, left_factor.value, right_factor.value
        arithmetic, n_examples = self.arithmetic, left.error.shape[-2]
        share = ROOM * abs(scale) / n_examples
        actual_size = left.actual.size.mT @ right.actual.size
        exact_size = left.exact.size.mT @ right.exact.size
        error = share * (left.error.mT @ right.exact.size + left.actual.size.mT @ right.error)
        sum_rounding = arithmetic.sum_of(2 * arithmetic.n_tokens, (actual_size + exact_size) / 2)
        size = share * actual_size
        # The share multiplies the sum, and with it what the sum loses by rounding and underflow.
        rounding = share * sum_rounding + arithmetic.sum_of(
            2, weights.size + share * (actual_size + exact_size)
        )
        exact = weights.exact.widened(ROOM * share * exact_size)
        if is_shared:  # optimisers take its square and a root of it, which need a tight interval
            mean = (left.exact.mT @ right.exact).times(scale / n_examples)
            sum_of_both = (weights.exact + mean).widened(
                arithmetic.oracle.sum_of(2, share * exact_size)
            )
            exact = exact.intersected(sum_of_both)
        drift = before.drift
        if head_error is not None:
            rounding = rounding + abs(scale) * head_error.per_register
            # The rounding counts the transformer's and the oracle's, hence that of two copies.
            drift = None if drift is None else ROOM * (drift + rounding)
            rounding = rounding + abs(scale) * head_error.common
        error = weights.error + error + rounding
        actual = weights.actual.widened(size + rounding)
        return Bounded(Enclosure.around(exact, error, actual), drift)

    def average_examples(self, score: Bounded, value: Bounded) -> Bounded:
        """Bound a mean by the smallest and the largest value."""
        exact, actual = (
            Interval(interval.low.amin(-2, keepdim=True), interval.high.amax(-2, keepdim=True))
            for interval in (value.value.exact, value.value.actual)
        )
        actual = actual.widened(self.arithmetic.sum_of(self.arithmetic.n_tokens, actual.size))
        return Bounded(Enclosure(exact, actual, ROOM * exact.distance_to(actual)))

    # What MLP layers do to a slot.

    def clip(self, value: Bounded, bound: float, by: str | None = None) -> Bounded:
        actual, drift = value.value.actual, value.drift
        if by is None:
            error = self.arithmetic.sum_of(2, actual.size)
            drift = None if drift is None else ROOM * (drift + error)
        else:
            fit = self.program.ridge_sum(by)
            error = self._units_error(fit, actual)
            error = error + self._units_rounding(fit, fit.n_units, actual, actual.size)
        return Bounded(enclosures.clipped(value.value, bound, error), drift)

    def project(self, value: Bounded, faces: Faces) -> Bounded:
        (start, stop), drift = faces.columns, value.drift
        shape = value.value.error[..., start:stop].shape[-2:]

        def vectors(matrix: Tensor) -> Tensor:
            vectors_in = matrix[..., start:stop]
            return vectors_in if faces.each_row else vectors_in.flatten(-2)

        def put_back(new: Tensor, old: Tensor) -> Tensor:
            new = new if faces.each_row else new.unflatten(-1, shape)
            return torch.cat([old[..., :start], new, old[..., stop:]], dim=-1)

        [low], [high] = _tensor((faces.low,)), _tensor((faces.high,))
        vectors_in, ends = value.value.mapped(vectors), Interval(low, high)
        if faces.basis is None:
            error = self.arithmetic.sum_of(4, vectors_in.actual.size + 2 * ends.size)
            after = enclosures.clipped(vectors_in, ends, error)
        else:
            after, error = enclosures.projected(
                vectors_in, ends, _tensor(faces.basis), self.arithmetic
            )
        if drift is not None:
            vector_drift = vectors(drift)
            if faces.basis is not None:
                vector_drift = (
                    enclosures.projected_drift(vector_drift, _tensor(faces.basis)) + error
                )
            drift = put_back(ROOM * (vector_drift + error), drift)
        return Bounded(enclosures.merged(after, value.value, put_back), drift)

    def exchange(self, value: Bounded, pairs: Sequence[tuple[int, int]]) -> Bounded:
        first, second = map(list, zip(*pairs, strict=True))
        return Bounded(enclosures.exchanged(value.value, first, second, self.arithmetic))

    def mean_excess(self, value: Bounded, total: float) -> Bounded:
        means = _tensor(running_means(value.value.error.shape[-1]))
        return Bounded(enclosures.mean_excess(value.value, means, total, self.arithmetic))

    def threshold(self, value: Bounded, threshold: Bounded, most: float) -> Bounded:
        return Bounded(enclosures.above(value.value, threshold.value, most, self.arithmetic))

    def zero(self, value: Bounded) -> Bounded:
        zeros = value.value.error.new_zeros(()).expand_as(value.value.error)  # allocates one number
        drift = None if value.drift is None else torch.zeros_like(value.drift)
        point = Interval.point(zeros)
        return Bounded(Enclosure(point, point, zeros), drift)

    def where(
        self, flag: str, closed_by: Sequence[str], value: Bounded, otherwise: Bounded
    ) -> Bounded:
        """Return the value: gates are exact, and all tokens enclosed here have the flag set."""
        return value

    def replace(self, before: Bounded, value: Bounded, bound: float | None) -> Bounded:
        """Return the value with the rounding of a residual layer, which adds the change.

        The oracle may add the terms in any order.
        """
        n_terms, sizes = value.n_terms, value.sizes
        rounding = self.arithmetic.sum_of(2 * n_terms + 4, sizes + 2 * before.value.size)
        exact = value.value.exact.widened(self.arithmetic.oracle.sum_of(n_terms + 2, sizes))
        error, actual = value.value.error + rounding, value.value.actual.widened(rounding)
        after = Enclosure.around(exact, error, actual)
        if bound is not None:
            after = enclosures.clipped(after, bound, rounding)
        drift = None if before.drift is None else ROOM * (2 * rounding + value.drift_or_zero)
        return Bounded(after, drift, n_terms, lambda: sizes)

    def mix(self, before: Bounded, after: Bounded, keeps: float) -> Bounded:
        """Return the average; the layer computes it from the terms of `after`."""
        if isinstance(keeps, PerStep):
            raise TypeError(
                f"An average keeps a share of {keeps.numbers} that changes from step to step; "
                "bound it step by step."
            )
        old, new, share = before.value, after.value, 1.0 - keeps
        sizes = after.sizes + 2 * old.size + new.size
        rounding = self.arithmetic.sum_of(2 * after.n_terms + 6, sizes)
        oracle = self.arithmetic.oracle.sum_of(2, sizes)
        exact = (new.exact.times(share) + old.exact.times(keeps)).widened(oracle)
        actual = (new.actual.times(share) + old.actual.times(keeps)).widened(rounding)
        error = share * new.error + keeps * old.error + rounding
        drift = None
        if before.drift is not None:
            drift = ROOM * (share * after.drift_or_zero + keeps * before.drift + 2 * rounding)
        return Bounded(Enclosure.around(exact, error, actual), drift)

    def take_turns(self, turns: TakeTurns, slots: Mapping[str, Bounded]) -> State:
        """Return nothing: integers are counted exactly, and the turns are known beforehand."""
        return {}

    # Errors of heads, and mathematical facts.

    def as_read(self, heads: Any, value: Bounded, *inputs: Bounded) -> Bounded:
        return Bounded(heads.own_error(self, value.value, *inputs))

    def written_over(self, before: Bounded, value: Bounded) -> Bounded:
        return Bounded(value.value.perturbed(before.value.actual.size))

    def guard(self, score: Bounded, reach: float, checked: str) -> Bounded:
        return score

    def grid_error(
        self, function: str, n_terms: int, sizes: Tensor, labels: Tensor | None = None
    ) -> Tensor:
        """Bound the rounding of a head's mean over a grid; 0 if the backend computes no head.

        For a mean that depends on labels the bound includes the error of the grid, which `apply`
        does not add; a fused run evaluates the slope itself and only rounds it.
        """
        mean = self.program.grid_mean(function)
        if labels is not None:
            if self.arithmetic.sums_terms:
                return mean.error + self.arithmetic.grid(mean, n_terms, sizes, labels)
            surface = surface_of(loss_named(function), mean.reach, mean.label_reach)
            return torch.full_like(sizes, surface.rounding * self.arithmetic.roundoff)
        if not self.arithmetic.sums_terms and is_computed_as_such(mean):
            return torch.zeros_like(sizes)
        return self.arithmetic.grid(mean, n_terms, sizes)

    def not_negative(self, value: Bounded) -> Bounded:
        """Return the value cut off below 0; rounding a sum of squares cannot make it negative."""
        zero = torch.zeros_like(value.value.error)
        non_negative, before = Interval(zero, zero + inf), value.value
        exact = before.exact.intersected(non_negative)
        actual = before.actual.intersected(non_negative)
        return Bounded(Enclosure(exact, actual, before.error))

    # Jacobians: a matrix at every token.
    #
    # Backpropagation, in the oracle and in fused runs, multiplies Jacobians from the left, where a
    # weight matrix with m rows enters sums of m terms. By backward error analysis its result is
    # the exact product of Jacobians whose weights are perturbed, at every token, by gamma(m) times
    # their size. These perturbed Jacobians are enclosed, with the rounding of the larger number of
    # terms.

    def unflatten(self, value: Bounded, n_rows: int) -> Bounded:
        return value.mapped(lambda tensor: tensor.unflatten(-1, (n_rows, -1)))

    def flatten(self, matrix: Bounded) -> Bounded:
        return matrix.mapped(lambda tensor: tensor.flatten(-2))

    def matmul_rows(self, weights: Bounded, matrix: Bounded) -> Bounded:
        n_rows = matrix.value.error.shape[-2]
        columns = weights.value.mapped(lambda tensor: tensor[..., :n_rows].unsqueeze(-3))
        n_terms = weights.value.error.shape[-2]
        product = enclosures.matrix_product(columns, matrix.value.mT, self.arithmetic, n_terms)
        return Bounded(product.mT)

    def scale_rows(self, weights: Bounded, matrix: Bounded) -> Bounded:
        n_rows = matrix.value.error.shape[-2]
        columns = weights.value.mapped(lambda tensor: tensor[..., None, :, :n_rows, None])
        rows = matrix.value.mapped(lambda tensor: tensor.unsqueeze(-3))
        n_terms = weights.value.error.shape[-2] + 1
        product = enclosures.multiply(columns, rows, self.arithmetic, n_terms)
        return Bounded(product.mapped(lambda tensor: tensor.flatten(-3)))

    def accumulate_rows(
        self, weights: Bounded, left: Bounded, matrix: Bounded, scale: float, by: Any
    ) -> Bounded:
        """Accumulate one outer product over the rows of all tokens."""
        shape, n_rows = weights.value.error.shape[-2:], left.value.error.shape[-1]
        # A sum over the rows of all tokens is one over `n_rows` times as many tokens.
        longer = Enclosures(
            self.program, replace(self.arithmetic, n_tokens=n_rows * self.arithmetic.n_tokens)
        )
        after = longer._accumulated(
            weights.mapped(lambda tensor: tensor.flatten(-2).unsqueeze(-2)),
            left.mapped(lambda tensor: tensor.flatten(-2).unsqueeze(-1)),
            matrix.mapped(lambda tensor: tensor.flatten(-3, -2)),
            n_rows * scale,
            by.product_error(self, left, matrix),
            self.layout.slot(by.write).role is Role.SHARED,
        )
        return after.mapped(lambda tensor: tensor.squeeze(-2).unflatten(-1, shape))

    # Tables of whole steps.

    def step_from_table(
        self, step: LookUpStep, key: Bounded, slots: Mapping[str, Bounded]
    ) -> Bounded:
        """Return the exact step from the rounded levels, with the error of reading the table.

        If rounding could move keys off the flat pieces of the table, only its range is known.
        """
        x, y, w = (
            Bounded(slots[slot].value.times(size))
            for slot, size in zip(step.levels, step.ranges, strict=True)
        )
        # w + scale * mean(s x), clipped.
        argument, activation = self.matmul(w, x), activation_named(step.activation)
        prediction = self.evaluate(activation.value.name, argument)
        slope = self.evaluate(activation.derivative.name, argument)
        delta = self.multiply(slope, self.loss_slope(step.loss, prediction, y))
        after = self._accumulated(w, delta, x, step.scale).value
        exact, actual = after.exact.clipped(step.bound), after.actual.clipped(step.bound)
        real = Enclosure.around(exact, after.error, actual)
        table = self.program.relu_sum(step.table)
        least, largest, n_terms, rounding = reading(table, self.arithmetic)
        rounding = rounding + self.arithmetic.sum_of(n_terms, slots[step.write].value.actual.size)
        is_on_flat = key_error(step.key, table, self.program, self.arithmetic) <= FLAT
        error = table.error + rounding if is_on_flat else torch.full_like(real.error, inf)
        table_range = Interval(least - rounding, largest + rounding)
        return Bounded(Enclosure.around(real.exact, real.error + error, table_range))


def split(layout: Layout, weights: Enclosure) -> dict[str, Enclosure]:
    """Split the vector of all weights into the layout's matrix slots."""
    start, matrices = 0, dict[str, Enclosure]()
    for slot in layout.having(Role.PARAMETER):
        take = partial(_matrix, start=start, slot=slot)
        matrices[slot.name], start = weights.mapped(take), start + slot.width
    return matrices


def _matrix(vector: Tensor, start: int, slot: Slot) -> Tensor:
    matrix: Tensor = vector[..., start : start + slot.width].unflatten(-1, slot.shape)
    return matrix


@lru_cache(maxsize=64)
def _tensor(rows: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@lru_cache(maxsize=16)
def reading(table: ReluSum, arithmetic: Arithmetic) -> tuple[float, float, int, Tensor]:
    """Return the smallest and largest answer of a table, the number of terms and their rounding.

    Only terms on one side of the anchor are nonzero, and they are largest at the end of the table.
    A backend that looks pieces up returns the answer itself.
    """
    answers = table.intercepts()[::2]  # the flat pieces
    size = torch.tensor(max(map(abs, answers)), dtype=torch.float64)
    n_terms, rounding = 0, arithmetic.sum_of(0, size)
    rows = [(term.scale, term.shift, term.coefficient) for term in table.terms()]
    scale, shift, coefficient = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).T
    for end in (table.low, table.high) if arithmetic.sums_terms else ():
        values = (scale * end + shift).relu()
        used = coefficient.abs() * (values > 0)
        n_terms = max(n_terms, int((used > 0).sum()))
        rounded_values = arithmetic.sum_of(2, 2 * used.sum() * max(abs(table.low), abs(table.high)))
        one_side = arithmetic.sum_of(n_terms, size + used @ values) + rounded_values
        rounding = torch.maximum(rounding, one_side)
    return min(answers), max(answers), n_terms, rounding


FLAT = 7 / 32
"""A table of whole prompts is constant within this distance of every key."""


def key_error(
    key: Combination,
    table: ReluSum,
    program: StackProgram,
    arithmetic: Arithmetic,
    offset: float = 0.0,
) -> float:
    """Bound the rounding error of a key, which is an exact function of the levels it encodes.

    Levels are rounded by r, that of a sum if an `offset` is added. This changes a score
    sum a_i level_i by d = r sum |a_i|, besides the score's own rounding, and the softmax mean of
    values by at most d times their spread.
    """
    one = torch.ones(1, dtype=torch.float64)
    n_terms, sizes = (2, (1 + 2 * abs(offset)) * one) if offset else (1, one)
    level = arithmetic.function(program.relu_sum(IDENTITY), n_terms, sizes, n_copies=1)
    error = arithmetic.sum_of(2, one * max(abs(table.low), abs(table.high)))
    instructions = (instruction for layer in program.block for instruction in layer.instructions)
    means = {
        instruction.write: instruction
        for instruction in instructions
        if isinstance(instruction, AverageExamples)
    }
    for slot, factor in key.terms():
        slot_error = level
        if (mean := means.get(slot)) is not None:
            score, value = (sum(map(abs, sums.coefficients)) for sums in (mean.score, mean.value))
            score_error = (
                score * level + arithmetic.sum_of(3, score * one) + arithmetic.sum_of(0, one)
            )  # exp rounds too
            slot_error = value * (
                level + 2 * score_error + arithmetic.sum_of(arithmetic.n_tokens + 3, one)
            )
        error += abs(factor) * slot_error
    return float(error)
