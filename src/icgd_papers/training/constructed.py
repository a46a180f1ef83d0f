r"""The best constructions of functional descent for a task, and how near a learnt model is to them.

All have B = C, and a family says which numbers are chosen to make the mean loss smallest:

    constant step     r = -s,      B = C = G S^-1          one number
    steps             r = -s_l,    B = C = G S^-1          one for each layer l
    steps and widths  r = -s_l,    B = C = g_l G S^-1      two for each layer

S^-1 whitens the inputs, and G is the transform of the kernel machine. The last family is that of
Theorem 4.5 of cheng. Labels are averaged out, so that the loss of a batch is a smooth function of
these numbers, which L-BFGS makes small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from icgd.errors import UnknownNameError
from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.training.averaged import AveragedBatch, AveragedTask
from icgd_papers.training.covariates import Square, as_matrix, require_width
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.similarity import Similarity, similarity
from icgd_papers.training.tasks import Batch

FAMILIES = ("constant step", "steps", "steps and widths")

NEAR = "steps and widths, near learnt"
"""The lowest point of the last family to which the search descends from the learnt model."""

SPREAD = 0.5
"""The first steps of layers lie between e^-SPREAD and e^SPREAD times one that converges.

Where layers have widths too, their order matters, and the search starts from both orders.
"""

WALL = 1e3
"""What counts as the logarithm of a loss that is infinite or no number."""

SMALLEST_LOSS = 1e-12
"""A smaller mean loss is rounding."""

MOST_ITERATIONS = 100
"""L-BFGS stops earlier where the loss no longer falls."""


@dataclass(frozen=True)
class Comparison:
    """The best construction of a family: its loss, and how alike a learnt model is to it."""

    model: KernelTransformer
    loss: float
    similarity: Similarity


def compare_with_constructions(
    learnt: KernelTransformer,
    task: AveragedTask,
    machine: KernelMachine,
    whitening: Square | None = None,
    *,
    n_tasks: int = 2000,
    seed: int = 0,
    n_points: int = 2,
) -> dict[str, Comparison]:
    """Compare a learnt model with the best construction of each of the `FAMILIES`, and with `NEAR`.

    Constructions are fitted on one batch of tasks, and everything is measured on another.

    Args:
        learnt: the learnt model.
        task: what tasks are drawn from.
        machine: the kernel of the constructions.
        whitening: the matrix that whitens the inputs, if there is one.
        n_tasks: the number of tasks in each batch.
        seed: what they are drawn from.
        n_points: the number of points on the line between the weights of two models.

    Returns:
        A comparison for each family.

    Raises:
        SettingError: if the models differ in shape.

    Example:
        >>> import icgd, torch
        >>> from icgd_papers.training import AveragedTask, Gaussian, InContextTask
        >>> from icgd_papers.training import KernelProcess, KernelTransformer
        >>> from icgd_papers.training import compare_with_constructions
        >>> machine = icgd.KernelMachine(2, "linear")
        >>> law = Gaussian(torch.eye(2, dtype=torch.float64))
        >>> task = AveragedTask(InContextTask(law, KernelProcess(machine), n_examples=2))
        >>> model = KernelTransformer.constructed(machine, [0.1])
        >>> comparisons = compare_with_constructions(model, task, machine, n_tasks=4)
        >>> list(comparisons)
        ['constant step', 'steps', 'steps and widths', 'steps and widths, near learnt']
    """
    if whitening is not None:
        whitening = as_matrix("whitening", whitening)
        require_width(len(whitening), machine.input_width)
    fit, test = (task.sample(n_tasks, seed=seed, index=index) for index in range(2))
    drawn = task.task.sample(n_tasks, seed=seed, index=1)
    best = partial(best_construction, n_layers=learnt.n_layers, whitening=whitening)
    models = {name: best(name, task, machine, fit) for name in FAMILIES}
    models[NEAR] = best(FAMILIES[-1], task, machine, fit, near=learnt)
    return {
        name: _compared(learnt, model, task, test, drawn, n_points)
        for name, model in models.items()
    }


def _compared(
    learnt: KernelTransformer,
    model: KernelTransformer,
    task: AveragedTask,
    test: AveragedBatch,
    drawn: Batch,
    n_points: int,
) -> Comparison:
    with torch.no_grad():
        loss = float(task.mean_loss(model, test))
    return Comparison(model, loss, similarity(learnt.double(), model, drawn, n_points=n_points))


def best_construction(
    family: str,
    task: AveragedTask,
    machine: KernelMachine,
    batch: AveragedBatch,
    *,
    n_layers: int,
    whitening: Square | None = None,
    near: KernelTransformer | None = None,
) -> KernelTransformer:
    """Return the construction of a family with the smallest mean loss found on the batch.

    The search starts from steps that grow and from steps that shrink along the layers, or from the
    steps and widths of the model `near`.
    """
    if family not in FAMILIES:
        raise UnknownNameError.of("family", family, known=FAMILIES)
    first = [_first_step(machine, batch, whitening)] * n_layers
    model = KernelTransformer.constructed(machine, first, whitening)
    starts = _starts(model, family) if near is None else [_projected(model, near)]
    trials = [trial for start in starts for trial in _search(model, start, task, batch)]
    _put(model, *min(trials, key=lambda trial: trial[0])[1:])
    return model


def _starts(model: KernelTransformer, family: str) -> list[_Numbers]:
    """Return the starts of the search: one without widths, as the order of steps is free then."""
    n_steps = 1 if family == "constant step" else model.n_layers
    widths = torch.zeros(model.n_layers, dtype=torch.float64) if family == FAMILIES[-1] else None
    spreads = (SPREAD, -SPREAD) if widths is not None and n_steps > 1 else (SPREAD,)
    return [_Numbers(model, _spread(n_steps, spread), widths) for spread in spreads]


def _projected(model: KernelTransformer, near: KernelTransformer) -> _Numbers:
    """Return the steps and widths of a learnt model; uphill steps start from a small one."""
    with torch.no_grad():
        steps = (near.r.double() / model.r).mean(1)
        M, unit = near.B.double().mT @ near.C.double(), model.B.mT @ model.C
        squares = ((M * unit).sum((-2, -1)) / unit.square().sum((-2, -1))).mean(1)
    smallest = torch.tensor(1e-3, dtype=torch.float64)
    return _Numbers(model, steps.maximum(smallest).log(), squares.maximum(smallest).log() / 2)


def _first_step(machine: KernelMachine, batch: AveragedBatch, whitening: Square | None) -> float:
    """Return 1 / (mean of the largest eigenvalues of the kernel on the examples)."""
    x = batch.x[:, :-1] if whitening is None else batch.x[:, :-1] @ whitening.to(batch.x).mT
    return 1 / float(torch.linalg.matrix_norm(machine.matrix(x, x), ord=2).mean())


class _Numbers(nn.Module):
    """The free numbers of a family: logarithms of factors of the first steps and widths."""

    def __init__(self, model: KernelTransformer, steps: Tensor, widths: Tensor | None) -> None:
        super().__init__()
        self.steps = nn.Parameter(steps[:, None])
        fixed = torch.zeros(model.n_layers, dtype=torch.float64) if widths is None else widths
        widths_of_heads = fixed.clone()[:, None, None, None]  # starts share no memory
        self.widths = nn.Parameter(widths_of_heads, requires_grad=widths is not None)
        self._r, self._G = model.r.detach().clone(), model.B.detach().clone()

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return r and B = C for these numbers."""
        return self._r * self.steps.exp(), self._G * self.widths.exp()


def _spread(n_steps: int, spread: float) -> Tensor:
    """Return logarithms of unequal factors: equal steps are a saddle, as their order is free."""
    ends = (-spread, spread) if n_steps > 1 else (0.0, 0.0)
    return torch.linspace(*ends, n_steps, dtype=torch.float64)


Trial = tuple[float, Tensor, Tensor]
"""The logarithm of the mean loss, with the r and the G that gave it."""


def _search(
    model: KernelTransformer, numbers: _Numbers, task: AveragedTask, batch: AveragedBatch
) -> list[Trial]:
    """Return all that L-BFGS tries in minimising the mean loss."""
    free = [parameter for parameter in numbers.parameters() if parameter.requires_grad]
    search = LBFGS(free, max_iter=MOST_ITERATIONS, line_search_fn="strong_wolfe")
    trials: list[Trial] = []

    def loss() -> float:
        search.zero_grad()
        r, G = numbers()
        value = _backward(model, r, G, task, batch)
        trials.append((value, r.detach(), G.detach()))
        return value

    search.step(loss)
    return trials


def _backward(
    model: KernelTransformer, r: Tensor, G: Tensor, task: AveragedTask, batch: AveragedBatch
) -> float:
    """Return the logarithm of the loss, and set its gradient; a wall where the kernel overflows."""
    _put(model, r, G)
    value = task.mean_loss(model, batch).clamp_min(SMALLEST_LOSS).log()
    if not value.isfinite():
        r.sum().mul(0).backward()
        return WALL
    by_r, by_B, by_C = torch.autograd.grad(value, [model.r, model.B, model.C])
    r.backward(by_r)
    if G.requires_grad:
        G.backward(by_B + by_C)
    return value.item()


def _put(model: KernelTransformer, r: Tensor, G: Tensor) -> None:
    with torch.no_grad():
        for parameter, value in ((model.r, r), (model.B, G), (model.C, G)):
            parameter.copy_(value)
