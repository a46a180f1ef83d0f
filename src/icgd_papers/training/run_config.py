"""Train the model of a config on its tasks, in its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from icgd.environment import require_memory
from icgd.errors import SettingError, UnknownNameError, quoted
from icgd.problems.kernel_machine import KERNELS, KernelMachine
from icgd.problems.settings import count, finite, named
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.callbacks import Callback, TensorBoard
from icgd_papers.training.config import DECODER_KEYS, Config, DataConfig, read_config
from icgd_papers.training.covariates import (
    AbstractCovariates,
    Ellipsoid,
    Gaussian,
    GaussianMixture,
    ShiftedMixture,
)
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.labels import (
    MOST_LAYERS,
    AbstractLabels,
    KernelProcess,
    LinearFunctions,
    ReluNetworks,
    Teachers,
)
from icgd_papers.training.logs import Log
from icgd_papers.training.loop import OnStep, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.own_data import GeneratedTask, TaskTable
from icgd_papers.training.references import function_named, imported
from icgd_papers.training.tasks import AbstractTask, CausalTask, Curriculum, InContextTask

CONFIG = "config.toml"
"""The file in a run's folder that holds its config with all defaults."""


@dataclass(frozen=True)
class Trained:
    """A model that a config trained, with its task, its log and its folder."""

    model: nn.Module
    task: AbstractTask
    log: Log
    folder: Path


def train_config(
    config: Config | Path | str,
    options: Mapping[str, Any] | None = None,
    *,
    on_step: OnStep | None = None,
) -> Trained:
    """Train the model of a config, or resume its training.

    The folder gets the config with all defaults, as `config.toml`.

    Args:
        config: the config, or the file that holds it.
        options: values that replace single keys of a file.
        on_step: called with the step, the number of steps and the loss.

    Returns:
        The trained model and its log.

    Raises:
        DataError: if the file cannot be read.
        UnknownNameError: if a key or a name in it is not known.
        SettingError: if a value does not suit its key, or the others.
        InterruptedTrainingError: after Ctrl-C.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from icgd_papers.training import read_config, train_config
        >>> with TemporaryDirectory() as folder:
        ...     options = {"folder": folder, "n_steps": 2, "batch_size": 8}
        ...     trained = train_config(read_config(options=options))
        >>> len(trained.log.rows)
        2
    """
    if not isinstance(config, Config):
        config = read_config(config, options)
    folder = Path(config.folder)
    for module in config.imports:
        imported(module)
    task = task_of(config)
    model = model_of(config, task)
    log = train(
        model,
        task,
        config.training,
        folder=folder,
        on_step=on_step,
        callbacks=[_callback(name, folder) for name in config.callbacks],
        texts={CONFIG: config.text(folder)},
    )
    return Trained(model, task, log, folder)


def _callback(name: str, folder: Path) -> Callback:
    made: Callback = TensorBoard(folder) if name == "tensorboard" else function_named(name)(folder)
    return made


def task_of(config: Config) -> AbstractTask:
    """Return the tasks of a config: from a table, a function or a law."""
    data = config.data
    if data.tasks and data.generator:
        raise SettingError("Give either tasks or generator, not both.")
    if data.average_labels and data.every_token:
        raise SettingError("Give either average_labels or every_token, not both.")
    task: AbstractTask
    if data.tasks:
        task = TaskTable.read(
            data.tasks,
            label_columns=data.label_columns,
            validation_share=data.validation_share,
            shuffles_tokens=data.shuffle_tokens,
        )
    elif data.generator:
        task = GeneratedTask(function_named(data.generator))
    else:
        _require_memory(data, max(config.training.batch_size, config.training.n_validation))
        covariates = _covariates_of(data)
        labels = _labels_of(data, covariates)
        task = InContextTask(covariates, labels, data.n_examples, data.output_width)
    if data.every_token:
        curriculum = None
        if data.curriculum_batches is not None:
            curriculum = Curriculum(
                data.input_width if data.first_width is None else data.first_width,
                data.n_examples if data.first_examples is None else data.first_examples,
                count("curriculum_batches", data.curriculum_batches),
            )
        return CausalTask(task, curriculum)
    if data.average_labels and isinstance(task, InContextTask):
        return AveragedTask(task)
    return task


def _require_memory(data: DataConfig, n_tasks: int) -> None:
    """Raise `SizeError` unless a batch and the covariance of its inputs fit into memory.

    A batch is drawn at once, in float64, even if its gradient is computed in parts.
    """
    width, output_width = (
        count("input_width", data.input_width),
        count("output_width", data.output_width),
    )
    n_examples = count("n_examples", data.n_examples)
    remedy = "Give narrower or fewer examples, or smaller batches."
    require_memory(f"The covariance of {width:,} inputs", 8 * width**2, remedy)
    draws_networks = data.labels in ("relu-network", "teachers")
    hidden = count("hidden_width", data.hidden_width) if draws_networks else 0
    tokens = (n_examples + 1) * max(width + output_width, hidden)
    require_memory(
        f"Drawing {n_tasks:,} prompts of {n_examples:,} examples, {width:,} inputs and "
        f"{output_width:,} outputs",
        8 * n_tasks * (tokens + hidden * max(width, hidden)),
        remedy,
    )


def _covariates_of(data: DataConfig) -> AbstractCovariates:
    width = count("input_width", data.input_width)
    spectrum = data.spectrum or (1.0,) * width
    if len(spectrum) != width:
        raise SettingError(
            f"spectrum has {len(spectrum)} entries; expected {width}, one for each input."
        )
    covariance = torch.diag(torch.tensor(spectrum, dtype=torch.float64))
    laws: dict[str, Callable[[], AbstractCovariates]] = {
        "gaussian": lambda: Gaussian(covariance),
        "ellipsoid": lambda: Ellipsoid(covariance),
        "mixture": lambda: GaussianMixture(covariance, data.n_clusters),
        "shifted-mixture": lambda: ShiftedMixture(covariance, data.weights, data.centres),
    }
    return named("law of inputs", data.inputs, laws)()


def _labels_of(data: DataConfig, covariates: AbstractCovariates) -> AbstractLabels:
    """Return the law of the labels, which are functions of the whitened inputs."""
    name, whitening = data.labels, covariates.whitening
    if name == "linear":
        return LinearFunctions(whitening)
    if name == "relu-network":
        return ReluNetworks(data.hidden_width, whitening)
    if name == "teachers":
        n_layers = count("teacher_layers", data.teacher_layers, most=MOST_LAYERS)
        mean = finite("teacher_mean", data.teacher_mean)
        return Teachers(n_layers, data.hidden_width, mean, data.teacher_activation, whitening)
    if name not in KERNELS:
        laws = dict.fromkeys(["linear", "relu-network", "teachers", *KERNELS])
        raise UnknownNameError.of("law of labels", name, known=list(laws))
    return KernelProcess(KernelMachine(covariates.input_width, name), whitening)


def model_of(config: Config, task: AbstractTask) -> nn.Module:
    """Return the model of a config before training: your own, or one of icgd's."""
    model = config.model
    if model.factory:
        made = function_named(model.factory)()
        if not isinstance(made, nn.Module):
            raise SettingError(
                f"The result of {model.factory} must be a torch module, got {quoted(made)}."
            )
        return made
    batch, seed = task.sample(1, seed=0, index=0), count("model_seed", model.model_seed, least=0)
    input_width = batch.x.shape[-1]
    if model.kind == "kernel-transformer":
        return KernelTransformer(
            input_width,
            model.n_layers,
            model.kernels,
            transforms_covariates=model.transform_inputs,
            seed=seed,
        )
    if model.kind == "decoder":
        return Decoder(
            input_width=input_width,
            output_width=batch.y.shape[-1] if batch.y.ndim == 3 else 1,
            seed=seed,
            **{name: getattr(model, name) for name in DECODER_KEYS},
        )
    raise UnknownNameError.of("kind of model", model.kind, known=["kernel-transformer", "decoder"])
