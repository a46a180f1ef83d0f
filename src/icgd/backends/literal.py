"""The literal backend runs the transformer itself from the entries of its weights that are not 0.

Layers are those of the dense backend: every head computes its score for every pair of tokens, every
hidden unit its value at every token. Only products with weights that are 0 are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from icgd.backends.chain import Chain, make_chain
from icgd.backends.dense import DenseStack
from icgd.backends.run import AbstractBackend, MakeExecutor, RunOptions
from icgd.problems.data import Task
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_program


def _stack(program: StackProgram, task: Task, options: RunOptions) -> DenseStack:
    transformer = lower_program(program, task.x.dtype, is_sparse=True).to(task.x.device)
    return DenseStack(program, task, transformer, options.trace)


def _chain(program: ChainProgram, task: Task, options: RunOptions) -> Chain:
    return make_chain(program, task, options, backend=LiteralBackend.name)


@final
class LiteralBackend(AbstractBackend):
    """The backend that runs every head and hidden unit from sparse weights."""

    name: ClassVar[str] = "literal"
    sums_terms: ClassVar[bool] = True
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]] = {
        StackProgram: _stack,
        ChainProgram: _chain,
    }

    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        return len(task.x)
