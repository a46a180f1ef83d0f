import pytest
import torch

import icgd
from icgd.errors import SizeError
from icgd.problems.data import drawn_task

DOMAIN = icgd.Domain(x=3.0, y=0.5)
STEP = icgd.GradientStep(0.1, box=1.0)


def test_inputs_cover_the_domain_and_labels_lie_in_it():
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", STEP, DOMAIN)
    task = drawn_task(problem, 500, seed=0)
    assert task.n_examples == 500
    assert 2.9 < float(task.x.abs().max()) <= 3
    assert float(task.x.min()) < -2.9
    assert float(task.y.min()) >= 0
    assert 0.49 < float(task.y.max()) <= 0.5


def test_labels_of_classes_are_shares():
    network = icgd.MLP((2, 3))
    problem = icgd.Problem(network, "cross_entropy", STEP, icgd.Domain(x=1.0, y=1.0))
    labels = drawn_task(problem, 20, seed=0).y
    assert torch.allclose(labels.sum(-1), torch.ones(20, dtype=torch.float64))
    assert len(set(labels[:, 0].tolist())) == 20


def test_the_seed_decides():
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", STEP, DOMAIN)
    first, again, other = (drawn_task(problem, 3, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.initial, again.initial)
    assert not torch.equal(first.x, other.x)


def test_memory_is_asked_for_first():
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", STEP, DOMAIN)
    with pytest.raises(SizeError, match="1,000,000,000,000 examples"):
        drawn_task(problem, 10**12, seed=0)
