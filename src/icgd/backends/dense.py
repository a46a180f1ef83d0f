"""The dense backend runs the transformer itself, every head of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from math import prod
from typing import ClassVar, final

import torch
from torch import nn

from icgd.backends.backend import AbstractBackend, MakeExecutor
from icgd.backends.chain import Chain, make_chain
from icgd.backends.dense_stack import DenseStack
from icgd.backends.run import RunOptions
from icgd.errors import PrecisionWarning, ProgramError
from icgd.layers.transformer import Transformer
from icgd.memory import require_memory
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.warn import warn
from icgd.weights.lowering import lower_chain, lower_program
from icgd.weights.summary import summarise

INSTEAD = "Run with backend='fused', which needs neither weights nor scores."


def build_transformer(program: StackProgram, dtype: torch.dtype = torch.float64) -> Transformer:
    """The transformer with ordinary weights, if they fit in memory."""
    _require_room(program, dtype)
    if dtype == torch.float32 and program.made_for == "float64":
        warn(
            PrecisionWarning(
                f"This {program.construction} was compiled for float64, but its weights are used "
                "in float32, where gradients lose several times more to rounding than they must. "
                "Compile with dtype='float32' (--dtype float32), or use float64 or "
                "backend='fused'."
            )
        )
    return lower_program(program, dtype)


@singledispatch
def build_block(program: AbstractProgram, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The layers that exist as weights, if they fit in memory: a stack, or a chain's block."""
    raise ProgramError(f"{type(program).__name__} has no rule in backends/dense.py")


build_block.register(StackProgram, build_transformer)


@build_block.register
def _build_chain(program: ChainProgram, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    _require_room(program, dtype)
    return lower_chain(program, dtype)


def _require_room(program: AbstractProgram, dtype: torch.dtype) -> None:
    """Raise `SizeError` if the dense weights are too large for this machine."""
    parameters = summarise(program, n_tokens=1).parameters
    what = f"The dense transformer of {parameters:,} weights"
    require_memory(what, parameters * dtype.itemsize, INSTEAD)


def _stack(program: StackProgram, task: Task, options: RunOptions) -> DenseStack:
    n_tokens = task.n_tokens + program.n_registers
    scores = 2 * prod(task.batch) * n_tokens**2 * task.x.dtype.itemsize
    require_memory(f"A score for each pair of {n_tokens:,} tokens", scores, INSTEAD)
    transformer = build_transformer(program, task.x.dtype).to(task.x.device)
    return DenseStack(program, task, transformer, options.trace)


def _chain(program: ChainProgram, task: Task, options: RunOptions) -> Chain:
    _require_room(program, task.x.dtype)
    return make_chain(program, task, options, backend=DenseBackend.name)


@final
class DenseBackend(AbstractBackend):
    """The backend that builds the weights and runs them, layer by layer."""

    name: ClassVar[str] = "dense"
    sums_terms: ClassVar[bool] = True
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]] = {
        StackProgram: _stack,
        ChainProgram: _chain,
    }

    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        return len(task.x)
