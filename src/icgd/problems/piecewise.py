"""User-defined functions: pieces between knots, each an expression.

Everything that proofs need follows from the text: the extrema, the range and the slopes on any
interval, and the rounding of values. Ball arithmetic proves these properties (`balls.py`). It is
imported when a proof first needs it; loading and executing compiled runs does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from importlib import import_module
from itertools import accumulate, pairwise
from math import inf, nextafter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from icgd.errors import SettingError, UnknownNameError, quoted
from icgd.problems.expressions import (
    MOST_CANONICAL,
    NUMBER,
    PRODUCT,
    ZERO,
    Node,
    Step,
    X,
    add,
    call,
    computed,
    derivative,
    fraction_text,
    kinks,
    multiply,
    number,
    on_piece,
    parse,
    straight_line,
    substitute,
    text,
)
from icgd.problems.scalar import EXACT, FunctionRounding, Kind, ScalarFunction
from icgd.problems.settings import as_float, entries, finite, is_row
from icgd.shapes import Values

MOST_PIECES = 64
"""The largest number of pieces of a function."""

VERSION = 1
"""The version of the grammar of expressions and of its functions."""

MODERATE = 10.0
"""A function whose absolute value stays below this on its domain needs no gate."""

LOW, HIGH = -64.0, 64.0
"""The default domain of a function."""


@cache
def balls() -> Any:
    """Import and return `balls.py`. It loads Arb, which runs do not need."""
    return import_module("icgd.problems.balls")


class _Turns(NamedTuple):
    """The intervals, in order, in which a function may have an extremum or a jump.

    Between them it is monotone. `least` and `largest` are sparse tables for range queries: entry
    [k, i] is the extreme over intervals i to i + 2^k - 1, so two entries cover any range.
    """

    left: Tensor
    right: Tensor
    least: Tensor
    largest: Tensor


@dataclass(frozen=True, eq=False)
class _Tower:
    """The pieces of a function with all their derivatives, shared by a function's derivatives."""

    knots: tuple[Fraction, ...]
    pieces: tuple[Node, ...]
    low: float
    high: float
    called: str = ""
    source: Function | None = None
    """A function that differs from this one by steps, and whose rounding error is included."""

    @property
    def name(self) -> str:
        """The name `called`, if given, otherwise the definition."""
        return self.called or self.definition

    @cached_property
    def definition(self) -> str:
        """The text of the pieces, their knots and the domain, which defines the function."""
        texts = [text(piece) for piece in self.pieces]
        texts[:-1] = [
            f"{piece} up to {fraction_text(knot)}"
            for piece, knot in zip(texts, self.knots, strict=False)
        ]
        return with_domain(", ".join(texts), self.low, self.high)

    @cached_property
    def _orders(self) -> list[tuple[Node, ...]]:
        return [self.pieces]

    def order(self, order: int) -> tuple[Node, ...]:
        """Return the pieces of a derivative."""
        while len(self._orders) <= order:
            self._orders.append(tuple(derivative(piece) for piece in self._orders[-1]))
        return self._orders[order]

    @cached_property
    def _lines(self) -> dict[tuple[int, int], tuple[Step, ...]]:
        return {}

    def line(self, order: int, piece: int) -> tuple[Step, ...]:
        """Return a piece of a derivative as a straight-line program."""
        key = order, piece
        if key not in self._lines:
            self._lines[key] = straight_line(self.order(order)[piece])
        return self._lines[key]


def _ends_of(knots: list[Fraction], low: float, high: float) -> list[Fraction]:
    """Return the ends of all pieces; raise unless they increase, also rounded to floats."""
    ends = [Fraction(low), *knots, Fraction(high)]
    if not all(float(before) < float(after) for before, after in pairwise(ends)):
        raise SettingError(
            f"knots must increase and lie inside the domain [{low:g}, {high:g}], got "
            f"{', '.join(f'{float(knot):.17g}' for knot in knots)}."
        )
    return ends


def _on_pieces(nodes: list[Node], knots: list[Fraction], low: float, high: float) -> _Tower:
    """Return the tower of expressions between knots; knots with a jump are rounded to floats."""
    ends = _ends_of(knots, low, high)
    middles = [(left + right) / 2 for left, right in pairwise(ends)]
    pieces = tuple(on_piece(*pair) for pair in zip(nodes, middles, strict=True))
    jumps = Function._of(_Tower(tuple(knots), pieces, low, high)).jumps
    rounded = (
        Fraction(float(knot)) if jump else knot for knot, jump in zip(knots, jumps, strict=True)
    )
    return _Tower(tuple(rounded), pieces, low, high)


class Function(ScalarFunction):
    """A function of one variable x defined by a text, accepted wherever a function's name is.

    An expression has numbers, x, pi, the operators + - * / ** and the functions abs, asinh, atan,
    cos, cosh, erf, erfc, exp, expm1, log, log1p, sech2, sigmoid, sign, sin, sinh, softplus, sqrt,
    tan and tanh. Exponents are integers or half-integers. Decimals are exact.

    Two functions are equal if their simplified texts, their knots and their domains are equal.

    Args:
        label: the name of the function in messages.
        expression: the text, such as "x * tanh(log(1 + exp(x)))".
        low: the lower end of the domain, on which the function and its slope must be finite.
        high: the upper end of the domain.

    Raises:
        SettingError: if the text is not such an expression, or is not finite on the domain.
        UnknownNameError: if a name in the text is unknown.

    Example:
        >>> import icgd
        >>> swish = icgd.Function("swish", "x / (1 + exp(-x))")
        >>> swish
        Function('swish', 'x*sigmoid(x) on -64 to 64')
        >>> swish == icgd.Function("silu", "x * sigmoid(x)")
        True
    """

    label: str

    def __init__(
        self, label: str, expression: str, low: float | int = LOW, high: float | int = HIGH
    ) -> None:
        self._define(_checked_label(label), parse(expression), *domain_of(low, high))

    def _define(self, label: str, node: Node, low: float, high: float) -> None:
        cuts = sorted(cut for cut in kinks(node) if low < cut < high)
        self._set(label, _on_pieces([node] * (len(cuts) + 1), cuts, low, high))
        self._check()

    @classmethod
    def _of_tree(cls, node: Node, low: float, high: float, label: str = "") -> Function:
        """Return the function of a tree, whose text may be longer than `parse` allows users."""
        function = cls.__new__(cls)
        function._define(label, node, low, high)
        return function

    @classmethod
    def pieces(
        cls,
        knots: Any,
        of: Any,
        label: str = "",
        low: float | int = LOW,
        high: float | int = HIGH,
    ) -> Function:
        """Return a function defined by pieces: `of[0]` up to the first knot, then `of[1]`, ...

        Args:
            knots: the points where one piece ends and the next begins; each belongs to the piece
                to its left.
            of: the expressions, one more than knots.
            label: the name of the function in messages.
            low: the lower end of the domain.
            high: the upper end of the domain.

        Returns:
            The function.

        Raises:
            SettingError: if knots do not increase, or if a text is not an expression or not finite
                on its piece.
            UnknownNameError: if a name in a text is unknown.

        Example:
            >>> import icgd
            >>> relu6 = icgd.Function.pieces(knots=(0, 6), of=("0", "x", "6"), label="relu6")
            >>> relu6.kind, relu6.knots
            ('kinked', (0.0, 6.0))
        """
        return cls._of_pieces(knots, of, label, low, high)

    @classmethod
    def _of_pieces(
        cls,
        knots: Any,
        of: Any,
        label: str,
        low: float,
        high: float,
        *,
        is_canonical: bool = False,
    ) -> Function:
        low, high = domain_of(low, high)
        if not is_row(knots) or not is_row(of):
            raise SettingError(
                "knots and of must be sequences, such as knots=(0, 6), of=('0', 'x', '6'), got "
                f"{quoted(knots)} and {quoted(of)}."
            )
        exact_knots = [_knot(knot) for knot in entries(knots)]
        nodes = [parse(piece, is_canonical=is_canonical) for piece in entries(of)]
        if len(nodes) != len(exact_knots) + 1 or len(nodes) > MOST_PIECES:
            raise SettingError(
                f"of has {len(nodes)} pieces for {len(exact_knots)} knots; expected one more piece "
                f"than knots, and at most {MOST_PIECES}."
            )
        ends = _ends_of(exact_knots, low, high)
        for node, (left, right) in zip(nodes, pairwise(ends), strict=True):
            if inner := [kink for kink in kinks(node) if left < kink < right]:
                raise SettingError(
                    f"{text(node)} has a kink at {float(inner[0]):g}, inside its piece. Add this "
                    "point to the knots."
                )
        tower = _on_pieces(nodes, exact_knots, low, high)
        function = cls._of(tower, label=_checked_label(label))
        function._check()
        return function

    def to_data(self) -> dict[str, Any]:
        """Return the definition as data, such as a table of a TOML file.

        Returns:
            A dictionary that `from_data` reads.

        Example:
            >>> import icgd
            >>> icgd.Function("swish", "x / (1 + exp(-x))").to_data()
            {'version': 1, 'of': ['x*sigmoid(x)'], 'knots': [], 'low': -64.0, 'high': 64.0}
        """
        return {
            "version": VERSION,
            "of": [text(piece) for piece in self._tower.pieces],
            "knots": [fraction_text(knot) for knot in self._tower.knots],
            "low": self.low,
            "high": self.high,
        }

    @classmethod
    def from_data(cls, name: str, data: Mapping[str, Any]) -> Function:
        """Return the function that a table defines.

        Args:
            name: the name of the function in messages.
            data: `of`, the text of each piece, and optionally `knots`, `low`, `high`, `version`.

        Returns:
            The function.

        Raises:
            SettingError: if `data` is not such a table.
            UnknownNameError: if a key, or a name in a text, is unknown.

        Example:
            >>> import icgd
            >>> icgd.Function.from_data("relu6", {"of": ["0", "x", "6"], "knots": [0, 6]}).kind
            'kinked'
        """
        has_rows = isinstance(data, Mapping) and is_row(data.get("of"))
        if not has_rows or not is_row(data.get("knots", ())):
            raise SettingError(
                f"functions.{name} must have a list of formulas and the knots between them, such "
                f'as of = ["0", "x"] and knots = [0], got {quoted(data)}.'
            )
        known = ("of", "knots", "low", "high", "version")
        for key in data:
            if key not in known:
                raise UnknownNameError.of("key", key, known=known, where=f" in functions.{name}")
        if data.get("version", VERSION) != VERSION:
            raise SettingError(
                f"functions.{name} has version {quoted(data['version'])}; this icgd reads version "
                f"{VERSION}."
            )
        of, knots = data["of"], data.get("knots", ())
        low, high = data.get("low", LOW), data.get("high", HIGH)
        if not knots and is_row(of) and len(entries(of)) == 1:
            node = parse(entries(of)[0], is_canonical=True)
            return cls._of_tree(node, *domain_of(low, high), _checked_label(name))
        return cls._of_pieces(knots, of, name, low, high, is_canonical=True)

    @classmethod
    def _of(cls, tower: _Tower, order: int = 0, label: str = "") -> Function:
        function = cls.__new__(cls)
        function._set(label, tower, order)
        return function

    def _set(self, label: str, tower: _Tower, order: int = 0) -> None:
        self.label, self._tower, self._order = label, tower, order
        self.low, self.high = tower.low, tower.high
        self.knots = tuple(float(knot) for knot in tower.knots)

    @cached_property
    def name(self) -> str:  # type: ignore[override]
        """The text with a prime for each derivative; programs and files refer to it."""
        return self._tower.name + "'" * self._order

    @property
    def definition(self) -> str:
        """The text that defines the function, used in certificates."""
        return self._tower.definition

    def __repr__(self) -> str:
        return f"Function({self.label!r}, {self.name!r})"

    def __str__(self) -> str:
        return self.label or self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def written(self) -> Function:
        return self

    def has_pieces_of(self, other: ScalarFunction) -> bool:
        """Return whether another function has the same pieces and knots, whatever its domain.

        Args:
            other: the other function.

        Returns:
            Whether pieces and knots are equal.

        Example:
            >>> import icgd
            >>> narrow = icgd.Function("a", "sigmoid(x) * x", low=-2.0, high=2.0)
            >>> narrow.has_pieces_of(icgd.Function("b", "x / (1 + exp(-x))"))
            True
        """
        has_same_pieces = isinstance(other, Function) and self.nodes == other.nodes
        return has_same_pieces and self.knots == other.knots

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The trees of the pieces."""
        return self._tower.order(self._order)

    @cached_property
    def kind(self) -> Kind:  # type: ignore[override]
        """The kind: constants, continuous lines, one analytic piece, or other pieces."""
        slopes = self._tower.order(self._order + 1)
        if all(slope == ZERO for slope in slopes):
            return "step"
        curvatures = self._tower.order(self._order + 2)
        if all(curvature == ZERO for curvature in curvatures) and not any(self.jumps):
            return "kinked"
        return "pieces" if self.knots else "smooth"

    @cached_property
    def jumps(self) -> tuple[float, ...]:
        """The jump at every knot; 0 where the function is continuous."""
        sizes = []
        for knot, (left, right) in zip(self._tower.knots, pairwise(self.nodes), strict=True):
            place = Node(NUMBER, (), knot)
            try:
                ends = substitute(left, place), substitute(right, place)
            except SettingError:
                raise SettingError(
                    f"{self} is undefined at the knot {_shown(float(knot))}: a piece divides by 0 "
                    "there. Move the knot, or rewrite the piece."
                ) from None
            if all(end.kind == NUMBER for end in ends):
                sizes.append(float(ends[1].number - ends[0].number))
            else:
                gap = balls().meets(*ends)
                sizes.append(0.0 if gap is None else float(gap))
        return tuple(sizes)

    @cached_property
    def slopes(self) -> tuple[float, ...]:
        """The slopes of the pieces, if they are lines."""
        return self._constants(self._tower.order(self._order + 1))

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """The values of the pieces, if they are constants."""
        return self._constants(self.nodes)

    def _constants(self, nodes: tuple[Node, ...]) -> tuple[float, ...]:
        zero = torch.zeros((), dtype=torch.float64)
        return tuple(float(computed(straight_line(node), {"x": zero})) for node in nodes)

    # Values.

    def __call__(self, z: Values) -> Values:
        # Clamp the arguments to each piece, so that no piece overflows outside its interval.
        lines = [self._tower.line(self._order, piece) for piece in range(len(self.nodes))]
        if not self.knots:
            return computed(lines[0], {"x": z})
        value = computed(lines[0], {"x": z.clamp(max=self.knots[0])})
        for line, low, high in zip(lines[1:], self.knots, (*self.knots[1:], None), strict=True):
            value = torch.where(z > low, computed(line, {"x": z.clamp(min=low, max=high)}), value)
        return value

    def on_piece(self, piece: int, z: Values) -> Values:
        """Return the values of one piece at every entry of `z`, even beyond its knots.

        Args:
            piece: the number of the piece.
            z: arguments.

        Returns:
            A value for each argument.

        Example:
            >>> import icgd, torch
            >>> relu6 = icgd.Function.pieces((0, 6), ("0", "x", "6"))
            >>> relu6.on_piece(1, torch.tensor([-1.0, 7.0])).tolist()
            [-1.0, 7.0]
        """
        return computed(self._tower.line(self._order, piece), {"x": z})

    def is_line(self, piece: int) -> bool:
        """Return whether a piece is linear.

        Args:
            piece: the number of the piece.

        Returns:
            Whether its second derivative is 0.

        Example:
            >>> import icgd
            >>> icgd.Function("swish", "x * sigmoid(x)").is_line(0)
            False
        """
        return self._tower.order(self._order + 2)[piece] == ZERO

    def derivative(self) -> Function:
        return self._derivative

    @cached_property
    def _derivative(self) -> Function:
        return Function._of(self._tower, self._order + 1, self.label and self.label + "'")

    # Proved properties.

    def _exact_knots(self) -> tuple[Fraction, ...]:
        return self._tower.knots

    def ball(self, order: int, piece: int, ball: Any) -> Any:
        return balls().enclosed(self._tower.line(self._order + order, piece), {"x": ball})

    def complex_ball(self, piece: int, ball: Any) -> Any:
        line = self._tower.line(self._order, piece)
        return balls().enclosed(line, {"x": ball}, is_complex=True)

    @cached_property
    def _starts(self) -> tuple[float, ...]:
        """The smallest float beyond each knot: the rounded knot itself if it was rounded up."""
        return tuple(
            rounded if rounded > knot else nextafter(rounded, inf)
            for rounded, knot in zip(self.knots, self._tower.knots, strict=True)
        )

    @cached_property
    def _jumps_between_floats(self) -> bool:
        """Whether a knot with a jump is not a float, so that rounding may cross the jump."""
        rows = zip(self.knots, self._tower.knots, self.jumps, strict=True)
        return any(jump and rounded != knot for rounded, knot, jump in rows)

    @cached_property
    def _turns(self) -> _Turns:
        """The possible extrema and jumps, with the range of values at each.

        A jump has two entries: the knot itself, and the next float with the value from the right.
        """
        turns, tower, order, module = [], self._tower, self._order, balls()
        with module.precision(module.BITS):
            for piece, low, high in self.spans(self.low, self.high):
                if tower.order(order + 1)[piece] == ZERO:
                    continue
                lines = tuple(tower.line(order + more, piece) for more in range(3))
                brackets = module.brackets(lines, low, high)
                if brackets is None:
                    raise SettingError(
                        f"The range of {self} on [{float(low):g}, {float(high):g}] cannot be "
                        "found: it has too many extrema, or terms that cancel. Give a smaller "
                        "domain, or rewrite the function."
                    )
                turns += brackets
            for i, (knot, jump) in enumerate(zip(self.knots, self.jumps, strict=True)):
                exact_knot = module.exact(tower.knots[i])
                left, right = (self.ball(0, i + side, exact_knot) for side in (0, 1))
                if jump:
                    turns.append((knot, knot, *module.ends(left)))
                    turns.append((self._starts[i], self._starts[i], *module.ends(right)))
                else:
                    turns.append((knot, knot, *module.ends(left.union(right))))
        turns.sort(key=lambda turn: (turn[1], turn[0]))
        left, right, least, largest = (
            torch.tensor(turns, dtype=torch.float64).reshape(-1, 4).T.contiguous()
        )
        tables = [torch.stack([-least, largest])]
        while 2 ** len(tables) <= len(turns):
            shift, before = 2 ** (len(tables) - 1), tables[-1]
            merged = torch.maximum(before[:, :-shift], before[:, shift:])
            padding = merged.new_full((2, len(turns) - merged.shape[1]), inf)
            tables.append(torch.cat([merged, padding], dim=1))
        lowest, highest = torch.stack(tables, dim=1)
        return _Turns(left.cummax(0).values, right, -lowest, highest)

    def where_it_falls(self) -> str:
        """Return a point at which the function jumps or is not proved to be nondecreasing.

        Returns:
            The point, such as "x = 8.125", or "" if there is none.

        Example:
            >>> import icgd
            >>> icgd.Function("cube", "x**3").where_it_falls()
            ''
            >>> icgd.Function("bump", "exp(-x**2)").where_it_falls()
            'x = 8.125'
        """
        for knot, jump in zip(self.knots, self.jumps, strict=True):
            if jump:
                return f"x = {_shown(knot)}"
        turns = self._turns
        starts, stops = (self.low, *turns.right.tolist()), (*turns.left.tolist(), self.high)
        slope = self.derivative()
        for start, stop in zip(starts, stops, strict=True):  # monotone, so one slope decides
            if start < stop:
                middle = Fraction(start + (stop - start) / 2)
                ((piece, *_), *_) = slope.spans(middle, self.high)
                if not slope.ball(0, piece, balls().exact(middle)) >= 0:
                    return f"x = {_shown(float(middle))}"
        return ""

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        least = largest = self(low.clamp(self.low, self.high))
        if low is not high or self._jumps_between_floats:
            end = self(high.clamp(self.low, self.high))
            least, largest = torch.minimum(least, end), torch.maximum(least, end)
            turns = self._turns
            first = torch.searchsorted(turns.right, low.contiguous())
            number = torch.searchsorted(turns.left, high.contiguous(), right=True) - first
            inside = number > 0
            if bool(inside.any()):  # two entries of the sparse table cover the turns inside
                level = number.clamp(min=1).double().log2().floor().long()
                level = level.clamp(max=len(turns.least) - 1)
                last = (first + number - 2**level).clamp(min=0)
                first = first.clamp(max=len(turns.right) - 1)
                lowest = torch.minimum(turns.least[level, first], turns.least[level, last])
                highest = torch.maximum(turns.largest[level, first], turns.largest[level, last])
                least = torch.where(inside, torch.minimum(least, lowest), least)
                largest = torch.where(inside, torch.maximum(largest, highest), largest)
        if self.rounding != EXACT:  # of the ends, of the values, and of this sum
            least = least - 3 * self.rounding.at(least.abs())
            largest = largest + 3 * self.rounding.at(largest.abs())
        outside = ~((low >= self.low) & (high <= self.high))
        if bool(outside.any()):
            least, largest = least.masked_fill(outside, -inf), largest.masked_fill(outside, inf)
        return least, largest

    def lipschitz(self, low: Values, high: Values) -> Values:
        inner = low
        for knot, exact in zip(self.knots, self._tower.knots, strict=True):
            if knot >= exact:  # an interval that starts at the knot has only the right-hand slope
                inner = torch.where((inner == knot) & (knot < high), nextafter(knot, inf), inner)
        least, largest = self.derivative().bounds(inner, high)
        steepest = torch.maximum(least.abs(), largest.abs())
        for start, jump in zip(self._starts, self.jumps, strict=True):
            if jump:
                steepest = torch.where((low < start) & (start <= high), inf, steepest)
        return steepest

    @cached_property
    def rounding(self) -> FunctionRounding:
        """A bound on the rounding errors of computed values on the domain."""
        tower, module = self._tower, balls()
        with module.precision(module.BITS):
            bound = module.rounding(
                (tower.line(self._order, piece), low, high)
                for piece, low, high in self.spans(self.low, self.high)
            )
            if isinstance(bound, float):
                raise SettingError(
                    f"{self} overflows in float64, or is undefined, near x = {_shown(bound)}. Give "
                    "a smaller domain."
                )
            relative, absolute = bound
            # Near a knot that is not a float, the wrong piece may be evaluated.
            for i, knot in enumerate(tower.knots):
                if Fraction(float(knot)) != knot:
                    exact_knot = module.exact(knot)
                    slopes = [self.ball(1, i + side, exact_knot) for side in (0, 1)]
                    absolute += module.size(slopes[1] - slopes[0]) * abs(float(knot)) * 1.01
            if tower.source is not None:
                source, jumps = tower.source, sum(map(abs, tower.source.jumps))
                relative = max(relative, source.rounding.relative)
                absolute += source.rounding.absolute + 1.01 * source.rounding.relative * jumps
        return FunctionRounding(relative, absolute) if relative or absolute else EXACT

    def without_jumps(self, name: str) -> Function:
        """Return the function minus its jumps, under the given name.

        Args:
            name: the name.

        Returns:
            A continuous function, equal to this one up to the first jump.

        Example:
            >>> import icgd, torch
            >>> sawtooth = icgd.Function.pieces((0,), ("x", "x - 1"))
            >>> sawtooth.without_jumps("line")(torch.tensor([-1.0, 2.0])).tolist()
            [-1.0, 2.0]
        """
        pieces, total = [self.nodes[0]], ZERO
        for knot, (left, right) in zip(self._tower.knots, pairwise(self.nodes), strict=True):
            exact_knot = number(knot)
            left_value, right_value = substitute(left, exact_knot), substitute(right, exact_knot)
            total = add(total, add(right_value, multiply(number(-1), left_value)))
            pieces.append(add(right, multiply(number(-1), total)))
        tower = replace(self._tower, pieces=tuple(pieces), called=name, source=self)
        return Function._of(tower)

    @property
    def gate(self) -> Function | None:
        """The bounded function g with f(x) = x g(x) + `rest`(x), or None if f is not so split."""
        return self._gate_and_rest[0]

    @property
    def rest(self) -> Function | None:
        """The bounded remainder f(x) - x `gate`(x), or None if it is 0."""
        return self._gate_and_rest[1]

    @cached_property
    def _gate_and_rest(self) -> tuple[Function | None, Function | None]:
        """Split a function of linear growth; the gate tends to its slope at either end."""
        z = torch.linspace(self.low, self.high, 257, dtype=torch.float64)
        values = self(z)
        if self.kind != "smooth" or not self.low < 0 < self.high or _largest(values) <= MODERATE:
            return None, None
        (node,), tower = self.nodes, self._tower
        parts: tuple[Node, ...] = ()
        if node.kind == PRODUCT and X in node.parts:
            parts = (multiply(*(part for part in node.parts if part != X)),)
        else:
            left, right = (
                number(Fraction(round(16 * float(values[end] / z[end])), 16)) for end in (0, -1)
            )
            step = add(right, multiply(number(-1), left))
            gate = add(left, multiply(step, call("sigmoid", X)))
            parts = (gate, add(node, multiply(number(-1), X, gate)))
        functions = [Function._of(_Tower((), (part,), tower.low, tower.high)) for part in parts]
        moderate = max(MODERATE, _largest(values) / 4)
        if any(f.kind != "smooth" or not _largest(f(z)) <= moderate for f in functions):
            return None, None
        return functions[0], functions[1] if len(functions) > 1 else None

    def _check(self) -> None:
        """Raise `SettingError` unless the function and its slope are finite on the domain."""
        if max(map(len, map(text, self.nodes))) > MOST_CANONICAL:
            raise SettingError(
                f"The function has more than {MOST_CANONICAL} characters when simplified. Give a "
                "shorter expression."
            )
        pairs = zip(self.nodes, self._tower.order(1), strict=True)
        if all(slope.kind == NUMBER == substitute(node, ZERO).kind for node, slope in pairs):
            return  # linear pieces with exact coefficients are finite
        module = balls()
        with module.precision(module.BITS):
            for piece, low, high in self.spans(self.low, self.high):
                lines = tuple(self._tower.line(order, piece) for order in range(2))
                problem, point = module.singular_place(lines, low, high)
                if problem == "overflow":
                    raise SettingError(
                        f"{self} overflows in float64 near x = {_shown(point)}. Give a smaller "
                        "domain, such as low=-10, high=10, or rewrite the function."
                    )
                if problem:
                    raise SettingError(
                        f"{self} or its slope has no finite value near x = {_shown(point)}, or "
                        "none that float64 can compute: it divides by 0, or takes a root or a "
                        "logarithm of a number that is not positive. Exclude this point from the "
                        "domain with low= and high=."
                    )


WIDEST = 2.0**40
"""The half-width of the domain of built-in functions, enough for every construction."""


def built_in(name: str, knots: Sequence[int], of: Sequence[str], reach: float = WIDEST) -> Function:
    """Return a function with its own name, in place of its text."""
    exact_knots, pieces = tuple(map(Fraction, knots)), tuple(map(parse, of))
    return Function._of(_Tower(exact_knots, pieces, -reach, reach, name), 0, name)


def unbounded(name: str, knots: Sequence[float], of: Sequence[str], order: int = 0) -> Function:
    """Return a function, or a derivative of it, on the whole real line."""
    exact_knots, pieces = tuple(map(Fraction, knots)), tuple(map(parse, of))
    return Function._of(_Tower(exact_knots, pieces, -inf, inf), order, name)


def of_lines(
    name: str, knots: Sequence[float], slopes: Sequence[float], at_zero: float
) -> Function:
    """Return a piecewise linear function on the whole real line, with exact coefficients."""
    lines = joined_lines(knots, slopes, 0.0, at_zero)
    pieces = tuple(add(multiply(number(a), X), number(b)) for a, b in lines)
    return Function._of(_Tower(tuple(map(Fraction, knots)), pieces, -inf, inf), 0, name)


def joined_lines(
    knots: Sequence[float], slopes: Sequence[float], anchor: float, value: float
) -> list[tuple[Fraction, Fraction]]:
    """Return (slope, constant) of the lines that join at knots and have `value` at `anchor`."""
    factors = list(map(Fraction, slopes))
    changes = (
        (left - right) * Fraction(knot)
        for knot, (left, right) in zip(knots, pairwise(factors), strict=True)
    )
    constants = list(accumulate(changes, initial=Fraction(0)))  # up to a common constant
    piece = bisect_left(knots, anchor)
    shift = Fraction(value) - factors[piece] * Fraction(anchor) - constants[piece]
    return [(a, b + shift) for a, b in zip(factors, constants, strict=True)]


def _largest(values: Values) -> float:
    return float(values.abs().max())


def _shown(point: float) -> str:
    return "0" if abs(point) < 1e-9 else f"{point:.6g}"


def domain_of(low: object, high: object) -> tuple[float, float]:
    """Validate the ends of a domain: finite numbers with low < high."""
    ends = finite("low", low), finite("high", high)
    if not ends[0] < ends[1]:
        raise SettingError(f"low must be less than high, got {ends[0]:g} and {ends[1]:g}.")
    return ends


def with_domain(body: str, low: float, high: float) -> str:
    """Return the text of a function or a loss with its domain, as in "x**2 on -1 to 1"."""
    ends = " to ".join(repr(end).removesuffix(".0") for end in (low, high))
    return f"{body} on {ends}"


def without_domain(name: str) -> tuple[str, float, float]:
    """Return the arguments of `with_domain`; raise `ValueError` unless low < high."""
    body, _, domain = name.rpartition(" on ")
    low, high = map(float, domain.split(" to "))
    return body, *domain_of(low, high)


def _knot(knot: object) -> Fraction:
    """Return a knot as an exact fraction: 0.1 is one tenth."""
    if isinstance(knot, str | Fraction):
        node = parse(str(knot), names=())
        if node.kind == NUMBER:
            return node.number
    if isinstance(knot, Fraction) or not -inf < as_float(knot) < inf:
        raise SettingError(f"A knot must be a finite number, got {quoted(knot)}.")
    return Fraction(repr(as_float(knot)))


def _checked_label(label: object) -> str:
    if not isinstance(label, str) or len(label) > 100 or not label.isprintable() or "'" in label:
        raise SettingError(
            f"label must be a string of at most 100 characters without ', got {quoted(label)}."
        )
    return label


def is_written(name: object) -> bool:
    """Return whether a name is the text of a function with its domain."""
    return isinstance(name, str) and " on " in name and " to " in name


@lru_cache(maxsize=256)
def read_function(name: str) -> Function:
    """Return the function that has this text as its `name`."""
    try:
        body, low, high = without_domain(name.rstrip("'"))
        *before, last = body.split(", ")
        pieces, knots = list[Node](), list[Fraction]()
        for part in before:
            piece, _, knot = part.rpartition(" up to ")
            pieces.append(parse(piece, is_canonical=True))
            knots.append(_knot(knot))
        pieces.append(parse(last, is_canonical=True))
        _ends_of(knots, low, high)
        if any(map(kinks, pieces)):
            raise SettingError("Its kinks are not given as knots.")
    except ValueError as error:  # icgd's errors are ValueErrors too
        raise SettingError(f"{quoted(name)} is not the text of a function. {error}") from None
    order = len(name) - len(name.rstrip("'"))
    return Function._of(_Tower(tuple(knots), tuple(pieces), low, high), order)
