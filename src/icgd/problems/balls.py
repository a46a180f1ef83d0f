"""Ball arithmetic (Arb) on expressions: enclosures of values and ranges, bounds on rounding.

A ball contains every value of an expression on an interval, or is not finite. Besides Arb, proofs
about functions trust only `ULPS`, the accuracy of torch's functions, which tests compare with Arb.

Importing this module loads Arb, so it is imported only when a proof is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import ceil, inf, log2, nextafter, pi, prod
from statistics import median
from typing import Any, NamedTuple

from flint import acb, arb, ctx

from icgd.problems.expressions import (
    CALL,
    CONSTANT,
    NUMBER,
    POWER,
    PRODUCT,
    SLOPES,
    SUM,
    VARIABLE,
    Node,
    Step,
    X,
    straight_line,
)

BITS = 80
"""The precision of proofs, in bits."""

MANY_BITS = 400
"""The precision in which two pieces are compared at their knot, in bits."""

ROUNDOFF = 2.0**-53

UNDERFLOW = 128 * 2.0**-126 * 2.0**-29
"""The absolute error of an operation whose result underflows, in float64 or float32.

Errors are counted in units of roundoff, so one bound serves both dtypes. float32 dominates: its
smallest normal number 2^-126 times 2^-29, the ratio of the two units of roundoff.
"""

LARGEST = 1.7e308
"""The threshold of overflow, just below the largest float64."""

Line = tuple[Step, ...]
Ball = Any
"""A real ball, or a complex one."""

precision = ctx.workprec
"""Context manager: the precision of balls, in bits."""


def exact(value: Fraction | float | int) -> arb:
    """Return the ball of a number, which is exact if the denominator is a power of two."""
    if isinstance(value, Fraction):
        return arb(value.numerator) / value.denominator
    return arb(value)  # whatever the precision


def hull(a: arb, b: arb) -> arb:
    """Return a ball that contains both balls."""
    return a.union(b)


def interval(low: Fraction | float, high: Fraction | float) -> arb:
    """Return a ball that contains [low, high]."""
    return hull(exact(low), exact(high))


def size(ball: Ball) -> float:
    """Return an upper bound on the absolute values in the ball."""
    if not ball.is_finite():
        return inf
    largest = float(ball.abs_upper().upper())
    return 0.0 if largest == 0.0 and ball.is_zero() else largest * (1 + 2.0**-50) + 5e-324


def least_size(ball: arb) -> float:
    """Return a lower bound on the absolute values in the ball."""
    return max(float(ball.abs_lower().lower()) * (1 - 2.0**-50), 0.0)


def ends(ball: arb) -> tuple[float, float]:
    """Return floats below and above every value of the ball."""
    if not ball.is_finite():
        return -inf, inf
    return _down(ball.lower()), -_down(-ball.upper())


def _down(point: arb) -> float:
    """Return a float at most equal to an exact ball: the largest such float, or the one below."""
    nearest = float(point)
    return nearest if arb(nearest) <= point else nextafter(nearest, -inf)


# Functions on balls. A monotone function takes its extremes at the ends of a ball; an even function
# that is monotone on either side of 0 takes them at the smallest and largest absolute value.


def _monotone(function: Callable[[arb], arb]) -> Callable[[arb], arb]:
    def on_ball(ball: arb) -> arb:
        if ball.is_exact():
            return function(ball)
        return hull(function(arb(ball.lower())), function(arb(ball.upper())))

    return on_ball


def _even(function: Callable[[arb], arb]) -> Callable[[arb], arb]:
    def on_ball(ball: arb) -> arb:
        if ball.is_exact():
            return function(ball)
        return hull(function(arb(ball.abs_lower())), function(arb(ball.abs_upper())))

    return on_ball


def _softplus(z: arb) -> arb:
    return z + (-z).exp().log1p() if z > 0 else z.exp().log1p()


def _sign(z: arb) -> arb:
    if z.contains(0) and not z.is_zero():
        return arb(0, 1)
    return arb(int(z > 0) - int(z < 0))


REAL: dict[str, Callable[[arb], arb]] = {
    "exp": _monotone(arb.exp),
    "expm1": _monotone(arb.expm1),
    "log": arb.log,
    "log1p": arb.log1p,
    "sin": arb.sin,
    "cos": arb.cos,
    "tanh": _monotone(arb.tanh),
    "sech2": _even(lambda z: z.sech() ** 2),
    "sinh": _monotone(arb.sinh),
    "cosh": _even(arb.cosh),
    "sigmoid": _monotone(lambda z: 1 / (1 + (-z).exp())),
    "softplus": _monotone(_softplus),
    "erf": _monotone(arb.erf),
    "erfc": _monotone(arb.erfc),
    "atan": _monotone(arb.atan),
    "asinh": _monotone(arb.asinh),
    "abs": abs,
    "sign": _sign,
}


def _complex_sigmoid(z: acb) -> acb:
    if z.real < 0:  # use the exponential that stays small, which keeps wide balls finite
        small = z.exp()
        return small / (1 + small)
    return 1 / (1 + (-z).exp())


def _complex_softplus(z: acb) -> acb:
    if z.real > 0:
        return z + (1 + (-z).exp()).log(analytic=True)
    return (1 + z.exp()).log(analytic=True)


def _complex_atan(z: acb) -> acb:
    i = acb(0, 1)
    return ((1 + i * z).log(analytic=True) - (1 - i * z).log(analytic=True)) / (2 * i)


def _complex_asinh(z: acb) -> acb:
    if z.real < 0:  # the two terms below would cancel
        return -_complex_asinh(-z)
    return (z + (1 + z * z).sqrt(analytic=True)).log(analytic=True)


# With `analytic=True` the result is not finite if the ball touches a branch cut, so a finite result
# proves that the function is analytic in the ball.
COMPLEX: dict[str, Callable[[acb], acb]] = {
    "exp": acb.exp,
    "expm1": acb.expm1,
    "log": lambda z: z.log(analytic=True),
    "log1p": lambda z: (1 + z).log(analytic=True),
    "sin": acb.sin,
    "cos": acb.cos,
    "tanh": acb.tanh,
    "sech2": lambda z: z.sech() ** 2,
    "sinh": acb.sinh,
    "cosh": acb.cosh,
    "sigmoid": _complex_sigmoid,
    "softplus": _complex_softplus,
    "erf": acb.erf,
    "erfc": acb.erfc,
    "atan": _complex_atan,
    "asinh": _complex_asinh,
    "abs": lambda z: z.real_abs(analytic=True),
    "sign": lambda z: z.real_sgn(analytic=True),
}


def _power(base: arb, n: Fraction) -> arb:
    """Raise a real ball to a whole or half power."""
    exponent = n.numerator
    if n.denominator == 2:
        return base.sqrt() ** exponent
    if base.is_exact() or exponent < 0:
        return base**exponent
    # Arb's power of a wide ball is wider than the hull of the powers of its ends.
    low, high = base.lower(), base.upper()
    if exponent % 2 == 0:
        low, high = base.abs_lower(), base.abs_upper()
    return hull(arb(low) ** exponent, arb(high) ** exponent)


def _complex_power(base: acb, n: Fraction) -> acb:
    return (base.sqrt(analytic=True) if n.denominator == 2 else base) ** n.numerator


def enclosed(line: Line, values: Mapping[str, Ball], *, is_complex: bool = False) -> Ball:
    """Evaluate a straight-line program on balls, one for each variable."""
    ball, calls = (acb, COMPLEX) if is_complex else (arb, REAL)
    power = _complex_power if is_complex else _power
    results: list[Ball] = []
    for operation, value, places in line:
        if operation == SUM:
            result = sum((results[place] for place in places[1:]), results[places[0]])
        elif operation == PRODUCT:
            result = prod((results[place] for place in places[1:]), start=results[places[0]])
        elif operation == CALL:
            result = calls[str(value)](results[places[0]])
        elif isinstance(value, Fraction):
            result = power(results[places[0]], value) if operation == POWER else ball(exact(value))
        else:
            result = ball(arb.pi()) if operation == CONSTANT else values[str(value)]
        results.append(result)
    return results[-1]


def narrowed(y: Ball, line: Line, slope: Ball, x: arb) -> Ball:
    """Tighten the enclosure y of a program on x with an enclosure of its slope on x.

    Where terms cancel, y is far too wide: by a multiple of the width of x. The mean value form
    around the midpoint of x overestimates only by a multiple of the width's square.
    """
    if not slope.is_finite():
        return y
    middle = arb(x.mid())
    centred = enclosed(line, {"x": middle}) + slope * (x - middle)
    if not y.is_finite():
        return centred
    try:
        return y.intersection(centred)
    except ValueError:  # raised if the balls merely touch
        return centred


# Ranges.


class Bracket(NamedTuple):
    """A small interval that may contain an extremum of a function, and the range there."""

    low: float
    high: float
    least: float
    largest: float


MOST_CELLS, DEEPEST = 200_000, 40
"""Limits of a search: the number of intervals, and the number of bisections of one interval."""

MOST_OPERATIONS = 10_000_000
"""The largest number of operations in a search for extrema, about ten seconds."""


def brackets(lines: tuple[Line, Line, Line], low: Fraction, high: Fraction) -> list[Bracket] | None:
    """Return brackets of all possible extrema; between them the slope has one sign.

    `lines` are the function, its slope and its curvature. An interval is bisected until the slope
    has one sign in it, until the function varies in it by less than 2^-70 of its value, or until
    its width is 2^-52. Multiple roots of the slope need no special treatment. Return None after
    `MOST_CELLS` intervals or `MOST_OPERATIONS` operations.
    """
    candidates: list[tuple[arb, arb, float]] = []
    most = min(MOST_CELLS, MOST_OPERATIONS // sum(map(len, lines)))
    pending, n_seen = [(exact(low), exact(high))], 0
    while pending:
        left, right = pending.pop()
        n_seen += 1
        if n_seen > most:
            return None
        x = hull(left, right)
        slope = enclosed(lines[1], {"x": x})
        if slope.is_finite() and not slope.contains(0):
            continue
        curvature = enclosed(lines[2], {"x": x})
        tight_slope = narrowed(slope, lines[1], curvature, x)
        if tight_slope.is_finite() and not tight_slope.contains(0):
            continue
        width = size(right - left)
        change = width * size(tight_slope)
        is_small = width <= 2.0**-52 * max(1.0, size(left))
        if not is_small and change < inf:
            value = narrowed(enclosed(lines[0], {"x": x}), lines[0], slope, x)
            is_small = change <= 2.0**-70 * max(least_size(value), 2.0**-300)
        if is_small:
            if candidates and not left > candidates[-1][1]:  # merge adjacent intervals
                left, _, before = candidates.pop()
                change += before
            candidates.append((left, right, change))
            continue
        middle = arb(((left + right) / 2).mid())
        if curvature.is_finite() and not curvature.contains(0):
            # Interval Newton: the slope is monotone, and its root in x, if any, lies in `root`.
            root = middle - enclosed(lines[1], {"x": middle}) / curvature
            if not root.overlaps(x):
                continue
            narrow = root.intersection(x)
            if size(narrow - narrow.mid()) < 0.2 * width:
                pending.append((arb(narrow.lower()), arb(narrow.upper())))
                continue
        pending += [(middle, right), (left, middle)]
    return [
        Bracket(float(left), float(right), *ends(enclosed(lines[0], {"x": left}) + arb(0, change)))
        for left, right, change in candidates
    ]


# Rounding.

ULPS = {
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "cosh"), 2),
    **dict.fromkeys(("erf", "atan"), 2),
    **dict.fromkeys(("sinh", "sigmoid", "softplus", "erfc", "asinh"), 4),
    **dict.fromkeys(("abs", "sign"), 0),
    "sech2": 8,
}
"""Largest errors of torch's functions, in units of roundoff of the result, without underflow."""


@cache
def _slope_of(function: str) -> Line:
    return straight_line(SLOPES[function](X))


def _power_ulps(exponent: Fraction) -> int:
    """Return the largest error of torch's power of an exact number, in units of roundoff."""
    if exponent in (-1, 2, Fraction(1, 2)):
        return 1
    return 2 if exponent == -Fraction(1, 2) else 4


def _is_short(fraction: Fraction) -> bool:
    """Return whether a number has at most 24 bits, so that float32 represents it exactly."""
    bits, scale = fraction.numerator, fraction.denominator
    return bits == 0 or (scale & (scale - 1) == 0 and (bits // (bits & -bits)).bit_length() <= 24)


def running(line: Line, variables: Mapping[str, arb]) -> tuple[arb, float]:
    """Return an enclosure of a program's real value, and a bound on the error of the computed one.

    The error of every operation is propagated to the operations that read its result (a running
    error analysis). The bound is infinite if a number may overflow or a ball is not finite.
    """
    values: list[Ball] = []
    errors: list[float] = []
    for operation, value, places in line:
        error = 0.0
        if operation == VARIABLE:
            result = variables[str(value)]
        elif operation == NUMBER:
            fraction = Fraction(value)
            result = exact(fraction)
            error = 0.0 if _is_short(fraction) else ROUNDOFF * abs(float(fraction))
        elif operation == CONSTANT:
            result, error = arb.pi(), ROUNDOFF * pi
        elif operation == CALL:
            name, argument, argument_error = str(value), values[places[0]], errors[places[0]]
            result = REAL[name](argument)
            if argument_error:
                slope = enclosed(_slope_of(name), {"x": _widened(argument, argument_error)})
                error = size(slope) * argument_error
            if ULPS[name]:
                error += ROUNDOFF * ULPS[name] * (size(result) + error) + UNDERFLOW
        elif isinstance(value, Fraction):
            argument, argument_error = values[places[0]], errors[places[0]]
            result = _power(argument, value)
            if argument_error:
                slope = exact(value) * _power(_widened(argument, argument_error), value - 1)
                error = size(slope) * argument_error
            error += ROUNDOFF * _power_ulps(value) * (size(result) + error) + UNDERFLOW
        else:
            result, error = values[places[0]], errors[places[0]]
            for place in places[1:]:
                operand, operand_error = values[place], errors[place]
                if operation == SUM:
                    result, error = result + operand, error + operand_error
                    error += ROUNDOFF * (size(result) + error)
                else:
                    # |(a + e)(b + f) - a b| <= |a| f + |b| e + e f
                    error = (
                        size(result) * operand_error + size(operand) * error + error * operand_error
                    )
                    result = result * operand
                    error += ROUNDOFF * (size(result) + error) + UNDERFLOW
        if not size(result) + error < LARGEST:
            return result, inf
        values.append(result)
        errors.append(error)
    return values[-1], errors[-1] * (1 + 2.0**-40)


def _widened(ball: arb, by: float) -> arb:
    return ball + arb(0, by)


N_EVEN, FINEST = 128, 2.0**-60


def cells(low: Fraction, high: Fraction) -> list[tuple[arb, arb]]:
    """Divide an interval into cells: equal ones in [-16, 16], and a geometric grid towards 0."""
    cuts = {low, high}
    cuts |= {Fraction(32 * k, N_EVEN) for k in range(-N_EVEN // 2, N_EVEN // 2 + 1)}
    largest = 2.0 ** ceil(log2(max(abs(low), abs(high), Fraction(1))))
    while largest >= FINEST:
        cuts |= {Fraction(sign * share * largest) for sign in (-1, 1) for share in EIGHTHS}
        largest /= 2
    inside = sorted({cut for cut in cuts if low <= cut <= high} | {low, high})
    return [(exact(left), exact(right)) for left, right in pairwise(inside)]


EIGHTHS = (1.0, 0.875, 0.75, 0.625)


def rounding(pieces: Iterable[tuple[Line, Fraction, Fraction]]) -> tuple[float, float] | float:
    """Bound the rounding error of a function given by programs on intervals.

    Return (relative, absolute): the error of a computed value v is at most relative * |v| +
    absolute units of roundoff. If a number may overflow, return a point where it may.
    """
    rows: list[tuple[float, float, float]] = []
    for line, low, high in pieces:
        pending = [(left, right, 0) for left, right in cells(low, high)]
        while pending:
            left, right, depth = pending.pop()
            value, error = running(line, {"x": hull(left, right)})
            if error < inf:
                rows.append((least_size(value), size(value), error / ROUNDOFF))
                continue
            middle = arb(((left + right) / 2).mid())
            if depth > DEEPEST:
                return float(middle)
            pending += [(left, middle, depth + 1), (middle, right, depth + 1)]
    if not any(error for _, _, error in rows):
        return 0.0, 0.0
    # A larger absolute error leaves a smaller relative one. Of several pairs, take the one with the
    # smallest total at values of median size.
    least = max((error for lowest, _, error in rows if lowest == 0.0), default=0.0)
    typical = median(largest for _, largest, _ in rows)
    best = (inf, 0.0, 0.0)
    for absolute in (least, *(least + 2.0**k for k in range(-50, 40))):
        relative = max((e - absolute) / lowest if e > absolute else 0.0 for lowest, _, e in rows)
        best = min(best, (relative * typical + absolute, relative, absolute))
    safety = 1 + 2.0**-30  # covers the rounding of the lines above
    return best[1] * safety, best[2] * safety


def meets(left: Node, right: Node) -> arb | None:
    """Return right - left of two constant trees, or None if the difference may be 0."""
    with precision(MANY_BITS):
        gap = enclosed(straight_line(right), {}) - enclosed(straight_line(left), {})
        return None if gap.contains(0) else gap


def singular_place(lines: tuple[Line, ...], low: Fraction, high: Fraction) -> tuple[str, float]:
    """Return ("pole" or "overflow", a point near it) on [low, high], or ("", 0) if there is none.

    The interval is bisected until all programs are finite without overflow on every part.
    """
    pending = [(exact(low), exact(high), 0)]
    n_seen = 0
    while pending:
        left, right, depth = pending.pop()
        x, n_seen = hull(left, right), n_seen + 1
        results = [running(line, {"x": x}) for line in lines]
        if all(error < inf for _, error in results):
            continue
        if depth > DEEPEST or n_seen > MOST_CELLS:
            sizes = [size(value) for value, error in results if error == inf]
            is_overflow = all(LARGEST / 2 < largest < inf for largest in sizes)
            return "overflow" if is_overflow else "pole", float(((left + right) / 2).mid())
        middle = arb(((left + right) / 2).mid())
        pending += [(middle, right, depth + 1), (left, middle, depth + 1)]
    return "", 0.0
