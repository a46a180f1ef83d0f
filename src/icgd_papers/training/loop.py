"""One small loop for every learnt model: Adam, clipped gradients, batches drawn on the fly.

Everything that a step depends on follows from its number and from what a checkpoint holds. So a
training that is killed, at whatever moment, ends with the same bits as one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from icgd.environment import own_modes
from icgd.errors import InterruptedTrainingError, SettingError
from icgd.problems.data import dtype_named
from icgd_papers.training.devices import device_named
from icgd_papers.training.interrupts import IsStopped, postponed_interrupt
from icgd_papers.training.loggers import MakeLogger, loggers_of
from icgd_papers.training.logs import Log
from icgd_papers.training.parallel import joined
from icgd_papers.training.record import Record, recorded
from icgd_papers.training.settings import Settings as Settings
from icgd_papers.training.tasks import AbstractTask
from icgd_papers.training.training_run import Measure, TrainingRun

OnStep = Callable[[int, int, float], None]
"""A function that is told after every step: its number, their number, and the loss before it."""


def train(
    model: nn.Module,
    task: AbstractTask,
    settings: Settings,
    *,
    folder: Path | str | None = None,
    measure: Measure | None = None,
    on_step: OnStep | None = None,
    loggers: Sequence[str | MakeLogger] = (),
    texts: Mapping[str, str] | None = None,
) -> Log:
    """Train `model` in place.

    The forward pass must draw no random numbers. Under torchrun every process must see the folder.

    Args:
        model: the model; it maps the inputs and labels of a batch to predictions.
        task: what batches are drawn from.
        settings: the number of steps, batches, learning rates, precision and device.
        folder: where checkpoints and logs are kept; an interrupted training continues there where
            it stopped.
        measure: what adds columns to the log, from the model.
        on_step: is called with the step, the number of steps and the loss.
        loggers: what receives the rows too: "tensorboard", "wandb", "mlflow", or an
            `AbstractLogger` of your own.
        texts: files that the folder gets when training begins, by name.

    Returns:
        The log, with a row every `settings.log_every` steps.

    Raises:
        InterruptedTrainingError: which is a KeyboardInterrupt, after Ctrl-C: the step that was
            under way is whole, and a folder has its checkpoint.
        TrainingError: if there is nothing to train, or if the loss is no number any more.
        CheckpointError: if the folder holds a training with other settings, or a damaged one.
        RunFolderError: if another process trains in the folder, or if training would replace logs
            or a config there that icgd did not write.
        SettingError: if there are loggers but no folder.

    Example:
        >>> import torch
        >>> from icgd_papers.training import Gaussian, InContextTask
        >>> from icgd_papers.training import KernelTransformer, LinearFunctions
        >>> from icgd_papers.training import Settings, train
        >>> law = Gaussian(torch.eye(2, dtype=torch.float64))
        >>> task = InContextTask(law, LinearFunctions(), n_examples=8)
        >>> model = KernelTransformer(2, 1, ("linear",), transforms_covariates=False, seed=0)
        >>> log = train(model, task, Settings(n_steps=3, batch_size=8, learning_rate=0.02))
        >>> len(log.rows)  # before the first step, and after the last
        2
    """
    makers = loggers_of(loggers)
    if makers and folder is None:
        raise SettingError("loggers has no effect without folder; give both or neither.")
    with own_modes(exact_products=False), torch.enable_grad():
        training = _begin(model, task, settings, measure)
        if folder is None:
            _take_steps(training, None, on_step)
        else:
            with recorded(training, Path(folder), makers, texts) as record:
                _take_steps(training, record, on_step)
    return training.log


def _begin(
    model: nn.Module, task: AbstractTask, settings: Settings, measure: Measure | None
) -> TrainingRun:
    """The training before its first step, with its model on the device."""
    device = device_named(settings.device, settings.dtype, autocast=settings.autocast)
    model.to(device.place, dtype_named(settings.dtype)).train()
    settings = replace(settings, device=device.place.type)
    training = TrainingRun(model, task, settings, device, joined(device.place), measure)
    training.require_room()
    return training


def _take_steps(training: TrainingRun, record: Record | None, on_step: OnStep | None) -> None:
    """Train to the end, or to the end of the step in which Ctrl-C is pressed."""
    if training.processes.count > 1:  # if one of them stopped, the others would wait for ever
        return _walk(training, record, on_step, lambda: False)
    with postponed_interrupt() as is_stopped:
        _walk(training, record, on_step, is_stopped)
    if is_stopped():  # asked only now, so that no Ctrl-C comes too late to be noticed
        kept = "Nothing was saved; with a folder it could go on later."
        if record:
            kept = (
                f"The checkpoint of this step is in {record.folder}; run the same training again "
                "to continue."
            )
        raise InterruptedTrainingError(
            f"Training was interrupted after {training.step} of {training.settings.n_steps} steps. "
            f"{kept}"
        )


def _walk(
    training: TrainingRun, record: Record | None, on_step: OnStep | None, is_stopped: IsStopped
) -> None:
    """Take the steps. A state is saved only after its loss and gradient were found finite."""
    while not training.is_over:
        loss = training.evaluate()
        if record and training.is_best:
            record.save_best()
        is_last = training.is_over or is_stopped()
        if record and (is_last or training.step % training.settings.checkpoint_every == 0):
            record.save()
        if is_last:
            return
        training.update()
        if on_step:
            on_step(training.step, training.settings.n_steps, loss)
