"""One gradient step in every construction: the formulas against what torch does."""

import pytest

from icgd.backends.prompt import read_learnt
from icgd_papers.studies.cost_cases import Network, counted
from icgd_papers.studies.cost_steps import (
    COT,
    ONE_EXAMPLE,
    VARIANTS,
    StepCase,
    built,
    refusal,
)

RELU, SOFTMAX = VARIANTS[:2]
NETWORK = Network(depth=3, width=2, n_examples=4, seed=0)


def case(variant, backend, network=NETWORK, is_run=True):
    return StepCase("depth", network.depth, variant, backend, network, 8, is_run)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_dense_flops_are_what_the_layers_do(variant):
    chosen = case(variant, "dense")
    flops, size = counted(chosen)
    formula = chosen.counts()
    assert flops == pytest.approx(formula.flops, rel=0.02)  # but for biases and products of slots
    assert formula.bytes <= size <= 4 * formula.bytes  # scores and hidden units are not in it


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_fused_flops_are_exactly_those_of_training(variant):
    chosen = case(variant, "fused")
    flops, size = counted(chosen)
    n_examples = 1 if variant is ONE_EXAMPLE else 4
    weights = 3 * 2 * 2
    spared = 2 * 2  # W_1^T delta_1
    assert flops == chosen.counts().flops == 2 * n_examples * (3 * weights - spared)
    assert 0.5 <= size / chosen.counts().bytes <= 4


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_job_is_a_gradient_step_of_the_construction(variant, backend):
    compiled = built(NETWORK, variant, 1)
    task = NETWORK.task(compiled)
    real = compiled.problem.oracle.train(task, 1)[-1]
    result = case(variant, backend).job(1)()
    assert task.x.min() >= 0
    assert task.initial.min() >= 0
    if backend == "fused":
        learnt = result.parameters[-1]
    elif variant.construction == "cot-network":
        (learnt,) = result
    else:
        learnt = read_learnt(compiled.stack, task, result)
    assert (learnt - real).abs().max() <= 1e-9
    assert (learnt - task.initial).abs().max() > 1e-3


def test_counts_of_a_stack_grow_with_the_square_of_depth_and_those_of_a_chain_linearly():
    deep = Network(16, 2, 4, 0), Network(32, 2, 4, 0)
    relu = [case(RELU, "dense", network).counts() for network in deep]
    chain = [case(COT, "dense", network).counts() for network in deep]
    assert relu[1].flops / relu[0].flops == pytest.approx(4, rel=0.1)
    assert relu[1].weights / relu[0].weights == pytest.approx(4, rel=0.1)
    assert chain[1].flops == 2 * chain[0].flops
    assert chain[1].weights == chain[0].weights
    assert chain[1].state - chain[0].state == 32 * built(deep[0], COT, 1).program.rows.width


def test_a_fused_job_is_timed_without_its_set_up_and_a_dense_one_has_none():
    assert case(COT, "fused").n_steps == (2, 4)  # 8 layers, 3 a step
    assert case(RELU, "fused").n_steps == (42, 84)  # 16 times as many
    deep = Network(depth=64, width=8, n_examples=8, seed=0)
    assert StepCase("depth", 64, COT, "fused", deep, 128).n_steps == (4, 8)
    assert case(RELU, "dense").n_steps == (0, 1)


def test_what_cannot_be_built_or_is_too_large_says_so():
    wide = Network(depth=16, width=8, n_examples=8, seed=0, box=1.0)
    reason = case(RELU, "dense", wide).why_not()
    assert "relu-stack cannot compile this problem: its preactivations can reach" in reason
    assert case(RELU, "dense", wide).counts() is None
    assert refusal(wide, COT) is None
    assert case(COT, "fused", is_run=False).why_not() == "counted only"
    large = Network(depth=4, width=64, n_examples=8, seed=0)
    assert case(SOFTMAX, "dense", large).why_not().startswith("counted only: 8.8e+11 FLOPs")
    assert case(SOFTMAX, "fused", large).why_not() is None


def test_a_deep_network_can_be_built_in_a_box_of_one_over_its_width():
    deep = Network(depth=64, width=8, n_examples=8, seed=0)
    assert [refusal(deep, variant) for variant in VARIANTS] == [None] * 4
    chain, shallow = (case(COT, "dense", each).counts() for each in (deep, Network(1, 8, 8, 0)))
    assert (chain.flops, chain.weights) == (64 * shallow.flops, shallow.weights)
