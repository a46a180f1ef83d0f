r"""Theorems 1 and 5: a transformer of (2N + 4) L layers follows L steps of gradient descent.

relu-stack is this transformer. `icgd.compile` with a tolerance takes as many pieces as prove
|eps^(l)| <= eta eps for every task in the domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import sqrt, tanh

import torch
from torch import Tensor

from icgd.backends.registry import AUTO
from icgd.compiled import Compiled
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.backward import Bounds
from icgd_papers.theorems.wu.forward import printed_bound
from icgd_papers.theorems.wu.network import (
    EXACT,
    deltas,
    draw,
    gradient,
    outputs,
    slopes,
)
from icgd_papers.theorems.wu.norms import attention_norm, coefficients

STEP, BOX = 0.1, 1.0
N_STEPS = 3
N_TASKS = 32
WIDTHS = (2, 3, 2)


@lru_cache(maxsize=16)
def compiled_stack(widths: tuple[int, ...], eps: float, activation: str = "tanh") -> Compiled:
    """A relu-stack, every step of which is proved to err by less than eta eps in norm."""
    problem = _problem(MLP(widths, activation, activation))
    tolerance = STEP * eps / sqrt(problem.network.n_parameters)
    return compile(problem, "relu-stack", n_steps=N_STEPS, tolerance=tolerance)


def _problem(target: MLP) -> Problem:
    return Problem(target, "squared", GradientStep(STEP, box=BOX), Domain(1.0, 1.0))


def step_error(compiled: Compiled, x: Tensor, y: Tensor, initial: Tensor) -> float:
    """The largest |eps^(l)|_2 of a run: what its step differs by from the exact step."""
    task, oracle = compiled.task(x, y, initial=initial), compiled.problem.oracle
    path = compiled.run_task(task, backend=AUTO).parameters
    step = oracle.exact_step(task)
    steps = range(path.shape[-2] - 1)
    errors = [(path[..., i + 1, :] - step(path[..., i, :], i)).norm(dim=-1) for i in steps]
    return float(torch.stack(errors).max())


def _worst_step(compiled: Compiled, seed: int) -> float:
    """The worst step of some random tasks in the domain, weights anywhere in the box."""
    target, source = compiled.problem.network, draw(seed)
    shapes = ((6, target.input_width), (6, target.output_width), (target.n_parameters,))
    drawn = (torch.rand(N_TASKS, *s, generator=source, dtype=torch.float64) for s in shapes)
    return step_error(compiled, *(2 * numbers - 1 for numbers in drawn))


def theorem_1(seed: int) -> Finding:
    """Errors, layers, heads and width of the transformer; the two constants of its proof."""
    grown, case = _gradient_error()
    norm, words = _norms((4, 8, 4))
    return Finding(
        right=(
            *_follows(WIDTHS, seed),
            _heads(WIDTHS),
            _width(),
            _same_form(seed),
            Comparison(f"{case}, with P B_r", grown, _gradient_bound(1.0), "|gradient error|_2"),
            Comparison(words, norm, _norm_bound((4, 8, 4)), "norm (C.1), Lemmas 2 and 3"),
        ),
        printed=(
            Comparison(
                f"{case}, with sqrt(P) B_r", grown, _gradient_bound(0.5), "|gradient error|_2"
            ),
            Comparison(words, norm, _printed_norm((4, 8, 4)), "norm (C.1), 2 eta N K + C_w + 1"),
            _least_norm(1e9),
        ),
    )


def _least_norm(height: float) -> Comparison:
    """What a layer needs to write p = height * tanh(1) in a 1-1-1 network, however it is scaled.

    With |Q|_1, |K|_1 <= b and sum |V|_1 <= c a layer writes b^2 c |h|_1^3 at most, and b + c = B
    makes this 4 B^3 |h|_1^3 / 27. A token has x, y, two weights, 1 and t, each 1 at most.
    """
    written, token = height * tanh(1.0), 6.0
    least = float((27 * written / (4 * token**3)) ** (1 / 3))
    case = f"a layer that writes p of 1-1-1, r = {height:g} tanh"
    return Comparison(case, least, _printed_norm((1, 1, 1)), "norm (C.1), 2 eta N K + C_w + 1")


def theorem_5(seed: int) -> Finding:
    """The same with 5 inputs and 2 outputs."""
    norm, words = _norms((5, 8, 2))
    return Finding(
        right=(
            *_follows((5, 3, 2), seed),
            _heads((5, 3, 2)),
            Comparison(words, norm, _norm_bound((5, 8, 2)), "norm (C.1), Lemmas 2 and 3"),
        ),
        printed=(
            Comparison(words, norm, _printed_norm((5, 8, 2)), "norm (C.1), 2 eta N K + C_w + 1"),
        ),
    )


def _follows(widths: tuple[int, ...], seed: int) -> tuple[Comparison, ...]:
    """The worst step of a transformer made for eps, and its layers."""
    found = []
    for eps in (1.0, 0.01):
        worst = _worst_step(compiled_stack(widths, eps), seed)
        case = f"{'-'.join(map(str, widths))} tanh made for eps = {eps:g}, eta = {STEP}"
        found.append(Comparison(case, worst, STEP * eps, f"worst |eps^(l)|_2 of {N_TASKS} tasks"))
    layers = compiled_stack(widths, 1.0).stack.layers_per_step
    return (*found, Comparison("layers of a step", float(layers), 2.0 * len(widths) + 2, "layers"))


def _heads(widths: tuple[int, ...]) -> Comparison:
    fine, coarse = (compiled_stack(widths, eps).summary().max_heads for eps in (0.01, 1.0))
    words = "heads for eps = 0.01 over heads for eps = 1"
    return Comparison(words, fine / coarse, 100.0**2, "times; eps^-2 allows")


def _width() -> Comparison:
    """d_model of 4-K-K-4 networks for K = 16 and 32."""
    sizes = [
        compile(_problem(MLP((4, k, k, 4), "tanh", "tanh")), "relu-stack", n_steps=1, pieces=4)
        .summary()
        .d_model
        for k in (16, 32)
    ]
    return Comparison("d_model for K = 32 over K = 16", sizes[1] / sizes[0], 4.0, "times; K^2")


def _same_form(seed: int) -> Comparison:
    """Problem 1 has the error inside eta (grad + eps), Theorem 1 outside with norm eta eps."""
    source = draw(seed)
    w, slope, error = (torch.randn(5, generator=source, dtype=torch.float64) for _ in range(3))
    inside = (w - STEP * (slope + error)).clamp(-BOX, BOX)
    outside = (w - STEP * slope + (-STEP * error)).clamp(-BOX, BOX)
    off = float((inside - outside).abs().max())
    return Comparison("errors as in (2.3) and as in Theorem 1", off, EXACT, "largest difference")


NARROW = 64
"""The width of the network on which the constants of the proof are tried."""

TILT, LOSS_ERROR = 0.01, 1e-3


def _affine(z: Tensor) -> Tensor:
    """r(z) = 1 + 0.01 z, which a sum of ReLUs has exactly, as it has its derivative."""
    return 1 + TILT * z


def _gradient_error() -> tuple[float, str]:
    """Outputs that are all 1, and a slope of the loss that is off by eps_l everywhere."""
    zero = torch.zeros(NARROW, NARROW, dtype=torch.float64)
    x, ones = zero[:1], torch.ones(1, NARROW, dtype=torch.float64)
    values = outputs([zero, zero], x, _affine)
    bends = slopes([zero, zero], values, lambda z: torch.full_like(z, TILT))
    found = [gradient(values, deltas([zero, zero], bends, u * ones)) for u in (0.0, LOSS_ERROR)]
    case = "64-64-64 network, r = 1 + 0.01 z, weights 0, eps_l = 0.001, eps_r = eps_r' = 0"
    return float((found[1] - found[0]).norm()), case


def _gradient_bound(power: float) -> float:
    """(N / 2) P (E_s^l eps_l) P^power B_r, with rows and columns of norm 1 and |x| <= 0.1."""
    norm, depth = sqrt(NARROW), 2
    bounds = Bounds(depth, norm, 1.0, TILT, loss=1.0)
    size = printed_bound(_affine, 1.0, 0.1, depth)
    inputs = float(norm**power * size)
    return depth / 2 * norm * bounds.error(0.0, 0.0, LOSS_ERROR) * inputs


def _norms(widths: tuple[int, ...]) -> tuple[float, str]:
    """The largest norm of the attention layers that evaluate r and r'."""
    layers = compiled_stack(widths, 1.0).transformer().block[: len(widths) - 1]
    name = "-".join(map(str, widths))
    words = f"attention layers of a compiled {name} tanh relu-stack, scaled as in the proof"
    return max(attention_norm(layer) for layer in layers), words  # type: ignore[arg-type]


def _norm_bound(widths: Sequence[int]) -> float:
    """1 + max(K, d) (C_1 + C_2), Lemmas 2 and 3 as corrected, where heads serve r and r'."""
    program = compiled_stack(tuple(widths), 1.0).stack
    value, slope = (coefficients(program.relu_sum(name)) for name in ("tanh", "tanh'"))
    return 1 + max(widths[1:]) * (value + slope)


def _printed_norm(widths: Sequence[int]) -> float:
    """O(eta) + C_w + 1, with the proof's 2 eta N K for O(eta)."""
    n_weights = sum(a * b for a, b in pairwise(widths))
    return 2 * STEP * (len(widths) - 1) * max(widths[1:-1]) + projection_norm(n_weights) + 1


def projection_norm(n_weights: int) -> float:
    """C_w: |W_1|_1 + |W_2|_1 of w - relu(w - box) + relu(-w - box), its units scaled at best.

    With units scaled by a the column of the constant 1 has the sum 2 a n_weights box, and W_2 has
    columns of norm 1 / a.
    """
    return 2 * sqrt(max(2.0, 2 * n_weights * BOX))


def theorem_1_relu(seed: int) -> Finding:
    """One ReLU unit whose argument is off the kink, or just beside it."""
    del seed  # nothing is drawn
    problem = _problem(MLP((2, 1), "relu", "relu"))
    compiled = compile(problem, "relu-stack", n_steps=1, kink_width=2.0**-13)
    w = torch.ones(2, dtype=torch.float64)
    y = torch.ones(1, 1, dtype=torch.float64)

    def comparison(gap: float) -> Comparison:
        x = torch.tensor([[1.0, gap - 1.0]], dtype=torch.float64)
        error = step_error(compiled, x, y, w)
        return Comparison(f"2-1 relu at v . x = {gap:g}", error, STEP * 1e-3, "|eps^(0)|_2")

    return Finding(right=(comparison(0.5),), printed=(comparison(2.0**-14),))


THEOREM_1 = Statement(
    paper="wu",
    label="Theorem 1",
    claim=(
        "For C^4 functions r, r' and u and every eps there is a transformer of (2N+4)L layers that"
        " follows L projected gradient steps with errors of norm eta eps, with O(eps^-2) heads,"
        " O(NK^2) + D_w dimensions, and weights of norm O(eta) + C_w + 1."
    ),
    formula=(
        "w^(l) = Proj(w^(l-1) - eta grad L_n(w^(l-1)) + eps^(l-1)), |eps^(l-1)|_2 <= eta eps;"
        " M <= O(eps^-2), D <= O(NK^2) + D_w, |theta| <= O(eta) + C_w + 1"
    ),
    check=theorem_1,
    correction=(
        "The norm does not fall with eta: layers 1 to N have those of Lemmas 2 and 3, and a large"
        " r needs large weights, however they are scaled. In the"
        " proof |p(j)|_2 <= P B_r, not sqrt(P) B_r, so C_l, C_r and C_r' need P^2 for P^(3/2)."
        " The error stands inside the projection, which is the form of Problem 1."
    ),
)

THEOREM_1_RELU = Statement(
    paper="wu",
    label="Theorem 1 for ReLU networks",
    claim="Theorem 1 covers N-layer ReLU networks, as the abstract and Section 3 announce.",
    formula="r = relu, |eps^(l-1)|_2 <= eta eps for every eps > 0 and all data in the domain",
    check=theorem_1_relu,
    correction=(
        "r = relu is no C^4 function, and its slope jumps, which no sum of ReLUs follows closer"
        " than 1/2. With a narrow ramp for the slope the theorem holds for data off the ramp, and"
        " icgd counts those on it."
    ),
)

THEOREM_5 = Statement(
    paper="wu",
    label="Theorem 5",
    claim="Theorem 1 holds for networks whose inputs and outputs differ in number.",
    formula="as in Theorem 1, x_i in R^(d_x), y_i in R^(d_y)",
    check=theorem_5,
    correction="The norm of the weights, as in Theorem 1.",
)
