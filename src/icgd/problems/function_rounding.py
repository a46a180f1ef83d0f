r"""How far torch's values of the functions of one variable are from the real ones.

With the unit roundoff u and the least normal number of a precision, a value f(z) is off by at most

    u (relative |f(z)| + absolute) + LEAST_NUMBERS least,    for every finite z.

`absolute` is for functions that cancel where they cross 0, such as gelu' near -0.75, and for those
with a square in the exponent: exp(-z^2 / 2) is off by u z^2 / 2 of itself, which is little of 1.

What is known of these numbers: torch states no accuracy. `tests/problems/test_function_rounding.py`
compares float64 and float32 with balls that hold the real values (Arb), at points of every size,
near zeros, stationary points and the ends of the range, in vectors and one by one. That is evidence
for the functions that round, not a proof. Functions that are `EXACT` have one: they choose between
numbers that they are given, change a sign, or double.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from icgd.shapes import Values

LEAST_NUMBERS = 128
"""The least normal numbers that underflow may take: silu multiplies what is left of an exponential
by up to 104."""


@dataclass(frozen=True)
class FunctionRounding:
    """The two numbers of a function. One that is `linear` between its knots is exactly 0 at 0."""

    relative: float
    absolute: float = 0.0
    is_linear: bool = False

    def at(
        self,
        size: Values,
        roundoff: float = 2.0**-53,
        least: float = torch.finfo(torch.float64).tiny,
    ) -> Values:
        """What values of at most this size are off by."""
        off = roundoff * self.relative * size
        if self.is_linear:
            return torch.add(off, off.sign(), alpha=LEAST_NUMBERS * least)
        return off + (roundoff * self.absolute + LEAST_NUMBERS * least)


EXACT = FunctionRounding(0.0, is_linear=True)

_SIGMOID = {
    0: FunctionRounding(4.0),
    1: FunctionRounding(8.0),
    2: FunctionRounding(8.0),
    3: FunctionRounding(8.0, 3.0),
}

FUNCTION_ROUNDING: dict[str, dict[int, FunctionRounding]] = {
    **{name: {0: EXACT, 1: EXACT} for name in ("identity", "relu", "double", "negate", "clip")},
    **{
        name: {0: FunctionRounding(2.0, is_linear=True), 1: FunctionRounding(4.0, is_linear=True)}
        for name in ("leaky_relu", "kinked")
    },
    "tanh": {
        0: FunctionRounding(2.0),
        1: FunctionRounding(8.0),
        2: FunctionRounding(8.0),
        3: FunctionRounding(8.0, 6.0),
    },
    "sigmoid": _SIGMOID,
    "softplus": {0: FunctionRounding(4.0), 1: _SIGMOID[0], 2: _SIGMOID[1], 3: _SIGMOID[2]},
    "gelu": {order: FunctionRounding(8.0, 1.0) for order in range(4)},
    "silu": {
        0: FunctionRounding(8.0),
        1: FunctionRounding(8.0, 1.0),
        2: FunctionRounding(8.0, 1.0),
        3: FunctionRounding(8.0, 1.0),
    },
    "normal_distribution": {order: FunctionRounding(8.0, 1.0) for order in range(3)},
    "coin_entropy": {
        0: FunctionRounding(8.0),
        1: FunctionRounding(8.0),
        2: FunctionRounding(8.0, 1.0),
    },
    "exp": {order: FunctionRounding(2.0) for order in range(4)},
    "square": {0: FunctionRounding(2.0), 1: EXACT, 2: EXACT, 3: EXACT},
}
"""For every function that bounds or runs evaluate, and for each of its derivatives."""

_OTHER = FunctionRounding(16.0, 16.0)


def rounding_of(name: str) -> FunctionRounding:
    """The rounding of a function, whose name has a prime for each derivative.

    A function that the table does not know is taken to be off by 16 units.
    """
    function = name.rstrip("'")
    return FUNCTION_ROUNDING.get(function, {}).get(len(name) - len(function), _OTHER)
