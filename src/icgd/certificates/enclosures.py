r"""The arithmetic of error bounds, and the interface of all kinds of bounds.

An enclosure bounds an exact quantity, the transformer's value of it, and their distance. The exact
quantity has two forms, and every statement holds for both: the real number, and the float64
oracle's value. The interval `exact` holds both, because it is rounded outwards by the rounding
error of float64. `error` bounds the transformer's distance from either.

The size of a number is its absolute value. With u = 2^-53 the error of one operation is at most u
times the size of its result, and that of a sum of m products, in any order, gamma(m) = m u / (1 -
m u) times the sum of their sizes. Operations on intervals move the ends outwards by these errors:

    sum, widening    2 roundings, and the one that moves the end: 4 u of the end
    product          3 roundings: 4 u times the product of the sizes
    matrix product   the midpoint's m products, the oracle's, and the last rounding: gamma(2 m + 4);
                     the spread, a sum of numbers that are not negative, has its `ROOM`

Underflow breaks these rules, but only below 2^-1022. `LEAST` is added to every size that is not 0,
so that no product of up to four sizes underflows, and u times it is far more than underflow can
lose. A size is 0 only where all values are exactly 0.

The transformer's sums are rounded likewise, with its own u. Each operation that underflows loses
less than the smallest normal number, even where subnormal results are flushed to 0. Every rule
adds these errors twice, for the transformer and for the oracle; a real number is not rounded. The
error of a softmax head includes what the rounding of its scores changes.

The bounds themselves are computed in float64. An error is a sum of products that are not negative,
so one factor `ROOM` at the end of a rule covers its rounding; underflow loses far less of the bound
than the rule adds for underflow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from math import ceil, inf
from operator import add as plus

import torch
from torch import Tensor
from torch.nn import functional

from icgd.approximation.lattice import lattice_of
from icgd.backends.look_up import DEGREE, table_error
from icgd.backends.registry import BACKENDS
from icgd.backends.run import OnProgress
from icgd.problems.data import Task
from icgd.problems.functions import (
    SOFTMAX_ROUNDING,
    function_named,
    rounding_of,
)
from icgd.problems.losses import Loss
from icgd.problems.problem import Problem
from icgd.problems.scalar import ScalarFunction
from icgd.problems.settings import named
from icgd.problems.surface import surface_of
from icgd.program.functions import GridMean, LatticeFunction, ReluSum, RidgeSum
from icgd.program.meaning import PerStep
from icgd.program.program import AbstractProgram
from icgd.shapes import History, Predictions, Values

UNIT_ROUNDOFF = 2.0**-53
"""The unit roundoff of float64, in which bounds and oracles are computed."""

ROOM = 1 + 2.0**-28
"""The safety factor for the rounding of up to 2^24 operations on numbers that are not negative:
gamma(2^24) < 2^-28.
"""

LEAST = 2.0**-256
"""Added to sizes that are not 0."""

_OUTWARDS = 4 * UNIT_ROUNDOFF


@dataclass(frozen=True)
class Interval:
    """Every entry lies between `low` and `high`.

    Where the values are known exactly, both ends are the same tensor, which halves the work.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def point(cls, value: Values) -> Interval:
        """Return the interval that holds `value` alone."""
        return cls(value, value)

    @classmethod
    def symmetric(cls, bound: float, *shape: int) -> Interval:
        """Return the interval [-bound, bound] in every entry."""
        size = torch.full(shape, bound, dtype=torch.float64)
        return cls(-size, size)

    @cached_property
    def size(self) -> Tensor:
        """An upper bound on the absolute value, which is 0 only if the value is."""
        if self.low is self.high:
            return _lifted(self.low.abs())
        return _lifted(torch.maximum(-self.low, self.high))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Interval:
        """Rearrange all numbers, or apply an increasing function to them."""
        low = change(self.low)
        return Interval(low, low if self.low is self.high else change(self.high))

    @property
    def mT(self) -> Interval:  # noqa: N802 - torch's name
        """The transposed interval."""
        return self.mapped(lambda end: end.mT)

    def widened(self, margin: Values) -> Interval:
        """Move both ends outwards by `margin`."""
        return _outwards(self.low - margin, self.high + margin)

    def intersected(self, other: Interval) -> Interval:
        """Intersect with an interval that is known to hold the same value.

        Rounding may leave a tiny gap between the two; then return the gap.
        """
        low = torch.maximum(self.low, other.low)
        high = torch.minimum(self.high, other.high)
        return Interval(torch.minimum(low, high), torch.maximum(low, high))

    def without_nan(self) -> Interval:
        """Make ends infinite where infinities cancelled."""
        # One sum tells: it is NaN if an entry is, or if infinities cancel in it.
        low, high = self.low, self.high
        if not (low.sum().isnan() or (low is not high and high.sum().isnan())):
            return self
        return Interval(torch.where(low.isnan(), -inf, low), torch.where(high.isnan(), inf, high))

    def clipped(self, bound: float | Interval) -> Interval:
        """Clip to [-bound, bound], or to an interval for each entry."""
        if isinstance(bound, Interval):
            return self.mapped(lambda end: end.clamp(bound.low, bound.high))
        return self.mapped(lambda end: end.clamp(-bound, bound))

    def distance_to(self, other: Interval) -> Tensor:
        """Return the largest distance of a value in this interval from one in the other."""
        return torch.maximum(self.high - other.low, other.high - self.low)

    def __add__(self, other: Interval) -> Interval:
        return _outwards(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Interval:
        """Multiply by a number."""
        multiple = self.mapped(lambda end: factor * end)
        turned = multiple if factor >= 0 else Interval(multiple.high, multiple.low)
        return turned if abs(factor) == 1 else turned.widened(_OUTWARDS * abs(factor) * self.size)

    def times_within(self, low: float, high: float) -> Interval:
        """Multiply by an unknown number in [low, high]: the extremes are at its ends."""
        if low == high:
            return self.times(low)
        one, other = self.times(low), self.times(high)
        return Interval(torch.minimum(one.low, other.low), torch.maximum(one.high, other.high))

    def __mul__(self, other: Interval) -> Interval:
        ends, other_ends = (
            (factor.low,) if factor.low is factor.high else (factor.low, factor.high)
            for factor in (self, other)
        )
        corners = [a * b for a in ends for b in other_ends]
        product = Interval(reduce(torch.minimum, corners), reduce(torch.maximum, corners))
        return product.widened(_OUTWARDS * self.size * other.size)

    def __matmul__(self, other: Interval) -> Interval:
        """Multiply matrices by midpoints and radii.

        With |a - m| <= r and |b - n| <= s it is |a b - m n| <= |m| s + r (|n| + s). Rounding adds
        gamma (|m| + r) (|n| + s), which is covered by enlarging s by gamma (|n| + s).
        """
        middle, radius = self._ball()
        other_middle, other_radius = other._ball()
        product = (2 * self.low.shape[-1] + 4) * UNIT_ROUNDOFF
        size, gamma = other.size, product / (1 - product)
        enlarged = gamma * size if other_radius is None else other_radius + gamma * size
        spread = _lifted(middle.abs()) @ enlarged
        if radius is not None:
            spread = spread + (1 + gamma) * (radius @ size)
        centre, spread = middle @ other_middle, ROOM * spread
        return Interval(centre - spread, centre + spread)

    def _ball(self) -> tuple[Tensor, Tensor | None]:
        """Return the rounded midpoint, and the radius around it, or None if it is 0."""
        if self.low is self.high:
            return self.low, None
        middle = (self.low + self.high) / 2
        radius = _lifted(torch.maximum(self.high - middle, middle - self.low))
        return middle, radius if bool(radius.any()) else None


def _lifted(size: Tensor) -> Tensor:
    """Add `LEAST` to a size, unless it is 0."""
    return torch.add(size, size.sign(), alpha=LEAST)


def _outwards(low: Tensor, high: Tensor) -> Interval:
    """Return the interval between these ends, widened by their rounding."""
    return Interval(
        torch.sub(low, low.abs(), alpha=_OUTWARDS), torch.add(high, high.abs(), alpha=_OUTWARDS)
    )


def norm(errors: Tensor) -> Tensor:
    """Return an upper bound on the 2-norm over the last axis, infinite where an error is.

    Errors are scaled first, because squares of small ones would underflow.
    """
    largest = errors.amax(-1, keepdim=True).clamp(min=torch.finfo(errors.dtype).tiny)
    length: Tensor = ROOM * (errors / largest).norm(dim=-1) * largest.squeeze(-1)
    return torch.where(length.isnan(), inf, length)


@dataclass(frozen=True)
class Enclosure:
    """The exact value, the transformer's value, and a bound on their distance."""

    exact: Interval
    actual: Interval
    error: Tensor

    @classmethod
    def common(cls, value: Interval) -> Enclosure:
        """Return the enclosure of a quantity that the transformer holds exactly."""
        return cls(value, value, torch.zeros_like(value.low))

    @classmethod
    def around(cls, exact: Interval, error: Values, actual: Interval | None = None) -> Enclosure:
        """Enclose a quantity whose transformer value is within `error` of the exact one.

        The transformer's value also lies in `actual`, if given.
        """
        within_error = exact.widened(error)
        actual = within_error if actual is None else within_error.intersected(actual)
        return cls(exact, actual, ROOM * torch.minimum(error, exact.distance_to(actual)))

    @property
    def is_common(self) -> bool:
        """Whether the transformer holds the quantity exactly."""
        return self.exact is self.actual

    @cached_property
    def size(self) -> Tensor:
        """The larger size of the exact and the transformer's value, on which rounding depends."""
        if self.is_common:
            return self.exact.size
        return torch.maximum(self.exact.size, self.actual.size)

    @property
    def mT(self) -> Enclosure:  # noqa: N802 - torch's name
        """The transposed enclosure."""
        return self.mapped(lambda matrix: matrix.mT)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Enclosure:
        """Rearrange all numbers."""
        exact, error = self.exact.mapped(change), change(self.error)
        return Enclosure(exact, exact if self.is_common else self.actual.mapped(change), error)

    def perturbed(self, error: Tensor) -> Enclosure:
        """Add an error to the transformer's value."""
        return Enclosure.around(self.exact, self.error + error, self.actual.widened(error))

    def times(self, factor: float) -> Enclosure:
        """Multiply by a number, without rounding."""
        exact, actual = self.exact.times(factor), self.actual.times(factor)
        return Enclosure(exact, actual, ROOM * abs(factor) * self.error)

    def at_least(self, low: Tensor) -> Enclosure:
        """Return the enclosure, given that the transformer's value is at least `low`."""
        above_low = Interval(low, torch.full_like(low, inf))
        return Enclosure.around(self.exact, self.error, self.actual.intersected(above_low))

    def intersected(self, reach: Tensor) -> Enclosure:
        """Return the enclosure, given that both values lie in [-reach, reach]."""
        within = Interval(-reach, reach)
        exact, actual = self.exact.intersected(within), self.actual.intersected(within)
        return Enclosure(exact, actual, torch.minimum(self.error, ROOM * exact.distance_to(actual)))

    def lowered(self, missed: float) -> Enclosure:
        """Lower the exact value, which is not negative, by up to `missed`."""
        exact = Interval((self.exact.low - missed).clamp(min=0.0), self.exact.high)
        return Enclosure(exact, self.actual, self.error + missed)

    def without_nan(self) -> Enclosure:
        """Make the error infinite where infinities cancelled."""
        error = self.error
        if bool(error.sum().isnan()):
            error = torch.where(error.isnan(), inf, error)
        exact, actual = self.exact.without_nan(), self.actual.without_nan()
        is_same = exact is self.exact and actual is self.actual and error is self.error
        return self if is_same else Enclosure(exact, actual, error)


FEW_TERMS = 3
"""Functions of at most this many ReLUs, those of kinks and ramps, are bounded ReLU by ReLU."""


@dataclass(frozen=True)
class Arithmetic:
    """The transformer's arithmetic: its unit roundoff, its sums, the length of its prompt.

    With `sums_terms` functions are evaluated ReLU by ReLU or token by token, and averaged over all
    tokens, as in the dense transformer. Otherwise functions are looked up in tables, and lines and
    products are computed directly.
    """

    roundoff: float
    n_tokens: int
    sums_terms: bool

    @classmethod
    def of(cls, dtype: torch.dtype, n_tokens: int, backend: str) -> Arithmetic:
        """Return the arithmetic of a backend."""
        return cls(
            torch.finfo(dtype).eps / 2, n_tokens, named("backend", backend, BACKENDS).sums_terms
        )

    @property
    def least(self) -> float:
        """The smallest normal number, or 0 where nothing is rounded."""
        precision = torch.float32 if self.roundoff > UNIT_ROUNDOFF else torch.float64
        return torch.finfo(precision).tiny if self.roundoff else 0.0

    @property
    def oracle(self) -> Arithmetic:
        """The oracle's arithmetic: float64, or exact if this arithmetic is."""
        return replace(self, roundoff=min(self.roundoff, UNIT_ROUNDOFF))

    def sum_of(self, n_terms: int, sizes: Tensor) -> Tensor:
        """Bound the rounding of a sum of `n_terms` products whose sizes add up to `sizes`.

        Where `sizes` is 0 all products are, and nothing underflows.
        """
        factor, least = self._sum_rounding(n_terms)
        return torch.add(factor * sizes, sizes.sign(), alpha=least)

    def sum_of_size(self, n_terms: int, size: float) -> float:
        """Bound the rounding of one sum, as `sum_of` does for a tensor of sums."""
        factor, least = self._sum_rounding(n_terms)
        return factor * size + (least if size > 0 else 0.0)

    def _sum_rounding(self, n_terms: int) -> tuple[float, float]:
        """Return the rounding of a sum relative to its terms' sizes, and the loss to underflow."""
        # + 8: rounded weights and constants, the product itself, the residual addition. Twice,
        # for the transformer and for the oracle.
        n_operations = n_terms + 8
        product = n_operations * self.roundoff
        gamma = product / (1 - product) if product < 1 else inf
        return 2 * gamma, 2 * n_operations * self.least

    def evaluation(self, function: str, size: Tensor) -> Tensor:
        """Bound the rounding of a function that is computed directly, of values up to `size`."""
        return rounding_of(function).at(size, self.roundoff, self.least)

    def head(self, fit: LatticeFunction, fan_in: int, argument: Tensor, drift: Tensor) -> Tensor:
        """Bound the rounding of a look-up whose argument's terms have the total size `argument`.

        The registers' copies of the argument differ by up to `drift`, each by its own amount, which
        moves a score by up to |g| drift / (spacing ratio^2). A mean stays between the values.
        """
        if self.sums_terms:
            # `sensitivity` is proved for terms up to the reach; scale it for larger terms.
            excess = (argument / fit.reach).clamp(min=1.0)
            by_scores = self.sum_of(fan_in + 2, fit.sensitivity * excess)
            # Scores moved by up to m change softmax weights by factors within exp(+-2 m).
            moved = fit.half / (fit.spacing * fit.ratio**2) * drift
            by_scores = by_scores + drift_response(fit) * drift * torch.exp(2 * moved)
            by_scores = by_scores.nan_to_num(inf).clamp(max=max(fit.values) - min(fit.values))
            return by_scores + self.sum_of(len(fit.values), torch.full_like(argument, fit.size))
        tabulated = self.sum_of(2 * DEGREE, torch.full_like(argument, 4 * fit.size))
        return tabulated + table_error(fit)

    def grid(
        self, fit: GridMean, n_terms: int, argument: Tensor, label: Tensor | float = 0.0
    ) -> Tensor:
        """Bound the rounding of a head's mean over a grid, for arguments of these total sizes.

        The mean stays between the values.
        """
        terms = fit.per_argument * argument + fit.per_label * label + fit.per_offset
        moved = self.sum_of(n_terms + 2, terms)
        moved = moved.clamp(max=max(fit.values) - min(fit.values))
        return moved + self.sum_of(len(fit.values), torch.full_like(argument, fit.size))

    def function(
        self,
        fit: ReluSum,
        fan_in: int,
        argument: Tensor,
        n_copies: int,
        where: Interval | None = None,
    ) -> Tensor:
        """Bound the rounding of `fit` where the terms of its argument have the size `argument`.

        `where` encloses the argument itself, if that is known.
        """
        terms, sizes = fit.terms(), None
        if where is not None and len(terms) <= FEW_TERMS:
            # A dead unit adds not even rounding: rounding is monotone, so a ReLU whose argument is
            # nowhere positive is exactly 0.
            sizes = torch.zeros_like(argument)
            for term in terms:
                low, high = (where.low, where.high)[:: -1 if term.scale < 0 else 1]
                if term.scale == 0:  # not 0 * infinity
                    low = high = torch.zeros_like(low)
                else:
                    low, high = term.scale * low, term.scale * high
                size = abs(term.scale) * argument
                if fan_in == 1:
                    # ReLUs read the argument itself, not a sum rounded before. One that is positive
                    # only where the argument is small has a rounding error as small.
                    size_if_on = torch.maximum(low.abs().clamp(max=abs(term.shift)), high)
                    size = torch.minimum(size, size_if_on)
                is_on = high + term.shift > 0
                sizes = sizes + (abs(term.coefficient) * (size + abs(term.shift))).where(is_on, 0.0)
            sizes = ROOM * sizes
        elif self.sums_terms:
            slope = sum(abs(term.coefficient * term.scale) for term in terms)
            constant = sum(abs(term.coefficient * term.shift) for term in terms)
            sizes = slope * argument + constant
        if self.sums_terms and sizes is not None:
            # Attention sums over tokens first, then over heads.
            return self.sum_of(len(terms) + n_copies + fan_in, sizes)
        # The function is looked up piece by piece, or computed directly.
        if fit.is_ramp:  # clamped between its levels, exactly
            rounding = self.sum_of(0, torch.full_like(argument, max(map(abs, _levels(fit)))))
        else:
            jumps = zip(fit.knots, fit.slopes[:-1], fit.slopes[1:], strict=True)
            constant = abs(fit.anchor_value) + sum(abs(knot * (b - a)) for knot, a, b in jumps)
            largest_term = max(map(abs, fit.slopes)) * (argument + abs(fit.anchor)) + constant
            rounding = self.sum_of(fit.n_pieces, largest_term)
        return rounding if sizes is None else rounding.where(sizes > 0, 0.0)


def _levels(fit: ReluSum) -> tuple[float, ...]:
    """Return the levels between which a ramp runs."""
    return (fit.anchor_value, *(fit(knot) for knot in fit.knots))


@lru_cache(maxsize=256)
def drift_response(fit: LatticeFunction) -> float:
    """Bound the change of a head's mean per unit of drift of its registers' copies.

    That is the largest sum_g weight_g |value_g - mean| |g| / (spacing ratio^2). Weights are
    `ratio` spacings wide, so samples every eighth of a spacing underestimate it by less than 2%.
    """
    lattice = lattice_of(fit)
    n_samples = 2 * ceil(8 * fit.reach / fit.spacing) + 1
    weights = lattice.weights(torch.linspace(-fit.reach, fit.reach, n_samples, dtype=torch.float64))
    values = torch.tensor(fit.values, dtype=torch.float64)
    spread = (values - (weights @ values).unsqueeze(-1)).abs()
    gains = lattice.numbers().abs() / (fit.spacing * fit.ratio**2)
    return 1.02 * float((weights * spread * gains).sum(-1).max())


# Functions at enclosed arguments.

Fit = ReluSum | LatticeFunction | GridMean | RidgeSum


def fitted_at(fit: Fit, argument: Enclosure, rounding: Tensor) -> Enclosure:
    """Evaluate a program's function at an enclosed argument.

    |fit(a) - f(b)| <= |fit(a) - f(a)| + |f(a) - f(b)|, with a and b in known intervals.
    """
    real = function_at(function_named(fit.name), argument)
    error = fit_error(fit, argument.actual) + rounding
    actual = real.actual.widened(error)
    if isinstance(fit, ReluSum) and fit.is_ramp:  # a ramp stays between the levels of the step
        levels = _levels(fit)
        actual = actual.intersected(Interval(min(levels) - rounding, max(levels) + rounding))
    return Enclosure.around(real.exact, real.error + error, actual)


def function_at(function: ScalarFunction, argument: Enclosure) -> Enclosure:
    """Evaluate the function itself at an enclosed argument."""
    exact = Interval(*function.bounds(argument.exact.low, argument.exact.high))
    actual = Interval(*function.bounds(argument.actual.low, argument.actual.high))
    both_low = torch.minimum(argument.exact.low, argument.actual.low)
    both_high = torch.maximum(argument.exact.high, argument.actual.high)
    # The mean value theorem bounds the distance, and so do the two ranges.
    moved = function.slope_times(both_low, both_high, argument.error)
    moved = moved + rounding_of(function.name).at(exact.size)  # of the oracle's evaluation
    return Enclosure(exact, actual, ROOM * torch.minimum(moved, exact.distance_to(actual)))


def slope_at(loss: Loss, fit: GridMean, prediction: Enclosure, label: Enclosure) -> Enclosure:
    """Evaluate a slope u(t, y) that is not a sum of functions of one variable.

    The Lipschitz constants on the domain of `fit` bound the difference from the value at the
    midpoint.
    """
    surface = surface_of(loss, fit.reach, fit.label_reach)
    rounding = surface.rounding * UNIT_ROUNDOFF  # of the oracle's evaluation

    def change(t: Tensor, y: Tensor) -> Tensor:
        return surface.steepness * t + surface.label_steepness * y + rounding

    def ranged(t: Interval, y: Interval) -> Interval:
        middles = ((argument.low + argument.high) / 2 for argument in (t, y))
        middle = loss.slope(*torch.broadcast_tensors(*middles))
        # Half the width of each interval, and the rounding of its midpoint.
        radii = (
            (argument.high - argument.low) / 2 + UNIT_ROUNDOFF * argument.size
            for argument in (t, y)
        )
        spread = ROOM * change(*radii)
        inside = (t.size <= fit.reach) & (y.size <= fit.label_reach)
        infinite = torch.full_like(spread, inf)
        around_middle = Interval(
            torch.where(inside, middle - spread, -infinite),
            torch.where(inside, middle + spread, infinite),
        )
        value_range = Interval(
            torch.where(inside, surface.low, -infinite), torch.where(inside, surface.high, infinite)
        )
        return around_middle.intersected(value_range)

    exact, actual = ranged(prediction.exact, label.exact), ranged(prediction.actual, label.actual)
    moved = ROOM * change(prediction.error, label.error)
    return Enclosure(exact, actual, torch.minimum(moved, ROOM * exact.distance_to(actual)))


def fit_error(fit: Fit, argument: Interval) -> Tensor:
    """Return the largest certified error on the pieces where the argument may lie.

    It is infinite outside the interval on which the fit was proved. Exact fits, ramps and look-ups
    that saturate are valid everywhere.
    """
    if fit.is_exact:
        return torch.zeros_like(argument.low)
    if isinstance(fit, RidgeSum):
        return ridge_error(fit, argument)
    if isinstance(fit, LatticeFunction | GridMean):
        saturates = isinstance(fit, LatticeFunction) and fit.saturates
        outside = (argument.size > fit.reach) & torch.tensor(not saturates)
        return torch.where(outside, torch.inf, torch.full_like(argument.low, fit.error))
    first, last = touched(fit, argument)
    error = _largest_between(torch.tensor(fit.errors, dtype=torch.float64), first, last)
    if fit.is_ramp:
        return error
    outside = (argument.low < fit.low) | (argument.high > fit.high)
    return torch.where(outside, torch.inf, error)


def ridge_error(fit: RidgeSum, *arguments: Interval) -> Tensor:
    """Return the certified error of a sum of units, which is infinite outside its box."""
    last = arguments[-1]
    shape = torch.broadcast_shapes(*(argument.low.shape for argument in arguments))
    error = last.low.new_full(shape, fit.error)
    for band in fit.bands:
        is_inside = (last.low <= band.high) & (last.high >= band.low)
        error = torch.where(is_inside, error.clamp(min=band.error), error)
    for argument, width in zip(arguments, fit.half_widths, strict=True):
        error = torch.where(argument.size > width, torch.inf, error)
    return error


MOST_CELLS = 2**20
"""The largest table of knots, in multiples of a knot unit; binary search serves longer ranges."""


def touched(fit: ReluSum, argument: Interval) -> tuple[Tensor, Tensor]:
    """Return the numbers of the first and the last piece on which the argument may lie.

    A piece includes its right end.
    """
    last = n_knots(fit, argument.high, below=True)
    return torch.minimum(n_knots(fit, argument.low), last), last


def n_knots(fit: ReluSum, values: Values, *, below: bool = False) -> Tensor:
    """Count the knots that are at most each value, or below it.

    Knots are multiples of `knot_unit`, a power of two, so that division by it is exact. A table
    holds the number of knots up to every multiple.
    """
    is_short = bool(fit.knots) and fit.knots[-1] - fit.knots[0] <= MOST_CELLS * fit.knot_unit
    if not is_short or bool(values.sum().isnan()):  # NaN is in no cell
        knots = torch.tensor(fit.knots, dtype=torch.float64)
        return torch.searchsorted(knots, values.contiguous(), right=not below)
    multiples = values / fit.knot_unit
    multiples = multiples.ceil_().sub_(1.0) if below else multiples.floor_()
    table, first = _knot_table(fit)
    return torch.take(table, multiples.sub_(first).clamp_(0, len(table) - 1).long())


@lru_cache(maxsize=64)
def _knot_table(fit: ReluSum) -> tuple[Tensor, int]:
    """Return the number of knots up to every multiple of the knot unit, and the first multiple.

    The table begins one multiple before the first knot.
    """
    first = round(fit.knots[0] / fit.knot_unit) - 1
    n_cells = round((fit.knots[-1] - fit.knots[0]) / fit.knot_unit) + 2
    multiples = first + torch.arange(n_cells, dtype=torch.float64)
    knots = torch.tensor(fit.knots, dtype=torch.float64)
    return torch.searchsorted(knots, multiples * fit.knot_unit, right=True), first


def _largest_between(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the largest of values[first .. last] at every position, from a sparse table.

    Level k of the table has the maxima of 2^k consecutive values; two of them cover any range.
    """
    length = last - first + 1
    if not length.numel() or int(length.max()) <= 2:  # common: arguments in narrow intervals
        return torch.maximum(values.take(first), values.take(last))
    levels = [values]
    while 2 ** len(levels) <= len(values):
        shift = 2 ** (len(levels) - 1)
        levels.append(torch.maximum(levels[-1][:-shift], levels[-1][shift:]))
    level = torch.tensor([0, *(n.bit_length() - 1 for n in range(1, len(values) + 1))])[length]
    padded = torch.stack([functional.pad(row, (0, len(values) - len(row))) for row in levels])
    return torch.maximum(padded[level, first], padded[level, last + 1 - 2**level])


def lattice_error(
    fit: LatticeFunction, n_terms: int, sizes: Tensor, drift: Tensor, arithmetic: Arithmetic
) -> Tensor:
    """Bound the error of the identity or the square when the dense transformer looks it up.

    Other backends compute both directly. Beyond the reach, which is at least 1, the bound uses only
    that a mean stays between the values, and that identity and square are at most size^2.
    """
    if not arithmetic.sums_terms:
        return torch.zeros_like(sizes)
    error = fit.error + arithmetic.head(fit, n_terms, sizes, drift)
    return torch.where(sizes > fit.reach, max(map(abs, fit.values)) + sizes**2, error)


# Linear algebra.


def matrix_product(
    weights: Enclosure, inputs: Enclosure, arithmetic: Arithmetic, n_terms: int = 0
) -> Enclosure:
    """Enclose `weights @ inputs` at every token, with the rounding of at least `n_terms` terms."""
    n_columns, sizes = weights.error.shape[-1], inputs.size @ weights.size.mT
    rounding = arithmetic.sum_of(max(n_columns, n_terms), sizes)
    error = rounding
    if not inputs.is_common:
        error = error + inputs.error @ weights.exact.size.mT
    if not weights.is_common:
        error = error + inputs.actual.size @ weights.error.mT
    exact = inputs.exact @ weights.exact.mT
    if n_terms > n_columns:
        exact = exact.widened(arithmetic.oracle.sum_of(n_terms, sizes))
    if inputs.is_common and weights.is_common:
        return Enclosure.around(exact, error)
    actual = (inputs.actual @ weights.actual.mT).widened(rounding)
    return Enclosure.around(exact, error, actual)


def clipped(value: Enclosure, bound: float | Interval, layer_error: Tensor) -> Enclosure:
    """Clip by a layer that has an error of its own."""
    actual = value.actual.clipped(bound).widened(layer_error)
    return Enclosure.around(value.exact.clipped(bound), value.error + layer_error, actual)


BASIS_TERMS = 48
"""Bound on the relative roundings of an entry of a basis; for an entry 1 - t, relative to 1."""


def projected(
    value: Enclosure, faces: Interval, basis: Tensor, arithmetic: Arithmetic
) -> tuple[Enclosure, Tensor]:
    """Project vectors onto a box in an orthonormal basis; return also the error of the layer.

    In the basis, the excess beyond the faces is subtracted; a vector without excess is not rounded.
    The error has two bounds: a projection does not expand distances in the 2-norm, and the triangle
    inequality holds entry by entry.
    """
    size, n_rows = basis.abs(), len(basis)
    exact_excess = _excess(value.exact, faces, basis, arithmetic.oracle)
    excess = exact_excess if value.is_common else _excess(value.actual, faces, basis, arithmetic)
    largest_excess = torch.maximum(exact_excess.size, excess.size)
    moves = largest_excess @ size + largest_excess.amax(-1, keepdim=True)
    sizes = torch.where(largest_excess.any(-1, keepdim=True), moves + value.size, 0.0)
    n_terms = n_rows + basis.shape[-1] + BASIS_TERMS
    layer_error = arithmetic.sum_of(n_terms, sizes)
    oracle_error = arithmetic.oracle.sum_of(n_terms, sizes)
    # Coordinates in the span of the basis lie between sums of the faces; others are unbounded.
    hull = _product(faces, basis)
    hull_rounding = arithmetic.sum_of(n_terms, faces.size @ size + faces.size.amax())
    unbounded = torch.where(size.any(0), 0.0, inf)
    hull = hull.widened(hull_rounding + unbounded)
    exact, actual = (
        (vectors + _product(removed, basis).times(-1.0))
        .widened(rounding)
        .intersected(hull.widened(rounding))
        for vectors, removed, rounding in (
            (value.exact, exact_excess, oracle_error),
            (value.actual, excess, layer_error),
        )
    )
    by_rows = torch.where(largest_excess > 0, value.error @ size.mT, 0.0)
    error = torch.minimum(norm(value.error).unsqueeze(-1), value.error + by_rows @ size)
    return Enclosure.around(exact, ROOM * error + layer_error, actual), layer_error


def _excess(value: Interval, faces: Interval, basis: Tensor, arithmetic: Arithmetic) -> Interval:
    """Return the signed excess of vectors beyond the faces, along each row of the basis."""
    along, sizes = _product(value, basis.mT), value.size @ basis.abs().mT
    sizes = sizes + value.size.amax(-1, keepdim=True) + faces.size
    along = along.widened(arithmetic.sum_of(basis.shape[-1] + BASIS_TERMS, sizes))
    excess = along.mapped(lambda end: end - end.clamp(faces.low, faces.high))
    return excess.widened(_OUTWARDS * excess.size)


def _product(vectors: Interval, matrix: Tensor) -> Interval:
    product = vectors.mapped(lambda end: end.unsqueeze(-2)) @ Interval.point(matrix)
    return product.mapped(lambda end: end.squeeze(-2))


def projected_drift(drift: Tensor, basis: Tensor) -> Tensor:
    """Bound the drift of projected copies by the drift of the copies."""
    size = basis.abs()
    return torch.minimum(norm(drift).unsqueeze(-1), drift + drift @ size.mT @ size)


def merged(new: Enclosure, old: Enclosure, change: Callable[[Tensor, Tensor], Tensor]) -> Enclosure:
    """Combine two enclosures, number by number."""
    exact, actual = (
        Interval(change(one.low, other.low), change(one.high, other.high))
        for one, other in ((new.exact, old.exact), (new.actual, old.actual))
    )
    return Enclosure(exact, actual, change(new.error, old.error))


def exchanged(
    value: Enclosure, first: list[int], second: list[int], arithmetic: Arithmetic
) -> Enclosure:
    """Put the larger entry of each pair of columns into the first of them.

    The errors of the larger and the smaller entry are at most the larger error of the two before,
    plus the rounding of the layer, which adds and subtracts their difference.
    """

    def arranged(larger: Tensor, smaller: Tensor, before: Tensor) -> Tensor:
        after = before.clone()
        after[..., first], after[..., second] = larger, smaller
        return after

    def sorted_ends(interval: Interval) -> Interval:
        return interval.mapped(
            lambda end: arranged(
                torch.maximum(end[..., first], end[..., second]),
                torch.minimum(end[..., first], end[..., second]),
                end,
            )
        )

    error = torch.maximum(value.error[..., first], value.error[..., second])
    rounding = arithmetic.sum_of(3, value.size[..., first] + value.size[..., second])
    rounding = arranged(rounding, rounding, torch.zeros_like(value.error))
    error = arranged(error, error, value.error) + rounding
    return Enclosure.around(
        sorted_ends(value.exact), error, sorted_ends(value.actual).widened(rounding)
    )


def mean_excess(value: Enclosure, means: Tensor, total: float, arithmetic: Arithmetic) -> Enclosure:
    """Return the means of the first 1, 2, ... columns, each less its share of the total."""
    width = len(means)
    share = Interval.point(total / torch.arange(1, width + 1).double())
    sizes = value.size @ means.mT + share.size
    exact, actual = (
        (interval @ Interval.point(means.mT.contiguous()) + share.times(-1.0)).widened(
            rounded_by.sum_of(width + 4, sizes)
        )
        for interval, rounded_by in ((value.exact, arithmetic.oracle), (value.actual, arithmetic))
    )
    error = value.error @ means.mT + arithmetic.sum_of(width + 4, sizes)
    return Enclosure.around(exact, ROOM * error, actual)


def above(value: Enclosure, threshold: Enclosure, most: float, arithmetic: Arithmetic) -> Enclosure:
    """Set the first columns to max(w - theta, 0), which is known to be at most `most`."""
    n_columns = threshold.error.shape[-1]
    rows = value.mapped(lambda matrix: matrix[..., :n_columns])
    theta = threshold.mapped(lambda matrix: matrix[..., :1])
    sizes = 3 * rows.size + theta.size

    def after(w: Interval, t: Interval, rounding: Tensor) -> Interval:
        after_columns = (w + t.times(-1.0)).mapped(lambda end: end.clamp(min=0.0)).widened(rounding)
        return after_columns.intersected(Interval(-rounding, most + rounding))

    rounding = arithmetic.sum_of(5, sizes)
    exact = after(rows.exact, theta.exact, arithmetic.oracle.sum_of(5, sizes))
    actual = after(rows.actual, theta.actual, rounding)
    after_columns = Enclosure.around(exact, ROOM * (rows.error + theta.error + rounding), actual)
    return merged(
        after_columns, value, lambda new, old: torch.cat([new, old[..., n_columns:]], dim=-1)
    )


def add(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Add two enclosures entry by entry."""
    rounding = arithmetic.sum_of(2, left.size + right.size)
    actual = (left.actual + right.actual).widened(rounding)
    error = left.error + right.error + rounding
    return Enclosure.around(left.exact + right.exact, error, actual)


def multiply(
    left: Enclosure, right: Enclosure, arithmetic: Arithmetic, n_terms: int = 2
) -> Enclosure:
    """Multiply two enclosures entry by entry, with the rounding of `n_terms` terms."""
    sizes, exact = left.size * right.size, left.exact * right.exact
    rounding = arithmetic.sum_of(n_terms, sizes)
    error = left.error * right.exact.size + left.actual.size * right.error + rounding
    actual = (left.actual * right.actual).widened(rounding)
    if n_terms > 2:
        exact = exact.widened(arithmetic.oracle.sum_of(n_terms, sizes))
    return Enclosure.around(exact, error, actual)


def largest(factor: float) -> float:
    """Return the size of a factor, or the largest size of a schedule of factors."""
    return max(map(abs, factor)) if isinstance(factor, PerStep) else abs(factor)


def combination(
    terms: Sequence[tuple[float, Enclosure]], arithmetic: Arithmetic
) -> tuple[Enclosure, Tensor]:
    """Sum enclosures times their factors; return also the total size of the terms.

    A schedule counts as an unknown factor between its smallest and its largest number. An enclosure
    itself, or its negative, is not rounded.
    """
    (first, alone), *others = terms
    if first == 1.0 and not others:
        return alone, alone.size
    if first == -1.0 and not others:
        exact = alone.exact.times(-1.0)
        actual = exact if alone.is_common else alone.actual.times(-1.0)
        return Enclosure(exact, actual, alone.error), alone.size
    ends = [(min(f), max(f)) if isinstance(f, PerStep) else (f, f) for f, _ in terms]
    sizes = reduce(plus, [largest(factor) * term.size for factor, term in terms])
    error = reduce(plus, [largest(factor) * term.error for factor, term in terms])
    pairs = list(zip(ends, (term for _, term in terms), strict=True))
    exact = reduce(plus, [term.exact.times_within(*factors) for factors, term in pairs])
    actual = reduce(plus, [term.actual.times_within(*factors) for factors, term in pairs])
    rounding = arithmetic.sum_of(len(terms), sizes)
    error, actual = error + rounding, actual.widened(rounding)
    if len(terms) > 2:  # the oracle may add them in another order
        exact = exact.widened(arithmetic.oracle.sum_of(len(terms), sizes))
    return Enclosure.around(exact, error, actual), sizes


def shares_of(scores: Enclosure, n_tokens: int, arithmetic: Arithmetic) -> Enclosure:
    """Enclose the softmax over the last axis, computed by heads that read `n_tokens` tokens.

    A share p rises with its own score and falls with all others. The absolute derivatives of p with
    respect to all scores add up to 2 p (1 - p), at most 1 / 2.
    """
    n_classes = scores.error.shape[-1]
    exact, actual = (_shares(interval) for interval in (scores.exact, scores.actual))
    high = torch.maximum(exact.high, actual.high)
    low = torch.minimum(exact.low, actual.low)
    slope = torch.minimum(2 * high, 2 * (1 - low)).clamp(max=0.5)
    moved = ROOM * slope * scores.error.amax(-1, keepdim=True)
    moved = torch.minimum(moved, exact.distance_to(actual))
    sizes = slope * scores.size.amax(-1, keepdim=True) + high
    rounding = arithmetic.sum_of(n_classes + n_tokens + SOFTMAX_ROUNDING, sizes)
    return Enclosure.around(exact, moved + rounding, actual.widened(rounding))


def _shares(scores: Interval) -> Interval:
    """Return the softmax of scores in intervals, widened by the rounding and underflow of values.

    A share is smallest where its own score is lowest and all others are highest.
    """
    low, high = scores.low, scores.high
    ends = []
    for own_score, other_scores in ((low, high), (high, low)):
        differences = other_scores.unsqueeze(-2) - own_score.unsqueeze(-1)  # (class, other)
        # The difference of a score from itself is 0, not the width of its interval.
        diagonal = torch.diagonal(differences, dim1=-2, dim2=-1)
        differences = differences - torch.diag_embed(diagonal)
        ends.append(1 / differences.exp().sum(-1))
    safety = 1 + 2.0**-40
    relative = torch.maximum(low.abs(), high.abs()).amax(-1, keepdim=True) * 2.0**-50
    high = (ends[1] * safety * (1 + relative)).clamp(min=torch.finfo(torch.float64).tiny)
    return Interval(ends[0] / safety * (1 - relative).clamp(min=0), high)


# The interface of all kinds of bounds: for all tasks, for each step of a run, for a whole run.

INTERVALS = 16
"""Numbers held at a time for each weight: ends, midpoints, radii and errors."""


@dataclass(frozen=True)
class DomainBound:
    """Bounds on the error of any weight: from one step, and after the last step of a run.

    `reach` bounds the transformer's weights, and `drift` the distance of their copies from each
    other; both are infinite if unknown.
    """

    step: float
    trajectory: float
    reach: float = inf
    drift: float = inf


@dataclass(frozen=True)
class RunBounds:
    """Bounds on the error of the learnt weights or function, with an entry for each step of a run.

    `steps` bounds the error of each step alone. `trajectory` bounds that of all steps so far, if
    the steps contract; for networks only balls bound it. `paper` is the paper's bound for the whole
    run, if it has one: the sum over the steps, as if none expanded distances.
    """

    steps: Tensor
    trajectory: Tensor | None = None
    paper: Tensor | None = None


@dataclass(frozen=True)
class AbstractBounds(ABC):
    """Bounds for a program that trains a problem, run in the given arithmetic."""

    problem: Problem
    program: AbstractProgram
    arithmetic: Arithmetic

    @abstractmethod
    def domain(self) -> DomainBound:
        """Return bound (a): for every task in the domain, before any run."""

    @abstractmethod
    def steps(self, task: Task, history: History, on_progress: OnProgress | None = None) -> Tensor:
        """Return bound (b) for each step of a run: the error that it adds to any weight."""

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        """Return bounds (b) for each step of a run, and for its distance from the `real` run."""
        return RunBounds(self.steps(task, history, on_progress))

    def predictions(self, task: Task, real: History, error: Tensor) -> Predictions | None:
        """Bound the error of predictions at the queries against the `real` run, or return None.

        `error` bounds the error of the learnt weights or function at the end of the run: with an
        entry for each weight, or one for all.
        """
        return None

    def domain_predictions(self, proved: DomainBound) -> float:
        """Return bound (a) on the error of predictions against real training, or infinity.

        It holds after the whole run, for every task and every query in the domain; `proved` is the
        result of `domain`.
        """
        return inf

    @property
    def widest(self) -> float:
        """The largest distance of clipped weights, a bound that needs no proof, or infinity."""
        return inf

    @property
    def condition(self) -> str | None:
        """The condition under which bound (a) holds, or None if it holds for every task."""
        return None

    @property
    def stated(self) -> tuple[str, ...]:
        """The user's kernels whose stated constants every bound assumes."""
        return ()

    @property
    def estimated(self) -> tuple[str, ...]:
        """The user's kernels whose constants are estimated, so that nothing is proved."""
        return ()

    def paper_step(self) -> float | None:
        """Return bound (c): the corrected closed form of the paper for one step, if it has one."""
        return None


def one_by_one(
    bounds: Iterable[Tensor], history: History, on_progress: OnProgress | None = None
) -> Tensor:
    """Stack the bounds of all steps of a history, reporting progress after each."""
    steps, n_steps = list[Tensor](), history.shape[-2] - 1
    for bound in bounds:
        steps.append(bound)
        if on_progress:
            on_progress(len(steps), n_steps)
    return torch.stack(steps, dim=-1) if steps else history[..., 0, :0].double()
