r"""Theorems E.1 and F.1: the family has points at which the gradient of the loss vanishes.

The theorems hold for any law of the inputs that rotations after whitening do not change. Their
proofs use of the rotations only that U^T R U is the multiple tr(R) / d of I in the mean, for every
matrix R. The 160 signed cyclic shifts of five coordinates have this mean too: signs remove what is
off the diagonal, and shifts make the diagonal constant. So here the law is a few prompts, each in
all 160 rotations. Its loss is a finite sum, and what the proofs say of gradients holds for it up
to rounding, without a sampling error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.theorems.cheng.stationarity import ATTENTIONS
from icgd_papers.theorems.cheng.written_out import WIDTH
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.training.averaged import AveragedBatch, AveragedTask
from icgd_papers.training.covariates import AbstractCovariates, Ellipsoid, Square
from icgd_papers.training.family import family_model, settle
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.stationarity import STEPS
from icgd_papers.training.tasks import InContextTask

N_PROMPTS = 8
N_EXAMPLES = 6
N_LAYERS = 2
STATIONARY = 1e-5
"""The part of the first gradient that may be left where the loss is smallest on the family."""

SPEED_ERROR = 1e-6
"""The relative error of a difference of losses as a derivative."""

Parameters = dict[str, Tensor]


def signed_shifts(width: int = WIDTH) -> Tensor:
    """All products of a diagonal matrix of signs and a cyclic shift of the coordinates."""
    eye = torch.eye(width, dtype=torch.float64)
    signs = torch.tensor(list(product((1.0, -1.0), repeat=width)), dtype=torch.float64)
    shifts = [eye.roll(places, 0) for places in range(width)]
    return torch.cat([signs[:, :, None] * shift for shift in shifts])


@dataclass(frozen=True)
class ClosedLaw:
    """A few prompts, each in all rotations after whitening, and the loss on them."""

    task: AveragedTask
    batch: AveragedBatch

    @classmethod
    def of(cls, inputs: AbstractCovariates, labels: KernelProcess, seed: int) -> ClosedLaw:
        """Draw the prompts from `inputs`."""
        task = AveragedTask(InContextTask(inputs, labels, N_EXAMPLES))
        prompts = task.sample(N_PROMPTS, seed=seed, index=0).x
        moves = inputs.root @ signed_shifts() @ inputs.whitening
        x = torch.einsum("pti,rji->rptj", prompts, moves).flatten(0, 1)
        return cls(task, AveragedBatch(x, x.new_zeros(x.shape[:2]), labels.covariance(x)))

    @property
    def inputs(self) -> AbstractCovariates:
        return self.task.task.covariates

    def loss(self, model: KernelTransformer) -> Tensor:
        """The mean loss over all prompts."""
        return self.task.mean_loss(model, self.batch)

    def gradients(self, model: KernelTransformer) -> Parameters:
        """The derivatives by all entries of r, A, B and C, wherever the model is."""
        free = _copy(model)
        self.loss(free).backward()
        found = {name: parameter.grad for name, parameter in free.named_parameters()}
        return {name: slope for name, slope in found.items() if slope is not None}

    def start(
        self, attention: str, family: AbstractCovariates, *, moves: bool
    ) -> KernelTransformer:
        """A point of the family of `family`, which is that of the theorems for these inputs."""
        step = STEPS.get(attention, 1 / N_EXAMPLES)
        return family_model(attention, family, N_LAYERS, step, transforms_covariates=moves)


def _copy(model: KernelTransformer, move: Parameters | None = None) -> KernelTransformer:
    """A model with the same matrices, each free, and moved by `move`."""
    moves = model.transforms_covariates
    free = KernelTransformer(
        WIDTH, model.n_layers, model.kernels, transforms_covariates=moves, seed=0
    )
    with torch.no_grad():
        for name, parameter in free.named_parameters():
            parameter.copy_(getattr(model, name) + (move or {}).get(name, 0.0))
    return free


def _size(slopes: Parameters) -> Tensor:
    """The sum of all squares."""
    return torch.stack([slope.square().sum() for slope in slopes.values()]).sum()


def stationary_point(
    attention: str, law: ClosedLaw, family: AbstractCovariates, *, moves: bool
) -> Comparison:
    """Minimise the loss on a family, and compare the whole gradient there with the first one."""
    model = law.start(attention, family, moves=moves)
    first = _size(law.gradients(model))
    settle(model, law.task, law.batch)
    left = (_size(law.gradients(model)) / first).sqrt()
    case = (
        f"{attention} attention, {N_LAYERS} layers, {len(law.batch.x)} prompts: the gradient by all"
        " entries at the best point of the family"
    )
    return Comparison(case, float(left), STATIONARY, "of the first gradient")


def flow_speed(attention: str, law: ClosedLaw, *, moves: bool) -> Comparison:
    """Compare the loss's speed along the flow, by differences, with minus the squared gradient."""
    model = law.start(attention, law.inputs, moves=moves)
    slopes = law.gradients(model)
    squared = _size(slopes)
    time = 1e-4 / squared.sqrt()
    flow = dict(_flow(slopes, law.inputs.root, law.inputs.whitening))
    with torch.no_grad():
        after, before = (
            law.loss(_copy(model, {name: span * move for name, move in flow.items()}))
            for span in (time, -time)
        )
    speed = (after - before) / (2 * time)
    case = f"{attention} attention, {N_LAYERS} layers: the loss's speed beside minus the square"
    return Comparison(case, float((speed / squared + 1).abs()), SPEED_ERROR, "relative difference")


def _flow(slopes: Parameters, root: Square, whitening: Square) -> Iterator[tuple[str, Tensor]]:
    """The flow: minus the derivative by r, and minus the part on the family of the others."""
    yield "r", -slopes["r"]
    for name, (before, on_family) in _parts(root, whitening).items():
        if name in slopes:
            traces = (slopes[name] @ before).diagonal(dim1=-2, dim2=-1).sum(-1)
            yield name, -traces[..., None, None] / WIDTH * on_family


def _parts(root: Square, whitening: Square) -> dict[str, tuple[Square, Square]]:
    """What the derivative by a matrix is multiplied with in the trace, and the family's matrix."""
    one = torch.eye(WIDTH, dtype=torch.float64)
    return {"A": (one, one), "B": (root, whitening), "C": (root, whitening)}


def _law(seed: int) -> ClosedLaw:
    """Labels of an exponential kernel on the paper's ellipsoid."""
    inputs = Ellipsoid.of_seed(seed)
    return ClosedLaw.of(inputs, KernelProcess(KernelMachine(WIDTH, "exp"), inputs.whitening), seed)


def _stationary(seed: int, *, moves: bool) -> Finding:
    law = _law(seed)
    found = (stationary_point(name, law, law.inputs, moves=moves) for name in ATTENTIONS)
    return Finding(right=tuple(found))


def theorem_e_1(seed: int) -> Finding:
    """Minimise with A = 0."""
    return _stationary(seed, moves=False)


def theorem_f_1(seed: int) -> Finding:
    """Minimise with A free."""
    return _stationary(seed, moves=True)


def _speeds(seed: int, *, moves: bool) -> Finding:
    law = _law(seed)
    return Finding(right=tuple(flow_speed(name, law, moves=moves) for name in ATTENTIONS))


def equation_31(seed: int) -> Finding:
    """Follow the flow with A = 0."""
    return _speeds(seed, moves=False)


def equation_48(seed: int) -> Finding:
    """Follow the flow with A free."""
    return _speeds(seed, moves=True)


THEOREM_E_1 = Statement(
    "cheng",
    "Theorem E.1",
    "On the family of Theorem 4.5 the gradient of the in-context loss, by all entries of r, B and"
    " C, comes as near to 0 as one likes.",
    "inf over the family of |grad f|^2 = 0",
    theorem_e_1,
)

EQUATION_31 = Statement(
    "cheng",
    "Equation (31)",
    "With A = 0 the flow that stays on the family lowers the loss as fast as the whole gradient"
    " would.",
    "d/dt f = -sum_l (df/dr_l)^2 + |grad_B_l f|^2 + |grad_C_l f|^2",
    equation_31,
)

THEOREM_F_1 = Statement(
    "cheng",
    "Theorem F.1",
    "On the family of Theorem 4.6 the gradient by all entries of r, A, B and C comes as near to 0"
    " as one likes.",
    "inf over the family of |grad f|^2 = 0",
    theorem_f_1,
)

EQUATION_48 = Statement(
    "cheng",
    "Equation (48)",
    "With A free the flow that stays on the family lowers the loss as fast as the whole gradient"
    " would.",
    "d/dt f = -sum_l (df/dr_l)^2 + |grad_A_l f|^2 + |grad_B_l f|^2 + |grad_C_l f|^2",
    equation_48,
)
