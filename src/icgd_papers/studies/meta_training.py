r"""The stages of meta-learning: what is learnt through a run of five steps, one after the other.

    step sizes    a number for each step, from the best single one; the start is random
    start         the step sizes and the weights that every task starts from
    longer        the same for longer, through exact descent, whose gradients are the same
    all           from there every weight of every layer, of a transformer whose steps share none
    nearest       the start and step sizes of the descent that predicts most nearly as "all" does

"longer" is there so that "all" does not only learn what descent could have learnt, and "nearest"
tells whether what it learnt is still descent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from icgd.compiled import Compiled
from icgd.learnable import AbstractRun, LearnableRun, UntiedRun, unrolled_descent
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.reproduction import Conduct
from icgd_papers.training.loop import train
from icgd_papers.training.own_data import GeneratedTask
from icgd_papers.training.query_task import Parts, QueryTask
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import AbstractTask, Batch
from icgd_papers.training.units import Units

N_STEPS, N_EXAMPLES, N_QUERIES = 5, 10, 10

HAND_CHOSEN = 0.1
"""The step size of someone who tries nothing."""

KINK_WIDTH = 2.0**-13
"""The width of ramps, which all weights learn beside: the default is far narrower, and a weight of
such a ramp can hardly move without breaking it."""

CANDIDATES = tuple(0.05 * 1.15**k for k in range(36))
"""The step sizes, up to 6.7, of which the best single one is chosen."""

TUNING_INDEX, TEST_INDEX = 2**31, 2**31 + 1
"""Batches that no training reaches: to choose the single step size, and to test."""


@dataclass(frozen=True)
class Budget:
    """How wide the network is, how long each stage learns, and at which rates of Adam.

    Half a million weights that all move at once change much, so their rate is small.
    """

    n_seeds: int
    width: int
    batch_size: int
    n_test: int
    step_size_steps: int
    start_steps: int
    longer_steps: int
    all_steps: int
    nearest_steps: int
    step_size_rate: float = 0.05
    start_rate: float = 0.02
    all_rate: float = 3e-6
    nearest_rate: float = 0.003

    @property
    def n_steps(self) -> int:
        """The steps of all stages together."""
        before = self.step_size_steps + self.start_steps + self.longer_steps
        return before + self.all_steps + self.nearest_steps


def sines(n_tasks: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """a sin(2 x + b) at 20 points x in [-1, 1], with a in [0.2, 1] and any b; a 1 is beside x."""
    x = generator.uniform(-1, 1, (n_tasks, N_EXAMPLES + N_QUERIES, 1))
    a, b = generator.uniform(0.2, 1, (n_tasks, 1)), generator.uniform(0, 2 * np.pi, (n_tasks, 1))
    inputs = np.concatenate([x, np.ones_like(x)], axis=-1)
    return torch.from_numpy(inputs), torch.from_numpy(a * np.sin(2 * x[..., 0] + b))


TASK = QueryTask(GeneratedTask(sines), N_QUERIES)


def compiled_run(width: int) -> Compiled:
    """Five steps of a relu network of one hidden layer: relu-stack is exact for it."""
    problem = Problem(
        target=MLP((2, width, 1), "relu"),
        loss="squared",
        update=GradientStep(step_size=HAND_CHOSEN, box=3.0),
        domain=Domain(x=1.0, y=1.0),
    )
    return compile(problem, "relu-stack", n_steps=N_STEPS, kink_width=KINK_WIDTH)


@final
class Descent(nn.Module):
    """Exact descent whose step sizes and start are parameters."""

    def __init__(self, run: LearnableRun) -> None:
        super().__init__()
        self.problem = run.problem
        self.initial = nn.Parameter(run.initial.detach().clone())
        self.step_sizes = nn.Parameter(run.step_sizes.detach().clone())

    @torch.no_grad()
    def in_transformer(self, compiled: Compiled) -> LearnableRun:
        """The same descent, run by the transformer."""
        run = LearnableRun(compiled, step_sizes=[HAND_CHOSEN] * N_STEPS)
        run.initial.copy_(self.initial)
        run.step_sizes.copy_(self.step_sizes)
        return run

    def forward(self, x: Tensor, y: Tensor, queries: Tensor) -> Tensor:
        """The predictions at the queries after all steps."""
        given = (x, y, queries, self.initial, self.step_sizes)
        return unrolled_descent(self.problem, *given).predictions[..., -1, :, :]


@final
@dataclass(frozen=True)
class NearTask(AbstractTask):
    """Predict what `model` predicts, on the tasks of the family."""

    model: UntiedRun

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        return TASK.sample(n_tasks, seed=seed, index=index, shard=shard)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean of the squared difference of the two predictions."""
        x, y, queries, _ = TASK.parts(batch)
        with torch.no_grad():
            aim: Tensor = self.model(x, y, queries).to(x)
        prediction: Tensor = model(x, y, queries)
        return (prediction - aim).square().mean()

    def description(self) -> dict[str, object]:
        return {"task": type(self).__name__, "family": TASK.description()}


@dataclass
class Stages:
    """The stages of one seed; with a `folder`, each continues where it was interrupted."""

    seed: int
    budget: Budget
    conduct: Conduct
    folder: Path | None
    done: int = field(default=0, init=False)

    def learn(
        self,
        name: str,
        model: nn.Module,
        n_steps: int,
        learning_rate: float,
        task: AbstractTask = TASK,
    ) -> None:
        """Train the model in place, in a folder of the stage's own."""
        done = self.done

        def on_step(step: int, _: int, loss: float) -> None:
            if self.conduct.on_step:
                self.conduct.on_step(done + step, self.budget.n_steps, loss)

        folder, settings = self.folder and self.folder / name, self.settings(n_steps, learning_rate)
        train(model, task, settings, folder=folder, on_step=on_step)
        self.done += n_steps
        model.cpu()

    def settings(self, n_steps: int, learning_rate: float) -> Settings:
        """The rate rises for ten steps, then falls to a hundredth."""
        return Settings(
            n_steps=n_steps,
            batch_size=self.budget.batch_size,
            learning_rate=learning_rate,
            final_learning_rate=learning_rate / 100,
            clip_norm=1.0,
            warmup_steps=min(10, n_steps - 1),
            seed=self.seed,
            log_every=n_steps,
            checkpoint_every=50,
            device=self.conduct.device,
            dtype="float64",
        )


def in_units(run: UntiedRun) -> UntiedRun:
    """Let what a layer reads be learnt in units of the inverse of its largest output weight.

    A ramp of width 2^-13 is a relu times 2^13: a change of what it reads is multiplied by that. In
    these units Adam may move all weights at one speed.
    """
    for layer in (*run.transformer.block, *run.transformer.final):
        weights = {name: weight.detach() for name, weight in layer.named_parameters()}
        outputs = [name for name in weights if name in ("W_O", "W_out")]
        largest = max(float(weights[name].abs().max()) for name in outputs)
        unit = torch.tensor(2.0 ** -max(0, ceil(log2(largest))), dtype=torch.float64)
        for name in weights.keys() - set(outputs):
            register_parametrization(layer, name, Units(unit))
    return run


def batch_of(index: int, n_tasks: int, seed: int) -> Parts:
    """Examples and queries of tasks that are not learnt from."""
    return TASK.parts(TASK.sample(n_tasks, seed=seed, index=index))


@torch.no_grad()
def best_step_size(run: AbstractRun, parts: Parts, candidates: Sequence[float]) -> float:
    """The step size for all steps whose loss after the last one is smallest, by exact descent."""
    x, y, queries, labels = parts

    def loss(step_size: float) -> float:
        sizes = torch.full((N_STEPS,), step_size, dtype=torch.float64)
        found = unrolled_descent(run.problem, x, y, queries, run.initial, sizes)
        return float((found.predictions[:, -1] - labels).square().mean())

    return min(candidates, key=loss)
