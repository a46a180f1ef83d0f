"""Batches belong to their seeds, and the losses are those of the paper."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from icgd.errors import DistributionError, SettingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd_papers.training.covariates import Ellipsoid, Gaussian
from icgd_papers.training.labels import KernelProcess, LinearFunctions, ReluNetworks
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.own_data import GeneratedTask, TaskTable
from icgd_papers.training.tasks import Batch, InContextTask, QueryTask, generator_of

COVARIATES = Ellipsoid.of_seed(0)


def task(kernel="exp", n_examples=4):
    labels = KernelProcess(KernelMachine(5, (KernelHead(kernel),)), COVARIATES.whitening)
    return InContextTask(COVARIATES, labels, n_examples)


class MeanLabel(nn.Module):
    """Predicts a share of the mean label of the examples."""

    def __init__(self):
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x, y):
        return self.share * y[:, :-1].mean(-1)


@pytest.mark.parametrize("kernel", ["linear", "relu", "exp"])
def test_a_batch_depends_on_its_numbers_only(kernel):
    first = task(kernel).sample(30, seed=1, index=7, shard=2)
    task(kernel).sample(5, seed=1, index=6)
    torch.manual_seed(0)
    again = task(kernel).sample(30, seed=1, index=7, shard=2)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert first.x.dtype == first.y.dtype == torch.float64


@pytest.mark.parametrize("other", [(2, 0, 0), (1, 1, 0), (1, 0, 1), (1 + 2**31, 0, 0)])
def test_other_numbers_give_independent_draws(other):
    one = generator_of(1, 0, 0).standard_normal(10_000)
    two = generator_of(*other).standard_normal(10_000)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.05


def test_streams_of_index_and_shard_are_not_exchanged():
    draws = {generator_of(*numbers).random() for numbers in np.ndindex(4, 4, 4)}
    assert len(draws) == 64


def test_batches_do_not_share_the_numbers_that_turned_the_ellipsoid():
    ours, ellipsoids = generator_of(3, 0, 0).random(), np.random.default_rng(3).random()
    assert ours != ellipsoids


def test_the_loss_is_the_mean_square_at_the_query():
    batch = Batch(torch.zeros(2, 3, 1), torch.tensor([[1.0, 3.0, 2.0], [2.0, 2.0, -1.0]]))
    model = MeanLabel()
    loss = task().loss(model, batch)
    assert loss.item() == pytest.approx(((1 - 2) ** 2 + (1 + 1) ** 2) / 2)
    loss.backward()
    assert model.share.grad.item() == pytest.approx(2 * (2 * (1 - 2) + 2 * (1 + 1)) / 2)


def test_the_bayes_loss_is_the_variance_that_the_examples_leave():
    batch = task().sample(2000, seed=0, index=0)
    whole = task().labels.covariance(batch.x).numpy()
    left = 1 / np.linalg.inv(whole)[:, -1, -1]
    error = 2**0.5 * left.mean() / 2000**0.5  # of the mean of squares of normal numbers
    assert task().bayes_loss(batch) == pytest.approx(left.mean(), abs=4 * error)


def test_the_bayes_loss_of_networks_is_unknown():
    networks = InContextTask(COVARIATES, ReluNetworks(3), 4)
    assert networks.bayes_loss(networks.sample(2, seed=0, index=0)) is None


def test_a_batch_moves_to_another_dtype():
    batch = task().sample(2, seed=0, index=0)
    moved = batch.to("cpu", torch.float32)
    assert torch.equal(moved.x, batch.x.float())
    assert torch.equal(moved.y, batch.y.float())


def test_the_description_survives_a_file_and_tells_tasks_apart():
    tasks = [task(), task("relu"), task(n_examples=5)]
    texts = [json.dumps(each.description()) for each in tasks]
    assert len(set(texts)) == 3
    assert json.loads(texts[0]) == tasks[0].description() == task().description()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: task(n_examples=0),
            SettingError,
            "n_examples must be a whole number of at least 1",
        ),
        (
            lambda: InContextTask(Ellipsoid.sphere(2), LinearFunctions(COVARIATES.whitening), 3),
            DistributionError,
            "The labels are a function of 5 inputs, but the covariates have 2.",
        ),
        (
            lambda: task().sample(0, seed=0, index=0),
            SettingError,
            "n_tasks must be a whole number of at least 1, got 0.",
        ),
        (
            lambda: task().sample(1, seed=-1, index=0),
            SettingError,
            "seed must be a whole number of at least 0, got -1.",
        ),
        (
            lambda: task().sample(1, seed=0, index=2**32),
            SettingError,
            "index must be at most 4294967295, got 4294967296.",
        ),
    ],
)
def test_impossible_tasks_are_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_the_example_of_the_page_runs(capsys):
    page = Path(__file__).parents[3] / "docs" / "training" / "data.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    best, variance = map(float, capsys.readouterr().out.split())
    assert best < 0.5 * variance


def test_entries_of_a_vector_are_independent_draws_of_the_law():
    law = LinearFunctions()
    covariates = Gaussian(torch.eye(2, dtype=torch.float64))
    single, vector = (InContextTask(covariates, law, 4, width) for width in (1, 3))
    one, three = (task.sample(500, seed=0, index=0) for task in (single, vector))
    assert three.y.shape == (500, 5, 3)
    assert torch.equal(three.x, one.x)
    assert torch.equal(three.y[..., 0], one.y)
    correlation = torch.corrcoef(three.y[:, -1].mT)
    assert (correlation - torch.eye(3)).abs().max() < 0.2
    assert vector.bayes_loss(three) == pytest.approx(0.0, abs=1e-20)
    assert vector.description()["output_width"] == 3
    assert "output_width" not in single.description()


def test_a_batch_is_split_in_its_order():
    batch = Batch(torch.arange(10.0).reshape(5, 2, 1), torch.arange(10.0).reshape(5, 2))
    parts = batch.split(2)
    assert [len(part) for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([part.y for part in parts]), batch.y)


class Call(nn.Module):
    """It can be called with any arguments."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, *arguments):
        return self.weight * arguments[1][:, -1]


class OfQueries(Call):
    def forward(self, x, y, queries):
        return self.weight * y


SMALL_TASK = InContextTask(Gaussian(torch.eye(2, dtype=torch.float64)), LinearFunctions(), 3)
KERNEL = KernelTransformer(2, 1, ("linear",), transforms_covariates=False, seed=0)


@pytest.mark.parametrize(
    ("model", "task", "arguments"),
    [
        (OfQueries(), SMALL_TASK, "x, y"),
        (OfQueries(), GeneratedTask(lambda n_tasks, generator: None), "x, y"),
        (OfQueries(), TaskTable(torch.ones(2, 3, 2), torch.ones(2, 3)), "x, y"),
        (KERNEL, QueryTask(SMALL_TASK, 1), "x, y, queries"),
    ],
)
def test_a_model_that_is_called_otherwise_is_refused_before_training(
    tmp_path, model, task, arguments
):
    with pytest.raises(SettingError) as caught:
        train(model, task, Settings(1, 2, 0.1), folder=tmp_path / "run")
    assert str(caught.value) == (
        f"model must be a model whose forward takes ({arguments}), as {type(task).__name__} calls "
        f"it, got {type(model).__name__!r}."
    )
    assert not (tmp_path / "run").exists()


def test_a_model_that_takes_whatever_comes_is_trained():
    assert train(Call(), SMALL_TASK, Settings(1, 2, 0.1)).rows
