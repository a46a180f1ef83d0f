r"""Least squares with coefficients of at least 0, by the active set method of Lawson and Hanson.

Columns enter one by one, the one along which the residual falls fastest first; a column whose
coefficient would turn negative leaves again. The residual falls at every turn, so no set of columns
comes twice and the method ends; it takes about as many turns as columns are used.
"""

from __future__ import annotations

from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDING = 1e-13
"""A column enters only if it gains more than this, relative to its length and the target's."""

TURNS_PER_COLUMN = 3
"""The customary limit on turns; it is far above what is needed."""

Columns = Float[Tensor, "row column"]
Target = Float[Tensor, "row"]
Coefficients = Float[Tensor, "column"]


def nonnegative_least_squares(matrix: Columns, target: Target) -> Coefficients:
    """The u >= 0 that minimises |matrix u - target|; O(rows * columns) a turn."""
    found = torch.zeros_like(matrix[0])
    used = torch.zeros_like(found, dtype=torch.bool)
    least_gain = ROUNDING * target.norm() * matrix.norm(dim=0)
    for _ in range(TURNS_PER_COLUMN * matrix.shape[1]):
        gains = matrix.mT @ (target - matrix @ found) - least_gain
        entering = int(torch.where(used, -inf, gains).argmax())
        if used[entering] or gains[entering] <= 0:
            break
        used[entering] = True
        found = _settled(matrix, target, found, used)
        if not used[entering]:  # only rounding lets a column leave that has just entered
            break
    return found


def _settled(matrix: Columns, target: Target, found: Coefficients, used: Tensor) -> Coefficients:
    """The best coefficients of the used columns; takes out of `used` what would turn negative."""
    best = _best(matrix, target, used)
    while (falling := used & (best <= 0)).any():
        # Towards the best until the first coefficient is 0; that column leaves.
        shares = torch.where(falling, found / (found - best).clamp(min=1e-300), inf)
        leaving = int(shares.argmin())
        found = found + shares[leaving] * (best - found)
        found[leaving], used[leaving] = 0.0, False
        best = _best(matrix, target, used)
    return best


def _best(matrix: Columns, target: Target, used: Tensor) -> Coefficients:
    """Plain least squares over the used columns."""
    best = torch.zeros_like(matrix[0])
    if used.any():
        solution = torch.linalg.lstsq(matrix[:, used], target.unsqueeze(-1)).solution
        best[used] = solution.squeeze(-1)
    return best
