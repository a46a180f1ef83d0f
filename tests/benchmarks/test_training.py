"""The baseline of training steps computes what the learnt transformer does."""

import pytest
import torch

from benchmarks.__main__ import _is_over_its_limit
from benchmarks.training import ATTENTIONS, einsum_forward
from icgd_papers.training.models import KernelTransformer


@pytest.mark.parametrize("transforms_covariates", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_baseline_agrees_with_the_model_in_value_and_gradients(
    attention, transforms_covariates
):
    model = KernelTransformer(
        3, 3, (attention,), transforms_covariates=transforms_covariates, seed=1, value_scale=0.3
    ).to(torch.float32)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 6, 3, generator=generator), torch.randn(4, 6, generator=generator)
    x = x / x.norm(dim=-1, keepdim=True)
    found = []
    for predict in (model, lambda x, y: einsum_forward(model, x, y)):
        prediction = predict(x, y)
        weights = list(model.parameters())
        slopes = torch.autograd.grad(prediction.square().sum(), weights)
        found.append([prediction, *slopes])
    for mine, theirs in zip(*found, strict=True):
        assert (mine - theirs).abs().max() <= 1e-4 * theirs.abs().max().clamp(min=1)


def test_a_row_is_over_its_limit():
    within = {"ratio": 0.1, "limit": 0.2}
    assert not _is_over_its_limit(within)
    assert _is_over_its_limit(within | {"ratio": 0.3})
