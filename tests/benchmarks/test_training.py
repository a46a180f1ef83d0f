"""The two baselines of training steps compute what the learnt transformer does."""

import pytest
import torch

from benchmarks.__main__ import _is_over_its_limit
from benchmarks.training import ATTENTIONS, bmm_forward, einsum_forward
from icgd_papers.training.models import KernelTransformer


@pytest.mark.parametrize("transforms_covariates", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_baselines_agree_with_the_model_in_value_and_gradients(
    attention, transforms_covariates
):
    model = KernelTransformer(
        3, 3, (attention,), transforms_covariates=transforms_covariates, seed=1, value_scale=0.3
    ).to(torch.float32)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 6, 3, generator=generator), torch.randn(4, 6, generator=generator)
    x = x / x.norm(dim=-1, keepdim=True)
    found = []
    for predict in (
        model,
        lambda x, y: einsum_forward(model, x, y),
        lambda x, y: bmm_forward(model, x, y),
    ):
        prediction = predict(x, y)
        weights = list(model.parameters())
        slopes = torch.autograd.grad(prediction.square().sum(), weights)
        found.append([prediction, *slopes])
    ours, einsum, bmm = found
    for mine, theirs in [*zip(ours, einsum, strict=True), *zip(bmm, einsum, strict=True)]:
        assert (mine - theirs).abs().max() <= 1e-4 * theirs.abs().max().clamp(min=1)


def test_a_row_is_over_its_limit_in_either_ratio():
    within = {"ratio": 0.1, "limit": 0.2, "ratio to bmm": 0.9, "limit to bmm": 1.0}
    assert not _is_over_its_limit(within)
    assert _is_over_its_limit(within | {"ratio": 0.3})
    assert _is_over_its_limit(within | {"ratio to bmm": 1.1})
