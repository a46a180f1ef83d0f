"""The training in 60 digits that other tests compare with is the one that torch does."""

from dataclasses import replace

import pytest
import torch

import icgd
from tests.precise_training import real, train
from tests.whole_run_cases import network

OPTIMISERS = {
    "SGD": (icgd.MomentumStep(0.3, 9.0, momentum=0.0, weight_decay=0.1),
            lambda w: torch.optim.SGD(w, 0.3, weight_decay=0.1)),
    "momentum": (icgd.MomentumStep(0.3, 9.0, momentum=0.7, dampening=0.4),
                 lambda w: torch.optim.SGD(w, 0.3, momentum=0.7, dampening=0.4)),
    "Nesterov": (icgd.MomentumStep(0.3, 9.0, momentum=0.7, nesterov=True, weight_decay=0.1),
                 lambda w: torch.optim.SGD(w, 0.3, 0.7, nesterov=True, weight_decay=0.1)),
    "Adam": (icgd.AdamStep(0.1, 9.0, betas=(0.8, 0.9), eps=0.01, weight_decay=0.1),
             lambda w: torch.optim.Adam(w, 0.1, (0.8, 0.9), 0.01, 0.1)),
    "AdamW": (icgd.AdamStep(0.1, 9.0, eps=0.01, weight_decay=0.1, decoupled=True),
              lambda w: torch.optim.AdamW(w, 0.1, eps=0.01, weight_decay=0.1)),
    "RMSprop": (icgd.RmspropStep(0.1, 9.0, alpha=0.9, eps=0.01, weight_decay=0.1),
                lambda w: torch.optim.RMSprop(w, 0.1, 0.9, 0.01, 0.1)),
    "groups": (icgd.AdamStep(0.1, 9.0, eps=0.01, decoupled=True, groups={
                   "weights_2": {"weight_decay": 0.3, "step_size": 0.2}}),
               lambda w: torch.optim.AdamW(
                   [{"params": w[:1]}, {"params": w[1:], "weight_decay": 0.3, "lr": 0.2}],
                   0.1, eps=0.01, weight_decay=0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_are_those_of_torch(name):
    update, make = OPTIMISERS[name]
    case = network(update)
    task = replace(case.task, initial=case.problem.oracle.with_state(case.task.initial[:6]))
    first, second = map(torch.nn.Parameter, task.initial[:6].clone().split((4, 2)))
    optimiser = make([first, second])
    for _ in range(5):
        optimiser.zero_grad()
        outputs = (task.x @ first.view(2, 2).T).tanh() @ second.view(1, 2).T
        (((outputs - task.y) ** 2).mean() / 2).backward()
        optimiser.step()
    exact = [float(value) for value in train(case.problem, task, 5, real).steps[-1][:6]]
    found = torch.cat([first, second]).detach()
    assert torch.allclose(found, torch.tensor(exact, dtype=torch.float64), rtol=1e-13, atol=1e-14)
