"""The passes that Section 4 is compared with are those of automatic differentiation."""

import pytest
import torch

from icgd_papers.theorems.cot import network
from icgd_papers.theorems.cot.network import BACKWARD, FORWARD, FROM_X, FROM_Y, Block, draw_round


def test_the_steps_are_those_along_the_gradient():
    for seed in range(5):
        round_ = draw_round(seed)
        parts = zip(round_.weights, round_.gradients, round_.stepped(0.1), strict=True)
        for before, gradient, after in parts:
            torch.testing.assert_close(after, before - 0.1 * gradient, rtol=0, atol=1e-13)
            assert gradient.abs().max() > 1e-3


def test_no_drawn_unit_is_near_its_kink_and_both_kinds_occur():
    round_ = draw_round(1)
    assert min(z.abs().min() for z in round_.preactivations) > network.MARGIN
    assert all(0 < slope.sum() < network.WIDTH for slope in round_.slopes)


@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_a_round_has_every_type_of_step_and_each_is_near_the_exact_block(backend):
    block = Block(draw_round(2), backend)
    kinds = [kind for kind, *_ in block.steps()]
    assert kinds == [FROM_X, FORWARD, FORWARD, FROM_Y, BACKWARD, BACKWARD]
    assert max(block.errors().values()) < 1e-11


def test_another_step_size_is_noticed_in_the_backward_blocks_alone(monkeypatch):
    block = Block(draw_round(2), "fused")
    monkeypatch.setattr(network, "STEP_SIZE", 0.04)
    errors = block.errors()
    assert errors[BACKWARD] > 1e-3
    assert errors[FROM_Y] > 1e-3
    assert max(errors[FORWARD], errors[FROM_X]) < 1e-11


def test_the_slope_in_the_middle_of_the_ramp_is_one_half():
    assert network.slope_on_kink() == pytest.approx(0.5, abs=1e-4)
