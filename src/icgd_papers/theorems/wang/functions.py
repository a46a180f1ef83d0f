r"""What wang needs of functions: Definition 3, Assumption 1 and Lemma 5.

With f(x) = integral e^(iwx) F(w) dw the Barron norm of f is integral (1 + |w|)^s |F(w)| dw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log, pi, sqrt, tanh

import torch
from torch import Tensor
from torch.nn import functional

from icgd_papers.studies.barron_sums import Lottery
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


@statement("wang", "Lemma 5")
def sums_of_units_approximate_barron_functions(seed: int) -> Iterator[Comparison]:
    """Draw the units of the proof in one to three dimensions, few and many."""
    for dimension in (1, 2, 3):
        lottery = Lottery(dimension)
        for n, repeats in ((1, 500), (16, 100), (256, 20), (4096, 3)):
            case = f"d = {dimension}, exp(-|x|^2/2) on the unit ball, {n} units, {repeats} draws"
            error = lottery.drawn_distance(n, repeats, seed)
            yield at_most(error, lottery.constant / sqrt(n), case, "|f - f_n| in L^2; C n^(-1/2)")
