r"""The forward pass by sums of ReLUs: Lemmas 2, 3 and 4.

Each lemma takes functions that are close to r, r' or u on an interval, lets layers evaluate them,
and bounds what comes out. Whether the arguments stay in the interval decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import softplus

from icgd.compiled import Compiled
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.instructions import ApplyUnits
from icgd.program.program import Layer
from icgd.weights.lowering import lower_layer
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.network import (
    TANH_BEND,
    outputs,
    random_inputs,
    random_matrices,
    slopes,
    tanh_slope,
)
from icgd_papers.theorems.wu.norms import coefficients, layer_norm
from icgd_papers.theorems.wu.sums import Curve, SumOfRelus, largest

PIECES = 64

OF_BOUND = "of the bound"

COMPILED = "a compiled 6-2-6 tanh relu-stack"


def printed_bound(r: Curve, row: float, x: float, depth: int) -> float:
    """B_r = max_j B_r^j, with B_r^0 = B_x and B_r^j = max |r(t)| for |t| <= B_v B_r^(j-1)."""
    found = [x]
    for _ in range(depth):
        found.append(largest(r, row * found[-1]))
    return max(found)


def true_reach(r: Curve, row: float, x: float, widths: Sequence[int], room: float = 0.05) -> float:
    """What no argument v . p exceeds: |p(j)|_2 <= sqrt(K) (B_r^j + room), where K units are."""
    norms = [x]
    for width in widths[1:-1]:
        norms.append(sqrt(width) * (largest(r, row * norms[-1]) + room))
    return max(row * max(norms), 1.0)


def forward_constant(widths: Sequence[int], lipschitz: float, row: float) -> float:
    """E_r of (3.10): (sum_{l<N} (sqrt(K) L_r B_v)^l) max(sqrt(K), sqrt(d))."""
    depth, widest = len(widths) - 1, max(widths[1:-1], default=1)
    growth = sqrt(widest) * lipschitz * row
    return sum(growth**power for power in range(depth)) * sqrt(max(widest, widths[-1]))


@dataclass(frozen=True)
class Case:
    """A network, an input, and bounds on its rows and its input."""

    matrices: list[Tensor]
    x: Tensor
    row: float
    norm: float

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.x.shape[1], *(len(matrix) for matrix in self.matrices))

    def off(self, r: Curve, stand_in: Curve) -> float:
        """The largest |p(j) error|_2 of any layer, if `stand_in` is evaluated for r."""
        real, found = (outputs(self.matrices, self.x, curve) for curve in (r, stand_in))
        return max(float((a - b).norm(dim=1).max()) for a, b in zip(real, found, strict=True))


def _aligned(width: int = 16) -> Case:
    """Rows of norm 1 along their inputs: the second layer sees sqrt(K) tanh(1)."""
    first = torch.zeros(width, 4, dtype=torch.float64)
    first[:, 0] = 1.0
    second = torch.full((4, width), 1 / sqrt(width), dtype=torch.float64)
    return Case([first, second], first[:1, :], row=1.0, norm=1.0)


def _random(seed: int) -> Case:
    matrices = random_matrices((4, 16, 16, 4), seed)
    return Case(matrices, random_inputs(8, 4, seed), row=1.0, norm=1.0)


def lemma_2(seed: int) -> Finding:
    """Tanh by 64 pieces on the printed interval and on one that holds all arguments."""

    def share(case: Case, reach: float) -> float:
        stand_in = SumOfRelus(torch.tanh, reach, PIECES)
        bound = forward_constant(case.widths, 1.0, case.row) * stand_in.error
        return case.off(torch.tanh, stand_in) / bound

    aligned, random = _aligned(), _random(seed)
    printed = max(printed_bound(torch.tanh, 1.0, 1.0, depth=2), 1.0)
    narrow, wide = "4-16-4 tanh, rows along their inputs", "4-16-16-4 tanh, random"
    norm, total = _norm_of_layer("tanh")
    words = f"layer N of the prediction by {COMPILED}"
    return Finding(
        right=(
            Comparison(narrow, share(aligned, _reach(aligned)), 1.0, OF_BOUND),
            Comparison(wide, share(random, _reach(random)), 1.0, OF_BOUND),
            Comparison(words, norm, 1 + 6 * total, "norm; 1 + max(K, d) C_1"),
        ),
        printed=(
            Comparison(narrow, share(aligned, printed), 1.0, OF_BOUND),
            Comparison(words, norm, 1 + 2 * total, "norm; 1 + K C_1"),
        ),
    )


@lru_cache(maxsize=1)
def _compiled() -> Compiled:
    target = MLP((6, 2, 6), "tanh", "tanh")
    problem = Problem(target, "squared", GradientStep(0.1, box=1.0), Domain(1.0, 1.0))
    return compile(problem, "relu-stack", n_steps=1, pieces=16)


def _n_slopes() -> float:
    """The number of derivatives that it writes."""
    layout = _compiled().stack.layout
    return float(sum(layout.slot(name).width for name in ("slope_1", "slope_2")))


def _norm_of_layer(function: str) -> tuple[float, float]:
    """The norm (C.1) of a layer of a compiled 6-2-6 tanh relu-stack, and C of its function.

    For r it is the last that predicts. Slopes have no layer of their own there: theirs is that of
    Lemma 3, with the program's sum of ReLUs.
    """
    program = _compiled().stack
    layer = program.prediction[1]
    if function == "tanh'":
        first = ApplyUnits("weights_1", "x", function, "slope_1")
        second = ApplyUnits("weights_2", "units_1", function, "slope_2")
        layer = Layer("slopes", (first, second))
    norm = layer_norm(lower_layer(layer, program, torch.float64))
    return norm, coefficients(program.relu_sum(function))


def _reach(case: Case) -> float:
    return true_reach(torch.tanh, case.row, case.norm, case.widths)


def lemma_3(seed: int) -> Finding:
    """The slopes at the approximated outputs, softplus with one unit and tanh with many."""
    one = torch.ones(1, 1, dtype=torch.float64)
    single, random = Case([2 * one, 2 * one], one, row=2.0, norm=1.0), _random(seed)
    printed = max(2 * printed_bound(torch.sigmoid, 2.0, 1.0, depth=2), 1.0)
    wide = true_reach(softplus, 2.0, 1.0, single.widths)
    small = "1-1-1 softplus, weights 2, x = 1"
    norm, total = _norm_of_layer("tanh'")
    words, n_slopes = f"the layer of slopes for {COMPILED}", _n_slopes()
    return Finding(
        right=(
            Comparison(small, _slope_share(single, softplus, torch.sigmoid, wide), 1.0, OF_BOUND),
            Comparison(
                "4-16-16-4 tanh, random",
                _slope_share(random, torch.tanh, tanh_slope, _reach(random)),
                1.0,
                OF_BOUND,
            ),
            Comparison(words, norm, 1 + (2 * 1 + 6) * total, "norm; 1 + (K (N-1) + d) C_2"),
            Comparison(words, n_slopes, 8.0, "derivatives; (N-1) K + d"),
        ),
        printed=(
            Comparison(
                small, _slope_share(single, softplus, torch.sigmoid, printed), 1.0, OF_BOUND
            ),
            Comparison(words, norm, 1 + 2 * 1 * total, "norm; 1 + K (N-1) C_2"),
            Comparison(words, n_slopes, 6.0, "derivatives; (N-2) K + d"),
        ),
    )


def _slope_share(case: Case, r: Curve, slope: Curve, reach: float) -> float:
    """The error of r' over eps_r' + L_r' B_v E_r eps_r, with r itself always on a wide interval."""
    wide = SumOfRelus(r, true_reach(r, case.row, case.norm, case.widths), PIECES)
    stand_in = SumOfRelus(slope, reach, PIECES)
    bend = TANH_BEND if r is torch.tanh else 0.25  # of tanh', and of softplus' = sigmoid
    carried = bend * case.row * forward_constant(case.widths, 1.0, case.row) * wide.error
    real = slopes(case.matrices, outputs(case.matrices, case.x, r), slope)
    found = slopes(case.matrices, outputs(case.matrices, case.x, wide), stand_in)
    off = max(float((a - b).abs().max()) for a, b in zip(real, found, strict=True))
    return off / (stand_in.error + carried)


def lemma_4(seed: int) -> Finding:
    """The loss slope sigmoid(p) - y at a softplus output p, and the norm of the MLP."""
    del seed  # nothing is drawn
    row, x, depth = 0.9, 2.0, 2
    one = torch.ones(1, 1, dtype=torch.float64)
    case = Case([row * one, row * one], x * one, row=row, norm=x)
    bound = printed_bound(softplus, row, x, depth)
    printed, right = max(row * bound, 1.0), max(bound + 0.05, 1.0)
    words = "1-1-1 softplus, weights 0.9, x = 2"
    return Finding(
        right=(
            Comparison(words, _loss_share(case, right), 1.0, OF_BOUND),
            _mlp_norm(right, is_scaled=True),
        ),
        printed=(
            Comparison(words, _loss_share(case, printed), 1.0, OF_BOUND),
            _mlp_norm(printed, is_scaled=False),
        ),
    )


def _loss_share(case: Case, reach: float) -> float:
    """The error of u over eps_l + L_l E_r eps_r; the logistic slope is 1/4-Lipschitz."""
    wide = SumOfRelus(softplus, true_reach(softplus, case.row, case.norm, case.widths), 512)
    stand_in = SumOfRelus(torch.sigmoid, reach, PIECES)
    carried = 0.25 * forward_constant(case.widths, 1.0, case.row) * wide.error
    real, found = (outputs(case.matrices, case.x, r)[-1] for r in (softplus, wide))
    off = float((stand_in(found) - torch.sigmoid(real)).abs().max())
    return off / (stand_in.error + carried)


def _mlp_norm(reach: float, is_scaled: bool) -> Comparison:
    """|W_1|_1 + |W_2|_1 of the MLP that evaluates sigmoid(p) - y where t = 1.

    Row m of W_1 reads a_m[1] p + a_m[2] y + a_m[3] - R (1 - t); it may be scaled by |c_m|.
    """
    scales, shifts, coefficients = SumOfRelus(torch.sigmoid, reach, PIECES).terms
    zeros, label = torch.zeros_like(scales), scales.new_tensor([1.0, -1.0])
    by_p, by_y = torch.cat([scales, 0 * label]), torch.cat([zeros, label])
    shift, c = torch.cat([shifts, 0 * label]), torch.cat([coefficients, -label])
    size = c.abs() if is_scaled else torch.ones_like(c)
    reads = torch.stack([by_p, by_y, shift - reach, torch.full_like(c, reach)], dim=1)
    writes = 1.0 if is_scaled else float(c.abs().max())
    norm = float((size[:, None] * reads).abs().sum(0).max()) + writes
    total = float(c.abs().sum())
    allowed = (reach + 1) * total + 1 if is_scaled else max(reach + 1, total)
    words = "scaled by |c|" if is_scaled else "as printed"
    return Comparison(f"norm of the MLP for sigmoid(p) - y, {words}", norm, allowed, "|theta|")


LEMMA_2 = Statement(
    paper="wu",
    label="Lemma 2",
    claim=(
        "N attention layers, made from a sum of ReLUs that is close to r on an interval, compute"
        " every layer's output with an error that grows by sqrt(K) L_r B_v from layer to layer,"
        " and their weights have norm 1 + K C_1 at most."
    ),
    formula=(
        "|p(j) - p'(j)|_2 <= (sum_{l<j} (sqrt(K) L_r B_v)^l) sqrt(K) eps_r,"
        " R_1 = max(B_v B_r, 1), B_r^j = max_{|t| <= B_v B_r^(j-1)} |r(t)|, |theta_j| <= 1 + K C_1"
    ),
    check=lemma_2,
    correction=(
        "B_r^j bounds single outputs, and v . p can be sqrt(K) times as large: R_1 needs"
        " sqrt(K) B_v (B_r + E_r eps_r). The last layer has d units: 1 + max(K, d) C_1."
    ),
)

LEMMA_3 = Statement(
    paper="wu",
    label="Lemma 3",
    claim=(
        "One attention layer, made from a sum of ReLUs that is close to r' on an interval,"
        " computes all derivatives, and its weights have norm 1 + K (N-1) C_2 at most."
    ),
    formula=(
        "|r'_i(j-1)[k] error| <= eps_r' + L_r' B_v E_r eps_r, R_2 = max(B_v B_r', 1),"
        " B_r'^j = max_{|t| <= B_v B_r'^(j-1)} |r'(t)|, |theta| <= 1 + K (N-1) C_2"
    ),
    check=lemma_3,
    correction=(
        "r' is taken at v . p, so its interval is that of Lemma 2, not one made from bounds on r'."
        " There are K (N-1) + d derivatives: that many heads, and |theta| <= 1 + (K (N-1) + d) C_2."
    ),
)

LEMMA_4 = Statement(
    paper="wu",
    label="Lemma 4",
    claim=(
        "One MLP, made from a sum of ReLUs that is close to the slope of the loss on an interval,"
        " computes that slope on examples and 0 on the query, with weights of norm"
        " max(R_3 + 1, C_3) at most."
    ),
    formula=(
        "|g_i[k] - u(p_i(N), y_i)[k]| <= eps_l + L_l E_r eps_r, R_3 = max(B_v B_r, B_y, 1),"
        " |theta| <= max(R_3 + 1, C_3)"
    ),
    check=lemma_4,
    correction=(
        "p(N) is bounded by B_r, not by B_v B_r: R_3 = max(B_r + E_r eps_r, B_y, 1). The printed"
        " W_1 has |W_1|_1 of order M_3 R_3, as a column is summed; with its rows scaled by |c_m|"
        " the norm is (R_3 + 1) C_3 + 1 at most."
    ),
)
