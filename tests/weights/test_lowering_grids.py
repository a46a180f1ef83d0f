from dataclasses import replace

import pytest
import torch

import icgd
from icgd.backends.prompt import encode
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size, summarise
from tests.linear_cases import PLAIN, PROBLEMS, compiled_of, data, problem_of, task_of


@pytest.mark.parametrize("link", PROBLEMS)
def test_every_link_takes_a_head_one_more_for_l2_and_two_that_sum(link):
    """However many examples there are."""
    for l2, n_heads in ((0.0, 1), (0.1, 2)):
        program = compiled_of(problem_of(link, l2=l2)).program
        assert len(program.block[0].wires(program)) == n_heads
        assert lower_layer(program.block[1], program, torch.float64).W_Q.shape[0] == 2


@pytest.mark.parametrize("link", PROBLEMS)
def test_both_attention_layers_are_the_gradient_step_in_every_column(link):
    problem = problem_of(link, l1=0.0)
    program, task = compiled_of(problem).program, task_of(problem)
    stream = encode(program, task)
    start = torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64)
    place = slice(program.layout.range_of("w").start, program.layout.range_of("b").stop)
    stream[:, place] = start
    means, step = (lower_layer(layer, program, torch.float64) for layer in program.block[:2])
    after = step(means(stream))
    real = problem.oracle.step(task, start)
    assert (after[:, place] - real).abs().max() <= 1e-12
    mean = program.layout.range_of("mean").start
    means_of_examples = problem.oracle.predict(replace(task, queries=task.x), start).flatten()
    assert (after[:6, mean] - means_of_examples).abs().max() <= 1e-12
    changed = {*range(place.start, place.stop), mean}
    others = [c for c in range(program.layout.width) if c not in changed]
    assert torch.equal(after[:, others], stream[:, others])


@pytest.mark.parametrize("link", PROBLEMS)
def test_queries_whose_scores_no_head_is_made_for_change_no_coefficient(link):
    """Softmax returns no more than the largest value, which the gate exceeds."""
    problem = problem_of(link, score=0.5)
    program = compiled_of(problem).program
    x, y, _ = data()
    start = torch.tensor([0.9, 0.9, -0.9, 0.4], dtype=torch.float64)
    far = torch.tensor([[2.0, 2.0, -2.0], [-2.0, -2.0, 2.0]], dtype=torch.float64)
    place = slice(program.layout.range_of("w").start, program.layout.range_of("b").stop)
    after = []
    for queries in (far, None):
        stream = encode(program, icgd.as_task(problem, x, y, queries=queries, initial=start))
        for layer in program.block[:2]:
            stream = lower_layer(layer, program, torch.float64)(stream)
        after.append(stream[:6, place])
    assert (after[0] - after[1]).abs().max() <= 1e-15
    assert (after[0] - start).abs().min() > 1e-3


@pytest.mark.parametrize("problem", [*PROBLEMS.values(), PLAIN["logistic"]])
def test_sizes_are_those_of_the_weights(problem):
    program = compiled_of(problem).program
    for layer in (program.block[0], program.prediction[0]):
        module = lower_layer(layer, program, torch.float64)
        size, weights = layer_size(layer, program), list(module.parameters())
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
    size = layer_size(program.block[0], program)
    heads, width, model = 2, 5, program.layout.width
    projections = 2 * 2 * heads * model * width * (7 + 1)
    assert size.flops(7) == projections + 2 * 2 * heads * 2 * width + 4 * heads * 7 * 2 * width
