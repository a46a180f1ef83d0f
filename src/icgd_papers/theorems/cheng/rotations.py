r"""The proof of Theorem 4.5: what a rotation of the inputs does to attention on the family.

Without A the inputs never change, and the layers multiply the row of labels by one matrix:

    Y_{k+1} = Y_0 G(X, 0),    G(X, S) = prod_l (I + r_l M h(B_l(S) X, C_l X)),    B_j(S) = B_j + S.

On the family B_l = b_l Sigma^(-1/2), and with U_Sigma = Sigma^(1/2) U Sigma^(-1/2) it holds that
B_l U_Sigma = U B_l. So moving B_j by R at rotated inputs is moving it by U^T R U_Sigma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from icgd_papers.theorems.cheng.written_out import (
    ACTIVATIONS,
    WIDTH,
    Activation,
    agreement,
    hidden,
    layer,
    mask,
    softmax,
    stream,
    wave,
)
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.training.covariates import Ellipsoid, normal, random_rotation
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import generator_of

N_TOKENS = 9
STEPS = (-0.1, -0.08, -0.06)
MOVED_LAYER = 1


@dataclass(frozen=True)
class Layers:
    """The matrices B and C of every layer, and the activation; r is that of `STEPS`."""

    B: tuple[Tensor, ...]
    C: tuple[Tensor, ...]
    h: Activation

    def product(self, X: Tensor, S: Tensor) -> Tensor:
        """G(X, S)."""
        M, one = mask(X.shape[-1]), torch.eye(X.shape[-1], dtype=torch.float64)
        moved = [B + S if number == MOVED_LAYER else B for number, B in enumerate(self.B)]
        factors = (
            one + r * M @ self.h(B @ X, C @ X) for r, B, C in zip(STEPS, moved, self.C, strict=True)
        )
        return reduce(torch.matmul, factors)


def _points(inputs: Ellipsoid, seed: int) -> Tensor:
    return inputs.sample(1, N_TOKENS, generator_of(seed, 0))[0]


def equation_40(seed: int) -> Finding:
    """Run layers of random B and C, and compare them with the product of both forms."""
    B, C = normal(generator_of(seed, 1), 2, len(STEPS), WIDTH, WIDTH)
    x = _points(Ellipsoid.sphere(WIDTH), seed)
    labels, Z = hidden(wave(x)), stream(x, hidden(wave(x)))
    for r, query, key in zip(STEPS, B, C, strict=True):
        V = torch.zeros(WIDTH + 1, WIDTH + 1, dtype=torch.float64)
        V[-1, -1] = r
        Z = layer(Z, V, query, key, softmax)
    still = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)

    def beside(name: str, keys: Tensor) -> Comparison:
        found = labels @ Layers(tuple(B), tuple(keys), softmax).product(x.mT, still)
        case = f"softmax, {len(STEPS)} layers: the labels beside the product of I + r M h({name})"
        return agreement(case, Z[-1], found)

    return Finding(right=(beside("B X, C X", C),), printed=(beside("B X, B X", B),))


def equation_58(seed: int) -> Finding:
    """Run layers that move the inputs, and compare the labels with the product of both forms."""
    A, B, C = 0.3 * normal(generator_of(seed, 1), 3, len(STEPS), WIDTH, WIDTH)
    x = _points(Ellipsoid.sphere(WIDTH), seed)
    labels, Z = hidden(wave(x)), stream(x, hidden(wave(x)))
    inputs = []
    for r, value, query, key in zip(STEPS, A, B, C, strict=True):
        inputs.append(Z[:-1])
        V = torch.block_diag(value, torch.tensor([[r]], dtype=torch.float64))
        Z = layer(Z, V, query, key, softmax)

    def beside(name: str, seen: list[Tensor]) -> Comparison:
        M, one = mask(len(x)), torch.eye(len(x), dtype=torch.float64)
        places = zip(STEPS, B, C, seen, strict=True)
        factors = (one + r * M @ softmax(query @ X, key @ X) for r, query, key, X in places)
        case = f"softmax, {len(STEPS)} layers: the labels beside the product of I + r M h({name})"
        return agreement(case, Z[-1], labels @ reduce(torch.matmul, factors))

    moved, still = inputs, inputs[:1] * len(STEPS)
    return Finding(
        right=(beside("B_l X_l, C_l X_l", moved),), printed=(beside("B_l X_0, C_l X_0", still),)
    )


def equation_43(seed: int) -> Finding:
    """Differentiate the product at rotated inputs along R, and at the inputs along both forms."""
    inputs, generator = Ellipsoid.of_seed(seed), generator_of(seed, 1)
    rotation, R = random_rotation(WIDTH, generator), normal(generator, WIDTH, WIDTH)
    moved = inputs.root @ rotation @ inputs.whitening
    X = _points(inputs, seed).mT
    right, printed = [], []
    for name, h in ACTIVATIONS.items():
        layers = _family(inputs, h)
        rotated = _slope(layers, moved @ X, R)
        case = f"{name}: the derivative at rotated inputs along R beside that along {{}}"
        corrected, as_printed = rotation.mT @ R @ moved, moved.mT @ R @ moved
        right.append(agreement(case.format("U^T R U_S"), rotated, _slope(layers, X, corrected)))
        printed.append(
            agreement(case.format("U_S^T R U_S"), rotated, _slope(layers, X, as_printed))
        )
    return Finding(tuple(right), tuple(printed))


def _family(inputs: Ellipsoid, h: Activation) -> Layers:
    """Layers B = b Sigma^(-1/2) and C = c Sigma^(-1/2), with other numbers in each."""
    sizes = [1.0, 0.8, 0.6]
    B = tuple(b * inputs.whitening for b in sizes)
    C = tuple(c * inputs.whitening for c in reversed(sizes))
    return Layers(B, C, h)


def _slope(layers: Layers, X: Tensor, R: Tensor) -> Tensor:
    """d/dt G(X, t R) at t = 0."""
    zero = torch.zeros((), dtype=torch.float64)
    slope: Tensor = torch.autograd.functional.jacobian(lambda t: layers.product(X, t * R), zero)
    return slope


def equation_17(seed: int) -> Finding:
    """Compare the model that is trained, at a point of the family, with the recursion."""
    inputs = Ellipsoid.of_seed(seed)
    x = _points(inputs, seed)
    found = []
    for name, h in ACTIVATIONS.items():
        model = KernelTransformer(WIDTH, 4, (name,), transforms_covariates=False, seed=0)
        with torch.no_grad():
            model.r.fill_(-0.1)
            model.B.copy_(inputs.whitening.expand_as(model.B))
            model.C.copy_(inputs.whitening.expand_as(model.C))
            predicted = model(x[None], wave(x)[None])[0]
        case = f"{name} attention, 4 layers: the model's prediction beside the recursion"
        found.append(agreement(case, predicted, _recursion(h, inputs.whitening @ x.mT, wave(x))))
    return Finding(right=tuple(found))


def _recursion(h: Activation, X: Tensor, y: Tensor) -> Tensor:
    """f(x_q) after four steps of size 0.1 on whitened columns."""
    weights = h(X, X)[:-1]
    f = torch.zeros(len(y), dtype=torch.float64)
    for _ in range(4):
        f = f + 0.1 * (y - f)[:-1] @ weights
    return f[-1]


EQUATION_17 = Statement(
    "cheng",
    "Equation (17)",
    "At the stationary points attention of any kind takes steps like those of functional descent,"
    " with its weights in place of the kernel of whitened inputs.",
    "f_{l+1}(x_q) = f_l(x_q) + r_l sum_i (y_i - f_l(x_i)) h(Sigma^(-1/2) X, Sigma^(-1/2) X)[i, q]",
    equation_17,
)

STATEMENTS = (
    Statement(
        "cheng",
        "Equation (40)",
        "Without A the layers multiply the row of labels by one matrix.",
        "Y_{k+1} = Y_0 prod_l (I + r_l M h(B_l X, C_l X))",
        equation_40,
        correction="The second argument of h is C_l X; the first form of the equation prints B_l X"
        " for both.",
    ),
    Statement(
        "cheng",
        "Equation (43)",
        "Moving B along R at rotated inputs is moving it along a rotated R at the inputs.",
        "d/dt G(U_S X, t R) = d/dt G(X, t U^T R U_S), U_S = Sigma^(1/2) U Sigma^(-1/2)",
        equation_43,
        correction="On the left of R stands U^T, as in the proof; (43) prints U_S^T.",
    ),
)

EQUATION_58 = Statement(
    "cheng",
    "Equation (58)",
    "With A free the layers multiply the row of labels by a matrix that depends on the inputs of"
    " every layer.",
    "Y_{k+1} = Y_0 prod_l (I + r_l M h(B_l X_l, C_l X_l))",
    equation_58,
    correction="The product has the inputs X_l of each layer; (58) prints X_0, which A has moved.",
)
