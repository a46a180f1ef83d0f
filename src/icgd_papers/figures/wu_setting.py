r"""The setting of App. G of wu: laws of prompts, sizes of models, and what the paper does not say.

Pretraining draws inputs from N(-2, I) and teachers with weights N(0, I). Tests draw inputs from
w_1 N(-2, I) + w_2 N(2, I), or teachers with weights N(mean, I). A test prompt has 1.5 times as many
examples as one of pretraining, and a query is asked after each of `lengths` examples.

The paper does not give the width, the activation and the scale of its teachers, the learning rates,
the batches of direct training, the normalisation of ReLU attention, and how R^2 is formed. They are
chosen here, in `Budget`, in `training/teachers.py` and in `training/decoder.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from icgd.errors import SettingError
from icgd.problems.settings import count
from icgd_papers.reproduction import Row
from icgd_papers.training.causal_task import CausalTask
from icgd_papers.training.covariates import ShiftedMixture
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import Batch, InContextTask
from icgd_papers.training.teachers import Teachers

FIRST_TEST, FIRST_CHOICE = 2**31, 2**31 + 2**30
"""The numbers of the first batches of the test, and of the tasks on which settings are chosen."""

PROMPTS_AT_ONCE = 64
"""Teachers are drawn for so many prompts at once, as in the paper; all of them take gigabytes."""

CHECKPOINT_EVERY = 100
"""Steps between two checkpoints: an interruption costs a few seconds of the laptop presets."""


@dataclass(frozen=True)
class Law:
    """Where prompts come from: the mixture of the inputs, and the mean of the teachers' weights."""

    mixture: tuple[float, float] = (1.0, 0.0)
    mean: float = 0.0

    @property
    def inputs(self) -> str:
        """The law of the inputs in words."""
        return "({:g}, {:g})".format(*self.mixture)

    @property
    def teachers(self) -> str:
        """The law of the teachers' weights in words."""
        return f"N({self.mean:g}, I)"

    @property
    def columns(self) -> Row:
        return {"inputs": self.inputs, "teacher_weights": self.teachers}


PRETRAINING = Law()


@dataclass(frozen=True)
class Baselines:
    """How the networks and the constructed transformers beside a decoder are trained.

    Learning rates, step sizes and penalties are chosen on `n_choice` prompts of pretraining.
    """

    direct_width: int
    n_epochs: int = 100
    learning_rates: tuple[float, ...] = (0.003, 0.01)
    step_counts: tuple[int, ...] = (10, 100, 1000)
    step_sizes: tuple[float, ...] = (0.0125, 0.025, 0.05)
    penalties: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    n_choice: int = 32


@dataclass(frozen=True)
class Budget:
    """The sizes of a preset: prompts, teachers, decoders, their training, and the test."""

    input_width: int
    hidden_width: int
    """The width of the teachers."""
    n_examples: int
    n_blocks: int
    width: int
    n_heads: int
    mlp_width: int
    n_steps: int
    batch_size: int
    learning_rate: float
    lengths: tuple[int, ...]
    n_test: int
    n_seeds: int
    baselines: Baselines
    tokens: str = "joint"
    warmup_steps: int = 0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        count("n_seeds", self.n_seeds)
        count("n_test", self.n_test, least=2)  # the variance of one label is 0
        if max(self.lengths) > self.longest:
            raise SettingError(
                f"lengths go up to {max(self.lengths)} examples, and a test prompt has "
                f"{self.longest}, 1.5 times those of pretraining, for which the decoder has "
                "positions. Give shorter lengths, or more n_examples."
            )

    @property
    def longest(self) -> int:
        """The examples of a test prompt: 1.5 times those of pretraining."""
        return 3 * self.n_examples // 2

    @property
    def n_positions(self) -> int:
        """The places of a test prompt, each of which has a learnt position."""
        return (self.longest + 1) * (2 if self.tokens == "interleaved" else 1)

    @property
    def columns(self) -> Row:
        """What decides the outcome of a decoder, but for its seed."""
        return {
            "input_width": self.input_width,
            "hidden_width": self.hidden_width,
            "pretraining_length": self.n_examples,
            "width": self.width,
            "tokens": self.tokens,
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "n_test": self.n_test,
        }

    def task(self, n_layers: int, law: Law, n_examples: int) -> InContextTask:
        """Prompts of a law with teachers of `n_layers` layers."""
        inputs = ShiftedMixture.of_width(self.input_width, law.mixture)
        return InContextTask(inputs, Teachers(n_layers, self.hidden_width, law.mean), n_examples)

    def pretraining(self, n_layers: int) -> CausalTask:
        """What a decoder learns from."""
        return CausalTask(self.task(n_layers, PRETRAINING, self.n_examples))

    def decoder(self, attention: str, seed: int) -> Decoder:
        """The decoder before training."""
        return Decoder(
            input_width=self.input_width,
            n_blocks=self.n_blocks,
            width=self.width,
            n_heads=self.n_heads,
            mlp_width=self.mlp_width,
            attention=attention,
            tokens=self.tokens,
            n_positions=self.n_positions,
            seed=seed,
        )

    def settings(self, seed: int, device: str = "cpu") -> Settings:
        """How a decoder is trained."""
        return Settings(
            n_steps=self.n_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            final_learning_rate=self.learning_rate / 100,
            warmup_steps=self.warmup_steps,
            clip_norm=self.clip_norm,
            seed=seed,
            device=device,
            log_every=max(1, self.n_steps // 20),
            checkpoint_every=CHECKPOINT_EVERY,
        )

    def test(self, n_layers: int, law: Law, seed: int) -> Batch:
        """Test prompts of the full length, which training never sees."""
        return _drawn(self.task(n_layers, law, self.longest), self.n_test, seed, FIRST_TEST)

    def choice(self, n_layers: int, seed: int) -> Batch:
        """Prompts of pretraining on which the settings of baselines are chosen."""
        task = self.task(n_layers, PRETRAINING, self.n_examples)
        return _drawn(task, self.baselines.n_choice, seed, FIRST_CHOICE)


def _drawn(task: InContextTask, n_tasks: int, seed: int, first: int) -> Batch:
    parts = list(_parts(task, n_tasks, seed, first))
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
    return Batch(x, y)


def _parts(task: InContextTask, n_tasks: int, seed: int, first: int) -> Iterator[Batch]:
    for number, start in enumerate(range(0, n_tasks, PROMPTS_AT_ONCE)):
        n_left = min(PROMPTS_AT_ONCE, n_tasks - start)
        yield task.sample(n_left, seed=seed, index=first + number)
