"""A study: one decoder learns prompts of pretraining, and is tested on prompts of several laws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from icgd_papers.estimates import timed_step
from icgd_papers.figures import wu_lines
from icgd_papers.figures.cheng_training import AS_ALWAYS
from icgd_papers.figures.wu_lines import LEARNT, Outcome, Point
from icgd_papers.figures.wu_setting import PROMPTS_AT_ONCE, Budget, Law
from icgd_papers.reproduction import AbstractStudy, Conduct
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.devices import device_named
from icgd_papers.training.loop import train
from icgd_papers.training.tasks import Batch

SECONDS_A_PLACE = 4e-8
"""The rough time of a training step for each token and each parameter of a decoder."""


@final
@dataclass(frozen=True)
class LearntStudy(AbstractStudy[Outcome]):
    """A decoder for teachers of `n_layers` layers, and the laws that it is tested on."""

    uses_device: ClassVar[bool] = True

    n_layers: int
    attention: str
    laws: tuple[Law, ...]
    seed: int
    budget: Budget

    @property
    def n_steps(self) -> int:
        return self.budget.n_steps

    @property
    def work(self) -> float:
        """The seconds of all steps, roughly: they grow with the blocks and with the tokens."""
        budget = self.budget
        n_weights = budget.n_blocks * budget.width * (4 * budget.width + 2 * budget.mlp_width)
        n_places = budget.batch_size * budget.n_positions / 1.5
        return self.n_steps * n_weights * n_places * SECONDS_A_PLACE / 100

    def require(self, device: str) -> None:
        """Raise `SizeError` unless the decoder can be trained in the processor's memory."""
        if device_named(device).place.type == "cpu":
            model = self.budget.decoder(self.attention, self.seed).float()
            model.require_room(self.budget.n_examples + 1, self.budget.batch_size)

    def step_seconds(self, device: str) -> float:
        model, budget = self.budget.decoder(self.attention, self.seed), self.budget
        settings = replace(budget.settings(self.seed, device), warmup_steps=0)  # few are timed
        return timed_step(model, budget.pretraining(self.n_layers), settings)

    def train(self, folder: Path | None = None) -> Outcome:
        return self._tested(AS_ALWAYS, folder)

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        return self._tested(conduct, folder)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return wu_lines.outcome_of(data)

    def _tested(self, conduct: Conduct, folder: Path | None) -> Outcome:
        stopwatch = Stopwatch(folder)
        model, loss = trained_decoder(self, conduct, folder, stopwatch)
        points = tuple(point for law in self.laws for point in self._points(model, law))
        return Outcome(points, stopwatch.seconds, loss)

    def _points(self, model: Decoder, law: Law) -> Iterator[Point]:
        test = self.budget.test(self.n_layers, law, self.seed)
        predictions = predictions_of(model, test)
        for length in self.budget.lengths:
            yield Point.of(law, LEARNT, predictions[:, length], test.y[:, : length + 1])


def trained_decoder(
    study: LearntStudy, conduct: Conduct, folder: Path | None, stopwatch: Stopwatch
) -> tuple[Decoder, float]:
    """The decoder of a study on the CPU, after training, and the loss of its last batch."""
    budget, model = study.budget, study.budget.decoder(study.attention, study.seed)

    def on_step(step: int, n_steps: int, loss: float) -> None:
        stopwatch.keep()
        if conduct.on_step:
            conduct.on_step(step, n_steps, loss)

    log = train(
        model,
        budget.pretraining(study.n_layers),
        budget.settings(study.seed, conduct.device),
        folder=folder and folder / "model",
        on_step=on_step,
    )
    return model.cpu().eval(), float(log.rows[-1]["loss"])


@torch.no_grad()
def predictions_of(model: Decoder, test: Batch) -> Float[Tensor, "task token"]:
    """What the decoder predicts of every token, in parts that fit the memory."""
    dtype = next(model.parameters()).dtype
    parts = test.to("cpu", dtype).split(PROMPTS_AT_ONCE)
    return torch.cat([model.predictions(part.x, part.y) for part in parts]).double()
