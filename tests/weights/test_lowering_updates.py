"""The hidden units of optimisers: what they compute on a stream of any content, and their sizes."""

import pytest
import torch

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.layers import MLPLayer
from icgd.program.instructions import Combination, Instruction
from icgd.program.layout import Layout, Role, Slot
from icgd.program.network_instructions import Assignment, Recombine, TakeTurns
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size

# Slots between those in use, so that a wrong offset shows.
LAYOUT = Layout(
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
PROGRAM = StackProgram("by hand", LAYOUT, (), (), 0, ())
MOVED = Assignment(Combination(("w", "g"), (0.9, -2.0)), "w", bound=1.0)
KEPT = Assignment(Combination(("m", "g"), (0.5, 1.0)), "m")


def lowered(instruction: Instruction, dtype: torch.dtype = torch.float64) -> MLPLayer:
    layer = lower_layer(Layer("here", (instruction,)), PROGRAM, dtype)
    assert type(layer) is MLPLayer
    return layer


def column(stream: torch.Tensor, name: str) -> torch.Tensor:
    return stream[:, LAYOUT.range_of(name)]


def prompt(n_examples: int, n_queries: int = 2) -> torch.Tensor:
    """Random but for the constants and for turns, of which the first example has the first."""
    n_tokens, generator = n_examples + n_queries, torch.Generator().manual_seed(1)
    stream = torch.randn(n_tokens, LAYOUT.width, generator=generator, dtype=torch.float64)
    for name in ("place", "waits", "is_example"):
        column(stream, name).zero_()
    column(stream, "one").fill_(1.0)
    column(stream, "n_examples").fill_(n_examples)
    column(stream, "is_example")[:n_examples] = 1.0
    return stream


def test_slots_become_their_combinations_at_once():
    before = prompt(3)
    w, m, g, scale = (column(before, name).clone() for name in ("w", "m", "g", "scale"))
    column(before, "scale").abs_()
    after = lowered(Recombine((MOVED, KEPT), "scale"))(before)
    bound = scale.abs()
    moved = torch.minimum(torch.maximum(0.9 * w - 2.0 * g, -bound), bound)
    torch.testing.assert_close(column(after, "w"), moved)
    torch.testing.assert_close(column(after, "m"), 0.5 * m + g)
    changed = {*range(*LAYOUT.range_of("w").indices(99)), *range(*LAYOUT.range_of("m").indices(99))}
    others = [place for place in range(LAYOUT.width) if place not in changed]
    assert torch.equal(after[:, others], before[:, others])


@pytest.mark.parametrize("keeps", [0.0, 0.75])
def test_an_average_moves_towards_the_clipped_value(keeps):
    before = prompt(3)
    column(before, "scale").abs_()
    w, m, g, bound = (column(before, name) for name in ("w", "m", "g", "scale"))
    averaged = Assignment(MOVED.value, "w", 1.0, average="m", keeps=keeps)
    after = lowered(Recombine((averaged,), "scale"))(before)
    moved = torch.minimum(torch.maximum(0.9 * w - 2.0 * g, -bound), bound)
    assert (moved.abs() == bound).any()
    torch.testing.assert_close(column(after, "w"), moved)
    torch.testing.assert_close(column(after, "m"), keeps * m + (1 - keeps) * moved)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("n_examples", "size"), [(1, 1), (4, 4), (6, 2), (5, 2), (5, 3), (7, 5), (7, 6), (5, 1), (9, 8)]
)
def test_batches_go_round_exactly(n_examples, size, dtype):
    stream = prompt(n_examples).to(dtype)
    numbers = torch.arange(n_examples, dtype=dtype)[:, None]
    column(stream, "place")[:n_examples] = numbers
    column(stream, "waits")[:n_examples] = (numbers >= size).to(dtype)
    queries = stream[n_examples:].clone()
    layer = lowered(TakeTurns(size, "place", "waits", "n_examples"), dtype)
    for step in range(2 * n_examples + 1):
        wanted = sorted(number % n_examples for number in range(step * size, (step + 1) * size))
        waits = column(stream, "waits")[:n_examples, 0]
        assert sorted((waits == 0).nonzero().flatten().tolist()) == wanted
        assert waits[waits != 0].tolist() == [1.0] * (n_examples - size)
        stream = layer(stream)
    assert torch.equal(stream[n_examples:], queries)


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
    size = layer_size(Layer("here", (instruction,)), PROGRAM)
    layer = lowered(instruction)
    assert (size.units, size.width, size.nonzeros) == (units, 1, nonzeros)
    assert layer.W_in.shape == (LAYOUT.width, units)
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
