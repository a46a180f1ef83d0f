"""The paper's transformer, written out, against numbers worked out by hand and the learnt model."""

import pytest
import torch

from icgd_papers.theorems.cheng.written_out import (
    ACTIVATIONS,
    descent_layers,
    hidden,
    linear,
    softmax,
    sphere_points,
    stream,
    wave,
)
from icgd_papers.training.models import KernelTransformer


def test_softmax_is_normalised_over_the_examples_alone():
    ones = torch.ones(5, 3, dtype=torch.float64)
    assert softmax(ones, ones).tolist() == [[0.5] * 3, [0.5] * 3, [0.0] * 3]


def test_one_layer_by_hand():
    x = torch.zeros(3, 5, dtype=torch.float64)
    x[:, 0] = torch.tensor([1.0, 2.0, 3.0])
    y = torch.tensor([1.0, -1.0, 7.0], dtype=torch.float64)
    rows = descent_layers(stream(x, hidden(y)), linear, 0.1, 1)
    assert rows.tolist() == [[1.0, -1.0, 0.0], pytest.approx([1.1, -0.8, 0.3])]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_it_predicts_as_the_model_that_is_trained(name):
    x = sphere_points(9, seed=3)
    rows = descent_layers(stream(x, hidden(wave(x))), ACTIVATIONS[name], 0.1, 4)
    model = KernelTransformer(5, 4, (name,), transforms_covariates=False, seed=0)
    with torch.no_grad():
        model.r.fill_(-0.1)
        for matrix in (model.B, model.C):
            matrix.copy_(torch.eye(5).expand_as(matrix))
        predicted = model(x[None], wave(x)[None])
    assert predicted.item() == pytest.approx(-rows[-1, -1].item(), abs=1e-12)
