r"""Steps in the proofs of Theorems 4.5 and 4.6: what a rotation of the inputs does to the layers.

The layers multiply the row of labels by one matrix, G_k:

    Y_{k+1} = Y_0 G_k,    G_i = prod_{l <= i} (I + r_l M h(B_l X_l, C_l X_l)),    X_0 = X.

On the family B = b S^-1, C = c S^-1 and A = a I, with S = Sigma^(1/2). Rotated inputs are U_S X,
with U_S = S U S^-1, and B U_S = U B. So moving B by R at rotated inputs is moving it by U^T R U_S
at the inputs themselves, and moving A by R there is moving it by U_S^-1 R U_S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from icgd_papers.theorems.cheng.landscape import derivatives, signed_shifts
from icgd_papers.theorems.cheng.transformer import (
    ACTIVATIONS,
    DIFFERENCE,
    EXACT,
    WIDTH,
    Activation,
    difference,
    eye,
    generator,
    hidden,
    layer,
    mask,
    prompt,
    softmax,
    sphere_points,
    value_matrix,
    wave,
)
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.training.covariates import Ellipsoid, normal, random_rotation

N_TOKENS = 9
STEPS = (-0.4, -0.3, -0.2)
MOVED = 1
"""The layer whose matrix is moved."""


@dataclass(frozen=True)
class Layers:
    """The matrices A, B and C of every layer, (layer, d, d), and the activation; r is in STEPS."""

    A: Tensor
    B: Tensor
    C: Tensor
    h: Activation

    def moved(self, name: str, R: Tensor) -> Layers:
        """Add R to the matrix of this name in one layer."""
        only = torch.zeros(len(STEPS), 1, 1, dtype=torch.float64)
        only[MOVED] = 1
        return replace(self, **{name: getattr(self, name) + only * R})

    def attention(self, X: Tensor) -> list[Tensor]:
        """Return M h(B_l X_l, C_l X_l) of every layer."""
        M, weights = mask(X.shape[-1]), []
        for A, B, C in zip(self.A, self.B, self.C, strict=True):
            weights.append(M @ self.h(B @ X, C @ X))
            X = X + A @ X @ weights[-1]
        return weights

    def inputs(self, X: Tensor) -> list[Tensor]:
        """Return X_l of every layer."""
        inputs = [X]
        for A, weights in zip(self.A, self.attention(X), strict=True):
            inputs.append(inputs[-1] + A @ inputs[-1] @ weights)
        return inputs[:-1]

    def factors(self, X: Tensor) -> list[Tensor]:
        """Return I + r_l M h(B_l X_l, C_l X_l) of every layer."""
        one = eye(X.shape[-1])
        return [one + r * weights for r, weights in zip(STEPS, self.attention(X), strict=True)]

    def product(self, X: Tensor) -> Tensor:
        """Return G_k."""
        return reduce(torch.matmul, self.factors(X))


@dataclass(frozen=True)
class Rotated:
    """Inputs of the paper's ellipsoid, a rotation U, U_S, and a matrix R to move along."""

    X: Tensor
    U: Tensor
    U_S: Tensor
    R: Tensor
    whitening: Tensor


def rotated(seed: int) -> Rotated:
    """Draw inputs, a rotation and a matrix R."""
    ellipsoid, rng = Ellipsoid.of_seed(seed), generator(seed, 40)
    X = ellipsoid.sample(1, N_TOKENS, rng)[0].mT
    U, R = random_rotation(WIDTH, rng), normal(rng, WIDTH, WIDTH)
    return Rotated(X, U, ellipsoid.root @ U @ ellipsoid.whitening, R, ellipsoid.whitening)


def family(whitening: Tensor, h: Activation, *, moves: bool = True) -> Layers:
    """Return layers on the family, with other multiples in each."""
    sizes = torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64)[:, None, None]
    A = -0.1 * sizes * eye() if moves else 0.0 * sizes * eye()
    return Layers(A, sizes * whitening, sizes.flip(0) * whitening, h)


def random_layers(seed: int, *, moves: bool) -> Layers:
    """Draw layers of softmax attention that need not be on the family."""
    A, B, C = normal(generator(seed, 41), 3, len(STEPS), WIDTH, WIDTH)
    return Layers(0.3 * A if moves else 0.0 * A, B, C, softmax)


def derivative(layers: Layers, name: str, X: Tensor, R: Tensor) -> Tensor:
    """Return d/dt G_k at t = 0 as the matrix of this name moves along t R."""
    zero = torch.zeros((), dtype=torch.float64)
    slope: Tensor = jacobian(lambda t: layers.moved(name, t * R).product(X), zero)
    return slope


def last_labels(layers: Layers, x: Tensor) -> Tensor:
    """Run the layers, as equation (3) writes them, and return the last row of labels."""
    Z = prompt(x, hidden(wave(x)))
    for r, A, B, C in zip(STEPS, layers.A, layers.B, layers.C, strict=True):
        Z = layer(Z, value_matrix(A, r), B, C, layers.h)
    return Z[-1]


@statement("cheng", "Equation (40)")
def product_with_fixed_inputs(seed: int) -> Iterator[Comparison]:
    """Run layers of random B and C, and compare them with the product of both forms."""
    layers, x = random_layers(seed, moves=False), sphere_points(N_TOKENS, seed)
    labels = last_labels(layers, x)
    case = "softmax, 3 layers: the labels beside the product of I + r M h({})"
    for compare, name, form in (
        (at_most, "B X, C X", layers),
        (printed, "B X, B X", replace(layers, C=layers.B)),
    ):
        product = hidden(wave(x)) @ form.product(x.mT)
        yield compare(difference(labels, product), EXACT, case.format(name), DIFFERENCE)


@statement("cheng", "Equation (58)")
def product_with_moving_inputs(seed: int) -> Iterator[Comparison]:
    """Run layers that move the inputs, and compare the labels with the product of both forms."""
    layers, x = random_layers(seed, moves=True), sphere_points(N_TOKENS, seed)
    labels = last_labels(layers, x)
    case = "softmax, 3 layers: the labels beside the product of I + r M h({})"
    for compare, name, form in (
        (at_most, "B_l X_l, C_l X_l", layers),
        (printed, "B_l X_0, C_l X_0", replace(layers, A=0 * layers.A)),
    ):
        product = hidden(wave(x)) @ form.product(x.mT)
        yield compare(difference(labels, product), EXACT, case.format(name), DIFFERENCE)


@statement("cheng", "Equation (43)")
def moving_b_at_rotated_inputs(seed: int) -> Iterator[Comparison]:
    """Differentiate the product at rotated inputs along R, and at the inputs along both forms.

    The display below (45) writes the derivative out by the chain rule, without the factors r_l.
    """
    setting = rotated(seed)
    U, U_S, R = setting.U, setting.U_S, setting.R
    for name, h in ACTIVATIONS.items():
        layers = family(setting.whitening, h, moves=False)
        slope = derivative(layers, "B", U_S @ setting.X, R)
        case = f"{name}: the derivative at rotated inputs along R beside that along {{}}"
        right, wrong = (
            derivative(layers, "B", setting.X, move) for move in (U.mT @ R @ U_S, U_S.mT @ R @ U_S)
        )
        yield at_most(difference(slope, right), EXACT, case.format("U^T R U_S"), DIFFERENCE)
        yield printed(difference(slope, wrong), EXACT, case.format("U_S^T R U_S"), DIFFERENCE)

        case = f"{name}: the derivative beside the chain rule below (45), {{}}"
        bend = attention_speed(layers, U_S @ setting.X, R)
        before, _, after = layers.factors(U_S @ setting.X)
        chain = before @ (STEPS[MOVED] * bend) @ after
        yield at_most(difference(slope, chain), EXACT, case.format("with r_l"), DIFFERENCE)
        before, _, after = (
            eye(N_TOKENS) + weights for weights in layers.attention(U_S @ setting.X)
        )
        chain = before @ bend @ after
        yield in_proof(difference(slope, chain), EXACT, case.format("without r_l"), DIFFERENCE)


def attention_speed(layers: Layers, X: Tensor, R: Tensor) -> Tensor:
    """Return d/dt M h((B + t R) X, C X) in the moved layer, with X as it is at t = 0."""
    B, C = layers.B[MOVED], layers.C[MOVED]
    zero = torch.zeros((), dtype=torch.float64)
    speed: Tensor = jacobian(lambda t: layers.h((B + t * R) @ X, C @ X), zero)
    return mask(X.shape[-1]) @ speed


def recursion(name: str, seed: int) -> Iterator[Comparison]:
    """Compare the derivative of G_i with the product rule in both orders of the factors.

    Not for linear attention, where the difference is small: some 9 % in a trial.
    """
    setting = rotated(seed)
    X, zero = setting.U_S @ setting.X, torch.zeros((), dtype=torch.float64)
    for attention in ("relu", "exp", "softmax"):
        layers = family(setting.whitening, ACTIVATIONS[attention])

        def factors(t: Tensor, layers: Layers = layers) -> Tensor:
            return torch.stack(layers.moved(name, t * setting.R).factors(X))

        values, slopes = factors(zero), jacobian(factors, zero)
        whole = derivative(layers, name, X, setting.R)
        size = float(whole.abs().max())
        # G_{i-1} and its derivative, from the first two of the three layers.
        G, slope = values[0] @ values[1], slopes[0] @ values[1] + values[0] @ slopes[1]
        right, wrong = G @ slopes[2] + slope @ values[2], slopes[2] @ G + values[2] @ slope
        case = f"{attention}, 3 layers: d/dt G as {name} moves, beside the product rule with {{}}"
        for compare, order, form in (
            (at_most, "G_{i-1} first", right),
            (printed, "G_{i-1} last", wrong),
        ):
            error = difference(whole, form) / size
            yield compare(error, EXACT, case.format(order), "relative difference")


@statement("cheng", "Equation (68)")
def recursion_for_b(seed: int) -> Iterator[Comparison]:
    """Move B."""
    yield from recursion("B", seed)


@statement("cheng", "Equation (82)")
def recursion_for_a(seed: int) -> Iterator[Comparison]:
    """Move A."""
    yield from recursion("A", seed)


@statement("cheng", "Proposition F.3")
def moving_keys_and_queries_with_moving_inputs(seed: int) -> Iterator[Comparison]:
    """Differentiate by B and C with A free, and look at the curves to which Lemma F.5 is applied.

    While B_j moves, the keys T(t) = C_j X_j(U_S X_0, t R) stand still: X_j depends on the layers
    before j alone. The proof's T~(t) moves along R.
    """
    yield from derivatives("BC", seed, moves=True)
    setting = rotated(seed)
    layers = family(setting.whitening, softmax)
    X = setting.U_S @ setting.X

    def keys(t: Tensor) -> Tensor:
        return layers.C[MOVED] @ layers.moved("B", t * setting.R).inputs(X)[MOVED]

    speed = jacobian(keys, torch.zeros((), dtype=torch.float64))
    wrong = setting.R @ layers.inputs(X)[MOVED]
    case = "softmax: the speed of T at t = 0 beside that of T~ = {}"
    right_case, wrong_case = case.format("C_j U_S X_j"), case.format("(C_j + t R) U_S X_j")
    yield at_most(difference(speed, 0 * wrong), EXACT, right_case, DIFFERENCE)
    yield in_proof(difference(speed, wrong), EXACT, wrong_case, DIFFERENCE)


@statement("cheng", "Proposition F.4")
def moving_values(seed: int) -> Iterator[Comparison]:
    """Differentiate by A, and average what the last lines of the proof average over rotations."""
    yield from derivatives("A", seed, moves=True)
    setting, ellipsoid = rotated(seed), Ellipsoid.of_seed(seed)
    rotations = signed_shifts(WIDTH)
    U_S = ellipsoid.root @ rotations @ ellipsoid.whitening
    R = setting.R
    target = (ellipsoid.whitening @ R @ ellipsoid.root).trace() / WIDTH * eye()
    case = "d = 5: the mean of {} over rotations beside R~"
    inverse = (torch.linalg.inv(U_S) @ R @ U_S).mean(0)
    transpose = (rotations.mT @ R @ U_S).mean(0)
    yield at_most(difference(inverse, target), EXACT, case.format("U_S^-1 R U_S"), DIFFERENCE)
    yield in_proof(difference(transpose, target), EXACT, case.format("U^T R U_S"), DIFFERENCE)
