"""The main functions of the library: compile, verify, decode, run_causal, guarantee, load."""

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

    If no construction is given, the best one for the problem and the settings is chosen;
    `summary()` gives the reason.

    Args:
        problem: the target, the loss, the update and the domain of the data.
        construction: an object such as `icgd.ReluStack(pieces=128)`, or a name such as
            "relu-stack" with its `settings` given here.
        n_steps: the number of training steps; the default is that of the problem's schedule or
            epochs.
        tolerance: the largest error allowed in any weight per step; the construction is refined
            until this is proved, for the whole domain, all backends, float64 and prompts of up to
            1024 tokens.
        tolerance_of: the quantity that `tolerance` limits: a "step", the final "weights", or the
            "predictions" at the task's queries. For the last two give a `task`: bounds for all
            data grow with every step.
        task: the data to prove `tolerance` for, in the precision of the task and on the backend
            that `verify` chooses. Final weights and predictions are proved by ball arithmetic.
        **settings: settings of the construction, such as `pieces=128`.

    Returns:
        The compiled run, which can be run, verified, drawn and saved.

    Raises:
        UnsupportedProblemError: if the construction, or every construction, cannot compile it.
        UnknownNameError: if no construction has this name.
        SettingError: if a setting is unknown or contradicts another one.
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
            "n_steps is missing, and the problem has no schedule of step sizes and no epochs that "
            "would determine it. Give it, for example n_steps=5."
        )
    n_steps = count("n_steps", planned if n_steps is None else n_steps, least=0, most=MOST_STEPS)
    if problem.preprocessing and problem.preprocessing.batches and n_steps > (planned or 0):
        raise SettingError(
            f"n_steps={n_steps} is more than the {planned} batches of the problem's epochs. Give "
            "from_torch more epochs, or take fewer steps."
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
    """Run `compiled`, and compare every step with the real algorithm and with the proved bounds.

    The real algorithm runs in float64 on the same data from the same initial weights. For your own
    kernel, the constants given to `register_kernel` are assumed, and checked on the data; without
    them the bounds are estimates, with an `EstimateWarning`.

    Args:
        compiled: the run.
        X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
        y: a label for each row of X.
        queries: inputs whose predictions are compared as well.
        initial: the initial weights.
        seed: the seed of the random initial weights if none are given; the default is 0.
        backend: "literal", which is the transformer itself, "dense", the same with matrices, or
            "fused", which computes no head. "auto" is literal for runs of up to about 20 seconds,
            estimated from the number of heads, otherwise fused; the report says so.
        dtype: "float64" or "float32".
        rigorous: whether to prove the distance of the whole run from exact descent in real
            numbers, by ball arithmetic. The default is True unless that takes long or the kernel
            is your own; the report then gives the reason.
        on_progress: a callback, called with the number of finished steps and their total.
        rates: a factor for the gradient of each example, if the domain has a largest rate.

    Returns:
        Measured errors beside their bounds, and a verdict.

    Raises:
        DataError: if the data do not fit the problem.
        DomainError: if the data leave its domain.
        KernelError: if the data contradict the constants given for a kernel.
        OverflowedRunError: if a value exceeds the range of the dtype.
        ProofError: if `rigorous` is True and the kernel is your own or memory does not suffice.

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
    narrow_problem, narrow_task, padding = compiled.problem, task, compiled.padding
    if padding is not None:  # padded weights are compared with exact zeros
        task, compiled = padding.task(task), compiled.whole
    problem, program = compiled.problem, compiled.program
    if rigorous is None:
        unproved = why_unproved(problem, task, n_steps)
    elif rigorous:
        require_enclosable(problem, task, n_steps)
    real = real_training(narrow_problem, narrow_task, n_steps)
    real = real if padding is None else padding.trained(real)
    by_balls = unproved is None if rigorous is None else rigorous
    running, bounding, proving = (part_of(on_progress, n, 2 + by_balls) for n in range(3))
    backend, fused_because = chosen_backend(backend, program, task)
    run = compiled._run(task, backend, on_progress=running)
    history = run.parameters
    bounds = compiled.bounds_for(task, backend)
    if bounds.estimated:
        warn(
            EstimateWarning(
                "Bounds rest on Lipschitz constants of the kernel "
                f"{', '.join(map(repr, bounds.estimated))} that are estimated from these data, so "
                "they prove nothing. Give them: icgd.register_kernel(..., lipschitz=...)."
            )
        )
    progress = (bounding, proving)
    try:
        of_run = bounds_of_run(bounds, task, run, real, by_balls=by_balls, on_progress=progress)
    except ProofError as reason:  # the proof turned out to need more memory than there is
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
    """Run a chain autoregressively, as a decoder: every block is computed from earlier blocks.

    Every head is computed, and the trace has all columns of the sequence. In a chain of one layer
    `run.trace["w"]` has the coefficients of every column of every block. A chain of cot-network is
    generated token by token: attention alone finds the earlier blocks that a block needs, in a
    cache of keys and values. The run is then an `icgd.backends.decoder.Decoded`, which has every
    token and what it read.

    Args:
        compiled: the run, by cot-network, cot-ridge, cot-lasso or cot-glm.
        X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
        y: a label for each row of X.
        queries: inputs whose labels the last block predicts.
        initial: the initial weights; the default of coefficients is 0.
        seed: the seed of the random initial weights of a network if none are given.
        mask: for chains of one layer: "block" (the default) writes n columns at a time, which
            attend to the block before them; "window" writes one column at a time, which attends to
            the last n columns, whatever their blocks.
        dtype: "float64" or "float32".
        on_progress: a callback, called with the number of finished steps and their total.

    Returns:
        The run, with the coefficients after every block and the trace of all columns.

    Raises:
        ProgramError: if the program is not a chain.
        SettingError: if a mask is given for cot-network, which finds its blocks by attention.
        UnknownNameError: if no mask has this name.
        DataError: if the data do not fit the problem, or have another number of examples.
        DomainError: if the data leave its domain.
        OverflowedRunError: if a score leaves the range of the heads.
        SizeError: if the sequence does not fit into memory.
        InterruptedRunError: on Ctrl-C; its `partial` is the run up to the last complete block.

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
                f"mask={mask!r} works with chains of one layer only; cot-network finds its blocks "
                "by attention. Omit mask."
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

    The prompt has (n_steps + 1) n_registers + n_steps n_examples + n_queries tokens. The old form
    `run_causal(compiled.stack, task)` is deprecated and will be removed in the next release.

    Args:
        compiled: the run, by softmax-stack.
        X: the inputs, (n, d_x), or (tasks, n, d_x) for many tasks at once.
        y: a label for each row of X.
        queries: inputs whose labels are predicted.
        initial: the initial weights.
        seed: the seed of the random initial weights if none are given; the default is 0.
        dtype: "float64" or "float32".

    Returns:
        The run, with the initial and the final weights and the predictions.

    Raises:
        ProgramError: if the program is not a stack, or has layers other than softmax attention
            and MLPs.
        DataError: if the data do not fit the problem.
        DomainError: if the data leave its domain.
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
    if isinstance(compiled, StackProgram):
        warn(
            DeprecationWarning(
                "icgd.run_causal(program, task) will be removed in the next release. Give the "
                "compiled run and the data: icgd.run_causal(compiled, X, y)."
            )
        )
        return run_left_to_right(compiled, X)
    task = compiled.task(X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)
    program: Any = compiled.program  # run_left_to_right raises if it is not a stack
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
    """Train a linear model, and compare its final coefficients with the bounds of cot's theorems.

    Args:
        compiled: the run, by linear-stack.
        X: the inputs, (n, d_x).
        y: a label for each row of X.
        initial: the initial coefficients; the default is 0.
        backend: "literal", "fused" or "dense"; "auto" is literal for runs of up to about 20
            seconds, estimated from the number of heads, otherwise fused.
        stop_below: stop after the first step that moves no coefficient by more than this.
        on_progress: a callback, called with the number of finished steps and their total.

    Returns:
        The distance of the final coefficients from the minimiser, beside its bounds.

    Raises:
        SettingError: if `compiled` trains something other than a linear model, or if a step is
            longer than the theorems allow.
        SeparableDataError: if there is no minimiser.
        DataError: if the data do not fit the problem, or have more than one task.

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
            "icgd.guarantee checks theorems on linear models, and "
            f"{compiled.program.construction} trains something else. Use icgd.verify for its "
            "bounds."
        )
    run = compiled._run(task, backend, on_progress=on_progress, stop_below=stop_below)
    checked = check_guarantee(bounds, task, run.parameters)
    return replace(checked, backend=backend, fused_because=fused_because)


@own_modes()
def load(path: str | os.PathLike[str]) -> Compiled:
    """Read a compiled run that `Compiled.save` wrote.

    A checksum detects damage, but not a deliberate change with a new checksum. `icgd.verify`
    compares the run itself with exact gradient descent.

    Args:
        path: the file.

    Returns:
        The run, equal to the one that was saved.

    Raises:
        FileError: if the file does not exist, is damaged, was not written by icgd, or has a
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
