"""Counts against the weights that are really built, and against counting by hand."""

import pytest
import torch

from icgd.errors import ProgramError
from icgd.program.instructions import LayerKind
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import LayerSize, instruction_size, layer_size
from tests import cases
from tests.cases import Juggle, build, every_construction, over
from tests.contracts.backend import RELU_STACK


@every_construction
@over(cases.SMALL)
def test_counts_are_those_of_the_built_layers(construction, case):
    program = build(construction, case, pieces=32)
    for layer in (*program.block, *program.prediction):
        size = layer_size(layer, program)
        weights = dict(lower_layer(layer, program, torch.float64).named_parameters())
        assert size.parameters == sum(w.numel() for w in weights.values()), layer.title
        assert size.nonzeros == sum(int(w.count_nonzero()) for w in weights.values()), layer.title
        if size.kind is LayerKind.MLP:
            assert weights["W_in"].shape == (size.d_model, size.units)
            assert size.n_heads == 0
        else:
            assert weights["W_Q"].shape == (size.n_heads, size.d_model, size.width)


def test_sizes_of_a_small_layer_by_hand():
    """3 inputs, 2 units: relu is one term without shift, so 2 heads of width 4 (3 and the 1).

    A head has 3 non-zero queries, 4 keys, 1 value and 1 output.
    """
    case = cases.FEW[0]
    program = build(RELU_STACK, case)
    size = layer_size(program.block[0], program)
    assert case.problem.target.widths == (3, 2)
    assert (size.title, size.kind, size.d_model) == ("forward 1", LayerKind.ATTENTION, 23)
    assert (size.units, size.n_heads, size.width, size.nonzeros) == (2, 2, 4, 2 * 9)
    assert size.parameters == 4 * 2 * 23 * 4


@pytest.mark.parametrize(
    ("kind", "parameters", "flops"),
    [
        # 4 matrices of 10 x 2 for each of 3 heads; scores and values of 5 x 5 tokens.
        (LayerKind.ATTENTION, 240, 2 * 5 * 240 + 4 * 3 * 25 * 2),
        # The same, but each token with itself: product, sum and scaling.
        (LayerKind.PRODUCT, 240, 2 * 5 * 240 + 3 * 3 * 5 * 2),
        # 3 units with 10 weights in, 10 out and a bias.
        (LayerKind.MLP, 63, 2 * 5 * 63),
    ],
)
def test_parameters_and_flops_of_a_layer(kind, parameters, flops):
    size = LayerSize("here", kind, d_model=10, units=3, width=2, nonzeros=0)
    assert size.parameters == parameters
    assert size.flops(n_tokens=5) == flops


def test_an_instruction_without_a_rule_is_named():
    program = build(RELU_STACK, cases.FEW[0])
    with pytest.raises(ProgramError, match=r"^Juggle: has no size rule in weights/sizes\.py$"):
        instruction_size(Juggle(), program)
