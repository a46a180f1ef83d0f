from dataclasses import replace

import pytest
import torch

from icgd.training.devices import device_named
from icgd.training.parallel import Processes
from icgd.training.settings import Settings
from icgd.training.training_run import TrainingRun
from tests.training.toy import SETTINGS, ToyModel, ToyTask


def begun(settings: Settings = SETTINGS) -> TrainingRun:
    return TrainingRun(ToyModel(), ToyTask(), settings, device_named("cpu"), Processes(), None)


def test_a_state_put_into_another_run_continues_with_the_same_bits():
    first, second = begun(), begun()
    for _ in range(4):
        first.evaluate()
        first.update()
    second.resume(first.state())
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
