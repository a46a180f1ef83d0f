"""A compiled training run: the object that users hold."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from icgd.backends.dense import build_block, build_transformer
from icgd.backends.registry import backend_named
from icgd.backends.run import OnProgress, Run
from icgd.certificates.bounds import Arithmetic
from icgd.certificates.certificate import Certificate
from icgd.certificates.chain_bound import chain_domain_bound
from icgd.certificates.closed_form import closed_form_bound
from icgd.certificates.domain_bound import domain_bound
from icgd.certificates.functional_bound import functional_domain_bound
from icgd.certificates.linear_bound import linear_domain_bound
from icgd.errors import BoxWarning, DivergenceWarning, OverflowedRunError, SettingError
from icgd.layers.transformer import Transformer
from icgd.problems.problem import Problem
from icgd.problems.separable import require_minimiser
from icgd.problems.settings import count, positive
from icgd.problems.spectrum import divergence
from icgd.problems.task import Task, as_task, checked_task, dtype_named
from icgd.program.chain import ChainProgram, Program
from icgd.program.check import constants
from icgd.program.program import StackProgram
from icgd.program.render import listing
from icgd.shapes import Parameters
from icgd.weights import files
from icgd.weights.summary import Summary, summarise

STORED_WEIGHTS = 2**28
"""Bytes of dense weights that `save` stores unasked; larger ones only on request."""

TYPICAL_TOKENS = 33
"""Prompt length that a summary counts with where any will do: 32 examples and a query."""

CERTIFIED_TOKENS = 1024
"""Prompt length up to which a certificate's rounding terms hold unless told otherwise."""


@dataclass(frozen=True)
class Compiled:
    """A problem and the program that trains it in a transformer's forward pass.

    If the construction was chosen by `icgd.compile`, `chosen_because` says why.
    """

    problem: Problem
    program: Program
    chosen_because: str | None = field(default=None, compare=False, kw_only=True)

    @property
    def stack(self) -> StackProgram:
        """The program, if it is a stack of layers."""
        if isinstance(self.program, ChainProgram):
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

        `X` is (n, d_x), or (tasks, n, d_x) for many tasks at once. Initial weights are `initial`
        or drawn from `seed`. `trace=True` records every slot after every layer, a list of names
        only those; `history=False` keeps only the initial and the final weights. With `stop_below`
        it stops after the first step that moves no weight by more; with batches, after a whole pass
        of such steps over the examples. On Ctrl-C it raises `InterruptedRunError`, whose `partial`
        is the run up to the last whole step.
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
        """One forward pass on data that were checked before."""
        if isinstance(trace, bool):
            trace = self._traceable() if trace else ()
        trace = (trace,) if isinstance(trace, str) else tuple(trace)
        runner = backend_named(backend)
        if stop_below is not None:
            positive("stop_below", stop_below)
            if self.problem.trains_function:
                raise SettingError.functions_do_not_stop()
            if self.problem.trains_coefficients:
                model, update = self.problem.model, self.problem.proximal_step
                require_minimiser(model, update, task.x.double(), task.y.double())
        task = checked_task(self.problem, task)
        dtype = str(task.x.dtype).removeprefix("torch.")
        self._require_range(task.x.dtype, dtype)
        self._warn_of_divergence(task)
        overflowed = OverflowedRunError.of(dtype, self.problem.update.step_size or 0.0)
        try:
            run = runner.run(
                self.program,
                task,
                trace=trace,
                history=history,
                on_progress=on_progress,
                stop_below=stop_below,
            )
        except IndexError:  # a preactivation that is not a number has no cell to look up
            raise overflowed from None
        # A weight that is not finite never becomes so again: the last step tells of all.
        if not run.parameters[..., -1, :].isfinite().all():
            raise overflowed
        self._warn_of_box(run.parameters[..., -1, :])
        return run

    def _warn_of_box(self, weights: Parameters) -> None:
        """Say so if a linear model's descent ends at the box: its minimiser lies beyond."""
        box = self.problem.box
        if not self.problem.trains_coefficients or box is None or not weights.numel():
            return
        largest, place = weights.abs().flatten().max(0)
        if largest >= box:
            coefficient = int(place) % weights.shape[-1]
            warnings.warn(BoxWarning.of(coefficient, box), stacklevel=4)

    def _traceable(self) -> tuple[str, ...]:
        """All slots; of a chain, all rows of a block."""
        if isinstance(self.program, ChainProgram):
            return self.program.rows.names
        return self.program.layout.names

    def _warn_of_divergence(self, task: Task) -> None:
        """Say so if functional steps are too long for these data; other updates are clipped."""
        if not self.problem.trains_function:
            return
        worst = divergence(self.problem, task, self.program.n_steps)
        if worst is not None:
            step_size = self.problem.functional_step.step_size
            constant = step_size if isinstance(step_size, float) else None
            warning = DivergenceWarning.of(worst.eigenvalue, worst.growth, constant)
            warnings.warn(warning, stacklevel=4)

    def _require_range(self, dtype: torch.dtype, name: str) -> None:
        """Every constant of the program must be a number of the run's precision."""
        largest = torch.finfo(dtype).max
        for constant, value in constants(self.program):
            if not abs(value) <= largest:
                raise OverflowedRunError.constant(constant, value, name)

    def certificate(
        self,
        *,
        n_tokens: int = CERTIFIED_TOKENS,
        backend: str = "dense",
        dtype: str | torch.dtype = "float64",
    ) -> Certificate:
        """What is proved for every task in the domain with prompts of up to `n_tokens` tokens."""
        count("n_tokens", n_tokens)
        how = Arithmetic.of(dtype_named(dtype), n_tokens, backend_named(backend).name)
        if self.problem.trains_function:
            bound = functional_domain_bound(self.problem, self.program.n_steps, how)
            # The papers' statement is exact: what is left is rounding.
            return Certificate(bound.step, bound.trajectory, bound.step, n_tokens)
        if self.problem.trains_coefficients:
            bound = linear_domain_bound(self.problem, self.stack, how)
            covered = max(n_tokens, self.stack.n_examples or 0)  # its prompts have no fewer
            return Certificate(bound.step, bound.trajectory, None, covered)
        if isinstance(self.program, ChainProgram):
            chain = chain_domain_bound(self.program, self.problem, how)
            return Certificate(chain.step, chain.trajectory, None, n_tokens)
        bound = domain_bound(self.program, self.problem, how)
        paper = closed_form_bound(self.program, self.problem, how)
        return Certificate(bound.step, bound.trajectory, paper, n_tokens)

    def summary(self, n_tokens: int | None = None) -> Summary:
        """Layers, heads, widths, parameters, FLOPs: counted without building a weight.

        Unless said, for the examples that it is made for, or 32, and a query.
        """
        if n_tokens is None:
            made_for = None if isinstance(self.program, ChainProgram) else self.program.n_examples
            n_tokens = TYPICAL_TOKENS if made_for is None else made_for + 1
        summary = summarise(self.program, count("n_tokens", n_tokens))
        return replace(summary, chosen_because=self.chosen_because)

    def transformer(self, dtype: str | torch.dtype = "float64") -> Transformer:
        """The transformer as a torch module with ordinary weights."""
        return build_transformer(self.stack, dtype_named(dtype))

    def block(self, dtype: str | torch.dtype = "float64") -> nn.Module:
        """What runs again and again, with ordinary weights: a chain's layers, or all of a stack."""
        if isinstance(self.program, ChainProgram):
            return build_block(self.program, dtype_named(dtype))
        return self.transformer(dtype)

    def listing(self) -> str:
        """The program as readable text."""
        return listing(self.program)

    def save(self, path: str | os.PathLike[str], *, weights: bool | None = None) -> None:
        """Write a safetensors file that `icgd.load` reads.

        It holds the problem and the program, from which everything is rebuilt, and the dense
        weights for other tools: if asked, or by default if they take at most 256 MiB.
        """
        if weights is None:
            weights = 8 * self.summary().parameters <= STORED_WEIGHTS
        tensors = dict(self.block().named_parameters()) if weights else {}
        files.save(path, self.problem, self.program, tensors)
