"""The blocks of teachers, and the loss of a constant answer."""

import pytest
import torch

from icgd_papers.theorems.cot import training


def test_a_column_has_all_rows_of_a_block_but_zeros_and_tags():
    round_ = training.LAWS[0].teacher(0)
    assert len(training._column(round_, "forward", 2)) == 3 * 5 + 25
    column = training._column(round_, "backward", 2)
    after = round_.stepped(training.STEP_SIZE)[1]
    assert torch.equal(column[10:], after.flatten())
    assert torch.equal(column[5:10], round_.weights[1].T @ round_.deltas[1])


def test_a_loss_counts_every_row_once_for_each_column():
    blocks = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    assert training._loss(blocks, torch.zeros(2)) == pytest.approx(5 * (5 + 9) / 2)


def test_whether_the_reported_losses_mean_anything_depends_on_the_law():
    finding = training.TRAINED.check(1)
    assert [comparison.holds for comparison in finding.printed] == [True, True, False, False]
