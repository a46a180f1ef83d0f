"""Heads over grids, beside what they are to return."""

import torch

from icgd_papers.theorems.cot import heads
from icgd_papers.theorems.cot.descent import drawn


def test_a_head_returns_the_nearest_grid_point_and_clips():
    s = torch.tensor([-5.0, 0.1, 0.9, 1.6, 9.0], dtype=torch.float64)
    found = heads.nearest_point_head(s, (0.0, 2.0), 3, torch.zeros(3, dtype=torch.long))
    expected = torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(found[:, 0], expected, rtol=0, atol=1e-3)


def test_a_softmax_step_follows_the_gradient_of_the_huber_loss():
    data = drawn(3, 4, 5).clamp(-1, 1)
    x, y, w = data[:, :3], data[:, 3], data[:3, 4].clone().requires_grad_()
    loss = torch.nn.functional.huber_loss(x @ w, y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, w)
    w = w.detach()
    gap = (heads.softmax_step(x, y, w, 2049, 0.1) - (w - 0.1 * gradient)).abs().max()
    assert gap < 1e-3
    assert (0.1 * gradient).abs().max() > 1e-2


def test_outer_products_by_heads_are_outer_products():
    delta, outputs = drawn(1, 2, 4).clamp(-2, 2)
    made = heads.outer_by_heads(delta, outputs)
    torch.testing.assert_close(made, torch.outer(delta, outputs), rtol=0, atol=1e-13)
