r"""Proposition D.1: heads of several kernels descend on the sum of the kernels.

    K(u, w) = sum_s a_s K_s(G_s u, G_s w)

Figure 4(c) takes a linear and an exponential kernel on different inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd_papers.theorems.cheng.proposition_3_1 import every_layer
from icgd_papers.theorems.cheng.proposition_3_4 import bayes
from icgd_papers.theorems.cheng.written_out import (
    WIDTH,
    Activation,
    agreement,
    exponential,
    hidden,
    identity,
    linear,
    mask,
    sphere_points,
    stream,
    wave,
)
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.training.covariates import Ellipsoid

STEP = 0.05
N_LAYERS = 20


def _transforms() -> tuple[Tensor, Tensor]:
    """G_1 keeps the first two inputs, and G_2 the other three."""
    first = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    return first, identity() - first


def _machine() -> KernelMachine:
    """The kernel of Figure 4(c), by the definition."""
    first, second = _transforms()
    heads = KernelHead("linear", first, 0.5), KernelHead("exp", second, 0.5)
    return KernelMachine(WIDTH, heads)


def proposition_d_1_a(seed: int) -> Finding:
    """Compare two heads with descent on the sum kernel, layer by layer."""
    return Finding(right=(every_layer(_machine().heads, seed),))


def proposition_d_1_b(seed: int) -> Finding:
    """Compare many layers of two heads with Bayes' estimator of the sum kernel's process."""
    return Finding(right=(bayes(_machine(), Ellipsoid.sphere(WIDTH), 8, 1500, seed),))


def _two_heads(x: Tensor, second: Activation) -> Tensor:
    """The query's label before and after every layer of a linear head and another one."""
    Z, M = stream(x, hidden(wave(x))), mask(len(x))
    rows = [Z[-1]]
    moved = [G @ x.mT for G in _transforms()]
    scores = 0.5 * linear(moved[0], moved[0]) + 0.5 * second(moved[1], moved[1])
    for _ in range(N_LAYERS):
        rows.append(rows[-1] - STEP * rows[-1] @ M @ scores)
    return torch.stack(rows)[:, -1]


def _descent(x: Tensor) -> Tensor:
    """The value at the query of functional descent on the sum kernel, before and after steps."""
    kernel, y = _machine().matrix(x, x[:-1]), wave(x)[:-1]
    values = [torch.zeros(len(x), dtype=torch.float64)]
    for _ in range(N_LAYERS):
        values.append(values[-1] + STEP * kernel @ (y - values[-1][:-1]))
    return torch.stack(values)[:, -1]


def figure_4_heads(seed: int) -> Finding:
    """Compare both pairs of heads with descent on the linear and exponential kernel."""
    x = sphere_points(15, seed)
    real = -_descent(x)

    def beside(name: str, second: Activation) -> Comparison:
        case = f"heads linear and {name}, {N_LAYERS} layers: the query's label beside descent"
        return agreement(case, _two_heads(x, second), real)

    return Finding(right=(beside("exp", exponential),), printed=(beside("linear", linear),))


def figure_4_kernel(seed: int) -> Finding:
    """Compare the kernel that Figure 4(c) prints with the one that its definition gives."""
    x = sphere_points(15, seed)
    defined = _machine().matrix(x, x)
    first, rest = x[:, :2] @ x[:, :2].mT, x[:, 2:] @ x[:, 2:].mT
    case = "all pairs of 15 points: the definition beside the kernel with exp({})"
    right = agreement(case.format("s"), defined, (first + rest.exp()) / 2)
    printed = agreement(case.format("s / 2"), defined, (first + (rest / 2).exp()) / 2)
    return Finding(right=(right,), printed=(printed,))


STATEMENTS = (
    Statement(
        "cheng",
        "Proposition D.1(A)",
        "Attention with a head for each kernel descends on the sum of the kernels.",
        "TF_l(x) = -f_l(x), K(u, w) = sum_s K_s(G_s u, G_s w)",
        proposition_d_1_a,
    ),
    Statement(
        "cheng",
        "Proposition D.1(B)",
        "If the labels are drawn from the Gaussian process of the sum kernel, the prediction tends"
        " to Bayes' estimator as layers are added.",
        "-TF_l(x) -> nu^T K^-1 y = E[y_q | y_1, ..., y_n]",
        proposition_d_1_b,
    ),
    Statement(
        "cheng",
        "Figure 4, heads",
        "Two heads, a linear one and an exponential one, descend on the kernel of the labels.",
        "h^1 = linear, h^2 = exp",
        figure_4_heads,
        correction="The second head is the exponential one; the text prints linear for both.",
    ),
    Statement(
        "cheng",
        "Figure 4(c), kernel",
        "The kernel of Figure 4(c) is half a linear kernel of two inputs and half an exponential"
        " kernel of the other three.",
        "K(u, w) = (u_1 w_1 + u_2 w_2) / 2 + exp(u_3 w_3 + u_4 w_4 + u_5 w_5) / 2",
        figure_4_kernel,
        correction="By the definition of K and of G_2 the exponent has no factor 1/2, which is"
        " printed.",
    ),
)
