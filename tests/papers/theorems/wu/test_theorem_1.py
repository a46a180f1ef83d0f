from math import sqrt, tanh

import torch

from icgd_papers.theorems.wu import theorem_1
from icgd_papers.theorems.wu.theorem_1 import compiled_stack, projection_norm, step_error


def test_the_norm_of_the_projection_is_least_at_the_best_scale():
    box, n_weights = 1.0, 8
    norms = [a * 2 * n_weights * box + 1 / a for a in torch.linspace(0.01, 2, 2000).tolist()]
    assert 0 <= min(norms) - projection_norm(n_weights) < 1e-3
    assert projection_norm(n_weights) == 2 * sqrt(16.0)


def test_the_error_of_a_step_is_measured_in_the_euclidean_norm():
    compiled = compiled_stack((2, 3, 2), 1.0)
    x = torch.tensor([[0.5, -0.25]], dtype=torch.float64)
    w = torch.linspace(-0.9, 0.9, 12, dtype=torch.float64)
    error = step_error(compiled, x, -x, w)
    task = compiled.task(x, -x, initial=w)
    path = compiled.run_task(task).parameters
    first = path[1] - compiled.problem.oracle.exact_step(task)(path[0], 0)
    assert 0 < float(first.norm()) <= error <= 0.1


def test_no_layer_writes_more_than_its_norm_allows():
    generator = torch.Generator().manual_seed(0)
    least = theorem_1._least_norm(1.0).measured
    for _ in range(100):
        query, key, value = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
        stream = 2 * torch.rand(4, 6, generator=generator, dtype=torch.float64) - 1
        score = torch.relu((stream @ query.mT) @ (stream @ key.mT).mT)
        written = float((score @ (stream @ value.mT) / 4).abs().max())
        norms = [float(part.abs().sum(0).max()) for part in (query, key, value)]
        # The least norm for what was written, from that for tanh(1) by the third root.
        needed = least * (written / tanh(1.0)) ** (1 / 3)
        assert needed <= max(norms[:2]) + norms[2]
