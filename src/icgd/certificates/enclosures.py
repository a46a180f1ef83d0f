r"""An enclosure says where a quantity lies, and how far the transformer's own may be from it.

The exact quantity has two forms, and all that is said holds for both: the real number, and what
the float64 oracle makes of it. `exact` holds both, because intervals are rounded outwards by
whatever float64 can be off by (`intervals.py`). `error` bounds the transformer's distance from
either.

A sum of m terms in floating point is off by at most gamma(m) = m u / (1 - m u) times
the sum of their sizes, in any order (u is the unit roundoff), and by what underflow takes: less
than the least normal number in each operation, even where smaller results are flushed to 0. Every
rule adds that, twice: for the transformer, and for the oracle; a real number is not rounded. A
softmax head is off by what the rounding of its scores changes, besides its sum.

Bounds are themselves computed in float64. An error is a sum of products that are not negative, so
that one factor `ROOM` at the end of a rule covers its rounding; underflow takes from it far less
than the rule adds for underflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from math import ceil, inf
from operator import add as plus
from operator import attrgetter

import torch
from torch import Tensor
from torch.nn import functional

from icgd.approximation.lattice import lattice_of
from icgd.backends.look_up import DEGREE, table_error
from icgd.backends.registry import backend_named
from icgd.certificates.intervals import ROOM, UNIT_ROUNDOFF, Interval
from icgd.problems.activations import function_named
from icgd.problems.functions import SOFTMAX_ROUNDING, ScalarFunction, rounding_of
from icgd.program.functions import GridMean, LatticeFunction, ReluSum, RidgeSum
from icgd.program.meaning import PerStep
from icgd.shapes import Values

FEW_TERMS = 3
"""The most ReLUs of a function that are looked at one by one: those of kinks and of ramps."""

MOST_CELLS = 2**20
"""The most multiples of a knot unit in a table; more knots than that are searched for."""

Fit = ReluSum | LatticeFunction | GridMean | RidgeSum


@dataclass(frozen=True)
class Enclosure:
    """The exact value, the transformer's value, and a bound on their distance."""

    exact: Interval
    actual: Interval
    error: Tensor

    @classmethod
    def common(cls, value: Interval) -> Enclosure:
        """A quantity that the transformer has exactly."""
        return cls(value, value, torch.zeros_like(value.low))

    @classmethod
    def nothing(cls, like: Tensor) -> Enclosure:
        """Zeros that are known, of the shape of `like`; they take no memory."""
        zeros = like.new_zeros(()).expand_as(like)
        point = Interval.point(zeros)
        return cls(point, point, zeros)

    @property
    def is_common(self) -> bool:
        """Whether the transformer has it exactly, so that nothing is carried of its error."""
        return self.exact is self.actual

    @classmethod
    def around(cls, exact: Interval, error: Values, actual: Interval | None = None) -> Enclosure:
        """A quantity that the transformer has within `error` of the exact one, and in `actual`."""
        near = exact.widened(error)
        actual = near if actual is None else near.within(actual)
        return cls(exact, actual, ROOM * torch.minimum(error, exact.distance_to(actual)))

    @cached_property
    def size(self) -> Tensor:
        """The larger size of the exact and the transformer's value: either of them rounds."""
        if self.is_common:
            return self.exact.size
        return torch.maximum(self.exact.size, self.actual.size)

    @property
    def mT(self) -> Enclosure:  # noqa: N802 - torch's name
        """The transposed enclosure."""
        return self.mapped(lambda part: part.mT)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Enclosure:
        """The enclosure with all numbers arranged in another way."""
        exact, error = self.exact.mapped(change), change(self.error)
        return Enclosure(exact, exact if self.is_common else self.actual.mapped(change), error)

    def moved(self, off: Tensor) -> Enclosure:
        """The value as the transformer has it after getting it wrong by `off`."""
        return Enclosure.around(self.exact, self.error + off, self.actual.widened(off))

    @property
    def negative(self) -> Enclosure:
        """The negative, which has the same error."""
        exact = self.exact.times(-1.0)
        return Enclosure(exact, exact if self.is_common else self.actual.times(-1.0), self.error)

    def times(self, factor: float) -> Enclosure:
        """The multiple by a number that is not rounded."""
        exact, actual = self.exact.times(factor), self.actual.times(factor)
        return Enclosure(exact, actual, ROOM * abs(factor) * self.error)

    def at_least(self, low: Tensor) -> Enclosure:
        """The value, if the transformer's own is known to be at least `low`."""
        known = Interval(low, torch.full_like(low, inf))
        return Enclosure.around(self.exact, self.error, self.actual.within(known))

    def within(self, reach: Tensor) -> Enclosure:
        """The value, if it is known to lie in [-reach, reach]."""
        known = Interval(-reach, reach)
        exact, actual = self.exact.within(known), self.actual.within(known)
        return Enclosure(exact, actual, torch.minimum(self.error, ROOM * exact.distance_to(actual)))

    def lowered(self, missed: float) -> Enclosure:
        """The value, which is not negative, if the exact one may be lower by `missed`."""
        exact = Interval((self.exact.low - missed).clamp(min=0.0), self.exact.high)
        return Enclosure(exact, self.actual, self.error + missed)

    def without_nan(self) -> Enclosure:
        """The enclosure with an infinite error where infinities cancelled."""
        error = self.error
        if bool(error.sum().isnan()):
            error = torch.where(error.isnan(), inf, error)
        exact, actual = self.exact.without_nan(), self.actual.without_nan()
        is_same = exact is self.exact and actual is self.actual and error is self.error
        return self if is_same else Enclosure(exact, actual, error)


@dataclass(frozen=True)
class Arithmetic:
    """How the transformer computes: its unit roundoff, its sums, the length of its prompt.

    With `sums_terms` functions are evaluated ReLU by ReLU or token by token, and averaged over all
    tokens, as the dense transformer does. Otherwise they are looked up in tables, and lines and
    products are computed as such.
    """

    roundoff: float
    n_tokens: int
    sums_terms: bool

    @classmethod
    def of(cls, dtype: torch.dtype, n_tokens: int, backend: str) -> Arithmetic:
        """The arithmetic of a backend."""
        return cls(torch.finfo(dtype).eps / 2, n_tokens, backend_named(backend).sums_terms)

    @property
    def least(self) -> float:
        """The least normal number, or 0 where nothing is rounded."""
        precision = torch.float32 if self.roundoff > UNIT_ROUNDOFF else torch.float64
        return torch.finfo(precision).tiny if self.roundoff else 0.0

    def sum_of(self, n_terms: int, sizes: Tensor) -> Tensor:
        """The rounding of a sum of `n_terms` products whose sizes add up to `sizes`.

        Sizes are 0 only where all products are, and there nothing underflows.
        """
        factor, least = self._of_sum(n_terms)
        return torch.add(factor * sizes, sizes.sign(), alpha=least)

    def sum_of_size(self, n_terms: int, size: float) -> float:
        """The same for one size."""
        factor, least = self._of_sum(n_terms)
        return factor * size + (least if size > 0 else 0.0)

    def _of_sum(self, n_terms: int) -> tuple[float, float]:
        """What sizes are multiplied by for their rounding, and what underflow adds."""
        # + 8: rounded weights and constants, the product itself, the residual addition.
        n_operations = n_terms + 8
        product = n_operations * self.roundoff
        gamma = product / (1 - product) if product < 1 else inf
        return 2 * gamma, 2 * n_operations * self.least

    @property
    def oracle(self) -> Arithmetic:
        """The oracle's arithmetic: float64, unless nothing is rounded at all."""
        return replace(self, roundoff=min(self.roundoff, UNIT_ROUNDOFF))

    def evaluation(self, function: str, size: Tensor) -> Tensor:
        """The rounding of a function that is computed as such, where it has at most this size."""
        return rounding_of(function).at(size, self.roundoff, self.least)

    def head(self, fit: LatticeFunction, fan_in: int, argument: Tensor, apart: Tensor) -> Tensor:
        """The rounding of a look-up where the terms of its argument have this total size.

        The registers' copies of the argument may lie `apart`, each by another amount, which moves
        a score by up to |g| apart / (spacing ratio^2). A mean stays between the values.
        """
        if self.sums_terms:
            beyond = (argument / fit.reach).clamp(min=1.0)
            scores = self.sum_of(fan_in + 2, fit.sensitivity * beyond)
            moved = fit.half / (fit.spacing * fit.ratio**2) * apart
            scores = scores + uneven_response(fit) * apart * torch.exp(2 * moved)
            scores = scores.nan_to_num(inf).clamp(max=max(fit.values) - min(fit.values))
            return scores + self.sum_of(len(fit.values), torch.full_like(argument, fit.size))
        tabulated = self.sum_of(2 * DEGREE, torch.full_like(argument, 4 * fit.size))
        return tabulated + table_error(fit)

    def function(
        self,
        fit: ReluSum,
        fan_in: int,
        argument: Tensor,
        n_copies: int,
        where: Interval | None = None,
    ) -> Tensor:
        """The rounding of `fit` where the terms of its argument have this total size.

        If `where` tells where the argument itself lies, ReLUs that are off there add nothing: of a
        relu network's dead units not even rounding is left.
        """
        terms = fit.terms()
        if where is not None and len(terms) <= FEW_TERMS:
            return self._of_few(fit, fan_in, argument, n_copies, where)
        if self.sums_terms:
            slope = sum(abs(term.coefficient * term.scale) for term in terms)
            constant = sum(abs(term.coefficient * term.shift) for term in terms)
            # Attention sums over tokens first, then over heads.
            return self.sum_of(len(terms) + n_copies + fan_in, slope * argument + constant)
        return self._of_table(fit, argument)

    def _of_few(
        self, fit: ReluSum, fan_in: int, argument: Tensor, n_copies: int, where: Interval
    ) -> Tensor:
        """The rounding of a sum of so few ReLUs that each is asked whether it is on."""
        sizes = _sizes_of_those_on(fit, argument, where, is_read=fan_in == 1)
        if self.sums_terms:
            return self.sum_of(len(fit.terms()) + n_copies + fan_in, sizes)
        return self._of_table(fit, argument).where(sizes > 0, 0.0)

    def _of_table(self, fit: ReluSum, argument: Tensor) -> Tensor:
        """The rounding of a function that is looked up piece by piece, or computed as such."""
        if fit.is_ramp:  # clamped between its levels, exactly
            return self.sum_of(0, torch.full_like(argument, max(map(abs, _levels(fit)))))
        jumps = zip(fit.knots, fit.slopes[:-1], fit.slopes[1:], strict=True)
        constant = abs(fit.anchor_value) + sum(abs(knot * (b - a)) for knot, a, b in jumps)
        steepest = max(map(abs, fit.slopes))
        return self.sum_of(fit.n_pieces, steepest * (argument + abs(fit.anchor)) + constant)


def _sizes_of_those_on(fit: ReluSum, argument: Tensor, where: Interval, is_read: bool) -> Tensor:
    """The sum of |coefficient| (|scale argument| + |shift|) over the ReLUs that may be on.

    Rounding is monotone, so that a ReLU whose argument is nowhere positive is exactly off. If the
    argument is what ReLUs read, not a sum that is rounded on the way, one that is on only where the
    argument is small rounds as little.
    """
    total = torch.zeros_like(argument)
    for term in fit.terms():
        low, high = _scaled_ends(where, term.scale)
        size = abs(term.scale) * argument
        if is_read:
            size = torch.minimum(size, torch.maximum(low.abs().clamp(max=abs(term.shift)), high))
        on = high + term.shift > 0
        total = total + (abs(term.coefficient) * (size + abs(term.shift))).where(on, 0.0)
    return ROOM * total


def _scaled_ends(interval: Interval, scale: float) -> tuple[Tensor, Tensor]:
    """The least and the largest number of the interval times `scale`."""
    if scale == 0:  # also where nothing is known
        return torch.zeros_like(interval.low), torch.zeros_like(interval.low)
    low, high = scale * interval.low, scale * interval.high
    return (low, high) if scale > 0 else (high, low)


@lru_cache(maxsize=256)
def uneven_response(fit: LatticeFunction) -> float:
    """What a head changes, at most, if each register sees the argument off by up to 1.

    That is the largest sum_g weight_g |value_g - mean| |g| / (spacing ratio^2). Weights are
    `ratio` spacings wide, so that samples an eighth of a spacing apart miss less than 2%.
    """
    lattice = lattice_of(fit)
    n_samples = 2 * ceil(8 * fit.reach / fit.spacing) + 1
    weights = lattice.weights(torch.linspace(-fit.reach, fit.reach, n_samples, dtype=torch.float64))
    values = torch.tensor(fit.values, dtype=torch.float64)
    spread = (values - (weights @ values).unsqueeze(-1)).abs()
    gains = lattice.numbers().abs() / (fit.spacing * fit.ratio**2)
    return 1.02 * float((weights * spread * gains).sum(-1).max())


def _levels(fit: ReluSum) -> tuple[float, ...]:
    """The levels between which a ramp runs."""
    return (fit.anchor_value, *(fit(knot) for knot in fit.knots))


def fitted_at(fit: Fit, argument: Enclosure, rounding: Tensor) -> Enclosure:
    """A program's function at an enclosed argument.

    |fit(a) - f(b)| <= |fit(a) - f(a)| + |f(a) - f(b)|, with a, b in known intervals.
    """
    real = function_at(function_named(fit.name), argument)
    fitted = fit_error(fit, argument.actual) + rounding
    actual = real.actual.widened(fitted)
    if isinstance(fit, ReluSum) and fit.is_ramp:  # it stays between the levels of the step
        levels = _levels(fit)
        actual = actual.within(Interval(min(levels) - rounding, max(levels) + rounding))
    return Enclosure.around(real.exact, real.error + fitted, actual)


def function_at(function: ScalarFunction, argument: Enclosure) -> Enclosure:
    """A function itself at an enclosed argument."""
    exact = Interval(*function.bounds(argument.exact.low, argument.exact.high))
    actual = Interval(*function.bounds(argument.actual.low, argument.actual.high))
    both_low = torch.minimum(argument.exact.low, argument.actual.low)
    both_high = torch.maximum(argument.exact.high, argument.actual.high)
    # Ranges on both intervals lie in the range on their union, whose width would add nothing.
    moved = function.slope_times(both_low, both_high, argument.error)
    moved = moved + rounding_of(function.name).at(exact.size)  # as the oracle evaluates it
    return Enclosure(exact, actual, ROOM * torch.minimum(moved, exact.distance_to(actual)))


def fit_error(fit: Fit, argument: Interval) -> Tensor:
    """The largest certified error on the pieces that the argument can touch.

    It is infinite outside the interval on which the fit was proved. Exact fits, ramps and look-ups
    that saturate continue as the function itself does.
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


def touched(fit: ReluSum, argument: Interval) -> tuple[Tensor, Tensor]:
    """The numbers of the first and of the last piece that the argument can lie on.

    A piece holds its right end. Knots are multiples of `knot_unit`, a power of two, so that a
    division by it is exact. A table tells how many knots lie at or below every multiple of it.
    """
    last = knots_below(fit, argument.high)
    first = torch.minimum(knots_up_to(fit, argument.low), last)
    return first, last


def knots_below(fit: ReluSum, values: Values) -> Tensor:
    """How many knots are less than each value."""
    if not _has_table(fit, values):
        return torch.searchsorted(_knots(fit), values.contiguous())
    return _read(fit, (values / fit.knot_unit).ceil_().sub_(1.0))


def knots_up_to(fit: ReluSum, values: Values) -> Tensor:
    """How many knots are at most each value."""
    if not _has_table(fit, values):
        return torch.searchsorted(_knots(fit), values.contiguous(), right=True)
    return _read(fit, (values / fit.knot_unit).floor_())


def _read(fit: ReluSum, multiples: Tensor) -> Tensor:
    """How many knots are at most each multiple of the knot unit."""
    table = _table(fit)
    cells = multiples.sub_(_first_multiple(fit) - 1).clamp_(0, len(table) - 1)
    return torch.take(table, cells.long())


def _has_table(fit: ReluSum, values: Tensor) -> bool:
    """A table serves if it is not too large, and where no value is NaN, which is in no cell."""
    is_short = bool(fit.knots) and fit.knots[-1] - fit.knots[0] <= MOST_CELLS * fit.knot_unit
    return is_short and not bool(values.sum().isnan())


def _first_multiple(fit: ReluSum) -> int:
    return round(fit.knots[0] / fit.knot_unit)


def _knots(fit: ReluSum) -> Tensor:
    return torch.tensor(fit.knots, dtype=torch.float64)


@lru_cache(maxsize=64)
def _table(fit: ReluSum) -> Tensor:
    """The number of knots up to every multiple of the knot unit, from one before the first knot."""
    n_cells = round((fit.knots[-1] - fit.knots[0]) / fit.knot_unit) + 2
    multiples = _first_multiple(fit) - 1 + torch.arange(n_cells, dtype=torch.float64)
    return torch.searchsorted(_knots(fit), multiples * fit.knot_unit, right=True)


def ridge_error(fit: RidgeSum, *arguments: Interval) -> Tensor:
    """The certified error of a sum of units, which is infinite outside its box."""
    last, shape = arguments[-1], torch.broadcast_tensors(*(part.low for part in arguments))[0].shape
    error = last.low.new_full(shape, fit.error)
    for band in fit.bands:
        is_inside = (last.low <= band.high) & (last.high >= band.low)
        error = torch.where(is_inside, error.clamp(min=band.error), error)
    for argument, width in zip(arguments, fit.half_widths, strict=True):
        error = torch.where(argument.size > width, torch.inf, error)
    return error


def _largest_between(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The largest of values[first .. last] at every position, from maxima over powers of two."""
    length = last - first + 1
    if not length.numel() or int(length.max()) <= 2:  # as where arguments are nearly known
        return torch.maximum(values.take(first), values.take(last))
    levels = [values]
    while 2 ** len(levels) <= len(values):
        shift = 2 ** (len(levels) - 1)
        levels.append(torch.maximum(levels[-1][:-shift], levels[-1][shift:]))
    level = torch.tensor([0, *(n.bit_length() - 1 for n in range(1, len(values) + 1))])[length]
    padded = torch.stack([functional.pad(row, (0, len(values) - len(row))) for row in levels])
    return torch.maximum(padded[level, first], padded[level, last + 1 - 2**level])


def matrix_product(weights: Enclosure, inputs: Enclosure, how: Arithmetic) -> Enclosure:
    """The product `weights @ inputs` at every token."""
    rounding = how.sum_of(weights.error.shape[-1], inputs.size @ weights.size.mT)
    error = rounding
    if not inputs.is_common:
        error = error + inputs.error @ weights.exact.size.mT
    if not weights.is_common:
        error = error + inputs.actual.size @ weights.error.mT
    exact = inputs.exact @ weights.exact.mT
    if inputs.is_common and weights.is_common:
        return Enclosure.around(exact, error)
    actual = (inputs.actual @ weights.actual.mT).widened(rounding)
    return Enclosure.around(exact, error, actual)


def clipped(value: Enclosure, bound: float, off: Tensor) -> Enclosure:
    """The value clipped to [-bound, bound] by a layer that is itself wrong by `off`."""
    actual = value.actual.clipped(bound).widened(off)
    return Enclosure.around(value.exact.clipped(bound), value.error + off, actual)


def lattice_error(
    fit: LatticeFunction, n_terms: int, sizes: Tensor, apart: Tensor, how: Arithmetic
) -> Tensor:
    """How far a line or a square is off; only the dense transformer reads it from a lattice.

    Beyond the reach, which is at least 1, all that is known is that a mean stays between the
    values, and that the line or the square is at most the size's square.
    """
    if not how.sums_terms:
        return torch.zeros_like(sizes)
    off = fit.error + how.head(fit, n_terms, sizes, apart)
    return torch.where(sizes > fit.reach, max(map(abs, fit.values)) + sizes**2, off)


def add(left: Enclosure, right: Enclosure, how: Arithmetic) -> Enclosure:
    """The sum, entry by entry."""
    rounding = how.sum_of(2, left.size + right.size)
    actual = (left.actual + right.actual).widened(rounding)
    error = left.error + right.error + rounding
    return Enclosure.around(left.exact + right.exact, error, actual)


def multiply(left: Enclosure, right: Enclosure, how: Arithmetic) -> Enclosure:
    """The product, entry by entry."""
    rounding = how.sum_of(2, left.size * right.size)
    error = left.error * right.exact.size + left.actual.size * right.error + rounding
    actual = (left.actual * right.actual).widened(rounding)
    return Enclosure.around(left.exact * right.exact, error, actual)


def largest(factor: float) -> float:
    """The size of a factor, or of the largest of those of a schedule."""
    return max(map(abs, _ends(factor)))


def _ends(factor: float) -> tuple[float, float]:
    return (min(factor), max(factor)) if isinstance(factor, PerStep) else (factor, factor)


def combination(
    terms: Sequence[tuple[float, Enclosure]], how: Arithmetic
) -> tuple[Enclosure, Tensor]:
    """The sum of all enclosures times their factors, and the total size of its terms.

    A factor of a schedule may be anything between its least and its largest number. An enclosure
    itself, or its negative, is not rounded.
    """
    (first, alone), *others = terms
    if first in (1.0, -1.0) and not others:
        return alone if first == 1.0 else alone.negative, alone.size
    sizes = reduce(plus, [largest(factor) * part.size for factor, part in terms])
    error = reduce(plus, [largest(factor) * part.error for factor, part in terms])
    exact, actual = (
        reduce(plus, [side(part).times_within(*_ends(factor)) for factor, part in terms])
        for side in (attrgetter("exact"), attrgetter("actual"))
    )
    rounding = how.sum_of(len(terms), sizes)
    error, actual = error + rounding, actual.widened(rounding)
    if len(terms) > 2:  # the oracle may add them in another order
        exact = exact.widened(how.oracle.sum_of(len(terms), sizes))
    return Enclosure.around(exact, error, actual), sizes


def shares_of(scores: Enclosure, n_tokens: int, how: Arithmetic) -> Enclosure:
    """The softmax over the last axis, by heads that read `n_tokens` tokens.

    Shares rise with their own score and fall with all others. The slopes of a share p with respect
    to all scores add up to 2 p (1 - p), at most 1 / 2.
    """
    n_classes = scores.error.shape[-1]
    exact, actual = (_shares(part) for part in (scores.exact, scores.actual))
    high = torch.maximum(exact.high, actual.high)
    low = torch.minimum(exact.low, actual.low)
    slope = torch.minimum(2 * high, 2 * (1 - low)).clamp(max=0.5)
    moved = ROOM * slope * scores.error.amax(-1, keepdim=True)
    moved = torch.minimum(moved, exact.distance_to(actual))
    sizes = slope * scores.size.amax(-1, keepdim=True) + high
    rounding = how.sum_of(n_classes + n_tokens + SOFTMAX_ROUNDING, sizes)
    return Enclosure.around(exact, moved + rounding, actual.widened(rounding))


def _shares(scores: Interval) -> Interval:
    """The softmax of scores in intervals, with room for the rounding and underflow of values."""
    low, high = scores.low, scores.high
    ends = []
    for own, others in ((low, high), (high, low)):
        apart = others.unsqueeze(-2) - own.unsqueeze(-1)  # (class, other)
        apart = apart - torch.diag_embed(torch.diagonal(apart, dim1=-2, dim2=-1))
        ends.append(1 / apart.exp().sum(-1))
    room = 1 + 2.0**-40
    relative = torch.maximum(low.abs(), high.abs()).amax(-1, keepdim=True) * 2.0**-50
    high = (ends[1] * room * (1 + relative)).clamp(min=torch.finfo(torch.float64).tiny)
    return Interval(ends[0] / room * (1 - relative).clamp(min=0), high)
