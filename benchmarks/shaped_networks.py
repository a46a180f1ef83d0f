"""The inner loop of a TTT-MLP layer in relu-stack: errors over pieces, and time beside torch."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import icgd
from icgd.compiled import Compiled
from icgd.environment import one_thread
from icgd.problems.functions import reciprocal_deviation
from icgd.problems.mlp import MLP
from icgd.timing import interleaved_medians

STEP_SIZE = 0.1


def rows() -> list[dict[str, object]]:
    return [_row(pieces) for pieces in (64, 256, 1024)]


def _row(pieces: int) -> dict[str, object]:
    compiled, data = _compiled(8, 20, pieces), _data(8, 16)
    report = icgd.verify(compiled, **data, seed=0)
    return {
        "pieces": pieces,
        "pieces of the root": compiled.stack.relu_sum(reciprocal_deviation(1e-5).name).n_pieces,
        "layers a step": compiled.summary().layers_per_step,
        "step error": float(report.step_errors.max()),
        "step bound": float(report.step_bounds.max()),
        "distance from torch": _distance(compiled, data),
    }


def speed_rows() -> list[dict[str, object]]:
    with one_thread():
        return [_speed_row(width) for width in (8, 16)]


def _speed_row(width: int) -> dict[str, object]:
    n_steps = 200
    compiled, data = _compiled(width, n_steps, 64), _data(width, 64)
    task = compiled.task(**data, seed=0)
    seconds = interleaved_medians(
        {
            "fused": lambda: compiled.run_task(task, history=False),
            "torch": partial(by_torch, compiled.problem.network, task.initial, n_steps, **data),
        }
    )
    return {
        "widths": f"{width}-{4 * width}-{width}",
        "fused us/step": 1e6 * seconds["fused"] / n_steps,
        "torch us/step": 1e6 * seconds["torch"] / n_steps,
        "ratio": seconds["fused"] / seconds["torch"],
        "limit": 1.5,
    }


def _compiled(width: int, n_steps: int, pieces: int) -> Compiled:
    target = MLP((width, 4 * width, width), "gelu", shortcuts=((0, 2),), norms=(2,))
    update, domain = icgd.GradientStep(STEP_SIZE, box=2.0), icgd.Domain(1.0, 1.0, rate=1.0)
    problem = icgd.Problem(target, "squared", update, domain)
    return icgd.compile(problem, icgd.ReluStack(pieces=pieces), n_steps=n_steps)


def _data(width: int, n_examples: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (
        2 * torch.rand(n_examples, width, generator=generator, dtype=torch.float64) - 1
        for _ in range(2)
    )
    return {"X": x, "y": y, "rates": torch.rand(n_examples, generator=generator).double()}


def _distance(compiled: Compiled, data: dict[str, Tensor]) -> float:
    """How far the weights are from those of torch after the last step."""
    run = compiled.run(**data, seed=0, history=False)
    network, n_steps = compiled.problem.network, compiled.program.n_steps
    real = by_torch(network, run.parameters[0], n_steps, **data)
    return float((run.parameters[-1] - real).abs().max())


def by_torch(
    target: MLP, start: Tensor, n_steps: int, X: Tensor, y: Tensor, rates: Tensor
) -> Tensor:
    """The weights after the inner loop as people write it."""
    matrices = [matrix.clone().requires_grad_() for matrix in target.matrices(start)]
    optimizer = torch.optim.SGD(matrices, lr=STEP_SIZE)
    for _ in range(n_steps):
        hidden = functional.gelu(X @ matrices[0].T)
        outputs = X + functional.layer_norm(hidden @ matrices[1].T, X.shape[-1:])
        optimizer.zero_grad()
        losses = (outputs - y).square().sum(-1)
        ((rates * losses).mean() / 2).backward()
        optimizer.step()
    return torch.cat([matrix.detach().flatten() for matrix in matrices])
