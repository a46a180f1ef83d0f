"""icgd-check: accept or refuse a certificate of a training run, without trusting who wrote it.

A certificate holds a training problem, its data, the numbers that a transformer computed after
every step, and how far they claim to be from exact training. This program trains again, in balls:
intervals with a midpoint of many bits and a rigorous radius (Arb, from python-flint), so that exact
training in real numbers never leaves them. Then it compares. docs/certificates.md describes the
format. Nothing of icgd is imported here.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import json
from array import array
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial, reduce
from itertools import accumulate, chain, islice, pairwise
from math import inf, nextafter
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, NamedTuple

try:
    from flint import arb, arb_mat, ctx
except ImportError:
    raise SystemExit("icgd-check needs python-flint: pip install python-flint") from None

VERSION = 2
MOST_BYTES = 2**28  # of a certificate
MOST_BITS = 2**16  # of a ball
MOST_CHARACTERS = 4000  # of an expression
MOST_POWER_OF_TEN = 400  # of a number in a text
PLAIN = {*ascii_letters, *digits, *" .,+-*/()"}  # the characters of a function given as a text
MOST_MEMORY = 2**33  # bits of the largest set of balls, each with 1,024 bits of overhead
LEAST_BITS, SPARE_BITS = 64, 20  # the least precision, and how much finer it is than the radii
NAMES = """sha256 version claim transformer file_sha256 data_sha256 problem data bits method
           distances steps prediction_distance predictions"""
Row = list[arb]
Data = dict[str, Any]
State = dict[str, list[arb_mat]]  # matrices by name: "weights", and what an optimiser remembers
ZERO, ONE = arb(0), arb(1)
zipped = partial(zip, strict=True)


class RefusedError(Exception):
    """Why a certificate is not accepted, in one sentence."""


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise RefusedError(otherwise)


# What a file may hold


def fields(of: Data, names: str, what: str) -> None:
    require({*of} == {*names.split()}, f"{what} has other fields than it should")


def number(text: str) -> arb:
    value = float.fromhex(text)  # such as "0x1.8p+1", an exact binary fraction
    require(arb(value).is_finite() and value.hex() == text, "a number is not a finite double")
    return arb(value)


def positive(text: str) -> arb:
    require(number(text) > 0, "a step, a box or another number is not positive")
    return number(text)


def count(value: int) -> int:
    require(type(value) is int and value > 0, "a count is not a positive whole number")
    return value


def switch(value: bool) -> bool:
    require(type(value) is bool, "a switch is neither true nor false")
    return value


def rows_of(data: Any) -> list[Row]:
    rows = [[number(entry) for entry in row] for row in data]
    require(len({len(row) for row in rows}) <= 1, "a matrix has rows of different lengths")
    return rows


def once_each(names: list[Any]) -> set[Any]:
    require(len({*names}) == len(names), "a list names something twice")
    return {*names}


def once(pairs: list[tuple[str, Any]]) -> Data:
    require(len(dict(pairs)) == len(pairs), "a name occurs twice")
    return dict(pairs)


def no_real(text: str) -> None:
    raise RefusedError(f"the real number {text} is not given as a text of an exact binary fraction")


def require_memory(balls: int, bits: int) -> None:
    require(balls * (bits + 1024) <= MOST_MEMORY, f"it needs {balls} balls at once, too many")


# Functions of one number, on rows of balls. An activation returns its values and its slopes.


def sigmoid(z: arb) -> arb:
    return 1 / (1 + (-z).exp())


def normal(z: arb) -> arb:
    return (-z / arb(2).sqrt()).erfc() / 2


def kinked(leak: arb, row: Row) -> tuple[Row, Row]:
    """z if z > 0, and leak * z else. A ball that holds the kink has both slopes."""
    both = leak.union(ONE)
    slopes = [ONE if z > ZERO else leak if z <= ZERO else both for z in row]
    return [z.max(leak * z) if s is both else s * z for z, s in zipped(row, slopes)], slopes


def tanh(row: Row) -> tuple[Row, Row]:
    values = [z.tanh() for z in row]
    return values, [1 - t * t for t in values]


def logistic(row: Row) -> tuple[Row, Row]:
    values = [sigmoid(z) for z in row]
    return values, [s * (1 - s) for s in values]


def silu(row: Row) -> tuple[Row, Row]:
    shares = [sigmoid(z) for z in row]
    return [z * s for z, s in zipped(row, shares)], [
        s + z * s * (1 - s) for z, s in zipped(row, shares)
    ]


def gelu(row: Row) -> tuple[Row, Row]:
    shares, scale = list(map(normal, row)), (2 * arb.pi()).rsqrt()
    return [z * p for z, p in zipped(row, shares)], [
        p + scale * z * (-z * z / 2).exp() for z, p in zipped(row, shares)
    ]


ACTIVATIONS: dict[str, Callable[[Row], tuple[Row, Row]]] = {
    "identity": lambda row: (row, [ONE] * len(row)),
    "relu": partial(kinked, ZERO),
    "leaky_relu": partial(kinked, arb(0.01)),
    "tanh": tanh,
    "sigmoid": logistic,
    "silu": silu,
    "gelu": gelu,
    "softplus": lambda row: ([z.exp().log1p() for z in row], [sigmoid(z) for z in row]),
}

LINKS: dict[str, Callable[[arb], arb]] = {
    "identity": lambda z: z,
    "logistic": sigmoid,
    "probit": normal,
    "poisson": lambda z: z.exp(),
    "softplus": lambda z: z.exp().log1p(),
    "cauchit": lambda z: z.atan() / arb.pi() + arb(1) / 2,
    "cloglog": lambda z: -(-z.exp()).expm1(),
    "tanh": lambda z: z.tanh(),
}


# Functions given as texts, such as "0 up to 0, x*tanh(x) on -64 to 64": expressions in x, each up
# to its knot, between the ends of a domain. They are computed with their slopes, by the chain rule.


class Dual(NamedTuple):
    """A value and its slope."""

    value: arb
    slope: arb


def sign(z: arb) -> arb:
    return ONE if z > ZERO else -ONE if z < ZERO else (-ONE).union(ONE)


def of_normal(z: arb) -> arb:  # the slope of erf
    return 2 / arb.pi().sqrt() * (-z * z).exp()


CALLS: dict[str, tuple[Callable[[arb], arb], Callable[[arb], arb]]] = {  # values and slopes
    "abs": (abs, sign),
    "asinh": (arb.asinh, lambda z: (1 + z * z).rsqrt()),
    "atan": (arb.atan, lambda z: 1 / (1 + z * z)),
    "cos": (arb.cos, lambda z: -z.sin()),
    "cosh": (arb.cosh, arb.sinh),
    "erf": (arb.erf, of_normal),
    "erfc": (arb.erfc, lambda z: -of_normal(z)),
    "exp": (arb.exp, arb.exp),
    "expm1": (arb.expm1, arb.exp),
    "log": (arb.log, lambda z: 1 / z),
    "log1p": (arb.log1p, lambda z: 1 / (1 + z)),
    "sech2": (lambda z: z.sech() ** 2, lambda z: -2 * z.tanh() * z.sech() ** 2),
    "sigmoid": (sigmoid, lambda z: sigmoid(z) * sigmoid(-z)),
    "sign": (sign, lambda z: ZERO),
    "sin": (arb.sin, arb.cos),
    "sinh": (arb.sinh, arb.cosh),
    "softplus": (lambda z: z.exp().log1p(), sigmoid),
    "tanh": (arb.tanh, lambda z: z.sech() ** 2),
}


def product(u: Dual, v: Dual) -> Dual:
    return Dual(u.value * v.value, u.slope * v.value + u.value * v.slope)


def power(u: Dual, n: Fraction) -> Dual:
    root = u.value if n.denominator == 1 else u.value.sqrt()
    require(n.denominator <= 2, "an exponent is no whole or half number")
    slope = n.numerator * root ** (n.numerator - n.denominator) * u.slope / n.denominator
    return Dual(root**n.numerator, slope)


def rational(text: str) -> arb:
    power_of_ten = int(text.lower().partition("e")[2] or 0)
    require(abs(power_of_ten) <= MOST_POWER_OF_TEN, "a number is too large or too small")
    fraction = Fraction(text)
    return arb(fraction.numerator) / fraction.denominator


Variables = dict[str, Dual]


def expression(text: str, names: tuple[str, ...]) -> Callable[[Variables], Dual]:
    """Return a function of duals: numbers, the variables, + - * / **, and the calls above."""
    require(len(text) <= MOST_CHARACTERS, "an expression is too long")

    def read(tree: ast.expr) -> Callable[[Variables], Dual]:
        match tree:
            case ast.Constant(value=int() | float()):
                constant = Dual(rational(text[tree.col_offset : tree.end_col_offset]), ZERO)
                return lambda at: constant
            case ast.Name(id="pi"):
                return lambda at: Dual(arb.pi(), ZERO)
            case ast.Name(id=name) if name in names:
                return lambda at: at[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = read(operand)
                return lambda at: Dual(*(-part for part in inner(at)))
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                inner, n = read(left), exponent(right)
                return lambda at: power(inner(at), n)
            case ast.BinOp(left=left, op=op, right=right):
                u, v = read(left), read(right)
                if isinstance(op, ast.Add):
                    return lambda at: Dual(*map(arb.__add__, u(at), v(at)))
                if isinstance(op, ast.Sub):
                    return lambda at: Dual(*map(arb.__sub__, u(at), v(at)))
                if isinstance(op, ast.Mult):
                    return lambda at: product(u(at), v(at))
                if isinstance(op, ast.Div):
                    return lambda at: product(u(at), power(v(at), Fraction(-1)))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in CALLS:
                (value, slope), inner = CALLS[name], read(argument)

                def called(at: Variables) -> Dual:
                    z = inner(at)
                    return Dual(value(z.value), slope(z.value) * z.slope)

                return called
        raise RefusedError("a text is no expression that is known")

    return read(ast.parse(text, mode="eval").body)


def exponent(tree: ast.expr) -> Fraction:
    match tree:
        case ast.Constant(value=int(n)):
            return Fraction(n)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -exponent(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return exponent(left) / exponent(right)
    raise RefusedError("an exponent is no whole or half number")


def within(text: str) -> tuple[str, Callable[[arb], bool]]:
    """Return what stands before a domain, and whether a ball lies in it."""
    body, separator, domain = text.rpartition(" on ")
    require(bool(separator), f"{text} is no function that is known")
    require({*text} <= PLAIN, "a function has characters that none needs")
    low, high = map(rational, domain.split(" to "))
    return body, lambda z: low <= z <= high


def knots_of(name: str) -> Row:
    """Return where the slope of an activation jumps."""
    if name in KINKED:
        return [ZERO]
    parts = name.rpartition(" on ")[0].split(", ")
    return [rational(part.rpartition(" up to ")[2]) for part in parts[:-1]]


def in_pieces(text: str) -> Callable[[Row], tuple[Row, Row]]:
    """Return an activation given as a text. A ball that holds knots has the slopes of all its
    pieces.
    """
    body, is_inside = within(text)
    ends = [-arb.pos_inf(), *knots_of(text), arb.pos_inf()]
    require(all(low < high for low, high in pairwise(ends)), "its knots do not rise")
    pieces = [expression(part.rpartition(" up to ")[0], ("x",)) for part in body.split(", ")[:-1]]
    pieces.append(expression(body.rpartition(", ")[2], ("x",)))

    def at(z: arb) -> Dual:
        require(is_inside(z), "a function is not defined at all its arguments")
        found = []
        for piece, (low, high) in zipped(pieces, pairwise(ends)):
            if not (z <= low or z > high):  # the part of the ball that may lie on it
                on_piece = z if low < z <= high else z.max(low).min(high)
                found.append(piece({"x": Dual(on_piece, ONE)}))
        return Dual(*(reduce(arb.union, parts) for parts in zipped(*found)))

    def activation(row: Row) -> tuple[Row, Row]:
        values, slopes = zipped(*map(at, row))
        return list(values), list(slopes)

    return activation


def of_pairs(text: str) -> Callable[[Row, Row], Row]:
    """Return the slope u(t, y) of a loss, given as a text."""
    body, is_inside = within(text)
    slope = expression(body, ("t", "y"))

    def at(t: arb, y: arb) -> arb:
        require(is_inside(t) and is_inside(y), "a loss is not defined at all predictions")
        return slope({"t": Dual(t, ZERO), "y": Dual(y, ZERO)}).value

    return lambda p, y: list(map(at, p, y))


def link_named(name: str) -> Callable[[arb], arb]:
    if " on " not in name:
        return LINKS[name]
    function = in_pieces(name)
    return lambda z: function([z])[0][0]


def softmax(row: Row) -> Row:
    top = max(row)  # any of them would do
    powers = [(z - top).exp() for z in row]
    total = sum(powers, ZERO)
    return [power / total for power in powers]


def clip(bound: arb, z: arb) -> arb:
    return z if -bound < z < bound else z.min(bound).max(-bound)


Slope = Callable[[Row, Row], Row]
LOSSES: dict[str, tuple[Slope, float]] = {  # gradients in predictions p, and their curvature
    "squared": (lambda p, y: [2 * (a - b) for a, b in zipped(p, y)], 2.0),
    "huber": (lambda p, y: [clip(ONE, a - b) for a, b in zipped(p, y)], 1.0),
    "logistic": (lambda p, y: [sigmoid(a) - b for a, b in zipped(p, y)], 0.25),
    "cross_entropy": (lambda p, y: [a - b for a, b in zipped(softmax(p), y)], 0.5),
    "log_cosh": (lambda p, y: [(a - b).tanh() for a, b in zipped(p, y)], 1.0),
    "poisson": (lambda p, y: [a.exp() - b for a, b in zipped(p, y)], inf),
    "l1": (lambda p, y: [slope_of_size(a - b) for a, b in zipped(p, y)], inf),
}


def step(below: arb, above: arb, z: arb) -> arb:
    """One number up to 0 and another beyond."""
    return above if z > ZERO else below if z <= ZERO else below.union(above)


def slope_of_size(z: arb) -> arb:
    """1 above 0, -1 below, and 0 at 0."""
    return step(ZERO, ONE, z) - step(ZERO, ONE, -z)


def loss_named(name: str) -> tuple[Slope, float]:
    """Return the slope of a loss and a bound on its curvature, infinite if none is known."""
    if name in LOSSES:
        return LOSSES[name]
    if " on " in name:
        return of_pairs(name), inf
    kind, _, text = name.rpartition("_")
    setting = float(text)
    require(name == f"{kind}_{setting!r}", "its loss has a name that is not written plainly")
    require(0 < setting < inf, "its loss has a number that is not positive")
    if kind == "quantile":
        require(setting < 1, "the level of a quantile is not below 1")
        below, above = arb(-setting), arb(1 - setting)
        return lambda p, y: [step(below, above, a - b) for a, b in zipped(p, y)], inf
    require(kind == "smooth_l1", f"{name} is no loss that is known")
    curvature = nextafter(1 / setting, inf)  # no less than the quotient, which is rounded
    return lambda p, y: [clip(ONE, (a - b) / arb(setting)) for a, b in zipped(p, y)], curvature


def activation_named(name: str) -> Callable[[Row], tuple[Row, Row]]:
    return in_pieces(name) if " on " in name else ACTIVATIONS[name]


# Networks


def matrix(rows: list[Row]) -> arb_mat:
    return arb_mat(len(rows), len(rows[0]) if rows else 0, [entry for row in rows for entry in row])


def entrywise(function: Callable[..., arb], *matrices: arb_mat) -> arb_mat:
    entries = (part.entries() for part in matrices)
    return arb_mat(matrices[0].nrows(), matrices[0].ncols(), list(map(function, *entries)))


def mean(row: Row) -> arb:
    return sum(row, ZERO) / len(row)


def terms(of: Data) -> dict[str, arb]:
    return {name: number(factor) for name, factor in of.items()}


def total(parts: dict[str, arb], known: dict[str, arb_mat]) -> arb_mat:
    (first, *others) = [known[name] * factor for name, factor in parts.items()]
    return sum(others, first)


def root_of(z: arb) -> arb:
    """Return root of a number whose exact value is not negative; of any other it is no number."""
    return z.sqrt() if z >= ZERO else ZERO.union(z.upper().sqrt())


# What weights are projected onto after a step: closed convex sets, each for some columns of a layer
#
#   box         low <= w <= high, entry by entry
#   half-space  <normal, w> <= offset, for all entries or for each row, in a cube of half-width
#               reach that is turned so that the normal is one of its axes. With the normal a, its
#               first entry a_p of the largest size and v = a + sign(a_p) |a| e_p, its other axes
#               are the rows i != p of I - v v^T / (|a| (|a| + |a_p|))
#   simplex     the entries of a row are not negative and add up to total
#
# A projection brings no two points further apart in the 2-norm.


def beyond(z: arb, low: arb, high: arb) -> arb:
    """Return how far z lies beyond low or high: z less the nearest number between them."""
    return ZERO if low < z < high else (z - high).max(ZERO) + (z - low).min(ZERO)


def on_simplex(total: arb, row: Row) -> Row:
    """max(w - theta, 0), theta the largest of (the sum of the j largest - total) / j."""
    ordered = list(row)
    for last in range(len(row) - 1, 0, -1):
        for place in range(last):
            a, b = ordered[place : place + 2]
            ordered[place : place + 2] = a.max(b), a.min(b)
    sums = accumulate(ordered)
    theta = reduce(arb.max, [(s - total) / j for j, s in enumerate(sums, 1)])
    return [(w - theta).max(ZERO) for w in row]


def dot(these: Row, those: Row) -> arb:
    return sum(map(arb.__mul__, these, those), ZERO)


def in_half_space(normal: Row, offset: arb, reach: arb, row: Row) -> Row:
    sizes, norm, v = list(map(abs, normal)), length(normal), list(normal)
    pivot = next(place for place, size in enumerate(sizes) if size >= max(sizes))
    v[pivot] += norm if normal[pivot] > ZERO else -norm
    share = 1 / (norm * (norm + sizes[pivot]))
    turned = share * dot(v, row)
    away = [beyond(w - entry * turned, -reach, reach) for w, entry in zipped(row, v)]
    away[pivot] = ZERO
    first = beyond(dot(normal, row) / norm, -reach, (offset / norm).min(reach))
    back = share * dot(v, away)
    return [
        w - first * a / norm - beside + back * entry
        for w, a, beside, entry in zipped(row, normal, away, v)
    ]


class Region:
    """The set of some columns of a layer's matrix."""

    def __init__(self, of: Data, shape: tuple[int, int]) -> None:
        names = {
            "box": "low high",
            "half-space": "normal offset reach each_row",
            "simplex": "total",
        }
        fields(of, f"kind columns {names[of['kind']]}", "a set of weights")
        self.kind, (self.start, self.stop) = of["kind"], of["columns"]
        inside = type(self.start) is type(self.stop) is int and 0 <= self.start < self.stop
        require(inside and self.stop <= shape[1], "a set is about columns that are not there")
        expected = (shape[0], self.stop - self.start)
        if self.kind == "simplex":
            self.total = positive(of["total"])
            return
        parts = [rows_of(of[name]) for name in ("low", "high", "normal") if name in of]
        self.each_row = self.kind == "half-space" and switch(of["each_row"])
        expected = (1, expected[1]) if self.each_row else expected
        fits = all((len(part), len(part[0])) == expected for part in parts if part)
        require(fits and all(parts), "a set does not fit its weights")
        if self.kind == "box":
            self.low, self.high = parts
            pairs = zipped(chain(*self.low), chain(*self.high))
            require(all(low <= high for low, high in pairs), "a set is empty")
        else:
            self.normal, self.offset = list(chain(*parts[0])), number(of["offset"])
            self.reach, norm = positive(of["reach"]), length(self.normal)
            require(norm > ZERO and -self.reach * norm < self.offset, "a set is empty")

    def projected(self, rows: list[Row]) -> list[Row]:
        """Return the rows of the layer, with these columns in the set."""
        own = [row[self.start : self.stop] for row in rows]
        if self.kind == "simplex":
            own = [on_simplex(self.total, row) for row in own]
        elif self.kind == "box":
            own = [
                [w - beyond(w, low, high) for w, low, high in zipped(*parts)]
                for parts in zipped(own, self.low, self.high)
            ]
        else:
            project = partial(in_half_space, self.normal, self.offset, self.reach)
            if self.each_row:
                own = list(map(project, own))
            else:
                flat, width = project(list(chain(*own))), self.stop - self.start
                own = [flat[n : n + width] for n in range(0, len(flat), width)]
        return [row[: self.start] + part + row[self.stop :] for row, part in zipped(rows, own)]


Projection = Callable[[arb_mat], arb_mat]


def projections(of: Any, shapes: list[tuple[int, int]]) -> list[Projection]:
    """Return what projects the matrix of each layer: a clip of all weights, or the sets of each
    layer.
    """
    if isinstance(of, str):
        return [partial(entrywise, partial(clip, positive(of)))] * len(shapes)
    layers = [
        [Region(part, shape) for part in parts] for parts, shape in zip(of, shapes, strict=True)
    ]
    for regions, (_, width) in zipped(layers, shapes):
        covered = [n for region in regions for n in range(region.start, region.stop)]
        require(sorted(covered) == [*range(width)], "sets do not cover each weight once")
    return [partial(by_regions, regions) for regions in layers]


def by_regions(regions: list[Region], weights: arb_mat) -> arb_mat:
    rows = weights.tolist()
    for region in regions:
        rows = region.projected(rows)
    return matrix(rows)


class Rule:
    """One step of an optimiser, entry by entry, as a table of sums.

    gradient <- gradient + decay * weights
    square   =  gradient^2
    state    <- sums of coefficient * quantity, for each part of the state, of quantities before
    scaled   =  factor / (sqrt(argument) + eps), if there is a root: the factor after the step, the
                argument a sum of quantities before it
    weights  <- projection of a sum of coefficient * quantity, with the state after the step
    average  <- kept * average + (1 - kept) * weights, if there is an average
    """

    def __init__(self, of: Data) -> None:
        fields(of, "weights state decay root average", "a rule")
        quantities = {"weights", "gradient", "square", "scaled", "average"}
        require(not quantities & {*of["state"]}, "a part of the state has the name of a quantity")
        self.decay, self.weights = number(of["decay"]), terms(of["weights"])
        self.state = {name: terms(part) for name, part in of["state"].items()}
        self.kept = None if of["average"] is None else number(of["average"])
        is_share = self.kept is None or ZERO <= self.kept <= ONE
        require(is_share, "an average keeps a share outside 0 to 1")
        self.root = of["root"]
        if self.root is not None:
            fields(self.root, "factor argument eps", "a root")
            self.spread, self.eps = terms(self.root["argument"]), number(self.root["eps"])

    def moved(self, gradient: arb_mat, state: dict[str, arb_mat]) -> dict[str, arb_mat]:
        """Return the weights before they are projected, and the new state."""
        if not self.decay.is_zero():
            gradient = gradient + state["weights"] * self.decay
        known = {**state, "gradient": gradient}
        if self.root is not None:
            known["square"] = entrywise(lambda g: g * g, gradient)
        moved = {name: total(part, known) for name, part in self.state.items()}
        if self.root is not None:
            spread = entrywise(self.rooted, total(self.spread, known))
            factor = {**known, **moved}[self.root["factor"]]
            known["scaled"] = entrywise(lambda m, by: m / by, factor, spread)
        return {"weights": total(self.weights, {**known, **moved}), **moved}

    def rooted(self, z: arb) -> arb:
        return root_of(z) + self.eps


class Step:
    """One step of all layers: a rule, or one for each group of weights.

    The weights of a group are some adjacent columns of a layer's matrix, from the first to before
    the second of two numbers; null in layers of which it has none.
    """

    def __init__(self, of: Any, shapes: list[tuple[int, int]]) -> None:
        self.groups = list[tuple[Rule, list[list[int] | None]]]()
        has_groups = type(of) is list
        for part in of if has_groups else [of]:
            columns = part["columns"] if has_groups else [[0, width] for _, width in shapes]
            names = {*part} - ({"columns"} if has_groups else set())
            self.groups.append((Rule({name: part[name] for name in names}), columns))
        self.kept = self.groups[0][0].kept
        is_alike = all(rule.kept is self.kept or rule.kept == self.kept for rule, _ in self.groups)
        require(is_alike, "groups of weights keep different shares of an average")
        for (_, width), *parts in zipped(shapes, *(columns for _, columns in self.groups)):
            ends = sorted(part for part in parts if part is not None)
            is_apart = all(type(end) is int for part in ends for end in part)
            is_apart = is_apart and all(start < stop for start, stop in ends)
            is_whole = [0, *(stop for _, stop in ends)] == [*(start for start, _ in ends), width]
            require(is_apart and is_whole, "groups do not cover each weight once")

    def applied(
        self, layer: int, gradient: arb_mat, state: dict[str, arb_mat], project: Projection
    ) -> dict[str, arb_mat]:
        """Return the weights and all that is remembered of a layer, counted from 0, after it."""
        if len(self.groups) == 1:
            after = self.rule.moved(gradient, state)
        else:
            after = self.moved_by_groups(layer, gradient, state)
        after["weights"] = project(after["weights"])
        if self.kept is not None:
            after["average"] = state["average"] * self.kept + after["weights"] * (1 - self.kept)
        require({*after} == {*state}, "a rule does not update exactly what is remembered")
        return after

    def moved_by_groups(
        self, layer: int, gradient: arb_mat, state: dict[str, arb_mat]
    ) -> dict[str, arb_mat]:
        """Return what the rules make of their columns, side by side."""
        known = {**{name: part.tolist() for name, part in state.items()}, "": gradient.tolist()}
        rows: dict[str, list[Row]] = {}
        parts = [(columns[layer], rule) for rule, columns in self.groups]
        for (start, stop), rule in sorted(
            ((part, rule) for part, rule in parts if part is not None), key=lambda pair: pair[0]
        ):
            own = {name: matrix([row[start:stop] for row in part]) for name, part in known.items()}
            for name, part in rule.moved(own.pop(""), own).items():
                left = rows.get(name, [[]] * part.nrows())
                rows[name] = [row + more for row, more in zipped(left, part.tolist())]
        return {name: matrix(part) for name, part in rows.items()}

    @property
    def rule(self) -> Rule:
        """The one rule of all weights."""
        require(len(self.groups) == 1, "the method norm needs one rule for all weights")
        return self.groups[0][0]


Pass = tuple[list[Data], list[arb_mat], list[arb_mat]]  # layers, slopes in z, slopes in outputs
KINKED = ("relu", "leaky_relu")


class Network:
    """p_j = r(norm(V_j p_{j-1})) + the shortcuts' p_i, trained on (1 / 2n) sum_i loss(p_i, y_i).

    Step l = 0, 1, ... takes the examples l b, l b + 1, ... modulo n of a batch of b.
    """

    FIELDS = """widths activation output_activation biases shortcuts norms norm_eps loss box
                batch_size gradient_scale remembered rules"""

    def __init__(self, of: Data, x: list[Row], y: list[Row], queries: list[Row], bits: int) -> None:
        widths = [count(width) for width in of["widths"]]
        require_memory(len(x + queries) * sum(widths), bits)
        require((len(x[0]), len(y[0])) == (widths[0], widths[-1]), "its data do not fit its widths")
        self.x, self.y, self.queries, self.widths = x, y, matrix(queries), widths
        self.bias = [ONE] * switch(of["biases"])
        self.shapes = [(high, wide + len(self.bias)) for wide, high in pairwise(widths)]
        hidden = of["activation"]
        names = hidden if type(hidden) is list else [hidden] * (len(widths) - 2)
        require(len(names) == len(widths) - 2, "it has no activation for each hidden layer")
        names = [*names, of["output_activation"]]
        self.activations, self.functions = names, [activation_named(name) for name in names]
        self.knots = [knots_of(name) for name in names]
        self.slope, self.curvature = loss_named(of["loss"])
        self.sources = {layer: list[int]() for layer in range(1, len(widths))}
        for first, last in once_each([tuple(pair) for pair in of["shortcuts"]]):
            self.sources[count(last)].append(first)
            is_earlier = type(first) is int and 0 <= first < last
            require(is_earlier, "a shortcut does not lead to a later layer")
        self.norms = once_each([count(layer) for layer in of["norms"]])
        self.norm_eps = positive(of["norm_eps"])
        require(self.norms <= {*self.sources}, "a norm belongs to no layer")
        self.batch = len(x) if of["batch_size"] is None else count(of["batch_size"])
        require(self.batch <= len(x), "a batch has more examples than there are")
        self.projections = projections(of["box"], self.shapes)
        self.share = positive(of["gradient_scale"])
        self.share /= 2 * self.batch
        self.rules = [Step(rule, self.shapes) for rule in of["rules"]]
        self.names = ["weights", *of["remembered"]]
        once_each(self.names)
        self.rates: Row | None = None  # what multiplies the gradient of each example
        self.kinks: list[tuple[int, int, int, int]] = []  # step, layer, example, unit
        self.nearby: tuple[list[arb_mat], arb, arb] | None = None  # where a factor holds, and it

    def start(self, numbers: Row) -> State:
        entries = iter(numbers)
        return {
            name: [
                arb_mat(*shape, list(islice(entries, shape[0] * shape[1]))) for shape in self.shapes
            ]
            for name in self.names
        }

    def numbers(self, state: State) -> Row:
        return [entry for name in self.names for part in state[name] for entry in part.entries()]

    def predict(self, state: State) -> Row:
        weights = state.get("average", state["weights"])
        outputs: Row = self.forward(weights, self.queries)[0][-1].entries()
        return outputs

    def step(self, state: State, step: int) -> State:
        return self.stepped(state, step)[0]

    def step_beside(self, state: State, step: int, apart: dict[str, arb]) -> tuple[State, Data]:
        """Return a plain step of an exact point, and how far exact descent is apart from it after
        that.
        """
        is_chain = not self.norms and not any(self.sources.values())
        require(
            is_chain and {*self.names} <= {"weights", "average"},
            "the method norm needs plain steps of a chain of layers",
        )
        after, of_step, passed = self.stepped(state, step)
        rule = of_step.rule
        is_plain = {*rule.weights} <= {"weights", "gradient"} and not rule.state
        require(is_plain, "the method norm needs plain steps of a chain of layers")
        with ctx.workprec(LEAST_BITS):
            factor = self.factor(state["weights"], after["weights"], rule, passed, apart["weights"])
        require(factor.is_finite(), f"distances grow beyond all bounds in step {step + 1}")
        found = {"weights": apart["weights"] * factor}
        if rule.kept is not None:
            new = found["weights"] * (1 - rule.kept)
            found["average"] = apart["average"] * rule.kept + new
        for name in self.names:  # what was rounded, and the midpoints go on
            balls = [ball for part in after[name] for ball in part.entries()]
            rounded = max(ball.rad() for ball in balls) * len(balls)
            found[name] = (found[name] + rounded).upper()
        return {name: [part.mid() for part in after[name]] for name in self.names}, found

    def factor(
        self, now: list[arb_mat], after: list[arb_mat], rule: Rule, passed: Pass, apart: arb
    ) -> arb:
        """Return the factor of a step, or one that was found nearby and holds here too.

        Steps of a smooth network on all examples by one rule share it while they are short: it is
        bounded within several steps of where it was found.
        """
        if self.nearby is not None:
            centre, radius, factor = self.nearby
            if (far_apart(now, centre) + apart).upper() <= radius:
                return factor
        moved = far_apart(after, now).upper()
        is_shared = len(self.rules) == 1 and self.batch == len(self.x)
        is_shared = is_shared and moved < SHORT and not {*KINKED} & {*self.activations}
        radius = (apart + (SHARED_STEPS * moved if is_shared else ZERO)).upper()
        factor = expansion(self, now, rule, passed, radius)
        self.nearby = (now, radius, factor) if is_shared else None
        return factor

    def stepped(self, state: State, step: int) -> tuple[State, Step, Pass]:
        """Return the state after a step, its rules, and what its gradient was made of."""
        rows = [(step * self.batch + place) % len(self.x) for place in range(self.batch)]
        rule, weights = self.rules[step if len(self.rules) > 1 else 0], state["weights"]
        outputs, layers = self.forward(weights, matrix([self.x[row] for row in rows]))
        slopes = [self.slope(p, self.y[row]) for p, row in zipped(outputs[-1].tolist(), rows)]
        if self.rates is not None:
            slopes = [[s * self.rates[row] for s in part] for part, row in zipped(slopes, rows)]
        self.note_kinks(layers, rows, step)
        deltas, backs = self.backward(weights, layers, matrix(slopes))
        after = [
            rule.applied(
                j,
                delta.transpose() * layer["inputs"] * self.share,  # the gradient
                {name: state[name][j] for name in self.names},
                self.projections[j],
            )
            for j, (delta, layer) in enumerate(zipped(deltas, layers))
        ]
        found = {name: [part[name] for part in after] for name in self.names}
        return found, rule, (layers, deltas, backs)

    def with_bias(self, outputs: arb_mat) -> arb_mat:
        return matrix([row + self.bias for row in outputs.tolist()]) if self.bias else outputs

    def without_bias(self, weights: arb_mat) -> arb_mat:
        return matrix([row[:-1] for row in weights.tolist()]) if self.bias else weights

    def forward(self, weights: list[arb_mat], x: arb_mat) -> tuple[list[arb_mat], list[Data]]:
        """Return the outputs of all layers from the input on, and what going back needs of each
        layer.
        """
        outputs, layers = [x], list[Data]()
        for j, (by, function) in enumerate(zipped(weights, self.functions), 1):
            inputs, scales = self.with_bias(outputs[-1]), None
            z = inputs * by.transpose()
            if j in self.norms:
                z, scales = normalised(z, self.norm_eps)
            values, slopes = function(z.entries())
            outputs.append(arb_mat(z.nrows(), z.ncols(), values))
            for source in self.sources[j]:
                outputs[-1] += outputs[source]
            layers.append({"inputs": inputs, "z": z, "slopes": slopes, "scales": scales})
        return outputs, layers

    def backward(
        self, weights: list[arb_mat], layers: list[Data], slopes: arb_mat
    ) -> tuple[list[arb_mat], list[arb_mat]]:
        """Return the slopes in every layer's preactivations and in its outputs, from those in the
        last.
        """
        back, deltas = {len(layers): slopes}, [slopes] * len(layers)
        for j in range(len(layers), 0, -1):
            layer, upstream = layers[j - 1], back[j]
            products = [a * b for a, b in zipped(layer["slopes"], upstream.entries())]
            delta = arb_mat(upstream.nrows(), upstream.ncols(), products)
            if layer["scales"] is not None:
                delta = back_through_norm(delta, layer["z"], layer["scales"])
            deltas[j - 1] = delta
            for source in self.sources[j]:
                back[source] = back[source] + upstream if source in back else upstream
            if j > 1:
                passed = delta * self.without_bias(weights[j - 1])
                back[j - 1] = passed + back[j - 1] if j - 1 in back else passed
        return deltas, [back[j] for j in range(1, len(layers) + 1)]

    def note_kinks(self, layers: list[Data], rows: list[int], step: int) -> None:
        """Remember where it is not known on which side of a kink of its activation a unit is."""
        for j, (layer, knots) in enumerate(zipped(layers, self.knots), 1):
            for place, z in enumerate(layer["z"].entries() if knots else ()):
                if not all(z <= knot or z > knot for knot in knots):
                    example, unit = divmod(place, self.widths[j])
                    self.kinks.append((step + 1, j, rows[example], unit))


def normalised(z: arb_mat, eps: arb) -> tuple[arb_mat, Row]:
    """(z - mean z) / sqrt(var z + eps) in every row, and the factors."""
    centred = [[entry - middle for entry in row] for row in z.tolist() for middle in [mean(row)]]
    scales = [(mean([entry * entry for entry in row]) + eps).rsqrt() for row in centred]
    return matrix([[s * entry for entry in row] for row, s in zipped(centred, scales)]), scales


def back_through_norm(delta: arb_mat, z: arb_mat, scales: Row) -> arb_mat:
    """c (g - mean g - z mean(g z)) in every row, z normalised by the factor c."""
    found = list[Row]()
    for row, units, scale in zipped(delta.tolist(), z.tolist(), scales):
        centred = [g - middle for middle in [mean(row)] for g in row]
        shared = mean([g * unit for g, unit in zipped(centred, units)])
        found.append([scale * (g - shared * unit) for g, unit in zipped(centred, units)])
    return matrix(found)


# Long runs of plain steps
#
# Balls around every weight forget that their errors belong together: each step makes them wider by
# a bit or more, though descent itself hardly expands. For plain steps w' = clip(a w - e gradient)
# there is a better way. Follow one exact point beside exact descent, and bound their distance r in
# the 2-norm: a step from the point itself is only rounded, and turns a distance r into at most G r,
# where G bounds the norm of the derivative of a step at all weights within r of the point:
#
#     a I - e (A + R),  A = share sum_i J_i^T l'' J_i,  R = share sum_i u_i p_i''
#
# with the first and second derivatives J_i and p_i'' of the predictions p_i in the weights, and the
# slope u_i and the curvature l'' of the loss. The loss is convex, so A has eigenvalues from 0 to
# some L, and |a I - e A| <= max(|a|, |a - e L|): no expansion unless e L > 2. R vanishes with the
# slopes of the loss. A clip, or another projection onto a convex set, expands nothing.
#
# Both are bounded layer by layer. Let the matrices V_k change by amounts of Frobenius norms d_k.
# The rows below bound what that does, as sums of coefficient times d_k: alpha_j to the
# preactivation z_j, beta_j to the output p_j, tau_j to the slope t_j in p_j, sigma_j to the slope
# s_j = r'(z_j) t_j in z_j, with K >= |r'| and B >= |r''|:
#
#     alpha_j = |V_j| beta_{j-1} + |q_j| at k = j,        beta_j = K alpha_j,    q_j the inputs
#     sigma_j = B max|t_j| alpha_j + K tau_j,             tau_{j-1} = |V_j| sigma_j + |s_j| at k = j
#     the gradient s_j q_j^T changes by at most           |q_j| sigma_j + |s_j| beta_{j-1}

SUPREMA = {  # upper bounds on |r'| and |r''|
    "identity": (1.0, 0.0),
    "relu": (1.0, 0.0),
    "leaky_relu": (1.0, 0.0),
    "tanh": (1.0, 0.77),
    "sigmoid": (0.25, 0.0963),
    "silu": (1.1, 0.5),
    "gelu": (1.13, 0.798),
    "softplus": (1.0, 0.25),
}


SHORT, SHARED_STEPS = 0.01, 4  # steps of at most this length share a factor, so many of them


def sizes(part: arb_mat) -> list[Row]:
    """Upper bounds on the absolute values of all entries."""
    entries, wide = [entry.abs_upper() for entry in part.entries()], part.ncols()
    return [entries[place : place + wide] for place in range(0, len(entries), wide)]


def length(entries: Iterable[arb]) -> arb:
    row = list(entries)
    return sum(map(arb.__mul__, row, row), ZERO).sqrt()


def far_apart(these: list[arb_mat], those: list[arb_mat]) -> arb:
    """Return the distance of two lists of matrices in the 2-norm."""
    gaps = (a - b for a, b in zipped(these, those))
    return length(entry for gap in gaps for entry in gap.entries())


def spectral(part: arb_mat) -> arb:
    """Return an upper bound on the largest singular value: the eighth root of the sum of eighth
    powers.
    """
    other = part.transpose()
    square = part * other if part.nrows() < part.ncols() else other * part
    return length(entry for row in sizes(square * square) for entry in row).root(4)


def expansion(
    network: Network, weights: list[arb_mat], rule: Rule, passed: Pass, radius: arb
) -> arb:
    """Return the factor G of a step from `weights`, within `radius` of them."""
    layers, depth, r = passed[0], len(weights), radius
    is_known = {*network.activations} <= {*SUPREMA} and network.curvature < inf
    require(is_known, "the method norm needs activations and losses whose curvature is known")
    slope_bounds, bend_bounds = zip(*(SUPREMA[name] for name in network.activations), strict=True)
    norms = [spectral(network.without_bias(by)) + r for by in weights]
    curvature = arb(network.curvature) * max(network.rates or [ONE])
    n_examples, n_outputs = passed[1][-1].nrows(), passed[1][-1].ncols()
    unit_rows = [[ONE if k == o else ZERO for k in range(n_outputs)] for o in range(n_outputs)]
    jacobians = (network.backward(weights, layers, matrix([u] * n_examples)) for u in unit_rows)

    # |q_j|, and |s_j| and max|t_j| of the loss and of every output, by layer and example.
    lengths = [list(map(length, sizes(layer["inputs"]))) for layer in layers]
    passes = [
        (
            [list(map(length, sizes(part))) for part in slopes_in_z],
            [list(map(max, sizes(part))) for part in slopes_in_outputs],
        )
        for slopes_in_z, slopes_in_outputs in chain([passed[1:]], jacobians)
    ]
    changes = [[ZERO] * depth for _ in range(depth)]  # of the gradients, by R, over all examples
    steepest = [[ZERO] * depth for _ in range(n_outputs)]  # the largest |s_j| of every output
    blurs = [ZERO] * depth  # the largest change of q_j
    for example in range(n_examples):
        inputs, alphas, betas = Row(), list[Row](), [[ZERO] * depth]
        for j in range(depth):
            blur = length(betas[j]) * r
            blurs[j] = blurs[j].max(blur)
            inputs.append(lengths[j][example] + blur)
            alphas.append([norms[j] * beta for beta in betas[j]])
            alphas[j][j] += inputs[j]
            betas.append([slope_bounds[j] * alpha for alpha in alphas[j]])
            if network.activations[j] in KINKED:
                units = range(network.widths[j + 1])
                nearest = min(layers[j]["z"][example, unit].abs_lower() for unit in units)
                require(nearest > length(alphas[j]) * r, "a kink is too near for norms")

        def sigma_of(j: int, up: arb, tau: Row) -> Row:
            pairs = zipped(alphas[j], tau)  # noqa: B023 - it is used in this round of the loop only
            return [bend_bounds[j] * up * alpha + slope_bounds[j] * t for alpha, t in pairs]

        for number_of_pass, (in_z, in_outputs) in enumerate(passes):
            # How large the slopes are within r. Those in the last outputs change with the slope of
            # the loss, and do not for the Jacobians.
            tau = [ZERO if number_of_pass else curvature * beta for beta in betas[depth]]
            slopes, ups = [ZERO] * depth, [ZERO] * depth
            for j in reversed(range(depth)):
                ups[j] = in_outputs[j][example] + length(tau) * r
                sigma = sigma_of(j, ups[j], tau)
                slopes[j] = in_z[j][example] + length(sigma) * r
                tau = [norms[j] * entry for entry in sigma]
                tau[j] += slopes[j]
            if number_of_pass:
                of_output = steepest[number_of_pass - 1]
                of_output[:] = map(arb.max, of_output, slopes)
                continue
            tau = [ZERO] * depth  # R leaves the slope of the loss as it is
            for j in reversed(range(depth)):
                sigma = sigma_of(j, ups[j], tau)
                for k in range(depth):
                    changes[j][k] += inputs[j] * sigma[k] + slopes[j] * betas[j][k]
                tau = [norms[j] * entry for entry in sigma]
                tau[j] += slopes[j]

    rest = network.share * length(entry for row in changes for entry in row)
    root = arb(n_examples).sqrt()
    spreads = [spectral(layer["inputs"]) + root * blur for layer, blur in zipped(layers, blurs)]
    reach = length(s * spread for row in steepest for s, spread in zipped(row, spreads))
    convex = network.share * curvature * reach * reach
    kept, moved = (rule.weights.get(name, ZERO) for name in ("weights", "gradient"))
    require(moved <= ZERO, "a step goes uphill")
    kept += moved * rule.decay
    return (abs(kept).max(abs(kept + moved * convex)) - moved * rest).upper()


# Linear models


class Momentum:
    """The share of the last change that a step adds, and that its gradient looks ahead."""

    FIELDS = "momenta nesterov"

    def __init__(self, of: Data) -> None:
        self.shares = [number(share) for share in of["momenta"]]
        self.nesterov = switch(of["nesterov"])
        require(bool(self.shares) or not self.nesterov, "it looks ahead without momentum")

    def moved(self, now: arb_mat, before: arb_mat, step: int) -> tuple[arb_mat, arb_mat]:
        """Return where the step starts, and where its gradient is taken."""
        if not self.shares:
            return now, now
        start = now + (now - before) * self.shares[step if len(self.shares) > 1 else 0]
        return start, start if self.nesterov else now


class Linear:
    """w <- clip(S(w - step_size * (gradient + l2 * w))), S the soft threshold by step_size * l1.

    The first w is moved by momentum, if there is any, and both with Nesterov's. The intercept, the
    last entry, has no penalty.
    """

    FIELDS = "link intercept reduction step_size l2 l1 box " + Momentum.FIELDS
    kinks = ()

    def __init__(self, of: Data, x: list[Row], y: list[Row], queries: list[Row], bits: int) -> None:
        one = [ONE] * switch(of["intercept"])
        self.x, self.y = matrix([row + one for row in x]), matrix(y)
        self.queries = matrix([row + one for row in queries])
        self.mean, self.names = link_named(of["link"]), ["weights"]
        self.share = {"mean": ONE / len(x), "sum": ONE}[of["reduction"]]
        self.size, l1, l2 = positive(of["step_size"]), number(of["l1"]), number(of["l2"])
        self.l2 = [l2] * len(x[0]) + [ZERO] * len(one)
        self.thresholds = [self.size * l1] * len(x[0]) + [ZERO] * len(one)
        self.box = None if of["box"] is None else positive(of["box"])
        self.momentum, self.shapes = Momentum(of), [(len(x[0]) + len(one), 1)]
        require(len(y[0]) == 1, "a linear model has one label for each example")
        require(l1 >= ZERO, "its l1 is negative")

    def start(self, numbers: Row) -> State:
        weights = arb_mat(len(numbers), 1, numbers)
        return {"weights": [weights], "before": [weights]}

    def numbers(self, state: State) -> Row:
        entries: Row = state["weights"][0].entries()
        return entries

    def predict(self, state: State) -> Row:
        return [self.mean(z) for z in (self.queries * state["weights"][0]).entries()]

    def step(self, state: State, step: int) -> State:
        start, point = self.momentum.moved(state["weights"][0], state["before"][0], step)
        left = entrywise(self.mean, self.x * point) - self.y
        gradient = (self.x.transpose() * left * self.share).entries()
        moved = [
            w - self.size * (g + l2 * at)
            for w, g, l2, at in zipped(start.entries(), gradient, self.l2, point.entries())
        ]
        pairs = [(v - by, -v - by) for v, by in zipped(moved, self.thresholds)]
        shrunk = [above.max(ZERO) - below.max(ZERO) for above, below in pairs]
        after = shrunk if self.box is None else [clip(self.box, v) for v in shrunk]
        return {"weights": [arb_mat(len(after), 1, after)], "before": state["weights"]}


# Kernel machines


def matern(square: arb, shape: float) -> arb:
    s = root_of(2 * arb(shape) * square)
    return {0.5: ONE, 1.5: 1 + s, 2.5: 1 + s + s * s / 3}[shape] * (-s).exp()


DEGREES = {float(degree): degree for degree in range(1, 33)}
OF_PRODUCT: dict[str, Callable[[arb, float], arb]] = {
    "linear": lambda t, shape: t,
    "relu": lambda t, shape: t.max(ZERO),
    "exp": lambda t, shape: t.exp(),
    "softmax": lambda t, shape: t,  # `head` takes the softmax of each row
    "polynomial": lambda t, shape: (1 + t) ** DEGREES[shape],
}
OF_DIFFERENCES: dict[str, Callable[[Row, float], arb]] = {
    "rbf": lambda gaps, shape: (-sum((g * g for g in gaps), ZERO) / 2).exp(),
    "laplace": lambda gaps, shape: (-sum(map(abs, gaps), ZERO)).exp(),
    "matern": lambda gaps, shape: matern(sum((g * g for g in gaps), ZERO), shape),
}


class Function:
    """f <- f + step_size * (K + noise I) (y - f), its values at all examples and queries.

    The first f is moved by momentum, if there is any, and both with Nesterov's. With transforms A,
    all points x move to x + A sum_j K(x, x_j) x_j after a step.
    """

    FIELDS = "heads step_sizes noise transforms " + Momentum.FIELDS
    kinks = ()

    def __init__(self, of: Data, x: list[Row], y: list[Row], queries: list[Row], bits: int) -> None:
        moves = [head["transform"] for heads in of["heads"] for head in heads] + of["transforms"]
        require_memory(len(x + queries) * max(len(x) + len(move) for move in moves), bits)
        self.heads, self.y, self.n = of["heads"], matrix(y), len(x)
        self.points = matrix(x + queries)
        self.kernel: arb_mat | None = None
        self.sizes, self.noise = [positive(size) for size in of["step_sizes"]], number(of["noise"])
        self.moves = [matrix(rows_of(part)).transpose() for part in of["transforms"]]
        self.momentum, self.shapes = Momentum(of), [(len(x + queries), len(y[0]))]
        self.names = ["weights"]

    def start(self, numbers: Row) -> State:
        values = arb_mat(*self.shapes[0], numbers)
        return {"weights": [values], "before": [values], "points": [self.points]}

    def numbers(self, state: State) -> Row:
        entries: Row = state["weights"][0].entries()
        return entries

    def predict(self, state: State) -> Row:
        return self.numbers(state)[self.n * self.y.ncols() :]

    def step(self, state: State, step: int) -> State:
        points = state["points"][0]
        kernel = self.kernel
        if kernel is None or self.moves or len(self.heads) > 1:
            heads = self.heads[step if len(self.heads) > 1 else 0]
            nothing = arb_mat(points.nrows(), self.n)
            kernel = self.kernel = sum((self.head(points, head) for head in heads), nothing)
        start, at = self.momentum.moved(state["weights"][0], state["before"][0], step)
        left = self.y - self.examples(at)
        noise = (left * self.noise).tolist()
        noise += [[ZERO] * left.ncols()] * (points.nrows() - self.n)
        size = self.sizes[step if len(self.sizes) > 1 else 0]
        after = start + (kernel * left + matrix(noise)) * size
        if self.moves:
            move = self.moves[step if len(self.moves) > 1 else 0]
            points = points + kernel * self.examples(points) * move
        return {"weights": [after], "before": state["weights"], "points": [points]}

    def examples(self, tokens: arb_mat) -> arb_mat:
        return matrix(tokens.tolist()[: self.n])

    def head(self, points: arb_mat, of: Data) -> arb_mat:
        """weight * K(G u, H w) of all points u and all examples w."""
        fields(of, "kernel transform key_transform weight shape", "a head")
        form, kernel = float(number(of["shape"])), of["kernel"]
        of_keys = of["transform"] if of["key_transform"] is None else of["key_transform"]
        left = points * matrix(rows_of(of["transform"])).transpose()
        right = self.examples(points) * matrix(rows_of(of_keys)).transpose()
        if kernel in OF_PRODUCT:
            found = entrywise(lambda t: OF_PRODUCT[kernel](t, form), left * right.transpose())
        else:
            value, keys = OF_DIFFERENCES[kernel], right.tolist()
            rows = [
                [value([a - b for a, b in zipped(u, w)], form) for w in keys] for u in left.tolist()
            ]
            found = matrix(rows)
        if kernel == "softmax":
            found = matrix([softmax(row) for row in found.tolist()])
        return found * number(of["weight"])


# The check

KINDS: dict[str, Any] = {"network": Network, "linear": Linear, "function": Function}


class Descent:
    """Exact training in real numbers, enclosed step by step in balls of up to `bits` bits.

    By the method "balls" every number is a ball. By the method "norm", for plain steps, an exact
    point is followed instead, and how far apart from it exact training may be in the 2-norm.
    """

    def __init__(
        self, problem: Data, data: Data, n_steps: int, bits: int, method: str = "balls"
    ) -> None:
        kind = KINDS[problem["kind"]]
        fields(problem, "kind " + kind.FIELDS, "the problem")
        fields(data, "x y queries rates initial", "the data")
        for name in ("rules", "momenta", "step_sizes", "heads", "transforms"):
            one_for_all = len(problem.get(name, [])) <= 1
            require(one_for_all or len(problem[name]) == n_steps, f"{name} do not fit the steps")
        x, y, queries = (rows_of(data[name]) for name in ("x", "y", "queries"))
        require(len(x) == len(y) > 0, f"it has {len(x)} examples and {len(y)} labels")
        with ctx.workprec(bits):
            self.trained = kind(problem, x, y, queries, bits)
        if data["rates"] is not None:
            require(kind is Network, "only the examples of a network have rates")
            self.trained.rates = [number(rate) for rate in data["rates"]]
            n_rates = len(self.trained.rates)
            require(n_rates == len(x), f"it has {len(x)} examples and {n_rates} rates")
            require(min(self.trained.rates) >= ZERO, "a rate is negative")
        self.bits, self.n_done, self.n_queries = bits, 0, len(queries)
        initial, shapes = [number(entry) for entry in data["initial"]], self.trained.shapes
        n_numbers = len(self.trained.names) * sum(high * wide for high, wide in shapes)
        require(len(initial) == n_numbers > 0, "its start does not fit its problem")
        self.state: State = self.trained.start(initial)
        self.precision = bits
        self.apart = {"norm": dict.fromkeys(self.trained.names, ZERO), "balls": None}[method]
        require(self.apart is None or kind is Network, "the method norm is for networks")

    def step(self) -> Row:
        """Return the numbers after one more step.

        Bits far below the radius of the widest ball are of no use: precision falls as radii grow.
        """
        with ctx.workprec(self.precision):
            if self.apart is None:
                self.state = self.trained.step(self.state, self.n_done)
            else:
                after = self.trained.step_beside(self.state, self.n_done, self.apart)
                self.state, self.apart = after
            self.n_done += 1
            numbers: Row = self.trained.numbers(self.enclosure)
        accuracy = min(ball.rel_one_accuracy_bits() for ball in numbers)
        self.precision = max(LEAST_BITS, min(self.bits, accuracy + SPARE_BITS))
        return numbers

    @property
    def enclosure(self) -> State:
        """The state in balls that hold exact training."""
        if self.apart is None:
            return self.state
        found = State()
        for name, parts in self.state.items():
            blur = arb(0, self.apart[name])
            found[name] = [entrywise(lambda entry, by=blur: entry + by, part) for part in parts]
        return found

    def predictions(self) -> Row:
        with ctx.workprec(self.precision):
            found: Row = self.trained.predict(self.enclosure) if self.n_queries else []
        return found


def distance(balls: Row, numbers: list[float]) -> arb:
    """Return largest distance that any number can have from what its ball encloses, as a ball."""
    with ctx.workprec(LEAST_BITS):
        gaps = [(ball - number).abs_upper() for ball, number in zipped(balls, numbers)]
    return max(gaps, default=ZERO) if all(gap.is_finite() for gap in gaps) else arb.pos_inf()


def claim_of(certificate: Data) -> str:
    """Return what a certificate proves, in a sentence."""
    problem, data = certificate["problem"], certificate["data"]
    steps, ends = len(certificate["steps"]), float.fromhex(certificate["distances"][-1])
    predictions = ""
    if certificate["predictions"]:
        most = float.fromhex(certificate["prediction_distance"])
        predictions = f", and its predictions at the end within {most}"
    return (
        f"After each of {steps} steps every number of the run is within its stated distance of "
        f"exact descent in real numbers, on the same data from the same start: at the end within "
        f"{ends}{predictions}. What is trained is {in_words(problem)}, on {len(data['x'])} "
        "examples, by the rules in the file."
    )


def in_words(problem: Data) -> str:
    """Return what is trained."""
    if problem["kind"] == "linear":
        return f"a linear model with {problem['link']} link"
    if problem["kind"] == "function":
        kernels = dict.fromkeys(head["kernel"] for heads in problem["heads"] for head in heads)
        return f"a function in the space of the {', '.join(kernels)} kernel"
    widths, output = "-".join(map(str, problem["widths"])), problem["output_activation"]
    outputs = "" if output == "identity" else f" with {output} outputs"
    return f"a {widths} {problem['activation']} network{outputs} on the {problem['loss']} loss"


def is_table(path: Path, data: Data, form: str) -> bool:
    """Return whether a CSV file holds the data. Columns may stand in any order."""
    lines = [line for line in csv.reader(path.read_text("utf-8-sig").splitlines()) if any(line)]
    start = 0 if lines[0][0].strip().lstrip("+-.")[:1].isdigit() else 1  # below the header
    table = [array(form, map(float, line)) for line in lines[start:]]
    rows = [[float.fromhex(entry) for entry in x + y] for x, y in zipped(data["x"], data["y"])]
    return sorted(zipped(*rows)) == sorted(zipped(*table))


def check(text: bytes) -> Data:
    """Return the certificate that `text` is, if all that it claims is true."""
    certificate: Data = json.loads(
        text, object_pairs_hook=once, parse_float=no_real, parse_constant=no_real
    )
    require(
        count(certificate["version"]) == VERSION,
        f"it has version {certificate['version']}, and this program reads version {VERSION} only",
    )
    fields(certificate, NAMES, "it")
    unsealed = text.replace(certificate["sha256"].encode(), b"", 1)
    require(hashlib.sha256(unsealed).hexdigest() == certificate["sha256"], "its seal is broken")
    fields(certificate["transformer"], "construction backend dtype", "the transformer")
    for digest in (certificate["file_sha256"], certificate["data_sha256"]):
        require(
            digest is None or len(bytes.fromhex(digest)) == 32,
            "a SHA-256 does not have 64 hexadecimal digits",
        )
    steps, allowed, bits = (certificate[name] for name in ("steps", "distances", "bits"))
    is_known = LEAST_BITS <= count(bits) <= MOST_BITS
    require(is_known, f"it asks for {bits} bits, and {LEAST_BITS} to {MOST_BITS} are allowed")
    sentence = claim_of(certificate)
    require(certificate["claim"] == sentence, f"it claims more or less than this: {sentence}")
    problem, data, method = (certificate[name] for name in ("problem", "data", "method"))
    descent = Descent(problem, data, len(steps), bits, method)
    for step, (given, limit) in enumerate(zipped(steps, map(number, allowed)), 1):
        is_near = distance(descent.step(), plain(given)) <= limit
        require(is_near, f"step {step} is not as close to exact descent as it claims")
    predicted, most = (certificate[name] for name in ("predictions", "prediction_distance"))
    shape = [len(data["y"][0])] * len(data["queries"])
    fits = type(predicted) is list and [len(row) for row in predicted] == shape
    require(fits, "its predictions do not fit its queries")
    require(
        (most is None) == (not predicted),
        "it has predictions without a distance, or a distance without them",
    )
    if predicted:
        given = plain([entry for row in predicted for entry in row])
        is_near = distance(descent.predictions(), given) <= number(most)
        require(is_near, "a prediction is not as close to that of exact descent as it claims")
    return certificate


def plain(texts: list[str]) -> list[float]:
    return [float(number(text)) for text in texts]


def read(path: Path) -> bytes:
    size = path.stat().st_size
    require(size <= MOST_BYTES, f"it has {size} bytes, and at most {MOST_BYTES} are read")
    return path.read_bytes()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="icgd-check", description="Check a certificate of icgd.")
    parser.add_argument("certificate", type=Path, help="the certificate, a JSON file")
    for name in ("file", "data"):
        parser.add_argument(f"--{name}", type=Path, help=f"the {name} that it must be about")
    options = parser.parse_args(arguments)
    try:
        certificate = check(read(options.certificate))
        for name, path in (("file", options.file), ("data", options.data)):
            found = None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
            is_same = found in (None, certificate[f"{name}_sha256"])
            require(is_same, f"{path} is not the {name} that it is about")
        form = {"float64": "d", "float32": "f"}[certificate["transformer"]["dtype"]]
        is_other = options.data and not is_table(options.data, certificate["data"], form)
        require(not is_other, f"{options.data} is other data")
    except BaseException as error:  # whatever is wrong with it, it is not accepted
        why = error if isinstance(error, RefusedError) else f"it cannot be checked: {error!r}"
        print(ascii(f"Refused: {options.certificate}: {why}.")[1:-1])  # one line, whatever it holds
        return 1
    print(ascii(f"Accepted: {certificate['claim']}")[1:-1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
