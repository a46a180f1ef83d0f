r"""The domain of error bounds: the primitives of meanings on enclosures.

Each slot carries an enclosure: where the exact quantity lies, where the transformer's own quantity
lies, and how far apart the two are at most. What an instruction means (`program/meaning.py`) turns
the enclosures that it reads into those that it writes; what its heads get wrong by themselves it
says in `own_error` and `product_error`. The same domain serves two bounds:

- whole domain: the exact quantities are intervals given by the domain and the box;
- this run, one step: the exact quantities are numbers, computed from the run's own weights.

A sum of units is off by its certified error and by its rounding: with the sizes z_i of its
arguments, a unit's value and what a rounded argument changes are at most

    |coefficient| (1 + STEEPEST_UNIT (|direction| . z + |offset|)).

The fused backend computes fine fits as the functions themselves, so that only rounding is left.
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
from icgd.program.meaning import NOWHERE, Means, PerStep, StackDomain
from icgd.program.network_instructions import AverageExamples, LookUpStep, TakeTurns
from icgd.program.program import Layer
from icgd.program.set_instructions import Faces, running_means
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import WipeByUnits
from icgd.shapes import Parameters

NOT_APART = torch.zeros((), dtype=torch.float64)
"""The distance of copies from each other where there are no copies."""

Data = dict[str, Interval]
"""Where what the prompt says of examples or queries lies, by slot."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """An enclosure, and what is known of the sum that it is the value of.

    Until it is stored in a slot it may be a sum of `n_terms` terms, whose sizes add up to more than
    its own: that is what `summed` returns. The registers' copies of it, if there are any, lie at
    most `apart` from the memory's.
    """

    value: Enclosure
    apart: Tensor | None = None
    n_terms: int = 1
    summed: Callable[[], Tensor] | None = None

    @classmethod
    def point(cls, numbers: Tensor) -> Bounded:
        """Numbers that are known."""
        return cls(Enclosure.common(Interval.point(numbers)))

    @cached_property
    def sizes(self) -> Tensor:
        """The total size of all terms."""
        return self.value.size if self.summed is None else self.summed()

    @property
    def distance(self) -> Tensor:
        """How far the copies lie from the memory's, which is 0 if there are none."""
        return NOT_APART if self.apart is None else self.apart

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Bounded:
        """Return the same with all numbers arranged in another way."""
        apart = None if self.apart is None else change(self.apart)
        return Bounded(self.value.mapped(change), apart, self.n_terms, lambda: change(self.sizes))

    def stored(self) -> Bounded:
        """Return what a slot holds of it: no terms, and an infinite error where infinities
        cancelled.
        """
        apart = self.apart
        if apart is not None and bool(apart.sum().isnan()):
            apart = apart.nan_to_num(nan=inf, posinf=inf)
        return Bounded(self.value.without_nan(), apart)


State = dict[str, Bounded]
Method = TypeVar("Method", bound=Callable[..., Any])


def _once(method: Method) -> Method:
    """Remember results by the identity of the operands; names and numbers are compared as such.

    Operands are kept with the result, so that no other object gets their place in memory.
    """

    @wraps(method)
    def remembered(self: Enclosures, *operands: Any) -> Any:
        identities = (part if isinstance(part, str | int) else id(part) for part in operands)
        key = (method.__name__, *identities)
        if key not in self.found:
            self.found[key] = (*operands, method(self, *operands))
        return self.found[key][-1]

    return cast("Method", remembered)


class Enclosures(StackDomain[Bounded]):
    """The primitives on enclosures, for one pass through the layers of a program.

    `found` remembers what several functions ask for.
    """

    room = ROOM  # for what instructions say of their own errors

    def __init__(self, program: StackProgram, how: Arithmetic) -> None:
        self.program, self.how, self.layout = program, how, program.layout
        # Whether registers hold copies of the weights, each of which is rounded on its own.
        self.have_copies = how.sums_terms and program.n_registers > 0
        self.found: dict[tuple[object, ...], tuple[Any, ...]] = {}

    # Streams.

    def start(self, data: Data, weights: Enclosure, drift: Parameters) -> State:
        """Return what the first layer finds, from data and from weights in one vector.

        Copies of the weights in the registers, if there are any, may lie `drift` apart. What units
        leave in a slot that they wipe is still there.
        """
        leading, like = data["x"].low.shape[:-1], data["x"].low
        slots = {name: Bounded(Enclosure.common(column)) for name, column in data.items()}
        slots |= {name: Bounded.point(like.new_ones(1)) for name in (ONE, IS_QUERY)}
        apart = self.layout.split(ROOM * drift) if self.have_copies else {}
        for name, matrix in split(self.layout, weights).items():
            slots[name] = Bounded(matrix, apart.get(name))
        for slot in self.layout.having(Role.SHARED):
            zeros = like.new_zeros(*leading[:-1], *slot.shape)
            slots[slot.name] = Bounded(
                Enclosure.common(Interval.point(zeros)), zeros if self.have_copies else None
            )
        left = dict.fromkeys((slot.name for slot in self.layout.having(Role.SCRATCH)), 0.0)
        for part in (part for layer in self.program.block for part in layer.instructions):
            if isinstance(part, WipeByUnits):
                left |= dict.fromkeys(part.slots, part.left_over(self))
        for name, most in left.items():
            zeros = like.new_zeros(*leading, self.layout.width_of(name))
            slots[name] = Bounded(Enclosure.around(Interval.point(zeros), zeros + most))
        return slots

    def after(self, layers: Iterable[Layer], slots: Mapping[str, Bounded]) -> State:
        """All slots after `layers`."""
        after = dict(slots)
        for layer in layers:
            written = layer.written(after, self)
            after.update({name: value.stored() for name, value in written.items()})
            self._forget(after)
        return after

    def _forget(self, slots: Mapping[str, Bounded]) -> None:
        """Drop results that no later layer can ask for: memory held for long costs page faults."""
        live = set(map(id, slots.values()))
        for key, (*operands, result) in [*self.found.items()]:
            if all(id(part) in live for part in operands if isinstance(part, Bounded)):
                live.add(id(result))
            else:
                del self.found[key]

    # Linear algebra.

    def combine(self, terms: Sequence[tuple[float, Bounded]]) -> Bounded:
        (first, alone), *others = terms
        if first == 1.0 and not others:  # itself, so that arguments made of it are found again
            return alone
        found, sizes = enclosures.combination([(f, part.value) for f, part in terms], self.how)
        drifts = [
            enclosures.largest(factor) * part.apart
            for factor, part in terms
            if part.apart is not None
        ]
        apart = reduce(torch.add, drifts) if drifts else None
        return Bounded(found, apart, len(terms), lambda: sizes)

    def add(self, *values: Bounded) -> Bounded:
        total, *others = values
        for value in others:
            if not total.value.size.any():  # nothing is rounded where 0 is added to
                total = value
            else:
                total = Bounded(enclosures.add(total.value, value.value, self.how))
        return total

    def multiply(self, left: Bounded, right: Bounded) -> Bounded:
        return Bounded(enclosures.multiply(left.value, right.value, self.how))

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

        apart = None
        if scaled.apart is not None and bias.apart is not None:
            apart = beside(scaled.apart, bias.apart)
        together = enclosures.merged(scaled.value, bias.value, beside)
        return Bounded(together, apart, 1, lambda: beside(scaled.sizes, bias.sizes))

    @_once
    def matmul(self, weights: Bounded, inputs: Bounded) -> Bounded:
        value = enclosures.matrix_product(weights.value, inputs.value, self.how)
        apart = None if weights.apart is None else inputs.sizes @ weights.apart.mT
        n_terms = weights.value.error.shape[-1] + inputs.n_terms - 1

        def summed() -> Tensor:
            sizes = inputs.sizes @ weights.value.actual.size.mT
            return sizes if apart is None else sizes + apart

        return Bounded(value, apart, n_terms, summed)

    def transpose(self, weights: Bounded, n_rows: int) -> Bounded:
        return weights.mapped(lambda matrix: matrix[..., :n_rows].mT)

    @_once
    def above_one(self, inputs: Bounded) -> Bounded:
        def with_last(part: Tensor, number: float) -> Tensor:
            padded: Tensor = torch.cat([part, torch.full_like(part[..., :1], number)], dim=-1)
            return padded

        value = inputs.value
        exact = value.exact.mapped(lambda part: with_last(part, 1.0))
        actual = exact
        if not value.is_common:
            actual = value.actual.mapped(lambda part: with_last(part, 1.0))
        above = Enclosure(exact, actual, with_last(value.error, 0.0))
        return Bounded(above, None, inputs.n_terms, lambda: with_last(inputs.sizes, 1.0))

    def take(self, value: Bounded, places: Sequence[int]) -> Bounded:
        index, is_empty = torch.tensor(places).clamp(min=0), torch.tensor(places) == NOWHERE
        return value.mapped(lambda part: part[..., index].masked_fill(is_empty, 0.0))

    def constant_map(self, rows: Sequence[Sequence[float]], value: Bounded) -> Bounded:
        matrix = Enclosure.common(Interval.point(self.matrix(rows)))
        return Bounded(enclosures.matrix_product(matrix, value.value, self.how))

    def matrix(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Return a constant matrix as a tensor."""
        return _tensor(tuple(map(tuple, rows)))

    # Functions.

    def apply(self, function: str, argument: Bounded, by: Means) -> Bounded:
        if by == "grid":  # what heads round is added where they are read
            mean, where = self.program.grid_mean(function), argument.value.actual
            size = Interval(*function_named(function).bounds(where.low, where.high)).size
            off = self.how.evaluation(function, size)  # of a fused run
            return Bounded(enclosures.fitted_at(mean, argument.value, off))
        if by == "lattice":
            look_up = self.program.look_up(function)
            rounding = self.how.head(look_up, argument.n_terms, argument.sizes, argument.distance)
            return Bounded(enclosures.fitted_at(look_up, argument.value, rounding))
        fit = self.program.relu_sum(function)
        if by == "mlp":
            rounding = self.mlp_rounding(function, argument)
        else:
            n_copies, where = self.how.n_tokens, argument.value.actual
            rounding = self.how.function(fit, argument.n_terms, argument.sizes, n_copies, where)
        return Bounded(enclosures.fitted_at(fit, argument.value, rounding))

    @_once
    def mlp_rounding(self, function: str, argument: Bounded) -> Tensor:
        """Return the rounding of a sum of ReLUs in an MLP.

        Some functions are steeper by many powers of ten at one end than elsewhere. All their terms
        have one sign, and those that count at t lie on one side of t: their sizes add up to a few
        times the value there, besides what its slope there makes of the argument's own rounding.
        Beyond the steep end they are flat: there one term cancels all others, and each is as large
        as the slope before it makes the argument.
        """
        fit, actual = self.program.relu_sum(function), argument.value.actual
        real = numbered_function(fit.name)
        if real is None:
            return self.how.function(fit, argument.n_terms, argument.sizes, 1, actual)
        first, last = touched(fit, actual)
        slopes = torch.tensor(fit.slopes, dtype=torch.float64).abs()
        # Slopes rise to one end or fall from the other: the largest is at an end, or next to it.
        places = (first, first + 1, last - 1, last)
        near = [slopes[place.clamp(0, len(slopes) - 1)] for place in places]
        steepest = 2 * reduce(torch.maximum, near)
        largest = real.bounds(actual.low, actual.high)[1]
        n_terms = fit.n_pieces + argument.n_terms + 1
        return self.how.sum_of(n_terms, steepest * argument.sizes + 8 * largest)

    def lattice_error(self, function: str, n_terms: int, sizes: Tensor, apart: Tensor) -> Tensor:
        """Return how far a line or a square is off, which heads read from the lattice."""
        fit = self.program.look_up(function)
        return enclosures.lattice_error(fit, n_terms, sizes, apart, self.how)

    def softmax(self, scores: Bounded) -> Bounded:
        n_classes = scores.value.error.shape[-1]
        return Bounded(enclosures.shares_of(scores.value, n_classes + self.how.n_tokens, self.how))

    @_once
    def evaluate(self, function: str, argument: Bounded) -> Bounded:
        return Bounded(function_at(function_named(function), argument.value))

    def loss_slope(self, loss: str, prediction: Bounded, label: Bounded) -> Bounded:
        parts, slope = [], loss_named(loss)
        if slope.slope_parts is None:  # what heads miss and round is added where they are read
            fit = self.program.grid_mean(loss)
            return Bounded(enclosures.slope_at(slope, fit, prediction.value, label.value))
        for part in slope.slope_parts:
            terms = [(part.prediction, prediction), (part.label, label)]
            parts.append(Bounded(function_at(part.function, self.combine(terms).value)))
        return self.add(*parts)

    # Sums of units.

    def by_units(
        self,
        function: str,
        exact: Bounded,
        arguments: Sequence[tuple[Bounded, float]],
        n_sums: int = 1,
    ) -> Bounded:
        fit, (first, reach) = self.program.ridge_sum(function), arguments[0]
        places = [part.value.actual.times(1 / size) for part, size in arguments]
        sizes = [
            (part.value.actual.size if part.n_terms == 1 else part.sizes) / size
            for part, size in arguments
        ]
        n_terms = n_sums * fit.n_units + sum(part.n_terms - 1 for part, _ in arguments)
        real = exact.value
        shrunk = real.actual if reach == 1.0 else real.actual.mapped(lambda part: part / reach)
        smooth = replace(fit, bands=()) if fit.is_ramp else fit
        off = reach * self._units_error(smooth, *places)
        off = off + reach * self._units_rounding(fit, n_terms, shrunk, *sizes)
        if not (fit.is_ramp and fit.slope):
            return Bounded(real.perturbed(off))
        # Near a kink units give something between s times the one slope and s times the other.
        jumps = enclosures.ridge_error(replace(fit, error=0.0), *places)
        slope = function_named(fit.slope)
        end = torch.full_like(places[-1].low, inf)
        near, s = first.value.actual * Interval(*slope.bounds(-end, end)), first.value.actual
        actual = Interval(
            torch.where(jumps > 0, near.low, real.actual.low),
            torch.where(jumps > 0, near.high, real.actual.high),
        ).widened(off)
        return Bounded(Enclosure.around(real.exact, real.error + jumps * s.size + off, actual))

    def _units_error(self, fit: RidgeSum, *places: Interval) -> Tensor:
        """Return the certified error of what the backend computes for a fit."""
        as_such = fit.is_exact or (not self.how.sums_terms and is_computed_as_such(fit))
        return enclosures.ridge_error(replace(fit, error=0.0) if as_such else fit, *places)

    def _units_rounding(
        self, fit: RidgeSum, n_terms: int, value: Interval, *sizes: Tensor
    ) -> Tensor:
        """Return the rounding of sums of units, in which there are so many terms, at arguments of
        these sizes, where the function itself has this `value`.
        """
        if not self.how.sums_terms and is_computed_as_such(fit):
            off = self.how.sum_of(len(sizes), value.size)
            if fit.name == PRODUCT:
                return off
            # In units of its reach the factor s of a slope is at most 1, so that the product is
            # off by no more than the slope is.
            return off + self.how.evaluation(fit.slope or fit.name, value.size)
        total = torch.zeros_like(value.low)
        for number, size in enumerate(sizes):
            per_size = sum(abs(unit.coefficient * unit.direction[number]) for unit in fit.units)
            total = total + STEEPEST_UNIT * per_size * size
        constant = sum(
            abs(unit.coefficient) * (1 + STEEPEST_UNIT * abs(unit.offset)) for unit in fit.units
        )
        n_copies = self.how.n_tokens if self.how.sums_terms else 1
        ulps = ceil(unit_activation_named(fit.activation).ulps)
        return self.how.sum_of(n_terms + n_copies + len(sizes) + ulps, total + constant)

    @_once
    def units_at_one(self, function: str) -> float:
        """Return how far units are off that stand for a line, at 1."""
        fit, one = self.program.ridge_sum(function), torch.ones((), dtype=torch.float64)
        whole = Interval.point(one)
        off = enclosures.ridge_error(fit, whole)
        return float(off + self._units_rounding(fit, fit.n_units, whole, one))

    def product_by_units(
        self, function: str, reaches: tuple[float, float], factors: tuple[Interval, Interval]
    ) -> Tensor:
        """Return how far each product of two factors is off."""
        fit, (reach, other) = self.program.ridge_sum(function), reaches
        left, right = factors[0].times(1 / reach), factors[1].times(1 / other)
        off = self._units_error(fit, left, right)
        product = Interval.point((left.size * right.size).expand_as(off))
        n_terms = off.shape[-2] * fit.n_units
        rounding = self._units_rounding(fit, n_terms, product, left.size, right.size)
        return reach * other * (off + rounding)

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
        off = by.product_error(self, left, right)
        is_shared = self.layout.slot(by.write).role is Role.SHARED
        return self._accumulated(weights, left, right, scale, off, is_shared)

    def _accumulated(
        self,
        before: Bounded,
        left_factor: Bounded,
        right_factor: Bounded,
        scale: float,
        off: HeadError | None = None,
        is_shared: bool = False,
    ) -> Bounded:
        """Add scale * mean(left right^T), which heads get wrong by `off`.

        If they do, the registers' copies, which are not rounded alike, may drift apart. The
        transformer rounds its own products, and the oracle the exact ones. What the sum loses by
        underflow is multiplied by the share.
        """
        weights, left, right = before.value, left_factor.value, right_factor.value
        how, n_examples = self.how, left.error.shape[-2]
        share = ROOM * abs(scale) / n_examples
        own = left.actual.size.mT @ right.actual.size
        exactly = left.exact.size.mT @ right.exact.size
        error = share * (left.error.mT @ right.exact.size + left.actual.size.mT @ right.error)
        summed = how.sum_of(2 * how.n_tokens, (own + exactly) / 2)
        size = share * own
        rounding = share * summed + how.sum_of(2, weights.size + share * (own + exactly))
        exact = weights.exact.widened(ROOM * share * exactly)
        if is_shared:  # its square and its root are needed
            mean = (left.exact.mT @ right.exact).times(scale / n_examples)
            sum_of_both = (weights.exact + mean).widened(how.oracle.sum_of(2, share * exactly))
            exact = exact.intersected(sum_of_both)
        apart = before.apart
        if off is not None:
            rounding = rounding + abs(scale) * off.uneven
            # It counts the transformer's and the oracle's: as much as two copies differ.
            apart = None if apart is None else ROOM * (apart + rounding)
            rounding = rounding + abs(scale) * off.alike
        error = weights.error + error + rounding
        actual = weights.actual.widened(size + rounding)
        return Bounded(Enclosure.around(exact, error, actual), apart)

    def average_examples(self, score: Bounded, value: Bounded) -> Bounded:
        """Any mean lies between the least and the largest value."""
        exact, actual = (
            Interval(part.low.amin(-2, keepdim=True), part.high.amax(-2, keepdim=True))
            for part in (value.value.exact, value.value.actual)
        )
        actual = actual.widened(self.how.sum_of(self.how.n_tokens, actual.size))
        return Bounded(Enclosure(exact, actual, ROOM * exact.distance_to(actual)))

    # What MLP layers do to a slot.

    def clip(self, value: Bounded, bound: float, by: str | None = None) -> Bounded:
        actual, apart = value.value.actual, value.apart
        if by is None:
            off = self.how.sum_of(2, actual.size)
            apart = None if apart is None else ROOM * (apart + off)
        else:
            fit = self.program.ridge_sum(by)
            off = self._units_error(fit, actual)
            off = off + self._units_rounding(fit, fit.n_units, actual, actual.size)
        return Bounded(enclosures.clipped(value.value, bound, off), apart)

    def project(self, value: Bounded, faces: Faces) -> Bounded:
        (start, stop), apart = faces.columns, value.apart
        shape = value.value.error[..., start:stop].shape[-2:]

        def vectors(matrix: Tensor) -> Tensor:
            part = matrix[..., start:stop]
            return part if faces.each_row else part.flatten(-2)

        def beside(new: Tensor, old: Tensor) -> Tensor:
            new = new if faces.each_row else new.unflatten(-1, shape)
            return torch.cat([old[..., :start], new, old[..., stop:]], dim=-1)

        [low], [high] = _tensor((faces.low,)), _tensor((faces.high,))
        part, ends = value.value.mapped(vectors), Interval(low, high)
        if faces.basis is None:
            off = self.how.sum_of(4, part.actual.size + 2 * ends.size)
            after = enclosures.clipped(part, ends, off)
        else:
            after, off = enclosures.projected(part, ends, _tensor(faces.basis), self.how)
        if apart is not None:
            own = vectors(apart)
            if faces.basis is not None:
                own = enclosures.moved_apart(own, _tensor(faces.basis)) + off
            apart = beside(ROOM * (own + off), apart)
        return Bounded(enclosures.merged(after, value.value, beside), apart)

    def exchange(self, value: Bounded, pairs: Sequence[tuple[int, int]]) -> Bounded:
        first, second = map(list, zip(*pairs, strict=True))
        return Bounded(enclosures.exchanged(value.value, first, second, self.how))

    def mean_excess(self, value: Bounded, total: float) -> Bounded:
        means = _tensor(running_means(value.value.error.shape[-1]))
        return Bounded(enclosures.mean_excess(value.value, means, total, self.how))

    def threshold(self, value: Bounded, threshold: Bounded, most: float) -> Bounded:
        return Bounded(enclosures.above(value.value, threshold.value, most, self.how))

    def zero(self, value: Bounded) -> Bounded:
        zeros = value.value.error.new_zeros(()).expand_as(value.value.error)  # takes no memory
        apart = None if value.apart is None else torch.zeros_like(value.apart)
        point = Interval.point(zeros)
        return Bounded(Enclosure(point, point, zeros), apart)

    def where(
        self, flag: str, closed_by: Sequence[str], value: Bounded, otherwise: Bounded
    ) -> Bounded:
        """Gates are exact, and all tokens are such that a flag is set: examples, or queries."""
        return value

    def replace(self, before: Bounded, value: Bounded, bound: float | None) -> Bounded:
        """Return the layer adds the change to what the slot holds, and the oracle may add in any
        order.
        """
        n_terms, sizes = value.n_terms, value.sizes
        rounding = self.how.sum_of(2 * n_terms + 4, sizes + 2 * before.value.size)
        exact = value.value.exact.widened(self.how.oracle.sum_of(n_terms + 2, sizes))
        error, actual = value.value.error + rounding, value.value.actual.widened(rounding)
        after = Enclosure.around(exact, error, actual)
        if bound is not None:
            after = enclosures.clipped(after, bound, rounding)
        apart = None if before.apart is None else ROOM * (2 * rounding + value.distance)
        return Bounded(after, apart, n_terms, lambda: sizes)

    def mix(self, before: Bounded, after: Bounded, keeps: float) -> Bounded:
        """Return the layer makes it of the terms that `after` is made of."""
        if isinstance(keeps, PerStep):
            raise TypeError("An average whose share changes is bounded step by step")
        old, new, share = before.value, after.value, 1.0 - keeps
        sizes = after.sizes + 2 * old.size + new.size
        rounding = self.how.sum_of(2 * after.n_terms + 6, sizes)
        oracle = self.how.oracle.sum_of(2, sizes)
        exact = (new.exact.times(share) + old.exact.times(keeps)).widened(oracle)
        actual = (new.actual.times(share) + old.actual.times(keeps)).widened(rounding)
        error = share * new.error + keeps * old.error + rounding
        apart = None
        if before.apart is not None:
            apart = ROOM * (share * after.distance + keeps * before.apart + 2 * rounding)
        return Bounded(Enclosure.around(exact, error, actual), apart)

    def take_turns(self, turns: TakeTurns, slots: Mapping[str, Bounded]) -> State:
        """Whole numbers are counted exactly; who waits is known beforehand, and not enclosed."""
        return {}

    # What heads add to the error, and what mathematics knows.

    def as_read(self, heads: Any, value: Bounded, *inputs: Bounded) -> Bounded:
        return Bounded(heads.own_error(self, value.value, *inputs))

    def written_over(self, before: Bounded, value: Bounded) -> Bounded:
        return Bounded(value.value.perturbed(before.value.actual.size))

    def guard(self, score: Bounded, reach: float, checked: str) -> Bounded:
        return score

    def grid_error(
        self, function: str, n_terms: int, sizes: Tensor, labels: Tensor | None = None
    ) -> Tensor:
        """Return what a head's mean over a grid is off by rounding; 0 if no head is computed.

        Of a mean that depends on labels, what the grid leaves too: a fused run, which computes the
        slope itself, rounds that.
        """
        mean = self.program.grid_mean(function)
        if labels is not None:
            if self.how.sums_terms:
                return mean.error + self.how.grid(mean, n_terms, sizes, labels)
            surface = surface_of(loss_named(function), mean.reach, mean.label_reach)
            return torch.full_like(sizes, surface.rounding * self.how.roundoff)
        if not self.how.sums_terms and is_computed_as_such(mean):
            return torch.zeros_like(sizes)
        return self.how.grid(mean, n_terms, sizes)

    def not_negative(self, value: Bounded) -> Bounded:
        """Nor is what rounding makes of it."""
        zero = torch.zeros_like(value.value.error)
        allowed, found = Interval(zero, zero + inf), value.value
        exact, actual = found.exact.intersected(allowed), found.actual.intersected(allowed)
        return Bounded(Enclosure(exact, actual, found.error))

    # Jacobians: a matrix at every token.
    #
    # Backpropagation, by the oracle and by fused runs, multiplies them from the left, where weights
    # with m rows are in sums of m terms. What it computes is what the Jacobians give, exactly, if
    # at every token each weight is off by gamma(m) of its size: so these Jacobians are enclosed,
    # with the rounding of the larger number of terms.

    def unflatten(self, value: Bounded, n_rows: int) -> Bounded:
        return value.mapped(lambda part: part.unflatten(-1, (n_rows, -1)))

    def flatten(self, matrix: Bounded) -> Bounded:
        return matrix.mapped(lambda part: part.flatten(-2))

    def matmul_rows(self, weights: Bounded, matrix: Bounded) -> Bounded:
        n_rows = matrix.value.error.shape[-2]
        columns = weights.value.mapped(lambda part: part[..., :n_rows].unsqueeze(-3))
        n_terms = weights.value.error.shape[-2]
        product = enclosures.matrix_product(columns, matrix.value.mT, self.how, n_terms)
        return Bounded(product.mT)

    def scale_rows(self, weights: Bounded, matrix: Bounded) -> Bounded:
        n_rows = matrix.value.error.shape[-2]
        columns = weights.value.mapped(lambda part: part[..., None, :, :n_rows, None])
        rows = matrix.value.mapped(lambda part: part.unsqueeze(-3))
        n_terms = weights.value.error.shape[-2] + 1
        product = enclosures.multiply(columns, rows, self.how, n_terms)
        return Bounded(product.mapped(lambda part: part.flatten(-3)))

    def accumulate_rows(
        self, weights: Bounded, left: Bounded, matrix: Bounded, scale: float, by: Any
    ) -> Bounded:
        """All rows, of one token after another, are in one outer product."""
        shape, n_rows = weights.value.error.shape[-2:], left.value.error.shape[-1]
        longer = Enclosures(self.program, replace(self.how, n_tokens=n_rows * self.how.n_tokens))
        after = longer._accumulated(
            weights.mapped(lambda part: part.flatten(-2).unsqueeze(-2)),
            left.mapped(lambda part: part.flatten(-2).unsqueeze(-1)),
            matrix.mapped(lambda part: part.flatten(-3, -2)),
            n_rows * scale,
            by.product_error(self, left, matrix),
            self.layout.slot(by.write).role is Role.SHARED,
        )
        return after.mapped(lambda part: part.squeeze(-2).unflatten(-1, shape))

    # Tables of whole steps.

    def step_from_table(
        self, step: LookUpStep, key: Bounded, slots: Mapping[str, Bounded]
    ) -> Bounded:
        """Return the exact step, from the levels instead of the entries themselves.

        If keys could be rounded beyond the flat parts of the table, only its range is known.
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
        real, table = (
            Enclosure.around(exact, after.error, actual),
            self.program.relu_sum(step.table),
        )
        least, largest, n_terms, rounding = reading(table, self.how)
        rounding = rounding + self.how.sum_of(n_terms, slots[step.write].value.actual.size)
        is_found = key_error(step.key, table, self.program, self.how) <= FLAT
        off = table.error + rounding if is_found else torch.full_like(real.error, inf)
        known = Interval(least - rounding, largest + rounding)
        return Bounded(Enclosure.around(real.exact, real.error + off, known))


def split(layout: Layout, weights: Enclosure) -> dict[str, Enclosure]:
    """Return the vector of all weights as the layout's matrix slots."""
    start, parts = 0, dict[str, Enclosure]()
    for slot in layout.having(Role.PARAMETER):
        take = partial(_matrix, start=start, slot=slot)
        parts[slot.name], start = weights.mapped(take), start + slot.width
    return parts


def _matrix(vector: Tensor, start: int, slot: Slot) -> Tensor:
    matrix: Tensor = vector[..., start : start + slot.width].unflatten(-1, slot.shape)
    return matrix


@lru_cache(maxsize=64)
def _tensor(rows: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@lru_cache(maxsize=16)
def reading(table: ReluSum, how: Arithmetic) -> tuple[float, float, int, Tensor]:
    """Return the least and the largest answer in a table, the number of terms, and their rounding.

    Only the terms on one side of the anchor are not zero, and they grow towards the end. A backend
    that looks pieces up returns the answer itself.
    """
    answers = table.intercepts()[::2]  # the flat pieces
    size = torch.tensor(max(map(abs, answers)), dtype=torch.float64)
    n_terms, rounding = 0, how.sum_of(0, size)
    rows = [(term.scale, term.shift, term.coefficient) for term in table.terms()]
    scale, shift, coefficient = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).T
    for end in (table.low, table.high) if how.sums_terms else ():
        values = (scale * end + shift).relu()
        used = coefficient.abs() * (values > 0)
        n_terms = max(n_terms, int((used > 0).sum()))
        rounded_values = how.sum_of(2, 2 * used.sum() * max(abs(table.low), abs(table.high)))
        one_side = how.sum_of(n_terms, size + used @ values) + rounded_values
        rounding = torch.maximum(rounding, one_side)
    return min(answers), max(answers), n_terms, rounding


FLAT = 7 / 32
"""A table of whole prompts is constant this far around every key."""


def key_error(
    key: Combination, table: ReluSum, program: StackProgram, how: Arithmetic, offset: float = 0.0
) -> float:
    """Return how far rounding can move a key, which is exact in the levels that it encodes.

    Each level, of a number to which an `offset` is added, is rounded by r. Then scores are off by
    d = r sum|a| and their own rounding, which changes a weighted mean of values by at most d times
    their spread.
    """
    one = torch.ones(1, dtype=torch.float64)
    n_terms, sizes = (2, (1 + 2 * abs(offset)) * one) if offset else (1, one)
    level = how.function(program.relu_sum(IDENTITY), n_terms, sizes, n_copies=1)
    error = how.sum_of(2, one * max(abs(table.low), abs(table.high)))
    instructions = [part for layer in program.block for part in layer.instructions]
    means = {part.write: part for part in instructions if isinstance(part, AverageExamples)}
    for slot, factor in key.terms():
        read = level
        if (mean := means.get(slot)) is not None:
            score, value = (sum(map(abs, part.coefficients)) for part in (mean.score, mean.value))
            off = score * level + how.sum_of(3, score * one) + how.sum_of(0, one)  # exp rounds too
            read = value * (level + 2 * off + how.sum_of(how.n_tokens + 3, one))
        error += abs(factor) * read
    return float(error)
