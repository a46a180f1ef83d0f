import pytest

from icgd.problems.domain import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers.momentum_step import MomentumStep
from icgd.problems.problem import Problem
from icgd.weights.chain_lowering import lower_chain
from icgd.weights.chain_sizes import chain_layer_size
from icgd.weights.summary import summarise
from tests.backends.chain_cases import problem_of, program_of

PROGRAMS = [
    program_of(problem_of(MLP((3, 4, 2), "relu"), batch_size=3)),
    program_of(problem_of(MLP((2, 2), "leaky_relu", "leaky_relu"))),
    program_of(problem_of(MLP((3, 5, 4), "relu"), batch_size=2, loss="cross_entropy")),
    program_of(
        Problem(MLP((3, 2)), "squared", MomentumStep((0.3, 0.0), 1.0, 2), Domain(1.0, 1.0)), 2
    ),
    program_of(problem_of(MLP((2, 3, 1), "softplus"), batch_size=2, loss="logistic", box=1.0)),
]


@pytest.mark.parametrize(
    "program", PROGRAMS, ids=["batches", "leaky", "classes", "schedule", "smooth"]
)
def test_sizes_are_those_of_the_weights(program):
    for layer, module in zip(program.layers, lower_chain(program), strict=True):
        size, weights = chain_layer_size(layer, program), list(module.parameters())
        assert size.parameters == sum(weight.numel() for weight in weights)
        assert size.nonzeros == sum(int((weight != 0).sum()) for weight in weights)


def test_a_summary_counts_blocks_of_three_layers():
    """Depth 2, 4 rounds: 16 blocks of training and 2 of prediction."""
    summary = summarise(PROGRAMS[0], n_tokens=7)
    assert (summary.layers_per_step, summary.n_layers) == (12, 54)
    assert summary.n_registers == 31
    assert summary.direct_flops == 4 * 2 * 3 * (3 * 20 - 12)
    assert summary.flops == 18 * sum(layer.flops(1) for layer in summary.layers)


def test_the_weights_do_not_grow_with_the_depth_of_the_network():
    sizes = {
        summarise(program_of(problem_of(MLP((4,) * (depth + 1), "relu"))), 1).parameters
        for depth in (1, 2, 20)
    }
    assert len(sizes) == 1
