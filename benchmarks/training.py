"""Training steps of a kernel transformer against a plain implementation.

The baseline computes the whole stream Z of every layer as in equation (3), by einsum. Both do
forward and backward in float32, in one process, on the same batch and with the same weights.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from icgd.problems.kernel_machine import KernelMachine
from icgd.timing import interleaved_medians
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import InContextTask

N_TASKS, N_EXAMPLES, INPUT_WIDTH, N_LAYERS = 3000, 30, 5, 3
ATTENTIONS = ("linear", "relu", "exp", "softmax")
LIMITS = {"0": 0.2, "free": 0.4}  # our time over the baseline's, for each A
STEPS_PER_BATCH = 10  # a batch is used so often (App. H.1) before the next one is drawn

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda scores: scores,
    "relu": torch.relu,
    "exp": torch.exp,
    "softmax": lambda scores: torch.softmax(scores, dim=1),
}


def rows() -> list[dict[str, object]]:
    return [
        _row(attention, transforms, n_threads)
        for n_threads, attention, transforms in product((2, 1), ATTENTIONS, (False, True))
    ]


def data_rows() -> list[dict[str, object]]:
    """Seconds to draw a batch over seconds that the fastest model needs to use it up."""
    covariates = Ellipsoid.of_seed(0)
    model, (x, y) = _model("linear", False), _batch()
    return [
        _data_row(kernel, covariates, _step(model, model, x, y))
        for kernel in ("linear", "relu", "exp")
    ]


def _data_row(kernel: str, covariates: Ellipsoid, step: Callable[[], None]) -> dict[str, object]:
    labels = KernelProcess(KernelMachine(INPUT_WIDTH, kernel), covariates.whitening)
    task = InContextTask(covariates, labels, N_EXAMPLES)
    jobs = {"draw": lambda: task.sample(N_TASKS, seed=0, index=0), "step": step}
    seconds = interleaved_medians(jobs, rounds=5)
    return {
        "labels": kernel,
        "ms to draw": 1e3 * seconds["draw"],
        "ms to use": 1e3 * STEPS_PER_BATCH * seconds["step"],
        "ratio": seconds["draw"] / (STEPS_PER_BATCH * seconds["step"]),
        "limit": 1.0,
    }


def _row(attention: str, transforms_covariates: bool, n_threads: int) -> dict[str, object]:
    seconds = _seconds(_model(attention, transforms_covariates), n_threads)
    A = "free" if transforms_covariates else "0"
    return {
        "attention": attention,
        "A": A,
        "threads": n_threads,
        "steps/s": 1 / seconds["ours"],
        "baseline steps/s": 1 / seconds["baseline"],
        "ratio": seconds["ours"] / seconds["baseline"],
        "limit": LIMITS[A],
    }


def _seconds(model: KernelTransformer, n_threads: int) -> dict[str, float]:
    x, y = _batch()
    models = {
        "ours": model,
        "baseline": lambda x, y: einsum_forward(model, x, y),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    steps = {name: _step(predict, model, x, y) for name, predict in models.items()}
    seconds = interleaved_medians(steps)
    torch.set_num_threads(before)
    return seconds


def einsum_forward(model: KernelTransformer, x: Tensor, y: Tensor) -> Tensor:
    """Minus the query's label of Z <- Z + V Z M k(B X, C X), all columns of Z in every layer."""
    width, n = x.shape[-1], x.shape[-2] - 1
    z = torch.cat([x.mT, y[:, None]], dim=1)
    z = torch.cat([z[..., :n], torch.cat([z[:, :width, n:], z.new_zeros(len(z), 1, 1)], 1)], 2)
    for layer in range(model.n_layers):
        inputs = z[:, :width]
        keys = torch.einsum("oi,tin->ton", model.B[layer, 0], inputs)
        readers = torch.einsum("oi,tin->ton", model.C[layer, 0], inputs)
        scores = torch.einsum("tok,tol->tkl", keys, readers)
        pattern = _pattern(model.kernels[0], scores, n)
        value = torch.zeros(width + 1, width + 1)
        value[width, width] = model.r[layer, 0]
        if model.A is not None:
            value[:width, :width] = model.A[layer, 0]
        z = z + torch.einsum("oi,tin,tnl->tol", value, z, pattern)
    return -z[:, width, n]


def _pattern(kernel: str, scores: Tensor, n: int) -> Tensor:
    """The kernel with the query's row removed, which is the mask M."""
    is_example = (torch.arange(n + 1) < n).to(scores)[:, None]
    if kernel == "softmax":
        return torch.softmax(scores.masked_fill(is_example == 0, -torch.inf), dim=1)
    return is_example * KERNELS[kernel](scores)


def _step(
    predict: Callable[[Tensor, Tensor], Tensor], model: KernelTransformer, x: Tensor, y: Tensor
) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        (predict(x, y) - y[:, -1]).square().mean().backward()

    return step


def _model(attention: str, transforms_covariates: bool) -> KernelTransformer:
    return KernelTransformer(
        INPUT_WIDTH,
        N_LAYERS,
        (attention,),
        transforms_covariates=transforms_covariates,
        seed=0,
    ).to(torch.float32)


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N_TASKS, N_EXAMPLES + 1, INPUT_WIDTH, generator=generator)
    return x / x.norm(dim=-1, keepdim=True), torch.randn(x.shape[:-1], generator=generator)
