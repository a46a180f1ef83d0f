r"""Gradient descent in context: Theorems 1 and 2, Remark 2 and Equation (4).

`recursion` is this transformer, with any activation in attention and MLPs.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from icgd.compiled import Compiled
from icgd.constructions.recursion import Recursion, literal_layers
from icgd.pipeline import compile
from icgd.weights.sizes import Summary
from icgd_papers.studies.wang_steps import N_TASKS, STEP, tanh_problem, worst_step
from icgd_papers.theorems.statement import Comparison, Finding, Statement

EPS = 0.01

TANH_UNITS = Recursion(units=64, unit_activation="tanh")

EXACT = 1e-12
"""What rounding may change of numbers of order 1."""


@lru_cache(maxsize=16)
def _compiled(widths: tuple[int, ...], activation: str, units: int) -> Compiled:
    """A recursion for two steps with `units` units for each function."""
    return compile(tanh_problem(widths), Recursion(units, activation), n_steps=2)


def _follows(widths: tuple[int, ...], activation: str, units: int, seed: int) -> Comparison:
    case = f"{'-'.join(map(str, widths))} tanh, {units} {activation} units a function"
    worst = worst_step(_compiled(widths, activation, units), seed)
    return Comparison(case, worst, STEP * EPS, f"worst |eps(w)|_2 of {N_TASKS} tasks; eta eps")


def theorem_1(seed: int) -> Finding:
    """Errors, layers and heads for two layers; and what closeness in L^2 allows."""
    widths = (2, 3, 1)
    layers = _compiled(widths, "relu", 96).stack.layers_per_step
    return Finding(
        right=(
            _follows(widths, "sigmoid", 240, seed),
            _follows(widths, "relu", 96, seed),
            _rate(widths, seed),
            Comparison("sub-layers of a step", float(layers), 4.0, "2 attention, 2 MLP"),
            _with_bump(0.01, 0.01),
        ),
        printed=(_with_bump(1.0, 0.01),),
    )


def _rate(widths: tuple[int, ...], seed: int) -> Comparison:
    """Heads that are O(eps^-2): with 4 times the units the error is half as large at most."""
    coarse, fine = (worst_step(_compiled(widths, "relu", units), seed) for units in (24, 96))
    return Comparison("96 relu units for each function over 24", fine / coarse, 0.5, "of the error")


def bump(z: Tensor, height: float, eps: float) -> Tensor:
    """A hat at 1/2 of this height, made of three ReLUs, whose norm in L^2 is eps at most."""
    half = min(1.5 * (eps / height) ** 2, 0.5)
    corners = torch.relu((z - 0.5) / half + torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64))
    return height * (corners @ torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64))


def _with_bump(height: float, eps: float) -> Comparison:
    """A step of pred = u r(v x), v x = 1/2, with r = tanh plus a bump at 1/2; y = -1."""
    z = torch.tensor([0.5], dtype=torch.float64)
    real, found = torch.tanh(z), torch.tanh(z) + bump(z, height, eps)
    by_u = [(0.5 * r + 1.0) * r for r in (real, found)]  # the derivative by u at u = 1/2
    off = float(STEP * (by_u[1] - by_u[0]).abs())
    case = f"r off by a hat of height {height:g}, which is {eps:g} in L^2"
    return Comparison(
        case, off, 2 * STEP * eps, "|eps(w)|; 2 eta eps, as the loss slope is below 2"
    )


def theorem_2(seed: int) -> Finding:
    """Errors for three layers, and heads of four layers as the width doubles."""
    narrow, wide = (_four_layers(width) for width in (4, 8))
    heads, width = wide.max_heads / narrow.max_heads, wide.d_model / narrow.d_model
    case = "n = 4, K = 8 over K = 4"
    return Finding(
        right=(
            _follows((2, 3, 3, 1), "sigmoid", 240, seed),
            Comparison(f"heads, {case}", heads, 8.0, "times; n K^3"),
            Comparison(f"d_model, {case}", width, 8.0, "times; n K^3"),
        ),
        printed=(
            Comparison(f"heads, {case}", heads, 4.0, "times; n K^2"),
            Comparison(f"d_model, {case}", width, 4.0, "times; n K^2"),
        ),
    )


def _four_layers(width: int) -> Summary:
    return compile(tanh_problem((*[width] * 4, 1)), TANH_UNITS, n_steps=1).summary()


def remark_2(seed: int) -> Finding:
    """Layers for a network of 8 layers: by the paper's recursion, and compiled."""
    del seed  # nothing is drawn
    depth = 8
    compiled = compile(tanh_problem((*[2] * depth, 1)), TANH_UNITS, n_steps=1)
    case, unit = f"a network of {depth} layers", "layers; 2n + 1"
    layers = compiled.stack.layers_per_step
    return Finding(
        right=(Comparison(f"{case}, compiled", float(layers), 2.0 * depth + 1, unit),),
        printed=(Comparison(f"{case}, a_n", float(literal_layers(depth)), 2.0 * depth + 1, unit),),
    )


def equation_4(seed: int) -> Finding:
    """The gradient of L_N by the formula, with 1 / N and with 1 / 2N."""
    source, n = torch.Generator().manual_seed(seed), 5
    x, v, u, y = (torch.randn(*s, generator=source).double() for s in ((n, 2), (3, 2), (3,), (n,)))
    leaves = [v.requires_grad_(), u.requires_grad_()]
    prediction = torch.tanh(x @ v.mT) @ u
    real = torch.autograd.grad(((prediction - y) ** 2).sum() / (2 * n), leaves, retain_graph=True)
    by_weights = torch.autograd.grad(prediction, leaves, grad_outputs=2 * (prediction - y))

    def off(factor: float) -> float:
        gaps = [(factor * a - b).abs().max() for a, b in zip(by_weights, real, strict=True)]
        size = max(float(part.abs().max()) for part in real)
        return float(torch.stack(gaps).max()) / size

    case, unit = "2-3-1 tanh, 5 random examples", "difference to grad L_N, of its largest entry"
    return Finding(
        right=(Comparison(f"{case}, 1/2N", off(1 / (2 * n)), EXACT, unit),),
        printed=(Comparison(f"{case}, 1/N", off(1 / n), EXACT, unit),),
    )


THEOREM_1 = Statement(
    paper="wang",
    label="Theorem 1",
    claim=(
        "A transformer of 2 layers, with an activation of general decay, takes a projected gradient"
        " step on a 2-layer network with an error of norm eta eps for all data and weights, with"
        " O(eps^-2) heads and hidden units."
    ),
    formula="w+ = Proj(w - eta grad L_N(w) + eps(w)), |eps(w)| <= eta eps; M, D <= O(eps^-2)",
    check=theorem_1,
    correction=(
        "The proof has its functions close in L^2 alone, which allows any error at single data; it"
        " needs them close everywhere, as icgd's fits are."
    ),
)

THEOREM_2 = Statement(
    paper="wang",
    label="Theorem 2",
    claim=(
        "A transformer of a_n layers, a_n = O(n) + a_(n-1), takes a projected gradient step on an"
        " n-layer network with an error of norm eta eps, with O(n K^2 eps^-2) heads and hidden"
        " units."
    ),
    formula=(
        "w+ = Proj(w - eta grad L_N(w) + eps(w)), |eps(w)| <= eta eps; M, D <= O(n K^2 eps^-2)"
    ),
    check=theorem_2,
    correction=(
        "Jacobians have an entry for each of K units and n K^2 weights, and the proof has a head"
        " for each: n K^3 for n >= 4."
    ),
)

REMARK_2 = Statement(
    paper="wang",
    label="Remark 2",
    claim="The number of layers for an n-layer network is of order n^2.",
    formula="a_n = O(n^2)",
    check=remark_2,
    correction=(
        "The recursion computes the same Jacobians again for each of n levels. Shared, they take"
        " 2n + 1 layers; icgd's recursion takes n + 2 sub-layers."
    ),
)

EQUATION_4 = Statement(
    paper="wang",
    label="Equation (4)",
    claim="The gradient of the loss is the mean of the derivatives of l times those of pred.",
    formula="grad L_N(w) = (1/N) sum_i d_1 l(pred(x_i; w), y_i) grad pred(x_i; w)",
    check=equation_4,
    correction="L_N is defined with 1/2N, so its gradient has 1/2N too.",
)
