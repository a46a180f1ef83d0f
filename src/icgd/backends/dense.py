"""The dense backend: literally the transformer, every head of every layer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from icgd.backends.chain import run_chain
from icgd.backends.prompt import encode, read_learnt, read_predictions
from icgd.backends.run import AbstractBackend, OnProgress, Run, is_still, made_or_none
from icgd.backends.scores import linear_scores, require_scores
from icgd.errors import DenseSizeError, InterruptedRunError, PrecisionWarning
from icgd.layers.transformer import Transformer
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram, Program
from icgd.program.program import StackProgram
from icgd.shapes import Parameters, Predictions
from icgd.weights.chain_lowering import lower_chain
from icgd.weights.lowering import lower_program
from icgd.weights.summary import summarise

MEMORY_SHARE = 0.6
"""Part of the machine's memory that dense weights may take; the rest is for the run."""


def usable_memory() -> int:
    """Bytes that dense weights may take on this machine."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(MEMORY_SHARE * physical)


def build_transformer(program: StackProgram, dtype: torch.dtype = torch.float64) -> Transformer:
    """The transformer with ordinary weights, if they fit in memory."""
    require_memory(program, dtype)
    if dtype == torch.float32 and program.made_for == "float64":
        warnings.warn(PrecisionWarning.of(program.construction), stacklevel=2)
    return lower_program(program, dtype)


def build_block(program: ChainProgram, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The layers that write every block of a chain, if they fit in memory."""
    require_memory(program, dtype)
    return lower_chain(program, dtype)


def require_memory(program: Program, dtype: torch.dtype) -> None:
    """Raise `DenseSizeError` if the dense weights are too large for this machine."""
    parameters = summarise(program, n_tokens=1).parameters
    needed, available = parameters * dtype.itemsize, usable_memory()
    if needed > available:
        raise DenseSizeError.too_large(needed, available, parameters)


class DenseBackend(AbstractBackend):
    """Builds the weights and runs them, layer by layer."""

    name: ClassVar[str] = "dense"
    sums_terms: ClassVar[bool] = True

    def run(
        self,
        program: Program,
        task: Task,
        *,
        trace: tuple[str, ...] = (),
        history: bool = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
    ) -> Run:
        if isinstance(program, ChainProgram):
            require_memory(program, task.x.dtype)
            return run_chain(
                program,
                task,
                backend=self.name,
                trace=trace,
                history=history,
                on_progress=on_progress,
                stop_below=stop_below,
            )
        transformer = build_transformer(program, task.x.dtype).to(task.x.device)
        with torch.no_grad():
            return _Pass(program, task, transformer, trace).run(history, on_progress, stop_below)


class _Pass:
    """One forward pass: the stream as it is, and what was recorded of it."""

    def __init__(
        self,
        program: StackProgram,
        task: Task,
        transformer: Transformer,
        trace: tuple[str, ...],
    ) -> None:
        self.program, self.task, self.transformer = program, task, transformer
        self.places = {name: program.layout.range_of(name) for name in trace}
        self.stream = encode(program, task)
        self.recorded = {name: [self.stream[..., place]] for name, place in self.places.items()}

    def run(self, history: bool, on_progress: OnProgress | None, stop_below: float | None) -> Run:
        """All steps, or up to the one that moves nothing any more; then the predictions."""
        program, states, done, stopped = self.program, [self.task.initial], 0, False
        try:
            for weights in self.steps():
                stopped, done = is_still(states[-1], weights, stop_below), done + 1
                del states[len(states) if history else 1 :]
                states.append(weights)
                if on_progress:
                    on_progress(done, program.n_steps)
                if stopped:
                    break
        except KeyboardInterrupt:
            known = Run(
                torch.stack(states, dim=-2),
                made_or_none(partial(self.predictions, states[-1]), self.task),
                self.trace(),
            )
            raise InterruptedRunError.after(done, program.n_steps, known) from None
        return Run(
            parameters=torch.stack(states, dim=-2),
            predictions=self.predictions(states[-1]),
            trace=self.trace(),
            stopped_after=done if stopped else None,
        )

    def steps(self) -> Iterator[Parameters]:
        """What was learnt after every step."""
        program, block = self.program, self.transformer.block
        per_step = program.layers_per_step
        for step in range(program.n_steps):
            first = step % program.steps_per_block * per_step
            self.require_scores(step)
            self.apply(block[first : first + per_step])
            yield read_learnt(program, self.task, self.stream)

    def apply(self, layers: Iterable[nn.Module]) -> None:
        """Run some layers; the stream is that after the last of them, or as it was."""
        stream, after = self.stream, []
        for layer in layers:
            stream = layer(stream)
            after.append(stream)
        self.stream = stream
        for name, place in self.places.items():
            self.recorded[name] += [part[..., place] for part in after]

    def require_scores(self, step: int) -> None:
        """Raise `OverflowedRunError` if a linear model's scores leave what heads are made for."""
        descent = self.program.descent
        if descent is not None:
            weights = read_learnt(self.program, self.task, self.stream)
            scores = linear_scores(weights, self.task.x)
            require_scores(scores, descent.reach, f"step {step + 1}, example")

    def predictions(self, weights: Parameters) -> Predictions:
        """Those at the queries, by the last layers."""
        if self.program.descent is not None:
            scores = linear_scores(weights, self.task.queries)
            require_scores(scores, self.program.descent.reach, "query")
        self.apply(self.transformer.final)
        return read_predictions(self.program, self.stream, self.task.n_examples)

    def trace(self) -> dict[str, Tensor]:
        """What was recorded of all layers so far."""
        return {name: torch.stack(layers, dim=-3) for name, layers in self.recorded.items()}
