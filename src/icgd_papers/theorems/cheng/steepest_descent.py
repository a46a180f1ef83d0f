r"""Gradient descent in function space: equation (7), Theorem G.2 and Lemma G.3.

A function g = sum_i a_i K(., x_i) has the values K a at the examples and the norm a^T K a. With
e = y - f(x) the loss changes along g at the speed -2 e^T K a, which among all |g| = 1 is smallest
for a = e / sqrt(e^T K e).
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems.kernel_machine import kernel_named
from icgd_papers.theorems.cheng.written_out import agreement, sphere_points, wave
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.training.covariates import normal
from icgd_papers.training.tasks import generator_of

N_EXAMPLES = 20
N_DIRECTIONS = 1000


def _situation(seed: int) -> tuple[Tensor, Tensor]:
    """The kernel matrix of some examples and the errors of some function there."""
    x = sphere_points(N_EXAMPLES, seed)
    generator = generator_of(seed, 1)
    return kernel_named("rbf").matrix(x, x), wave(x) - normal(generator, N_EXAMPLES)


def _norm(gram: Tensor, a: Tensor) -> Tensor:
    return ((a @ gram) * a).sum(-1).sqrt()


def _steepest(gram: Tensor, e: Tensor) -> Tensor:
    """The coefficients of g*, of norm 1."""
    return e / _norm(gram, e)


def equation_7(seed: int) -> Finding:
    """Take a short step along the direction of steepest descent, forwards and backwards."""
    gram, e = _situation(seed)
    move = 0.5 * gram @ _steepest(gram, e)
    before, added, taken = (left.square().sum() for left in (e, e - move, e + move))
    case = "rbf, a step of length 0.5: the loss after it over the loss before, direction {}"
    return Finding(
        right=(Comparison(case.format("added"), float(added / before), 1.0, "times"),),
        printed=(Comparison(case.format("subtracted"), float(taken / before), 1.0, "times"),),
    )


def lemma_g_3(seed: int) -> Finding:
    """Compare the slope along g* with that along random functions of norm 1."""
    gram, e = _situation(seed)
    others = normal(generator_of(seed, 2), N_DIRECTIONS, N_EXAMPLES)
    others = others / _norm(gram, others)[:, None]
    best, slopes = -2 * e @ gram @ _steepest(gram, e), -2 * others @ gram @ e
    case = f"rbf: the steepest slope of {N_DIRECTIONS} random directions over that along g*"
    return Finding(right=(Comparison(case, float(slopes.min() / best), 1.0, "times"),))


def lemma_g_3_constant(seed: int) -> Finding:
    """Compute the norm of g* with the constant with a root and without it."""
    gram, e = _situation(seed)
    form = e @ gram @ e
    case = "rbf: how far the norm of c sum_i e_i K(., x_i) is from 1 with c = {}"
    constants = {"1 / sqrt(e^T K e)": form.rsqrt(), "1 / e^T K e": 1 / form}
    right, printed = (
        Comparison(case.format(name), float((_norm(gram, c * e) - 1).abs()), 1e-12, "distance")
        for name, c in constants.items()
    )
    return Finding(right=(right,), printed=(printed,))


def lemma_g_3_lagrangian(seed: int) -> Finding:
    """Compare the slopes along the minimisers of both forms, of norm 1, with the steepest."""
    gram, e = _situation(seed)
    y = wave(sphere_points(N_EXAMPLES, seed))
    best = (e @ gram @ e).sqrt()  # the largest e^T K a with a^T K a = 1, by Cauchy and Schwarz
    case = "rbf: the steepest slope over that along the minimiser with {}, both of norm 1"
    right, printed = (
        Comparison(
            case.format(name), float(best / (e @ gram @ _steepest(gram, a))), 1 + 1e-12, "times"
        )
        for name, a in (("y - f(x)", e), ("y", y * torch.sign(e @ gram @ y)))
    )
    return Finding(right=(right,), printed=(printed,))


def linear_regression(seed: int) -> Finding:
    """Compare the speed of f at a point, by autograd, with the sum of kernels of either sign."""
    x = sphere_points(N_EXAMPLES + 1, seed)
    examples, y = x[:-1], wave(x)[:-1]
    theta = normal(generator_of(seed, 1), x.shape[1]).requires_grad_()
    loss = (examples @ theta - y).square().sum()
    speed = -torch.autograd.grad(loss, theta)[0] @ x[-1]
    sum_of_kernels = (y - examples @ theta.detach()) @ (examples @ x[-1])
    case = "linear: df/dt at a new point beside {} sum_i (y_i - f(x_i)) <x_i, x>"
    return Finding(
        right=(agreement(case.format("2"), speed, 2 * sum_of_kernels),),
        printed=(agreement(case.format("-2"), speed, -2 * sum_of_kernels),),
    )


def theorem_g_2(seed: int) -> Finding:
    """Minimise a penalised cost over all quadratic functions, from a start outside the span."""
    generator = generator_of(seed, 0)
    features = _quadratic(normal(generator, 4, 3))
    y, start = normal(generator, 4), normal(generator, features.shape[1])
    outside = torch.eye(len(start), dtype=torch.float64) - torch.linalg.pinv(features) @ features
    ends = (start, _minimiser(features, y, start))
    before, after = (float((outside @ w).norm() / w.norm()) for w in ends)
    case = (
        f"quadratics of 3 inputs, 4 examples: the part off the span, {before:.2f} of the start's"
        " norm, at the minimum"
    )
    return Finding(right=(Comparison(case, after, 1e-9, "of the norm"),))


def _minimiser(features: Tensor, y: Tensor, w: Tensor, n_steps: int = 30) -> Tensor:
    """Newton's steps for the cost sum_i log cosh(f(x_i) - y_i) + |f|^3 / 3, which is convex."""
    for _ in range(n_steps):
        size, slopes = w.norm(), (features @ w - y).tanh()
        slope = features.mT @ slopes + size * w
        curved = features.mT @ ((1 - slopes**2)[:, None] * features) + torch.outer(w, w) / size
        move = torch.linalg.solve(curved + size * torch.eye(len(w)).to(w), slope)
        shorter = (w - 0.5**power * move for power in range(40))
        before = _cost(features, y, w)
        w = next((point for point in shorter if _cost(features, y, point) < before), w - move)
    return w


def _cost(features: Tensor, y: Tensor, w: Tensor) -> Tensor:
    left = (features @ w - y).abs()
    cost: Tensor = (left + torch.log1p(torch.exp(-2 * left))).sum() + w.norm() ** 3 / 3
    return cost


def _quadratic(x: Tensor) -> Tensor:
    """Features whose products are (1 + <u, w>)^2, with a row for each point."""
    first, second = torch.triu_indices(x.shape[-1], x.shape[-1], 1)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    return torch.cat([ones, 2**0.5 * x, x**2, 2**0.5 * x[:, first] * x[:, second]], dim=1)


EQUATION_7 = Statement(
    "cheng",
    "Equation (7)",
    "Gradient descent in function space moves along the direction in which the loss falls fastest.",
    "f_{l+1} = f_l + r_l g_l, g_l = argmin_{|g| = 1} d/dt L(f_l + t g)",
    equation_7,
    correction="The direction is a minimiser, so it is added; (7) prints f_l - r_l g_l.",
)

STATEMENTS = (
    Statement(
        "cheng",
        "Theorem G.1",
        "Every positive kernel is the reproducing kernel of exactly one Hilbert space.",
        "<f, K(., x)>_H = f(x) for all f in H",
        reason="It says that a space of functions exists and is unique, which no run can confirm.",
    ),
    Statement(
        "cheng",
        "Theorem G.2",
        "A function that minimises a cost of its values at the examples plus an increasing function"
        " of its norm is a sum of kernels around the examples.",
        "f = sum_i a_i K(., x_i)",
        theorem_g_2,
    ),
    Statement(
        "cheng",
        "Lemma G.3",
        "The direction of steepest descent of the squared loss is a positive multiple of the sum of"
        " the kernels around the examples, each weighted with its error.",
        "g* = c sum_i (y_i - f(x_i)) K(., x_i), c > 0",
        lemma_g_3,
    ),
    Statement(
        "cheng",
        "Lemma G.3, constant",
        "The constant of the steepest direction is the one that gives it norm 1.",
        "c = 1 / sqrt(e^T K e), e = y - f(x)",
        lemma_g_3_constant,
        correction="The constant has a square root, which the proof leaves out.",
    ),
    Statement(
        "cheng",
        "Lemma G.3, Lagrangian",
        "The steepest direction minimises the slope of the loss plus a multiple of its own squared"
        " norm.",
        "g* = argmin_g sum_i -2 (y_i - f(x_i)) g(x_i) + lambda |g|^2",
        lemma_g_3_lagrangian,
        correction="The slope has the errors y_i - f(x_i); the proof's second line prints y_i.",
    ),
    Statement(
        "cheng",
        "Appendix G, linear regression",
        "Gradient flow on the coefficients of a linear function moves the function along the"
        " direction of Lemma G.3.",
        "d/dt f_t(x) = 2 sum_i (y_i - f_t(x_i)) <x_i, x>",
        linear_regression,
        correction="The factor is 2; the last line of Appendix G prints -2.",
    ),
)
