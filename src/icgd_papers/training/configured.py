"""From a config to a trained model: its tasks, its model, its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from icgd.errors import SettingError, UnknownNameError, brief
from icgd.problems.kernel_machine import KERNELS, KernelMachine
from icgd.problems.settings import count, finite, named
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.causal_task import CausalTask, Curriculum
from icgd_papers.training.config import Config, read_config
from icgd_papers.training.covariates import (
    AbstractCovariates,
    Ellipsoid,
    Gaussian,
    GaussianMixture,
    ShiftedMixture,
)
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.effective_keys import DECODER_KEYS, require_effective
from icgd_papers.training.labels import AbstractLabels, KernelProcess, LinearFunctions, ReluNetworks
from icgd_papers.training.logs import Log
from icgd_papers.training.loop import OnStep, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.own_data import GeneratedTask, TaskTable
from icgd_papers.training.prompt_memory import require_prompts
from icgd_papers.training.references import function_named, imported
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import AbstractTask, Batch, InContextTask
from icgd_papers.training.teachers import MOST_LAYERS, Teachers

CONFIG = "config.toml"
"""The file in a run's folder that holds its whole config, defaults included."""


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
    """Train the model of a config, or go on with it.

    The folder gets the whole config with all defaults, as `config.toml`.

    Args:
        config: the config, or the file that holds it.
        options: what replaces single keys of a file.
        on_step: is called with the step, the number of steps and the loss.

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
    settings, folder = Settings(**config["training"]), config.run_folder
    for module in config[""]["imports"]:
        imported(module, config.folder)
    task = task_of(config)
    model = model_of(config, task)
    log = train(
        model,
        task,
        settings,
        folder=folder,
        on_step=on_step,
        loggers=config[""]["loggers"],
        texts={CONFIG: config.moved_to(folder).text()},
    )
    return Trained(model, task, log, folder)


def task_of(config: Config) -> AbstractTask:
    """The tasks of a config: of a table, of a function, or of a law."""
    require_effective(config)
    data = config["data"]
    if data["tasks"] and data["generator"]:
        raise SettingError("Give either tasks or generator, not both.")
    if data["average_labels"] and data["every_token"]:
        raise SettingError("Give either average_labels or every_token, not both.")
    task = _prompts_of(config)
    if data["every_token"]:
        return CausalTask(task, _curriculum_of(data))
    if data["average_labels"] and isinstance(task, InContextTask):
        return AveragedTask(task)
    return task


def _curriculum_of(data: Mapping[str, Any]) -> Curriculum | None:
    if data["curriculum_batches"] is None:
        return None
    width, n_examples = data["first_width"], data["first_examples"]
    return Curriculum(
        data["input_width"] if width is None else width,
        data["n_examples"] if n_examples is None else n_examples,
        count("curriculum_batches", data["curriculum_batches"]),
    )


def _prompts_of(config: Config) -> AbstractTask:
    data = config["data"]
    if data["tasks"]:
        return TaskTable.read(
            config.folder / data["tasks"],
            label_columns=data["label_columns"],
            validation_share=data["validation_share"],
            shuffles_tokens=data["shuffle_tokens"],
        )
    if data["generator"]:
        return GeneratedTask(function_named(data["generator"], config.folder))
    most = max(config["training"]["batch_size"], config["training"]["n_validation"])
    require_prompts(data, most)
    return _law_of(data)


def _law_of(data: Mapping[str, Any]) -> InContextTask:
    covariates = named("law of inputs", data["inputs"], INPUTS)(data)
    labels = _labels_of(data, covariates)
    return InContextTask(covariates, labels, data["n_examples"], data["output_width"])


def _covariance(data: Mapping[str, Any]) -> Tensor:
    width = count("input_width", data["input_width"])
    spectrum = data["spectrum"] or [1.0] * width
    if len(spectrum) != width:
        raise SettingError(
            f"spectrum has {len(spectrum)} entries; expected {width}, one for each input."
        )
    return torch.diag(torch.tensor(spectrum, dtype=torch.float64))


INPUTS: dict[str, Callable[[Mapping[str, Any]], AbstractCovariates]] = {
    "gaussian": lambda data: Gaussian(_covariance(data)),
    "ellipsoid": lambda data: Ellipsoid(_covariance(data)),
    "mixture": lambda data: GaussianMixture(_covariance(data), data["n_clusters"]),
    "shifted-mixture": lambda data: ShiftedMixture(
        _covariance(data), tuple(data["weights"]), tuple(data["centres"])
    ),
}
"""The laws of inputs that a config may name."""


def _labels_of(data: Mapping[str, Any], covariates: AbstractCovariates) -> AbstractLabels:
    """The law of the labels, which are functions of the whitened inputs."""
    name, whitening = data["labels"], covariates.whitening
    if name == "linear":
        return LinearFunctions(whitening)
    if name == "relu-network":
        return ReluNetworks(data["hidden_width"], whitening)
    if name == "teachers":
        n_layers = count("teacher_layers", data["teacher_layers"], most=MOST_LAYERS)
        mean = finite("teacher_mean", data["teacher_mean"])
        activation = data["teacher_activation"]
        return Teachers(n_layers, data["hidden_width"], mean, activation, whitening)
    if name not in KERNELS:
        known = ["linear", "relu-network", "teachers", *KERNELS]
        raise UnknownNameError.of("law of labels", name, known=list(dict.fromkeys(known)))
    return KernelProcess(KernelMachine(covariates.input_width, name), whitening)


def model_of(config: Config, task: AbstractTask) -> nn.Module:
    """The model of a config before training: your own, or one of icgd's."""
    model = config["model"]
    if model["factory"]:
        made = function_named(model["factory"], config.folder)()
        if not isinstance(made, nn.Module):
            raise SettingError(
                f"The result of {model['factory']} must be a torch module, got {brief(made)}."
            )
        return made
    return named("kind of model", model["kind"], MODELS)(model, task.sample(1, seed=0, index=0))


def _kernel_transformer(model: Mapping[str, Any], batch: Batch) -> nn.Module:
    return KernelTransformer(
        batch.x.shape[-1],
        model["n_layers"],
        tuple(model["kernels"]),
        transforms_covariates=model["transform_inputs"],
        seed=count("model_seed", model["model_seed"], least=0),
    )


def _decoder(model: Mapping[str, Any], batch: Batch) -> nn.Module:
    return Decoder(
        input_width=batch.x.shape[-1],
        output_width=batch.y.shape[-1] if batch.y.ndim == 3 else 1,
        seed=count("model_seed", model["model_seed"], least=0),
        **{name: model[name] for name in DECODER_KEYS},
    )


MODELS: dict[str, Callable[[Mapping[str, Any], Batch], nn.Module]] = {
    "kernel-transformer": _kernel_transformer,
    "decoder": _decoder,
}
"""The models that a config may name, each from its section and a batch."""
