import pytest
import torch

from icgd.weights.grid_sizes import grid_layer_size
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size
from icgd.weights.summary import summarise
from tests.linear_cases import PLAIN, PROBLEMS, compiled_of


@pytest.mark.parametrize("problem", [*PROBLEMS.values(), PLAIN["logistic"]])
def test_sizes_are_those_of_the_weights(problem):
    program = compiled_of(problem).program
    for layer in (program.block[0], program.prediction[0]):
        module = lower_layer(layer, program, torch.float64)
        size, weights = grid_layer_size(layer, program), list(module.parameters())
        assert size.parameters == sum(weight.numel() for weight in weights)
        assert size.nonzeros == sum(int(weight.count_nonzero()) for weight in weights)
        assert (size.units, size.n_grid, 1) == tuple(module.A_K.shape)


@pytest.mark.parametrize("problem", [*PROBLEMS.values(), PLAIN["logistic"]])
def test_sizes_of_the_sum_are_those_of_the_weights(problem):
    program = compiled_of(problem).program
    module = lower_layer(program.block[1], program, torch.float64)
    size, weights = layer_size(program.block[1], program), list(module.parameters())
    assert size.parameters == sum(weight.numel() for weight in weights)
    assert size.nonzeros == sum(int(weight.count_nonzero()) for weight in weights)


def test_a_summary_counts_three_layers_a_step_and_two_to_predict():
    summary = summarise(compiled_of(PROBLEMS["logistic"]).program, n_tokens=7)
    assert (summary.layers_per_step, summary.n_layers) == (3, 4 * 3 + 2)
    assert (summary.max_heads, summary.n_registers) == (2, 2)
    assert summary.direct_flops == 4 * 2 * 7 * 2 * 4


def test_flops_of_the_step_by_hand():
    """Projections of 7 tokens and the first column, two maps, scores and means over 2 tokens."""
    program = compiled_of(PROBLEMS["logistic"]).program
    size = grid_layer_size(program.block[0], program)
    heads, width, model = 2, 5, program.layout.width
    projections = 2 * 2 * heads * model * width * (7 + 1)
    assert size.flops(7) == projections + 2 * 2 * heads * 2 * width + 4 * heads * 7 * 2 * width
