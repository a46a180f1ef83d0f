import time

import pytest
import torch

from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AbstractGradientStep, AdamStep, GradientStep
from icgd.problems.problem import Problem
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_program
from icgd.weights.sizes import dense_bytes, summarise
from tests import cases
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import build, every_construction_on, make_case
from tests.contracts.backend import RELU_STACK, SOFTMAX_STACK


@every_construction_on(cases.SMALL)
def test_totals_are_those_of_the_built_transformer(construction, case):
    program = build(construction, case, n_steps=2, pieces=16)
    summary = summarise(program, n_tokens=7)
    transformer = lower_program(program)
    weights = dict(transformer.named_parameters())
    assert summary.parameters == sum(weight.numel() for weight in weights.values())
    assert summary.nonzeros == sum(int(weight.count_nonzero()) for weight in weights.values())
    queries = [weight for name, weight in weights.items() if name.endswith("W_Q")]
    assert summary.n_heads == sum(len(query) for query in queries)
    assert summary.max_heads == max(len(query) for query in queries)
    assert summary.d_head == max(query.shape[-1] for query in queries)
    biases = [weight for name, weight in weights.items() if name.endswith("b_in")]
    assert summary.d_mlp == max(len(bias) for bias in biases)
    assert summary.n_layers == len(list(transformer.unrolled()))
    assert summary.layers_per_step == len(transformer.block)
    assert dense_bytes(summary, 4) == 4 * summary.parameters


def test_flops_count_the_block_once_a_step_and_the_prediction_once():
    case = cases.FEW[0]
    summaries = {n: summarise(build(RELU_STACK, case, n_steps=n), n_tokens=7) for n in (0, 5)}
    layers = [layer.flops(7) for layer in summaries[5].layers]
    block, prediction = sum(layers[:5]), sum(layers[5:])  # all relu: 5 layers a step, 2 to predict
    assert len(layers) == 7
    assert summaries[0].flops == prediction
    assert summaries[5].flops == 5 * block + prediction


def test_registers_are_tokens_of_the_forward_pass_but_not_of_direct_training():
    case = make_case(MLP((3, 2), "identity"), "squared")
    summary = summarise(build(SOFTMAX_STACK, case, n_steps=1), n_tokens=7)
    assert summary.n_registers == 32
    assert summary.n_tokens == 7
    assert summary.flops == sum(layer.flops(32 + 7) for layer in summary.layers)
    assert summary.direct_flops == 7 * 2 * 2 * 6


def test_direct_training_costs_three_products_a_weight_and_one_fewer_for_the_first_layer():
    case = make_case(MLP((3, 4, 2), "tanh"), "squared")
    summary = summarise(build(RELU_STACK, case, n_steps=5), n_tokens=7)
    assert summary.direct_flops == 5 * 7 * 2 * (2 * 12 + 3 * 8)


def test_a_target_of_a_billion_parameters_is_counted_at_once_and_exactly():
    k, pieces = 22_000, 128
    target = MLP((k, k, k, 10), "tanh")
    started = time.perf_counter()
    summary = summarise(build(RELU_STACK, make_case(target, "squared"), 10, pieces), n_tokens=100)
    assert time.perf_counter() - started < 2.0
    assert target.n_parameters == 2 * k * k + 10 * k > 9.6e8
    d_model = k + 10 + target.n_parameters + 3 * (2 * k + 10) + 10 + 4
    assert summary.d_model == d_model
    # tanh has a kink at each of 127 knots, its anchor counts twice, and its value there.
    n_terms = len(
        build(RELU_STACK, make_case(target, "squared"), 10, pieces).relu_sum("tanh").terms()
    )
    assert n_terms in {pieces, pieces + 1}
    forward = summary.layers[0]
    assert (forward.n_heads, forward.width) == (k * n_terms, k + 1)
    assert forward.parameters == 4 * k * n_terms * d_model * (k + 1)
    step = next(layer for layer in summary.layers if layer.title == "gradient step")
    assert step.n_heads == 2 * (k + k + 10)
    assert step.parameters == 4 * step.n_heads * d_model * k
    counts = (summary.parameters, summary.nonzeros, summary.flops, summary.n_heads)
    assert all(type(count) is int for count in counts)
    assert summary.parameters > 2**64


def test_float32_weights_take_half_the_memory():
    summary = summarise(build(RELU_STACK, cases.FEW[0]), n_tokens=1)
    assert dense_bytes(summary, torch.float64.itemsize) == 2 * dense_bytes(
        summary, torch.float32.itemsize
    )


def scheduled(update: AbstractGradientStep, n_steps: int = 3) -> StackProgram:
    problem = Problem(MLP((2, 3, 1), "relu"), "squared", update, Domain(1.0, 1.0))
    return RELU_STACK.build(problem, n_steps)


@pytest.mark.parametrize("update", [GradientStep((0.1, 0.2, 0.3), 2.0), AdamStep(0.1, 2.0)])
def test_steps_that_differ_have_weights_of_their_own(update):
    program = scheduled(update)
    summary, transformer = summarise(program, n_tokens=7), lower_program(program)
    weights = dict(transformer.named_parameters())
    assert summary.parameters == sum(weight.numel() for weight in weights.values())
    assert summary.nonzeros == sum(int(weight.count_nonzero()) for weight in weights.values())
    one = summarise(scheduled(GradientStep((0.1,), 2.0), n_steps=1), n_tokens=7)
    assert summary.parameters > one.parameters
    used = {weight for layer in transformer.unrolled() for weight in layer.parameters()}
    assert used == set(transformer.parameters()), "nothing is stored that does not run"


def test_training_directly_costs_the_same_whatever_an_optimiser_remembers():
    plain, adam = (scheduled(update(0.1, 2.0)) for update in (GradientStep, AdamStep))
    assert summarise(plain, 7).direct_flops == summarise(adam, 7).direct_flops == 3 * 2 * 7 * 21


def test_a_summary_shows_itself_in_a_line():
    case = make_case(MLP((3, 2), "identity"), "squared")
    summary = summarise(build(RELU_STACK, case, n_steps=2), n_tokens=7)
    assert repr(summary) == (
        "Summary(construction: relu-stack; layers: 14, 6 a step; d_model: 23; "
        "heads: 4 in the widest layer, of width 4; weights: 6,848; flops: 1.832e+05 on 7 tokens)"
    )


def test_a_summary_of_a_chain_counts_blocks_of_three_layers():
    """Depth 2, 4 rounds: 16 blocks of training and 2 of prediction."""
    program = program_of(problem_of(MLP((3, 4, 2), "relu"), batch_size=3))
    summary = summarise(program, n_tokens=7)
    assert (summary.layers_per_step, summary.n_layers) == (12, 54)
    assert summary.n_registers == 31
    assert summary.direct_flops == 4 * 2 * 3 * (3 * 20 - 12)
    assert summary.flops == 18 * sum(layer.flops(1) for layer in summary.layers)


def test_the_weights_of_a_chain_do_not_grow_with_the_depth_of_the_network():
    sizes = {
        summarise(program_of(problem_of(MLP((4,) * (depth + 1), "relu"))), 1).parameters
        for depth in (1, 2, 20)
    }
    assert len(sizes) == 1
