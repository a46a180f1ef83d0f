"""The dense backend runs the transformer itself, every head of every layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import ClassVar, final

import torch
from torch import nn

from icgd.backends.chain import Chain, make_chain
from icgd.backends.prompt import (
    encode,
    linear_scores,
    may_leave_roots,
    read_learnt,
    read_parameters,
    read_point,
    read_predictions,
    require_roots,
    require_scores,
)
from icgd.backends.run import AbstractBackend, AbstractExecutor, MakeExecutor, RunOptions
from icgd.environment import require_memory, warn
from icgd.errors import PrecisionWarning, ProgramError
from icgd.layers import Transformer
from icgd.problems.data import Task
from icgd.program.chain import ChainProgram
from icgd.program.linear_instructions import Scored
from icgd.program.program import AbstractProgram, Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters, Predictions, Stream
from icgd.weights.lowering import lower_chain, lower_program
from icgd.weights.sizes import summarise


@final
class DenseStack(AbstractExecutor[Stream]):
    """Run the stream through every head of every layer.

    Heads of linear models are built for a range of scores. Before a layer would read a score beyond
    it the run raises `OverflowedRunError`, as the checks of the fused backend do.
    """

    def __init__(
        self, program: StackProgram, task: Task, transformer: Transformer, trace: tuple[str, ...]
    ) -> None:
        self._places = {name: program.layout.range_of(name) for name in trace}
        self._program, self._task, self.transformer = program, task, transformer
        self._n_done, self._reach = 0, program.score_reach
        self.still_steps = program.steps_of_pass(task.n_examples)
        # Column-major, because sparse weights read single columns of the stream.
        self.start = self._stream = encode(program, task).mT.contiguous().mT
        may_leave = program.n_steps > 0 and may_leave_roots(program, self.start)
        self._checked_layers = program.block_of(0) if may_leave else ()
        self.traced = {name: [self.start[..., place]] for name, place in self._places.items()}
        self.n_per_step = program.layers_per_step

    def step(self) -> Stream:
        if self._reach is not None:
            # With momentum the gradient may be taken at another point than the weights.
            number = self._n_done % self._program.steps_per_block
            for layer in self._program.steps_of_block()[number]:
                for instruction in layer.instructions:
                    if isinstance(instruction, Scored):
                        point = read_point(instruction, self._program.layout, self._stream)
                        where = f"step {self._n_done + 1}, example"
                        require_scores(linear_scores(point, self._task.x), self._reach, where)
        layers = self.transformer.layers_of(self._n_done, self.n_per_step)
        checked = () if self._n_done else self._checked_layers
        self._stream = self._after(layers, self._stream, checked)
        self._n_done += 1
        return self._stream

    def read(self, reached: Stream, write: Parameters) -> None:
        write.copy_(read_learnt(self._program, self._task, reached))

    def predictions(self, reached: Stream) -> Predictions:
        if self._reach is not None:
            weights = read_parameters(self._program.layout, reached)
            require_scores(linear_scores(weights, self._task.queries), self._reach, "query")
        after = self._after(self.transformer.final, reached)
        return read_predictions(self._program, after, self._task.n_examples)

    def _after(
        self, layers: Iterable[nn.Module], stream: Stream, checked: Sequence[Layer] = ()
    ) -> Stream:
        """Return the stream after `layers`, tracing each; check the roots of those in `checked`."""
        for layer, checked_layer in zip_longest(layers, checked):
            if checked_layer is not None:
                require_roots(self._program, checked_layer, stream, self._n_done)
            stream = layer(stream)
            for name, place in self._places.items():
                self.traced[name].append(stream[..., place])
        return stream


INSTEAD = "Run with backend='fused', which needs neither weights nor scores."


def build_transformer(program: StackProgram, dtype: torch.dtype = torch.float64) -> Transformer:
    """Return the transformer with dense weights, or raise `SizeError` if they do not fit."""
    require_room(program, dtype)
    warn_of_precision(program, dtype)
    return lower_program(program, dtype)


def warn_of_precision(program: StackProgram, dtype: torch.dtype) -> None:
    """Warn if a program compiled for float64 runs in float32."""
    if dtype == torch.float32 and program.made_for == "float64":
        warn(
            PrecisionWarning(
                f"This {program.construction} was compiled for float64, but its weights are used "
                "in float32, where gradients lose several times more to rounding than they must. "
                "Compile with dtype='float32' (--dtype float32), or use float64 or "
                "backend='fused'."
            )
        )


def build_block(program: AbstractProgram, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return the layers with dense weights: the transformer of a stack, or the block of a chain."""
    if isinstance(program, StackProgram):
        return build_transformer(program, dtype)
    if not isinstance(program, ChainProgram):
        raise ProgramError(f"{type(program).__name__} has no rule in backends/dense.py")
    require_room(program, dtype)
    return lower_chain(program, dtype)


def require_room(program: AbstractProgram, dtype: torch.dtype) -> None:
    """Raise `SizeError` if the dense weights are too large for this machine."""
    parameters = summarise(program, n_tokens=1).parameters
    transformer = f"The dense transformer of {parameters:,} weights"
    require_memory(transformer, parameters * dtype.itemsize, INSTEAD)


def _stack(program: StackProgram, task: Task, options: RunOptions) -> DenseStack:
    n_tokens = task.n_tokens + program.n_registers
    scores = 2 * prod(task.batch) * n_tokens**2 * task.x.dtype.itemsize
    require_memory(f"A score for each pair of {n_tokens:,} tokens", scores, INSTEAD)
    transformer = build_transformer(program, task.x.dtype).to(task.x.device)
    return DenseStack(program, task, transformer, options.trace)


def _chain(program: ChainProgram, task: Task, options: RunOptions) -> Chain:
    require_room(program, task.x.dtype)
    return make_chain(program, task, options, backend=DenseBackend.name)


@final
class DenseBackend(AbstractBackend):
    """The backend that runs the transformer with dense weights."""

    name: ClassVar[str] = "dense"
    sums_terms: ClassVar[bool] = True
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]] = {
        StackProgram: _stack,
        ChainProgram: _chain,
    }

    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        return len(task.x)
