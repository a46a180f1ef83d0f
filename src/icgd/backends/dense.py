"""The dense backend: literally the transformer, every head of every layer."""

from __future__ import annotations

import os
from typing import ClassVar

import torch
from torch import Tensor, nn

from icgd.backends.chain import run_chain
from icgd.backends.prompt import encode, read_learnt, read_predictions
from icgd.backends.run import AbstractBackend, OnProgress, Run
from icgd.errors import DenseSizeError
from icgd.layers.transformer import Transformer
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram, Program
from icgd.program.program import StackProgram
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
            )
        places = {name: program.layout.range_of(name) for name in trace}
        transformer = build_transformer(program, task.x.dtype).to(task.x.device)
        stream = encode(program, task)
        states = [task.initial]
        recorded: dict[str, list[Tensor]] = {name: [stream[..., places[name]]] for name in trace}
        with torch.no_grad():
            for number, layer in enumerate(transformer.unrolled(), start=1):
                stream = layer(stream)
                for name in trace:
                    recorded[name].append(stream[..., places[name]])
                step, within = divmod(number, program.layers_per_step)
                if within == 0 and step <= program.n_steps:
                    kept = states if history else states[:1]
                    states = [*kept, read_learnt(program, task, stream)]
                    if on_progress:
                        on_progress(step, program.n_steps)
        return Run(
            parameters=torch.stack(states, dim=-2),
            predictions=read_predictions(program, stream, task.n_examples),
            trace={name: torch.stack(layers, dim=-3) for name, layers in recorded.items()},
        )
