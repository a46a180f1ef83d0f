"""Counts against the weights that are really built, and against counting by hand."""

import time

import pytest
import torch

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AbstractGradientStep, AdamStep, GradientStep
from icgd.problems.problem import Problem
from icgd.program.instructions import (
    AddGradient,
    AddProduct,
    Argument,
    Combination,
    LayerKind,
    LookUp,
    Project,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.network_instructions import Assignment, Recombine, ShareClasses, TakeTurns
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_layer, lower_program
from icgd.weights.sizes import LayerSize, dense_bytes, layer_size, summarise
from tests import cases
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import build, every_construction_on, make_case
from tests.contracts.backend import RELU_STACK, SOFTMAX_STACK
from tests.linear_cases import PROBLEMS, compiled_of
from tests.weights import with_registers


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
    size = LayerSize("here", kind, d_model=10, units=3, width=2, nonzeros=0, features=0)
    assert size.parameters == parameters
    assert size.flops(n_tokens=5) == flops


def test_sizes_of_a_head_over_classes_by_hand():
    """Scores, one and the memory; classes, masks and the memory; values and outputs."""
    problem = Problem(MLP((2, 3)), "cross_entropy", GradientStep(0.1, 2.0), Domain(1.0, 1.0))
    program = icgd.compile(problem, "softmax-stack", n_steps=1).program
    size = layer_size(Layer("here", (program.first(ShareClasses),)), program)
    by_hand = (3 + 1 + 1) + (3 + 1 + 3 + 1) + 3 + 3
    assert (size.n_heads, size.width, size.nonzeros) == (1, 3 + 2, by_hand)


# Slots between those in use, so that a wrong offset shows.
UPDATE_LAYOUT = Layout(
    (
        Slot("x", (2,), Role.INPUT),
        Slot("w", (2, 3), Role.PARAMETER),
        Slot("between", (1,), Role.SCRATCH),
        Slot("m", (2, 3), Role.PARAMETER),
        Slot("g", (2, 3), Role.SHARED),
        Slot("place", (1,), Role.TURN),
        Slot("waits", (1,), Role.TURN),
        *(Slot(name, (1,), Role.CONSTANT) for name in ("one", "scale", "is_example", "n_examples")),
    )
)
UPDATE_PROGRAM = StackProgram("by hand", UPDATE_LAYOUT, (), (), 0, ())
MOVED = Assignment(Combination(("w", "g"), (0.9, -2.0)), "w", bound=1.0)
KEPT = Assignment(Combination(("m", "g"), (0.5, 1.0)), "m")


SIZES = {
    # Two units for a change of one or two slots, two for the bound of two slots and the unit.
    "a bound": (Recombine((MOVED,), "scale"), 4 * 6, 2 * 6 * (2 + 1) + 2 * 6 * (2 + 2)),
    "none": (Recombine((KEPT,), "one"), 2 * 6, 2 * 6 * (2 + 1)),
    "only a bound": (
        Recombine((Assignment(Combination.of("w"), "w", 1.0),), "one"),
        2 * 6,
        2 * 6 * (1 + 2),
    ),
    # The average reads itself besides, in two of its four units.
    "an average": (
        Recombine((Assignment(MOVED.value, "w", 1.0, average="m", keeps=0.5),), "one"),
        8 * 6,
        2 * 6 * (2 + 1) + 2 * 6 * (2 + 2) + 2 * 6 * (3 + 1) + 2 * 6 * (2 + 2),
    ),
    "both": (Recombine((MOVED, KEPT), "one"), 6 * 6, 2 * 6 * (3 + 4 + 3)),
    "turns": (TakeTurns(2, "place", "waits", "n_examples"), 10, 1 + 4 + 1 + 1 + 6 * 3 + 2 + 10),
}


@pytest.mark.parametrize(("instruction", "units", "nonzeros"), SIZES.values(), ids=SIZES)
def test_sizes_are_those_of_the_weights_and_of_counting_by_hand(instruction, units, nonzeros):
    size = layer_size(Layer("here", (instruction,)), UPDATE_PROGRAM)
    layer = lower_layer(Layer("here", (instruction,)), UPDATE_PROGRAM, torch.float64)
    assert (size.units, size.width, size.nonzeros) == (units, 1, nonzeros)
    assert layer.W_in.shape == (UPDATE_LAYOUT.width, units)
    assert sum(int(part.count_nonzero()) for part in layer.parameters()) == nonzeros


UPDATES = {
    "momentum": icgd.MomentumStep(0.1, 2.0, batch_size=2, weight_decay=0.1),
    "schedule": icgd.GradientStep((0.1, 0.2), 2.0, batch_size=3),
    "adam": icgd.AdamStep(0.1, 2.0, batch_size=2, weight_decay=0.1),
    "average": icgd.GradientStep(0.1, 2.0, average=0.9),
    "average of adam": icgd.AdamStep(0.1, 2.0, average=0.9),
    "no average": icgd.MomentumStep(0.1, 2.0, average=0.0),
    "no memory": icgd.AdamStep(0.1, 2.0, betas=(0.0, 0.0)),
    "all decays": icgd.AdamStep(0.5, 2.0, weight_decay=2.0, decoupled=True),
    "dampened": icgd.MomentumStep((0.5, 0.0), 2.0, dampening=1.0, weight_decay=2.0),
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_counts_of_whole_steps_are_those_of_the_built_layers(name, construction):
    target, domain = icgd.MLP((2, 3, 1), "tanh", biases=True), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(target, "squared", UPDATES[name], domain)
    if CONSTRUCTIONS[construction].why_not(problem):
        return
    program = icgd.compile(problem, construction, n_steps=2).program
    for layer in program.unrolled():
        size = layer_size(layer, program)
        weights = list(lower_layer(layer, program, torch.float64).parameters())
        assert size.parameters == sum(weight.numel() for weight in weights), layer.title
        assert size.nonzeros == sum(int(weight.count_nonzero()) for weight in weights), layer.title


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
    d_model = k + 10 + target.n_parameters + 3 * 2 * k + 2 * 10 + 4
    assert summary.d_model == d_model
    # tanh and its slope have the same knots. The anchor counts twice, and a value there once.
    program = build(RELU_STACK, make_case(target, "squared"), 10, pieces)
    tanh, slope = program.relu_sum("tanh"), program.relu_sum("tanh'")
    assert tanh.knots == slope.knots
    assert pieces < tanh.n_pieces <= 1.25 * pieces
    n_terms = tanh.n_pieces + 1
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
        "Summary(construction: relu-stack; layers: 4 layers used 2 times, 2 to predict; "
        "d_model: 19; heads: 4 in the widest layer, of width 4; weights: 4,592; "
        "flops: 1.213e+05 on 7 tokens)"
    )


def test_a_summary_of_a_chain_counts_the_uses_of_four_layers():
    """Depth 2, 4 rounds: 16 blocks of training and 2 of prediction, after 8 + 1 + 2 tokens."""
    program = program_of(problem_of(MLP((3, 4, 2), "relu"), batch_size=3))
    summary = summarise(program, n_tokens=7)
    assert (summary.layers_per_step, summary.n_layers) == (16, 72)
    assert summary.layers_in_words == "4 layers used 18 times, 2 of these to predict"
    assert summary.n_registers == 31
    assert summary.direct_flops == 4 * 2 * 3 * (3 * 20 - 12)
    mask, *others = summary.layers
    n_read = sum(range(11, 11 + 18))
    assert (mask.n_heads, mask.width, mask.nonzeros) == (1, 57, 2 * 7 + 2 * 57)
    assert mask.flops(5) == 4 * 57 * (2 * summary.d_model + 5)
    own = 18 * sum(layer.flops(1) for layer in others)
    assert summary.flops == own + 18 * mask.flops(0) + 4 * 57 * n_read
    own = 18 * sum(layer.sparse_flops(1) for layer in others)
    found = 18 * 2 * mask.nonzeros + n_read * (2 * (7 + 57) + 20)
    assert summary.sparse_flops == own + found


def test_the_weights_of_a_chain_do_not_grow_with_the_depth_of_the_network():
    sizes = {
        summarise(program_of(problem_of(MLP((4,) * (depth + 1), "relu"))), 1).parameters
        for depth in (1, 2, 20)
    }
    assert len(sizes) == 1


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
