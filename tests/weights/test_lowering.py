"""A program becomes a transformer of its layers, which apply its activation."""

import pytest
import torch

from icgd.layers import ActivationAttention, MLPLayer, ProductLayer
from icgd.problems.functions import UNIT_ACTIVATIONS
from icgd.weights.lowering import lower_program
from tests import cases
from tests.cases import build
from tests.contracts.backend import RELU_STACK
from tests.weights.test_lowering_units import program_of


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_program_becomes_a_transformer_of_its_layers(dtype):
    program = build(RELU_STACK, cases.FEW[2], n_steps=2)
    transformer = lower_program(program, dtype)
    kinds = {"attention": ActivationAttention, "mlp": MLPLayer, "product": ProductLayer}
    expected = [kinds[layer.kind.value] for layer in program.unrolled()]
    assert [type(layer) for layer in transformer.unrolled()] == expected
    assert len(transformer.block) == len(program.block)
    assert {weight.dtype for weight in transformer.parameters()} == {dtype}


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
def test_attention_and_mlp_apply_the_activation_of_the_program(activation):
    z = torch.linspace(-3, 3, 7, dtype=torch.float64)
    for layer in lower_program(program_of(activation)).unrolled():
        assert torch.equal(layer.activation(z), UNIT_ACTIVATIONS[activation](z))
