"""The backward pass: Lemma 5, whose layers are exact, and Lemma 6, which bounds s and its error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from icgd.layers import ProductLayer
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.forward import forward_constant, true_reach
from icgd_papers.theorems.wu.network import (
    EXACT,
    TANH_BEND,
    deltas,
    draw,
    normal,
    outputs,
    random_inputs,
    random_matrices,
    slopes,
    squared_slope,
    tanh_slope,
)
from icgd_papers.theorems.wu.norms import product_norm
from icgd_papers.theorems.wu.sums import SumOfRelus


def lemma_5(seed: int) -> Finding:
    """The product layers of a compiled relu-stack, beside the recursion for s."""
    target = MLP((3, 4, 4, 2), "tanh", "tanh")
    problem = Problem(target, "squared", GradientStep(0.1, box=2.0), Domain(2.0, 2.0))
    compiled = compile(problem, "relu-stack", n_steps=1, pieces=16)
    x, depth = random_inputs(6, 3, seed), target.depth
    task = compiled.task(x, x[:, :2], seed=seed)
    trace = compiled.run_task(task, backend="literal", trace=True).trace
    after = {name: slot[2 * depth + 2, : len(x)] for name, slot in trace.items()}
    matrices = list(target.matrices(task.initial))
    bends = [after[f"slope_{j}"] for j in range(1, depth + 1)]
    wanted = deltas(matrices, bends, after["loss_slope"])
    off = max(float((after[f"delta_{j + 1}"] - s).abs().max()) for j, s in enumerate(wanted))
    products = [layer for layer in compiled.transformer().block if isinstance(layer, ProductLayer)]
    case = "a compiled relu-stack, 3-4-4-2 tanh"
    return Finding(
        right=(
            Comparison(f"s after the product layers of {case}", off, EXACT, "largest difference"),
            Comparison(f"product layers of {case}", float(len(products)), float(depth), "layers"),
            Comparison(f"norm (3.18), {case}", max(map(product_norm, products)), 1.0, "|theta|"),
        )
    )


@dataclass(frozen=True)
class Bounds:
    """What Lemma 6 starts from: sizes, Lipschitz constants and errors of the functions."""

    depth: int
    norm: float
    """P = max(sqrt(K), sqrt(d))."""
    vector: float
    """B_v."""
    slope: float
    """B_r'."""
    loss: float
    """B_l."""
    slope_lipschitz: float = 0.0
    loss_lipschitz: float = 0.0
    forward: float = 0.0
    """E_r."""

    @property
    def ratio(self) -> float:
        return self.slope * self.vector * self.norm

    @property
    def size(self) -> float:
        """B_s of (3.23)."""
        return max(self.ratio**m for m in range(self.depth)) * self.slope * self.loss

    def error(self, value: float, slope: float, loss: float) -> float:
        """E_s^r eps_r + E_s^r' eps_r' + E_s^l eps_l, with the maximum over j in each."""
        sums = [sum(self.ratio**power for power in range(m)) for m in range(self.depth)]
        powers = [self.ratio**m for m in range(self.depth)]
        pairs = list(zip(sums, powers, strict=True))
        carried = self.slope_lipschitz * self.forward * self.vector
        by_slope = max(
            self.norm * self.size * self.vector * s + power * self.loss for s, power in pairs
        )
        by_value = max(
            carried * self.norm * self.size * self.vector * s
            + power * (self.loss * carried + self.slope * self.loss_lipschitz * self.forward)
            for s, power in pairs
        )
        return by_value * value + by_slope * slope + max(powers) * self.slope * loss


def lemma_6(seed: int) -> Finding:
    """V_2 with all weights in one column, and random networks with approximated functions."""
    width, eps = 16, 1e-3
    column = torch.zeros(width, width, dtype=torch.float64)
    column[:, 0] = 1.0  # every row has norm 1, the first column has norm 4
    ones = torch.ones(1, width, dtype=torch.float64)
    real = deltas([column, column], [ones, ones], ones)
    found = deltas([column, column], [ones, ones], (1 + eps) * ones)
    largest = max(float(s.abs().max()) for s in real)
    off = max(float((a - b).abs().max()) for a, b in zip(real, found, strict=True))
    rows = Bounds(2, sqrt(width), 1.0, 1.0, 1.0)
    columns = Bounds(2, sqrt(width), sqrt(width), 1.0, 1.0)
    case = "16-16-16 identity, all weights of V_2 in one column, u = 1"

    def pair(bounds: Bounds) -> tuple[Comparison, Comparison]:
        return (
            Comparison(f"{case}: |s|", largest, bounds.size, "largest entry"),
            Comparison(f"{case}: error of s", off, bounds.error(0.0, 0.0, eps), "largest entry"),
        )

    return Finding(right=(*pair(columns), _random_share(seed)), printed=pair(rows))


def _random_share(seed: int) -> Comparison:
    """The error of s over its bound with column norms, for a random tanh network."""
    widths, pieces = (4, 8, 8, 3), 64
    matrices, x = random_matrices(widths, seed), random_inputs(8, 4, seed)
    y = normal(draw(seed + 2), 8, 3)
    reach = true_reach(torch.tanh, 1.0, 1.0, widths)
    value, slope = (SumOfRelus(curve, reach, pieces) for curve in (torch.tanh, tanh_slope))
    p, q = outputs(matrices, x, torch.tanh), outputs(matrices, x, value)
    bends, near = slopes(matrices, p, tanh_slope), slopes(matrices, q, slope)
    u, g = squared_slope(p[-1], y), squared_slope(q[-1], y)
    off = _largest_gap(deltas(matrices, bends, u), deltas(matrices, near, g))
    vector = max(float(m.norm(dim=axis).max()) for m in matrices for axis in (0, 1))
    bounds = Bounds(
        depth=3,
        norm=sqrt(8),
        vector=vector,
        slope=_largest(*bends, *near),
        loss=_largest(u, g),
        slope_lipschitz=TANH_BEND,
        loss_lipschitz=2.0,
        forward=forward_constant(widths, 1.0, 1.0),
    )
    share = off / bounds.error(value.error, slope.error, 0.0)
    return Comparison("4-8-8-3 tanh, random, 64 pieces: error of s", share, 1.0, "of the bound")


def _largest(*tensors: Tensor) -> float:
    return max(float(tensor.abs().max()) for tensor in tensors)


def _largest_gap(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return _largest(*(a - b for a, b in zip(left, right, strict=True)))


LEMMA_5 = Statement(
    paper="wu",
    label="Lemma 5",
    claim=(
        "N element-wise multiplication layers with weights of norm 1 compute the recursion for s"
        " from the approximated derivatives without any further error."
    ),
    formula="s'(N) = r'(N-1) * g, s'(j) = r'(j-1) * (V_{j+1}^T s'(j+1)), |theta| <= 1",
    check=lemma_5,
)

LEMMA_6 = Statement(
    paper="wu",
    label="Lemma 6",
    claim=(
        "The approximated s is bounded by B_s, and its error by constants times those of r, r' and"
        " u, in both of which a layer costs a factor P B_r' B_v, where B_v bounds the rows of V."
    ),
    formula=(
        "|s(j)[k]| <= B_s = max_j (P B_r' B_v)^(N-j) B_r' B_l,"
        " |s' - s| <= E_s^r eps_r + E_s^r' eps_r' + E_s^l eps_l"
    ),
    check=lemma_6,
    correction=(
        "(D.15) multiplies by V^T, whose rows are the columns of V: B_v has to bound the norms of"
        " columns as well as of rows."
    ),
)
