"""The compiled training run, the object that users work with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from icgd import pictures
from icgd.backends.dense import build_block, build_transformer
from icgd.backends.fused import FusedBackend
from icgd.backends.literal import LiteralBackend, attention
from icgd.backends.registry import AUTO, BACKENDS, chosen_backend
from icgd.backends.run import (
    ENGINES,
    OnProgress,
    Origin,
    Run,
    RunOptions,
    n_kept,
    with_origin,
)
from icgd.certificates.balls import (
    Proof,
    Sources,
    prove,
    require_elsewhere,
    require_provable,
)
from icgd.certificates.enclosures import AbstractBounds, Arithmetic
from icgd.certificates.report import Certificate, bounds_of
from icgd.constructions.cot_network import for_depth
from icgd.environment import own_modes, require_memory, warn
from icgd.errors import ConstructionError, InterruptedRunError, SettingError, UnknownNameError
from icgd.layers import Transformer
from icgd.problems.data import Task, as_task, checked_task, dtype_name, dtype_named
from icgd.problems.padding import Padding, narrowed
from icgd.problems.problem import Problem
from icgd.problems.settings import count, flag, is_row, positive
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.reprs import with_repr
from icgd.weights import files
from icgd.weights.lowering import out_of_range
from icgd.weights.sizes import Summary, summarise
from icgd.weights.sparse import ENTRY_BYTES, sparse_weights

STORED_WEIGHTS = 2**28
"""The largest size of weights, in bytes, that `save` stores by default."""

TYPICAL_TOKENS = 33
"""The default prompt length of a summary: 32 examples and a query."""

LARGEST_DEPTH = 10**6
"""The largest depth that `for_depth` accepts."""

CERTIFIED_TOKENS = 1024
"""The default limit on prompt lengths for which a certificate holds; rounding grows with length."""


@with_repr
@dataclass(frozen=True)
class Compiled:
    """A problem and the program that trains it in a transformer's forward pass.

    Attributes:
        problem: what is trained.
        program: the layers, what each does, and how often they are repeated.
        chosen_because: why the construction was chosen, if `icgd.compile` chose it.
        wide: the problem that the program was compiled for, if `problem` has a narrower network:
            see `for_widths`.
        table: how the command line reads tables for this run, such as `{"standardize": True}`, if
            `icgd compile` compiled it for a table; saved with the run.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, n_steps=2)
        >>> compiled.program.construction
        'relu-stack'
        >>> compiled.run([[0.5, 1.0]], [1.0], queries=[[1.0, 1.0]]).predictions.shape
        torch.Size([1, 1])
    """

    problem: Problem
    program: AbstractProgram
    chosen_because: str | None = field(default=None, compare=False, kw_only=True)
    wide: Problem | None = field(default=None, kw_only=True)
    table: Mapping[str, Any] | None = field(default=None, compare=False, kw_only=True)

    def facts(self) -> dict[str, str]:
        """Return a summary of the run, as shown in its repr and in notebooks.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.facts()["target"]
            '2-1 tanh network'
        """
        inside = {} if self.wide is None else {"compiled for": self.wide.target.in_words()}
        return {**self.problem.facts(), **inside, **self.program.facts()}

    @cached_property
    def padding(self) -> Padding | None:
        """The embedding of the narrower network in the compiled one, or None if they are equal."""
        return None if self.wide is None else Padding(self.wide, self.problem)

    @property
    def whole(self) -> Compiled:
        """The same transformer on the network that it was compiled for."""
        return self if self.wide is None else replace(self, problem=self.wide, wide=None)

    @property
    def stack(self) -> StackProgram:
        """The program, if it is a stack of layers that trains the network it was compiled for."""
        if self.wide is not None:
            raise ConstructionError(
                f"This run trains a {self.problem.target.in_words()} in a transformer compiled for "
                f"a {self.wide.target.in_words()}. Use `.whole`, which has the same weights, and "
                "pad its data with zeros."
            )
        if not isinstance(self.program, StackProgram):
            raise ConstructionError(
                f"{self.program.construction} is one block of layers, applied again and again to a "
                "growing sequence, not a stack of layers; block() returns its weights. Compile "
                "with relu-stack for a whole transformer."
            )
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
        rates: Any = None,
    ) -> Task:
        """Return the data as a checked task of this problem.

        Args:
            X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
            y: a label for each row of X.
            queries: inputs whose labels are to be predicted.
            initial: the initial weights.
            seed: the seed of the random initial weights if none are given; the default is 0.
            dtype: "float64" or "float32".
            rates: a factor for the gradient of each example, if the domain has a largest rate.

        Returns:
            The task.

        Raises:
            DataError: if the data do not fit the problem.
            DomainError: if they leave its domain.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.task([[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5]).n_examples
            2
        """
        options = {"queries": queries, "initial": initial, "seed": seed, "dtype": dtype}
        return as_task(self.problem, X, y, **options, rates=rates)

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
        trace: bool | str | Sequence[str] = False,
        history: bool | int = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
        rates: Any = None,
        skip_zeros: bool = False,
        engine: str = "auto",
    ) -> Run:
        """Train on the data and predict at the queries, in one forward pass.

        Args:
            X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
            y: a label for each row of X.
            queries: inputs whose labels are predicted.
            initial: the initial weights.
            seed: the seed of the random initial weights if none are given; the default is 0.
            backend: "fused", which is fast and computes no head, or the transformer itself:
                "literal", every head from its nonzero weights, or "dense", with matrices. "auto"
                is literal for runs of up to about 20 seconds, otherwise fused.
            dtype: "float64" or "float32".
            trace: the slots to record after every layer; True records all of them.
            history: whether to record the weights after every step, or only the first and the last;
                a number, say 100, records those after every 100 steps and the last.
            on_progress: a callback, called with the number of finished steps and their total.
            stop_below: stop after the first step that moves no weight by more than this; with
                batches, after a whole pass of such steps over the examples.
            rates: a factor for the gradient of each example, if the domain has a largest rate.
            skip_zeros: whether a literal run skips tokens that add exactly 0.
            engine: what performs the steps of fused runs: "torch", "compiled" (loops compiled by
                numba, and torch for operations without one), or "auto", which compiles runs of
                seconds if numba is installed. Both satisfy the bounds; they differ by rounding.

        Returns:
            The run, with the learnt weights and the predictions.

        Raises:
            DataError: if the data do not fit the problem.
            DomainError: if they leave its domain.
            UnknownNameError: if no backend, dtype or engine has this name.
            MissingExtraError: if the compiled engine is asked for and numba is not installed.
            LayoutError: if `trace` names no slot of the program.
            SettingError: if `stop_below` is not positive or a function is trained, or if `history`
                is neither a bool nor a positive integer.
            OverflowedRunError: if a value exceeds the range of the dtype.
            SizeError: if the transformer or the recorded weights do not fit into memory.
            InterruptedRunError: on Ctrl-C; its `partial` is the run up to the last complete step.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> run = compiled.run([[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5], initial=[0.0, 0.0])
            >>> run.parameters.shape  # before the first step, and after each of two
            torch.Size([3, 2])
        """
        start = {"initial": initial, "seed": seed}
        task = self.task(X, y, queries=queries, **start, dtype=dtype, rates=rates)
        options: dict[str, Any] = {"trace": trace, "history": history, "stop_below": stop_below}
        options |= {"on_progress": on_progress, "skip_zeros": skip_zeros, "engine": engine}
        return self._run(task, backend, **options)

    def run_task(
        self,
        task: Task,
        *,
        backend: str = "fused",
        trace: bool | str | Sequence[str] = False,
        history: bool | int = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
        skip_zeros: bool = False,
        engine: str = "auto",
    ) -> Run:
        """Train on a task and predict at its queries, with the options of `run`.

        Args:
            task: the data.
            backend: "fused", "literal", "dense" or "auto".
            trace: the slots to record after every layer; True records all of them.
            history: whether to record the weights after every step, or after how many steps.
            on_progress: a callback, called with the number of finished steps and their total.
            stop_below: stop after the first step that moves no weight by more than this.
            skip_zeros: whether a literal run skips tokens that add exactly 0.
            engine: what performs the steps of fused runs: "auto", "torch" or "compiled".

        Returns:
            The run, with the learnt weights and the predictions.

        Raises:
            DataError: if the task does not fit this problem.
            UnknownNameError: if no backend or engine has this name.
            MissingExtraError: if the compiled engine is asked for and numba is not installed.
            LayoutError: if `trace` names no slot of the program.
            SettingError: if `stop_below` is not positive or a function is trained, or if `history`
                is neither a bool nor a positive integer.
            OverflowedRunError: if a value exceeds the range of the dtype.
            InterruptedRunError: on Ctrl-C; its `partial` is the run up to the last complete step.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> run = compiled.run_task(compiled.task([[0.5, 1.0]], [1.0]), history=False)
            >>> run.parameters.shape
            torch.Size([2, 2])
        """
        options: dict[str, Any] = {"trace": trace, "history": history, "stop_below": stop_below}
        options |= {"on_progress": on_progress, "skip_zeros": skip_zeros, "engine": engine}
        return self._run(checked_task(self.problem, task), backend, **options)

    @own_modes()
    def _run(
        self,
        task: Task,
        backend: str,
        *,
        trace: Any = False,
        history: bool | int = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
        skip_zeros: bool = False,
        engine: str = "auto",
    ) -> Run:
        """Run a task that has been validated."""
        program, oracle, dtype = self.program, self.problem.oracle, task.x.dtype
        if not isinstance(history, bool):
            history = count("history", history)
        if stop_below is not None:
            stop_below = positive("stop_below", stop_below)
            oracle.require_end(task)
        if isinstance(trace, bool):
            slots = program.traceable if trace else ()
        else:
            slots = tuple(trace) if is_row(trace) else (trace,)
        if engine not in ENGINES:
            raise UnknownNameError.of("engine", engine, known=ENGINES)
        options = RunOptions(
            slots, history, on_progress, stop_below, oracle.overflow, skip_zeros, engine
        )
        backend = chosen_backend(backend, program, task).name
        runner = BACKENDS[backend]
        if engine == "compiled" and backend != FusedBackend.name:
            raise SettingError(
                f"engine='compiled' works with backend='fused' only, and the backend is "
                f"{backend!r}. Omit engine."
            )
        if flag("skip_zeros", skip_zeros) and not isinstance(runner, LiteralBackend):
            raise SettingError(
                f"skip_zeros works with backend='literal' only, and the backend is {backend!r}. "
                "Omit it."
            )
        if not abs(program.largest_number[1]) <= torch.finfo(dtype).max:
            raise out_of_range(*program.largest_number, dtype)
        n_recorded = n_kept(program.n_steps, options.every(program.n_steps))
        require_memory(
            f"The history of {n_recorded - 1:,} steps",
            n_recorded * task.initial.numel() * task.initial.itemsize,
            "history=100 records every hundredth step, history=False the last step only.",
        )
        for warning in oracle.warnings_before(task, program.n_steps):
            warn(warning)
        attend = attention if self.padding is None else partial(_padded_attention, self.padding)
        origin = Origin(self.problem, program, task, backend, attend)
        try:
            run = self._read(runner.run(program, self._prompted(task), options), origin)
        except InterruptedRunError as interruption:
            if isinstance(interruption.partial, Run):
                interruption.partial = self._read(interruption.partial, origin)
            raise
        for warning in oracle.warnings_after(task, run.parameters[..., -1, :]):
            warn(warning)
        return run

    def _prompted(self, task: Task) -> Task:
        """Return the task as it is written into the prompt, padded for a narrower network."""
        return task if self.padding is None else self.padding.task(task)

    def _read(self, run: Run, origin: Origin) -> Run:
        """Return the run in the widths of `problem`, with its origin; traces stay padded."""
        if (padding := self.padding) is not None:
            labels = padding.labels(run.predictions)
            run = replace(run, parameters=padding.read(run.parameters), predictions=labels)
        return with_origin(run, origin)

    @own_modes()
    def certificate(
        self,
        *,
        n_tokens: int = CERTIFIED_TOKENS,
        backend: str = "literal",
        dtype: str | torch.dtype = "float64",
    ) -> Certificate:
        """Return the bounds that are proved for every task in the domain, without a run.

        Args:
            n_tokens: the largest prompt length, in tokens, for which the bounds hold.
            backend: the backend whose rounding errors they include.
            dtype: the precision of the run.

        Returns:
            The bounds.

        Raises:
            UnknownNameError: if no backend or dtype has this name.
            SettingError: if `n_tokens` is not a positive integer.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.certificate().domain_step < 1e-10
            True
        """
        precision = dtype_named(dtype)
        arithmetic = Arithmetic.of(precision, count("n_tokens", n_tokens), backend)
        bounds = bounds_of(self.whole.problem, self.program, arithmetic)
        return Certificate.of(bounds, backend, precision)

    def bounds_for(self, task: Task, backend: str) -> AbstractBounds:
        """Return the bounds of a run of this task by a backend.

        Args:
            task: the data.
            backend: "fused", "literal" or "dense".

        Returns:
            The bounds, whose methods bound the errors of a run.

        Raises:
            UnknownNameError: if no backend has this name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.bounds_for(compiled.task([[0.5, 1.0]], [1.0]), "fused").estimated
            ()
        """
        arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, backend)
        return bounds_of(self.whole.problem, self.program, arithmetic)

    @own_modes()
    def certify(
        self,
        X: Any,
        y: Any,
        *,
        path: str | os.PathLike[str] | None = None,
        queries: Any = None,
        initial: Any = None,
        seed: int | None = None,
        backend: str = AUTO,
        dtype: str | torch.dtype = "float64",
        files: tuple[str | os.PathLike[str] | None, str | os.PathLike[str] | None] = (None, None),
        on_progress: OnProgress | None = None,
        rates: Any = None,
    ) -> Proof:
        """Run one task and prove its distance from exact descent in real numbers.

        The program `icgd-check` verifies the certificate independently of icgd.

        Args:
            X: the inputs, (n, d_x).
            y: a label for each row of X.
            path: the file to write the certificate to, if any.
            queries: inputs to predict at; the certificate covers the predictions.
            initial: the initial weights.
            seed: the seed of the random initial weights if none are given; the default is 0.
            backend: "literal", "fused" or "dense"; "auto" is literal for runs of up to about 20
                seconds, otherwise fused. The certificate names the backend.
            dtype: "float64" or "float32".
            files: the files that the transformer and the data were read from; the certificate
                names their SHA-256.
            on_progress: a callback, called with the number of finished steps and their total.
            rates: a factor for the gradient of each example, if the domain has a largest rate.

        Returns:
            The certificate.

        Raises:
            ProofError: if exact descent has no finite enclosure, if the run has no steps, or if
                the kernel is your own.
            DataError: if the data do not fit the problem, or have more than one task.
            FileError: if `path` cannot be written, or is one of `files`.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> proof = compiled.certify([[0.5, 1.0]], [1.0], initial=[0.0, 0.0])
            >>> print(proof.claim)
            After each of 2 steps every number of the run is within its stated distance of ...
        """
        start = {"initial": initial, "seed": seed}
        task = self.task(X, y, queries=queries, **start, dtype=dtype, rates=rates)
        backend = chosen_backend(backend, self.program, task).name
        transformer = {
            "construction": self.program.construction,
            "backend": backend,
            "dtype": dtype_name(task.x.dtype),
        }
        sources = Sources(transformer, *files)
        require_elsewhere(path, sources)
        require_provable(self.problem, task, self.program.n_steps)
        run = self._run(task, backend)
        proof = prove(self.problem, task, run.parameters, run.predictions, sources, on_progress)
        if path is not None:
            proof.save(path)
        return proof

    def summary(self, n_tokens: int | None = None) -> Summary:
        """Return the numbers of layers, heads, weights and FLOPs, without building any weights.

        Args:
            n_tokens: the length of the prompt; the default is 33, or the examples that the program
                is made for and a query.

        Returns:
            The sizes.

        Raises:
            SettingError: if `n_tokens` is not a positive integer.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.summary().layers_per_step
            4
        """
        if n_tokens is None:
            made_for = self.program.n_examples
            n_tokens = TYPICAL_TOKENS if made_for is None else made_for + 1
        summary = summarise(self.program, count("n_tokens", n_tokens))
        return replace(summary, chosen_because=self.chosen_because)

    @own_modes()
    def transformer(self, dtype: str | torch.dtype = "float64") -> Transformer:
        """Return the transformer as a torch module with ordinary weights.

        Args:
            dtype: the precision of the weights, "float64" or "float32".

        Returns:
            The module, which maps the residual stream of the prompt to that after the last layer.

        Raises:
            SettingError: if the program is a chain, which has no transformer of fixed depth.
            SizeError: if the weights do not fit into memory.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> sum(weights.numel() for weights in compiled.transformer().parameters())
            1026
        """
        return build_transformer(self.whole.stack, dtype_named(dtype))

    @own_modes()
    def block(self, dtype: str | torch.dtype = "float64") -> nn.Module:
        """Return the layers with weights: the block of a chain, or all layers of a stack.

        Args:
            dtype: the precision of the weights, "float64" or "float32".

        Returns:
            The module.

        Raises:
            SizeError: if the weights do not fit into memory.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> next(compiled.block("float32").parameters()).dtype
            torch.float32
        """
        return build_block(self.program, dtype_named(dtype))

    def for_depth(self, depth: int) -> Compiled:
        """Return the same block of cot-network, applied to a target of `depth` layers.

        No weight of the block changes, only the mask and the description of each layer in the
        prompt. Hidden layers keep their width. Grids keep their ranges; a run that leaves them
        raises `OverflowedRunError`, so compile the deepest target to have the widest grids.

        Args:
            depth: the number of layers of the new target.

        Returns:
            The compiled run of the new target.

        Raises:
            SettingError: if the program is not a chain, if hidden layers differ in width, or if
                the block lacks an activation that the depth needs.

        Example:
            >>> import icgd
            >>> step = icgd.GradientStep(0.1, box=1.0, batch_size=1)
            >>> network = icgd.MLP((2, 2, 1), "relu")
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "cot-network", n_steps=2)
            >>> compiled.for_depth(4).problem.network.widths
            (2, 2, 2, 2, 1)
        """
        if not isinstance(self.program, ChainProgram):
            raise ConstructionError(
                "Only the block of cot-network trains networks of any depth; the layers of "
                f"{self.program.construction} are made for one depth. Compile with cot-network, "
                "or compile the deeper problem itself."
            )
        return Compiled(
            *for_depth(self.problem, self.program, count("depth", depth, most=LARGEST_DEPTH))
        )

    def for_widths(self, widths: Sequence[int]) -> Compiled:
        """Return the same transformer, applied to a network none of whose layers is wider.

        No weight of the transformer changes: inputs, labels and initial weights are padded with
        zeros in the prompt, and the padded entries stay 0. Exact training is that of the narrow
        network; bounds are those of the compiled one. Traces and attention include the padded
        units.

        Args:
            widths: the widths of the layers from input to output, one for each compiled layer.

        Returns:
            The compiled run of the narrower network.

        Raises:
            SettingError: if the number of layers differs, if a layer is wider, or if padded units
                would not stay 0: hidden units of sigmoid and softplus (except in cot-network),
                units of layers with a norm, and additional classes.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((3, 8, 2)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> run = compiled.for_widths((2, 5, 1)).run([[0.5, 1.0]], [1.0])
            >>> run.weights["weights_1"].shape
            torch.Size([5, 2])
        """
        narrow = narrowed(self.whole.problem, widths)
        if isinstance(self.program, ChainProgram):  # the block itself masks padded units
            program = replace(self.program, shapes=narrow.network.matrix_shapes)
            return replace(self, problem=narrow, program=program)
        if narrow.network == self.whole.problem.network:
            return self.whole
        Padding(self.whole.problem, narrow)  # raises if padded units would not stay 0
        return replace(self, problem=narrow, wide=self.whole.problem)

    def draw(self, path: str | os.PathLike[str] | None = None) -> pictures.picture.Picture:
        """Draw the transformer: its layers, their heads, and what they read and write.

        Columns are the slots of the residual stream, rows are the layers.

        Args:
            path: a file to write the picture to as well, .svg or .png.

        Returns:
            The picture, which notebooks display.

        Raises:
            FileError: if the name has another ending, or if the file cannot be written.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.draw().title
            'relu-stack trains a 2-1 tanh network'
        """
        title = f"{self.program.construction} trains a {self.problem.target.in_words()}"
        return pictures.program_picture.draw(self.program, title, path)

    def listing(self) -> str:
        """Return the program as readable text.

        Returns:
            A line for each slot, layer and instruction.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> print(compiled.listing().splitlines()[0])
            program relu-stack, 4 layers used 2 times, 2 to predict, d_model 11
        """
        return self.program.listing()

    @own_modes()
    def save(self, path: str | os.PathLike[str], *, weights: bool | str | None = None) -> None:
        """Write a safetensors file that `icgd.load` reads.

        The file holds the problem and the program, from which everything is rebuilt. It may also
        hold the weights for other tools: docs/exports/files.md has a loader for plain torch.

        Args:
            path: the file.
            weights: "dense" (or True), "sparse" (indices and values of the nonzero weights), or
                "none" (or False). The default is the first of these that takes at most 256 MiB.

        Raises:
            FileError: if the file cannot be written.
            SizeError: if the weights do not fit into memory.
            UnknownNameError: if `weights` is none of these names.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> from pathlib import Path
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     compiled.save(Path(folder) / "run.safetensors", weights="sparse")
        """
        if weights is None:
            summary = self.summary()
            sizes = {"dense": 8 * summary.parameters, "sparse": ENTRY_BYTES * summary.nonzeros}
            small = (name for name, size in sizes.items() if size <= STORED_WEIGHTS)
            weights = next(small, "none")
        match weights:
            case True | "dense":
                written: tuple[Any, ...] = (dict(self.block().named_parameters()),)
            case "sparse":
                written = sparse_weights(self.program)
            case False | "none":
                written = ({},)
            case _:
                choices = ("dense", "sparse", "none")
                raise UnknownNameError.of("kind of weights", weights, known=choices)
        widths = None if self.wide is None else self.problem.network.widths
        files.save(
            path, self.whole.problem, self.program, *written, widths=widths, table=self.table
        )


def _padded_attention(
    padding: Padding, program: StackProgram, task: Task, *where: Any
) -> dict[str, torch.Tensor]:
    """Return the attention patterns of heads that read a padded prompt."""
    return attention(program, padding.task(task), *where)
