"""What one gradient step costs in a construction, as the network grows deeper or wider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, final

import torch

from icgd.backends.chain import Chain, DenseGenerator
from icgd.backends.prompt import encode
from icgd.compiled import Compiled
from icgd.errors import ProgramError, SettingError, UnsupportedProblemError
from icgd.pipeline import compile
from icgd.problems.data import Task
from icgd.program.chain import ChainProgram
from icgd.program.layout import Role
from icgd.shapes import Stream
from icgd.timing import Job
from icgd_papers.studies.cost_cases import AbstractCase, Counts, Network

LONGEST_JOB = 32
"""Networks with more layers get no fewer steps in a job, so that set-up does not hide them."""

BACKENDS = ("dense", "fused")


@dataclass(frozen=True)
class AbstractVariant(ABC):
    """A construction of one kind of program, and how its step is counted and run."""

    name: str
    construction: str

    stretch: ClassVar[int] = 1
    """A job is timed over so many times the steps of a chain."""

    @abstractmethod
    def batch_size(self, n_examples: int) -> int | None:
        """The number of examples of a step; None for the whole prompt."""

    @abstractmethod
    def dense_counts(self, compiled: Compiled, n_examples: int) -> Counts:
        """The cost of a step with the weights."""

    @abstractmethod
    def fused_counts(self, compiled: Compiled, n_examples: int) -> Counts:
        """The products that training has, and the numbers in its slots or blocks."""

    @abstractmethod
    def dense_job(self, compiled: Compiled, task: Task) -> Job:
        """A step of the dense transformer, whose weights are built before."""


@final
class StackVariant(AbstractVariant):
    """A construction that builds a stack, which runs faster and is slower to set up."""

    stretch: ClassVar[int] = 16

    def batch_size(self, n_examples: int) -> None:
        """Stacks take the whole prompt."""

    def dense_counts(self, compiled: Compiled, n_examples: int) -> Counts:
        """All layers of a step run on all tokens; the stream is kept."""
        n_tokens = compiled.stack.n_registers + n_examples
        layers = compiled.summary(n_examples).layers_of_a_step
        return Counts(
            flops=sum(layer.flops(n_tokens) for layer in layers),
            weights=sum(layer.parameters for layer in layers),
            state=n_tokens * compiled.stack.layout.width,
        )

    def fused_counts(self, compiled: Compiled, n_examples: int) -> Counts:
        """The weights are kept once, the scratch slots and the data for every example."""
        layout, target = compiled.stack.layout, compiled.problem.target
        weights = sum(slot.width for slot in layout.having(Role.PARAMETER))
        scratch = sum(slot.width for slot in layout.having(Role.SCRATCH))
        state = weights + n_examples * (scratch + target.input_width + target.output_width)
        return Counts(compiled.summary(n_examples).direct_flops, 0, state)

    def dense_job(self, compiled: Compiled, task: Task) -> Job:
        block, prompt = compiled.transformer().block, encode(compiled.stack, task)

        def run() -> Stream:
            stream = prompt
            with torch.no_grad():
                for layer in block:
                    stream = layer(stream)
            return stream

        return run


@final
@dataclass(frozen=True)
class ChainVariant(AbstractVariant):
    """A construction that builds a chain; a round takes all examples, or one."""

    takes_one: bool = False

    def batch_size(self, n_examples: int) -> int:
        return 1 if self.takes_one else n_examples

    def dense_counts(self, compiled: Compiled, n_examples: int) -> Counts:
        """The block's layers run 2N times; the reach of the mask, data and stream are kept."""
        program, layers = chain_of(compiled), compiled.summary().layers
        mask = program.mask
        return Counts(
            flops=mask.blocks_per_round * sum(layer.flops(1) for layer in layers),
            weights=sum(layer.parameters for layer in layers),
            state=(mask.reach + 2) * program.rows.width + program.layout.width,
        )

    def fused_counts(self, compiled: Compiled, n_examples: int) -> Counts:
        """Nobody reads the first layer's delta pulled back: a whole round leaves it out."""
        program, network = chain_of(compiled), compiled.problem.network
        first = network.widths[0] * network.widths[1]
        flops = 2 * program.batch_size * (3 * network.n_parameters - first)
        return Counts(flops, 0, (program.mask.reach + 2) * program.rows.width)

    def dense_job(self, compiled: Compiled, task: Task) -> Job:
        program = chain_of(compiled)
        generator = DenseGenerator(program, task.x)
        return lambda: list(Chain(program, task, generator, "short", ()).rounds())


def chain_of(compiled: Compiled) -> ChainProgram:
    """The program, which must be a chain."""
    if not isinstance(compiled.program, ChainProgram):
        raise ProgramError(f"{compiled.program.construction} is not a chain.")
    return compiled.program


COT = ChainVariant("cot-network", "cot-network")
ONE_EXAMPLE = ChainVariant("cot-network, b = 1", "cot-network", takes_one=True)
VARIANTS = (
    StackVariant("relu-stack", "relu-stack"),
    StackVariant("softmax-stack", "softmax-stack"),
    COT,
    ONE_EXAMPLE,
)


@final
@dataclass(frozen=True)
class StepCase(AbstractCase):
    """A gradient step on all examples, or on one.

    A fused job takes as many steps as have `n_layers` layers of the network in all, times the
    variant's stretch.
    """

    axis: str
    size: int
    variant: AbstractVariant
    backend: str
    network: Network
    n_layers: int
    is_run: bool = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.variant.name

    @property
    def n_steps(self) -> tuple[int, int]:  # type: ignore[override]
        """A dense job needs no set-up: its weights are built before."""
        n_layers = self.n_layers * self.variant.stretch
        steps = max(1, n_layers // min(self.network.depth, LONGEST_JOB))
        return (0, 1) if self.backend == "dense" else (steps, 2 * steps)

    @property
    def n_counted(self) -> tuple[int, int]:  # type: ignore[override]
        """A chain plans its work in the first two rounds."""
        return (0, 1) if self.backend == "dense" else (2, 3)

    def why_not(self) -> str | None:
        reason = refusal(self.network, self.variant)
        if reason or not self.is_run:
            return reason or "counted only"
        counts = self.counts()
        return counts.objection if counts and self.backend == "dense" else None

    def counts(self) -> Counts | None:
        if refusal(self.network, self.variant):
            return None
        count = {"dense": self.variant.dense_counts, "fused": self.variant.fused_counts}
        return count[self.backend](built(self.network, self.variant, 1), self.network.n_examples)

    def job(self, n_steps: int) -> Job:
        if not n_steps:
            return lambda: None
        compiled = built(self.network, self.variant, n_steps)
        task = self.network.task(compiled)
        if self.backend == "fused":
            return partial(compiled.run_task, task, history=False)
        return self.variant.dense_job(compiled, task)


@lru_cache(maxsize=1024)  # deep programs take seconds to build, and little memory
def built(network: Network, variant: AbstractVariant, n_steps: int) -> Compiled:
    """The compiled steps; raises what `compile` raises."""
    problem = network.problem(variant.batch_size(network.n_examples))
    return compile(problem, n_steps=n_steps, construction=variant.construction)


def refusal(network: Network, variant: AbstractVariant) -> str | None:
    """Why the construction cannot be built for this network, if it cannot."""
    try:
        built(network, variant, 1)
    except (SettingError, UnsupportedProblemError) as problem:
        return str(problem)
    return None
