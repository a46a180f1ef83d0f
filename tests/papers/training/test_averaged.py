"""The averaged loss is the mean of the sampled one, and its weights are the model's."""

import re

import pytest
import torch
from torch import nn

from icgd.errors import SettingError
from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.training.averaged import ROUNDING, AveragedTask
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.labels import KernelProcess, LinearFunctions, ReluNetworks
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import Batch, InContextTask

COVARIATES = Ellipsoid.of_seed(0)
TASK = InContextTask(COVARIATES, KernelProcess(KernelMachine(5, "relu"), COVARIATES.whitening), 4)


def model(*kernels, n_layers=3, free=True):
    return KernelTransformer(
        5, n_layers, kernels, transforms_covariates=free, seed=1, value_scale=0.2
    )


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("kernels", [("linear",), ("softmax",), ("relu", "exp")])
def test_the_weights_of_the_labels_give_the_models_prediction(kernels, free):
    batch, learnt = TASK.sample(6, seed=0, index=0), model(*kernels, free=free)
    predicted = (learnt.label_weights(batch.x) * batch.y[:, :-1]).sum(-1)
    assert torch.allclose(predicted, learnt(batch.x, batch.y), rtol=1e-12, atol=1e-13)


def test_a_single_layer_has_weights_too():
    batch, learnt = TASK.sample(3, seed=0, index=0), model("exp", n_layers=1)
    predicted = (learnt.label_weights(batch.x) * batch.y[:, :-1]).sum(-1)
    assert torch.allclose(predicted, learnt(batch.x, batch.y), rtol=1e-12, atol=1e-13)


def test_the_loss_is_the_mean_over_labels():
    averaged, learnt = AveragedTask(TASK), model("exp")
    batch = averaged.sample(2, seed=0, index=0)
    factor = torch.linalg.cholesky(batch.covariance)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, 2, 5, 1, generator=generator, dtype=torch.float64)
    labels = (factor @ noise)[..., 0].flatten(0, 1)
    drawn = Batch(batch.x.repeat(20_000, 1, 1), labels)
    with torch.no_grad():
        sampled, exact = TASK.loss(learnt, drawn).item(), averaged.loss(learnt, batch).item()
    assert sampled == pytest.approx(exact, rel=0.03)  # 4 standard errors of 40,000 draws


def test_the_inputs_are_those_that_the_task_draws():
    drawn = AveragedTask(TASK).sample(3, seed=5, index=6, shard=7)
    assert torch.equal(drawn.x, TASK.sample(3, seed=5, index=6, shard=7).x)
    assert drawn.to("cpu", torch.float32).covariance.dtype is torch.float32


def test_the_logarithm_is_finite_at_a_loss_of_0():
    averaged, learnt = AveragedTask(TASK, logarithmic=True), model("linear")
    batch = averaged.sample(3, seed=0, index=0)
    mean = averaged.mean_loss(learnt, batch).item()
    assert averaged.loss(learnt, batch).exp().item() == pytest.approx(mean + ROUNDING)
    nothing = type(batch)(batch.x, batch.y, 0 * batch.covariance)
    assert averaged.loss(learnt, nothing).exp().item() == pytest.approx(ROUNDING)


def test_the_best_loss_is_that_of_the_conditional_mean():
    averaged = AveragedTask(TASK)
    batch = averaged.sample(4, seed=0, index=0)
    pairs = batch.covariance.inverse()  # the variance left is one over its last diagonal entry
    assert averaged.bayes_loss(batch) == pytest.approx((1 / pairs[:, -1, -1]).mean().item())


def test_four_linear_labels_explain_four_fifths_of_the_fifth_direction():
    linear = AveragedTask(InContextTask(Ellipsoid.sphere(5), LinearFunctions(), 4))
    batch = linear.sample(4000, seed=0, index=0)
    assert linear.bayes_loss(batch) == pytest.approx(1 / 5, abs=0.02)


def test_labels_without_a_known_covariance_are_refused():
    networks = AveragedTask(InContextTask(COVARIATES, ReluNetworks(3), 4))
    expected = "labels must be a law of known covariance, got 'ReluNetworks'."
    with pytest.raises(SettingError, match=re.escape(expected)):
        networks.sample(2, seed=0, index=0)


def test_other_models_and_batches_are_refused():
    averaged = AveragedTask(TASK)
    batch = averaged.sample(2, seed=0, index=0)
    expected = "model must be of type KernelTransformer, got 'Linear'."
    with pytest.raises(SettingError, match=re.escape(expected)):
        averaged.loss(nn.Linear(2, 2), batch)
    expected = "batch must be of type AveragedBatch, got 'Batch'."
    with pytest.raises(SettingError, match=re.escape(expected)):
        averaged.loss(model("exp"), TASK.sample(2, seed=0, index=0))


def test_a_checkpoint_tells_it_from_the_task_itself():
    assert AveragedTask(TASK).description() == {
        **TASK.description(),
        "averages_labels": True,
        "logarithmic": False,
    }


def test_the_loss_keeps_its_precision_under_autocast():
    averaged, learnt = AveragedTask(TASK), model("exp").float()
    batch = averaged.sample(8, seed=0, index=0).to("cpu", torch.float32)
    plain = averaged.loss(learnt, batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(averaged.loss(learnt, batch), plain)
