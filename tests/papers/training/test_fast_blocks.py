"""Gradients by hand beside those of autograd; the values are tested in test_decoder.py."""

import pytest
import torch
from torch.testing import assert_close

from icgd_papers.training.decoder import Decoder
from icgd_papers.training.fast_blocks import keeping_scores, shares_of_places

KINDS = [(a, t) for a in ("softmax", "relu") for t in ("joint", "interleaved")]


def made(attention, tokens):
    model = Decoder(
        input_width=3,
        n_blocks=3,
        width=8,
        n_heads=2,
        attention=attention,
        tokens=tokens,
        n_positions=80,
        seed=4,
    )
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += 0.3 * noise
    return model


def prompts(n_tokens=7):
    generator = torch.Generator().manual_seed(2)
    settings = {"generator": generator, "dtype": torch.float64, "requires_grad": True}
    return torch.randn(4, n_tokens, 3, **settings), torch.randn(4, n_tokens, **settings)


def gradients(prediction, *of):
    """Of a function that weighs all predictions differently."""
    weights = torch.linspace(0.5, 2, prediction.numel(), dtype=torch.float64)
    return torch.autograd.grad((prediction.flatten().sin() * weights).sum(), of, allow_unused=True)


@pytest.mark.parametrize(("is_query", "n_tokens"), [(False, 7), (True, 7), (False, 40)])
@pytest.mark.parametrize(("attention", "tokens"), KINDS)
def test_gradients_are_those_of_autograd(attention, tokens, is_query, n_tokens):
    model, (x, y) = made(attention, tokens), prompts(n_tokens)
    of = *model.parameters(), x, y
    fast = model(x, y) if is_query else model.predictions(x, y)
    plain = model._read(model.streams(x, y)[-1])[..., 0]
    plain = plain[:, -1] if is_query else plain
    assert_close(fast, plain, rtol=0, atol=1e-12)
    for ours, theirs in zip(gradients(fast, *of), gradients(plain, *of), strict=True):
        assert theirs.abs().max() > 1e-6
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n_places", "name"), [(64, "short softmax"), (65, "softmax")])
def test_softmax_over_few_places_is_by_whole_matrices(n_places, name):
    assert keeping_scores("softmax", n_places) == name
    assert keeping_scores("relu", n_places) == "relu"


def test_nothing_is_kept_of_a_prediction_without_gradients():
    model, (x, y) = made("relu", "joint"), prompts()
    with torch.no_grad():
        assert model.predictions(x, y).grad_fn is None


def test_a_place_reads_itself_and_those_before_it_in_equal_shares():
    like = torch.zeros(1, dtype=torch.float64)
    expected = [[0.5, 0, 0], [0.25, 0.25, 0], [1 / 6, 1 / 6, 1 / 6]]
    assert_close(shares_of_places(3, 4, like), torch.tensor(expected, dtype=torch.float64))
