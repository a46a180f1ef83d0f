r"""What cheng assumes of attention, inputs and labels, and the examples that satisfy it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.theorems.cheng.written_out import (
    ACTIVATIONS,
    WIDTH,
    Activation,
    agreement,
    identity,
    layer,
    mask,
    sphere_points,
    stream,
    wave,
)
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.training.assumptions import (
    Check,
    attention_is_invariant,
    covariance_is_invariant,
    covariates_are_round,
)
from icgd_papers.training.covariates import Ellipsoid, Gaussian, GaussianMixture, normal
from icgd_papers.training.labels import KernelProcess, LinearFunctions, ReluNetworks
from icgd_papers.training.tasks import generator_of

HIDDEN_WIDTH = 20
"""The m of Example 8."""


def _comparison(check: Check) -> Comparison:
    """A check of an assumption; its claim begins with the assumption's number."""
    case = check.claim.partition(" for ")[2]
    return Comparison(case, check.measured, check.tolerance, check.unit)


def examples_1_2_3(seed: int) -> Finding:
    """Compare attention on whole columns, whose Q and K end with zeros, with equation (2)."""
    generator = generator_of(seed, 1)
    x = sphere_points(9, seed)
    Z = stream(x, wave(x))
    B, C = normal(generator, 2, WIDTH, WIDTH)
    V = normal(generator, WIDTH + 1, WIDTH + 1)
    Q, K = (torch.block_diag(part, torch.zeros(1, 1, dtype=torch.float64)) for part in (B, C))
    found = []
    for name in ("linear", "relu", "softmax"):
        h: Activation = ACTIVATIONS[name]
        usual = V @ Z @ mask(len(x)) @ h(Q @ Z, K @ Z)
        case = f"{name} attention with Q, K on whole columns beside B, C on the inputs"
        found.append(agreement(case, usual, layer(Z, V, B, C, h) - Z))
    return Finding(right=tuple(found))


def assumption_4_1(seed: int) -> Finding:
    """Try the laws of Examples 4 and 5."""
    sigma = Ellipsoid.of_seed(seed).covariance
    laws = (Ellipsoid(sigma), Gaussian(sigma), GaussianMixture(identity(), 2))
    return Finding(right=tuple(_comparison(covariates_are_round(law, seed=seed)) for law in laws))


def assumption_4_2(seed: int) -> Finding:
    """Try the laws of Examples 6 and 7."""
    inputs = Ellipsoid.of_seed(seed)
    processes = (
        KernelProcess(KernelMachine(WIDTH, kernel), inputs.whitening)
        for kernel in ("linear", "relu", "exp")
    )
    laws = (LinearFunctions(inputs.whitening), *processes)
    checks = (covariance_is_invariant(labels, inputs, seed=seed) for labels in laws)
    return Finding(right=tuple(map(_comparison, checks)))


def example_8(seed: int) -> Finding:
    """Multiply theta_1 of both shapes with an input, and sample the covariance of the labels."""
    inputs = Ellipsoid.of_seed(seed)
    whitened, plain = (
        _comparison(covariance_is_invariant(ReluNetworks(HIDDEN_WIDTH, first), inputs, seed=seed))
        for first in (inputs.whitening, None)
    )
    return Finding(
        right=(_surplus("m x d", WIDTH), replace(whitened, case=f"whitened x, {whitened.case}")),
        printed=(_surplus("d x m", HIDDEN_WIDTH), replace(plain, case=f"plain x, {plain.case}")),
    )


def _surplus(shape: str, n_columns: int) -> Comparison:
    """How many columns of theta_1 have no entry of x to multiply."""
    case = (
        f"theta_1 of shape {shape} with d = {WIDTH}, m = {HIDDEN_WIDTH}: columns beyond those of x"
    )
    return Comparison(case, float(n_columns - WIDTH), 0.0, "columns")


def assumption_4_3(seed: int) -> Finding:
    """Try the activations of Examples 1 to 3, and exp, with a random matrix S."""
    kernels = ("linear", "relu", "exp", "softmax")
    checks = (attention_is_invariant(kernel, WIDTH, seed=seed) for kernel in kernels)
    return Finding(right=tuple(map(_comparison, checks)))


def lemma_f_5(seed: int) -> Finding:
    """Differentiate h along two curves that agree to first order, one of them moved by Gamma."""
    generator = generator_of(seed, 0)
    start, speed, bend, other = normal(generator, 4, 2, WIDTH, 7)
    gamma = identity() + 0.3 * normal(generator, WIDTH, WIDTH)
    moves = torch.stack([gamma.mT, torch.linalg.inv(gamma)])
    found = []
    for name, h in ACTIVATIONS.items():
        plain = _speed(h, (start, speed, bend))
        moved = _speed(h, (moves @ start, moves @ speed, moves @ other))
        found.append(agreement(f"{name}: the derivative along both curves", plain, moved, 1e-10))
    return Finding(right=tuple(found))


def _speed(h: Activation, curve: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The derivative of h at t = 0 along the pair of curves start + t speed + t^2 bend."""
    start, speed, bend = curve

    def values(t: Tensor) -> Tensor:
        return h(*(start + t * speed + t**2 * bend))

    zero = torch.zeros((), dtype=torch.float64)
    speed_at_zero: Tensor = torch.autograd.functional.jacobian(values, zero)
    return speed_at_zero


def _condition(label: str, claim: str, formula: str) -> Statement:
    reason = "It says which matrices are considered, and claims nothing that could be measured."
    return Statement("cheng", label, claim, formula, reason=reason)


ARCHITECTURE = (
    _condition(
        "Assumption 2.1",
        "The last row and the last column of the query and key matrices are 0.",
        "Q = diag(B, 0), K = diag(C, 0)",
    ),
    Statement(
        "cheng",
        "Examples 1, 2, 3",
        "Under Assumption 2.1 linear, ReLU and softmax attention on whole columns are attention on"
        " the inputs.",
        "V Z M h(Q Z, K Z) = V Z M h(B X, C X)",
        examples_1_2_3,
    ),
)

STATEMENTS = (
    Statement(
        "cheng",
        "Assumption 4.1",
        "Inputs that are rotated after whitening have the law of the inputs; Gaussians, ellipsoids"
        " and mixtures satisfy it.",
        "S X ~ X, S = Sigma^(1/2) U Sigma^(-1/2), U orthogonal",
        assumption_4_1,
    ),
    Statement(
        "cheng",
        "Assumption 4.2",
        "Labels of rotated inputs covary as those of the inputs; linear functions and kernel"
        " processes satisfy it.",
        "E[Y^T Y | S X] = E[Y^T Y | X]",
        assumption_4_2,
    ),
    Statement(
        "cheng",
        "Example 8",
        "The labels of random ReLU networks of two layers satisfy Assumption 4.2.",
        "y = <theta_2, relu(theta_1 Sigma^(-1/2) x)>, theta_1 of shape m x d, theta_2 of length m",
        example_8,
        correction="theta_1 has m rows and d columns, and is printed as d x m, which x does not"
        " fit; unless Sigma is a multiple of I, x is whitened first, as in Examples 6 and 7.",
    ),
    Statement(
        "cheng",
        "Assumption 4.3",
        "Attention does not change if keys and queries are moved by matrices that cancel; linear,"
        " ReLU, exponential and softmax attention satisfy it.",
        "h(W, V) = h(S^T W, S^-1 V)",
        assumption_4_3,
    ),
    _condition(
        "Assumption 4.4",
        "The value matrix keeps inputs and labels apart.",
        "V_l = diag(A_l, r_l)",
    ),
)

LEMMA_F_5 = Statement(
    "cheng",
    "Lemma F.5",
    "The derivative of attention along a curve is that along any curve which agrees with it to"
    " first order, moved by matrices that cancel.",
    "d/dt h(S, T) = d/dt h(Gamma^T S~, Gamma^-1 T~) at t = 0",
    lemma_f_5,
)
