r"""Softmax transformers: Theorems 3 and 6, Lemmas 16 and 17, Definition 13, (F.10) and (F.12).

The paper proves Theorem 6 by a table of whole prompts (Lemma 16), which is what icgd's `universal`
compiles for one weight, and for functions that are given. It is true for a simpler reason: every
token holds w and its own example, so that an MLP can compute the gradient of one example, a
continuous function of the token, and uniform attention takes the mean.

A bound may hold although nothing is gained: with two examples and 4 levels looked-up steps err by
more than doing nothing. So errors are compared with the lengths of the steps as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log, log10, pi, sqrt

import numpy as np

from icgd.compiled import Compiled
from icgd.constructions.universal import STEP_TABLE, ContextHead, context_head, level_values
from icgd.looked_up import universal
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.theorems.wu.oracle import (
    EXACT,
    Array,
    Curve,
    SumOfRelus,
    Training,
    literal_path,
    relu,
    tanh_slope,
)
from icgd_papers.theorems.wu.transformers import NOTHING, explicit_softmax_weights


@dataclass(frozen=True)
class Risk:
    """A loss of one weight, whose gradient is a sum of functions of one direction in (x, y, w)."""

    name: str
    gradient: Callable[[Array, Array, Array], Array]
    ridges: tuple[tuple[tuple[int, int, int], Curve], ...]


RISKS = (
    # x^2 w and x y by cubes and squares of sums.
    Risk(
        "(x w - y)^2 / 2",
        lambda x, y, w: x * (x * w - y),
        (
            ((1, 0, 1), lambda t: t**3 / 6),
            ((1, 0, -1), lambda t: -(t**3) / 6),
            ((0, 0, 1), lambda t: -(t**3) / 3),
            ((1, 1, 0), lambda t: -(t**2) / 4),
            ((1, -1, 0), lambda t: t**2 / 4),
        ),
    ),
    Risk(
        "log cosh(3 (w - x))",
        lambda x, y, w: 3 * np.tanh(3 * (w - x)),
        (((-3, 0, 3), lambda t: 3 * np.tanh(t)),),
    ),
    Risk(
        "exp(x + w) - y (x + w)",
        lambda x, y, w: np.exp(x + w) - y,
        (((1, 0, 1), np.exp), ((0, 1, 0), lambda t: -t)),
    ),
)
"""For these the first MLP can be written down for any error. Only the first is a network's risk."""

ETA, BOX = 0.2, 1.0


class FourLayers:
    """FF, one softmax head, FF and MLP: a gradient step on a risk of one weight.

    A token is [x, y, w, t, g, m]: the example, the weight, t = 1 on examples, and scratch for the
    gradient of the example and its mean. Biases are written as such, as in Definition 11.
    """

    def __init__(self, risk: Risk, pieces: int) -> None:
        reads, biases, coefficients = [], [], []
        for direction, profile in risk.ridges:
            reach = float(np.abs(direction).sum())
            for scale, shift, c in zip(*SumOfRelus(profile, reach, pieces).terms, strict=True):
                gate = abs(scale) * reach + abs(shift)  # closes the unit where t = 0
                reads.append([*(scale * np.array(direction)), gate, 0.0, 0.0])
                biases.append(shift - gate)
                coefficients.append(c)
        self.reads, self.biases = np.array(reads), np.array(biases)
        self.coefficients = np.array(coefficients)

    def __call__(self, tokens: Array) -> Array:
        _, _, w, t, g, m = np.eye(6)
        # 1: the gradient of every example, 0 on queries.
        tokens = tokens + np.outer(relu(tokens @ self.reads.T + self.biases) @ self.coefficients, g)
        # 2: its mean, by a head whose scores are 200 t; exp(-200) is left for queries.
        shares = np.exp(200 * (tokens @ t - 1))
        tokens = tokens + np.outer(np.ones(len(tokens)), m) * (shares @ (tokens @ g) / shares.sum())
        # 3: w - eta m, with g and m wiped; a linear map of z is one of relu(z) - relu(-z).
        linear = np.outer(-ETA * m, w) - np.outer(g, g) - np.outer(m, m)
        tokens = tokens + (relu(tokens) - relu(-tokens)) @ linear
        # 4: the projection.
        weight = tokens @ w
        return np.asarray(tokens + np.outer(relu(-weight - BOX) - relu(weight - BOX), w))


def follow_risk(risk: Risk, seed: int) -> Iterator[Comparison]:
    """Take three steps of four layers each, on prompts of 2, 8 and 32 examples and a query."""
    for eps, pieces in ((0.1, 40), (0.001, 400)):
        rng, block = np.random.default_rng(seed), FourLayers(risk, pieces)
        errors, lengths = [], []
        for n in 4 * [2, 8, 32]:
            x, y = rng.uniform(-1, 1, (2, n + 1))
            weight = float(rng.uniform(-1, 1))
            for _ in range(3):
                tokens = np.zeros((n + 1, 6))
                tokens[:, 0], tokens[:n, 1], tokens[:, 2], tokens[:n, 3] = x, y[:n], weight, 1.0
                mean = float(risk.gradient(x[:n], y[:n], np.full(n, weight)).mean())
                exact = float(np.clip(weight - ETA * mean, -BOX, BOX))
                after = block(tokens)[:, 2]
                errors.append(float(np.abs(after - exact).max()))
                lengths.append(abs(exact - weight))
                weight = float(after[0])
        case = f"{risk.name}, 4 plain layers, 2 to 32 examples, eps = {eps:g}"
        yield at_most(max(errors), ETA * eps, case, "worst |eps^(l)|_2; eta eps")
        yield at_most(sum(errors) / sum(lengths), 0.2, case, NOTHING)


@statement("wu", "Theorem 6")
def any_risk(seed: int) -> Iterator[Comparison]:
    """Run four plain layers on three risks, and try the proof's choice of kappa."""
    for risk in RISKS:
        yield from follow_risk(risk, seed)
    share = table_errors(40, 1, seed)[1]
    yield at_most(share, 0.25, f"{TANH_STEP}, looked up on 40 levels", NOTHING)
    eps, n_weights = 1e-2, 9
    for compare, factor, words in ((at_most, ETA, "eta eps"), (in_proof, 1.0, "eps")):
        # An error of kappa in each of 9 weights.
        norm = float(np.linalg.norm(np.full(n_weights, factor * eps / sqrt(n_weights))))
        case = f"every weight off by kappa = {words} / sqrt(D_w), eta = 0.2, eps = 0.01"
        yield compare(norm, ETA * eps, case, "|eps^(l)|_2; eta eps")


@statement("wu", "Theorem 3")
def any_risk_informally(seed: int) -> Iterator[Comparison]:
    """Run four plain layers on a risk of no network, and softmax-stack on networks."""
    yield from follow_risk(RISKS[2], seed)
    yield from explicit_softmax_weights(seed)


TABLE_ETA = 0.5
TANH_STEP = "a step of one tanh weight, n = 1"


def exact_step(x: Array, y: Array, w: Array) -> Array:
    """Return a step of one tanh weight on one example, before the projection."""
    return np.asarray(w - TABLE_ETA * (np.tanh(w * x) - y) * tanh_slope(w * x) * x)


def lemma_bound(lipschitz: float, d: int, n: int, levels: int) -> float:
    """L (8 sqrt(dn) + sqrt(n)) B_x / 2D, with B_x = 2."""
    return lipschitz * (8 * sqrt(d * n) + sqrt(n)) * 2 / (2 * levels)


def steepest_step() -> float:
    """Return the steepest slope of a step, at many points.

    A point is a prompt of equal examples with the same w; this is then exact for n = 1, and what is
    sampled can only make the lemma's bound smaller.
    """
    axis = np.linspace(-1, 1, 41)
    x, y, w = np.meshgrid(axis, axis, axis, indexing="ij")
    h = 1e-6
    shifts = np.eye(3) * h
    slopes = [
        (exact_step(x + a, y + b, w + c) - exact_step(x - a, y - b, w - c)) / (2 * h)
        for a, b, c in shifts
    ]
    return float(np.sqrt(sum(slope**2 for slope in slopes)).max())


def table_of_steps(levels: int, n: int) -> Compiled:
    """Compile one step of a tanh weight on n examples as a table."""
    target, update = MLP((1, 1), "tanh", "tanh"), GradientStep(TABLE_ETA, box=BOX)
    problem = Problem(target, "squared", update, Domain(1.0, 1.0))
    return compile(problem, "universal", n_steps=1, levels=levels, n_examples=n)


def table_errors(levels: int, n: int, seed: int) -> tuple[float, float]:
    """Return worst error of looked-up steps off the ramps, and all errors over the identity's."""
    rng, values = np.random.default_rng(seed), level_values(levels).numpy()
    cells = values[rng.integers(levels, size=(2, 12, n, 1))]
    x, y = cells + 0.9 * rng.uniform(-1, 1, cells.shape) / levels
    w = rng.uniform(-1, 1, (12, 1))
    prompts = Training((1, 1), x, y, TABLE_ETA, box=BOX)
    found = literal_path(table_of_steps(levels, n), prompts, w)[:, 1]
    exact = [replace(prompts, x=x[i], y=y[i]).after(w[i]) for i in range(len(w))]
    errors, lengths = np.abs(found - exact), np.abs(w - exact)
    return float(errors.max()), float(errors.sum() / lengths.sum())


def moved_by_mean(z: Array) -> Array:
    """Every number moves by tanh of the mean of its row."""
    return np.asarray(z + np.tanh(z.mean(1, keepdims=True)))


def weighted_mean(z: Array) -> Array:
    """Return the mean of all columns, weighted by the softmax of the first row, in every column."""
    shares = np.exp(z[0]) / np.exp(z[0]).sum()
    return np.tile((z * shares).sum(1, keepdims=True), z.shape[1])


def steepest(f: Curve, d: int, n: int) -> float:
    """Return the largest norm of the derivative of f, by differences at points of a grid."""
    axes = np.meshgrid(*[np.linspace(-1, 1, 5)] * (d * n))
    shifts = 1e-6 * np.eye(d * n).reshape(-1, d, n)
    worst = 0.0
    for point in np.stack(axes, axis=-1).reshape(-1, d, n):
        columns = [(f(point + h) - f(point - h)).ravel() / 2e-6 for h in shifts]
        worst = max(worst, float(np.linalg.norm(columns, ord=2)))
    return worst


def looked_up_functions(seed: int) -> Iterator[Comparison]:
    """Run tables of functions that are no gradient steps on prompts off the ramps."""
    rng = np.random.default_rng(seed)
    sizes = ((1, 1, 40), (1, 2, 40), (2, 2, 8))
    for f, name in ((moved_by_mean, "Z + tanh(mean)"), (weighted_mean, "softmax-weighted mean")):
        for d, n, levels in sizes:
            if f is weighted_mean and n == 1:
                continue  # the identity
            function = universal(f, d=d, n=n, D=levels, lipschitz=4.0)
            cells = level_values(levels).numpy()[rng.integers(levels, size=(12, d, n))]
            prompts = cells + 0.9 * rng.uniform(-1, 1, cells.shape) / levels
            found = function.verify(f, prompts, backend="literal")
            bound = lemma_bound(steepest(f, d, n), d, n, levels)
            case = f"{name}, d = {d}, n = {n}, {levels} levels"
            worst = float(found.errors.max())
            yield at_most(worst, bound, case, "largest error; the lemma's bound")
            share = float(found.errors.sum() / found.idle_errors.sum())
            yield at_most(share, 0.5, case, NOTHING)


@statement("wu", "Lemma 16")
def looked_up_answers(seed: int) -> Iterator[Comparison]:
    """Run tables of up to 40 levels off the ramps, and evaluate one on a ramp."""
    tables, lipschitz = ((10, 1), (20, 1), (40, 1), (10, 2)), steepest_step()
    errors = {(levels, n): table_errors(levels, n, seed) for levels, n in tables}
    for (levels, n), (worst, _) in errors.items():
        case = f"one tanh weight, n = {n}, {levels} levels, 12 prompts off the ramps"
        bound = lemma_bound(lipschitz, 3, n, levels)
        yield at_most(worst, bound, case, "largest error; the lemma's bound")
    ratio = errors[40, 1][0] / errors[10, 1][0]
    yield at_most(ratio, 0.5, TANH_STEP, "error of 40 levels over that of 10")
    yield at_most(errors[40, 1][1], 0.25, f"{TANH_STEP}, 40 levels", NOTHING)
    yield from looked_up_functions(seed)

    table, head = (
        table_of_steps(40, 1).stack.relu_sum(STEP_TABLE),
        context_head(40, 1, width=2, room=40),
    )
    values, worst = level_values(40).numpy(), 0.0
    x = values[:-1:4] + 1 / 40  # the edges of some cells
    for y, w in ((values[3], values[20]), (values[30], values[8])):
        codes = x * head.value[0] + y * head.value[1]
        answers = np.array([table(float(code + w * 40 / 2)) for code in codes])
        exact = np.clip(exact_step(x, np.full_like(x, y), np.full_like(x, w)), -BOX, BOX)
        worst = max(worst, float(np.abs(np.clip(answers, -BOX, BOX) - exact).max()))
    case = f"{TANH_STEP}, 40 levels, x half-way between two levels"
    bound = lemma_bound(lipschitz, 3, 1, 40)
    yield in_proof(worst, bound, case, "largest error; the lemma's bound")


def codes_of(head: ContextHead) -> Array:
    """Return what the head returns for every multiset of examples, computed anew."""
    values = level_values(head.levels).numpy()
    tokens = np.array([(x, y) for x in values for y in values])[head.contexts.numpy()]
    scores, carried = tokens @ np.array(head.score), tokens @ np.array(head.value)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray((shares * carried).sum(-1) / shares.sum(-1))


@statement("wu", "Definition 13")
def contextual_mapping(seed: int) -> Iterator[Comparison]:
    """Try the identity and icgd's head on contexts that share a token."""
    del seed  # nothing is drawn
    gap = float(np.diff(np.sort(codes_of(context_head(4, 2, width=2, room=4)))).min())
    yield at_most(1.0, gap, "icgd's head on all contexts of 4 levels", "delta; least distance")
    sequences = np.array([[1.0, 2.0], [1.0, 3.0]])  # r = 4, delta = 1/2
    tokens = sequences.ravel()
    apart = np.abs(tokens[:, None] - tokens)
    is_met = (tokens < 4).all() and (apart[tokens[:, None] != tokens] > 0.5).all()
    distance = abs(float(sequences[0, 0] - sequences[1, 0])) if is_met else 1.0
    case = "the identity, which meets both conditions: token 1 in (1, 2) and in (1, 3)"
    yield printed(0.5, distance, case, "delta; distance of its ids")


def log10_separation(
    vocabulary: int, d: int, n: int, r_min: float, r_max: float, eps: float
) -> float:
    """Return the logarithm of the lemma's delta."""
    growth = (vocabulary + 1) ** 4 * (2 * log(n) + 3) * pi * d * r_max**2
    factor = 2 * log(n) ** 2 * eps**2 * r_min / growth
    return log10(factor) - growth / (4 * eps * r_min) / log(10)


@statement("wu", "Lemma 17")
def separation(seed: int) -> Iterator[Comparison]:
    """Count the digits of delta, and those that a head of rank 1 needs to tell contexts apart."""
    del seed  # nothing is drawn
    digits = -log10_separation(2, 1, 2, 0.5, 1.0, 0.5)
    case = "delta for 2 tokens, d = 1, n = 2, r_min = 1/2, r_max = 1, eps = 1/2"
    yield at_most(323.3, digits, case, "digits of the least float64; of delta")
    ordered = np.sort(codes_of(context_head(4, 2, width=2, room=4)))
    digits = -log10(float(np.diff(ordered).min() / (ordered[-1] - ordered[0])))
    case = f"a rank-1 softmax head that was searched for, {len(ordered)} contexts of 4 levels"
    yield at_most(digits, 15.95, case, "digits; float64 has")


def step_up(z: Array, width: float, height: float) -> Array:
    """Evaluate (F.5): 0 below 0, `height` beyond height * width."""
    return np.asarray(relu(z / width) - relu(z / width - height))


def quantiser(z: Array, bound: float, levels: int, last: float, width: float = 1e-6) -> Array:
    """Evaluate (F.10): levels B/D .. B on [0, B], and a step back to 0 beyond it."""
    steps = [step_up(z - t * bound / levels, width, bound) / levels for t in range(levels)]
    return np.asarray(np.sum(steps, axis=0) - step_up(z - bound, width, last))


@statement("wu", "Equation (F.10)")
def quantised_outside(seed: int) -> Iterator[Comparison]:
    """Evaluate the quantiser of [0, 2] at 3, with a last step of height 2 and of height 1."""
    del seed  # nothing is drawn
    for compare, last in ((at_most, 2.0), (printed, 1.0)):
        value = np.abs(quantiser(np.array([3.0]), 2.0, 4, last)).max()
        yield compare(value, EXACT, "B_x = 2, D = 4, z = 3", "value outside [0, B_x]; 0 wanted")


@statement("wu", "Equation (F.12)")
def penalised_tokens(seed: int) -> Iterator[Comparison]:
    """Compare token 1 of two prompts that differ in token 2, which its layer does not see."""
    tokens = np.random.default_rng(seed).uniform(size=(3, 2))  # d = 3, n = 2
    other = tokens.copy()
    other[0, 1] = 2.0  # outside [0, 1]

    def layer(z: Array, axes: tuple[int, ...]) -> Array:
        penalty = np.where((z < 0) | (z > 1), -1.0, 0.0)
        return np.asarray(quantiser(z, 1.0, 4, 1.0) + penalty.sum(axes, keepdims=True))

    for compare, axes, words in ((at_most, (0,), "a token"), (printed, (0, 1), "the sequence")):
        moved = float(np.abs(layer(tokens, axes) - layer(other, axes))[:, 0].max())
        case = f"d = 3, n = 2, an entry of token 2 leaves [0, 1], penalties summed over {words}"
        yield compare(moved, 0.0, case, "change of token 1")
