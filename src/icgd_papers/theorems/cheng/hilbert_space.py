r"""Appendix G and equation (7): gradient descent in a space of functions.

A function g = sum_i a_i K(., x_i) has the values K a at the examples and the squared norm a^T K a.
With e = y - f(x) the loss changes along g at the speed -2 e^T K a, which among all |g| = 1 is
smallest for a = e / sqrt(e^T K e).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from icgd.problems.kernel_machine import kernel_named
from icgd_papers.theorems.cheng.transformer import (
    DIFFERENCE,
    EXACT,
    WIDTH,
    difference,
    eye,
    generator,
    sphere_points,
    wave,
)
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.training.covariates import normal

N_EXAMPLES = 20
N_DIRECTIONS = 1000


def examples_and_errors(seed: int) -> tuple[Tensor, Tensor]:
    """Return the kernel matrix of some examples, and the errors of some function there."""
    x = sphere_points(N_EXAMPLES, seed)
    return kernel_named("rbf").matrix(x, x), wave(x) - normal(generator(seed, 1), N_EXAMPLES)


def norm(gram: Tensor, a: Tensor) -> Tensor:
    """Return the norm of sum_i a_i K(., x_i), for rows of coefficients."""
    return ((a @ gram) * a).sum(-1).sqrt()


@statement("cheng", "Equation (7)")
def steps_of_steepest_descent(seed: int) -> Iterator[Comparison]:
    """Take a short step along the minimiser, forwards and backwards.

    Appendix B writes the same minimiser with a minus, which undoes the minus of (7).
    """
    gram, e = examples_and_errors(seed)
    steepest = e / norm(gram, e)
    move = 0.5 * gram @ steepest
    before = e.square().sum()
    case = "rbf, a step of length 0.5: the loss after it over the loss before, direction {}"
    for compare, name, errors in ((at_most, "added", e - move), (printed, "subtracted", e + move)):
        yield compare(float(errors.square().sum() / before), 1, case.format(name), "times")
    case = "rbf: the speed of the loss along {} sum_i (y_i - f(x_i)) K(., x_i), of norm 1"
    speed = float(-2 * e @ gram @ steepest)
    yield at_most(speed, 0, case.format("c"), "per unit of length")
    yield in_proof(-speed, 0, case.format("Appendix B's -c"), "per unit of length")


@statement("cheng", "Theorem G.1")
def reproducing_kernels(seed: int) -> Iterator[Comparison]:
    """Try the inner product a^T K b on spans of finitely many kernels, and that there is no other.

    It is an inner product if K has no negative eigenvalue, and if functions of norm 0 are 0 at
    every point, also at new ones. It reproduces at a new point if it does so on the larger span.
    """
    x, new = sphere_points(30, seed), sphere_points(40, seed + 1)
    for name in ("linear", "polynomial", "exp", "rbf"):
        kernel = kernel_named(name)
        gram = kernel.matrix(x, x)
        eigenvalues, vectors = torch.linalg.eigh(gram)
        size = eigenvalues[-1]
        case = f"{name}, 30 points: minus the smallest eigenvalue"
        yield at_most(-eigenvalues[0] / size, EXACT, case, "of the largest")
        null = vectors[:, eigenvalues < 1e-13 * size]
        if null.shape[1]:
            values = kernel.matrix(new, x) @ null
            case = f"{name}, 30 points: {null.shape[1]} functions of norm 0 at 40 new points"
            yield at_most(values.abs().max(), 1e-6, case, "largest value")
    # Quadratics of 5 inputs are a space of 21 dimensions, in which K(., x) has the coefficients
    # phi(x). An inner product f^T H g reproduces at x if H phi(x) = phi(x); 30 points leave H = I.
    phi = quadratic(normal(generator(seed, 2), 30, WIDTH))
    H = torch.linalg.lstsq(phi, phi).solution
    dimensions = phi.shape[1] - torch.linalg.matrix_rank(phi)
    case = "polynomial, 30 points: dimensions in which another inner product reproduces"
    yield at_most(float(dimensions), 0, case, "dimensions")
    case = "polynomial, 30 points: the inner product that reproduces there beside a^T K b"
    yield at_most(difference(H, eye(phi.shape[1])), 1e-9, case, DIFFERENCE)


@statement("cheng", "Theorem G.2")
def representer_theorem(seed: int) -> Iterator[Comparison]:
    """Minimise a penalised cost over all quadratic functions, from a start outside the span."""
    rng = generator(seed, 3)
    features = quadratic(normal(rng, 4, 3))
    y, start = normal(rng, 4), normal(rng, features.shape[1])
    outside = eye(len(start)) - torch.linalg.pinv(features) @ features
    ends = (start, penalised_minimiser(features, y, start))
    before, after = (float((outside @ w).norm() / w.norm()) for w in ends)
    case = (
        f"quadratics of 3 inputs, 4 examples: the part off the span, {before:.2f} of the start's "
        "norm, at the minimum"
    )
    yield at_most(after, 1e-9, case, "of the norm")


def penalised_minimiser(features: Tensor, y: Tensor, w: Tensor, n_steps: int = 30) -> Tensor:
    """Take Newton steps for the convex cost sum_i log cosh(f(x_i) - y_i) + |f|^3 / 3."""

    def cost(w: Tensor) -> Tensor:
        errors = (features @ w - y).abs()  # log cosh, but for a constant, without overflow
        total: Tensor = (errors + torch.log1p(torch.exp(-2 * errors))).sum() + w.norm() ** 3 / 3
        return total

    for _ in range(n_steps):
        size, slopes = w.norm(), (features @ w - y).tanh()
        gradient = features.mT @ slopes + size * w
        curvature = features.mT @ ((1 - slopes**2)[:, None] * features) + torch.outer(w, w) / size
        move = torch.linalg.solve(curvature + size * eye(len(w)), gradient)
        shorter = (w - 0.5**power * move for power in range(40))
        w = next((point for point in shorter if cost(point) < cost(w)), w - move)
    return w


def quadratic(x: Tensor) -> Tensor:
    """Return features whose products are (1 + <u, w>)^2, a row for each point."""
    first, second = torch.triu_indices(x.shape[-1], x.shape[-1], 1)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    return torch.cat([ones, 2**0.5 * x, x**2, 2**0.5 * x[:, first] * x[:, second]], dim=1)


@statement("cheng", "Lemma G.3")
def steepest_direction(seed: int) -> Iterator[Comparison]:
    """Compare the slope along g* with those of random functions, and try two steps of the proof.

    The functions are sums of kernels around the examples and around as many other points.
    """
    gram, e = examples_and_errors(seed)
    x = torch.cat([sphere_points(N_EXAMPLES, seed), sphere_points(N_EXAMPLES, seed + 1)])
    wide = kernel_named("rbf").matrix(x, x)
    others = normal(generator(seed, 4), N_DIRECTIONS, len(x))
    others = others / norm(wide, others)[:, None]
    form = e @ gram @ e
    slopes, best = -2 * others @ wide[:, :N_EXAMPLES] @ e, -2 * form.sqrt()
    case = f"rbf: the steepest slope of {N_DIRECTIONS} random functions over that along g*"
    yield at_most(float(slopes.min() / best), 1, case, "times")

    case = "rbf: how far the norm of c sum_i e_i K(., x_i) is from 1 with c = {}"
    constants = ((at_most, "1 / sqrt(e^T K e)", form.rsqrt()), (in_proof, "1 / e^T K e", 1 / form))
    for compare, name, c in constants:
        yield compare(float((norm(gram, c * e) - 1).abs()), EXACT, case.format(name), "distance")

    # Minimisers of -2 a^T K z + lambda a^T K a are multiples of z: the errors, or y as printed.
    y = wave(sphere_points(N_EXAMPLES, seed))
    case = "rbf: the steepest slope over that along the Lagrangian's minimiser with {}, of norm 1"
    for compare, name, a in ((at_most, "y - f(x)", e), (in_proof, "y", y)):
        slope = e @ gram @ a / norm(gram, a)
        ratio = form.sqrt() / slope.abs()
        yield compare(float(ratio), 1 + EXACT, case.format(name), "times")


@statement("cheng", "Appendix G, linear regression")
def flow_of_a_linear_function(seed: int) -> Iterator[Comparison]:
    """Compare the speeds of theta and of f, by autograd, with both forms."""
    x = sphere_points(N_EXAMPLES + 1, seed)
    examples, y = x[:-1], wave(x)[:-1]
    theta = normal(generator(seed, 5), WIDTH).requires_grad_()
    loss = (examples @ theta - y).square().sum()
    speed = -torch.autograd.grad(loss, theta)[0]
    errors = y - examples @ theta.detach()
    case = "linear: df/dt at a new point beside {} sum_i (y_i - f(x_i)) <x_i, x>"
    total = errors @ (examples @ x[-1])
    for compare, factor in ((at_most, 2), (printed, -2)):
        error = difference(speed @ x[-1], factor * total)
        yield compare(error, EXACT, case.format(factor), DIFFERENCE)
    case = "linear: d theta/dt beside {}"
    total = examples.mT @ errors
    for compare, name, factor in (
        (at_most, "2 X (Y - X^T theta)", 2),
        (printed, "sum_i 2 X (Y - X^T theta)", 2 * N_EXAMPLES),
    ):
        yield compare(difference(speed, factor * total), EXACT, case.format(name), DIFFERENCE)
