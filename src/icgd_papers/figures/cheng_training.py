r"""One model of the figures of cheng: how it is set up, trained, tested and measured.

Inputs lie on the ellipsoid of App. H.1, whose axes follow from the seed, and labels are drawn from
the kernel process of the whitened inputs (Example 7). The kernel of "linear + exp" is

    1/2 <G_1 u, G_1 v> + 1/2 exp(<G_2 u, G_2 v>),    G_1 = diag(1, 1, 0, 0, 0), G_2 = I - G_1,

by the definition in App. D; the formula printed there has a further 1/2 inside exp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from icgd.errors import TrainingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine, Rows
from icgd_papers.estimates import timed_step
from icgd_papers.reproduction import AbstractStudy, Conduct, Row, six_digits
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.covariates import PAPER_SPECTRUM, Ellipsoid
from icgd_papers.training.labels import AbstractLabels, KernelProcess, LinearFunctions
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.similarity import distances_to_identity
from icgd_papers.training.tasks import InContextTask

INPUT_WIDTH = len(PAPER_SPECTRUM)

AS_ALWAYS = Conduct()


def _diagonal(*entries: float) -> Rows:
    return tuple(map(tuple, torch.diag(torch.tensor(entries)).tolist()))


LABELS: Mapping[str, tuple[KernelHead, ...]] = {
    "linear": (KernelHead("linear"),),
    "relu": (KernelHead("relu"),),
    "exp": (KernelHead("exp"),),
    "linear + exp": (
        KernelHead("linear", _diagonal(1.0, 1.0, 0.0, 0.0, 0.0), weight=0.5),
        KernelHead("exp", _diagonal(0.0, 0.0, 1.0, 1.0, 1.0), weight=0.5),
    ),
}
"""The kernels that the labels may have, by name."""

TEST_INDEX = 2**31
"""The number of the test's batch, which training never reaches."""

DEEPEST_PLAIN = 3
"""Models of up to so many layers learn in full units; in deeper ones effects multiply."""

MOST_MOVED = {"exp": 0.1}
"""The largest unit of A: exp attention overflows if its inputs grow by much in each layer."""

MOST_ATTEMPTS = 4

CHECKPOINT_EVERY = 50
"""Steps between two checkpoints: an interruption costs a second or two of the laptop presets."""

FIRST_MOVE = 0.1
"""The first standard deviation of A's entries, in units: a layer hardly moves the inputs."""


@dataclass(frozen=True)
class Budget:
    """How long and on how much every model of a figure is trained."""

    n_steps: int
    batch_size: int
    n_test: int
    n_seeds: int
    learning_rate: float = 0.02
    resample_every: int = 2
    averages_labels: bool = True
    """Whether training averages over labels in closed form; the paper draws them."""
    logarithmic: bool = False
    """Whether training makes the logarithm of that mean small."""
    clip_norm: float = 1.0
    n_rows: int = 40
    """The number of points of a curve over the training."""

    @property
    def columns(self) -> Row:
        """What decides the outcome, but for the learning rate, which training may halve."""
        return {
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "n_test": self.n_test,
            "resample_every": self.resample_every,
            "averages_labels": self.averages_labels,
            "logarithmic": self.logarithmic,
            "clip_norm": self.clip_norm,
        }


@dataclass(frozen=True)
class Outcome:
    """What training a model gave. The curve has a row for each step that was measured."""

    test_loss: float
    bayes_loss: float
    learning_rate: float
    """The budget's learning rate, halved each time that training overflowed."""
    seconds: float
    """The time of all attempts, and of all legs of an interrupted training."""
    curve: tuple[dict[str, float], ...]

    @property
    def columns(self) -> Row:
        """The columns of the outcome in the rows of all figures."""
        return {
            "test_loss": six_digits(self.test_loss),
            "bayes_loss": six_digits(max(self.bayes_loss, 0.0)),
            "learning_rate": self.learning_rate,
            "seconds": round(self.seconds, 1),
        }


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """One model: the kernel of its labels, the kernel of each head, its sizes, its seed.

    `panel` is the letter of the panel that shows it.
    """

    labels: str
    attention: tuple[str, ...]
    n_examples: int
    n_layers: int
    transforms_covariates: bool
    seed: int
    budget: Budget
    panel: str = ""

    @property
    def columns(self) -> Row:
        """The first columns of the rows of all figures."""
        return {
            "panel": self.panel,
            "labels": self.labels,
            "attention": " + ".join(self.attention),
            "n_examples": self.n_examples,
            "n_layers": self.n_layers,
            "transforms_covariates": self.transforms_covariates,
            "seed": self.seed,
        }

    @property
    def task(self) -> InContextTask:
        return task_of(self.labels, self.n_examples, self.seed)

    @property
    def settings(self) -> Settings:
        budget = self.budget
        return Settings(
            n_steps=budget.n_steps,
            batch_size=budget.batch_size,
            learning_rate=budget.learning_rate,
            final_learning_rate=budget.learning_rate / 100,
            clip_norm=budget.clip_norm,
            resample_every=budget.resample_every,
            seed=self.seed,
            log_every=max(1, budget.n_steps // budget.n_rows),
            checkpoint_every=CHECKPOINT_EVERY,
        )

    @property
    def learnt_task(self) -> InContextTask | AveragedTask:
        """What the model learns from."""
        averages, logarithmic = self.budget.averages_labels, self.budget.logarithmic
        return AveragedTask(self.task, logarithmic) if averages else self.task

    uses_device: ClassVar[bool] = True

    @property
    def n_steps(self) -> int:
        return self.budget.n_steps

    @property
    def work(self) -> float:
        """The time of a step grows with the layers."""
        return float(self.n_steps * self.n_layers)

    def step_seconds(self, device: str) -> float:
        settings = replace(self.settings, device=device)
        return timed_step(first_model(self), self.learnt_task, settings)

    def train(self, folder: Path | None = None) -> Outcome:
        return train_once(self, folder)

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        return train_once(self, folder, conduct)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return Outcome(**{**data, "curve": tuple(data["curve"])})


def task_of(labels: str, n_examples: int, seed: int) -> InContextTask:
    """Tasks on the seed's ellipsoid, whose labels have the kernel of this name."""
    inputs = Ellipsoid.of_seed(seed)
    return InContextTask(inputs, _law(labels, inputs.whitening), n_examples)


def _law(labels: str, whitening: Tensor) -> AbstractLabels:
    """The law of the labels; for the linear kernel a random direction, drawn faster."""
    if labels == "linear":
        return LinearFunctions(whitening)
    return KernelProcess(KernelMachine(INPUT_WIDTH, LABELS[labels]), whitening)


def train_once(
    study: Study,
    folder: Path | None = None,
    conduct: Conduct = AS_ALWAYS,
) -> Outcome:
    """Train the model; with a `folder`, continue where training was interrupted.

    If training overflows, it begins again with half the learning rate.
    """
    stopwatch = Stopwatch(folder)
    for attempt in range(MOST_ATTEMPTS - 1):
        try:
            return _train(study, folder and folder / f"attempt-{attempt}", conduct, stopwatch)
        except TrainingError:
            budget = replace(study.budget, learning_rate=study.budget.learning_rate / 2)
            study = replace(study, budget=budget)
    return _train(study, folder and folder / "last-attempt", conduct, stopwatch)


def _train(study: Study, folder: Path | None, conduct: Conduct, stopwatch: Stopwatch) -> Outcome:
    budget, task, model = study.budget, study.task, first_model(study)
    averaged = AveragedTask(task, budget.logarithmic)

    def on_step(step: int, n_steps: int, loss: float) -> None:
        stopwatch.keep()
        if conduct.on_step:
            conduct.on_step(step, n_steps, loss)

    log = train(
        model,
        study.learnt_task,
        replace(study.settings, device=conduct.device),
        folder=folder,
        measure=lambda _: distances_to_identity(model, task.covariates.covariance),
        on_step=on_step,
    )
    test = averaged.sample(budget.n_test, seed=study.seed, index=TEST_INDEX)
    with torch.no_grad():
        loss = float(averaged.mean_loss(model.cpu().double(), test))
    return Outcome(
        test_loss=loss,
        bayes_loss=averaged.bayes_loss(test),
        learning_rate=budget.learning_rate,
        seconds=stopwatch.seconds,
        curve=log.rows,
    )


def first_model(study: Study) -> KernelTransformer:
    """The model before training: A, B and C are Gaussian, and r is at most half a step.

    Parameters are learnt in units in which they are of order 1, for every number of examples and
    of layers: Adam moves all at the same speed, and 8 layers of exp attention overflow if B and C
    grow too fast. The units do not change what the model can compute.
    """
    model = KernelTransformer(
        INPUT_WIDTH,
        study.n_layers,
        study.attention,
        transforms_covariates=study.transforms_covariates,
        seed=study.seed,
    )
    units = torch.tensor([unit(kernel, study.n_examples) for kernel in study.attention])
    share = min(1.0, DEEPEST_PLAIN / study.n_layers)
    with torch.no_grad():
        model.r.copy_((-0.5 * share * units).expand_as(model.r))
    model.learn_in_units(r=units, B=torch.tensor(share), C=torch.tensor(share))
    if model.A is not None:
        most = torch.tensor([MOST_MOVED.get(kernel, inf) for kernel in study.attention])
        moves = share**4 * units.minimum(most)[:, None, None]
        with torch.no_grad():
            model.A.mul_(FIRST_MOVE / model.value_scale * moves)
        model.learn_in_units(A=moves)
    return model


def unit(kernel: str, n_examples: int) -> float:
    """The unit of a step: one over the usual largest eigenvalue of the kernel matrix."""
    mean = {"linear": 1 / INPUT_WIDTH, "relu": 1 / INPUT_WIDTH, "exp": 1.0}
    return 1.0 if kernel == "softmax" else 1 / (mean[kernel] * n_examples)
