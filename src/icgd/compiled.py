"""A compiled training run: the object that users hold."""

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
"""The most bytes of weights that `save` stores by default."""

TYPICAL_TOKENS = 33
"""The default prompt length of a summary: 32 examples and a query."""

LARGEST_DEPTH = 10**6
"""The most layers that `for_depth` writes down."""

CERTIFIED_TOKENS = 1024
"""The default prompt length up to which the rounding terms of a certificate hold."""


@with_repr
@dataclass(frozen=True)
class Compiled:
    """A problem and the program that trains it in a transformer's forward pass.

    Attributes:
        problem: what is trained.
        program: the layers, what each does, and how often they are repeated.
        chosen_because: why the construction was chosen, if `icgd.compile` chose it.
        wide: the problem that the program was compiled for, if `problem` is that of a narrower
            network: see `for_widths`.
        table: how the command line reads tables for it, such as `{"standardize": True}`, if
            `icgd compile` made it of a table; saved with it.

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
        """Return what it shows of itself in a line or in a notebook.

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
        """How a narrower network stands inside the one that was compiled."""
        return None if self.wide is None else Padding(self.wide, self.problem)

    @property
    def whole(self) -> Compiled:
        """The same transformer at work on the network that it was compiled for."""
        return self if self.wide is None else replace(self, problem=self.wide, wide=None)

    @property
    def stack(self) -> StackProgram:
        """The program, if it is a stack of layers that trains the network it was compiled for."""
        if self.wide is not None:
            raise ConstructionError(
                f"This run trains a {self.problem.target.in_words()} inside the transformer of a "
                f"{self.wide.target.in_words()}, whose weights are the same. Take `.whole`, the "
                "run that was compiled, and pad its data with zeros."
            )
        if not isinstance(self.program, StackProgram):
            raise ConstructionError(
                f"{self.program.construction} is one block of layers that writes a chain, not a "
                "stack of layers; its weights are those of block(). Compile with relu-stack for a "
                "whole transformer."
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
            seed: what initial weights are drawn from, if none are given; the default is 0.
            dtype: "float64" or "float32".
            rates: a number for each example by which its gradient is multiplied, where the domain
                has a largest rate.

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
        """One forward pass: the data go into the prompt, weights and predictions come out.

        Args:
            X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
            y: a label for each row of X.
            queries: inputs whose labels are predicted.
            initial: the initial weights.
            seed: what initial weights are drawn from, if none are given; the default is 0.
            backend: "fused", which is fast and computes no head, or the transformer itself:
                "literal", every head from the weights that are not 0, or "dense", with matrices.
                "auto" is literal if that takes no more than some 20 seconds, and else fused.
            dtype: "float64" or "float32".
            trace: the slots to record after every layer; True records all of them.
            history: whether the weights after every step are kept, or only the first and the last;
                a number, say 100, keeps those after every 100 steps, and the last.
            on_progress: is called with the number of steps done and the number in all.
            stop_below: with it the run stops after the first step that moves no weight by more;
                with batches it stops after a whole pass of such steps over the examples.
            rates: a number for each example by which its gradient is multiplied, where the domain
                has a largest rate.
            skip_zeros: whether a literal run leaves out tokens that add exactly 0.
            engine: what performs the steps of fused runs: "torch", "compiled" (loops that numba
                compiles, with torch where an operation has none), or "auto", which compiles work
                of seconds if numba is installed. Both are within the bounds, a rounding apart.

        Returns:
            What was learnt and predicted.

        Raises:
            DataError: if the data do not fit the problem.
            DomainError: if they leave its domain.
            UnknownNameError: if no backend, dtype or engine has this name.
            MissingExtraError: if the compiled engine is asked for and numba is not installed.
            LayoutError: if `trace` names no slot of the program.
            SettingError: if `stop_below` is not positive, or if a function is trained, or if
                `history` is neither a truth value nor a positive whole number.
            OverflowedRunError: if the run leaves the range of numbers.
            SizeError: if the transformer, or the weights of all steps that are kept, do not fit
                into memory.
            InterruptedRunError: on Ctrl-C; its `partial` is the run up to the last whole step.

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
        """One forward pass on a task, with the options of `run`.

        Args:
            task: the data.
            backend: "fused", "literal", "dense" or "auto".
            trace: the slots to record after every layer; True records all of them.
            history: whether the weights after every step are kept, or after how many steps.
            on_progress: is called with the number of steps done and the number in all.
            stop_below: with it the run stops after the first step that moves no weight by more.
            skip_zeros: whether a literal run leaves out tokens that add exactly 0.
            engine: what performs the steps of fused runs: "auto", "torch" or "compiled".

        Returns:
            What was learnt and predicted.

        Raises:
            DataError: if the task is not one of this problem.
            UnknownNameError: if no backend or engine has this name.
            MissingExtraError: if the compiled engine is asked for and numba is not installed.
            LayoutError: if `trace` names no slot of the program.
            SettingError: if `stop_below` is not positive, or if a function is trained, or if
                `history` is neither a truth value nor a positive whole number.
            OverflowedRunError: if the run leaves the range of numbers.
            InterruptedRunError: on Ctrl-C; its `partial` is the run up to the last whole step.

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
        """Run a task that `task` has made, which is not checked again."""
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
                f"engine='compiled' is for backend='fused', and this is {backend!r}: leave it out."
            )
        if flag("skip_zeros", skip_zeros) and not isinstance(runner, LiteralBackend):
            raise SettingError(
                f"skip_zeros is for backend='literal', and this is {backend!r}: leave it out."
            )
        if not abs(program.largest_number[1]) <= torch.finfo(dtype).max:
            raise out_of_range(*program.largest_number, dtype)
        kept = n_kept(program.n_steps, options.every(program.n_steps))
        require_memory(
            f"The history of {kept - 1:,} steps",
            kept * task.initial.numel() * task.initial.itemsize,
            "Keep fewer: history=100 keeps every hundredth step, history=False the last one.",
        )
        for doubt in oracle.warnings_before(task, program.n_steps):
            warn(doubt)
        attend = attention if self.padding is None else partial(_padded_attention, self.padding)
        origin = Origin(self.problem, program, task, backend, attend)
        try:
            run = self._read(runner.run(program, self._prompted(task), options), origin)
        except InterruptedRunError as interruption:
            if isinstance(interruption.partial, Run):
                interruption.partial = self._read(interruption.partial, origin)
            raise
        for doubt in oracle.warnings_after(task, run.parameters[..., -1, :]):
            warn(doubt)
        return run

    def _prompted(self, task: Task) -> Task:
        """The task as the prompt has it."""
        return task if self.padding is None else self.padding.task(task)

    def _read(self, run: Run, origin: Origin) -> Run:
        """Return the run of `problem`, which knows what it came from; traces are those of the
        stream.
        """
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
        """Return what is proved for every task in the domain, before any run.

        Args:
            n_tokens: the bounds hold for prompts of up to so many tokens.
            backend: the backend whose rounding they include.
            dtype: the precision whose rounding they include.

        Returns:
            The bounds.

        Raises:
            UnknownNameError: if no backend or dtype has this name.
            SettingError: if `n_tokens` is no positive whole number.

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
            The bounds, which prove what holds of a run.

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
        """Run on one task, and prove its distance from exact descent in real numbers.

        `icgd-check` accepts or refuses the certificate without icgd.

        Args:
            X: the inputs, (n, d_x).
            y: a label for each row of X.
            path: the file that the certificate is written to, if there is one.
            queries: inputs whose predictions are in the run.
            initial: the initial weights.
            seed: what initial weights are drawn from, if none are given; the default is 0.
            backend: "literal", "fused" or "dense"; "auto" is literal for runs of up to some 20
                seconds and else fused, which the certificate names.
            dtype: "float64" or "float32".
            files: those that the transformer and the data were read from; the certificate then
                names their SHA-256.
            on_progress: is called with the number of steps done and the number in all.
            rates: a number for each example by which its gradient is multiplied, where the domain
                has a largest rate.

        Returns:
            The certificate.

        Raises:
            ProofError: if exact descent has no finite enclosure, if the run has no steps, or for a
                kernel of your own.
            DataError: if the data do not fit the problem, or are more than one task.
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
        """Return the numbers of layers, heads, weights and FLOPs, counted without building a
        weight.

        Args:
            n_tokens: the length of the prompt; the default is 33, or what the program is made for:
                its examples and a query.

        Returns:
            The sizes.

        Raises:
            SettingError: if `n_tokens` is no positive whole number.

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
            The module, which maps a residual stream to the one after the last layer.

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
        """Return the layers that exist as weights: those of a chain's block, or all of a stack.

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
        """Return the same block of cot-network at work on a target of `depth` layers.

        Not a weight of the block changes: only the mask, which is no part of it, and what the
        prompt says of each layer. Hidden layers are as wide as before. Grids cover what they
        covered; a run that leaves them raises `OverflowedRunError`, so compile the deepest target
        to have the widest grids.

        Args:
            depth: the number of layers of the new target.

        Returns:
            The compiled run of the new target.

        Raises:
            SettingError: if the program is no chain, if hidden layers differ in width, or if the
                block lacks an activation that the depth needs.

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
                "Only the block of cot-network trains networks of every depth, and this is "
                f"{self.program.construction}, whose layers belong to one depth. Compile with "
                "cot-network, or compile the deeper problem itself."
            )
        return Compiled(
            *for_depth(self.problem, self.program, count("depth", depth, most=LARGEST_DEPTH))
        )

    def for_widths(self, widths: Sequence[int]) -> Compiled:
        """Return the same transformer at work on a network that is nowhere wider than the compiled
        one.

        Not a weight changes: inputs, labels and weights are padded with zeros in the prompt, and
        what is padded stays 0. Exact training is that of the narrow network, and bounds are those
        of the compiled one. Traces and attention show the padded units too.

        Args:
            widths: the widths of the layers, as many as were compiled, from the input to the
                output.

        Returns:
            The compiled run of the narrower network.

        Raises:
            SettingError: if there are more or fewer layers, if a layer is wider, or if padded units
                would not stay 0: hidden ones of sigmoid and softplus, except in cot-network, those
                of layers with a norm, and further classes.

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
        if isinstance(self.program, ChainProgram):  # its block closes padded units by itself
            program = replace(self.program, shapes=narrow.network.matrix_shapes)
            return replace(self, problem=narrow, program=program)
        if narrow.network == self.whole.problem.network:
            return self.whole
        Padding(self.whole.problem, narrow)  # which it checks
        return replace(self, problem=narrow, wide=self.whole.problem)

    def draw(self, path: str | os.PathLike[str] | None = None) -> pictures.picture.Picture:
        """Return the transformer as one picture: its layers, their heads, and what they read and
        write.

        Columns are the slots of the residual stream, rows are the layers.

        Args:
            path: the file that the picture is also written to, as SVG or PNG by its ending.

        Returns:
            The picture, which a notebook shows.

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

        It holds the problem and the program, from which everything is rebuilt. It may hold the
        weights too, for other tools: docs/exports/files.md has a loader for plain torch.

        Args:
            path: the file.
            weights: "dense" (or True), "sparse", which are the indices and values of those that are
                not 0, or "none" (or False). The default is the first of these that takes no more
                than 256 MiB.

        Raises:
            FileError: if it cannot be written.
            SizeError: if the weights do not fit into memory.
            UnknownNameError: if there are no weights of this name.

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
                known = ("dense", "sparse", "none")
                raise UnknownNameError.of("kind of weights", weights, known=known)
        widths = None if self.wide is None else self.problem.network.widths
        files.save(
            path, self.whole.problem, self.program, *written, widths=widths, table=self.table
        )


def _padded_attention(
    padding: Padding, program: StackProgram, task: Task, *where: Any
) -> dict[str, torch.Tensor]:
    """Patterns of heads that read a padded prompt."""
    return attention(program, padding.task(task), *where)
