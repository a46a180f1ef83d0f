"""What one gradient step costs in a construction, as the network grows deeper or wider."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial, singledispatch
from typing import final

import torch

from icgd.backends.chain import Chain
from icgd.backends.chain_dense import DenseGenerator
from icgd.backends.prompt import encode
from icgd.compiled import Compiled
from icgd.errors import ProgramError, SettingError, UnsupportedProblemError
from icgd.pipeline import compile
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram
from icgd.program.layout import Role
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.reproductions.cost_cases import AbstractCase, Counts, Network
from icgd.reproductions.timing import Job
from icgd.shapes import Stream

STACK_STEPS = 16
"""A stack is timed over so many times the steps of a chain: it is faster, and slower to set up."""

LONGEST_JOB = 32
"""Layers of a network beyond which a job has no fewer steps, so that set-up does not hide them."""


@dataclass(frozen=True)
class Variant:
    """A construction; of a chain, with the examples of a round: all of them, or one."""

    name: str
    construction: str
    takes_one: bool = False

    def batch_size(self, n_examples: int) -> int | None:
        """As `GradientStep` wants it: stacks take the whole prompt and are told no number."""
        if self.construction != COT.construction:
            return None
        return 1 if self.takes_one else n_examples


COT = Variant("cot-network", "cot-network")
ONE_EXAMPLE = Variant("cot-network, b = 1", "cot-network", takes_one=True)
VARIANTS = (
    Variant("relu-stack", "relu-stack"),
    Variant("softmax-stack", "softmax-stack"),
    COT,
    ONE_EXAMPLE,
)
BACKENDS = ("dense", "fused")


@final
@dataclass(frozen=True)
class StepCase(AbstractCase):
    """A gradient step on all examples, or on one.

    Fused chains are timed over as many steps as have `n_layers` layers of the network in all.
    """

    axis: str
    size: int
    variant: Variant
    backend: str
    network: Network
    n_layers: int
    is_run: bool = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.variant.name

    @property
    def n_steps(self) -> tuple[int, int]:  # type: ignore[override]
        """A dense job has no set-up: its weights are there before."""
        is_chain = self.variant.construction == COT.construction
        n_layers = self.n_layers * (1 if is_chain else STACK_STEPS)
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
        compiled, n_examples = built(self.network, self.variant, 1), self.network.n_examples
        count = _dense_counts if self.backend == "dense" else _fused_counts
        return count(compiled.program, compiled, n_examples)

    def job(self, n_steps: int) -> Job:
        if not n_steps:
            return lambda: None
        compiled = built(self.network, self.variant, n_steps)
        task = self.network.task(compiled)
        if self.backend == "fused":
            return partial(compiled.run_task, task, history=False)
        return _dense_job(compiled.program, compiled, task)


@singledispatch
def _dense_job(program: AbstractProgram, compiled: Compiled, task: Task) -> Job:
    """A step of the dense transformer, whose weights are there before."""
    raise ProgramError.broken(type(program).__name__, "has no job in cost_steps.py")


@_dense_job.register
def _dense_chain(program: ChainProgram, compiled: Compiled, task: Task) -> Job:
    generator = DenseGenerator(program, task.x)
    return lambda: list(Chain(program, task, generator, "short", ()).rounds())


@_dense_job.register
def _dense_stack(program: StackProgram, compiled: Compiled, task: Task) -> Job:
    block, prompt = compiled.transformer().block, encode(program, task)

    def run() -> Stream:
        stream = prompt
        with torch.no_grad():
            for layer in block:
                stream = layer(stream)
        return stream

    return run


@lru_cache(maxsize=1024)  # deep programs take seconds to build, and little memory
def built(network: Network, variant: Variant, n_steps: int) -> Compiled:
    """The transformer; raises what `compile` raises."""
    problem = network.problem(variant.batch_size(network.n_examples))
    return compile(problem, n_steps=n_steps, construction=variant.construction)


def refusal(network: Network, variant: Variant) -> str | None:
    """Why the construction cannot be built for this network, if it cannot."""
    try:
        built(network, variant, 1)
    except (SettingError, UnsupportedProblemError) as problem:
        return str(problem)
    return None


@singledispatch
def _dense_counts(program: AbstractProgram, compiled: Compiled, n_examples: int) -> Counts:
    """What a step costs with the weights."""
    raise ProgramError.broken(type(program).__name__, "has no counts in cost_steps.py")


@_dense_counts.register
def _dense_stack_counts(program: StackProgram, compiled: Compiled, n_examples: int) -> Counts:
    """All layers of a step, on all tokens; the stream is what is kept."""
    n_tokens = program.n_registers + n_examples
    layers = compiled.summary(n_examples).layers_of_a_step
    return Counts(
        flops=sum(layer.flops(n_tokens) for layer in layers),
        weights=sum(layer.parameters for layer in layers),
        state=n_tokens * program.layout.width,
    )


@_dense_counts.register
def _dense_chain_counts(program: ChainProgram, compiled: Compiled, n_examples: int) -> Counts:
    """2N times the same three layers; kept are what the mask reaches, the data, and the stream."""
    layers, mask = compiled.summary().layers, program.mask
    return Counts(
        flops=mask.blocks_per_round * sum(layer.flops(1) for layer in layers),
        weights=sum(layer.parameters for layer in layers),
        state=(mask.reach + 2) * program.rows.width + program.layout.width,
    )


@singledispatch
def _fused_counts(program: AbstractProgram, compiled: Compiled, n_examples: int) -> Counts:
    """The products that training has, and the numbers in its slots or blocks."""
    raise ProgramError.broken(type(program).__name__, "has no counts in cost_steps.py")


@_fused_counts.register
def _fused_chain_counts(program: ChainProgram, compiled: Compiled, n_examples: int) -> Counts:
    """It also pulls the first layer's delta back, which nobody reads."""
    flops = 3 * 2 * program.batch_size * compiled.problem.network.n_parameters
    return Counts(flops, 0, (program.mask.reach + 2) * program.rows.width)


@_fused_counts.register
def _fused_stack_counts(program: StackProgram, compiled: Compiled, n_examples: int) -> Counts:
    weights = sum(slot.width for slot in program.layout.having(Role.PARAMETER))
    scratch = sum(slot.width for slot in program.layout.having(Role.SCRATCH))
    data = compiled.problem.target.input_width + compiled.problem.target.output_width
    return Counts(
        compiled.summary(n_examples).direct_flops, 0, weights + n_examples * (scratch + data)
    )
