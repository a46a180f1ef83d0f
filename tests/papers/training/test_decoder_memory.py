"""The memory that is foretold beside the tensors that torch holds."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from icgd_papers.training.decoder import Decoder


def made(attention, tokens, n_positions=None):
    return Decoder(
        input_width=5,
        n_blocks=3,
        width=32,
        n_heads=4,
        attention=attention,
        tokens=tokens,
        n_positions=n_positions,
        output_width=2,
        seed=0,
    ).float()


def kept_numbers(model, x, y):
    """How many numbers a forward pass keeps beside the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.predictions(x, y)
    return sum(kept.values())


@pytest.mark.parametrize(
    ("tokens", "n_tokens", "n_places"),
    [("joint", 21, 21), ("interleaved", 21, 41), ("joint", 70, 70)],
)
@pytest.mark.parametrize("attention", ["softmax", "relu"])
def test_activations_are_foretold_to_an_eighth(attention, tokens, n_tokens, n_places):
    x, y = torch.randn(16, n_tokens, 5), torch.randn(16, n_tokens, 2)
    model = made(attention, tokens)
    foretold = model.n_activations(16, n_places)
    assert foretold == pytest.approx(kept_numbers(model, x, y), rel=1 / 8)


@pytest.mark.parametrize("tokens", ["joint", "interleaved"])
@pytest.mark.parametrize("n_positions", [None, 7])
def test_weights_are_counted(tokens, n_positions):
    model = made("relu", tokens, n_positions)
    assert model.n_weights == sum(each.numel() for each in model.parameters())
