r"""Pairs of blocks that the operators of a chain learn from (cot, Appendix D).

A teacher is a random ReLU network; another one, the student, starts from random weights of the same
law and takes one step of descent in each round, on a fresh input and the teacher's answer to it.
Every block of the student's exact chain, with the two blocks it is made of, is a pair.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from math import sqrt
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.errors import DataError, DistributionError, SettingError, quoted
from icgd.problems.settings import count, positive
from icgd_papers.training.chain_blocks import (
    Block,
    BlockRows,
    Matrices,
    Operators,
    Vectors,
    written_chain,
)
from icgd_papers.training.tasks import AbstractTask, Batch, generator_of

DIRECTIONS = ("forward", "backward")

LARGEST_NUMBER = 1e18
"""The largest number of a block: the square of a larger one may overflow in float32."""

TRAINING_TEACHERS, VALIDATION_TEACHERS, CHAIN_TEACHERS = 2**31, 2**31 + 1, 2**31 + 2
"""Streams of random numbers for teachers; orders of epochs have the streams 0, 1, ..."""

Pairs = tuple[Tensor, Tensor]
"""What an operator reads, (pair, two blocks), and what it writes, (pair, rows)."""


@dataclass(frozen=True, eq=False)
class Students:
    """Networks before training, and the examples of all rounds."""

    start: Matrices
    x: Vectors
    y: Vectors


@dataclass(frozen=True)
class Teachers:
    """The law of the teachers and of their students: `depth` square layers of `width` ReLUs.

    Weights are N(0, weight_scale^2 / width), inputs N(0, I). A step is W - step_size delta o^T.
    """

    width: int
    depth: int
    n_rounds: int
    step_size: float = 0.02
    weight_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("width", "depth", "n_rounds"):
            count(name, getattr(self, name))
        positive("step_size", self.step_size)
        positive("weight_scale", self.weight_scale)

    @property
    def rows(self) -> BlockRows:
        return BlockRows(self.width)

    @property
    def exact(self) -> Operators:
        return Operators.exact(self.rows, self.step_size)

    def students(self, n_teachers: int, generator: np.random.Generator) -> Students:
        """Return one student of each teacher, with the teacher's answers."""
        shape = (2, count("n_teachers", n_teachers), self.depth, self.width, self.width)
        drawn = torch.from_numpy(generator.standard_normal(shape))
        teachers, start = drawn * (self.weight_scale / sqrt(self.width))
        x = torch.from_numpy(generator.standard_normal((n_teachers, self.n_rounds, self.width)))
        y = x
        for layer in range(self.depth):
            y = (y @ teachers[:, layer].mT).relu()
        return Students(start, x, y)

    def pairs(self, direction: str, n_teachers: int, generator: np.random.Generator) -> Pairs:
        """Return what one operator reads and writes in the exact chains of all students, in
        float32.
        """
        of, stacked, blocks = self.students(n_teachers, generator), [], []
        for each in written_chain(self.rows, self.exact, of.start, of.x, of.y):
            self._require_numbers(each.block, each.place.round)
            if each.place.is_forward == (direction == "forward"):
                stacked.append(each.stacked.float())
                blocks.append(each.block.float())
        return torch.cat(stacked), torch.cat(blocks)

    def _require_numbers(self, block: Block, number: int) -> None:
        sizes = block.abs().nan_to_num(nan=torch.inf).amax(-1)
        if (largest := float(sizes.max())) > LARGEST_NUMBER:
            teacher = int(sizes.argmax())
            raise DistributionError(
                f"The descent of student {teacher} overflows: a number of its chain is "
                f"{largest:.3g} in round {number + 1}, with step_size={self.step_size:g} and "
                f"weight_scale={self.weight_scale:g}. Make one of them smaller."
            )


@final
@dataclass(frozen=True)
class BlockTask(AbstractTask):
    """Make the next block; the loss is the squared Frobenius distance, the mean over the pairs.

    The pairs of `n_teachers` teachers are taken in epochs, each in an order of its own; those of
    `n_validation_teachers` others are for validation. `seed` draws the teachers. Each process of a
    training takes orders of its own.
    """

    teachers: Teachers
    direction: str
    n_teachers: int
    n_validation_teachers: int
    seed: int

    def __post_init__(self) -> None:
        count("n_teachers", self.n_teachers)
        count("n_validation_teachers", self.n_validation_teachers)
        if self.direction not in DIRECTIONS:
            raise SettingError(
                f"direction must be one of {', '.join(DIRECTIONS)}, got {quoted(self.direction)}."
            )

    @property
    def n_pairs(self) -> int:
        """The number of pairs for training."""
        return self.n_teachers * self.teachers.depth * self.teachers.n_rounds

    @property
    def n_validation(self) -> int:
        """The number of pairs for validation."""
        return self.n_validation_teachers * self.teachers.depth * self.teachers.n_rounds

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the batches of an epoch; pairs that fill no batch wait for the next one."""
        if batch_size > self.n_pairs:
            raise SettingError(f"batch_size must be at most {self.n_pairs}, got {batch_size}.")
        return self.n_pairs // batch_size

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs for training."""
        return self._drawn(self.n_teachers, TRAINING_TEACHERS)

    @cached_property
    def validation_pairs(self) -> Pairs:
        return self._drawn(self.n_validation_teachers, VALIDATION_TEACHERS)

    def _drawn(self, n_teachers: int, stream: int) -> Pairs:
        return self.teachers.pairs(self.direction, n_teachers, generator_of(self.seed, stream))

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        """Return the pairs that batch `index` has in its epoch."""
        epoch, number = divmod(index, self.steps_per_epoch(count("n_tasks", n_tasks)))
        order = _order(self.n_pairs, seed, epoch, shard)
        return _batch(self.pairs, order[number * n_tasks : (number + 1) * n_tasks])

    def validation(self, n_tasks: int, *, seed: int) -> Batch:
        """Return the first pairs of teachers that training never sees, in a random order."""
        return _batch(self.validation_pairs, _order(self.n_validation, seed, 0, 0)[:n_tasks])

    def training_part(self, n_tasks: int) -> Batch:
        """Some of the pairs for training, the same each time."""
        return _batch(self.pairs, _order(self.n_pairs, self.seed, 0, 0)[:n_tasks])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean of the squared Frobenius distances between blocks of d columns."""
        made: Tensor = model(batch.x[:, 0])
        n_rows = self.teachers.rows.n_rows
        if made.ndim != 3 or made.shape[-1] != n_rows:
            raise DataError(
                f"The operator's block has shape {tuple(made.shape)}; expected (pair, column, "
                f"{n_rows})."
            )
        return self.teachers.width * (made - batch.y).square().sum(-1).mean()

    def description(self) -> dict[str, object]:
        """Return the law, the operator, and the number of teachers."""
        return {"task": type(self).__name__, **asdict(self)}


@lru_cache(maxsize=4)
def _order(n_pairs: int, seed: int, epoch: int, shard: int) -> Tensor:
    return torch.from_numpy(generator_of(seed, epoch, shard).permutation(n_pairs))


def _batch(pairs: Pairs, chosen: Tensor) -> Batch:
    """Return a batch in which one column stands for the d equal ones of each block."""
    stacked, block = pairs
    return Batch(stacked[chosen, None], block[chosen, None])
