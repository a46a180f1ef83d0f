"""The family's best point, and the curvature off it, against derivatives found in other ways."""

import numpy as np
import pytest
import torch

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.training import family
from icgd_papers.training.averaged import AveragedBatch, AveragedTask
from icgd_papers.training.covariates import Ellipsoid, random_rotation
from icgd_papers.training.family import (
    bases,
    curvatures,
    family_model,
    minimise_on_family,
    tilted_parts,
)
from icgd_papers.training.labels import KernelProcess, LinearFunctions
from icgd_papers.training.similarity import distances_to_identity
from icgd_papers.training.tasks import InContextTask

INPUTS = Ellipsoid(torch.tensor([[1.2, 0.7, 0], [0.7, 0.9, 0], [0, 0, 0.3]], dtype=torch.float64))
EXP = KernelProcess(KernelMachine(3, "exp"), INPUTS.whitening)
TASK = AveragedTask(InContextTask(INPUTS, EXP, 6))


def model_of(kernel="softmax", moves=True):
    return family_model(kernel, INPUTS, 2, 0.5, transforms_covariates=moves)


def loss_of(model, batch):
    with torch.no_grad():
        return float(TASK.mean_loss(model, batch))


def test_a_tilt_is_the_distance_to_the_multiples_of_i():
    model = model_of()
    names = ("BC_0", "BC_1", "A_0")
    distances = distances_to_identity(model, INPUTS.covariance)
    assert [distances[name] for name in names] == pytest.approx([0.0] * 3, abs=1e-7)
    for part in tilted_parts(model):
        part.directions.copy_(torch.stack([basis[0] for basis in bases(3)]))
        with torch.no_grad():
            part.tilts[1, 0] = 0.3
    distances = distances_to_identity(model, INPUTS.covariance)
    assert distances["BC_0"] == pytest.approx(0.3 / (1 + 0.3**2) ** 0.5)
    assert distances["BC_1"] == pytest.approx(0.0, abs=1e-7)


def test_the_bases_are_orthonormal_and_of_trace_0():
    antisymmetric, symmetric = bases(4)
    assert (len(antisymmetric), len(symmetric)) == (6, 9)
    assert torch.allclose(antisymmetric.mT, -antisymmetric, atol=1e-12)
    assert torch.allclose(symmetric.mT, symmetric, atol=1e-12)
    for basis in (antisymmetric, symmetric):
        products = basis.flatten(1) @ basis.flatten(1).mT
        assert torch.allclose(products, torch.eye(len(basis), dtype=torch.float64), atol=1e-12)
        assert basis.diagonal(dim1=1, dim2=2).sum(1).abs().max() < 1e-12


def test_one_layer_of_linear_attention_settles_at_the_best_step():
    """Linear labels: the loss is a quadratic in the step, whose minimum is found by hand."""
    law = LinearFunctions(INPUTS.whitening)
    task = AveragedTask(InContextTask(INPUTS, law, 6))
    batch = task.sample(50, seed=0, index=0)
    model = family_model("linear", INPUTS, 1, 0.1, transforms_covariates=False)
    loss = minimise_on_family(model, task, batch)
    x = batch.x @ INPUTS.whitening
    examples, query = x[:, :-1], x[:, -1:]
    read = query @ examples.mT @ examples  # a step s predicts s <read, theta>
    best = (read * query).sum() / read.square().sum()
    step = -model.r[0, 0] * tilted_parts(model)[0].multiples[0]
    assert step.item() == pytest.approx(best.item(), rel=1e-5)
    assert loss == pytest.approx((best * read - query).square().sum().item() / 50, rel=1e-9)


def second_difference(model, batch, kind, layer, size):
    """The second difference of the loss by a tilt of B, over the loss, in the mean of all K."""
    part = tilted_parts(model)[0]
    middle, total = loss_of(model, batch), 0.0
    basis = bases(3)[kind]
    with torch.no_grad():
        for direction in basis:
            part.directions[kind] = direction
            for tilt in (size, -size):
                part.tilts[kind, layer] = tilt
                total += (loss_of(model, batch) / middle - 1) / size**2
        part.tilts.zero_()
    return total / len(basis)


def test_curvatures_are_those_of_differences_of_the_loss():
    model, batch = model_of(), TASK.sample(40, seed=0, index=0)
    minimise_on_family(model, TASK, batch)
    found = curvatures(model, TASK, batch)
    assert found.shape == (2, 3, 3)  # B of two layers, and A of the first
    assert all(not part.tilts.any() for part in tilted_parts(model))
    for kind in range(2):
        expected = second_difference(model, batch, kind, 1, 2e-3)
        assert found[kind, 1, 1].item() == pytest.approx(expected, rel=1e-4)


def test_rotated_prompts_have_the_same_curvatures():
    """So the mean over all directions is the curvature of the prompts in all rotations."""
    model, batch = model_of(), TASK.sample(20, seed=0, index=0)
    minimise_on_family(model, TASK, batch)
    rotation = random_rotation(3, np.random.default_rng(0))
    x = batch.x @ (INPUTS.root @ rotation @ INPUTS.whitening).mT
    rotated = AveragedBatch(x, batch.y, batch.covariance)
    assert torch.allclose(EXP.covariance(x), batch.covariance)
    ours, theirs = curvatures(model, TASK, batch), curvatures(model, TASK, rotated)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_kinks_of_relu_attention_count(monkeypatch):
    """A second derivative of a sample misses them."""
    monkeypatch.setattr(family, "TILT", 0.02)
    model, batch = model_of("relu", moves=False), TASK.sample(1000, seed=0, index=0)
    minimise_on_family(model, TASK, batch)
    found = curvatures(model, TASK, batch)[0, 0, 0].item()
    assert found == pytest.approx(second_difference(model, batch, 0, 0, 0.02), rel=0.05)
    part, smooth = tilted_parts(model)[0], []
    for direction in bases(3)[0]:
        part.directions[0] = direction
        loss = TASK.mean_loss(model, batch)
        slope = torch.autograd.grad(loss, part.tilts, create_graph=True)[0][0, 0]
        smooth.append(torch.autograd.grad(slope, part.tilts)[0][0, 0].item() / loss.item())
    assert abs(sum(smooth) / len(smooth) / found - 1) > 0.1
