"""A compiled training run: the object that users hold."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from icgd import pictures
from icgd.backends.dense import build_block, build_transformer
from icgd.backends.registry import backend_named
from icgd.backends.run import OnProgress, Origin, Run, RunOptions, with_origin
from icgd.certificates.abstract_bounds import AbstractBounds
from icgd.certificates.certificate import Certificate
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.proof import (
    Proof,
    Sources,
    prove,
    require_elsewhere,
    require_provable,
)
from icgd.certificates.registry import bounds_of
from icgd.constructions.cot_network import for_depth
from icgd.errors import InterruptedRunError, OverflowedRunError, SettingError
from icgd.facts import shown
from icgd.layers.transformer import Transformer
from icgd.problems.arrays import dtype_named
from icgd.problems.entry import as_task, checked_task
from icgd.problems.problem import Problem
from icgd.problems.settings import count, is_sequence, positive
from icgd.problems.task import Task
from icgd.program.chain import ChainProgram
from icgd.program.numbers import beyond
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.weights import files
from icgd.weights.summary import Summary, summarise

STORED_WEIGHTS = 2**28
"""The most bytes of dense weights that `save` stores by default."""

TYPICAL_TOKENS = 33
"""The default prompt length of a summary: 32 examples and a query."""

LARGEST_DEPTH = 10**6
"""The most layers that `for_depth` writes down."""

CERTIFIED_TOKENS = 1024
"""The default prompt length up to which the rounding terms of a certificate hold."""


@shown
@dataclass(frozen=True)
class Compiled:
    """A problem and the program that trains it in a transformer's forward pass.

    If the construction was chosen by `icgd.compile`, `chosen_because` says why.
    """

    problem: Problem
    program: AbstractProgram
    chosen_because: str | None = field(default=None, compare=False, kw_only=True)

    def facts(self) -> dict[str, str]:
        return {**self.problem.facts(), **self.program.facts()}

    @property
    def stack(self) -> StackProgram:
        """The program, if it is a stack of layers."""
        if not isinstance(self.program, StackProgram):
            raise SettingError.is_a_chain(self.program.construction)
        return self.program

    def task(
        self,
        X: Any,
        y: Any,
        *,
        queries: Any = None,
        initial: Any = None,
        seed: int | None = None,
        dtype: str | torch.dtype = "float64",
    ) -> Task:
        """The data as a checked task of this problem."""
        return as_task(self.problem, X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)

    def run(
        self,
        X: Any,
        y: Any,
        *,
        queries: Any = None,
        initial: Any = None,
        seed: int | None = None,
        backend: str = "fused",
        dtype: str | torch.dtype = "float64",
        trace: bool | Sequence[str] = False,
        history: bool = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
    ) -> Run:
        """One forward pass: the data go into the prompt, weights and predictions come out.

        `X` is (n, d_x), or (tasks, n, d_x) for many tasks at once. Initial weights are `initial`,
        or they are drawn from `seed`. `trace` lists the slots to record after every layer; True
        records all of them. `history=False` keeps only the initial and the final weights. With
        `stop_below` the run stops after the first step that moves no weight by more; with batches
        it stops after a whole pass of such steps over the examples. On Ctrl-C it raises
        `InterruptedRunError`, whose `partial` is the run up to the last whole step.
        """
        task = self.task(X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)
        return self.run_task(
            task,
            backend=backend,
            trace=trace,
            history=history,
            on_progress=on_progress,
            stop_below=stop_below,
        )

    def run_task(
        self,
        task: Task,
        *,
        backend: str = "fused",
        trace: bool | Sequence[str] = False,
        history: bool = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
    ) -> Run:
        """One forward pass on a task, with the options of `run`."""
        runner = backend_named(backend)
        if stop_below is not None:
            positive("stop_below", stop_below)
            self.problem.oracle.require_end(task)
        task = checked_task(self.problem, task)
        self._require_range(task.x.dtype)
        oracle = self.problem.oracle
        _warn(oracle.doubts(task, self.program.n_steps))
        options = RunOptions(self._slots(trace), history, on_progress, stop_below, oracle.overflow)
        origin = Origin(self.problem, self.program, task, history)
        try:
            run = with_origin(runner.run(self.program, task, options), origin)
        except InterruptedRunError as interruption:
            if isinstance(interruption.partial, Run):
                interruption.partial = with_origin(interruption.partial, origin)
            raise
        _warn(oracle.afterthoughts(run.parameters[..., -1, :]))
        return run

    def _slots(self, trace: Any) -> tuple[str, ...]:
        """The names of the slots to record."""
        if isinstance(trace, bool):
            return self.program.recordable if trace else ()
        return tuple(trace) if is_sequence(trace) else (trace,)

    def _require_range(self, dtype: torch.dtype) -> None:
        """Raise `OverflowedRunError` if a constant of the program is too large for `dtype`."""
        if found := beyond(self.program, torch.finfo(dtype).max):
            raise OverflowedRunError.constant(*found, str(dtype).removeprefix("torch."))

    def certificate(
        self,
        *,
        n_tokens: int = CERTIFIED_TOKENS,
        backend: str = "dense",
        dtype: str | torch.dtype = "float64",
    ) -> Certificate:
        """What is proved for every task in the domain with prompts of up to `n_tokens` tokens."""
        count("n_tokens", n_tokens)
        precision = dtype_named(dtype)
        bounds = self._bounds(precision, n_tokens, backend)
        proved = bounds.domain()
        return Certificate(
            domain_step=proved.step,
            domain_trajectory=proved.trajectory,
            paper_step=bounds.paper_step(),
            n_tokens=n_tokens,
            widest=bounds.widest,
            condition=bounds.condition,
            stated=bounds.stated,
            estimated=bounds.estimated,
            backend=backend,
            dtype=str(precision).removeprefix("torch."),
            domain_predictions=bounds.domain_predictions(proved),
        )

    def bounds_for(self, task: Task, backend: str) -> AbstractBounds:
        """The rules that prove bounds on a run of this task by a backend."""
        return self._bounds(task.x.dtype, task.n_tokens, backend)

    def _bounds(self, dtype: torch.dtype, n_tokens: int, backend: str) -> AbstractBounds:
        how = Arithmetic.of(dtype, n_tokens, backend_named(backend).name)
        return bounds_of(self.problem, self.program, how)

    def certify(
        self,
        X: Any,
        y: Any,
        *,
        path: str | os.PathLike[str] | None = None,
        queries: Any = None,
        initial: Any = None,
        seed: int | None = None,
        backend: str = "fused",
        dtype: str | torch.dtype = "float64",
        files: tuple[str | os.PathLike[str] | None, str | os.PathLike[str] | None] = (None, None),
        on_progress: OnProgress | None = None,
    ) -> Proof:
        """Run on one task, and prove its distance from exact descent in real numbers.

        The certificate is written to `path`, if there is one. `icgd-check` accepts or refuses it
        without icgd. `files` are those that the transformer and the data were read from; the
        certificate then names their SHA-256. It needs the extra `proofs`.
        """
        task = self.task(X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)
        transformer = {
            "construction": self.program.construction,
            "backend": backend,
            "dtype": str(task.x.dtype).removeprefix("torch."),
        }
        sources = Sources(transformer, *files)
        require_elsewhere(path, sources)
        require_provable(self.problem, task, self.program.n_steps)
        history = self.run_task(task, backend=backend).parameters
        proof = prove(self.problem, task, history, sources, on_progress)
        if path is not None:
            proof.save(path)
        return proof

    def summary(self, n_tokens: int | None = None) -> Summary:
        """The numbers of layers, heads, weights and FLOPs, counted without building a weight.

        The default of `n_tokens` is 33, or what the program is made for: its examples and a query.
        """
        if n_tokens is None:
            made_for = self.program.n_examples
            n_tokens = TYPICAL_TOKENS if made_for is None else made_for + 1
        summary = summarise(self.program, count("n_tokens", n_tokens))
        return replace(summary, chosen_because=self.chosen_because)

    def transformer(self, dtype: str | torch.dtype = "float64") -> Transformer:
        """The transformer as a torch module with ordinary weights."""
        return build_transformer(self.stack, dtype_named(dtype))

    def block(self, dtype: str | torch.dtype = "float64") -> nn.Module:
        """The layers that exist as weights: those of a chain's block, or all of a stack."""
        return build_block(self.program, dtype_named(dtype))

    def for_depth(self, depth: int) -> Compiled:
        """The same block of cot-network at work on a target of `depth` layers.

        Not a weight of the block changes: only the mask, which is no part of it, and what the
        prompt says of each layer. Hidden layers are as wide as before. Grids cover what they
        covered; a run that leaves them raises `OverflowedRunError`, so compile the deepest target
        to have the widest grids.
        """
        if not isinstance(self.program, ChainProgram):
            raise SettingError.not_a_chain(self.program.construction)
        return Compiled(
            *for_depth(self.problem, self.program, count("depth", depth, most=LARGEST_DEPTH))
        )

    def draw(self, path: str | os.PathLike[str] | None = None) -> pictures.picture.Picture:
        """The transformer as one picture: its layers, their heads, and what they read and write.

        Columns are the slots of the residual stream, rows are the layers. With a `path` the picture
        is also written, as SVG or PNG by the ending of the name.
        """
        title = f"{self.program.construction} trains a {self.problem.target.in_words()}"
        return pictures.program_picture.draw(self.program, title, path)

    def listing(self) -> str:
        """The program as readable text."""
        return self.program.listing()

    def save(self, path: str | os.PathLike[str], *, weights: bool | None = None) -> None:
        """Write a safetensors file that `icgd.load` reads.

        It holds the problem and the program, from which everything is rebuilt. With `weights` it
        holds the dense weights for other tools too; the default is True up to 256 MiB of them.
        """
        if weights is None:
            weights = 8 * self.summary().parameters <= STORED_WEIGHTS
        tensors = dict(self.block().named_parameters()) if weights else {}
        files.save(path, self.problem, self.program, tensors)


def _warn(doubts: Iterable[Warning]) -> None:
    """Issue warnings at the line that called `run` or `verify`."""
    for doubt in doubts:
        warnings.warn(doubt, stacklevel=4)
