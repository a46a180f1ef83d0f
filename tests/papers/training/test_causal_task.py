"""The loss at every token, and prompts that grow with the number of the batch alone."""

import re

import pytest
import torch
from torch import nn

from icgd.errors import DataError, SettingError
from icgd_papers.training.covariates import ShiftedMixture
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.labels import Teachers
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import VALIDATION_INDEX, CausalTask, Curriculum, InContextTask
from tests.papers.training.toy import ToyTask

PROMPTS = InContextTask(ShiftedMixture.of_width(3), Teachers(2, 4), n_examples=7)
GROWING = CausalTask(PROMPTS, Curriculum(first_width=1, first_examples=3, n_batches=4))


class Shifted(nn.Module):
    """Predicts the label itself plus 1, 2, 3, ..., so that the loss is known."""

    def predictions(self, x, y):
        return y + torch.arange(1.0, y.shape[1] + 1)


def test_the_loss_is_the_mean_over_all_tokens():
    task = CausalTask(PROMPTS)
    batch = task.sample(5, seed=0, index=0)
    assert task.loss(Shifted(), batch).item() == pytest.approx(sum(i**2 for i in range(1, 9)) / 8)


def test_batches_are_those_of_the_task_unless_prompts_grow():
    plain, ours = PROMPTS.sample(4, seed=1, index=2), CausalTask(PROMPTS).sample(4, seed=1, index=2)
    assert torch.equal(plain.x, ours.x)
    assert torch.equal(plain.y, ours.y)
    full = GROWING.sample(4, seed=1, index=4)
    expected = PROMPTS.sample(4, seed=1, index=4)
    assert torch.equal(full.x, expected.x)
    assert torch.equal(full.y, expected.y)
    held_out = CausalTask(ToyTask()).validation(3, seed=0)
    assert torch.equal(held_out.x, ToyTask().sample(3, seed=0, index=VALIDATION_INDEX).x)


@pytest.mark.parametrize(
    ("index", "width", "n_examples"),
    [(0, 1, 3), (1, 1, 4), (2, 2, 5), (3, 2, 6), (4, 3, 7), (9, 3, 7)],
)
def test_width_and_length_grow_with_the_number_of_the_batch(index, width, n_examples):
    batch = GROWING.sample(4, seed=1, index=index)
    assert batch.x.shape == (4, n_examples + 1, 3)
    assert (batch.x[..., width:] == 0).all()
    assert (batch.x[..., :width] != 0).all()
    again = GROWING.sample(4, seed=1, index=index)
    assert torch.equal(batch.x, again.x)
    assert torch.equal(batch.y, again.y)


def test_labels_are_those_of_the_narrow_inputs():
    """A linear teacher of the first input alone: all labels of a task are multiples of it."""
    linear = InContextTask(ShiftedMixture.of_width(3), Teachers(1, 1), n_examples=7)
    batch = CausalTask(linear, Curriculum(1, 3, 4)).sample(4, seed=1, index=0)
    slopes = batch.y / batch.x[..., 0]
    torch.testing.assert_close(slopes, slopes[:, :1].expand_as(slopes))


def test_validation_has_full_prompts():
    assert GROWING.validation(5, seed=0).x.shape == (5, 8, 3)


def test_a_task_describes_what_it_predicts_and_how_it_grows():
    assert CausalTask(PROMPTS).description() == {**PROMPTS.description(), "predicts": "every token"}
    growth = {"first_width": 1, "first_examples": 3, "n_batches": 4}
    assert GROWING.description() == {**CausalTask(PROMPTS).description(), **growth}


def test_what_cannot_grow_or_predict_is_refused():
    with pytest.raises(SettingError, match="first_width must be at most 3, got 4"):
        CausalTask(PROMPTS, Curriculum(4, 3, 2))
    with pytest.raises(SettingError, match="first_examples must be at most 7, got 8"):
        CausalTask(PROMPTS, Curriculum(1, 8, 2))
    with pytest.raises(SettingError, match="n_batches must be a whole number of at least 1, got 0"):
        Curriculum(1, 1, 0)
    with pytest.raises(SettingError, match=r"needs an InContextTask, .* got ToyTask"):
        CausalTask(ToyTask(), Curriculum(1, 1, 2))
    batch, kernels = PROMPTS.sample(2, seed=0, index=0), ("linear",)
    model = KernelTransformer(3, 1, kernels, transforms_covariates=False, seed=0)
    expected = (
        "model must be a model that predicts every token (a Decoder), got 'KernelTransformer'"
    )
    with pytest.raises(SettingError, match=re.escape(expected)):
        CausalTask(PROMPTS).loss(model, batch)


def test_predictions_of_another_shape_are_refused():
    model = Shifted()
    model.predictions = lambda x, y: y[:, :-1]
    with pytest.raises(DataError, match=r"predictions have shape \(2, 7\); expected \(2, 8\), the"):
        CausalTask(PROMPTS).loss(model, PROMPTS.sample(2, seed=0, index=0))


def test_a_decoder_learns_from_it():
    model = Decoder(input_width=3, n_blocks=1, width=8, n_heads=2, seed=0)
    loss = CausalTask(PROMPTS).loss(model, PROMPTS.sample(4, seed=0, index=0))
    loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
