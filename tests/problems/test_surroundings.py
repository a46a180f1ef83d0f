from contextlib import nullcontext

import pytest
import torch

from icgd.problems.surroundings import NOTHING, usual_place, usual_surroundings


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_new_tensors_are_on_the_processor_whatever_the_default_is(device):
    with torch.device(device), usual_surroundings():
        assert torch.zeros(2).tolist() == [0.0, 0.0]


def test_tensors_that_are_made_in_inference_mode_may_be_used_in_gradients_later():
    with torch.inference_mode():
        with usual_surroundings():
            made = torch.ones(1)
        assert torch.is_inference_mode_enabled()
    weight = torch.ones(1, requires_grad=True)
    (weight * made).backward()
    assert weight.grad.item() == 1.0


@pytest.mark.parametrize("around", [nullcontext, torch.no_grad])
def test_nothing_is_done_where_nothing_is_needed(around):
    with around():
        before = torch.is_grad_enabled()
        with usual_surroundings() as surroundings:
            assert torch.is_grad_enabled() is before
        assert usual_surroundings() is NOTHING
        assert surroundings is None


@pytest.mark.parametrize("kind", ["cpu", "xpu"])
def test_nothing_is_cast_inside_and_the_caller_s_autocast_is_back_afterwards(kind):
    with torch.autocast(kind, dtype=torch.bfloat16):
        with usual_surroundings():
            assert not torch.is_autocast_enabled(kind)
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        assert torch.is_autocast_enabled(kind)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_are_exact_inside_and_the_caller_s_are_back_afterwards(precision):
    torch.set_float32_matmul_precision(precision)
    try:
        with usual_surroundings():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_a_program_trains_in_is_left_to_it():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert usual_place() is NOTHING
        with torch.device("meta"), torch.inference_mode(), usual_surroundings():
            assert torch.zeros(2).tolist() == [0.0, 0.0]
            assert not torch.is_inference_mode_enabled()
