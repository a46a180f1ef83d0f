"""Step sizes of networks: the inverse of how sharply the risk curves where a run begins.

Descent with step size s falls while s times the largest eigenvalue of the Hessian stays below 2.
At 1 / (that eigenvalue at the start) there is room for the curvature to grow as the network learns.
"""

from __future__ import annotations

import torch

from icgd.problems.data import Task
from icgd.problems.oracles import NetworkOracle

N_TURNS = 20
"""Products with the Hessian; the largest eigenvalue is then known to a few per cent."""

NUDGE = 1e-4
"""The length of the move over which a product with the Hessian is a difference of gradients."""

FLAT = 1e-6
"""The least curvature that counts; a flatter start says nothing of the run."""


def sharpness(oracle: NetworkOracle, task: Task) -> float:
    """The size of the Hessian's largest eigenvalue at the task's initial weights, in O(n |w|)."""
    start, generator = task.initial.double(), torch.Generator().manual_seed(0)
    slope = oracle.gradient(task, start)
    direction = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start.device)
    size = float(direction.norm())
    for _ in range(N_TURNS):
        direction = direction / size
        direction = (oracle.gradient(task, start + NUDGE * direction) - slope) / NUDGE
        size = max(float(direction.norm()), FLAT)
    return size
