"""The constructed transformer against plain gradient descent."""

import numpy as np
import pytest
import torch

from icgd_papers.figures.wu_constructed import Constructed
from icgd_papers.figures.wu_direct import outputs_of

STEP, DEPTH, WIDTH, BOX = 0.05, 3, 6, 4.0


def prompts(n_tasks=4, n_tokens=8, width=3):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(n_tasks, n_tokens, width, generator=source, dtype=torch.float64) - 2
    return x, 30 * torch.randn(n_tasks, n_tokens, generator=source, dtype=torch.float64)


def descended(x, y, n_steps, seed=0):
    """Gradient descent on (1 / 2n) sum of squares by autograd, labels divided by their size."""
    compiled = Constructed(DEPTH, WIDTH, STEP).compiled(x.shape[-1], x.shape[1] - 1, 0)
    target = compiled.problem.network
    first = target.initial_parameters(seed, BOX, (len(x),))
    weights = [m.mT.clone().requires_grad_() for m in target.matrices(first)]
    size = y[:, :-1].square().mean(1).sqrt()
    for _ in range(n_steps):
        off = outputs_of(weights, x[:, :-1]) - y[:, :-1] / size[:, None]
        gradients = torch.autograd.grad((off.square().mean(1) / 2).sum(), weights)
        with torch.no_grad():
            for matrix, gradient in zip(weights, gradients, strict=True):
                matrix.sub_(gradient, alpha=STEP).clamp_(-BOX, BOX)
    return (outputs_of(weights, x[:, -1:])[:, 0] * size).detach()


@pytest.mark.parametrize("n_steps", [0, 1, 40])
def test_the_transformer_predicts_what_descent_does(n_steps):
    x, y = prompts()
    wanted = descended(x, y, n_steps)
    y[:, -1] = 1e9  # the query's label is not read
    found = Constructed(DEPTH, WIDTH, STEP).predictions(x, y, n_steps)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_longer_transformer_goes_on_where_a_shorter_one_ended():
    x, y = prompts()
    constructed = Constructed(DEPTH, WIDTH, STEP)
    path = constructed.path(x, y, [2, 5, 30])
    for n_steps, found in zip((2, 5, 30), path, strict=True):
        assert found.tolist() == constructed.predictions(x, y, n_steps).tolist()


def test_labels_of_any_size_lie_in_the_domain():
    x, y = prompts()
    y[:, :-1] = 0
    y[:, 2] = 1e6  # all of a prompt's size in one label
    assert Constructed(DEPTH, WIDTH, STEP).predictions(x, y, 1).isfinite().all()


def test_seeds_give_other_first_weights():
    x, y = prompts()
    first, second = (Constructed(DEPTH, WIDTH, STEP, seed).predictions(x, y, 0) for seed in (0, 1))
    assert not torch.equal(first, second)
    np.testing.assert_allclose(second, descended(x, y, 0, seed=1), rtol=1e-12)


@pytest.mark.parametrize(("input_width", "hidden_width"), [(5, 20), (20, 200)])
def test_networks_of_six_layers_can_be_compiled_at_the_sizes_of_the_presets(
    input_width, hidden_width
):
    compiled = Constructed(6, hidden_width, STEP).compiled(input_width, 75, 1000)
    assert compiled.summary().layers_per_step == 2 * 6 + 2
