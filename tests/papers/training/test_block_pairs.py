"""Pairs of blocks: how they are drawn, taken in epochs, and what the printed loss is."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from icgd.errors import DataError, DistributionError, SettingError
from icgd_papers.training.block_pairs import BlockTask, Teachers
from icgd_papers.training.tasks import generator_of

TEACHERS = Teachers(width=3, depth=2, n_rounds=4)
TASK = BlockTask(TEACHERS, "forward", n_teachers=5, n_validation_teachers=2, seed=3)


def test_weights_and_inputs_have_their_law_and_labels_are_those_of_the_teacher():
    law = replace(TEACHERS, width=4, weight_scale=0.5)
    students = law.students(2000, generator_of(0, 0))
    assert students.start.std().item() == pytest.approx(0.5 / 2, rel=0.02)
    assert students.x.std().item() == pytest.approx(1.0, rel=0.02)
    assert students.start.shape == (2000, 2, 4, 4)
    assert students.x.shape == students.y.shape == (2000, 4, 4)
    drawn = torch.from_numpy(generator_of(0, 0).standard_normal((2, 2000, 2, 4, 4))) * 0.25
    first, second = drawn[0, 7]
    expected = torch.relu(second @ torch.relu(first @ students.x[7, 2]))
    assert torch.allclose(students.y[7, 2], expected)
    assert torch.equal(students.start, drawn[1])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_pairs_are_what_the_exact_operator_reads_and_writes(direction):
    task = replace(TASK, direction=direction)
    stacked, blocks = task.pairs
    assert stacked.shape == (5 * 2 * 4, 2 * 19)
    operator = getattr(TEACHERS.exact, direction)
    assert torch.allclose(operator(stacked.double()).float(), blocks, atol=1e-5)
    tag = 1.0 if direction == "forward" else 0.0
    assert set(blocks[:, -1].tolist()) == {tag}


def test_an_epoch_takes_every_pair_once_and_each_has_an_order_of_its_own():
    stacked, _ = TASK.pairs
    steps = TASK.steps_per_epoch(8)
    assert (TASK.n_pairs, TASK.n_validation, steps) == (40, 16, 5)
    orders = []
    for epoch in range(2):
        indices = range(epoch * steps, (epoch + 1) * steps)
        batches = [TASK.sample(8, seed=1, index=index) for index in indices]
        rows = torch.cat([batch.x[:, 0] for batch in batches])
        orders.append([int((stacked == row).all(1).nonzero()[0, 0]) for row in rows])
        assert sorted(orders[-1]) == list(range(40))
    assert orders[0] != orders[1]
    again = TASK.sample(8, seed=1, index=7)
    assert torch.equal(again.x, TASK.sample(8, seed=1, index=7).x)
    assert not torch.equal(again.x, TASK.sample(8, seed=2, index=7).x)


def test_validation_has_other_teachers():
    held_out = TASK.validation(TASK.n_validation, seed=0)
    assert held_out.x.shape == (16, 1, 38)
    own = TASK.pairs[0]
    assert not any((own == row).all(1).any() for row in held_out.x[:, 0])
    assert torch.equal(held_out.x, TASK.validation(16, seed=0).x)


class Constant(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, stacked):
        return self.block.expand(len(stacked), *self.block.shape)


def test_the_loss_is_the_mean_squared_frobenius_distance_of_blocks_with_d_columns():
    batch = TASK.sample(8, seed=1, index=0)
    columns = torch.randn(3, 19, generator=torch.Generator().manual_seed(0))
    whole = batch.y[:, 0, :, None].expand(-1, -1, 3)  # R rows and d equal columns
    expected = (columns.mT - whole).square().sum((1, 2)).mean()
    assert torch.allclose(TASK.loss(Constant(columns), batch), expected)
    one = columns[:1]
    losses = [TASK.loss(Constant(columns), batch) for columns in (one, one.expand(3, -1))]
    assert torch.allclose(*losses)


def test_what_cannot_be_trained_on_is_refused():
    with pytest.raises(SettingError, match="n_teachers must be a whole number of at least 1"):
        replace(TASK, n_teachers=0)
    with pytest.raises(SettingError, match="direction must be one of forward, backward, got 'up'"):
        replace(TASK, direction="up")
    with pytest.raises(SettingError, match="batch_size must be at most 40, got 41"):
        TASK.steps_per_epoch(41)
    with pytest.raises(DataError, match=re.escape("(8, 1, 18); expected (pair, column, 19)")):
        TASK.loss(Constant(torch.zeros(1, 18)), TASK.sample(8, seed=0, index=0))


def test_descent_that_overflows_is_refused_with_its_settings():
    wild = replace(TASK, teachers=Teachers(3, 3, 2, weight_scale=1e7))
    message = (
        r"of student \d overflows: .*e\+\d+ in round 1, with step_size=0.02 and weight_scale=1e"
    )
    with pytest.raises(DistributionError, match=message):
        wild.sample(4, seed=0, index=0)


def test_the_description_has_the_law_and_the_teachers():
    assert TASK.description() == {
        "task": "BlockTask",
        "teachers": {
            "width": 3,
            "depth": 2,
            "n_rounds": 4,
            "step_size": 0.02,
            "weight_scale": 1.0,
        },
        "direction": "forward",
        "n_teachers": 5,
        "n_validation_teachers": 2,
        "seed": 3,
    }
