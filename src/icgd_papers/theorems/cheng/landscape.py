r"""Theorems 4.5 and 4.6: stationary points of the in-context loss, for every law of their kind.

A law of Assumption 4.1 is a mixture of orbits: a prompt X, moved by S U S^-1 for all rotations U,
with S = Sigma^(1/2). On an orbit the covariance K of the labels is constant (Assumption 4.2), and
may be any covariance. Derivatives of the loss are linear in the law, so what holds for every
orbit, with every K, holds for every law.

An orbit of all rotations is itself a mixture of orbits of a finite group, the signed cyclic shifts
of the coordinates. They suffice for the proofs, which need of U only that U^T R U is tr(R) / d
times I in the mean, for every matrix R: signs remove what is off the diagonal, and shifts make the
diagonal constant. So the mean over an orbit is a finite sum here, and what the theorems say holds
up to rounding, without a sampling error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import pi

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.autograd.functional import hessian

from icgd.problems.kernel_machine import kernel_named
from icgd_papers.theorems.cheng.transformer import (
    ACTIVATIONS,
    EXACT,
    WIDTH,
    Activation,
    difference,
    eye,
    generator,
    linear,
    mask,
    softmax,
)
from icgd_papers.theorems.statement import Comparison, at_most, printed, statement
from icgd_papers.training.covariates import normal, power_of, random_rotation

N_EXAMPLES = 6
N_LAYERS = 3
WIDTHS = (2, 3, 5)
"""The d that are tried."""

ROUNDING = 1e-11
"""The relative rounding error of a derivative."""

STATIONARY = 1e-5
"""The part of the first gradient that may be left at the best point of the family."""


@dataclass(frozen=True)
class Law:
    """A few prompts, each in all rotations, and the covariance of the labels of each.

    Attributes:
        X: the inputs, (rotation, prompt, d, token), the query last.
        covariance: E[Y^T Y | X], (prompt, token, token).
        root: Sigma^(1/2).
        whitening: Sigma^(-1/2).
    """

    X: Tensor
    covariance: Tensor
    root: Tensor
    whitening: Tensor

    @property
    def width(self) -> int:
        """The dimension d of the inputs."""
        return len(self.root)


Parameters = dict[str, Tensor]
"""r, B, C and, unless it is held at 0, A: an entry or a matrix for each layer."""


def signed_shifts(width: int) -> Tensor:
    """Return all products of a diagonal matrix of signs and a cyclic shift of the coordinates."""
    signs = torch.tensor(list(product((1.0, -1.0), repeat=width)), dtype=torch.float64)
    shifts = [eye(width).roll(places, 0) for places in range(width)]
    return torch.cat([signs[:, :, None] * shift for shift in shifts])


def orbits(prompts: Tensor, covariance: Tensor, sigma: Tensor, rotations: Tensor) -> Law:
    """Move whitened prompts (prompt, d, token) by all rotations, and colour them with Sigma."""
    root = power_of(sigma, 0.5)
    return Law(root @ rotations[:, None] @ prompts, covariance, root, power_of(sigma, -0.5))


def random_sigma(width: int, rng: np.random.Generator) -> Tensor:
    """Draw the axes of Sigma, whose eigenvalues lie between 1/4 and 9/4 as in App. H.1."""
    axes = random_rotation(width, rng)
    return axes @ torch.linspace(0.25, 2.25, width, dtype=torch.float64).diag() @ axes.mT


def arbitrary_law(width: int, seed: int) -> Law:
    """Draw three prompts and, unrelated to them, three covariances of the labels."""
    rng = generator(seed, width)
    prompts = 0.6 * normal(rng, 3, width, N_EXAMPLES + 1)
    factors = normal(rng, 3, N_EXAMPLES + 1, N_EXAMPLES + 1)
    covariance = factors @ factors.mT / (N_EXAMPLES + 1)
    return orbits(prompts, covariance, random_sigma(width, rng), signed_shifts(width))


def kernel_law(kernel: str, n_prompts: int, rotations: Tensor, seed: int) -> Law:
    """Draw prompts on the paper's ellipsoid, with labels of a kernel process (Example 7)."""
    width, rng = rotations.shape[-1], generator(seed, 10)
    drawn = normal(rng, n_prompts, width, N_EXAMPLES + 1)
    prompts = drawn / drawn.norm(dim=-2, keepdim=True)
    values, vectors = torch.linalg.eigh(kernel_named(kernel).matrix(prompts.mT, prompts.mT))
    covariance = (vectors * values.abs()[:, None]) @ vectors.mT  # K_+ of Definition 3.3
    return orbits(prompts, covariance, random_sigma(width, rng), rotations)


def in_context_loss(law: Law, h: Activation, parameters: Parameters) -> Tensor:
    """Return the loss (5), by Lemma A.1: the labels' row is multiplied by I + r M h in each layer.

    The last column of that product says how much of each first label reaches the query's.
    """
    X, M = law.X, mask(law.X.shape[-1])
    attention = []
    for place, (B, C) in enumerate(zip(parameters["B"], parameters["C"], strict=True)):
        attention.append(M @ h(B @ X, C @ X))
        if "A" in parameters:
            X = X + parameters["A"][place] @ X @ attention[-1]
    column = eye(X.shape[-1])[:, -1:]
    for r, weights in zip(parameters["r"].flip(0), reversed(attention), strict=True):
        column = column + r * weights @ column
    loss: Tensor = (column.mT @ law.covariance @ column).mean()
    return loss


def on_family(law: Law, multiples: Tensor) -> Parameters:
    """Return r, B = b S^-1, C = c S^-1 and, if there is a fourth row of multiples, A = a I."""
    r, *others = multiples
    matrices = {"B": law.whitening, "C": law.whitening, "A": eye(law.width)}
    scaled = zip(matrices.items(), others, strict=False)
    return {"r": r} | {name: row[:, None, None] * matrix for (name, matrix), row in scaled}


def random_multiples(attention: str, seed: int, *, moves: bool) -> Tensor:
    """Draw a point of the family, with steps that suit the attention."""
    scales = torch.from_numpy(generator(seed, 20).uniform(0.4, 1.0, (4, N_LAYERS)))
    step = 1.0 if attention == "softmax" else 1 / N_EXAMPLES
    scales[0] *= -step
    scales[3] *= -0.3 * step
    return scales if moves else scales[:3]


def gradient(law: Law, h: Activation, parameters: Parameters) -> Parameters:
    """Return the derivatives of the loss by all entries of the parameters."""
    entries = {name: entry.detach().requires_grad_() for name, entry in parameters.items()}
    slopes = torch.autograd.grad(in_context_loss(law, h, entries), list(entries.values()))
    return dict(zip(entries, slopes, strict=True))


def squares(slopes: Parameters) -> Tensor:
    """Return the sum of all squares."""
    return torch.stack([slope.square().sum() for slope in slopes.values()]).sum()


def family_direction(law: Law, name: str) -> tuple[Tensor, Tensor]:
    """Return the matrix D of the family and its dual E: R~ = tr(R E) D / d in (37) and (70)."""
    return (eye(law.width), eye(law.width)) if name == "A" else (law.whitening, law.root)


def random_points(seed: int, *, moves: bool) -> Iterator[tuple[str, Law, Activation, Tensor]]:
    """Draw a law and a point of the family for every width and activation."""
    for width, (attention, h) in product(WIDTHS, ACTIVATIONS.items()):
        case = f"{attention} attention, {N_LAYERS} layers, d = {width}, orbits with any covariance"
        multiples = random_multiples(attention, seed, moves=moves)
        yield case, arbitrary_law(width, seed), h, multiples


def derivatives(names: str, seed: int, *, moves: bool) -> Iterator[Comparison]:
    """Compare the derivatives by these matrices along all R with those along R~.

    The derivative along R~ is tr(R E) <slope, D> / d. So those along all R are equal if the slope
    is <slope, D> / d times E.
    """
    for case, law, h, multiples in random_points(seed, moves=moves):
        slopes = gradient(law, h, on_family(law, multiples))
        errors = []
        for name in names:
            D, E = family_direction(law, name)
            along = torch.einsum("lij,ij->l", slopes[name], D) / law.width
            error = difference(slopes[name], along[:, None, None] * E)
            errors.append(error / float(slopes[name].abs().max()))
        case = f"{case}: derivatives by {' and '.join(names)} along R beside those along R~"
        yield at_most(max(errors), ROUNDING, case, "relative difference")


@statement("cheng", "Proposition E.3")
def moving_keys_and_queries_with_fixed_inputs(seed: int) -> Iterator[Comparison]:
    """Differentiate by B and C with A = 0."""
    yield from derivatives("BC", seed, moves=False)


def family_flow(law: Law, slopes: Parameters) -> Parameters:
    """Return the velocities (30) or (47): minus the part of the gradient on the family."""
    flow = {"r": -slopes["r"]}
    for name in slopes.keys() - {"r"}:
        D, E = family_direction(law, name)
        traces = torch.einsum("lij,ji->l", slopes[name], E)
        flow[name] = -traces[:, None, None] / law.width * D
    return flow


def speeds(seed: int, *, moves: bool) -> Iterator[Comparison]:
    """Compare the loss's speed along the flow on the family with minus the squared gradient."""
    for case, law, h, multiples in random_points(seed, moves=moves):
        slopes = gradient(law, h, on_family(law, multiples))
        flow = family_flow(law, slopes)
        speed = torch.stack([(slopes[name] * flow[name]).sum() for name in slopes]).sum()
        error = float((speed / squares(slopes) + 1).abs())
        case = f"{case}: the loss's speed beside minus the squared gradient"
        yield at_most(error, ROUNDING, case, "relative difference")


@statement("cheng", "Equation (31)")
def flow_with_fixed_inputs(seed: int) -> Iterator[Comparison]:
    """Follow the flow with A = 0."""
    yield from speeds(seed, moves=False)


@statement("cheng", "Equation (48)")
def flow_with_moving_inputs(seed: int) -> Iterator[Comparison]:
    """Follow the flow with A free."""
    yield from speeds(seed, moves=True)


@statement("cheng", "Equation (51)")
def the_part_of_a_in_the_flow(seed: int) -> Iterator[Comparison]:
    """Compare <grad_A f, P~> with minus the squared gradient by A, and by B."""
    law = arbitrary_law(WIDTH, seed)
    slopes = gradient(law, softmax, on_family(law, random_multiples("softmax", seed, moves=True)))
    speed = (slopes["A"] * family_flow(law, slopes)["A"]).sum()
    case = "softmax attention, d = 5: (51) beside minus the squared gradient by {}"
    for compare, name in ((at_most, "A"), (printed, "B")):
        error = difference(speed, -slopes[name].square().sum()) / float(speed.abs())
        yield compare(error, ROUNDING, case.format(name), "relative difference")


def best_on_family(law: Law, h: Activation, start: Tensor) -> Tensor:
    """Minimise the loss over the family from `start`, and return the multiples."""

    def log_loss(flat: Tensor) -> Tensor:
        return in_context_loss(law, h, on_family(law, flat.reshape(start.shape))).log()

    def derivative(order: Callable[..., Tensor]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda flat: order(log_loss, torch.from_numpy(flat)).numpy()

    end = minimize(
        lambda flat: float(log_loss(torch.from_numpy(flat))),
        start.flatten().numpy(),
        jac=derivative(torch.autograd.functional.jacobian),
        hess=derivative(hessian),
        method="trust-exact",
        # Long steps would overflow exp attention.
        options={
            "gtol": 1e-11,
            "maxiter": 300,
            "initial_trust_radius": 0.2,
            "max_trust_radius": 0.5,
        },
    )
    return torch.from_numpy(end.x).reshape(start.shape)


def start_of_descent(attention: str, n_layers: int, *, moves: bool) -> Tensor:
    """Return multiples that differ from layer to layer: equal layers are a saddle on the family."""
    step = 1.0 if attention == "softmax" else 1 / N_EXAMPLES
    fall = torch.linspace(1.2, 0.4, n_layers, dtype=torch.float64)
    rise = torch.linspace(0.8, 1.2, n_layers, dtype=torch.float64)
    rows = [-step * fall, rise, torch.ones_like(rise), -0.1 * step * rise]
    return torch.stack(rows if moves else rows[:3])


def stationary_points(
    attentions: tuple[str, ...], labels: tuple[str, ...], seed: int, *, moves: bool
) -> Iterator[Comparison]:
    """Minimise the loss on the family, and compare the whole gradient there with the first one."""
    for attention, kernel in product(attentions, labels):
        law, h = kernel_law(kernel, 8, signed_shifts(3), seed), ACTIVATIONS[attention]
        start = start_of_descent(attention, 2, moves=moves)
        ends = (start, best_on_family(law, h, start))
        first, last = (squares(gradient(law, h, on_family(law, end))).sqrt() for end in ends)
        case = (
            f"{attention} attention, 2 layers, d = 3, {kernel} labels: the gradient by all entries "
            "at the best point of the family"
        )
        yield at_most(float(last / first), STATIONARY, case, "of the first gradient")


@statement("cheng", "Theorem 4.5")
def stationary_points_with_fixed_inputs(seed: int) -> Iterator[Comparison]:
    """Find the best point of the family with A = 0."""
    yield from stationary_points(tuple(ACTIVATIONS), ("relu", "exp"), seed, moves=False)


@statement("cheng", "Theorem 4.6")
def stationary_points_with_moving_inputs(seed: int) -> Iterator[Comparison]:
    """Find the best point of the family with A free.

    Not for relu attention: with A free the loss of finitely many prompts has kinks, at which its
    minimum may lie. Propositions F.3 and F.4 try it away from them.
    """
    yield from stationary_points(("linear", "exp", "softmax"), ("relu", "exp"), seed, moves=True)


def whole_gradients(seed: int, *, moves: bool) -> Iterator[Comparison]:
    """Compare the squared gradient with what the derivatives by the family's multiples make of it.

    On the family the gradient by B is (df/db) S / d, and that by A is (df/da) I / d. So the whole
    gradient is as small as the gradient by finitely many multiples, which comes arbitrarily
    close to 0, because the loss is bounded below.
    """
    for case, law, h, start in random_points(seed, moves=moves):
        multiples = start.requires_grad_()
        loss = in_context_loss(law, h, on_family(law, multiples))
        (by_multiples,) = torch.autograd.grad(loss, multiples)
        of_root, of_one = law.root.square().sum() / law.width**2, 1 / law.width
        weights = torch.tensor([1.0, of_root, of_root, of_one], dtype=torch.float64)
        expected = weights[: len(multiples)] @ by_multiples.square().sum(-1)
        whole = squares(gradient(law, h, on_family(law, multiples)))
        case = f"{case}: the squared gradient by all entries beside that by the multiples"
        yield at_most(float((whole / expected - 1).abs()), ROUNDING, case, "relative difference")


@statement("cheng", "Theorem E.1")
def gradients_with_fixed_inputs(seed: int) -> Iterator[Comparison]:
    """Reduce the gradient to the multiples, and make it small, with A = 0."""
    yield from whole_gradients(seed, moves=False)
    yield from stationary_points(("softmax",), ("exp",), seed, moves=False)


@statement("cheng", "Theorem F.1")
def gradients_with_moving_inputs(seed: int) -> Iterator[Comparison]:
    """Reduce the gradient to the multiples, and make it small, with A free."""
    yield from whole_gradients(seed, moves=True)
    yield from stationary_points(("softmax",), ("exp",), seed, moves=True)


def gauge(seed: int, *, moves: bool) -> Iterator[Comparison]:
    """Compare the loss of (B, C) with that of (L^T B, L^-1 C) for random matrices."""
    law, rng = arbitrary_law(WIDTH, seed), generator(seed, 30)
    change = eye() + 0.3 * normal(rng, WIDTH, WIDTH)
    A, B, C = normal(rng, 3, N_LAYERS, WIDTH, WIDTH)
    r = torch.full((N_LAYERS,), -0.1, dtype=torch.float64)
    before = {"r": r, "B": 0.2 * B, "C": 0.2 * C} | ({"A": 0.01 * A} if moves else {})
    after = before | {"B": change.mT @ before["B"], "C": torch.linalg.inv(change) @ before["C"]}
    for attention, h in ACTIVATIONS.items():
        ratio = in_context_loss(law, h, after) / in_context_loss(law, h, before)
        case = f"{attention} attention, {N_LAYERS} layers, random matrices: the loss of both pairs"
        yield at_most(float((ratio - 1).abs()), ROUNDING, case, "relative difference")


@statement("cheng", "Remark E.2")
def gauge_with_fixed_inputs(seed: int) -> Iterator[Comparison]:
    """Try random matrices with A = 0."""
    yield from gauge(seed, moves=False)


@statement("cheng", "Remark F.2")
def gauge_with_moving_inputs(seed: int) -> Iterator[Comparison]:
    """Try random matrices with A free."""
    yield from gauge(seed, moves=True)


def condition_numbers(X: Tensor) -> Tensor:
    """Return the condition number of least squares on the examples of each prompt."""
    singular: Tensor = torch.linalg.svdvals(X[..., :-1])
    return (singular[..., 0] / singular[..., -1]).square()


@statement("cheng", "Section 4.4, condition number")
def conditioning_by_linear_layers(seed: int) -> Iterator[Comparison]:
    """Measure the condition number before and after layers of linear attention.

    On the family a layer turns whitened inputs W into (I - g W M W^T) W with g = -a b c, and so an
    eigenvalue t of W M W^T into t (1 - g t)^2. Up to g t = 1/3 this grows with t, but more slowly
    than t itself, so that ratios of eigenvalues come closer to 1.
    """

    def moved(W: Tensor, g: Tensor) -> Tensor:
        return W - g * W @ mask(W.shape[-1]) @ linear(W, W)

    case = "d = 3, 20 prompts: the condition number after a layer over that before, {}"
    law = kernel_law("linear", 20, signed_shifts(3), seed)
    W = law.whitening @ law.X[0]
    largest = torch.linalg.svdvals(W[..., :-1])[:, :1, None].square()
    for part in (0.05, 0.2, 1 / 3):
        ratios = condition_numbers(moved(W, part / largest)) / condition_numbers(W)
        yield at_most(ratios.max(), 1, case.format(f"g t_max = {part:.2f}"), "times")

    # One counterexample is enough: the law is the same for every seed.
    law = kernel_law("exp", 20, signed_shifts(3), 0)
    W = law.whitening @ law.X[0]
    multiples = best_on_family(law, linear, start_of_descent("linear", 2, moves=True))
    left = squares(gradient(law, linear, on_family(law, multiples))).sqrt()
    where = "exp labels, linear attention, 2 layers: the gradient at the best point"
    yield at_most(left, STATIONARY, where, "norm")
    _, b, c, a = multiples[:, 0]
    ratios = condition_numbers(moved(W, -a * b * c)) / condition_numbers(W)
    yield printed(ratios.max(), 1, case.format("at that stationary point"), "times")


def dihedral(order: int) -> Tensor:
    """Return a finite group of rotations and reflections of the plane.

    From order 5 on it averages polynomials of degree 4 in the entries of U as all rotations do. So
    means of second derivatives over an orbit are exact: on the family, moving B along R at rotated
    inputs is moving it along U^T R U_S, and a second derivative is quadratic in R.
    """
    angles = 2 * pi / order * torch.arange(order, dtype=torch.float64)
    rows = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], dim=-1)
    turns = rows.reshape(order, 2, 2)
    return torch.cat([turns, turns @ torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)])


@statement("cheng", "Section 5, optimality")
def minima_and_saddles(seed: int) -> Iterator[Comparison]:
    """Compare one linear layer with the global minimum, and look for saddles of a softmax layer."""
    law = kernel_law("exp", 12, dihedral(8), seed)
    best = on_family(law, best_on_family(law, linear, start_of_descent("linear", 1, moves=False)))

    # With C fixed the loss of a linear layer is a convex quadratic function of r B, so a Newton
    # step from anywhere ends at the global minimum.
    def loss_of(B: Tensor) -> Tensor:
        return in_context_loss(law, linear, best | {"B": B.reshape(best["B"].shape)})

    slope = gradient(law, linear, best)["B"].flatten()
    excess = slope @ torch.linalg.lstsq(hessian(loss_of, best["B"].flatten()), slope).solution / 2
    case = "one layer of linear attention, d = 2: the loss at the best point above its minimum"
    yield at_most(float(excess / loss_of(best["B"])), EXACT, case, "of the loss")
    curvatures = [quarter_turn_curvature(kernel_law("exp", 4, dihedral(8), k)) for k in range(12)]
    case = (
        "one layer of softmax attention, d = 2, exp labels: the smallest curvature of the loss off "
        "the family at its best point, of 12 laws"
    )
    yield at_most(min(curvatures), -1e-2, case, "of the loss")


def quarter_turn_curvature(law: Law) -> float:
    """Return the curvature of the loss, over the loss, where B leaves the family at its best point.

    It does so along B = b (I + t J) S^-1 with a quarter turn J, for one layer of softmax attention.
    """
    start = start_of_descent("softmax", 1, moves=False)
    best = on_family(law, best_on_family(law, softmax, start))
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)

    def loss_of(t: Tensor) -> Tensor:
        return in_context_loss(law, softmax, best | {"B": best["B"] + t * turn @ best["B"]})

    zero = torch.zeros((), dtype=torch.float64)
    return float(hessian(loss_of, zero) / loss_of(zero))
