"""Every number of the table of roundings, against balls that hold the real values (Arb).

The points are of every size, evenly spread where functions bend, and the floats around zeros,
stationary points and the ends of what can be represented. Torch evaluates vectors and single
numbers by different code, so that half of the points go either way.
"""

from collections.abc import Callable

import pytest
import torch
from flint import arb, ctx
from torch import Tensor

from icgd.approximation.ridge import SQUARE
from icgd.problems.functions import (
    COIN_ENTROPY,
    FUNCTION_ROUNDING,
    FUNCTIONS,
    GELU,
    LEAKY_RELU,
    NORMAL_DISTRIBUTION,
    OWN,
    SIGMOID,
    SILU,
    SOFTPLUS,
    TANH,
    UNIT_ACTIVATIONS,
    rounding_of,
)
from icgd.problems.linear_model import CAUCHIT, CLOGLOG, EXP, LINKS
from icgd.problems.scalar import EXACT, LEAST_NUMBERS

Real = Callable[[arb], arb]

ROOM_LEFT = 0.7
"""No error that is found may take more of its allowance."""


def s0(z: arb) -> arb:
    return 1 / (1 + (-z).exp())


def s1(z: arb) -> arb:
    return s0(z) * s0(-z)


def s2(z: arb) -> arb:
    return -(z / 2).tanh() * s1(z)


def s3(z: arb) -> arb:
    return (1 - 6 * s1(z)) * s1(z)


def softplus(z: arb) -> arb:
    return z.exp().log1p() if z < 0 else z + (-z).exp().log1p()


def distribution(z: arb) -> arb:
    return (-z / arb(2).sqrt()).erfc() / 2


def density(z: arb) -> arb:
    return (-z * z / 2).exp() / (2 * arb.pi()).sqrt()


def t1(z: arb) -> arb:
    return 1 / z.cosh() ** 2


SMOOTH = (
    TANH,
    SIGMOID,
    SOFTPLUS,
    GELU,
    SILU,
    NORMAL_DISTRIBUTION,
    COIN_ENTROPY,
    EXP,
    SQUARE,
    CAUCHIT,
    CLOGLOG,
)

REAL: dict[str, tuple[Real, ...]] = {
    "tanh": (
        lambda z: z.tanh(),
        t1,
        lambda z: -2 * z.tanh() * t1(z),
        lambda z: (6 * z.tanh() ** 2 - 2) * t1(z),
    ),
    "sigmoid": (s0, s1, s2, s3),
    "softplus": (softplus, s0, s1, s2),
    "gelu": (
        lambda z: z * distribution(z),
        lambda z: distribution(z) + z * density(z),
        lambda z: (2 - z * z) * density(z),
        lambda z: (z * z - 4) * z * density(z),
    ),
    "silu": (
        lambda z: z * s0(z),
        lambda z: s0(z) + z * s1(z),
        lambda z: 2 * s1(z) + z * s2(z),
        lambda z: 3 * s2(z) + z * s3(z),
    ),
    "normal_distribution": (distribution, density, lambda z: -z * density(z)),
    "coin_entropy": (
        lambda z: softplus(-abs(z)) + abs(z) * s0(-abs(z)),
        lambda z: -z * s1(z),
        lambda z: -s1(z) - z * s2(z),
    ),
    "cauchit": (
        lambda z: arb.atan2(arb(1), -z) / arb.pi(),
        lambda z: 1 / (arb.pi() * (1 + z * z)),
        lambda z: -2 * z / (arb.pi() * (1 + z * z) ** 2),
    ),
    "cloglog": (
        lambda z: -(-z.exp()).expm1(),
        lambda z: (z - z.exp()).exp(),
        lambda z: (z - z.exp()).exp() * -z.expm1(),
    ),
    "exp": (lambda z: z.exp(),) * 4,
    "square": (lambda z: z * z, lambda z: 2 * z, lambda z: arb(2), lambda z: arb(0)),
}

HARD = (-0.7517915246935645, -1.2784645427610738, 0.6584789484624084, 1.3169578969248166)
"""Zeros of gelu', silu', tanh''' and sigmoid'''."""

EVERY_LEVEL = [(function, order) for function in SMOOTH for order in range(len(function.tower))]


def points(dtype: torch.dtype, largest: float, n_points: int, special: tuple[float, ...]) -> Tensor:
    """Points up to `largest` on either side of 0."""
    generator = torch.Generator().manual_seed(n_points)

    def drawn(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n_points, generator=generator, dtype=torch.float64)

    size = torch.exp2(drawn(-140.0, 10.0))
    near = torch.tensor([*HARD, *special, largest, 0.0, 1.0], dtype=torch.float64)
    near = torch.cat([near * (1 + k * 2.0**-bits) for k in (-1, 0, 1) for bits in (24, 40, 52)])
    spread = torch.cat([size, -size, drawn(-50.0, 50.0), drawn(-4.0, 4.0), near, -near]).to(dtype)
    return spread[spread.abs() <= largest]


def evaluated(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Half of the values by a vector, half one by one."""
    half = len(z) // 2
    alone = [function(number.clone()) for number in z[half:]]
    return torch.cat([function(z[:half]), torch.stack(alone)])


def largest_share(name: str, real: Real, z: Tensor, values: Tensor) -> float:
    """The largest error over what the table allows for it."""
    ctx.prec, kind = 150, torch.finfo(z.dtype)
    rounding, shares = rounding_of(name), [0.0]
    underflow = LEAST_NUMBERS * kind.tiny
    for argument, value in zip(z.tolist(), values.tolist(), strict=True):
        exact = real(arb(argument))
        off = float((arb(value) - exact).abs_upper())
        size = float(abs(exact).abs_upper())
        allowed = kind.eps / 2 * (rounding.relative * size + rounding.absolute) + underflow
        shares.append(off / allowed)
    return max(shares)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "n_points", [pytest.param(60, id="few"), pytest.param(5000, id="many", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("function", "order"), EVERY_LEVEL)
def test_no_value_is_off_by_more_than_the_table_says(function, order, n_points, dtype):
    largest = torch.finfo(dtype).max ** (0.5 if function is SQUARE else 1.0)
    if function is EXP:
        largest = 709.0 if dtype == torch.float64 else 88.0
    special = tuple(point for level in function.stationary for point in level)
    z = points(dtype, min(largest, 1e30), n_points, special)
    values = evaluated(function.tower[order], z)
    name = function.name + order * "'"
    assert largest_share(name, REAL[function.name][order], z, values) <= ROOM_LEFT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_leak_and_its_slope_are_rounded_once_or_twice(dtype):
    """The leak itself is a double, which float32 rounds as it does all constants."""
    z, leak = points(dtype, 1e30, 60, ()), arb(0.01)
    value = largest_share("leaky_relu", lambda t: t if t > 0 else leak * t, z, LEAKY_RELU(z))
    slopes = LEAKY_RELU.derivative()(z)
    slope = largest_share("leaky_relu'", lambda t: arb(1) if t > 0 else leak, z, slopes)
    assert max(value, slope) <= 1.0


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS.values(), ids=lambda unit: unit.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_unit_is_off_by_more_than_bounds_of_sums_count(activation, dtype):
    """They count 8 units of 1 + |z|; cosines are taken of moderate numbers only."""
    real: dict[str, Real] = {
        "relu": lambda z: z if z > 0 else arb(0),
        "elu": lambda z: z if z > 0 else z.expm1(),
        "cos": lambda z: z.cos(),
    }
    exact = real.get(activation.name) or REAL[activation.name][0]
    z = points(dtype, 1e4, 60, ())
    ctx.prec, unit = 150, torch.finfo(dtype).eps / 2
    for argument, value in zip(z.tolist(), evaluated(activation.value, z).tolist(), strict=True):
        off = float((arb(value) - exact(arb(argument))).abs_upper())
        assert off <= 4 * unit * (1 + abs(argument))


def test_every_function_that_bounds_evaluate_is_in_the_table():
    known = (name for name in FUNCTIONS if name.rstrip("'") not in OWN)
    names = [*known, *(link.mean.name for link in LINKS.values()), *REAL]
    for name in names:
        function = name.rstrip("'")
        assert len(name) - len(function) in FUNCTION_ROUNDING[function]


def test_exact_functions_are_exact():
    z = points(torch.float64, 1e12, 60, ())  # within the domains of all
    for name, function in FUNCTIONS.items():
        if name.rstrip("'") not in OWN and rounding_of(name) == EXACT:
            least, largest = function.bounds(z, z)
            assert torch.equal(least, function(z))
            assert torch.equal(largest, function(z))


def test_ranges_hold_real_values_at_both_ends():
    ctx.prec = 150
    z = points(torch.float64, 600.0, 60, ())
    for function in SMOOTH:
        least, largest = function.bounds(z, z)
        for argument, low, high in zip(z.tolist(), least.tolist(), largest.tolist(), strict=True):
            exact = REAL[function.name][0](arb(argument))
            assert arb(low) <= exact <= arb(high)


def test_underflow_is_counted_unless_a_linear_piece_is_0():
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(rounding_of("tanh").at(zero)) > 0
    assert float(rounding_of("leaky_relu").at(zero)) == 0
