from dataclasses import replace
from math import isnan, nan

import pytest
import torch

from icgd_papers.training.devices import device_named
from icgd_papers.training.logs import Log
from icgd_papers.training.parallel import Processes
from icgd_papers.training.settings import Settings
from icgd_papers.training.training_run import TrainingRun
from tests.papers.training.toy import SETTINGS, ToyModel, ToyTask


def begun(settings: Settings = SETTINGS) -> TrainingRun:
    return TrainingRun(ToyModel(), ToyTask(), settings, device_named("cpu"), Processes(), None)


def test_a_state_put_into_another_run_continues_with_the_same_bits():
    first, second = begun(), begun()
    for _ in range(4):
        first.evaluate()
        first.update()
    second.resume(first.state(), Log())
    for run in (first, second):
        run.evaluate()
        run.update()
    assert second.step == 5
    assert torch.equal(second.model.weight, first.model.weight)
    assert second.log == first.log


def test_a_row_is_the_best_if_its_validation_loss_is_the_smallest_so_far():
    run = begun(replace(SETTINGS, n_validation=8, log_every=1, learning_rate=1.0))
    best = []
    for _ in range(6):
        run.evaluate()
        best.append(run.is_best)
        run.update()
    losses = run.log.column("validation_loss")
    expected = [losses[k] < min(losses[:k], default=9e9) for k in range(6)]
    assert best == expected
    assert True in best[1:]
    assert False in best[1:]


def test_validation_in_parts_is_validation_at_once():
    """Ten tasks in parts of eight and two."""
    parts = begun(replace(SETTINGS, n_validation=10))
    whole = begun(replace(SETTINGS, n_validation=10, batch_size=16))
    for run in (parts, whole):
        run.evaluate()
    first, second = (run.log.rows[0]["validation_loss"] for run in (parts, whole))
    assert first == pytest.approx(second, rel=1e-6)
    assert parts.model.training


class Averaging(ToyModel):
    """It counts its forward passes in training, and averages what it sees, as batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("n_passes", torch.tensor(0))

    def forward(self, x, y):
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * x[:, -1].mean(0))
            self.n_passes.add_(1)
        return super().forward(x, y) + (0 if self.training else self.mean.sum())


def run_of(model: torch.nn.Module, settings: Settings = SETTINGS) -> TrainingRun:
    """A run whose `measure` makes a forward pass too."""
    device, processes = device_named("cpu"), Processes()
    task = ToyTask()

    def measure(model):
        batch = task.sample(2, seed=9, index=0).to("cpu", torch.float32)
        return {"again": task.loss(model, batch).item()}

    return TrainingRun(model, task, settings, device, processes, measure)


def test_buffers_hold_one_forward_pass_for_each_update_also_if_training_continues():
    settings = replace(SETTINGS, n_validation=4, log_every=1)
    first, second = run_of(Averaging(), settings), run_of(Averaging(), settings)
    for _ in range(4):
        first.evaluate()
        first.update()
    first.evaluate()
    assert first.model.n_passes == 4
    expected = torch.zeros(2)
    for step in range(4):
        drawn = ToyTask().sample(8, seed=0, index=step // SETTINGS.resample_every)
        expected = 0.5 * expected + 0.5 * drawn.x[:, -1].float().mean(0)
    torch.testing.assert_close(first.model.mean, expected)
    second.resume(first.state(), Log())
    second.evaluate()
    for run in (first, second):
        run.update()
        run.evaluate()
    assert second.log == first.log
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor)


class NoNumberAtFirst(ToyModel):
    """Its first prediction outside training is not a number."""

    is_first = True

    def forward(self, x, y):
        wrong = not self.training and self.is_first
        self.is_first = self.is_first and self.training
        return super().forward(x, y) * (nan if wrong else 1.0)


def test_a_validation_loss_that_is_no_number_is_never_the_best_and_hides_no_better_one():
    settings = replace(SETTINGS, n_validation=4, log_every=1)
    run = TrainingRun(
        NoNumberAtFirst(), ToyTask(), settings, device_named("cpu"), Processes(), None
    )
    best = []
    for _ in range(2):
        run.evaluate()
        best.append(run.is_best)
        run.update()
    assert isnan(run.log.rows[0]["validation_loss"])
    assert best == [False, True]
