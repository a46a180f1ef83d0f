r"""The fused backend runs the program without materialising weights, with the same numbers.

Weights that are equal in every token are kept once; an instruction over all tokens is one or
two matrix products; functions are looked up in tables. A step costs what the training step
itself costs, O(n |w|), whatever the number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any, ClassVar, final

from icgd.backends.backend import AbstractBackend, MakeExecutor
from icgd.backends.chain import make_chain
from icgd.backends.executor import AbstractExecutor
from icgd.backends.functional import FunctionDescent
from icgd.backends.fused_stack import FusedStack, TracedStack
from icgd.backends.run import RunOptions
from icgd.memory import require_memory
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram
from icgd.program.layout import Role
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram

NUMBERS_AT_ONCE = 2**17
"""The size of the widest slot over the tasks that run together: large enough to keep the threads
busy, small enough to stay in the cache and to bound the memory of any batch."""


def _stack(program: StackProgram, task: Task, options: RunOptions) -> AbstractExecutor[Any]:
    if program.trains_function:
        return FunctionDescent(program, task, options)
    _require_room(program, task, is_traced=bool(options.trace))
    if options.trace:
        return TracedStack(program, task, options.trace)
    return FusedStack(program, task)


def _require_room(program: StackProgram, task: Task, *, is_traced: bool) -> None:
    """Raise `SizeError` if the slots of all tokens that are worked on at a time take too much.

    A slot has a second buffer, for the argument of the function whose values it holds.
    """
    n_trained = program.batch_size or task.n_examples
    n_tokens = task.n_tokens if is_traced else max(n_trained, task.n_queries)
    width = sum(slot.width for slot in program.layout.having(Role.SCRATCH))
    needed = 2 * prod(task.batch) * n_tokens * width * task.x.itemsize
    remedy = "Take fewer examples or queries, or a narrower network, or steps on batches."
    require_memory(f"A stream of {n_tokens:,} tokens", needed, remedy)


def _width(program: StackProgram, task: Task) -> int:
    """The widest slot; a function has no scratch, but a row of its kernel for each token."""
    scratch = program.layout.having(Role.SCRATCH)
    return max((slot.width for slot in scratch), default=task.n_examples)


WIDTHS: Mapping[type[AbstractProgram], Callable[[Any, Task], int]] = {StackProgram: _width}
"""How many numbers a step works on for each token; tasks of a chain all run together."""


@final
class FusedBackend(AbstractBackend):
    """The backend that runs groups of tasks one after the other, each through all its steps."""

    name: ClassVar[str] = "fused"
    sums_terms: ClassVar[bool] = False
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]] = {
        StackProgram: _stack,
        ChainProgram: partial(make_chain, backend=name),
    }

    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        """How many tasks fit in the cache."""
        if (width := WIDTHS.get(type(program))) is None:
            return len(task.x)
        return max(1, NUMBERS_AT_ONCE // (width(program, task) * task.n_tokens))
