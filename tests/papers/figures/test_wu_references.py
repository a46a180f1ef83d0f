"""Each reference against scikit-learn, against sampled networks, and on cases done by hand."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from icgd_papers.figures.wu_references import (
    arc_cosine,
    arc_cosine_kernel,
    label_mean,
    r_squared,
    r_squared_within,
    relative_error,
    ridge,
)


def prompts(n_tasks=6, n_tokens=9, width=3, seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n_tasks, n_tokens, width, generator=source, dtype=torch.float64) - 2
    y = torch.randn(n_tasks, n_tokens, generator=source, dtype=torch.float64)
    return x, y


def test_the_label_mean_leaves_the_query_out():
    x, y = prompts()
    y[:, -1] = 1e9
    np.testing.assert_allclose(label_mean(x, y), y[:, :-1].numpy().mean(1), rtol=1e-15)


@pytest.mark.parametrize("penalty", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("n_tokens", [3, 9])  # fewer examples than inputs, and more
def test_ridge_is_that_of_scikit_learn(penalty, n_tokens):
    x, y = prompts(n_tokens=n_tokens)
    wanted = [
        Ridge(alpha=penalty).fit(a[:-1], b[:-1]).predict(a[-1:])[0]
        for a, b in zip(x.numpy(), y.numpy(), strict=True)
    ]
    y[:, -1] = 1e9
    np.testing.assert_allclose(ridge(x, y, penalty), wanted, rtol=1e-9)


def test_one_layer_has_the_process_of_linear_functions():
    x, y = prompts(n_tokens=3)  # two examples in three dimensions: the kernel is not singular
    kernel = DotProduct(sigma_0=0, sigma_0_bounds="fixed")
    wanted = [
        GaussianProcessRegressor(kernel, alpha=1e-12, optimizer=None)
        .fit(a[:-1], b[:-1])
        .predict(a[-1:])[0]
        for a, b in zip(x.numpy(), y.numpy(), strict=True)
    ]
    np.testing.assert_allclose(arc_cosine(x, y, 1), wanted, rtol=1e-6)


@pytest.mark.parametrize("n_layers", [2, 3, 4])
def test_the_kernel_is_the_covariance_of_wide_networks(n_layers):
    x, _ = prompts(n_tasks=1, n_tokens=4)
    x[0, :2] += 4  # clusters on both sides, so that the angles differ
    source, width, n_networks = torch.Generator().manual_seed(1), 128, 600
    outputs = x[0].expand(n_networks, -1, -1).float()
    for _ in range(n_layers - 1):
        fan_in = outputs.shape[-1]
        matrix = torch.randn(n_networks, fan_in, width, generator=source)
        outputs = torch.relu(outputs @ matrix * (2 / fan_in) ** 0.5)
    sampled = (outputs @ outputs.mT / width).mean(0).double()  # the last layer is averaged exactly
    wanted = arc_cosine_kernel(x, n_layers)[0]
    assert (sampled - wanted).abs().max() < 0.02 * wanted.max()


def test_examples_that_are_asked_again_are_known():
    x, y = prompts()
    x[:, -1] = x[:, 2]
    np.testing.assert_allclose(arc_cosine(x, y, 3), y[:, 2], rtol=1e-4, atol=1e-6)


def test_r_squared_is_that_of_scikit_learn():
    _, y = prompts(n_tasks=40)
    guess = 0.8 * y[:, -1] + 0.1
    assert r_squared(guess - y[:, -1], y[:, -1]) == pytest.approx(r2_score(y[:, -1], guess))
    assert r_squared(0 * guess, y[:, -1]) == 1.0


def test_the_relative_error_does_not_depend_on_the_size_of_a_prompt():
    y = torch.tensor([[3.0, 3.0, 2.0], [300.0, -300.0, 150.0]]).double()
    found = relative_error(torch.tensor([3.5, 0.0]).double(), y)
    assert found == pytest.approx((0.25 + 0.25) / 2)


def test_within_a_prompt_the_level_of_the_prompt_explains_nothing():
    _, y = prompts(n_tasks=500)
    y = y + 100 * torch.arange(500.0)[:, None]  # prompts differ in their mean alone
    errors = label_mean(y[..., None], y) - y[:, -1]
    assert r_squared(errors, y[:, -1]) > 0.999
    assert r_squared_within(errors, y) < 0
