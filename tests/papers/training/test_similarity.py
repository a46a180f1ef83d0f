"""Measures between models: known values, and what must not change them."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from icgd.errors import SettingError
from icgd_papers.training.covariates import Gaussian
from icgd_papers.training.labels import LinearFunctions
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.similarity import (
    between,
    canonical,
    distance_to_identity,
    distances_to_identity,
    matrices,
    sensitivities,
    similarity,
)
from icgd_papers.training.tasks import Batch, InContextTask

WIDTH = 3


def model_of(kernels=("exp",), seed=0, transforms_covariates=False, n_layers=2):
    return KernelTransformer(
        WIDTH,
        n_layers,
        kernels,
        transforms_covariates=transforms_covariates,
        seed=seed,
        value_scale=0.2,
    )


def batch_of(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 5, WIDTH, generator=generator, dtype=torch.float64)
    return Batch(x, torch.randn(6, 5, generator=generator, dtype=torch.float64))


def in_another_gauge(model):
    """(L^T B, L^-1 C) instead of (B, C)."""
    other = canonical(model)
    L = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.3, 0.0, 1.0]], dtype=torch.float64)
    with torch.no_grad():
        other.B.copy_(L.mT @ model.B)
        other.C.copy_(torch.linalg.inv(L) @ model.C)
    return other


def test_a_change_of_gauge_is_no_difference():
    model, batch = model_of(), batch_of()
    found = similarity(model, in_another_gauge(model), batch, n_points=3)
    loss = (model(batch.x, batch.y) - batch.y[:, -1]).square().mean().item()
    assert found.prediction_difference <= 1e-12
    assert found.sensitivity_cosine == pytest.approx(1.0, abs=1e-12)
    assert found.sensitivity_distance <= 1e-12
    assert found.losses == pytest.approx((loss, loss, loss), rel=1e-10)


def test_a_constant_factor_of_the_last_step_scales_predictions_and_sensitivities():
    model, twice, batch = model_of(n_layers=1), model_of(n_layers=1), batch_of()
    with torch.no_grad():
        twice.r.mul_(-2)
    found = similarity(model, twice, batch, n_points=4)
    predictions = model(batch.x, batch.y).detach()
    assert found.prediction_difference == pytest.approx(3 * predictions.square().mean().sqrt())
    assert found.sensitivity_cosine == pytest.approx(-1.0)
    assert found.sensitivity_distance == pytest.approx(
        3 * sensitivities(model, batch).norm(dim=-1).mean().item()
    )
    third = batch.y[:, -1].square().mean()  # 1 - 3/3 = 0: no prediction at a third of the line
    assert found.losses[1] == pytest.approx(third.item())


def test_sensitivities_are_slopes_by_the_query_alone():
    model, batch, small = model_of(("softmax",), transforms_covariates=True), batch_of(), 1e-6
    moved = batch.x.clone()
    moved[:, -1, 1] += small
    slope = (model(moved, batch.y) - model(batch.x, batch.y)) / small
    assert (slope - sensitivities(model, batch)[:, 1]).abs().max() <= 1e-5


def test_kernels_of_distances_keep_their_matrices():
    model = model_of(("rbf", "exp"))
    same = canonical(model)
    batch = batch_of()
    assert torch.equal(same.B[:, 0], model.B[:, 0])
    assert torch.equal(same.B[0, 1], torch.eye(WIDTH, dtype=torch.float64))
    assert (same(batch.x, batch.y) - model(batch.x, batch.y)).abs().max() <= 1e-12


def test_a_model_that_keeps_its_inputs_is_compared_as_one_that_moves_them_by_nothing():
    without, free = model_of(), model_of(transforms_covariates=True, seed=1)
    halfway = between(without, free, 0.5)
    assert torch.equal(halfway.A, free.A / 2)
    batch = batch_of()
    start = between(without, free, 0.0)
    assert (start(batch.x, batch.y) - without(batch.x, batch.y)).abs().max() <= 1e-12


def test_models_of_other_shapes_are_refused():
    with pytest.raises(SettingError, match=r"kernels=\('exp',\).*got .*kernels=\('relu',\)"):
        between(model_of(), model_of(("relu",)), 0.5)


def test_distance_to_identity_of_known_matrices():
    assert distance_to_identity(-3 * torch.eye(4)) == 0.0
    assert distance_to_identity(torch.diag(torch.tensor([1.0, -1.0]))) == 1.0
    assert distance_to_identity(torch.diag(torch.tensor([1.0, 3.0]))) == pytest.approx(0.2**0.5)


def test_matrices_are_those_of_the_figures():
    model = model_of(transforms_covariates=True)
    covariance = torch.tensor([[2.0, 0.5, 0], [0.5, 1.0, 0], [0, 0, 0.3]], dtype=torch.float64)
    inverse_root = torch.linalg.inv(torch.linalg.cholesky(covariance)).mT  # L^-T L^-1 = cov^-1
    with torch.no_grad():
        model.B.copy_(2 * inverse_root.mT)
        model.C.copy_(inverse_root.mT)
        model.A.copy_(-torch.eye(WIDTH, dtype=torch.float64))
    found = matrices(model, covariance)
    assert list(found) == ["BC_0", "A_0", "BC_1"]
    assert (found["BC_0"] - 2 * torch.eye(WIDTH)).abs().max() <= 1e-12
    assert max(distances_to_identity(model, covariance).values()) <= 1e-12


def test_the_matrix_of_the_examples_is_the_transposed_one():
    model = model_of(n_layers=1)
    found = matrices(model, torch.eye(WIDTH, dtype=torch.float64))["BC_0"]
    assert (found - model.B[0, 0].mT @ model.C[0, 0]).abs().max() <= 1e-12


def test_in_the_example_of_its_page_a_learnt_model_is_like_the_constructed_one(capsys):
    page = Path(__file__).parents[3] / "docs" / "training" / "models.md"
    _, example = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    names: dict = {}
    exec(example, names)
    found = names["found"]
    printed = [float(number) for number in capsys.readouterr().out.split()]
    assert printed == [found.prediction_difference, found.sensitivity_cosine]
    assert found.prediction_difference < 0.1
    assert found.sensitivity_cosine > 0.99
    assert found.losses[0] == pytest.approx(found.losses[-1], rel=0.05)


def test_models_of_any_precision_are_compared_in_float64():
    """As `load` gives them, in the precision of their training."""
    first, second = (
        KernelTransformer(2, 2, ("exp",), transforms_covariates=False, seed=seed) for seed in (0, 1)
    )
    task = InContextTask(Gaussian(torch.eye(2, dtype=torch.float64)), LinearFunctions(), 4)
    batch = task.sample(20, seed=0, index=0)
    rounded = similarity(deepcopy(first).float(), deepcopy(second).float(), batch)
    exact = similarity(first, second, batch)
    assert rounded.prediction_difference == pytest.approx(exact.prediction_difference, rel=1e-5)
    assert rounded.sensitivity_cosine == pytest.approx(exact.sensitivity_cosine, rel=1e-5)
