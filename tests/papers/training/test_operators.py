"""Learnt operators: what attention over equal columns can do, products, and steep rows."""

import re
from dataclasses import replace

import pytest
import torch

from icgd.errors import CheckpointError, SettingError
from icgd_papers.training.block_pairs import BlockTask, Teachers
from icgd_papers.training.loading import load
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.operators import PlainOperator, ProductOperator, as_operator

SMALL = {"stream_width": 8, "n_heads": 2, "hidden_width": 10}
TASK = BlockTask(Teachers(2, 2, 3), "forward", n_teachers=4, n_validation_teachers=2, seed=0)
STACKED = TASK.pairs[0].double()


def plain(positions, **other):
    return PlainOperator(2, **{**SMALL, "positions": positions, **other}).double()


def scores(model, stacked):
    """Softmax's arguments for the first query of the first head, less those of the first column."""
    columns = model.embed(stacked)[:, None] * model.scales + model.places
    query, keys = model.queries(columns)[:, 0, :4], model.keys(columns)[..., :4]
    found = (keys @ query[..., None])[..., 0]
    return found - found[:, :1]


def bend(model):
    """The second difference of the scores between two inputs: 0 for what is linear."""
    left, right = STACKED[:1], STACKED[-1:]
    middle = scores(model, (left + right) / 2)
    return (scores(model, left) + scores(model, right) - 2 * middle).abs().max().item()


def test_attention_without_positions_returns_the_value_of_one_column():
    model = plain("none", seed=3)
    column = model.embed(STACKED)[:, None]
    equal = column.expand(-1, 5, -1)
    idle = model.join(model.values(equal))
    assert torch.allclose(model.attended(equal), idle, atol=1e-12)
    assert torch.allclose(model.attended(column), idle[:, :1], atol=1e-12)
    assert model(STACKED).shape == (len(STACKED), 1, 11)


def test_with_positions_attention_is_no_linear_map():
    model = plain("added")
    columns = model.embed(STACKED)[:, None] + model.places
    idle = model.join(model.values(columns))
    assert (model.attended(columns) - idle).abs().max() > 0.01
    assert model(STACKED).shape == (len(STACKED), 2, 11)


def test_added_positions_give_linear_scores_and_scaling_ones_give_products():
    assert bend(plain("added")) < 1e-12
    assert bend(plain("scaled")) > 1e-3


def test_heads_of_the_product_operator_can_multiply_weights_and_inputs():
    """One head with chosen numbers returns the first preactivation, W_11 o_1 + W_12 o_2."""
    model = ProductOperator(2, stream_width=22, n_heads=1, key_width=2).double()
    with torch.no_grad():
        for part in model.parameters():
            part.zero_()
        model.embed.weight.copy_(torch.eye(22))
        model.queries.weight[[0, 1], [0, 1]] = 1.0  # o of the block above
        model.keys.weight[[0, 1], [11 + 4, 11 + 6]] = 1.0  # the first row of W in the block below
        model.join.weight[5, 0] = 1.0
        model.read.weight[0, 5] = 1.0
        got = model(STACKED)[:, 0, 0] - STACKED[:, 5]
    above, matrix = STACKED[:, :2], TASK.teachers.rows.weights(STACKED[:, 11:])
    assert torch.allclose(got, (matrix[:, 0] * above).sum(-1), atol=1e-12)


def test_steep_slopes_follow_from_the_other_rows_and_pass_no_gradient_on():
    model = ProductOperator(2, steep_slopes=True, seed=1).double()
    block = model(STACKED)[:, 0]
    place = TASK.teachers.rows.slopes
    others = block.detach().clone()
    others[:, place] = 0.0
    assert model.gains.tolist() == pytest.approx([torch.tensor(10.0).log().item() / 30] * 2)
    assert torch.allclose(block[:, place], torch.sigmoid(10 * model.steep(others)), atol=1e-6)
    block[:, place].sum().backward()
    assert model.read.weight.grad is None or not model.read.weight.grad.any()
    assert model.steep.weight.grad.abs().max() > 0
    assert model.gains.grad.abs().max() > 0


def test_without_steep_slopes_all_rows_are_read_alike():
    model = ProductOperator(2, seed=1).double()
    model(STACKED)[:, 0, TASK.teachers.rows.slopes].sum().backward()
    assert model.queries.weight.grad.abs().max() > 0
    assert model.steep is None


@pytest.mark.parametrize("make", [PlainOperator, ProductOperator])
def test_the_first_weights_follow_from_the_seed_alone(make):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = make(2, seed=1), make(2, seed=1), make(2, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.embed.weight, again.embed.weight)
    assert not torch.equal(first.embed.weight, other.embed.weight)


def test_an_operator_of_a_chain_writes_the_mean_of_its_columns():
    model = plain("added")
    assert torch.allclose(as_operator(model)(STACKED), model(STACKED).mean(1))
    assert not as_operator(model)(STACKED).requires_grad


SETTINGS = Settings(n_steps=2, batch_size=4, learning_rate=0.01, log_every=1, checkpoint_every=1)


@pytest.mark.parametrize(
    "model",
    [plain("scaled"), ProductOperator(2, steep_slopes=True, n_heads=3, key_width=2)],
    ids=["plain", "product"],
)
def test_a_trained_operator_comes_back_from_its_folder(model, tmp_path):
    train(model, TASK, SETTINGS, folder=tmp_path)
    loaded = load(tmp_path)
    assert loaded.description() == model.description()
    assert torch.equal(loaded(STACKED.float()), model(STACKED.float()))


def test_the_checkpoint_of_another_operator_is_refused(tmp_path):
    train(plain("added"), TASK, SETTINGS, folder=tmp_path)
    message = re.escape("its model.positions is 'added', here it is 'scaled'")
    with pytest.raises(CheckpointError, match=message):
        train(plain("scaled"), TASK, SETTINGS, folder=tmp_path)
    message = re.escape("its model.kind is 'plain operator', here it is 'product operator'")
    with pytest.raises(CheckpointError, match=message):
        train(ProductOperator(2), TASK, SETTINGS, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"its task\.direction is 'forward', here it is '"):
        train(plain("added"), replace(TASK, direction="backward"), SETTINGS, folder=tmp_path)


def test_sizes_that_make_no_model_are_refused():
    with pytest.raises(SettingError, match="positions must be one of none, added, scaled, got 'a"):
        PlainOperator(2, positions="absolute")
    with pytest.raises(SettingError, match="n_heads must be one of 1, 2, 4, 8, got 3"):
        PlainOperator(2, stream_width=8, n_heads=3)
    with pytest.raises(SettingError, match="key_width must be a whole number of at least 1"):
        ProductOperator(2, key_width=0)
