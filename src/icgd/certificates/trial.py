"""A program takes a few steps beside its problem: a file may hold a sound program of another one.

What a file says of a problem and what its program does are two things, and whoever seals a file
again can change one of them. Whether they fit is not proved when it is loaded. But two programs
that differ by more than what is proved of them differ so almost everywhere. Therefore a loaded
program takes its first steps on data that are drawn over the domain, from drawn weights and from
corners of the box, where weights are clipped. Each step, and the predictions after the last one,
must be as close to the problem's oracle as the bounds of this run say.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import inf, prod

import torch
from torch import Tensor

from icgd.backends.fused import FusedBackend
from icgd.backends.look_up import size_of_table
from icgd.backends.run import PLAIN
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.measured import stepwise_errors
from icgd.certificates.network import prediction_errors
from icgd.certificates.registry import bounds_of
from icgd.errors import DataError, FileError, IcgdError
from icgd.problems.drawn_task import drawn_task
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.functions import LatticeFunction
from icgd.program.program import AbstractProgram
from icgd.program.ridge import RidgeSum
from icgd.weights import files

STEPS, DIFFERENT_STEPS = 2, 8
"""How many steps are tried, of those that are alike and of those that may differ. The second shows
what the first has left behind."""

TASKS, EXAMPLES, QUERIES = 8, 3, 1

HUGE = 2.0**10
"""Inputs of this size may take a run out of the range of numbers that its program is made for."""

MOST_NUMBERS = 2**22
"""The numbers of all tokens in all layers that are tried; larger programs are left to `verify`."""

MOST_INSTRUCTIONS = 2**12
"""The instructions of the steps that are tried: each takes its time, however small it is."""

MOST_IN_TABLES = 2**25
"""The lattice points that are evaluated for the tables of the functions of a fused run."""

MOST_UNITS = 2**28
"""The units that are evaluated for every number of a layer."""

UNFIT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What running a program ends in whose parts obey every rule, but do not fit each other."""


def load_tried(path: str | os.PathLike[str]) -> tuple[Problem, AbstractProgram]:
    """What a file holds; `FileError` if a trial shows that its program does not train its problem.

    Everything else that may be wrong with a file, `files.load` tells.
    """
    problem, program = files.load(path)
    try:
        found = refuted(problem, program)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # nothing of the trial is of use
    except UNFIT as unfit:
        raise FileError.unfit(path, unfit) from None
    if found:
        raise FileError.other_training(path, found)
    return problem, program


def refuted(problem: Problem, program: AbstractProgram) -> str | None:
    """What the first steps of a program show that its problem does not do; None if nothing.

    Where a trial says nothing, because the run leaves the range of numbers on such data or because
    bounds are the user's own word, nothing is refuted.
    """
    n_examples = program.n_examples or max(EXAMPLES, 1 + (problem.oracle.batch_size or 0))
    n_steps = min(STEPS if program.can_go_on else DIFFERENT_STEPS, program.n_steps)
    n_tasks = min(TASKS, MOST_NUMBERS // _cost(program, n_examples, n_steps))
    if not n_tasks or _takes_long(program, n_examples, n_steps):
        return None
    try:
        trials = _trials(problem, n_examples, n_tasks)
    except IcgdError:
        return None
    beginning = program.beginning(n_steps)
    found = (_found(problem, beginning, tasks) for tasks in trials)
    return next(filter(None, found), None)


def _cost(program: AbstractProgram, n_examples: int, n_steps: int) -> int:
    width = program.layout.width + sum(map(prod, program.weight_shapes))
    return (n_examples + QUERIES) * width * len(program.layers) * max(1, n_steps)


def _takes_long(program: AbstractProgram, n_examples: int, n_steps: int) -> bool:
    """Whether a trial would take seconds, whatever the numbers in its layers are."""
    instructions = sum(len(layer.instructions) for layer in program.layers)
    tables = (size_of_table(f) for f in program.functions if isinstance(f, LatticeFunction))
    units = max((f.n_units for f in program.functions if isinstance(f, RidgeSum)), default=0)
    return (
        instructions * program.runs_per_step * n_steps > MOST_INSTRUCTIONS
        or sum(tables) > MOST_IN_TABLES
        or program.layout.width * (n_examples + QUERIES) * units > MOST_UNITS
    )


def _found(problem: Problem, program: AbstractProgram, tasks: Task) -> str | None:
    """What tasks refute; if one of them leaves the range of numbers, what the others do alone."""
    try:
        return _compared(problem, program, tasks)
    except KeyboardInterrupt:
        raise
    except IcgdError:
        each = map(tasks.of_batch, range(len(tasks.x) if tasks.batch else 0))
        return next(filter(None, (_found(problem, program, task) for task in each)), None)


def _trials(problem: Problem, n_examples: int, n_tasks: int) -> list[Task]:
    """Batches of tasks; where the domain is huge, also of inputs that are not."""
    drawn = _drawn(problem, n_examples, n_tasks)
    small = [_drawn(problem, n_examples, n_tasks, largest=1.0)] if problem.domain.x > HUGE else []
    return [drawn, _at_corners(problem, drawn), *small]


def _drawn(problem: Problem, n_examples: int, n_tasks: int, largest: float = inf) -> Task:
    """Tasks of their own data, weights and rates."""
    tasks = [
        drawn_task(problem, n_examples, seed=seed, n_queries=QUERIES, largest=largest)
        for seed in range(n_tasks)
    ]
    parts = zip(*((task.x, task.y, task.queries, task.initial) for task in tasks), strict=True)
    drawn = Task(*map(torch.stack, parts))
    if problem.domain.rate is None:
        return drawn
    shares = torch.rand(drawn.x[..., :1].shape, generator=_generator(), dtype=torch.float64)
    return replace(drawn, rates=problem.domain.rate * shares)


def _at_corners(problem: Problem, task: Task) -> Task:
    """The tasks with weights at corners of the box, and labels at the ends of the domain."""
    generator = _generator()
    y = _signs(task.y, generator) * problem.domain.y
    if problem.box is None:
        return replace(task, y=_allowed(problem, y, task.y))
    bounded = problem.oracle.boxed(torch.ones_like(task.initial))
    corners = _signs(task.initial, generator) * problem.box * bounded
    return replace(task, y=_allowed(problem, y, task.y), initial=corners)


def _allowed(problem: Problem, y: Tensor, otherwise: Tensor) -> Tensor:
    """Labels, if the loss is one of any labels."""
    try:
        problem.oracle.require_labels(y)
    except DataError:
        return otherwise
    return y


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(0, 2, like.shape, generator=generator).to(like) - 1


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _compared(problem: Problem, program: AbstractProgram, task: Task) -> str | None:
    backend = FusedBackend()
    bounds = bounds_of(problem, program, Arithmetic.of(task.x.dtype, task.n_tokens, backend.name))
    if bounds.stated or bounds.estimated:
        return None
    run = backend.run(program, task, PLAIN)
    history = run.parameters
    if found := _beyond(stepwise_errors(problem, task, history), bounds.steps(task, history)):
        return f"a step on data of the domain is off by {found}"
    error = history.new_zeros(())
    off = prediction_errors(problem, task, run.predictions, history)
    if found := _beyond(off, bounds.predictions(task, history, history, error)):
        return f"a prediction on data of the domain is off by {found}"
    return None


def _beyond(errors: Tensor, bounds: Tensor) -> str | None:
    """The error that is furthest beyond its bound, in words, if there is one."""
    excess = (errors - bounds).flatten()
    if not bool((excess > 0).any()):
        return None
    place = int(excess.argmax())
    allowed = float(bounds.expand_as(errors).flatten()[place])
    return f"{float(errors.flatten()[place]):.3g}, where at most {allowed:.3g} is proved"
