"""How far a compiled step is from the exact one."""

import pytest
import torch

from icgd.constructions.recursion import Recursion
from icgd.pipeline import compile
from icgd_papers.studies.wang_steps import BOX, N_TASKS, STEP, tanh_problem, worst_step


def test_the_worst_step_is_the_largest_distance_to_autograd_in_the_euclidean_norm():
    compiled = compile(tanh_problem((2, 3, 1)), Recursion(24, "relu"), n_steps=1)
    source = torch.Generator().manual_seed(5)
    x, y, w = (
        2 * torch.rand(N_TASKS, *shape, generator=source, dtype=torch.float64) - 1
        for shape in ((5, 2), (5, 1), (9,))
    )
    worst = 0.0
    for task in range(N_TASKS):
        first = (BOX * w[task]).requires_grad_()
        matrices = first[:6].view(3, 2), first[6:].view(1, 3)
        output = torch.tanh(x[task] @ matrices[0].mT) @ matrices[1].mT
        (slope,) = torch.autograd.grad((output - y[task]).square().sum() / 10, first)
        exact = (first - STEP * slope).clamp(-BOX, BOX)
        reached = compiled.run(x[task], y[task], initial=first.detach()).parameters[-1]
        worst = max(worst, float((reached - exact.detach()).norm()))
    assert worst_step(compiled, seed=5) == pytest.approx(worst, rel=1e-9)
    assert worst > 1e-6
    assert worst_step(compiled, 5, "dense") == pytest.approx(worst, rel=1e-9)
