r"""The network of Definition 1 and the quantities of Definitions 2 and 3, written out plainly.

    p_i(0) = x_i,  p_i(j) = r(V_j p_i(j-1)),  r'_i(j) = r'(V_{j+1} p_i(j))
    s_i(N) = r'_i(N-1) * u,  s_i(j) = r'_i(j-1) * (V_{j+1}^T s_i(j+1))

Nothing of it is shared with the oracles of icgd. A row of a tensor is an example.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from icgd_papers.theorems.wu.sums import Curve

Matrices = Sequence[Tensor]

EXACT = 1e-12
"""What rounding may change of numbers of order 1."""


def draw(seed: int) -> torch.Generator:
    """A source of random numbers."""
    return torch.Generator().manual_seed(seed)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def random_matrices(widths: Sequence[int], seed: int, row_norm: float = 1.0) -> list[Tensor]:
    """V_1 .. V_N, every row of which has the norm B_v."""
    source = draw(seed)
    drawn = [normal(source, *shape) for shape in zip(widths[1:], widths[:-1], strict=True)]
    return [row_norm * _unit_rows(matrix) for matrix in drawn]


def random_inputs(n: int, width: int, seed: int, norm: float = 1.0) -> Tensor:
    """Inputs x_i on the sphere of radius B_x."""
    return norm * _unit_rows(normal(draw(seed + 1), n, width))


def _unit_rows(matrix: Tensor) -> Tensor:
    scaled: Tensor = matrix / torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
    return scaled


def outputs(matrices: Matrices, x: Tensor, r: Curve) -> list[Tensor]:
    """p(0) .. p(N)."""
    found = [x]
    for matrix in matrices:
        found.append(r(found[-1] @ matrix.mT))
    return found


def slopes(matrices: Matrices, values: Sequence[Tensor], slope: Curve) -> list[Tensor]:
    """r'(0) .. r'(N-1), at the outputs `values`."""
    return [slope(p @ matrix.mT) for matrix, p in zip(matrices, values[:-1], strict=True)]


def deltas(matrices: Matrices, bends: Sequence[Tensor], u: Tensor) -> list[Tensor]:
    """s(1) .. s(N), by the recursion (3.7)."""
    found = [bends[-1] * u]
    for matrix, bend in zip(reversed(matrices[1:]), reversed(bends[:-1]), strict=True):
        found.insert(0, bend * (found[0] @ matrix))
    return found


def gradient(values: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
    """The gradient (3.6): (1 / 2n) sum_i of the blocks A_i(j) = s_i(j) p_i(j-1)^T."""
    blocks = [s.mT @ p for s, p in zip(found, values[:-1], strict=True)]
    return torch.cat([block.flatten() for block in blocks]) / (2 * len(values[0]))


def tanh_slope(z: Tensor) -> Tensor:
    """The derivative of tanh."""
    return 1 - torch.tanh(z) ** 2


TANH_BEND = 0.7698003589195011
"""The largest |tanh''|: 4 / (3 sqrt(3))."""


def squared_slope(p: Tensor, y: Tensor) -> Tensor:
    """u of the squared loss."""
    return 2 * (p - y)
