r"""Transformers that train networks: Theorems 1, 2 and 5, Remark 3, Appendix B.3, open questions.

relu-stack is the transformer of Theorems 1 and 5. `icgd.compile` with a tolerance takes as many
pieces as prove |eps^(l)| <= eta eps for every task in the domain. All runs compute every head, and
are compared with exact steps in numpy. Errors are also compared with the lengths of the steps: a
transformer that does nothing has a share of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log, sqrt
from typing import Any

import numpy as np
import torch

from icgd.backends.prompt import encode, read_parameters
from icgd.compiled import Compiled
from icgd.constructions.recursion import Recursion
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.layers import MLPLayer, ProductLayer
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.sets import HalfSpace
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.theorems.wu.approximation import BackwardBounds, printed_bound
from icgd_papers.theorems.wu.oracle import (
    EXACT,
    Array,
    SumOfRelus,
    Training,
    deltas,
    gradient,
    layer_norm,
    literal_path,
    name_of,
    outputs,
    product_norm,
    slopes,
)

ETA, BOX = 0.1, 0.6
SMOOTH = ("tanh", "sigmoid", "softplus")
LOSSES = ("squared", "logistic", "huber")
"""The slope of the huber loss is not C^4, but it is itself a sum of ReLUs."""

EPS = 0.05
NOTHING = "errors over the lengths of the steps; 1 if nothing is done"


def problem_of(
    widths: tuple[int, ...], activation: str = "tanh", loss: str = "squared", output: str = ""
) -> Problem:
    """Train a network that has the same activation in all layers, or `output` in the last one."""
    target = MLP(widths, activation, output or activation)
    return Problem(target, loss, GradientStep(ETA, box=BOX), Domain(1.0, 1.0))


@lru_cache(maxsize=64)
def proved(widths: tuple[int, ...], eps: float, activation: str, loss: str) -> Compiled:
    """Compile two steps by relu-stack, each proved to err by less than eta eps in norm."""
    problem = problem_of(widths, activation, loss)
    tolerance = ETA * eps / sqrt(problem.network.n_parameters)
    return compile(problem, "relu-stack", n_steps=2, tolerance=tolerance)


@dataclass(frozen=True)
class Errors:
    """The errors of some runs."""

    worst: float
    """The largest |eps^(l)|_2 of any step."""
    share: float
    """The sum of all errors over the sum of the lengths of the exact steps."""


def errors_of(runs: Sequence[tuple[Array, Training]]) -> Errors:
    """Compare every step of every run with the exact step from the same weights."""
    errors, lengths = [], []
    for path, training in runs:
        exact = np.array([training.after(w) for w in path[:-1]])
        errors.append(np.linalg.norm(path[1:] - exact, axis=1))
        lengths.append(np.linalg.norm(exact - path[:-1], axis=1))
    return Errors(float(np.max(errors)), float(np.sum(errors) / np.sum(lengths)))


def run_errors(compiled: Compiled, rng: np.random.Generator, n_tasks: int = 3) -> Errors:
    """Run random tasks of 6 examples from weights anywhere in the box."""
    problem = compiled.problem
    target, update = problem.network, problem.gradient_step
    x = rng.uniform(-1, 1, (n_tasks, 6, target.input_width))
    y = rng.uniform(0, 1, (n_tasks, 6, target.output_width))  # as the logistic loss asks
    initial = rng.uniform(-update.reach, update.reach, (n_tasks, target.n_parameters))
    task = compiled.task(x, y, initial=initial)
    paths = compiled.run_task(task, backend="literal").parameters.numpy()
    functions = (target.activation, target.output_activation, problem.loss)
    trainings = [
        Training(target.widths, *data, update.size_of(0), update.reach, *functions)
        for data in zip(x, y, strict=True)
    ]
    return errors_of(list(zip(paths, trainings, strict=True)))


def follows(shapes: list[tuple[int, ...]], seed: int) -> Iterator[Comparison]:
    """Compare errors and layers of networks of these widths, for all activations and losses."""
    for widths in shapes:
        rng, depth = np.random.default_rng(seed), len(widths) - 1
        transformers = [proved(widths, EPS, r, loss) for r in SMOOTH for loss in LOSSES]
        errors = [run_errors(compiled, rng) for compiled in transformers]
        n_layers = max(compiled.stack.layers_per_step for compiled in transformers)
        functions = f"{', '.join(SMOOTH)} with {', '.join(LOSSES)} loss"
        case = f"N = {depth}, {name_of(widths)}, {functions}, eps = {EPS:g}"
        worst, share = max(e.worst for e in errors), max(e.share for e in errors)
        yield at_most(worst, ETA * EPS, case, "worst |eps^(l)|_2; eta eps")
        yield at_most(share, 0.2, case, NOTHING)
        yield at_most(n_layers, 2 * depth + 4, f"N = {depth}", "layers a step; 2N + 4")


def sizes(shapes: list[tuple[int, ...]]) -> Iterator[Comparison]:
    """Compare heads over eps, and D over eps and N, for tanh and the squared loss."""
    fine, coarse = (
        [proved(widths, eps, "tanh", "squared").summary() for widths in shapes]
        for eps in (0.01, 1.0)
    )
    case, pairs = f"N = 1 to {len(shapes)}, eps = 0.01 and 1", list(zip(fine, coarse, strict=True))
    heads = max(log(a.max_heads / b.max_heads) / log(100) for a, b in pairs)
    yield at_most(heads, 2.0, f"{case}: heads", "largest power of 1 / eps")
    growth = max(a.d_model / b.d_model for a, b in pairs)
    yield at_most(growth, 1.0, f"{case}: D for eps = 0.01 over D for eps = 1", "times")
    half = len(shapes) // 2
    growth = fine[-1].d_model / fine[half - 1].d_model
    yield at_most(growth, 2.0, f"D for N = {2 * half} over D for N = {half}", "times; O(N) allows")


@statement("wu", "Theorem 1")
def gradient_descent_on_networks(seed: int) -> Iterator[Comparison]:
    """Measure errors, layers, heads, width and norm for N = 1 to 6; try the steps of the proof."""
    shapes = [(2, *[3] * (depth - 1), 2) for depth in range(1, 7)]
    yield from follows(shapes, seed)
    yield from sizes(shapes)
    narrow, wide = (
        compile(problem_of((4, k, k, 4)), "relu-stack", n_steps=1).summary().d_model
        for k in (16, 32)
    )
    yield at_most(wide / narrow, 4.0, "4-K-K-4: D for K = 32 over D for K = 16", "times; O(K^2)")
    yield from norms((2, 3, 2), seed)
    yield from other_sets(seed)
    yield from gradient_constants()
    needed = ceil((2 * 4 - 1) / 2) + 1
    yield in_proof(needed, 4, "u of 2d = 8 variables by Lemma 7", "derivatives; C^4")
    # From w = 0, as in (3.5), nothing moves if r(0) = 0 and N >= 2.
    rng = np.random.default_rng(seed)
    training = Training((2, 3, 2), rng.uniform(-1, 1, (6, 2)), rng.uniform(-1, 1, (6, 2)), ETA)
    moved = float(np.abs(training.after(np.zeros(12))).max())
    yield at_most(moved, 0.0, "an exact step of 2-3-2 tanh from w = 0", "largest weight after it")


@statement("wu", "Theorem 5")
def gradient_descent_with_other_outputs(seed: int) -> Iterator[Comparison]:
    """Do the same with 3 inputs and 1 output, or 1 input and 3 outputs."""
    shapes: list[tuple[int, ...]] = [(3, *[2] * (depth - 1), 1) for depth in range(1, 7)]
    yield from follows(shapes, seed)
    yield from follows([(1, 2, 3)], seed)
    yield from sizes(shapes)
    yield from norms((3, 2, 1), seed)


@statement("wu", "Theorem 2")
def informal_version(seed: int) -> Iterator[Comparison]:
    """Measure the error as Problem 1 does, inside eta (grad + eps)."""
    rng = np.random.default_rng(seed)
    for depth in (1, 2, 3):
        compiled = proved((2, *[3] * (depth - 1), 2), 0.01, "tanh", "squared")
        errors = run_errors(compiled, rng)
        case = f"N = {depth}, {name_of(compiled.problem.network.widths)} tanh made for eps = 0.01"
        yield at_most(errors.worst / ETA, 0.01, case, "|eps^(l)|_2 of (2.3)")
        yield at_most(errors.share, 0.2, case, NOTHING)


def other_sets(seed: int) -> Iterator[Comparison]:
    """Project onto other sets than one box: one for each layer, and a half-space of a layer."""
    rng, widths, eps = np.random.default_rng(seed), (2, 3, 2), 0.05
    ends = np.repeat([0.3, 0.5], 6)
    normal = rng.normal(size=(3, 2))
    normal /= np.linalg.norm(normal)

    def onto_half_space(w: Array) -> Array:
        first, others = w[:6], np.clip(w[6:], -0.5, 0.5)
        beyond = max(float(normal.ravel() @ first) - 0.1, 0.0)
        return np.concatenate([first - beyond * normal.ravel(), others])

    half_space = HalfSpace(tuple(map(tuple, normal.tolist())), 0.1, reach=3.0)
    cases: dict[str, tuple[Any, Callable[[Array], Array]]] = {
        "boxes of 0.3 and 0.5": ((0.3, 0.5), lambda w: np.clip(w, -ends, ends)),
        "a half-space and a box of 0.5": ((half_space, 0.5), onto_half_space),
    }
    for case, (box, project) in cases.items():
        step = GradientStep(8 * ETA, box=box)  # so large that it leaves the set
        problem = Problem(MLP(widths, "tanh", "tanh"), "squared", step, Domain(1.0, 1.0))
        tolerance = step.size_of(0) * eps / sqrt(problem.network.n_parameters)
        compiled = compile(problem, "relu-stack", n_steps=4, tolerance=tolerance)
        runs, inside = list[tuple[Array, Training]](), 0
        for _ in range(3):
            x, initial = rng.uniform(-1, 1, (6, 2)), project(rng.uniform(-1, 1, 12))
            y = np.tanh(2 * x @ normal.T @ normal)
            training = Training(widths, x, y, step.size_of(0), project=project)
            path = literal_path(compiled, training, initial)
            runs.append((path, training))
            moved = [w - step.size_of(0) * training.gradient(w) for w in path[:-1]]
            inside += sum(bool(np.all(project(w) == w)) for w in moved)
        case, errors = f"2-3-2 tanh, weights in {case}", errors_of(runs)
        yield at_most(errors.worst / step.size_of(0), eps, case, "|eps^(l)|_2 / eta")
        yield at_most(errors.share, 0.2, case, NOTHING)
        yield at_most(
            inside / 12, 11 / 12, case, "share of steps that stay in the set by themselves"
        )
        n_layers = compiled.summary().layers_per_step
        yield at_most(n_layers, 2 * 2 + 4, case, "layers a step; 2N + 4")


def norms(widths: tuple[int, ...], seed: int) -> Iterator[Comparison]:
    """Compare the norms of the proof's layers and of layers that are scaled down."""
    # A layer of Lemma 2 has the norm 1 + K C_1, and the proof gives 2 eta N K for O(eta).
    norm = 1 + 8 * SumOfRelus(np.tanh, 1.0, 64).total
    bound = 2 * ETA * 2 * 8 + projection_norm(2 * 4 * 8) + 1
    yield in_proof(norm, bound, "layer 1 of 4-8-4 tanh, as in (D.8)", "norm; 2 eta N K + C_w + 1")

    # The last MLP projects and has C_w by assumption; the attention before it may have O(eta).
    target, domain = MLP(widths, "tanh", "tanh"), Domain(1.0, 1.0)
    long, short = (
        compile(
            Problem(target, "squared", GradientStep(eta, box=BOX), domain), "relu-stack", n_steps=1
        )
        for eta in (ETA, ETA / 16)
    )
    scaled, case = rescaled(long), f"a compiled {name_of(widths)} tanh relu-stack, scaled down"
    norm = max(
        product_norm(layer) if isinstance(layer, ProductLayer) else layer_norm(layer)
        for layer in scaled[:-2]
    )
    bound = projection_norm(target.n_parameters) + 1
    yield at_most(norm, bound, f"{case}: layers before the step", "norm; C_w + 1")
    # A norm that is O(eta) falls by 16 with eta; one that stays the same gives 16 here.
    share = 16 * layer_norm(rescaled(short)[-2]) / layer_norm(scaled[-2])
    yield at_most(share, 1 + EXACT, f"{case}: 16 times the step for eta / 16 over eta", "times")
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (6, target.input_width))
    y = rng.uniform(-1, 1, (6, target.output_width))
    task = long.task(x, y, initial=rng.uniform(-BOX, BOX, target.n_parameters))
    stream = encode(long.stack, task)
    with torch.no_grad():
        for layer in scaled:
            stream = layer(stream)
    after = long.run_task(task, backend="literal").parameters[1]
    error = float((read_parameters(long.stack.layout, stream) - after).abs().max())
    yield at_most(error, 1e-12, f"{case}: weights after a step", "difference to the unscaled")


def projection_norm(n_weights: int) -> float:
    """C_w: the least |W_1|_1 + |W_2|_1 of w - relu(w - box) + relu(-w - box).

    If units are scaled by a, the column of the constant 1 has the sum 2 a n_weights box, and the
    columns of W_2 have the norm 1 / a.
    """
    return 2 * sqrt(max(2.0, 2 * n_weights * BOX))


SHRINK = 2.0**-10
"""A power of two, so that scaling rounds nothing."""


def rescaled(compiled: Compiled) -> list[Any]:
    """Scale the layers of a step down, so that only the attention that adds the step is large.

    relu(a z) = a relu(z) for a > 0, so a layer can read and write smaller numbers: p(j), r', u and
    s stand in the stream at ever smaller scales, and the attention that adds the gradient
    multiplies by what was divided out. Its norm is eta times a constant.
    """
    scale = torch.ones(compiled.stack.layout.width, dtype=torch.float64)
    layers: list[Any] = list(compiled.transformer().block)
    *earlier, step, _ = layers

    def read(weights: torch.Tensor) -> torch.Tensor:
        """Return the common scale of the coordinates that a head reads."""
        return scale[weights.any(-1)].min()

    with torch.no_grad():
        for layer in earlier:
            if isinstance(layer, ProductLayer):  # writes a product of three numbers
                reads = [weights.any(0) for weights in (layer.W_Q, layer.W_K, layer.W_V)]
                scale[layer.W_O.any(0).any(0)] = torch.stack([*map(read, reads)]).prod()
                continue
            factor = SHRINK * scale.min()
            if isinstance(layer, MLPLayer):
                layer.W_in.mul_(factor / scale[:, None])
                layer.b_in.mul_(factor)
                output = layer.W_out
                writes = output.any(0)
            else:
                layer.W_Q.mul_(factor / scale[:, None])
                output = layer.W_O
                writes = output.any(0).any(0)
            output.mul_(SHRINK)
            scale[writes] = factor * SHRINK
        for head in range(len(step.W_Q)):
            step.W_O[head] /= read(step.W_K[head]) * read(step.W_V[head])
    return layers


def gradient_constants() -> Iterator[Comparison]:
    """Compare the gradient's error with its bound if all outputs are 1 and u is off by eps_l."""
    width, tilt, eps = 64, 0.01, 1e-3
    zero, ones = np.zeros((width, width)), np.ones((1, width))

    def affine(z: Array) -> Array:
        """r(z) = 1 + 0.01 z, which a sum of ReLUs has exactly, as it has its derivative."""
        return 1 + tilt * z

    values = outputs([zero, zero], zero[:1], affine)
    bends = slopes([zero, zero], values, lambda z: np.full_like(z, tilt))
    exact, actual = (gradient(values, deltas([zero, zero], bends, u * ones)) for u in (0.0, eps))
    error, norm, depth = float(np.linalg.norm(actual - exact)), sqrt(width), 2
    backward = BackwardBounds(depth, norm, 1.0, tilt, loss=1.0).error(0.0, 0.0, eps)
    size = printed_bound(affine, 1.0, 0.1, depth)
    case = "64-64-64, r = 1 + 0.01 z, weights 0, eps_l = 0.001, eps_r = eps_r' = 0"
    bound = depth / 2 * norm * backward * norm * size
    yield at_most(error, bound, case, "gradient error; |p(j)|_2 <= P B_r")
    bound = depth / 2 * norm * backward * sqrt(norm) * size
    yield in_proof(error, bound, case, "gradient error; |p(j)|_2 <= sqrt(P) B_r")


@statement("wu", "Theorem 1 for ReLU networks")
def relu_networks(seed: int) -> Iterator[Comparison]:
    """Run a ReLU unit off its kink, and measure the jump of the exact step at the kink."""
    del seed  # nothing is drawn
    compiled = compile(problem_of((2, 1), "relu"), "relu-stack", n_steps=1, kink_width=2.0**-13)
    w, eps = np.array([0.5, 0.5]), 1e-3

    def at(gap: float) -> Training:
        return Training((2, 1), np.array([[0.9, gap - 0.9]]), np.ones((1, 1)), ETA, BOX, "relu")

    for gap in (0.4, 0.01, -0.01):
        path = literal_path(compiled, at(gap), w)
        error = float(np.linalg.norm(path[1] - at(gap).after(w)))
        case = f"2-1 relu at v . x = {0.5 * gap:g}"
        yield at_most(error, ETA * eps, case, "|eps^(0)|_2; eta eps, eps = 0.001")
    # A transformer is continuous in its prompt: it cannot be near both sides of a jump.
    jump = at(1e-12).after(w) - at(-1e-12).after(w)
    least, case = float(np.linalg.norm(jump)) / 2, "2-1 relu at v . x = +-5e-13, any transformer"
    yield printed(least, ETA * eps, case, "least |eps^(0)|_2; eta eps, eps = 0.001")


@statement("wu", "Remark 3")
def without_product_layers(seed: int) -> Iterator[Comparison]:
    """Run two transformers that have no product layer."""
    rng, eps = np.random.default_rng(seed), 0.01
    for widths in ((2, 4, 1), (2, 3, 3, 1)):
        problem = problem_of(widths, "tanh", "squared", "identity")
        for name, layers, construction in (
            ("recursion", "ReLU attention and ReLU MLPs", Recursion(unit_activation="relu")),
            ("softmax-stack", "softmax attention and ReLU MLPs", SoftmaxStack()),
        ):
            compiled = compile(problem, construction, n_steps=2)
            n_products = sum(
                isinstance(layer, ProductLayer) for layer in compiled.transformer().unrolled()
            )
            errors = run_errors(compiled, rng)
            margin = ETA * eps / errors.worst if not n_products else 0.0
            case = f"{name} ({layers}, {n_products} product layers), {name_of(widths)} tanh"
            unit = "eta eps over the worst error, eps = 0.01; below 1 if it is impossible"
            yield printed(margin, 1.0, case, unit)


@statement("wu", "Appendix B.3, dimensions")
def dimensions(seed: int) -> Iterator[Comparison]:
    """Compare D and the width of the MLPs over eps, for the squared and the logistic loss."""
    del seed  # nothing is drawn
    for loss in ("squared", "logistic"):
        fine, coarse = (proved((2, 3, 2), eps, "tanh", loss).summary() for eps in (1e-4, 1.0))
        case = f"2-3-2 tanh, {loss} loss, eps = 0.0001 over eps = 1"
        yield at_most(fine.d_model / coarse.d_model, 1.0, f"{case}: D", "times")
        growth = log(fine.d_mlp / coarse.d_mlp) / log(1e4)
        yield at_most(growth, 2.0, f"{case}: MLP", "power of 1 / eps; Lemma 4 has 2")
        if loss == "logistic":
            unit = "times; O(N K^2) + D_w has no eps"
            yield printed(fine.d_mlp / coarse.d_mlp, 1.0, f"{case}: MLP", unit)


@statement("wu", "Appendix B.3, FLOPs")
def flops(seed: int) -> Iterator[Comparison]:
    """Count the layers of the proof with D x D matrices, icgd's own, and the experiment's."""
    del seed  # nothing is drawn

    def counted(n: int, depth: int, width: int, pieces: int, d: int = 2) -> int:
        """Every head takes 3 matrices of D x D for each token, and 4 n^2 D for its pattern."""
        n_units = (depth - 1) * width + d
        dimension = 3 * d + 2 * d * width + (depth - 2) * width**2 + 3 * n_units + 2
        n_heads = 2 * n_units * pieces + n_units + 2 * n_units
        n_hidden = d * pieces + 2 * dimension
        per_head = 6 * n * dimension**2 + 4 * n**2 * dimension
        return n_heads * per_head + 4 * n * n_hidden * dimension

    n, worst = 32, 0.0
    for depth in (2, 4, 8, 16, 32):
        for width in (4, 16, 64):
            for pieces in (16, 1600):
                scale = n * depth**3 * width**5 * pieces
                worst = max(worst, counted(n, depth, width, pieces) / scale)
    case = "layers of the proof, N = 2 to 32, K = 4 to 64, 16 and 1600 ReLUs for each function"
    yield at_most(worst, 100.0, case, "largest FLOPs over n N^3 K^5 M")

    def measured(depth: int, width: int) -> int:
        problem = problem_of((2, *[width] * (depth - 1), 2))
        return compile(problem, "relu-stack", n_steps=1, pieces=16).summary().flops

    power = log(measured(8, 8) / measured(4, 8), 2)
    yield at_most(power, 3.0, "relu-stack, dense, N = 4 to 8", "power of N")
    power = log(measured(3, 32) / measured(3, 16), 2)
    yield at_most(power, 5.0, "relu-stack, dense, K = 16 to 32", "power of K")

    # 12 blocks with attention and MLPs of width 256 on 76 inputs and 75 labels, against 100 epochs
    # of a 6-layer network of width 200 on 75 examples, with 6 FLOPs a weight and example.
    n_tokens, n_weights = 151, 20 * 200 + 4 * 200**2 + 200
    forward = 12 * (2 * 6 * 256**2 * n_tokens + 4 * n_tokens**2 * 256)
    training = 100 * 75 * 6 * n_weights
    yield at_most(
        forward, training, "a forward pass of Appendix G's transformer", "FLOPs; training"
    )


@statement("wu", "Open question 1")
def smaller_dimensions(seed: int) -> Iterator[Comparison]:
    """Measure over K what D and the widest MLP have beyond the weights themselves."""
    del seed  # nothing is drawn
    beyond, hidden = [], []
    for width in (16, 32, 64):
        problem = problem_of((2, width, width, 2))
        summary = compile(problem, "relu-stack", n_steps=1, pieces=16).summary()
        beyond.append(summary.d_model - problem.network.n_parameters)
        hidden.append(summary.d_mlp - 2 * problem.network.n_parameters)
    case = "2-K-K-2 relu-stack, K = 16 to 64"
    yield at_most(beyond[2] / beyond[0], 4.0, f"{case}: D less |w|", "times; O(K) allows")
    yield at_most(hidden[2] / hidden[0], 4.0, f"{case}: MLP less 2 |w|", "times; O(K) allows")


@statement("wu", "Open question 2")
def other_distributions(seed: int) -> Iterator[Comparison]:
    """Run one transformer on other inputs, weights and prompt lengths, and a narrower network."""
    rng = np.random.default_rng(seed)
    compiled = proved((2, 3, 2), EPS, "tanh", "squared")

    def run(x: Array, w: Array) -> Errors:
        y = np.tanh(x.sum(1, keepdims=True)) * np.array([1.0, -0.5])
        training = Training((2, 3, 2), x, y, ETA, BOX)
        return errors_of([(literal_path(compiled, training, w), training)])

    def around(mean: float, n: int) -> Array:
        """Normal numbers around `mean`, scaled and cut off to the domain."""
        return np.clip((rng.normal(size=(n, 2)) + mean) / 5, -1, 1)

    prompts = {
        "inputs around -2": around(-2.0, 50),
        "inputs around -2 and 2": np.concatenate([around(-2.0, 25), around(2.0, 25)]),
        "75 examples": around(-2.0, 75),
    }
    weights = {
        "weights around 0": np.clip(rng.normal(size=12) / 3, -BOX, BOX),
        "weights around 0.5": np.clip(rng.normal(size=12) / 3 + 0.5, -BOX, BOX),
    }
    runs = {
        f"{inputs}, {start}": (x, w)
        for inputs, x in prompts.items()
        for start, w in weights.items()
    }
    # If r(0) = 0, a unit whose weights are all 0 keeps them: a 2-2-2 network is trained as well.
    w = weights["weights around 0.5"].copy()
    w[[4, 5, 8, 11]] = 0.0  # the incoming and outgoing weights of the third unit
    runs["a 2-2-2 network, filled up with zeros"] = (prompts["inputs around -2"], w)
    for words, (x, w) in runs.items():
        errors, case = run(x, w), f"one 2-3-2 tanh relu-stack, {words}"
        yield at_most(errors.worst, ETA * EPS, case, "worst |eps^(l)|_2; eta eps")
        yield at_most(errors.share, 0.2, case, NOTHING)


@statement("wu", "Open question 3")
def explicit_softmax_weights(seed: int) -> Iterator[Comparison]:
    """Run softmax-stack, whose weights are written down, made for ever smaller errors."""
    rng = np.random.default_rng(seed)
    for widths in ((2, 4, 1), (3, 4, 4, 2)):
        for activation, loss in (("tanh", "squared"), ("sigmoid", "logistic")):
            problem = problem_of(widths, activation, loss)
            for eps in (1e-2, 1e-6):
                tolerance = ETA * eps / sqrt(problem.network.n_parameters)
                compiled = compile(problem, "softmax-stack", n_steps=2, tolerance=tolerance)
                errors = run_errors(compiled, rng, n_tasks=2)
                case = f"softmax-stack, {name_of(widths)} {activation}, {loss} loss"
                yield at_most(errors.worst, ETA * eps, f"{case}, eps = {eps:g}", "|eps^(l)|_2")
                yield at_most(errors.share, 0.2, f"{case}, eps = {eps:g}", NOTHING)
