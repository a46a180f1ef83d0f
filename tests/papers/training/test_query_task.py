import pytest
import torch
from torch import nn

from icgd.errors import DataError, SettingError
from icgd_papers.training import GeneratedTask, QueryTask
from icgd_papers.training.tasks import VALIDATION_INDEX


def draw(n_tasks, generator):
    x = generator.normal(size=(n_tasks, 7, 2))
    return x, 2 * x[..., 0]


class Mean(nn.Module):
    """The mean label of the examples, at every query."""

    def forward(self, x, y, queries):
        return y.mean(1, keepdim=True).expand(-1, queries.shape[1], -1)


TASK = QueryTask(GeneratedTask(draw), n_queries=3)


def test_the_last_tokens_are_queries_and_the_loss_is_that_of_all_of_them():
    batch = TASK.sample(4, seed=0, index=1)
    x, y, queries, labels = TASK.parts(batch)
    assert torch.equal(torch.cat([x, queries], 1), batch.x)
    assert torch.equal(torch.cat([y, labels], 1)[..., 0], batch.y)
    assert (x.shape, labels.shape) == ((4, 4, 2), (4, 3, 1))
    expected = torch.stack(
        [(batch.y[i, :4].mean() - batch.y[i, j]) ** 2 for i in range(4) for j in (4, 5, 6)]
    ).mean()
    torch.testing.assert_close(TASK.loss(Mean(), batch), expected)


def test_batches_are_those_of_the_family():
    family = TASK.family
    assert torch.equal(
        TASK.sample(2, seed=3, index=5, shard=1).x, family.sample(2, seed=3, index=5, shard=1).x
    )
    validation = family.sample(2, seed=3, index=VALIDATION_INDEX)
    assert torch.equal(TASK.validation(2, seed=3).x, validation.x)
    described = TASK.description()
    assert described["family"] == family.description()
    assert (described["task"], described["n_queries"]) == ("QueryTask", 3)


def test_bad_queries_are_refused():
    with pytest.raises(SettingError, match="n_queries must be a whole number of at least 1, got 0"):
        QueryTask(GeneratedTask(draw), n_queries=0)
    message = r"x has shape \(2, 7, 2\); expected more tokens than 7, the number of queries"
    with pytest.raises(DataError, match=message):
        QueryTask(GeneratedTask(draw), n_queries=7).parts(TASK.sample(2, seed=0, index=0))


class Flat(Mean):
    def forward(self, x, y, queries):
        return super().forward(x, y, queries)[..., 0]


def test_a_prediction_of_another_shape_is_refused():
    message = r"The model's prediction has shape \(4, 3\); expected \(4, 3, 1\), the shape of the"
    with pytest.raises(DataError, match=message):
        TASK.loss(Flat(), TASK.sample(4, seed=0, index=0))
