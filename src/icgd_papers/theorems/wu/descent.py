r"""Gradients and descent: Lemmas 1, 5, 14 and 15, Corollary 1.1, equations (2.1) and (D.16).

Lemma 14 in two lines: with w' = Proj(w - eta grad f(w) + e), |e| <= eta eps and eta <= 1 / L_f,

    f(w') - f(w) <= -|w' - w|^2 / (4 eta) + eta eps^2,   |G(w)| <= |w' - w| / eta + eps,

summed over l = 0 .. L-1. The distance e_l to exact descent obeys e_l <= (1 + eta L_f) e_{l-1} +
eta eps, so that e_l <= ((1 + eta L_f)^l - 1) eps / L_f, which grows with L_f: a test with too small
an L_f is only stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from icgd.layers import ProductLayer
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.theorems.statement import Comparison, at_most, printed, statement
from icgd_papers.theorems.wu.oracle import (
    EXACT,
    Array,
    Training,
    deltas,
    gradient,
    literal_path,
    matrices_of,
    name_of,
    outputs,
    product_norm,
    random_matrices,
    relu,
    slopes,
    tanh_slope,
    unit_rows,
)


@statement("wu", "Equation (2.1)")
def width_of_a_token(seed: int) -> Iterator[Comparison]:
    """Compare d_model of compiled networks of 4 inputs and outputs for K = 8 and 32."""
    del seed  # nothing is drawn
    update, domain = GradientStep(0.1, box=1.0), Domain(1.0, 1.0)
    sizes, n_weights = [], []
    for width in (8, 32):
        target = MLP((4, width, width, 4), "tanh", "tanh")
        compiled = compile(Problem(target, "squared", update, domain), "relu-stack", n_steps=1)
        sizes.append(compiled.summary().d_model)
        n_weights.append(target.n_parameters)
    case = "4-K-K-4 tanh: D for K = 32 over D for K = 8"
    yield at_most(n_weights[1], sizes[1], "4-32-32-4: weights in a token", "numbers; D holds them")
    yield at_most(sizes[1] / sizes[0], 16.0, case, "times; N K^2 allows")
    yield printed(sizes[1] / sizes[0], 1.0, case, "times; Theta(d) at d = 4 allows")


@statement("wu", "Lemma 1")
def gradient_of_a_network(seed: int) -> Iterator[Comparison]:
    """Compare the printed product and the recursion (3.7) with automatic differentiation."""
    for widths in ((3, 3), (3, 4, 3), (3, 4, 4, 4, 3)):
        yield from _decomposition(widths, seed)


@statement("wu", "Lemma 15")
def gradient_with_other_outputs(seed: int) -> Iterator[Comparison]:
    """Do the same with more inputs than outputs, and with fewer."""
    for widths in ((5, 4, 4, 2), (2, 4, 4, 5)):
        yield from _decomposition(widths, seed)


def _decomposition(widths: Sequence[int], seed: int) -> Iterator[Comparison]:
    rng, n = np.random.default_rng(seed), 7
    matrices, x = random_matrices(rng, widths), unit_rows(rng, n, widths[0])
    y = rng.normal(size=(n, widths[-1]))

    leaves = [torch.tensor(matrix, requires_grad=True) for matrix in matrices]
    p = torch.tensor(x)
    for leaf in leaves:
        p = torch.tanh(p @ leaf.mT)
    risk = ((p - torch.tensor(y)) ** 2).sum() / (2 * n)
    parts = torch.autograd.grad(risk, leaves)
    exact = np.concatenate([part.numpy().ravel() for part in parts])

    values = outputs(matrices, x, np.tanh)
    bends, u = slopes(matrices, values, tanh_slope), 2 * (values[-1] - y)
    total = np.zeros_like(exact)
    for i in range(n):
        blocks, product = [], np.diag(bends[-1][i])  # R_i(N-1)
        for j in range(len(matrices), 0, -1):
            row = values[j - 1][i][None, :]
            blocks.append((product @ np.kron(np.eye(product.shape[1]), row)).T @ u[i])
            if j > 1:
                product = product @ matrices[j - 1] @ np.diag(bends[j - 2][i])
        total += np.concatenate(blocks[::-1]) / (2 * n)
    recursive = gradient(values, deltas(matrices, bends, u))
    case, unit = f"{name_of(widths)} tanh, {n} random examples", "largest difference to autograd"
    for form, found in (("the printed product", total), ("(3.7) and (3.8)", recursive)):
        yield at_most(float(np.abs(found - exact).max()), EXACT, f"{case}: {form}", unit)


@statement("wu", "Lemma 5")
def product_layers(seed: int) -> Iterator[Comparison]:
    """Compare the product layers of compiled networks with the recursion on what they read."""
    rng = np.random.default_rng(seed)
    for widths in ((3, 2), (3, 4, 2), (3, 4, 4, 4, 2)):
        target = MLP(widths, "tanh", "tanh")
        problem = Problem(target, "squared", GradientStep(0.1, box=2.0), Domain(2.0, 2.0))
        compiled = compile(problem, "relu-stack", n_steps=1, pieces=16)
        depth, x, y = len(widths) - 1, unit_rows(rng, 6, 3), rng.uniform(-1, 1, (6, 2))
        w = rng.uniform(-1, 1, target.n_parameters)
        task = compiled.task(x, y, initial=w)
        trace = compiled.run_task(task, backend="literal", trace=True).trace
        # The slots of all examples after the last product layer.
        after = {name: slot[2 * depth + 2, :6].numpy() for name, slot in trace.items()}
        matrices = matrices_of(widths, w)
        bends = [after[f"slope_{j}"] for j in range(1, depth + 1)]
        wanted = deltas(matrices, bends, after["loss_slope"])
        errors = [np.abs(after[f"delta_{j}"] - s).max() for j, s in enumerate(wanted, start=1)]
        layers = [
            layer for layer in compiled.transformer().block if isinstance(layer, ProductLayer)
        ]
        case = f"a compiled {name_of(widths)} tanh relu-stack"
        yield at_most(max(errors), EXACT, f"s of {case}", "largest difference to (3.7)")
        yield at_most(len(layers), depth, f"product layers of {case}", "layers; N")
        yield at_most(
            max(map(product_norm, layers)), 1.0, f"product layers of {case}", "norm (3.18)"
        )


@statement("wu", "Equation (D.16)")
def last_attention(seed: int) -> Iterator[Comparison]:
    """Compute the update of every token by (D.16), with both readings of its indices."""
    rng, n, step = np.random.default_rng(seed), 5, 0.3
    s, p = rng.normal(size=(n + 1, 4)), rng.normal(size=(n + 1, 3))
    s[n] = 0.0  # a query has no error
    wanted = -step / (2 * n) * s.T @ p
    value, one = -step * (n + 1) / (2 * n) * p, np.ones(n + 1)

    def update(score: Array, indices: str) -> Array:
        """Return the mean over tokens s of (relu(score) - relu(-score)) times a value."""
        found: Array = np.einsum(indices, relu(score) - relu(-score), value) / (n + 1)
        return found

    unit, case = "largest difference to -eta * gradient at any token", f"{n} random examples"
    found = update(np.einsum("i,sk->isk", one, s), "isk,sl->ikl")
    error = float(np.abs(found - wanted).max())
    yield at_most(error, EXACT, f"relu(<Q h_i, K h_s>) V h_s, {case}", unit)
    found = update(np.einsum("s,ik->isk", one, s), "isk,il->ikl")
    error = float(np.abs(found - wanted).max())
    yield printed(error, EXACT, f"relu(<Q h_s, K h_i>) V h_i, {case}", unit)


@statement("wu", "Corollary 1.1")
def distance_to_descent(seed: int) -> Iterator[Comparison]:
    """Compare coarsely compiled networks of 1, 2 and 3 layers with projected and plain descent."""
    rng = np.random.default_rng(seed)

    def followed(training: Training, initial: Array, pieces: int, n_steps: int) -> Array:
        """Run a transformer with so few pieces that it errs visibly."""
        problem = Problem(
            MLP(training.widths, training.activation, training.activation),
            "squared",
            GradientStep(training.step, box=training.box),
            Domain(1.0, 1.0),
        )
        compiled = compile(problem, "relu-stack", n_steps=n_steps, pieces=pieces)
        return literal_path(compiled, training, initial)

    def measure(training: Training, path: Array) -> tuple[float, float, Array]:
        """Return eps of the run, L_f, and the distance to exact descent after every step."""
        exact = [path[0]]
        for _ in path[1:]:
            exact.append(training.after(exact[-1]))
        errors = [np.linalg.norm(b - training.after(a)) for a, b in pairwise(path)]
        points = [*path, *exact, *rng.uniform(-training.box, training.box, (200, path.shape[1]))]
        lipschitz = max(training.hessian_norm(w) for w in points)
        distances = np.linalg.norm(path - np.array(exact), axis=1)
        return (1 + 1e-9) * float(max(errors)) / training.step, lipschitz, distances

    one = np.ones((1, 1))
    single = Training((1, 1), one, 0 * one, 8.0, box=4.0)
    cases = [(single, np.array([1e-3]), 34, "x = 1, y = 0")]
    for widths, step in (((2, 3, 1), 2.0), ((2, 2, 2, 1), 2.0)):
        x, y = rng.uniform(-1, 1, (4, 2)), rng.uniform(-1, 1, (4, 1))
        w = rng.uniform(-1, 1, MLP(widths, "tanh", "tanh").n_parameters)
        cases.append((Training(widths, x, y, step, box=1.5), w, 12, "4 random examples"))
    for training, initial, pieces, data in cases:
        path = followed(training, initial, pieces, n_steps=4)
        eps, lipschitz, distances = measure(training, path)
        steps, n = np.arange(1, len(path)), len(training.x)
        case = f"{name_of(training.widths)} tanh, {data}, eta = {training.step:g}, 4 steps"
        growth = (1 + training.step * lipschitz) ** steps - 1
        share = float((distances[1:] * lipschitz / (growth * eps)).max())
        yield at_most(share, 1.0, case, "distance over L_f^-1 ((1 + eta L_f)^l - 1) eps")
        if n == 1:
            growth = (1 + n * lipschitz) ** steps
            share = float((distances[1:] * lipschitz / (growth * eps)).max())
            yield printed(share, 1.0, case, "distance over L_f^-1 (1 + n L_f)^l eps")

    # An identity unit is followed to the last digit; plain descent on y = 1 at x = 1/2 leaves the
    # box for w = 2, the transformer stays at 1.
    linear = Training((1, 1), one / 2, one, 0.5, box=1.0, activation="identity")
    path = followed(linear, np.zeros(1), pieces=2, n_steps=40)
    plain = path[0]
    for _ in range(40):
        plain = plain - 0.5 * linear.gradient(plain)
    eps = max(measure(linear, path)[0], 1e-15)
    distance, bound = float(np.abs(path[-1] - plain).max()), 4 * 1.25**40 * eps
    case = "1-1 identity, x = 1/2, y = 1, box 1, eta = 1/2, 40 steps, descent without projection"
    yield printed(distance, bound, case, "distance; L_f^-1 (1 + n L_f)^l eps")


@statement("wu", "Lemma 14")
def convergence(seed: int) -> Iterator[Comparison]:
    """Try every inequality of the lemma, with and without what is misprinted."""
    rng = np.random.default_rng(seed)

    # f(w) = sum_k cos(w_k + k), which is not convex in any coordinate; L_f = 1, eta = 1.
    shift, eps, n_steps = np.arange(5.0), 0.1, 50
    after = partial(_projected, lambda w: -np.sin(w + shift), 1.0, 4.0)
    path = [np.zeros(5)]
    for _ in range(n_steps):
        error = eps * unit_rows(rng, 5)
        path.append(np.clip(path[-1] + np.sin(path[-1] + shift) + error, -4.0, 4.0))
    mean = float(np.mean([np.square(w - after(w)).sum() for w in path[:-1]]))
    bound = 8 * (np.cos(shift).sum() + 5) / n_steps + 10 * eps**2
    case = "f = sum cos(w_k + k), eta = 1/L_f = 1, eps = 0.1, L = 50"
    yield at_most(mean, bound, case, "mean of |G|^2")

    # A 2-4-1 tanh network, trained in context on 16 examples.
    x = unit_rows(rng, 16, 2)
    training = Training((2, 4, 1), x, np.tanh(x.sum(1, keepdims=True)), 0.1, box=2.0)
    target, update = MLP((2, 4, 1), "tanh", "tanh"), GradientStep(0.1, box=2.0)
    problem = Problem(target, "squared", update, Domain(1.0, 1.0))
    compiled = compile(problem, "relu-stack", n_steps=100)
    run = literal_path(compiled, training, rng.uniform(-1, 1, 12))
    exact = np.array([training.after(w) for w in run[:-1]])
    eps = float(np.linalg.norm(run[1:] - exact, axis=1).max()) / training.step
    mapping = np.square((run[:-1] - exact) / training.step).sum(1)
    prediction = outputs(matrices_of((2, 4, 1), run[0]), x, np.tanh)[-1]
    first = float(np.square(prediction - training.y).sum() / 32)
    case = "a compiled 2-4-1 tanh relu-stack, L = 100"
    steepest = max(training.hessian_norm(w) for w in run[::10])
    yield at_most(training.step, 1 / steepest, f"{case}: eta", "1 / L_f along the run")
    # inf f is taken as 0, which makes the bound larger by what the best network leaves.
    yield at_most(mapping.mean(), 8 * first / (training.step * 100) + 10 * eps**2, case, "|G|^2")

    # f(w) = 5 (w - 1)^2 on [-10, 10], L_f = 10, without any error.
    for step, compare in ((0.1, at_most), (10.0, printed)):
        w, sizes = np.zeros(1), []
        for _ in range(20):
            moved = _projected(lambda w: 10 * (w - 1), step, 10.0, w)
            sizes.append(float(np.square((w - moved) / step).sum()))
            w = moved
        case = f"f = 5 (w - 1)^2, L_f = 10, eta = {step:g}, L = 20"
        yield compare(sum(sizes) / 20, 8 * 5 / (step * 20), case, "mean of |G|^2")

    # f(w) = w in a large box: the gradient mapping is 1 everywhere, and L - 1 of L are summed.
    path = [np.zeros(1), -np.ones(1)]
    sizes = [float(np.square(w - _projected(np.ones_like, 1.0, 100.0, w)).sum()) for w in path]
    yield at_most(min(sizes), sum(sizes) / 2, "f = w, L = 2, sum from l = 0", "smallest |G|^2")
    yield printed(sizes[1], sizes[1] / 2, "f = w, L = 2, sum from l = 1", "smallest |G|^2")

    # f(w) = -w^2 / 20, L_f = 0.1, eta = 10: errors in one direction double every step.
    distance = 0.0
    for _ in range(10):
        distance = (1 + 10 * 0.1) * distance + 10 * 1e-3
    case = "f = -w^2 / 20, L_f = 0.1, eta = 1/L_f = 10, eps = 0.001, l = 10"
    yield at_most(distance, 10 * 1e-3 * 2.0**10, case, "distance; L_f^-1 (1 + eta L_f)^l eps")
    yield printed(distance, 10 * 1e-3 * 1.1**10, case, "distance; with n = 1 for eta")


def _projected(slope: Callable[[Array], Array], step: float, box: float, w: Array) -> Array:
    return np.clip(w - step * slope(w), -box, box)
