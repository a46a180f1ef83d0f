"""The table of contents of the library: compile, verify, decode, run_causal, load."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from icgd.backends.causal import run_left_to_right
from icgd.backends.decoder import decode_chain
from icgd.backends.dense import DenseBackend
from icgd.backends.literal import LiteralBackend, attention
from icgd.backends.registry import AUTO, chosen_backend
from icgd.backends.run import (
    OnProgress,
    Origin,
    Run,
    RunOptions,
    drive,
    part_of,
    require_entry,
    with_origin,
)
from icgd.backends.window import WindowedChain
from icgd.certificates.balls import require_enclosable, why_unproved
from icgd.certificates.guarantee import Guarantee, check_guarantee
from icgd.certificates.linear import LinearBounds
from icgd.certificates.report import (
    Certificate,
    Report,
    bounds_of_run,
    coefficient_errors,
    near_kinks,
    prediction_errors,
    real_training,
    stepwise_errors,
    trajectory_errors,
)
from icgd.choice import STEP, choose, construction_for, goal_of
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.environment import own_modes, warn
from icgd.errors import EstimateWarning, ProofError, SettingError
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.problems.settings import MOST_STEPS, count
from icgd.program.chain import ChainProgram
from icgd.program.stack import StackProgram
from icgd.weights import files


@own_modes()
def compile(
    problem: Problem,
    construction: str | AbstractConstruction | None = None,
    *,
    n_steps: int | None = None,
    tolerance: float | None = None,
    tolerance_of: str = STEP,
    task: Task | None = None,
    **settings: Any,
) -> Compiled:
    """Build a transformer whose forward pass performs `n_steps` updates of `problem`.

    Without a construction the best one is chosen that serves the problem and has these settings;
    `summary()` says why.

    Args:
        problem: what is trained, on which loss, by which update, for data within which bounds.
        construction: an object such as `icgd.ReluStack(pieces=128)`, or a name such as
            "relu-stack", to which `settings` are given here.
        n_steps: the number of training steps; by default that of the problem's schedule or
            epochs.
        tolerance: with it the construction is as fine as it must be to prove that no step errs by
            more in any weight. The proof is for the whole domain, all backends, float64 and
            prompts of up to 1024 tokens.
        tolerance_of: what `tolerance` is about: a "step", the "weights" after the whole run, or
            "predictions" at the task's queries. For all data, bounds of whole runs grow with every
            step: give a `task`.
        task: with it the proof of `tolerance` is for the run on this task, in its precision, by the
            backend that `verify` takes; whole runs are proved by balls.
        **settings: settings of the construction, such as `pieces=128`.

    Returns:
        The compiled run, which can be run, verified, drawn and saved.

    Raises:
        UnsupportedProblemError: if the construction, or every construction, cannot serve it.
        UnknownNameError: if no construction has this name.
        SettingError: if a setting is unknown, or does not suit the others.
        ToleranceError: if the tolerance cannot be proved.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=3)
        >>> compiled.summary().n_layers
        14
    """
    planned = problem.n_steps
    if n_steps is None and planned is None:
        raise SettingError(
            "n_steps is missing: neither a schedule of step sizes nor epochs of batches say how "
            "many steps to take. Give n_steps=5, say."
        )
    n_steps = count("n_steps", planned if n_steps is None else n_steps, least=0, most=MOST_STEPS)
    if problem.preprocessing and problem.preprocessing.batches and n_steps > (planned or 0):
        raise SettingError(
            f"n_steps={n_steps} is more than the {planned} batches of the problem's epochs. Read "
            "the script with more epochs."
        )
    goal = goal_of(tolerance, tolerance_of, task)
    if construction is None:
        return choose(problem, n_steps, settings, goal)
    chosen = construction_for(problem, construction, settings)
    if goal is None:
        return Compiled(problem, chosen.program(problem, n_steps))
    if chosen.refined_by in settings:
        raise SettingError(f"Give either {chosen.refined_by} or tolerance, not both.")
    return goal.meeting(chosen, problem, n_steps)


@own_modes()
def verify(
    compiled: Compiled,
    X: Any,
    y: Any,
    *,
    queries: Any = None,
    initial: Any = None,
    seed: int | None = None,
    backend: str = AUTO,
    dtype: str | torch.dtype = "float64",
    rigorous: bool | None = None,
    on_progress: OnProgress | None = None,
    rates: Any = None,
) -> Report:
    """Run `compiled`, and compare every step with the real algorithm and with what was proved.

    The real algorithm runs in float64 on the same data from the same initial weights. Of a kernel
    of your own, what `register_kernel` was told is taken for granted, and held against the data. If
    it was told nothing, bounds are estimates, and `EstimateWarning` says so.

    Args:
        compiled: the run.
        X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
        y: a label for each row of X.
        queries: inputs whose predictions are compared as well, with those of the real algorithm
            and with what is proved.
        initial: the initial weights.
        seed: what initial weights are drawn from, if none are given; the default is 0.
        backend: what runs: "literal", which is the transformer itself, "dense", the same with
            matrices, or "fused", which computes no head. "auto" is literal for runs of up to some
            20 seconds, counted from its heads, and else fused; the report says so.
        dtype: "float64" or "float32".
        rigorous: whether the distance of the whole run from exact descent in real numbers is
            proved, by balls. By default it is, unless that takes long or a kernel is your own;
            the report then says why not.
        on_progress: is called with the number of steps done and the number in all.
        rates: a number for each example by which its gradient is multiplied, where the domain has a
            largest rate.

    Returns:
        Measured errors beside their bounds, and a verdict.

    Raises:
        DataError: if the data do not fit the problem.
        DomainError: if they leave its domain.
        KernelError: if they contradict what was stated of a kernel.
        OverflowedRunError: if the run leaves the range of numbers.
        ProofError: if `rigorous` is asked for with a kernel of your own, or takes too much memory.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> report = icgd.verify(compiled, [[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5], seed=0)
        >>> report.verdict.holds
        True
    """
    start = {"initial": initial, "seed": seed}
    task = compiled.task(X, y, queries=queries, **start, dtype=dtype, rates=rates)
    n_steps, unproved = compiled.program.n_steps, None
    trained, given, padding = compiled.problem, task, compiled.padding
    if padding is not None:  # what is padded is held against 0
        task, compiled = padding.task(task), compiled.whole
    problem, program = compiled.problem, compiled.program
    if rigorous is None:
        unproved = why_unproved(problem, task, n_steps)
    elif rigorous:
        require_enclosable(problem, task, n_steps)
    real = real_training(trained, given, n_steps)
    real = real if padding is None else padding.trained(real)
    proves = unproved is None if rigorous is None else rigorous
    running, bounding, proving = (part_of(on_progress, n, 2 + proves) for n in range(3))
    backend, fused_because = chosen_backend(backend, program, task)
    run = compiled._run(task, backend, on_progress=running)
    history = run.parameters
    bounds = compiled.bounds_for(task, backend)
    if bounds.estimated:
        warn(
            EstimateWarning(
                "Bounds rest on Lipschitz constants of the kernel "
                f"{', '.join(map(repr, bounds.estimated))} that are estimated from these data: "
                "they prove nothing. State them with icgd.register_kernel(..., lipschitz=...)."
            )
        )
    progress = (bounding, proving)
    try:
        of_run = bounds_of_run(bounds, task, run, real, by_balls=proves, on_progress=progress)
    except ProofError as reason:  # the bits that the run turns out to need do not fit into memory
        if rigorous:
            raise
        unproved = str(reason).removesuffix(".")
        of_run = bounds_of_run(bounds, task, run, real, by_balls=False)
    certificate = Certificate.of(bounds, backend, task.x.dtype)
    of_steps = stepwise_errors(problem, task, history)
    return Report(
        certificate=certificate.of_run(is_covered=problem.oracle.starts_fresh(task.initial)),
        step_errors=of_steps.errors,
        step_bounds=of_run.steps,
        trajectory_errors=trajectory_errors(history, real),
        trajectory_bounds=of_run.trajectory,
        near_kinks=near_kinks(program, problem, task, history),
        paper_trajectory=of_run.paper,
        rigorous=of_run.proof,
        coefficient_errors=coefficient_errors(problem, task, history, real),
        prediction_errors=prediction_errors(problem, task, run.predictions, real),
        prediction_bounds=of_run.predictions,
        fused_because=fused_because,
        unproved_because=unproved,
        step_sizes=of_steps.sizes,
    )


@own_modes()
def decode(
    compiled: Compiled,
    X: Any,
    y: Any,
    *,
    queries: Any = None,
    initial: Any = None,
    seed: int | None = None,
    mask: str | None = None,
    dtype: str | torch.dtype = "float64",
    on_progress: OnProgress | None = None,
) -> Run:
    """Run a chain as a decoder does: every block is made of earlier ones.

    It computes every head. All columns of the sequence are in the trace. In a chain of one layer
    `run.trace["w"]` has the coefficients of every column of every block. A chain of cot-network is
    generated token by token: attention alone finds the earlier blocks that a block needs, by keys
    and values that are kept. The run then is an `icgd.backends.decoder.Decoded`, which has every
    token and what it read.

    Args:
        compiled: the run, by cot-network, cot-ridge, cot-lasso or cot-glm.
        X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
        y: a label for each row of X.
        queries: inputs whose labels are predicted by the last block.
        initial: the initial weights; of coefficients the default is 0.
        seed: what initial weights of a network are drawn from, if none are given.
        mask: of a chain of one layer: "block", the default, writes n columns at a time, which see
            the block before them; "window" writes one column at a time, which sees the last n
            columns, whatever block they are of.
        dtype: "float64" or "float32".
        on_progress: is called with the number of steps done and the number in all.

    Returns:
        The run, with the coefficients after every block and the trace of all columns.

    Raises:
        ProgramError: if the program is no chain.
        SettingError: if a mask is given for cot-network, whose own head finds its blocks.
        UnknownNameError: if no mask has this name.
        DataError: if the data do not fit the problem, or have another number of examples.
        DomainError: if they leave its domain.
        OverflowedRunError: if a score leaves the range of the heads.
        SizeError: if the sequence does not fit into memory.
        InterruptedRunError: on Ctrl-C; its `partial` is the run up to the last whole block.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "cot-ridge", n_steps=9, n_examples=2)
        >>> run = icgd.decode(compiled, [[1.0, 0.0], [0.0, 1.0]], [1.0, -0.5], mask="window")
        >>> run.trace["w"].shape  # ten blocks of two columns
        torch.Size([10, 2, 2])
    """
    task = compiled.task(X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)
    program = compiled.program
    if isinstance(program, ChainProgram):
        if mask is not None:
            raise SettingError(
                f"mask={mask!r} is for chains of one layer; the blocks of cot-network are found by "
                "a head of its own. Leave it out."
            )
        run: Run = decode_chain(program, task, on_progress)
    else:
        require_entry(program, task)
        options = RunOptions(program.layout.names, on_progress=on_progress)
        run = drive(partial(WindowedChain, mask=mask or "block"), program, task, options)
    origin = Origin(compiled.problem, program, task, LiteralBackend.name, attention)
    return with_origin(run, origin)


@own_modes()
def run_causal(
    compiled: Compiled | StackProgram,
    X: Any,
    y: Any = None,
    *,
    queries: Any = None,
    initial: Any = None,
    seed: int | None = None,
    dtype: str | torch.dtype = "float64",
) -> Run:
    """Run a softmax-stack under a causal mask, left to right over a repeated prompt.

    The prompt has (n_steps + 1) n_registers + n_steps n_examples + n_queries tokens. The old form,
    `run_causal(compiled.stack, task)`, works for one more release.

    Args:
        compiled: the run, by softmax-stack.
        X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
        y: a label for each row of X.
        queries: inputs whose labels are predicted.
        initial: the initial weights.
        seed: what initial weights are drawn from, if none are given; the default is 0.
        dtype: "float64" or "float32".

    Returns:
        The run, with the initial and the final weights and the predictions.

    Raises:
        ProgramError: if the program is no stack, or has layers other than softmax attention and
            MLPs.
        DataError: if the data do not fit the problem.
        DomainError: if they leave its domain.
        SizeError: if the dense weights do not fit into memory.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "softmax-stack", n_steps=1)
        >>> data = [[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5]
        >>> causal, plain = icgd.run_causal(compiled, *data), compiled.run(*data)
        >>> bool((causal.parameters - plain.parameters).abs().max() < 1e-9)
        True
    """
    if isinstance(compiled, StackProgram):  # the old form: a program and a task
        warn(
            DeprecationWarning(
                "icgd.run_causal(program, task) goes with the next release; give it the compiled "
                "run and the data: icgd.run_causal(compiled, X, y)."
            )
        )
        return run_left_to_right(compiled, X)
    task = compiled.task(X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)
    program: Any = compiled.program  # checked there
    run = run_left_to_right(program, task)
    return with_origin(run, Origin(compiled.problem, program, task, DenseBackend.name, attention))


@own_modes()
def guarantee(
    compiled: Compiled,
    X: Any,
    y: Any,
    *,
    initial: Any = None,
    backend: str = AUTO,
    stop_below: float | None = None,
    on_progress: OnProgress | None = None,
) -> Guarantee:
    """Run a linear model's descent, and compare its end with what cot's theorems promise.

    Args:
        compiled: the run, by linear-stack.
        X: the inputs, (n, d_x).
        y: a label for each row of X.
        initial: the initial coefficients; the default is 0.
        backend: "literal", "fused" or "dense"; "auto" is literal for runs of up to some 20 seconds,
            counted from its heads, and else fused.
        stop_below: with it the run stops after the first step that moves no coefficient by more.
        on_progress: is called with the number of steps done and the number in all.

    Returns:
        How far the run ends from the minimiser, and how far at most.

    Raises:
        SettingError: if it trains no linear model, or if a step is longer than the theorems allow.
        SeparableDataError: if there is no minimiser to come close to.
        DataError: if the data do not fit the problem, or are more than one task.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(0.5, box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "linear-stack", n_steps=9)
        >>> icgd.guarantee(compiled, [[1.0, 0.0], [0.0, 1.0]], [1.0, -0.5]).holds
        True
    """
    task = compiled.task(X, y, initial=initial)
    backend, fused_because = chosen_backend(backend, compiled.program, task)
    bounds = compiled.bounds_for(task, backend)
    if not isinstance(bounds, LinearBounds):
        raise SettingError(
            "A guarantee is what theorems promise of a linear model, and "
            f"{compiled.program.construction} trains none. Use verify for its bounds."
        )
    run = compiled._run(task, backend, on_progress=on_progress, stop_below=stop_below)
    kept = check_guarantee(bounds, task, run.parameters)
    return replace(kept, backend=backend, fused_because=fused_because)


@own_modes()
def load(path: str | os.PathLike[str]) -> Compiled:
    """Read a compiled run that `Compiled.save` wrote.

    A checksum detects damage. It does not detect a file that somebody altered and whose checksum
    they computed again: `icgd.verify` compares what a run does with exact gradient descent.

    Args:
        path: the file.

    Returns:
        The run, equal to the one that was saved.

    Raises:
        FileError: if there is no such file, or if it is damaged, of another program, or of a
            format that this version does not read.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     compiled.save(Path(folder) / "run.safetensors")
        ...     icgd.load(Path(folder) / "run.safetensors") == compiled
        True
    """
    problem, program, widths, table = files.load(path)
    compiled = Compiled(problem, program, table=table)
    return compiled if widths is None else compiled.for_widths(widths)
