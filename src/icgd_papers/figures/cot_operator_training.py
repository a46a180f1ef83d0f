r"""One study of cot-fig2: two operators are trained, then they carry out the whole chain.

The paper does not say how teachers are drawn. Here all weights are N(0, 1/d) and inputs N(0, I)
(`training/block_pairs.py`), and eta is 0.02. A loss says little without the law, so that each
stands beside that of the mean block and of the best linear map, both fitted on the same pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.constructions.cot_network import CotNetwork
from icgd.environment import require_memory
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.settings import count, named, positive
from icgd_papers.estimates import timed_step
from icgd_papers.reproduction import AbstractStudy, Conduct
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.training.block_pairs import CHAIN_TEACHERS, DIRECTIONS, BlockTask, Pairs, Teachers
from icgd_papers.training.chain_blocks import BlockRows, Operators, weights_after_rounds
from icgd_papers.training.loop import OnStep, Settings, train
from icgd_papers.training.operators import (
    LearntOperator,
    PlainOperator,
    ProductOperator,
    as_operator,
)
from icgd_papers.training.tasks import generator_of

AS_ALWAYS = Conduct()

CHECKPOINTS_PER_EPOCH = 2

FLOAT32, DRAWING = 4, 2
"""Bytes of a number of a pair, and how much more is taken while pairs are drawn."""

REMEDY = "Take a smaller preset, or a machine with more memory."

Make = Callable[..., LearntOperator]


@dataclass(frozen=True)
class Architecture:
    """How an operator of a direction is made for layers of some width, and how fast it learns."""

    make: Make
    learning_rate: float
    forward_only: Mapping[str, bool] = field(default_factory=dict)

    def model(self, direction: str, width: int, seed: int) -> LearntOperator:
        """The operator before training; forward and backward start from seeds of their own."""
        own = self.forward_only if direction == "forward" else {}
        return self.make(width, seed=2 * seed + DIRECTIONS.index(direction), **own)


def _plain(width: int, seed: int, positions: str) -> PlainOperator:
    """Width 128, 8 heads and an MLP of 512 units for d = 5, and more for wider networks."""
    stream_width = 128 * width // 5 // 8 * 8 or 8
    return PlainOperator(
        width,
        stream_width=stream_width,
        hidden_width=4 * stream_width,
        positions=positions,
        seed=seed,
    )


def _products(width: int, seed: int, *, steep_slopes: bool = False) -> ProductOperator:
    """Room for all rows in the stream, and at least as many heads as the constructed block has."""
    return ProductOperator(
        width,
        stream_width=2 * BlockRows(width).n_rows + 14,
        n_heads=width**2 + 3 * width,
        key_width=width + 1,
        router_width=13 * width,
        hidden_width=26 * width,
        steep_slopes=steep_slopes,
        seed=seed,
    )


ARCHITECTURES = {
    "plain, no positions": Architecture(partial(_plain, positions="none"), 1e-3),
    "plain": Architecture(partial(_plain, positions="added"), 1e-3),
    "plain, positions scale": Architecture(partial(_plain, positions="scaled"), 1e-3),
    "products": Architecture(_products, 3e-3),
    "products, steep slopes": Architecture(_products, 3e-3, {"steep_slopes": True}),
}
"""The operators that are tried, from the paper's own to the one nearest to the construction."""


@dataclass(frozen=True)
class Budget:
    """How long operators are trained, on how much, and on how many chains they are tried."""

    n_epochs: int = 20
    batch_size: int = 256
    n_validation_teachers: int = 60
    n_chains: int = 50
    n_rounds: int = 20
    step_size: float = 0.02
    n_seeds: int = 3

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size", "n_validation_teachers", "n_chains", "n_rounds"):
            count(name, getattr(self, name))
        count("n_seeds", self.n_seeds)
        positive("step_size", self.step_size)


@dataclass(frozen=True)
class Learnt:
    """What training an operator gave: a row of the curve for each epoch, and what is beside it."""

    curve: tuple[dict[str, float], ...]
    variance: float
    mean_loss: float
    """The validation loss of the mean block of the training pairs."""
    linear_loss: float
    """The validation loss of the linear map that fits the training pairs best."""
    n_parameters: int


@dataclass(frozen=True)
class Chained:
    """Squared distances of weights from those of descent, the mean over chains, round by round."""

    learnt: tuple[float, ...]
    learnt_median: tuple[float, ...]
    constructed: tuple[float, ...]
    unmoved: tuple[float, ...]
    """Those of the weights before training."""


@dataclass(frozen=True)
class Outcome:
    """Two operators, and the chain that they make together."""

    forward: Learnt
    backward: Learnt
    chain: Chained
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """Both operators of an architecture, for networks of `depth` layers of `width` units."""

    uses_device: ClassVar[bool] = True

    architecture: str
    n_teachers: int
    width: int
    depth: int
    seed: int
    budget: Budget

    def __post_init__(self) -> None:
        named("architecture", self.architecture, ARCHITECTURES)
        for direction in DIRECTIONS:
            self.task(direction).steps_per_epoch(self.budget.batch_size)

    @property
    def teachers(self) -> Teachers:
        return Teachers(self.width, self.depth, self.budget.n_rounds, self.budget.step_size)

    def task(self, direction: str) -> BlockTask:
        """The pairs that an operator learns from."""
        return BlockTask(
            self.teachers, direction, self.n_teachers, self.budget.n_validation_teachers, self.seed
        )

    def model(self, direction: str) -> LearntOperator:
        return ARCHITECTURES[self.architecture].model(direction, self.width, self.seed)

    @property
    def epoch_steps(self) -> int:
        return self.task("forward").steps_per_epoch(self.budget.batch_size)

    @property
    def operator_steps(self) -> int:
        """The steps of one operator."""
        return self.epoch_steps * self.budget.n_epochs

    @property
    def n_steps(self) -> int:
        return self.operator_steps * len(DIRECTIONS)

    @property
    def work(self) -> float:
        """A plain operator has a column for each unit, and is wider."""
        is_wide = self.architecture in ("plain", "plain, positions scale")
        return float(self.n_steps * (self.width if is_wide else 1))

    def settings(self, device: str = "cpu") -> Settings:
        rate = ARCHITECTURES[self.architecture].learning_rate
        return Settings(
            n_steps=self.operator_steps,
            batch_size=self.budget.batch_size,
            learning_rate=rate,
            final_learning_rate=rate / 1000,
            warmup_steps=min(50, self.operator_steps - 1),
            clip_norm=1.0,
            seed=self.seed,
            log_every=self.epoch_steps,
            checkpoint_every=max(1, self.epoch_steps // CHECKPOINTS_PER_EPOCH),
            n_validation=self.task("forward").n_validation,
            device=device,
        )

    def require(self, device: str) -> None:
        """Raise `SizeError` unless the pairs of an operator can be drawn, which are kept once.

        They are on the processor, whatever the device.
        """
        n_pairs, n_rows = self.task("forward").n_pairs, self.teachers.rows.n_rows
        what = f"Drawing {n_pairs:,} pairs of blocks of {n_rows:,} rows"
        require_memory(what, DRAWING * n_pairs * 3 * n_rows * FLOAT32, REMEDY)

    def step_seconds(self, device: str) -> float:
        """The time of a step, which needs no more teachers than a batch has pairs of."""
        pairs_of_a_teacher = self.depth * self.budget.n_rounds
        few = replace(self, n_teachers=ceil(self.budget.batch_size / pairs_of_a_teacher))
        settings = replace(few.settings(device), warmup_steps=0, n_validation=0)
        times = [timed_step(few.model(each), few.task(each), settings) for each in DIRECTIONS]
        return sum(times) / len(times)

    def train(self, folder: Path | None = None) -> Outcome:
        return trained(self, folder)

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        return trained(self, folder, conduct)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        of_each = {
            name: Learnt(**{**data[name], "curve": tuple(data[name]["curve"])})
            for name in DIRECTIONS
        }
        chain = Chained(**{name: tuple(values) for name, values in data["chain"].items()})
        return Outcome(**of_each, chain=chain, seconds=data["seconds"])


def trained(study: Study, folder: Path | None = None, conduct: Conduct = AS_ALWAYS) -> Outcome:
    """Train both operators, then let them carry out chains; with a `folder`, continue there."""
    stopwatch, models, found = Stopwatch(folder), {}, {}
    for number, direction in enumerate(DIRECTIONS):
        told = _told(stopwatch, conduct.on_step, number * study.operator_steps, study.n_steps)
        place = folder and folder / direction
        models[direction], found[direction] = _learnt(study, direction, place, conduct, told)
    operators = Operators(*(as_operator(models[each].double().cpu()) for each in DIRECTIONS))
    return Outcome(**found, chain=chained(study, operators), seconds=stopwatch.seconds)


def _told(stopwatch: Stopwatch, on_step: OnStep | None, earlier: int, total: int) -> OnStep:
    """Tell the steps of one operator as steps of the study."""

    def told(step: int, _: int, loss: float) -> None:
        stopwatch.keep()
        if on_step:
            on_step(earlier + step, total, loss)

    return told


def _learnt(
    study: Study, direction: str, folder: Path | None, conduct: Conduct, on_step: OnStep
) -> tuple[LearntOperator, Learnt]:
    task, model = study.task(direction), study.model(direction)
    settings = study.settings(conduct.device)
    log = train(
        model,
        task,
        settings,
        folder=folder,
        measure=lambda trained: {"training_loss": _training_loss(task, trained)},
        on_step=on_step,
    )
    curve = tuple(_at_epoch(row, study.epoch_steps) for row in log.rows)
    simple = simple_losses(study.width, task.pairs, task.validation_pairs)
    n_parameters = sum(part.numel() for part in model.parameters() if part.requires_grad)
    return model, Learnt(curve, *simple, n_parameters)


def _training_loss(task: BlockTask, model: nn.Module) -> float:
    """The loss on as many pairs of training as there are for validation."""
    like = next(model.parameters())
    part = task.training_part(task.n_validation).to(like.device, like.dtype)
    with torch.no_grad():
        return float(task.loss(model, part))


def _at_epoch(row: Mapping[str, float], epoch_steps: int) -> dict[str, float]:
    losses = {name: row[name] for name in ("training_loss", "validation_loss")}
    return {"epoch": row["step"] / epoch_steps, **losses}


def simple_losses(width: int, pairs: Pairs, validation: Pairs) -> tuple[float, float, float]:
    """The variance of validation blocks; the losses of the mean block and of a linear map there.

    The linear map has a constant term, and is the shortest of those that fit the pairs best.
    """
    (stacked, blocks), (new, wanted) = pairs, validation
    solution = torch.linalg.pinv(_moments(stacked, stacked), hermitian=True) @ _moments(
        stacked, blocks, constant=False
    )
    answers = (wanted.double().mean(0), blocks.double().mean(0), _with_constant(new) @ solution)
    variance, mean, linear = (
        float(width * (wanted.double() - answer).square().sum(-1).mean()) for answer in answers
    )
    return variance, mean, linear


def _with_constant(stacked: Tensor) -> Float[Tensor, "pair entry"]:
    return nn.functional.pad(stacked.double(), (0, 1), value=1.0)


def _moments(left: Tensor, right: Tensor, *, constant: bool = True) -> Tensor:
    """The mean product of the entries of two tables, the first with a constant 1."""
    other = _with_constant(right) if constant else right.double()
    return _with_constant(left).mT @ other / len(left)


def chained(study: Study, operators: Operators) -> Chained:
    """Let operators train new students, beside the constructed block and real descent."""
    students = study.teachers.students(
        study.budget.n_chains, generator_of(study.seed, CHAIN_TEACHERS)
    )
    data = students.start, students.x, students.y
    real = weights_after_rounds(study.teachers.rows, study.teachers.exact, *data)
    by_learnt = weights_after_rounds(study.teachers.rows, operators, *data)
    by_construction = constructed_weights(study.teachers, *data, largest=float(real.abs().max()))
    off = _squares(by_learnt, real)
    return Chained(
        learnt=tuple(off.mean(0).tolist()),
        learnt_median=tuple(off.median(0).values.tolist()),
        constructed=tuple(_squares(by_construction, real).mean(0).tolist()),
        unmoved=tuple(_squares(real[:, :1], real).mean(0).tolist()),
    )


def _squares(weights: Tensor, real: Tensor) -> Float[Tensor, "task round"]:
    return (weights - real).square().sum((-3, -2, -1))


def constructed_weights(
    teachers: Teachers, start: Tensor, x: Tensor, y: Tensor, *, largest: float
) -> Float[Tensor, "task round layer out in"]:
    """The weights after every round of the dense chain of cot-network; `largest` is a weight."""
    problem = Problem(
        MLP((teachers.width,) * (teachers.depth + 1), "relu", "relu"),
        "squared",
        GradientStep(2 * teachers.step_size, 2 * largest, batch_size=1),
        Domain(float(x.abs().max()), max(float(y.abs().max()), 1.0)),
    )
    compiled = compile(problem, CotNetwork(), n_steps=teachers.n_rounds)
    run = compiled.run(x, y, initial=start.flatten(1), backend="dense")
    shape = (teachers.depth, teachers.width, teachers.width)
    reached: Tensor = run.parameters.unflatten(-1, shape)
    return reached
