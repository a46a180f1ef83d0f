"""Counts against the weights that are really built, and against counting by hand."""

import pytest
import torch

from icgd.program.instructions import (
    AddGradient,
    AddProduct,
    Argument,
    Combination,
    LayerKind,
    LookUp,
    Project,
)
from icgd.program.program import Layer
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import LayerSize, layer_size
from tests import cases
from tests.cases import build, every_construction_on
from tests.contracts.backend import RELU_STACK
from tests.weights import with_registers


@every_construction_on(cases.SMALL)
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


SLOT = Argument(Combination.of("left"))
BOTH = Combination(("left", "right"), (1.5, -0.5))
FORWARD = Argument(Combination.of("x"), "matrix")
BACKWARD = Argument(BOTH, "matrix", transposed=True)
THREE = ("tanh", "tanh'", "normal_distribution")

# Heads, their width, and the non-zeros of query and key, value, output in one of them.
WITH_REGISTERS = {
    # One feature of the argument, the offset, the memory.
    "look up a slot": (LookUp(SLOT, THREE[:1], ("write",)), 2, 3, (3 + 5) + 1 + 1),
    # Two slots form the one feature.
    "look up a combination": (LookUp(Argument(BOTH), THREE[:1], ("write",)), 2, 3, (4 + 5) + 2),
    # Five features; a value for each function.
    "look up a unit": (
        LookUp(FORWARD, THREE, ("write", "other", "left")),
        2,
        7,
        (5 + 2) + (5 + 4) + 3 + 3,
    ),
    "project a slot": (Project(SLOT, 1.0, "write"), 2, 3, (3 + 5) + 2),
    # Two features, each of two slots, for each of five columns.
    "project by the transpose": (Project(BACKWARD, 9.0, "wide"), 5, 4, (4 + 2) + (2 + 4) + 2),
    # Two heads a coordinate, and a feature for the factor.
    "multiply slots": (AddProduct(SLOT, 1.0, "right", 1.0, "write"), 4, 4, (4 + 6) + 2),
    "multiply by a slope": (
        AddProduct(BACKWARD, 9.0, "x", 1.0, "wide"),
        10,
        5,
        (4 + 2 + 1) + (2 + 4 + 1) + 2,
    ),
    # Six heads a row; four features, or as many as there are columns.
    "a narrow gradient": (
        AddGradient(Combination.of("left"), "between", 1.0, 0.1, "column"),
        12,
        4,
        (6 + 6) + 1 + 1,
    ),
    "a wide gradient": (AddGradient(BOTH, "x", 1.0, 0.1, "matrix"), 12, 5, (6 + 7) + 5 + 5),
}


@pytest.mark.parametrize(
    ("instruction", "n_heads", "width", "nonzeros"), WITH_REGISTERS.values(), ids=WITH_REGISTERS
)
def test_heads_over_registers_by_hand_and_as_they_are_built(instruction, n_heads, width, nonzeros):
    program = with_registers.program()
    here = Layer("here", (instruction,))
    size = layer_size(here, program)
    assert (size.units, size.width, size.nonzeros) == (n_heads, width, n_heads * nonzeros)
    layer = lower_layer(here, program, torch.float64)
    shape = (n_heads, program.layout.width, width)
    assert {weight.shape for weight in (layer.W_Q, layer.W_K, layer.W_V)} == {shape}
    counts = [weight.count_nonzero((1, 2)).tolist() for weight in layer.parameters()]
    assert [sum(parts) for parts in zip(*counts, strict=True)] == [nonzeros] * n_heads


@pytest.mark.parametrize(
    ("kind", "parameters", "flops"),
    [
        # 4 matrices of 10 x 2 for each of 3 heads; scores and values of 5 x 5 tokens.
        (LayerKind.ATTENTION, 240, 2 * 5 * 240 + 4 * 3 * 25 * 2),
        (LayerKind.SOFTMAX, 240, 2 * 5 * 240 + 4 * 3 * 25 * 2),
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
