"""The family's best point, and the curvature off it, against derivatives found in other ways."""

import pytest
import torch

from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.training import family
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.family import (
    KINDS,
    curvatures,
    family_model,
    random_directions,
    settle,
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
        part.directions.copy_(random_directions(3, 0, 0))
        with torch.no_grad():
            part.tilts[1, 0] = 0.3
    distances = distances_to_identity(model, INPUTS.covariance)
    assert distances["BC_0"] == pytest.approx(0.3 / (1 + 0.3**2) ** 0.5)
    assert distances["BC_1"] == pytest.approx(0.0, abs=1e-7)


def test_directions_have_norm_1_and_trace_0():
    for kind, matrix in zip(KINDS, random_directions(4, seed=1, index=2), strict=True):
        sign = -1 if kind == "antisymmetric" else 1
        assert torch.equal(matrix.mT, sign * matrix)
        assert matrix.norm().item() == pytest.approx(1.0)
        assert matrix.trace().item() == pytest.approx(0.0, abs=1e-12)


def test_one_layer_of_linear_attention_settles_at_the_best_step():
    """Linear labels: the loss is a quadratic in the step, whose minimum is found by hand."""
    law = LinearFunctions(INPUTS.whitening)
    task = AveragedTask(InContextTask(INPUTS, law, 6))
    batch = task.sample(50, seed=0, index=0)
    model = family_model("linear", INPUTS, 1, 0.1, transforms_covariates=False)
    loss = settle(model, task, batch)
    x = batch.x @ INPUTS.whitening
    examples, query = x[:, :-1], x[:, -1:]
    read = query @ examples.mT @ examples  # a step s predicts s <read, theta>
    best = (read * query).sum() / read.square().sum()
    step = -model.r[0, 0] * tilted_parts(model)[0].multiples[0]
    assert step.item() == pytest.approx(best.item(), rel=1e-5)
    assert loss == pytest.approx((best * read - query).square().sum().item() / 50, rel=1e-9)


def test_curvatures_are_those_of_differences_of_the_loss():
    model, batch = model_of(), TASK.sample(40, seed=0, index=0)
    settle(model, TASK, batch)
    found = curvatures(model, TASK, batch, 0, 7)
    assert found.shape == (2, 3, 3)  # B of two layers, and A of the first
    part = tilted_parts(model)[0]
    before = loss_of(model, batch)
    step = 2e-3
    for kind in range(2):
        ends = []
        for size in (step, -step):
            with torch.no_grad():
                part.tilts[kind, 1] = size
            ends.append(loss_of(model, batch))
        with torch.no_grad():
            part.tilts[kind, 1] = 0.0
        second = (ends[0] + ends[1] - 2 * before) / step**2 / before
        assert found[kind, 1, 1].item() == pytest.approx(second, rel=0.02)
    assert all(not part.tilts.any() for part in tilted_parts(model))


def test_the_curvature_does_not_depend_on_the_direction():
    """Many tasks: curvatures along two directions differ by sampling alone, and are not alike."""
    model = model_of(moves=False)
    settle(model, TASK, TASK.sample(400, seed=0, index=0))
    drawn = [
        torch.stack(
            [
                curvatures(model, TASK, TASK.sample(400, seed=0, index=1 + i), 0, way)
                for i in range(8)
            ]
        )
        for way in (0, 1)
    ]
    means = [part.mean(0) for part in drawn]
    errors = sum(part.var(0) / 8 for part in drawn).sqrt()
    assert ((means[0] - means[1]).abs() / errors).max() < 5
    assert (means[0][0] - means[0][1]).abs().max() > 10 * errors.max()


def test_kinks_of_relu_attention_count(monkeypatch):
    """A second derivative of a sample misses them."""
    monkeypatch.setattr(family, "TILT", 0.02)
    model, batch = model_of("relu", moves=False), TASK.sample(2000, seed=0, index=0)
    settle(model, TASK, batch)
    found = curvatures(model, TASK, batch, 0, 7)[0, 0, 0]
    part = tilted_parts(model)[0]
    before, ends = loss_of(model, batch), []
    for size in (0.02, -0.02):
        with torch.no_grad():
            part.tilts[0, 0] = size
        ends.append(loss_of(model, batch))
    assert found.item() == pytest.approx((sum(ends) / before - 2) / 0.02**2, rel=0.05)
    with torch.no_grad():
        part.tilts.zero_()
    slope = torch.autograd.grad(TASK.mean_loss(model, batch), part.tilts, create_graph=True)[0][
        0, 0
    ]
    smooth = torch.autograd.grad(slope, part.tilts)[0][0, 0] / before
    assert abs(smooth.item() / found.item() - 1) > 0.1
