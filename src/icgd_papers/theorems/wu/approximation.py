r"""Sums of ReLUs for r, r' and u, and how their errors travel: Lemmas 2, 3, 4, 6 and 7, Remark 2.

Lemmas 2 to 4 let layers evaluate functions that are close to r, r' or u on an interval. What
decides is whether the arguments stay inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log, pi, sin, sqrt

import numpy as np

from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.theorems.wu.oracle import (
    TANH_BEND,
    Array,
    Curve,
    SumOfRelus,
    deltas,
    largest,
    outputs,
    random_matrices,
    relu,
    sigmoid,
    slopes,
    softplus,
    tanh_slope,
    unit_rows,
)

PIECES = 64
OF_BOUND = "of the bound"


def printed_bound(r: Curve, row: float, x: float, depth: int) -> float:
    """B_r = max_j B_r^j, with B_r^0 = B_x and B_r^j = max |r(t)| for |t| <= B_v B_r^(j-1)."""
    bounds = [x]
    for _ in range(depth):
        bounds.append(largest(r, row * bounds[-1]))
    return max(bounds)


def true_reach(r: Curve, row: float, x: float, widths: Sequence[int], room: float = 0.05) -> float:
    """Return what no argument v . p exceeds: |p(j)|_2 <= sqrt(K) (B_r^j + room) for a layer of K
    units.
    """
    norms = [x]
    for width in widths[1:-1]:
        norms.append(sqrt(width) * (largest(r, row * norms[-1]) + room))
    return max(row * max(norms), 1.0)


def forward_constant(widths: Sequence[int], lipschitz: float, row: float) -> float:
    """Return E_r of (3.10): (sum_{l<N} (sqrt(K) L_r B_v)^l) max(sqrt(K), sqrt(d))."""
    depth, widest = len(widths) - 1, max(widths[1:-1], default=1)
    growth = sqrt(widest) * lipschitz * row
    return sum(growth**power for power in range(depth)) * sqrt(max(widest, widths[-1]))


def largest_gap(left: Sequence[Array], right: Sequence[Array]) -> float:
    """Return the largest difference of any entry."""
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))


@statement("wu", "Lemma 2")
def forward_pass(seed: int) -> Iterator[Comparison]:
    """Evaluate tanh by 64 pieces on the printed interval and on one that holds all arguments."""

    def share(matrices: Sequence[Array], x: Array, reach: float) -> float:
        widths = (x.shape[1], *(len(matrix) for matrix in matrices))
        fit = SumOfRelus(np.tanh, reach, PIECES)
        exact, actual = (outputs(matrices, x, curve) for curve in (np.tanh, fit))
        pairs = zip(exact, actual, strict=True)
        error = max(float(np.linalg.norm(a - b, axis=1).max()) for a, b in pairs)
        return error / (forward_constant(widths, 1.0, 1.0) * fit.error)

    # Rows of norm 1 along their inputs: the second layer sees sqrt(16) tanh(1) = 3.05.
    first = np.zeros((16, 4))
    first[:, 0] = 1.0
    aligned = [first, np.full((4, 16), 1 / 4)]
    case = "4-16-4 tanh, rows of norm 1 along their inputs"
    reach = true_reach(np.tanh, 1.0, 1.0, (4, 16, 4))
    yield at_most(share(aligned, first[:1], reach), 1.0, case, OF_BOUND)
    reach = max(printed_bound(np.tanh, 1.0, 1.0, depth=2), 1.0)
    yield printed(share(aligned, first[:1], reach), 1.0, case, OF_BOUND)

    rng, widths = np.random.default_rng(seed), (4, 16, 16, 4)
    matrices, x = random_matrices(rng, widths), unit_rows(rng, 8, 4)
    reach = true_reach(np.tanh, 1.0, 1.0, widths)
    yield at_most(share(matrices, x, reach), 1.0, "4-16-16-4 tanh, random", OF_BOUND)

    # (D.8) has |K|_1 = 1 >= |Q|_1, and a head for each unit and ReLU with the value c_m.
    total = SumOfRelus(np.tanh, reach, PIECES).total
    case = "layer N of 6-2-6 tanh, built as in (D.8)"
    yield in_proof(1 + 6 * total, 1 + 2 * total, case, "norm; 1 + K C_1")


@statement("wu", "Lemma 3")
def derivatives(seed: int) -> Iterator[Comparison]:
    """Evaluate r' at approximated outputs: softplus with one unit, tanh with many."""

    def share(
        r: Curve, slope: Curve, bend: float, matrices: Sequence[Array], x: Array, reach: float
    ) -> float:
        """Return the error of r' over eps_r' + L_r' B_v E_r eps_r, with r on an interval that
        holds.
        """
        row = float(np.linalg.norm(matrices[0], axis=1).max())
        widths = (x.shape[1], *(len(matrix) for matrix in matrices))
        value = SumOfRelus(r, true_reach(r, row, 1.0, widths), PIECES)
        fit = SumOfRelus(slope, reach, PIECES)
        exact = slopes(matrices, outputs(matrices, x, r), slope)
        actual = slopes(matrices, outputs(matrices, x, value), fit)
        carried = bend * row * forward_constant(widths, 1.0, row) * value.error
        return largest_gap(exact, actual) / (fit.error + carried)

    one, case = np.ones((1, 1)), "1-1-1 softplus, weights 2, x = 1"
    narrow = max(2 * printed_bound(sigmoid, 2.0, 1.0, depth=2), 1.0)
    wide = true_reach(softplus, 2.0, 1.0, (1, 1, 1))
    single = (softplus, sigmoid, 0.25, [2 * one, 2 * one], one)
    yield at_most(share(*single, wide), 1.0, case, OF_BOUND)
    yield printed(share(*single, narrow), 1.0, case, OF_BOUND)

    rng, widths = np.random.default_rng(seed), (4, 16, 16, 4)
    many = (np.tanh, tanh_slope, TANH_BEND, random_matrices(rng, widths), unit_rows(rng, 8, 4))
    wide = true_reach(np.tanh, 1.0, 1.0, widths)
    yield at_most(share(*many, wide), 1.0, "4-16-16-4 tanh, random", OF_BOUND)

    depth, width, d = 2, 2, 6
    matrices, x = random_matrices(rng, (d, width, d)), unit_rows(rng, 1, d)
    n_slopes = sum(
        bend.size for bend in slopes(matrices, outputs(matrices, x, np.tanh), tanh_slope)
    )
    case, total = "6-2-6 tanh", SumOfRelus(tanh_slope, 2.0, PIECES).total
    yield at_most(n_slopes, (depth - 1) * width + d, case, "derivatives; (N-1) K + d")
    yield printed(n_slopes, (depth - 2) * width + d, case, "derivatives; (N-2) K + d")
    norm, bound = 1 + n_slopes * total, 1 + width * (depth - 1) * total
    yield in_proof(norm, bound, f"{case}, built as in (D.8)", "norm; 1 + K (N-1) C_2")


def loss_mlp(fit: SumOfRelus, directions: Array, reach: float) -> tuple[Array, Array]:
    """Return W_1 and W_2 of Lemma 4 for u[k] = fit(<direction_k, p>) - y[k], rows scaled by |c_m|.

    A row reads <a_m, [p; y; 1]> - R (1 - t) of the token [p; y; 1; t]: on a query, where t = 0, no
    unit is active.
    """
    scales, shifts, coefficients = fit.terms
    reads, writes, d = [], [], len(directions)
    for label, direction in zip(np.eye(d), directions, strict=True):
        a = np.zeros((len(scales) + 2, 2 * d + 2))
        a[:-2, :d], a[:-2, 2 * d] = np.outer(scales, direction), shifts
        a[-2:, d : 2 * d] = np.outer([-1.0, 1.0], label)
        sizes = np.abs(a).sum(1)  # made 1 below, as in Definition 4
        c = np.concatenate([coefficients, [1.0, -1.0]]) * sizes
        a /= sizes[:, None]
        a[:, -2] -= reach
        a[:, -1] = reach
        reads.append(np.abs(c)[:, None] * a)
        writes.append(np.outer(label, np.sign(c)))
    return np.concatenate(reads), np.concatenate(writes, axis=1)


def evaluate_mlp(mlp: tuple[Array, Array], p: Array, y: Array, is_example: float) -> Array:
    """Apply the MLP of Lemma 4 to tokens that are all examples or all queries."""
    tokens = np.concatenate([p, y, np.full((len(p), 2), [1.0, is_example])], axis=1)
    return np.asarray(relu(tokens @ mlp[0].T) @ mlp[1].T)


@statement("wu", "Lemma 4")
def loss_slope(seed: int) -> Iterator[Comparison]:
    """Evaluate the slopes of two losses with 1, 2 and 3 outputs by an MLP that is written out."""
    rng = np.random.default_rng(seed)

    def fit_of(directions: Array, reach: float) -> SumOfRelus:
        """Fit the logistic function for all arguments <direction, p> with |p| <= reach."""
        return SumOfRelus(sigmoid, reach * float(np.abs(directions).sum(1).max()), PIECES)

    def share(matrices: list[Array], x: Array, directions: Array, reach: float) -> float:
        """Return the error of u over eps_l + L_l E_r eps_r."""
        row = max(float(np.linalg.norm(matrix, axis=1).max()) for matrix in matrices)
        size = float(np.linalg.norm(x, axis=1).max())
        widths = (x.shape[1], *(len(matrix) for matrix in matrices))
        value = SumOfRelus(softplus, true_reach(softplus, row, size, widths), 512)
        exact, actual = (outputs(matrices, x, r)[-1] for r in (softplus, value))
        fit, y = fit_of(directions, reach), rng.uniform(size=exact.shape)
        slope = evaluate_mlp(loss_mlp(fit, directions, reach), actual, y, 1.0)
        error = float(np.abs(slope - (sigmoid(exact @ directions.T) - y)).max())
        lipschitz = 0.25 * float(np.linalg.norm(directions, axis=1).max())
        return error / (fit.error + lipschitz * forward_constant(widths, 1.0, row) * value.error)

    # The output of this network is 1.92, larger than B_v B_r = 0.9 * 2.
    one = np.ones((1, 1))
    single, case = ([0.9 * one, 0.9 * one], 2 * one, one), "1-1-1 softplus, weights 0.9, x = 2"
    bound = printed_bound(softplus, 0.9, 2.0, depth=2)
    reach = max(bound + 0.05, 1.0)
    yield at_most(share(*single, reach), 1.0, case, OF_BOUND)
    yield printed(share(*single, max(0.9 * bound, 1.0)), 1.0, case, OF_BOUND)

    # (C.1) without the scaling: every row of W_1 reads R t, and a column is summed over all units.
    reads, _ = loss_mlp(fit_of(one, reach), one, reach)
    sizes = np.abs(reads[:, -1:]) / reach  # |c_m|
    norm = float((np.abs(reads) / sizes).sum(0).max() + sizes.max())
    case = "1 output, sigmoid(p) - y, as in the proof"
    yield in_proof(norm, max(reach + 1, sizes.sum()), case, "norm; max(R_3 + 1, C_3)")
    needed = ceil((2 * 3 - 1) / 2) + 1
    yield in_proof(needed, 3, "u of 2d = 6 variables by Lemma 7", "derivatives; C^3")

    # softmax(p)[1] = sigmoid(p[1] - p[2]): with classes every u[k] depends on all outputs.
    classes = np.array([[1.0, -1.0], [-1.0, 1.0]])
    for directions, loss in ((np.eye(3), "logistic"), (classes, "cross-entropy")):
        d = len(directions)
        matrices, x = random_matrices(rng, (2, 4, d)), unit_rows(rng, 16, 2)
        reach = true_reach(softplus, 1.0, 1.0, (2, 4, d)) + 0.5
        case = f"2-4-{d} softplus, {loss} loss, d = {d}"
        yield at_most(share(matrices, x, directions, reach), 1.0, case, OF_BOUND)
        mlp = loss_mlp(fit_of(directions, reach), directions, reach)
        p, y = reach * rng.uniform(-1, 1, (64, d)), rng.uniform(size=(64, d))
        at_query = float(np.abs(evaluate_mlp(mlp, p, y, 0.0)).max())
        yield at_most(at_query, 0.0, f"{case}, queries", "largest |g|")
        norm = sum(float(np.abs(weights).sum(0).max()) for weights in mlp)
        total = float(mlp[0][:, -1].sum()) / reach
        unit = "norm; (R_3 + 1) sum_k C_3^k + 1"
        yield at_most(norm, (reach + 1) * total + 1, f"{case}, rows scaled by |c|", unit)


@dataclass(frozen=True)
class BackwardBounds:
    """B_s and the constants of (3.24), from the sizes and Lipschitz constants of the functions."""

    depth: int
    norm: float
    """P = max(sqrt(K), sqrt(d))."""
    row: float
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
        """The factor of a layer."""
        return self.slope * self.row * self.norm

    @property
    def size(self) -> float:
        """B_s of (3.23)."""
        return max(self.ratio**m for m in range(self.depth)) * self.slope * self.loss

    def error(self, value: float, slope: float, loss: float) -> float:
        """E_s^r eps_r + E_s^r' eps_r' + E_s^l eps_l, with the maximum over j in each."""
        powers = [self.ratio**m for m in range(self.depth)]
        sums = [sum(powers[:m]) for m in range(self.depth)]
        carried = self.slope_lipschitz * self.forward * self.row
        entering = self.norm * self.size * self.row
        by_slope = max(
            entering * s + power * self.loss for s, power in zip(sums, powers, strict=True)
        )
        first = self.loss * carried + self.slope * self.loss_lipschitz * self.forward
        by_value = max(
            carried * entering * s + power * first for s, power in zip(sums, powers, strict=True)
        )
        return by_value * value + by_slope * slope + max(powers) * self.slope * loss


@statement("wu", "Lemma 6")
def backward_errors(seed: int) -> Iterator[Comparison]:
    """Try V_2 with all its weights in one column, and a random network with approximations."""
    width, eps = 16, 1e-3
    column, ones = np.zeros((width, width)), np.ones((1, width))
    column[:, 0] = 1.0  # every row has norm 1, the first column has norm 4
    exact = deltas([column, column], [ones, ones], ones)
    actual = deltas([column, column], [ones, ones], (1 + eps) * ones)
    largest_s, error = max(float(np.abs(s).max()) for s in exact), largest_gap(exact, actual)
    case = "16-16-16 identity, all weights of V_2 in one column, u = 1"
    for compare, row in ((at_most, 4.0), (printed, 1.0)):
        bounds = BackwardBounds(2, sqrt(width), row, 1.0, 1.0)
        yield compare(largest_s, bounds.size, f"{case}: |s|", "largest entry")
        bound = bounds.error(0.0, 0.0, eps)
        yield compare(error, bound, f"{case}: error of s", "largest entry")

    rng, widths = np.random.default_rng(seed), (4, 8, 8, 3)
    matrices, x = random_matrices(rng, widths), unit_rows(rng, 8, 4)
    y = rng.normal(size=(8, 3))
    reach = true_reach(np.tanh, 1.0, 1.0, widths)
    value, slope = (SumOfRelus(curve, reach, PIECES) for curve in (np.tanh, tanh_slope))
    p, q = outputs(matrices, x, np.tanh), outputs(matrices, x, value)
    bends, near = slopes(matrices, p, tanh_slope), slopes(matrices, q, slope)
    u, g = 2 * (p[-1] - y), 2 * (q[-1] - y)
    error = largest_gap(deltas(matrices, bends, u), deltas(matrices, near, g))
    bounds = BackwardBounds(
        depth=3,
        norm=sqrt(8),
        row=max(float(np.linalg.norm(m, axis=axis).max()) for m in matrices for axis in (0, 1)),
        slope=max(float(np.abs(bend).max()) for bend in (*bends, *near)),
        loss=max(float(np.abs(u).max()), float(np.abs(g).max())),
        slope_lipschitz=TANH_BEND,
        loss_lipschitz=2.0,
        forward=forward_constant(widths, 1.0, 1.0),
    )
    share = error / bounds.error(value.error, slope.error, 0.0)
    yield at_most(share, 1.0, "4-8-8-3 tanh, random, 64 pieces: error of s", OF_BOUND)


CONSTANTS = {1: 8.0, 2: 32.0}
"""C(k). For k = 1: the interpolation of g with pieces of length h is within h^2 L_2 / 8 on [-R, R],
R >= 1, and its coefficients add up to |g(-R)| + R L_1 + 2 L_1 + (1 + R) 2 R L_2 at most, which is
8 max(L_0, L_1 R, L_2 R^2) at most. For k = 2 a number that serves for the functions tried."""


def wave(m: int) -> Curve:
    """Return sin(m z) / m, whose slope is 1 at most."""
    return lambda z: np.asarray(np.sin(m * z) / m)


@statement("wu", "Lemma 7")
def smooth_functions(seed: int) -> Iterator[Comparison]:
    """Fit waves of one variable, and a product, a wave and a bell of two variables."""
    del seed  # nothing is drawn
    for m in (1, 10, 100):
        worst = np.zeros(3)
        for reach in (1.0, 2.0):
            for eps in (1e-2, 1e-4):
                size = max(1 / m, reach, m * reach**2)  # C_l with L_0 = 1 / m, L_1 = 1, L_2 = m
                pieces = ceil(2 * reach * sqrt(m / (8 * eps)))
                fit = SumOfRelus(wave(m), reach, pieces)
                allowed = size**2 * log(1 + size / eps) / eps**2
                shares = (fit.error / eps, fit.total / size, len(fit.terms[2]) / allowed)
                worst = np.maximum(worst, shares)
        case = f"k = 1, sin({m} z) / {m}, R = 1, 2, eps = 0.01, 0.0001"
        yield from _shares(worst, CONSTANTS[1], case)

    # The slopes of sin(m z) / m turn from 1 to -1 about 2 m / pi times on [-1, 1]; whatever comes
    # near must turn as often, and a sum of ReLUs turns by no more than its coefficients add up to.
    m = 10_000
    needed, case = least_coefficients(m), f"k = 1, sin(m z) / m, m = {m}, R = 1, eps = 1/4m"
    yield at_most(needed, CONSTANTS[1] * m, case, "sum of |c|; C_l = max(L_0, L_1, L_2)")
    yield printed(needed, CONSTANTS[1], case, "sum of |c|; C_l = max(L_0, L_1)")

    for name, ridges, function, size in two_variables():
        worst = np.zeros(3)
        for eps in (1e-1, 1e-2, 1e-3):
            error, total, n_terms = ridge_fit(ridges, function, eps)
            allowed = size**2 * log(1 + size / eps) / eps**2
            worst = np.maximum(worst, (error / eps, total / size, n_terms / allowed))
        case = f"k = 2, {name}, R = 1, eps = 0.1, 0.01, 0.001"
        yield from _shares(worst, CONSTANTS[2], case)


def _shares(worst: Array, constant: float, case: str) -> Iterator[Comparison]:
    yield at_most(worst[0], 1.0, case, "error over eps")
    yield at_most(worst[1], constant, case, "C over C_l")
    yield at_most(worst[2], constant, case, "H over C_l^2 log(1 + C_l/eps)/eps^2")


def least_coefficients(m: int) -> float:
    """Return a lower bound on sum |c| for whatever is within 1 / 4m of sin(m z) / m on [-1, 1].

    At neighbouring peaks it differs by 3 / 2m, so that its slope turns by 3 / pi between pairs.
    """
    peaks = [(pi / 2 + k * pi) / m for k in range(-floor(m / pi) - 1, floor(m / pi) + 1)]
    peaks = [z for z in peaks if abs(z) <= 1 and abs(sin(m * z)) > 0.99]
    return (len(peaks) - 2) * 2 * (3 / (2 * m)) / (pi / m)


Ridges = list[tuple[Array, Curve, float]]
"""Directions, the profile of the function along each, and a bound on its second derivative."""


def two_variables() -> Iterator[tuple[str, Ridges, Curve, float]]:
    """Yield sums of functions of one direction on [-1, 1]^2, and their C_l for s = 3.

    The bell is the mean over all directions of one profile, by its Fourier transform.
    """
    plus, minus = np.array([1.0, 1.0]), np.array([1.0, -1.0])
    squares: Ridges = [(plus, lambda t: t**2 / 4, 0.5), (minus, lambda t: -(t**2) / 4, 0.5)]
    yield "x y", squares, lambda z: z[..., 0] * z[..., 1], 1.0
    waves: Ridges = [(a, lambda t: np.sin(3 * t) / 2, 4.5) for a in (plus, minus)]
    yield "sin(3x) cos(3y)", waves, lambda z: np.sin(3 * z[..., 0]) * np.cos(3 * z[..., 1]), 27.0

    frequencies = np.linspace(0, 8, 400)
    weights = frequencies * np.exp(-(frequencies**2) / 2) * (frequencies[1] - frequencies[0])

    def profile(t: Array) -> Array:
        return np.asarray(np.cos(np.asarray(t)[..., None] * frequencies) @ weights)

    n = 16
    bells: Ridges = [
        (np.array([np.cos(angle), np.sin(angle)]), lambda t: profile(t) / n, 2.0 / n)
        for angle in np.arange(n) * pi / n
    ]
    yield "exp(-(x^2 + y^2) / 2)", bells, lambda z: np.exp(-(z**2).sum(-1) / 2), 1.4


def ridge_fit(ridges: Ridges, function: Curve, eps: float) -> tuple[float, float, int]:
    """Return the largest error on [-1, 1]^2, C and H of the ridges' interpolations, as in
    Definition 4.
    """
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 81)]), axis=-1)
    found, total, n_terms = np.zeros(grid.shape[:-1]), 0.0, 0
    for direction, profile, bend in ridges:
        reach = float(np.abs(direction).sum())
        pieces = max(2, ceil(2 * reach * sqrt(bend * len(ridges) / (8 * eps))))
        fit = SumOfRelus(profile, reach, pieces)
        found += fit(grid @ direction)
        scales, shifts, coefficients = fit.terms
        # |a_h|_1 in two variables; what exceeds 1 is moved to the coefficient.
        total += float((np.abs(coefficients) * (np.abs(scales) * reach + np.abs(shifts))).sum())
        n_terms += len(coefficients)
    return float(np.abs(found - function(grid)).max()), total, n_terms


@statement("wu", "Remark 2")
def bounded_domain(seed: int) -> Iterator[Comparison]:
    """Evaluate the same ReLUs inside and outside their interval; let a descent leave it."""
    del seed  # nothing is drawn
    square = SumOfRelus(np.square, 4.0, 80)
    inside, outside = np.linspace(-4, 4, 2001), np.linspace(-1e3, 1e3, 20_001)
    near, far = (float(np.abs(square(z) - z**2).max()) for z in (inside, outside))
    yield at_most(near, 0.01, "z^2 by 80 pieces on [-4, 4]", "largest error")
    case = "z^2 by 80 pieces on [-4, 4], over the error on [-1000, 1000]"
    yield at_most(near / far, 1e-6, case, "share of the error")
    w = 2.0
    for _ in range(4):
        w -= 4 * w * (w**2 - 2)
    case = "f(w) = (w^2 - 2)^2 from w = 2, 4 steps of 1 without projection: 4 / |w|"
    yield at_most(4 / abs(w), 1e-6, case, "share of the weight that [-4, 4] holds")
