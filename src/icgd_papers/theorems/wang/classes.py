r"""Lemmas 1 to 4 of wang: networks for the indicator of a ball and for smooth functions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import atan, exp, log, pi, sqrt

import numpy as np
import torch
from torch import Tensor

from icgd_papers.studies.ball import UniformRadii
from icgd_papers.studies.relu_networks import (
    Derivatives,
    RadialLaw,
    ReluNetwork,
    SmoothNetwork,
    cosines,
    indicator_error,
    product,
    smallest_indicator,
    square,
)
from icgd_papers.studies.two_layers import HardBall
from icgd_papers.theorems.statement import Comparison, at_most, printed, statement


@statement("wang", "Lemma 1")
def two_layers_miss_a_ball(seed: int) -> Iterator[Comparison]:
    """Bound the error of every network of exp(d) units by the transform of its law."""
    del seed  # nothing is drawn
    for dimension in (4, 8, 16, 32):
        least = HardBall(dimension).least_error(exp(dimension))
        case = f"d = {dimension}, every 2-layer network of width exp(d)"
        yield at_most(dimension**-4, least, case, "d^-4; least mean squared error")


def thin_ring_error(width: int, thickness: float) -> float:
    r"""Bound the error of every ReLU network of 3 layers for the indicator of a ball from below.

    The law has a uniform direction and |x| uniform in [1 - h, 1 + h]; it is enough to look at one
    plane through 0, where it is a ring. W units cut the plane into at most 1 + W + W (W - 1) / 2
    cells, and W units of the next layer cut each of these into as many. In a cell g is affine, and
    the set g = 1/2 is part of a line (if it is the whole cell, take a level next to it). A line
    runs within the ring over an angle of at most 2 arccos((1 - h) / (1 + h)) = 4 arctan(h^(1/2)).
    In all other directions g is on one side of 1/2 along the ray through the ring, of which half
    lies in the ball: (g - f)^2 is at least 1/4 on one half.
    """
    cells = (1 + width + width * (width - 1) // 2) ** 2
    angle = 4 * atan(sqrt(thickness))
    return max(1 - cells * angle / (2 * pi), 0.0) / 8


@statement("wang", "Lemma 2")
def three_layers_learn_a_ball(seed: int) -> Iterator[Comparison]:
    r"""Run the explicit network on laws of bounded density, and bound all networks on a thin ring.

    If the density of |x|^2 is at most beta on [1/2, 2] and delta <= beta, then J knots on each side
    suffice for 0.29 d beta h^2 <= delta, h^-2 = (J + 1/2)^2 - 0.187 d. The least such J is at most
    (d beta / 2 delta)^(1/2) + 1/2.
    """
    unit = "mean squared error; delta"
    for constant in (1.0, 100.0):
        delta = 0.01
        width = int(constant * max(8 * 2**2 / delta, sqrt(1 / (2 * delta))))
        thickness = 0.1 * float(width) ** -8
        case = f"d = 2, |x| within 1 - h and 1 + h, h = {thickness:.0e}; every ReLU network of "
        case += f"width {width:,}, c = {constant:g}"
        yield printed(thin_ring_error(width, thickness), delta, case, unit)

    generator = np.random.default_rng(seed)
    for dimension in (2, 5, 10):
        laws: dict[str, RadialLaw] = {
            "|x| uniform on [0, 2]": UniformRadii(),
            "the law of Lemma 1": HardBall(dimension),
        }
        for name, law in laws.items():
            edges = np.linspace(0.5, 2, 301)
            density = max(law.probability(*ends) / (ends[1] - ends[0]) for ends in pairwise(edges))
            for delta in (0.1, 0.01, 0.001):
                indicator = smallest_indicator(dimension, law, delta)
                width = indicator.network.width
                error = indicator_error(indicator, law, 4000, generator)
                case = f"d = {dimension}, {name}, width {width}"
                yield at_most(error, delta, case, unit)
                allowed = 2 * dimension * (sqrt(dimension * density / (2 * delta)) + 0.5)
                case += f" for delta = {delta:g}"
                yield at_most(width, allowed, case, "width; 2 d ((d beta / 2 delta)^(1/2) + 1/2)")


def waves(exponent: tuple[int, ...], x: Tensor) -> Tensor:
    """Return a partial derivative of sin(x_1 + .. + x_d)."""
    return torch.sin(x.sum(-1) + sum(exponent) * pi / 2)


def exponentials(exponent: tuple[int, ...], x: Tensor) -> Tensor:
    """Return a partial derivative of exp(x_1 + .. + x_d - d)."""
    del exponent  # all are equal
    return torch.exp(x.sum(-1) - x.shape[-1])


FUNCTIONS: dict[str, Derivatives] = {"cos": cosines, "sin": waves, "exp": exponentials}
"""Functions of which every derivative is at most 1 on [0, 1]^d."""


def finest(dimension: int, order: int, error: float) -> SmoothNetwork:
    """Return the smallest network of Lemma 3 that is proved to reach an error."""
    n_cells = 1
    while (network := SmoothNetwork(dimension, order, n_cells)).bound > error:
        n_cells = max(n_cells + 1, int(1.02 * n_cells))
    return network


@statement("wang", "Lemma 3")
def deep_relu_networks_learn_smooth_functions(seed: int) -> Iterator[Comparison]:
    """Evaluate explicit networks, and count their layers and units down to small errors."""
    generator = torch.Generator().manual_seed(seed)
    for depth in (1, 4, 12):
        x = torch.linspace(0, 1, 2 ** (depth + 1) + 1, dtype=torch.float64)[:, None]
        error = float((square(depth)(x) - x * x).abs().max())
        case = f"x^2 on [0, 1], {square(depth).n_units} units, hidden layers: {depth}"
        yield at_most(error, 4.0 ** -(depth + 1), case, "largest error; 4^-(layers + 1)")
    x = 2 * torch.rand(10_000, 2, generator=generator, dtype=torch.float64) - 1
    error = float((product(6)(x)[:, 0] - x.prod(1)).abs().max())
    yield at_most(error, 4.0**-7, f"x y on [-1, 1]^2, {product(6).n_units} units", "largest error")
    for dimension, order in ((1, 2), (1, 4), (2, 2), (2, 3), (3, 2)):
        x = torch.rand(3000, dimension, generator=generator, dtype=torch.float64)
        for epsilon in (0.1, 0.01):
            network = finest(dimension, order, epsilon)
            size = f"d = {dimension}, n = {order}, {network.n_units:,} units"
            for name, function in FUNCTIONS.items():
                zeroth = function((0,) * dimension, x)
                error = float((network.values(function, x) - zeroth).abs().max())
                yield at_most(error, epsilon, f"{name}, {size}", "largest error; eps")
        errors = [10.0**-k for k in range(1, 13)]
        sizes = [finest(dimension, order, epsilon) for epsilon in errors]
        logs = [1 - log(epsilon) for epsilon in errors]
        layers = [network.n_layers / each for network, each in zip(sizes, logs, strict=True)]
        units = [
            network.n_units * epsilon ** (dimension / order) / each
            for network, epsilon, each in zip(sizes, errors, logs, strict=True)
        ]
        case = f"d = {dimension}, n = {order}, eps = 1e-4 to 1e-12 beside eps = 0.1 to 1e-3"
        for name, ratios in (("layers", layers), ("units", units)):
            yield at_most(max(ratios[3:]), max(ratios[:3]), case, f"largest c for {name}")


def pieces_on_a_line(network: ReluNetwork, n_points: int) -> int:
    """Count the linear pieces on [0, 1] of a network of one input by its active units."""
    values = (torch.arange(n_points, dtype=torch.float64)[:, None] + 0.5) / n_points
    patterns = []
    for matrix in network.matrices[:-1]:
        values = values @ matrix[:, :-1].mT + matrix[:, -1]
        patterns.append(values > 0)
        values = values.relu()
    active = torch.cat(patterns, dim=1)
    return 1 + int((active[1:] != active[:-1]).any(1).sum())


@statement("wang", "Lemma 4")
def shallow_relu_networks_need_many_units(seed: int) -> Iterator[Comparison]:
    r"""Follow the proof: networks have few pieces, and few pieces are far from what bends.

    If |f''| >= kappa on a segment of length l, then a line is off by at least kappa h^2 / 16 on a
    part of length h, and p pieces by kappa l^2 / (16 p^2). A network of L - 1 hidden layers and U
    units has at most (2 U)^(L-1) pieces. So c(f, L) = (kappa l^2 / 16)^(1 / (2 (L-1))) / 2.
    """
    generator = torch.Generator().manual_seed(seed)
    for depth in (2, 3, 4):
        most = 0
        for _ in range(50):
            sizes = [1, *[6] * (depth - 1), 1]
            matrices = tuple(
                torch.randn(n, m + 1, generator=generator, dtype=torch.float64)
                for m, n in pairwise(sizes)
            )
            most = max(most, pieces_on_a_line(ReluNetwork(matrices), 4001))
        allowed = (2 * 6 * (depth - 1)) ** (depth - 1)
        case = f"50 random networks, L = {depth}, 6 units in each layer"
        yield at_most(most, allowed, case, "pieces on [0, 1]; (2 U)^(L-1)")
    bent = {"x^2": (torch.square, 2.0), "cos x": (torch.cos, 0.5403), "e^x": (torch.exp, 1.0)}
    for name, (function, curvature) in bent.items():
        for n_pieces in (1, 4, 16, 64):
            x = torch.linspace(0, 1 / n_pieces, 1001, dtype=torch.float64)
            starts = torch.arange(n_pieces, dtype=torch.float64)[:, None] / n_pieces
            values = function(starts + x)
            chord = values[:, :1] + (values[:, -1:] - values[:, :1]) * x * n_pieces
            above = chord - values  # of one sign: the best line is halfway between
            best = float(((above.amax(1) - above.amin(1)) / 2).max())
            allowed = curvature / 16 / n_pieces**2
            case = f"{name}, the best lines on {n_pieces} equal pieces"
            yield at_most(allowed, (1 + 1e-6) * best, case, "kappa l^2 / (16 p^2); largest error")
    for hidden in (1, 2, 3, 4):
        network, exponent = square(hidden), 1 / (2 * hidden)
        constant = (2 / 16) ** exponent / 2
        allowed = network.n_units
        case = f"x^2 by iterated hats, L = {hidden + 1}"
        needed = constant * (4.0 ** (hidden + 1)) ** exponent
        yield at_most(needed, allowed, case, "c eps^(-1/(2(L-1))); units")
    for n_cells in (1, 4, 16):
        smooth = SmoothNetwork(1, 3, n_cells)
        x = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
        error = float((smooth.values(cosines, x) - torch.cos(x[:, 0])).abs().max())
        exponent = 1 / (2 * smooth.n_layers)
        needed = (0.5403 / 16 / error) ** exponent / 2
        case = f"cos x by the network of Lemma 3, L = {smooth.n_layers + 1}"
        yield at_most(needed, smooth.n_units, case, "c eps^(-1/(2(L-1))); units")
