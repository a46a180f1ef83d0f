r"""The fused backend: runs the program without materialising weights, with the same numbers.

Weights that are equal in every token are kept once; an instruction over all tokens is one or
two matrix products; functions are looked up in tables. A step costs what the training step
itself costs, O(n |w|), whatever the number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, final

from icgd.backends.backend import AbstractBackend, Kind, MakeExecutor, kind_of
from icgd.backends.chain import make_chain
from icgd.backends.executor import AbstractExecutor
from icgd.backends.functional import FunctionDescent
from icgd.backends.fused_stack import FusedStack
from icgd.backends.run import RunOptions
from icgd.backends.traced_stack import TracedStack
from icgd.problems.task import Task
from icgd.program.layout import Role
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters

NUMBERS_AT_ONCE = 2**18
"""The size of the widest slot over the tasks that run together: large enough to keep the threads
busy, small enough to stay in the cache and to bound the memory of any batch."""


def _stack(program: StackProgram, task: Task, options: RunOptions) -> AbstractExecutor[Parameters]:
    if options.trace:
        return TracedStack(program, task, options.trace)
    return FusedStack(program, task)


def _widest_slot(program: StackProgram, task: Task) -> int:
    return max((slot.width for slot in program.layout.having(Role.SCRATCH)), default=1)


def _kernel_width(program: StackProgram, task: Task) -> int:
    return task.n_examples


WIDTHS: dict[Kind, Callable[[Any, Task], int]] = {
    Kind.STACK: _widest_slot,
    Kind.FUNCTION: _kernel_width,
}
"""How many numbers a step works on for each token; tasks of other kinds all run together."""


@final
class FusedBackend(AbstractBackend):
    """Runs groups of tasks one after the other, each through all its steps."""

    name: ClassVar[str] = "fused"
    sums_terms: ClassVar[bool] = False
    executors: ClassVar[Mapping[Kind, MakeExecutor]] = {
        Kind.STACK: _stack,
        Kind.FUNCTION: FunctionDescent,
        Kind.CHAIN: partial(make_chain, backend=name),
    }

    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        """How many tasks fit in the cache."""
        if (width := WIDTHS.get(kind_of(program))) is None:
            return len(task.x)
        return max(1, NUMBERS_AT_ONCE // (width(program, task) * task.n_tokens))
