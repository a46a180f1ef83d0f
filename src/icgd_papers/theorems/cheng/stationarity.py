r"""Theorems 4.5 and 4.6: the gradient stays on the family of functional gradient descent.

The family is B = b S^-1, C = c S^-1 and A = a I in every layer, with S = Sigma^(1/2). Propositions
E.3, F.3 and F.4 compare the derivative along any matrix R with that along its part on the family:

    R~ = (1/d) tr(R S) S^-1  for B and C,        R~ = (1/d) tr(R) I  for A.

They print "at most". Since -R is a matrix too, the two derivatives are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.theorems.cheng.written_out import WIDTH, agreement, identity
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.training.covariates import Ellipsoid, normal
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.stationarity import LARGEST_RATIO, family_point, measure_stationarity
from icgd_papers.training.tasks import InContextTask, generator_of

ATTENTIONS = ("linear", "relu", "softmax")
SAMPLING_ERRORS = 5.0
"""How many sampling errors a derivative may be off."""

N_DIRECTIONS = 4


def _task(seed: int) -> InContextTask:
    """Labels of an exponential kernel on the paper's ellipsoid."""
    ellipsoid = Ellipsoid.of_seed(seed)
    labels = KernelProcess(KernelMachine(WIDTH, "exp"), ellipsoid.whitening)
    return InContextTask(ellipsoid, labels, n_examples=10)


def _stationary(
    seed: int, *, moves: bool, n_batches: int = 20, batch_size: int = 2000
) -> Iterator[Comparison]:
    for attention in ATTENTIONS:
        found = measure_stationarity(
            attention,
            _task(seed),
            transforms_covariates=moves,
            n_batches=n_batches,
            batch_size=batch_size,
            seed=seed,
        )
        case = f"{attention} attention, 3 layers: the mean gradient off the family"
        yield Comparison(case, found.ratio, LARGEST_RATIO, "sampling errors")


def theorem_4_5(seed: int, n_batches: int = 20, batch_size: int = 2000) -> Finding:
    """Measure the gradient off the family for three activations, with A = 0."""
    sizes = {"n_batches": n_batches, "batch_size": batch_size}
    return Finding(right=tuple(_stationary(seed, moves=False, **sizes)))


def theorem_4_6(seed: int, n_batches: int = 20, batch_size: int = 2000) -> Finding:
    """Measure the gradient off the family for three activations, with A free."""
    sizes = {"n_batches": n_batches, "batch_size": batch_size}
    return Finding(right=tuple(_stationary(seed, moves=True, **sizes)))


def derivatives(
    matrices: Sequence[str],
    task: InContextTask,
    seed: int,
    *,
    moves: bool,
    n_batches: int,
    batch_size: int,
) -> Iterator[Comparison]:
    """Compare the derivatives along random R and along R~ in every layer, over many batches."""
    directions = normal(generator_of(seed, 0, shard=1), N_DIRECTIONS, WIDTH, WIDTH)
    off = {name: directions - _on_family(name, directions, task) for name in matrices}
    for attention in ATTENTIONS:
        model = family_point(attention, task, 3, moves)
        rows = []
        for index in range(n_batches):
            model.zero_grad()
            task.loss(model, task.sample(batch_size, seed=seed, index=index)).backward()
            rows.append({name: _slopes(model, name, part) for name, part in off.items()})
        for name in matrices:
            case = f"{attention} attention: derivatives by {name} along R beside those along R~"
            found = _deviation(torch.stack([row[name] for row in rows]))
            yield Comparison(case, found, SAMPLING_ERRORS, "sampling errors")


def _on_family(matrix: str, directions: Tensor, task: InContextTask) -> Tensor:
    """R~ of every direction R."""
    root, whitening = identity(), identity()
    if matrix != "A":
        root, whitening = task.covariates.root, task.covariates.whitening
    traces = (directions @ root).diagonal(dim1=-2, dim2=-1).sum(-1) / WIDTH
    return traces[:, None, None] * whitening


def _slopes(model: KernelTransformer, matrix: str, directions: Tensor) -> Tensor:
    """The derivatives in every layer; the last A never reaches the query's label."""
    gradient: Tensor = getattr(model, matrix).grad[:, 0]
    gradient = gradient[:-1] if matrix == "A" else gradient
    return torch.einsum("lij,rij->lr", gradient, directions).flatten()


def _deviation(slopes: Tensor) -> float:
    """The largest mean of a column, in units of its sampling error."""
    error = slopes.std(0) / len(slopes) ** 0.5
    return float((slopes.mean(0).abs() / error).max())


def proposition_e_3(seed: int, n_batches: int = 60, batch_size: int = 200) -> Finding:
    """Try B and C with A = 0."""
    return _along(("B", "C"), seed, moves=False, n_batches=n_batches, batch_size=batch_size)


def proposition_f_3(seed: int, n_batches: int = 60, batch_size: int = 200) -> Finding:
    """Try B and C with A free."""
    return _along(("B", "C"), seed, moves=True, n_batches=n_batches, batch_size=batch_size)


def proposition_f_4(seed: int, n_batches: int = 60, batch_size: int = 200) -> Finding:
    """Try A."""
    return _along(("A",), seed, moves=True, n_batches=n_batches, batch_size=batch_size)


def _along(
    matrices: Sequence[str], seed: int, *, moves: bool, n_batches: int, batch_size: int
) -> Finding:
    sizes = {"n_batches": n_batches, "batch_size": batch_size}
    return Finding(right=tuple(derivatives(matrices, _task(seed), seed, moves=moves, **sizes)))


def _gauge(seed: int, *, moves: bool) -> Finding:
    """Compare the predictions of (B, C) with those of (L^T B, L^-1 C) for a random L."""
    batch = _task(seed).sample(200, seed=seed, index=0)
    change = identity() + 0.3 * normal(generator_of(seed, 1), WIDTH, WIDTH)
    found = []
    for attention in ATTENTIONS:
        models = [
            KernelTransformer(WIDTH, 3, (attention,), transforms_covariates=moves, seed=seed)
            for _ in range(2)
        ]
        with torch.no_grad():
            models[1].B.copy_(change.mT @ models[1].B)
            models[1].C.copy_(torch.linalg.inv(change) @ models[1].C)
            before, after = (model(batch.x, batch.y) for model in models)
        case = f"{attention} attention, 200 tasks: predictions of both pairs"
        found.append(agreement(case, before, after, 1e-10))
    return Finding(right=tuple(found))


def remark_e_2(seed: int) -> Finding:
    """Try random matrices with A = 0."""
    return _gauge(seed, moves=False)


def remark_f_2(seed: int) -> Finding:
    """Try random matrices with A free."""
    return _gauge(seed, moves=True)


THEOREM_4_5 = Statement(
    "cheng",
    "Theorem 4.5",
    "With A = 0 there are stationary points of the in-context loss at which attention is functional"
    " gradient descent on whitened inputs.",
    "B_l = b_l Sigma^(-1/2), C_l = c_l Sigma^(-1/2): the gradient off the family is 0",
    theorem_4_5,
)

THEOREM_4_6 = Statement(
    "cheng",
    "Theorem 4.6",
    "With A free there are such points too, and there A is a multiple of I.",
    "A_l = a_l I, B_l = b_l Sigma^(-1/2), C_l = c_l Sigma^(-1/2): the gradient off it is 0",
    theorem_4_6,
)

REMARK_E_2 = Statement(
    "cheng",
    "Remark E.2",
    "Matrices that cancel in B and C leave the predictions as they are.",
    "f(r, B, C) = f(r, L^T B, L^-1 C)",
    remark_e_2,
)

PROPOSITION_E_3 = Statement(
    "cheng",
    "Proposition E.3",
    "On the family, with A = 0, moving B or C along any matrix changes the loss as moving it"
    " along that matrix's part on the family.",
    "d/dt f(B + t R) = d/dt f(B + t R~), R~ = tr(R Sigma^(1/2)) Sigma^(-1/2) / d",
    proposition_e_3,
)

REMARK_F_2 = Statement(
    "cheng",
    "Remark F.2",
    "With A free matrices that cancel in B and C leave the predictions as they are.",
    "f(r, A, B, C) = f(r, A, L^T B, L^-1 C)",
    remark_f_2,
)

PROPOSITIONS_F = (
    Statement(
        "cheng",
        "Proposition F.3",
        "With A free moving B or C along any matrix changes the loss as moving it along that"
        " matrix's part on the family.",
        "d/dt f(B + t R) = d/dt f(B + t R~), R~ = tr(R Sigma^(1/2)) Sigma^(-1/2) / d",
        proposition_f_3,
    ),
    Statement(
        "cheng",
        "Proposition F.4",
        "Moving A along any matrix changes the loss as moving it along its multiple of I.",
        "d/dt f(A + t R) = d/dt f(A + t R~), R~ = tr(Sigma^(-1/2) R Sigma^(1/2)) I / d",
        proposition_f_4,
    ),
)
