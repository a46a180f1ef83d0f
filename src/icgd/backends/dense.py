"""The dense backend: literally the transformer, every head of every layer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import nn

from icgd.backends.backend import AbstractBackend, Kind, MakeExecutor
from icgd.backends.chain import Chain, make_chain
from icgd.backends.dense_stack import DenseStack
from icgd.backends.run import RunOptions
from icgd.backends.scored_stack import ScoredStack
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


def _stack(program: StackProgram, task: Task, options: RunOptions) -> DenseStack:
    transformer = build_transformer(program, task.x.dtype).to(task.x.device)
    return DenseStack(program, task, transformer, options.trace)


def _linear_model(program: StackProgram, task: Task, options: RunOptions) -> ScoredStack:
    return ScoredStack(program, task, _stack(program, task, options))


def _chain(program: ChainProgram, task: Task, options: RunOptions) -> Chain:
    require_memory(program, task.x.dtype)
    return make_chain(program, task, options, backend=DenseBackend.name)


@final
class DenseBackend(AbstractBackend):
    """Builds the weights and runs them, layer by layer."""

    name: ClassVar[str] = "dense"
    sums_terms: ClassVar[bool] = True
    executors: ClassVar[Mapping[Kind, MakeExecutor]] = {
        Kind.NETWORK: _stack,
        Kind.LINEAR_MODEL: _linear_model,
        Kind.FUNCTION: _stack,
        Kind.CHAIN: _chain,
    }

    def tasks_at_once(self, program: Program, task: Task) -> int:
        return len(task.x)
