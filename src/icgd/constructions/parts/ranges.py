r"""How large the quantities of a training run can become on the domain.

    |z_j| <= k_{j-1} box max|p_{j-1}|,   |p_j| <= max |r| on [-|z_j|, |z_j|]

A construction fits its functions on these ranges. Outputs get a `margin` on top, for the error
of the fitted activation itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from icgd.problems.functions import ScalarFunction
from icgd.problems.problem import Problem


@dataclass(frozen=True)
class Ranges:
    """Largest sizes over the whole domain: of preactivations and of layer outputs p_0 .. p_N."""

    preactivations: tuple[float, ...]
    outputs: tuple[float, ...]


def ranges_on_domain(problem: Problem, margin: float) -> Ranges:
    """Propagate the bounds of the domain and the box through the target network."""
    target = problem.target
    preactivations: list[float] = []
    outputs = [problem.domain.x]
    for layer, fan_in in enumerate(target.widths[:-1], start=1):
        preactivations.append(fan_in * problem.update.box * outputs[-1])
        value = target.layer_activation(layer).value
        outputs.append(largest_size(value, preactivations[-1]) + margin)
    return Ranges(tuple(preactivations), tuple(outputs))


def largest_size(function: ScalarFunction, reach: float) -> float:
    """max |f| on [-reach, reach]."""
    end = torch.tensor(reach, dtype=torch.float64)
    least, largest = function.bounds(-end, end)
    return float(torch.maximum(-least, largest))
