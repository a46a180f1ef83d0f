r"""What cheng assumes of attention, inputs and labels, the examples, and Lemmas A.1 and F.5.

4.1  the tokens S U S^-1 X have the law of the tokens X                S = Sigma^(1/2)
4.2  their labels have the same covariance                             U: any rotation
4.3  h(W, V) = h(T^T W, T^-1 V)                                        T: any invertible matrix
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pi

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from icgd.problems.kernel_machine import KernelMachine
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
    sphere_points,
    value_matrix,
    wave,
)
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.training.covariates import (
    AbstractCovariates,
    Ellipsoid,
    Gaussian,
    GaussianMixture,
    normal,
    random_rotation,
)
from icgd_papers.training.labels import KernelProcess, LinearFunctions, ReluNetworks

HIDDEN_WIDTH = 20
"""The m of Example 8."""

N_DRAWS = 20_000
"""How many tasks are drawn for a mean, which is then known to about 1 % of its spread."""

SAMPLING_ERRORS = 5.0
"""How many sampling errors a mean may be off; by chance it is further off with odds below 1e-6."""

ROUNDING = 1e-10
"""The relative error allowed where nothing is sampled, with room for an ill-conditioned matrix."""


@statement("cheng", "Examples 1, 2, 3")
def attention_on_whole_columns(seed: int) -> Iterator[Comparison]:
    """Compare attention on whole columns, whose Q and K end with zeros, with equation (2)."""
    rng, x = generator(seed, 1), sphere_points(9, seed)
    Z = prompt(x, wave(x))
    B, C = normal(rng, 2, WIDTH, WIDTH)
    V = normal(rng, WIDTH + 1, WIDTH + 1)
    Q, K = value_matrix(B, 0.0), value_matrix(C, 0.0)
    for name in ("linear", "relu", "softmax"):
        h = ACTIVATIONS[name]
        usual = V @ Z @ mask(len(x)) @ h(Q @ Z, K @ Z)
        case = f"{name} attention with Q, K on whole columns beside B, C on the inputs"
        yield at_most(difference(usual, layer(Z, V, B, C, h) - Z), EXACT, case, DIFFERENCE)


def symmetry(covariates: AbstractCovariates, seed: int) -> Tensor:
    """Return S U S^-1 for a random rotation U."""
    U = random_rotation(covariates.input_width, generator(seed, 2))
    return covariates.root @ U @ covariates.whitening


def deviation(differences: Tensor) -> float:
    """Return the largest mean of a column, in units of its sampling error."""
    error = differences.std(0) / len(differences) ** 0.5
    return float((differences.mean(0).abs() / error).max())


def relative(before: Tensor, after: Tensor) -> float:
    """Return the largest difference over the largest entry."""
    return difference(before, after) / float(before.abs().max())


def moment_deviation(law: AbstractCovariates, seed: int) -> float:
    """Compare moments of order 1 to 4 of X and S U S^-1 X in random directions, by sampling.

    Three tokens are compared together, because a law may be round for each token, not jointly.
    """
    rng = generator(seed, 3)
    x = law.sample(N_DRAWS, 3, rng)
    directions = normal(rng, 3 * law.input_width, 16)
    before, after = (
        torch.cat([(tokens.flatten(1) @ directions) ** order for order in range(1, 5)], dim=1)
        for tokens in (x, x @ symmetry(law, seed).mT)
    )
    return deviation(after - before)


@statement("cheng", "Assumption 4.1")
def rotated_inputs_have_the_same_law(seed: int) -> Iterator[Comparison]:
    """Try the laws of Examples 4 and 5."""
    sigma = Ellipsoid.of_seed(seed).covariance
    for law in (Ellipsoid(sigma), Gaussian(sigma), GaussianMixture(eye(), 2)):
        case = f"{type(law).__name__}: moments of order 1 to 4 of X beside those of S U S^-1 X"
        yield at_most(moment_deviation(law, seed), SAMPLING_ERRORS, case, "sampling errors")


@statement("cheng", "Assumption 4.2")
def labels_of_rotated_inputs_covary_alike(seed: int) -> Iterator[Comparison]:
    """Compare the covariances of the labels of Examples 6 and 7, which are known."""
    inputs = Ellipsoid.of_seed(seed)
    x = inputs.sample(1, 6, generator(seed, 4))
    laws: list[LinearFunctions | KernelProcess] = [LinearFunctions(inputs.whitening)]
    for kernel in ("linear", "relu", "exp"):
        laws.append(KernelProcess(KernelMachine(WIDTH, kernel), inputs.whitening))
    for law in laws:
        before, after = law.covariance(x), law.covariance(x @ symmetry(inputs, seed).mT)
        case = f"{law.name}: the covariance of labels of S U S^-1 X beside that of X"
        yield at_most(relative(before, after), ROUNDING, case, "of the largest entry")


def network_covariance(x: Tensor) -> Tensor:
    """Return E[y_i y_j] of Example 8 for rows x: m times the arc-cosine kernel of order 1."""
    sizes = x.norm(dim=-1)
    cosines = (x @ x.mT / torch.outer(sizes, sizes)).clamp(-1, 1)
    angles = cosines.acos()
    shape = angles.sin() + (pi - angles) * cosines
    return HIDDEN_WIDTH * torch.outer(sizes, sizes) * shape / (2 * pi)


@statement("cheng", "Example 8")
def labels_of_random_networks(seed: int) -> Iterator[Comparison]:
    """Compare drawn networks with their covariance, and the covariances of rotated inputs."""
    inputs = Ellipsoid.of_seed(seed)
    x = inputs.sample(1, 3, generator(seed, 5))[0]
    white, moved = x @ inputs.whitening, x @ symmetry(inputs, seed).mT
    y = ReluNetworks(HIDDEN_WIDTH).sample(white.expand(N_DRAWS, -1, -1), generator(seed, 6))
    products = y[:, :, None] * y[:, None, :] - network_covariance(white)
    case = f"{N_DRAWS:,} networks of width {HIDDEN_WIDTH}: the covariance of labels beside its form"
    yield at_most(deviation(products.flatten(1)), SAMPLING_ERRORS, case, "sampling errors")
    case = "{} x: the covariance of labels of S U S^-1 X beside that of X"
    whitened = network_covariance(white), network_covariance(moved @ inputs.whitening)
    plain = network_covariance(x), network_covariance(moved)
    for compare, name, pair in ((at_most, "whitened", whitened), (printed, "plain", plain)):
        yield compare(relative(*pair), ROUNDING, case.format(name), "of the largest entry")
    case = f"theta_1 of shape {{}} with d = {WIDTH}, m = {HIDDEN_WIDTH}: columns beyond those of x"
    theta_1 = torch.zeros(HIDDEN_WIDTH, WIDTH)
    yield at_most(theta_1.shape[1] - x.shape[1], 0, case.format("m x d"), "columns")
    yield printed(theta_1.mT.shape[1] - x.shape[1], 0, case.format("d x m"), "columns")


@statement("cheng", "Assumption 4.3")
def attention_depends_on_scores(seed: int) -> Iterator[Comparison]:
    """Move keys and queries of every activation by random matrices that cancel."""
    rng = generator(seed, 7)
    W, V = normal(rng, 2, WIDTH, 7)
    # Singular values between 1/2 and 2, so that rounding stays small.
    scales = torch.from_numpy(rng.uniform(0.5, 2.0, WIDTH)).diag()
    T = random_rotation(WIDTH, rng) @ scales @ random_rotation(WIDTH, rng)
    for name, h in ACTIVATIONS.items():
        case = f"{name} attention: h(W, V) beside h(T^T W, T^-1 V)"
        error = relative(h(W, V), h(T.mT @ W, torch.linalg.inv(T) @ V))
        yield at_most(error, ROUNDING, case, "of the largest entry")


@statement("cheng", "Assumption 4.4")
def inputs_and_labels_stay_apart(seed: int) -> Iterator[Comparison]:
    """Compare a layer of V = diag(A, r) with equations (20), and count the rows of V."""
    rng, x = generator(seed, 8), sphere_points(9, seed)
    A, B, C = 0.3 * normal(rng, 3, WIDTH, WIDTH)
    Z = prompt(x, wave(x))
    for name, h in ACTIVATIONS.items():
        weights = mask(len(x)) @ h(B @ x.mT, C @ x.mT)
        apart = torch.cat([x.mT + A @ x.mT @ weights, Z[-1:] - 0.1 * Z[-1:] @ weights])
        case = f"{name} attention: a layer beside (20), where inputs and labels stay apart"
        error = difference(layer(Z, value_matrix(A, -0.1), B, C, h), apart)
        yield at_most(error, EXACT, case, DIFFERENCE)
    case = f"d = {WIDTH}: rows of V with r {{}}, beyond those of the prompt"
    yield at_most(len(value_matrix(A, -0.1)) - len(Z), 0, case.format("a number"), "rows")
    yield printed(len(torch.block_diag(A, A)) - len(Z), 0, case.format("of shape d x d"), "rows")


def last_labels(Z: Tensor, h: Activation, seed: int) -> Tensor:
    """Return the labels after three layers of random A, B, C that satisfy Assumption 4.4."""
    rng = generator(seed, 9)
    for _ in range(3):
        A, B, C = 0.3 * normal(rng, 3, WIDTH, WIDTH)
        Z = layer(Z, value_matrix(A / Z.shape[-1], -0.1), B, C, h)
    return Z[..., -1, :]


@statement("cheng", "Lemma A.1")
def loss_of_an_unmasked_prompt(seed: int) -> Iterator[Comparison]:
    """Compare both forms of the loss on labels without any law, and try two steps of the proof."""
    n_tasks, n_tokens = 200, 9
    rng = generator(seed, 10)
    x = Ellipsoid.sphere(WIDTH).sample(n_tasks, n_tokens, rng)
    y = normal(rng, n_tasks, n_tokens)
    query = eye(n_tokens) - mask(n_tokens)
    for name, h in ACTIVATIONS.items():
        masked = last_labels(prompt(x, hidden(y)), h, seed)
        unmasked = last_labels(prompt(x, y), h, seed)
        loss = (masked[:, -1] + y[:, -1]).square().mean()
        outer = query @ (unmasked[..., :, None] * unmasked[..., None, :]) @ query
        traces = outer.diagonal(dim1=-2, dim2=-1).sum(-1)
        case = f"{name}, 3 layers, {n_tasks} tasks: the loss beside the mean of the trace"
        yield at_most(difference(loss, traces.mean()), EXACT, case, DIFFERENCE)
        squared = traces.square().mean()
        yield in_proof(difference(loss, squared), EXACT, f"{case} squared", DIFFERENCE)
        # The proof begins with y_q + c in place of the query's label, and then takes c = y_q.
        shifted = last_labels(prompt(x, y @ (mask(n_tokens) + 2 * query)), h, seed)
        case = f"{name}, 3 layers: the labels less those of the masked prompt, with {{}} for y_q"
        for compare, start, labels in ((at_most, "c", unmasked), (in_proof, "y_q + c", shifted)):
            error = difference(labels - masked, y @ query)
            yield compare(error, EXACT, case.format(start), DIFFERENCE)


@statement("cheng", "Lemma F.5")
def derivatives_along_curves(seed: int) -> Iterator[Comparison]:
    """Differentiate h along two curves that agree to first order, one of them moved by Gamma.

    The third line of the proof moves the speeds by Gamma, but not the point.
    """
    rng = generator(seed, 11)
    start, speed, bend, other = normal(rng, 4, 2, WIDTH, 7)
    gamma = eye() + 0.3 * normal(rng, WIDTH, WIDTH)
    moves = torch.stack([gamma.mT, torch.linalg.inv(gamma)])
    for name, h in ACTIVATIONS.items():
        plain = slope_along(h, start, speed, bend)
        moved = slope_along(h, moves @ start, moves @ speed, moves @ other)
        third_line = slope_along(h, start, moves @ speed, bend)
        case = f"{name}: the derivative along both curves"
        yield at_most(relative(plain, moved), ROUNDING, case, "of the largest entry")
        case = f"{name}: the derivative beside the third line of the proof"
        yield in_proof(relative(plain, third_line), ROUNDING, case, "of the largest entry")


def slope_along(h: Activation, start: Tensor, speed: Tensor, bend: Tensor) -> Tensor:
    """Return the derivative of h at t = 0 along the pair of curves start + t speed + t^2 bend."""
    zero = torch.zeros((), dtype=torch.float64)
    slope: Tensor = jacobian(lambda t: h(*(start + t * speed + t**2 * bend)), zero)
    return slope
