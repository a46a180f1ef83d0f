r"""What wang needs of functions: Definition 3, Assumption 1 and Lemmas 2 to 5.

With f(x) = integral e^(iwx) F(w) dw the Barron norm of f is integral (1 + |w|)^s |F(w)| dw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log, pi, sqrt, tanh

import torch
from torch import Tensor
from torch.nn import functional

from icgd_papers.studies.lottery import Lottery
from icgd_papers.theorems.statement import Comparison, at_most, printed, statement

Function = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Function] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "elu": functional.elu,
}


@statement("wang", "Definition 3")
def common_activations_have_general_decay(seed: int) -> Iterator[Comparison]:
    """Take first differences of bounded activations, second differences of the others."""
    del seed  # nothing is drawn
    near = torch.linspace(-20, 20, 40_001, dtype=torch.float64)
    far = torch.cat([-torch.logspace(1.31, 3, 2_000), torch.logspace(1.31, 3, 2_000)]).double()
    for name, activation in ACTIVATIONS.items():
        is_bounded = name in ("sigmoid", "tanh")
        terms = ((1, 1), (-1, -1)) if is_bounded else ((1, 1), (0, -2), (-1, 1))
        largest = []
        for t in (far, near):
            nu = torch.stack([factor * activation(t + shift) for shift, factor in terms]).sum(0)
            largest.append(float(((1 + t.abs()) ** 2 * nu).abs().max()))
        case = f"{name}, {'first' if is_bounded else 'second'} difference, 20 < |t| < 1000"
        yield at_most(largest[0], largest[1], case, "(1 + |t|)^2 |nu(t)|; C_2 for |t| < 20")


SINE_INTEGRAL = 1.8519370519824662
"""Si(pi), the largest value of the sine integral, whose least value on t >= 0 is 0."""


def barron_at_least(odd_part: float, log_cut: float) -> float:
    """Bound the Barron norm of a function from below by duality with 1/x on 1 <= |x| <= T.

    For every phi in L^1 the norm is at least |integral f phi| / max |transform of phi|. The odd
    part of f is at least `odd_part` beyond 1, so the integral is at least 2 odd_part ln T; the
    transform of phi is 2i (Si(wT) - Si(w)).
    """
    return odd_part * log_cut / SINE_INTEGRAL


def cut_off(t: Tensor) -> Tensor:
    """Return a smooth function that is 1 for |t| <= 4 and 0 for |t| >= 8."""
    s = ((t.abs() - 4) / 4).clamp(0, 1)
    inner, outer = (torch.where(u > 0, torch.exp(-1 / u.clamp_min(1e-9)), 0) for u in (1 - s, s))
    return inner / (inner + outer)


def barron_norm(values: Tensor, spacing: float) -> float:
    """Return the Barron norm with s = 1 of a function that vanishes at both ends of a grid."""
    n = len(values)
    frequency = 2 * pi * torch.fft.fftfreq(n, spacing, dtype=torch.float64)
    transform = torch.fft.fft(values).abs() * spacing / (2 * pi)
    return float(((1 + frequency.abs()) * transform).sum() * 2 * pi / (n * spacing))


def barron_bound(values: Tensor, spacing: float) -> float:
    """Bound the same norm by Cauchy-Schwarz: 4 (|f|_2^2 + |f''|_2^2)^(1/2) / sqrt(2 pi).

    (1 + |w|)^4 <= 8 (1 + w^4), and integral (1 + |w|)^-2 dw = 2.
    """
    second = (values[2:] - 2 * values[1:-1] + values[:-2]) / spacing**2
    squares = values.square().sum() + second.square().sum()
    return 4 * sqrt(float(squares) * spacing / (2 * pi))


@statement("wang", "Assumption 1")
def barron_norms_are_finite_on_bounded_domains(seed: int) -> Iterator[Comparison]:
    """Bound printed norms from below, and the norms of cut-off functions from above."""
    del seed  # nothing is drawn
    unit = "Barron norm, at least; any finite number, here 10"
    decades = 300
    for name, odd_part in (("tanh", tanh(1.0)), ("sigmoid", tanh(0.5) / 2)):
        bound = barron_at_least(odd_part, decades * log(10))
        yield printed(bound, 10.0, f"{name} on the real line, tested up to 1e{decades}", unit)
    # A function of finite norm is bounded by it everywhere.
    size = 1e3
    for name, value in (("softplus", size), ("squared loss (t - 0)^2", size**2)):
        yield printed(value, 10.0, f"{name} on the real line, its value at {size:g}", unit)

    t = torch.linspace(-40, 40, 2**15, dtype=torch.float64)
    spacing = float(t[1] - t[0])
    functions = {name: ACTIVATIONS[name] for name in ("tanh", "sigmoid", "softplus")}
    functions["squared loss (t - 0)^2"] = torch.square
    for name, function in functions.items():
        values = function(t) * cut_off(t)
        case = f"{name}, unchanged on [-4, 4] and 0 beyond 8"
        bound = barron_bound(values, spacing)
        yield at_most(barron_norm(values, spacing), bound, case, "Barron norm; bound by f and f''")


def squares_by_interpolation(x: Tensor, n_pieces: int, reach: float) -> Tensor:
    """Sum the piecewise linear interpolations of x_i^2 on [-reach, reach], extended linearly.

    An interpolation of n pieces is made of n + 1 ReLUs.
    """
    knots = torch.linspace(-reach, reach, n_pieces + 1, dtype=torch.float64)
    slopes = knots[1:] + knots[:-1]
    place = torch.bucketize(x, knots[1:-1].contiguous())
    return (knots[place] ** 2 + slopes[place] * (x - knots[place])).sum(-1)


def ball_error(x: Tensor, width: int) -> float:
    """Return the mean squared error of a 3-layer ReLU network on the unit ball's indicator.

    Its first hidden layer interpolates all squares, its second one is a steep ramp.
    """
    dimension, steepness = x.shape[-1], 1e9
    total = squares_by_interpolation(x, width // dimension - 1, reach=1.5)
    ramp = torch.relu(1 + steepness * (1 - total)) - torch.relu(steepness * (1 - total))
    is_inside = (x.square().sum(-1) <= 1).double()
    return float((ramp - is_inside).square().mean())


@statement("wang", "Lemma 2")
def three_layers_learn_a_ball(seed: int) -> Iterator[Comparison]:
    """Try an explicit network of width 8 d^2 / delta, that is c = 1, on three kinds of laws."""
    source = torch.Generator().manual_seed(seed)
    unit = "mean squared error over 20,000 points; delta"
    for dimension in (2, 5, 10):
        normal = torch.randn(20_000, dimension, generator=source, dtype=torch.float64)
        radius = torch.rand(20_000, 1, generator=source, dtype=torch.float64)
        direction = normal / normal.norm(dim=-1, keepdim=True)
        laws = {
            "normal": normal / sqrt(dimension),
            "uniform in a ball of radius 1.2": 1.2 * radius ** (1 / dimension) * direction,
        }
        for delta in (0.1, 0.01):
            width = int(8 * dimension**2 / delta)
            for name, x in laws.items():
                case = f"d = {dimension}, {name}, width {width}"
                yield at_most(ball_error(x, width), delta, case, unit)
        shell = (1 + 1e-9 * (2 * radius - 1)) * direction
        case = f"d = {dimension}, within 1e-9 of the sphere, this network with width {width}"
        yield printed(ball_error(shell, width), delta, case, unit)


def sawtooth_square(x: Tensor, depth: int) -> Tensor:
    """Return Yarotsky's x^2 on [0, 1]: x minus `depth` iterated hats, three ReLUs a level."""
    value, hat = x.clone(), x
    for level in range(1, depth + 1):
        hat = 2 * torch.relu(hat) - 4 * torch.relu(hat - 0.5) + 2 * torch.relu(hat - 1)
        value = value - hat / 4**level
    return value


@statement("wang", "Lemma 3")
def deep_relu_networks_square(seed: int) -> Iterator[Comparison]:
    """Square by networks of growing depth; their units grow like ln(1/eps)."""
    del seed  # nothing is drawn
    x = torch.linspace(0, 1, 2**14 + 1, dtype=torch.float64)
    for depth in range(1, 13):
        error = float((sawtooth_square(x, depth) - x * x).abs().max())
        allowed = (1 + 1e-6) * 4.0 ** -(depth + 1)
        case = f"x^2 on [0, 1], {depth} hidden layers of 3 ReLUs and a skip path"
        yield at_most(error, allowed, case, "largest error; eps = 4^-(layers + 1)")


@statement("wang", "Lemma 4")
def shallow_relu_networks_need_many_units(seed: int) -> Iterator[Comparison]:
    """Bound the error at x^2 from below by the number of pieces.

    A line leaves an error of at least h^2 / 8 at x^2 on an interval of length h, so p pieces leave
    1 / (8 p^2). A network of L - 1 hidden layers and U units has at most (2 U)^(L-1) pieces, hence
    c(x^2, L) = 8^(-1 / (2 (L-1))) / 2. Iterated hats have the most pieces for their units.
    """
    del seed  # nothing is drawn
    x = torch.linspace(0, 1, 2**16 + 1, dtype=torch.float64)
    for n_pieces in (1, 4, 16, 64):
        h = 1 / n_pieces
        # The best line on each piece: interpolation at its ends, lowered by half of its error.
        knots = h * (x / h).floor().clamp(max=n_pieces - 1)
        best = knots**2 + (2 * knots + h) * (x - knots) - h**2 / 8
        error = float((best - x * x).abs().max())
        case = f"x^2, the best {n_pieces} pieces"
        yield at_most(h**2 / 8, (1 + 1e-6) * error, case, "1 / (8 p^2); largest error")
    for depth in (2, 3, 4, 5):
        error = float((sawtooth_square(x, depth - 1) - x * x).abs().max())
        exponent = -1 / (2 * (depth - 1))
        case = f"x^2 by iterated hats, L = {depth}"
        allowed = 3 * (depth - 1)
        yield at_most((8 * error) ** exponent / 2, allowed, case, "c eps^(-1/(2(L-1))); units")


@statement("wang", "Lemma 5")
def sums_of_units_approximate_barron_functions(seed: int) -> Iterator[Comparison]:
    """Draw the units of the proof in one to three dimensions, few and many."""
    for dimension in (1, 2, 3):
        lottery = Lottery(dimension)
        for n, repeats in ((1, 500), (16, 100), (256, 20), (4096, 3)):
            case = f"d = {dimension}, exp(-|x|^2/2) on the unit ball, {n} units, {repeats} draws"
            error = lottery.drawn_distance(n, repeats, seed)
            yield at_most(error, lottery.constant / sqrt(n), case, "|f - f_n| in L^2; C n^(-1/2)")
