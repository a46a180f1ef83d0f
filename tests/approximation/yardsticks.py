"""What fits are measured against in tests and benchmarks; the library itself needs none of it."""

from math import ceil, exp, log, pi, sqrt

import torch
from torch import Tensor

from icgd.approximation.lattice import Lattice
from icgd.approximation.ridge import units_of
from icgd.problems.functions import SmoothFunction
from icgd.program.functions import RidgeSum


def choose_lattice(reach: float, accuracy: float) -> Lattice:
    """The lattice with the fewest points that gives lines on [-reach, reach] this accuracy.

    One cell on either side is enough for any reach; the rest is margin.
    """
    relative = accuracy / reach
    ratio = 0.5
    while 4 * pi * ratio**2 * exp(-2 * pi**2 * ratio**2) > relative / 4:
        ratio += 0.01
    margin = ceil(ratio * sqrt(2 * log(8 / relative)))
    return Lattice(reach, reach, ratio, 1 + margin)


def asymptotic_optimum(function: SmoothFunction, low: float, high: float, pieces: int) -> float:
    """(integral sqrt|f''|)^2 / (16 pieces^2): no continuous fit beats it for many pieces."""
    z = torch.linspace(low, high, 200_001, dtype=torch.float64)
    integral = torch.trapezoid(function.tower[2](z).abs().sqrt(), z)
    return float(integral) ** 2 / (16 * pieces**2)


def evaluate(fit: RidgeSum, z: Tensor) -> Tensor:
    """The sum at points along the last axis of `z`, in the arithmetic of `z`."""
    return units_of(fit, z.dtype)(z)
