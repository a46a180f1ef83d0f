r"""Lemma A.1: the in-context loss, with the query's label in the prompt from the start.

The mask keeps the query's label from being read, so that a label c in its place stays and is only
added to what the layers write. The loss E[(TF(x) + y_q)^2] is then the square of one entry, and

    E[tr((I - M) Y^T Y (I - M))],    Y: the last row of Z_{k+1}, from the prompt with y_q in it.
"""

from __future__ import annotations

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
    stream,
)
from icgd_papers.theorems.statement import Finding, Statement
from icgd_papers.training.covariates import Ellipsoid, normal
from icgd_papers.training.tasks import generator_of

N_TASKS = 200
N_TOKENS = 9
N_LAYERS = 3


def _last_rows(Z: Tensor, h: Activation, seed: int) -> Tensor:
    """The label rows after layers of random A, B, C and r that satisfy Assumption 4.4."""
    generator = generator_of(seed, 1)
    for _ in range(N_LAYERS):
        A, B, C = 0.3 * normal(generator, 3, WIDTH, WIDTH)
        V = torch.block_diag(A / N_TOKENS, torch.tensor([[-0.1]], dtype=torch.float64))
        Z = layer(Z, V, B, C, h)
    return Z[..., -1, :]


def _rows(h: Activation, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The last rows with the query's label hidden, and with it in the prompt; and the labels."""
    generator = generator_of(seed, 0)
    x = Ellipsoid.sphere(WIDTH).sample(N_TASKS, N_TOKENS, generator)
    y = normal(generator, N_TASKS, N_TOKENS)
    return _last_rows(stream(x, hidden(y)), h, seed), _last_rows(stream(x, y), h, seed), y


def _traces(rows: Tensor) -> Tensor:
    """tr((I - M) Y^T Y (I - M)) of every task."""
    left = torch.eye(N_TOKENS, dtype=torch.float64) - mask(N_TOKENS)
    outer = rows[..., :, None] * rows[..., None, :]
    return (left @ outer @ left).diagonal(dim1=-2, dim2=-1).sum(-1)


def lemma_a_1(seed: int) -> Finding:
    """Compare the two forms of the loss for every activation."""
    found = []
    for name, h in ACTIVATIONS.items():
        covered, open_, y = _rows(h, seed)
        loss = (covered[:, -1] + y[:, -1]).square().mean()
        case = f"{name}, {N_LAYERS} layers, {N_TASKS} tasks: one form of the loss beside the other"
        found.append(agreement(case, loss, _traces(open_).mean()))
    return Finding(right=tuple(found))


def last_line(seed: int) -> Finding:
    """Compare the loss with the mean trace, and with the mean of its square."""
    covered, open_, y = _rows(ACTIVATIONS["softmax"], seed)
    loss, traces = (covered[:, -1] + y[:, -1]).square().mean(), _traces(open_)
    case = f"softmax, {N_LAYERS} layers, {N_TASKS} tasks: the loss beside the mean of the trace{{}}"
    return Finding(
        right=(agreement(case.format(""), loss, traces.mean()),),
        printed=(agreement(case.format(" squared"), loss, traces.square().mean()),),
    )


STATEMENTS = (
    Statement(
        "cheng",
        "Lemma A.1",
        "The in-context loss is the mean square of the query's label after the last layer, if the"
        " prompt holds its true label from the start.",
        "E[(TF(x_q) + y_q)^2] = E[tr((I - M) Y^T Y (I - M))]",
        lemma_a_1,
    ),
    Statement(
        "cheng",
        "Lemma A.1, last line",
        "The square of the norm of the masked row is the trace of its outer product.",
        "|(I - M) Y^T|^2 = tr((I - M) Y^T Y (I - M))",
        last_line,
        correction="The trace is already the square of the norm; the last line of the proof squares"
        " it once more.",
    ),
)
