"""The interface of functions of one variable: values, ranges, slopes, and balls for proofs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from icgd.shapes import Values

Kind = Literal["smooth", "kinked", "step", "pieces"]
"""Analytic, continuous and piecewise linear, piecewise constant, or of other pieces."""

Evaluate = Callable[[Tensor], Tensor]

LEAST_NUMBERS = 128
"""Bound on the error by underflow, in units of the smallest normal number.

silu multiplies an underflowed exponential by up to 104.
"""


@dataclass(frozen=True)
class FunctionRounding:
    """A bound on the rounding errors of a function's values, in units of roundoff.

    The error of a value v is at most relative * |v| + absolute. A function that `is_linear` between
    its knots is exactly 0 at 0.
    """

    relative: float
    absolute: float = 0.0
    is_linear: bool = False

    def at(
        self,
        size: Values,
        roundoff: float = 2.0**-53,
        least: float = torch.finfo(torch.float64).tiny,
    ) -> Values:
        """Return a bound on the rounding error of values of at most this size."""
        error = roundoff * self.relative * size
        if self.is_linear:
            return torch.add(error, error.sign(), alpha=LEAST_NUMBERS * least)
        return error + (roundoff * self.absolute + LEAST_NUMBERS * least)


EXACT = FunctionRounding(0.0, is_linear=True)


class ScalarFunction(ABC):
    """A function of one variable, on [low, high]; subclasses are final.

    It is analytic between its `knots`. A knot belongs to the piece to its left.
    """

    name: str
    kind: ClassVar[Kind]
    knots: tuple[float, ...] = ()
    low: float = -inf
    high: float = inf

    @abstractmethod
    def __call__(self, z: Values) -> Values:
        """Return the value at every entry of `z`."""

    @abstractmethod
    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        """Return the least and the largest value on [low, high]; infinite outside the domain.

        Args:
            low: the left ends of intervals.
            high: their right ends.

        Returns:
            For each interval, a lower and an upper bound on the real and the computed values.

        Example:
            >>> import icgd, torch
            >>> low, high = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 7.0])
            >>> relu6 = icgd.Function.pieces((0, 6), ("0", "x", "6"))
            >>> [end.tolist() for end in relu6.bounds(low, high)]
            [[0.0, 2.0], [1.0, 6.0]]
        """

    @abstractmethod
    def lipschitz(self, low: Values, high: Values) -> Values:
        """Return the least L with |f(a) - f(b)| <= L |a - b| on [low, high]; inf across a jump.

        Args:
            low: the left ends of intervals.
            high: their right ends.

        Returns:
            The constant of each interval.

        Example:
            >>> import icgd, torch
            >>> low, high = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 7.0])
            >>> icgd.Function.pieces((0, 6), ("0", "x", "6")).lipschitz(low, high).tolist()
            [1.0, 1.0]
        """

    def derivative(self) -> ScalarFunction:
        """Return the derivative; its value at a kink is the limit from the left.

        Returns:
            A function on the same domain.

        Example:
            >>> import icgd
            >>> icgd.Function("swish", "x * sigmoid(x)").derivative().label
            "swish'"
        """
        raise NotImplementedError(f"{self.name} has no derivative here; no proof needs it.")

    def curvature(self, low: Values, high: Values) -> Values:
        """Return the largest |f''| on [low, high]; inf across a kink.

        Args:
            low: the left ends of intervals.
            high: their right ends.

        Returns:
            A number for each interval.

        Example:
            >>> import icgd, torch
            >>> low, high = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 7.0])
            >>> icgd.Function.pieces((0, 6), ("0", "x", "6")).curvature(low, high).tolist()
            [inf, inf]
        """
        return self.derivative().lipschitz(low, high)

    def slope_times(self, low: Values, high: Values, distance: Values) -> Values:
        """Return the Lipschitz constant on [low, high] times `distance`; 0 if `distance` is 0.

        It bounds |f(a) - f(b)| for a, b in [low, high] with |a - b| <= `distance`.

        Args:
            low: the left ends of intervals.
            high: their right ends.
            distance: the largest distance of a and b.

        Returns:
            A number for each interval.

        Example:
            >>> import icgd, torch
            >>> low, high = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 7.0])
            >>> sign = icgd.Function("sign", "sign(x)")
            >>> sign.slope_times(low, high, torch.tensor([0.0, 1.0])).tolist()
            [0.0, 0.0]
        """
        product = self.lipschitz(low, high) * distance
        if not bool(product.sum().isnan()):
            return product
        return torch.where(distance == 0, 0.0, product)

    @property
    def rounding(self) -> FunctionRounding:
        """A bound on the rounding errors of computed values."""
        raise NotImplementedError(f"{self.name} has no rounding bound; no proof needs it.")

    @property
    def written(self) -> ScalarFunction:
        """The same function defined by a text, for evaluation on balls."""
        raise NotImplementedError(f"{self.name} has no text for balls; no proof needs it.")

    def ball(self, order: int, piece: int, ball: Any) -> Any:
        """Enclose a derivative of one piece on a real ball of python-flint, in its precision.

        Args:
            order: the order of the derivative, 0 for the function itself.
            piece: the number of the piece.
            ball: an `arb`.

        Returns:
            An `arb` that contains all values, not finite if they cannot be enclosed.

        Example:
            >>> import icgd
            >>> from flint import arb
            >>> icgd.Function("swish", "x * sigmoid(x)").ball(0, 0, arb(2)).str(6)
            '[1.76159 +/- 4.16e-6]'
        """
        return self.written.ball(order, piece, ball)

    def complex_ball(self, piece: int, ball: Any) -> Any:
        """Enclose one piece on a complex ball of python-flint, in its precision.

        Args:
            piece: the number of the piece.
            ball: an `acb`.

        Returns:
            An `acb` that contains all values, finite only if the function is analytic there.

        Example:
            >>> import icgd
            >>> from flint import acb
            >>> icgd.Function("log", "log(x)", low=0.5).complex_ball(0, acb(-1)).is_finite()
            False
        """
        return self.written.complex_ball(piece, ball)

    def spans(
        self, low: float | Fraction, high: float | Fraction
    ) -> list[tuple[int, Fraction, Fraction]]:
        """Return the pieces that meet [low, high].

        Args:
            low: the left end.
            high: the right end.

        Returns:
            The number of each piece, and the ends of its part of [low, high].

        Example:
            >>> import icgd
            >>> [span[0] for span in icgd.Function.pieces((0, 6), ("0", "x", "6")).spans(-1.0, 5.0)]
            [0, 1]
        """
        knots = self._exact_knots()
        inside = [knot for knot in knots if low < knot < high]
        ends = [Fraction(low), *inside, Fraction(high)]
        first = sum(knot <= low for knot in knots)
        return [(first + i, *pair) for i, pair in enumerate(pairwise(ends))]

    def _exact_knots(self) -> tuple[Fraction, ...]:
        """Return the knots before they are rounded to floats."""
        return tuple(map(Fraction, self.knots))
