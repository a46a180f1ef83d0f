"""Heads and hidden units of classes: what they compute, and their sizes."""

import pytest
import torch

import icgd
from icgd.backends.prompt import encode
from icgd.layers import MLPLayer, SoftmaxAttention
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size

N_CLASSES = 3
PROBLEM = icgd.Problem(
    icgd.MLP((2, N_CLASSES)), "cross_entropy", icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
)
SCORES = [[0.5, -1.0, 2.0], [3.0, 3.0, -3.0], [0.0, 0.0, 0.0], [40.0, -40.0, 39.0]]


def program(construction: str, **settings: int) -> StackProgram:
    return icgd.compile(PROBLEM, construction, n_steps=1, **settings).program


def layer_called(title: str, found: StackProgram) -> Layer:
    (layer,) = (layer for layer in found.block if layer.title == title)
    return layer


def stream_of(found: StackProgram) -> torch.Tensor:
    """A prompt of two examples and two queries that have these scores, as registers have some."""
    x, y = torch.zeros(2, 2), torch.tensor([0, 1])
    stream = encode(found, icgd.as_task(PROBLEM, x, y, queries=x))
    scores = torch.tensor(SCORES, dtype=torch.float64)
    stream[:, found.layout.range_of("units_1")] = scores[:1]
    stream[-4:, found.layout.range_of("units_1")] = scores
    return stream


def others(found: StackProgram, name: str) -> list[int]:
    written = range(*found.layout.range_of(name).indices(found.layout.width))
    return [place for place in range(found.layout.width) if place not in written]


def test_a_head_over_tokens_of_classes_returns_their_shares():
    found = program("softmax-stack")
    before = stream_of(found)
    layer = lower_layer(layer_called("shares", found), found, torch.float64)
    assert type(layer) is SoftmaxAttention
    after, scores = layer(before), before[:, found.layout.range_of("units_1")]
    shares = after[:, found.layout.range_of("shares")]
    torch.testing.assert_close(shares[1:], scores[1:].softmax(-1), rtol=1e-13, atol=1e-300)
    assert shares[0].tolist() == [0.0] * N_CLASSES, "the memory has no values"
    kept = others(found, "shares")
    assert torch.equal(after[:, kept], before[:, kept])


def test_hidden_units_map_differences_and_sums_of_rows():
    found = program("relu-stack")
    before = stream_of(found)
    pairs, sums = (layer_called(title, found) for title in ("exponentials", "shares"))
    for layer in (pairs, sums):
        assert type(lower_layer(layer, found, torch.float64)) is MLPLayer
    between = lower_layer(pairs, found, torch.float64)(before).detach()
    scores = before[:, found.layout.range_of("units_1")]
    exponential = found.relu_sum(pairs.instructions[0].function)
    values = between[:, found.layout.range_of("exponentials")].unflatten(-1, (N_CLASSES, -1))
    for token, row in enumerate(scores.tolist()):
        for own in range(N_CLASSES):
            for other in range(N_CLASSES):
                expected = exponential(row[other] - row[own])
                assert float(values[token, own, other]) == pytest.approx(expected, rel=1e-9)
    after = lower_layer(sums, found, torch.float64)(between)
    reciprocal = found.relu_sum("reciprocal")
    expected = [[reciprocal(total) for total in rows] for rows in values.sum(-1).tolist()]
    shares = after[:, found.layout.range_of("shares")]
    torch.testing.assert_close(shares, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(shares, scores.softmax(-1), rtol=1e-3, atol=1e-4)
    kept = others(found, "shares")
    assert torch.equal(after[:, kept], between[:, kept])


def test_sizes_of_a_head_are_those_of_its_weights_and_of_counting_by_hand():
    """Scores and one, classes and masks, the memory, values and outputs."""
    found = program("softmax-stack")
    layer = layer_called("shares", found)
    size, module = layer_size(layer, found), lower_layer(layer, found, torch.float64)
    by_hand = (N_CLASSES + 1 + 1) + (N_CLASSES + 1 + N_CLASSES + 1) + N_CLASSES + N_CLASSES
    assert (size.n_heads, size.width, size.nonzeros) == (1, N_CLASSES + 2, by_hand)
    assert module.W_Q.shape == (1, found.layout.width, N_CLASSES + 2)
    assert sum(int(part.count_nonzero()) for part in module.parameters()) == by_hand


@pytest.mark.parametrize("title", ["exponentials", "shares"])
@pytest.mark.parametrize("pieces", [4, 64])
def test_sizes_of_hidden_units_are_those_of_their_weights(title, pieces):
    found = program("relu-stack", pieces=pieces)
    layer = layer_called(title, found)
    size, module = layer_size(layer, found), lower_layer(layer, found, torch.float64)
    n_terms = len(found.relu_sum(layer.instructions[0].function).terms())
    assert size.units == n_terms * (N_CLASSES**2 if title == "exponentials" else N_CLASSES)
    assert module.W_in.shape == (found.layout.width, size.units)
    assert size.nonzeros == sum(int(part.count_nonzero()) for part in module.parameters())
