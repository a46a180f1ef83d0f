"""A program takes a few steps beside its problem: a file may hold a sound program of another one.

What a file says of a problem and what its program does are two things, and whoever seals a file
again can change one of them. Whether they fit is not proved when it is loaded. But two programs
that differ by more than what is proved of them differ so almost everywhere. Therefore a loaded
program takes its first steps on tasks that are drawn over the domain, from weights in the box and
at its ends. Each step, and the predictions after the last one, must be as close to the problem's
oracle as the bounds of this run say.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import inf, prod

import torch
from torch import Tensor

from icgd.backends.fused import FusedBackend
from icgd.backends.run import PLAIN
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.measured import stepwise_errors
from icgd.certificates.prediction_bounds import prediction_errors
from icgd.certificates.registry import bounds_of
from icgd.errors import FileError, IcgdError
from icgd.problems.drawn_task import drawn_task
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.program import AbstractProgram
from icgd.weights import files

STEPS = 2
"""How many steps are tried: the second shows what the first has left behind."""

TASKS, PLAIN_TASKS, EXAMPLES, QUERIES = 8, 2, 3, 1

MOST_NUMBERS = 2**25
"""The numbers of all tokens in all layers that are tried; larger programs are left to `verify`."""


def load_tried(path: str | os.PathLike[str]) -> tuple[Problem, AbstractProgram]:
    """What a file holds; `FileError` if a trial shows that its program does not train its problem.

    Everything else that may be wrong with a file, `files.load` tells.
    """
    problem, program = files.load(path)
    if found := refuted(problem, program):
        raise FileError.other_training(path, found)
    return problem, program


def refuted(problem: Problem, program: AbstractProgram) -> str | None:
    """What the first steps of a program show that its problem does not do; None if nothing.

    Inputs are as large as the domain allows. If the run leaves the range of numbers there, they are
    at most 1. Where a trial says nothing, because the run leaves it again or because bounds are the
    user's own word, nothing is refuted. A program that cannot take a step at all, for a reason that
    no rule on programs knows, is refuted.
    """
    n_examples = program.n_examples or max(EXAMPLES, problem.oracle.batch_size or 0)
    n_steps = min(STEPS, program.n_steps)
    if _cost(program, n_examples, n_steps) > MOST_NUMBERS:
        return None
    for largest in (inf, 1.0):
        try:
            return _compared(problem, program.beginning(n_steps), n_examples, largest)
        except IcgdError:
            continue
        except Exception as error:
            return f"its first steps end in {type(error).__name__}: {error}"
    return None


def _cost(program: AbstractProgram, n_examples: int, n_steps: int) -> int:
    width = program.layout.width + sum(map(prod, program.weight_shapes))
    return TASKS * (n_examples + QUERIES) * width * len(program.layers) * max(1, n_steps)


def _compared(
    problem: Problem, program: AbstractProgram, n_examples: int, largest: float
) -> str | None:
    sizes = {"n_queries": QUERIES, "n_tasks": TASKS}
    task = drawn_task(problem, n_examples, seed=0, **sizes, largest=largest)
    task = _at_ends(problem, task) if largest == inf else task
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


def _at_ends(problem: Problem, task: Task) -> Task:
    """The tasks, but all except `PLAIN_TASKS` start from weights all over the box and at its ends.

    So steps are clipped. The inputs of the last ones lie at the ends of the domain.
    """
    x, initial = task.x.clone(), task.initial.clone()
    x[-PLAIN_TASKS:] = problem.domain.x * x[-PLAIN_TASKS:].sign()
    if problem.box is not None:
        weights = torch.empty_like(problem.oracle.weights_of(initial[PLAIN_TASKS:]))
        weights.uniform_(-1.5, 1.5, generator=torch.Generator().manual_seed(0)).clamp_(-1, 1)
        initial[PLAIN_TASKS:] = problem.oracle.with_state(problem.box * weights)
    return replace(task, x=x, initial=initial)


def _beyond(errors: Tensor, bounds: Tensor) -> str | None:
    """The error that is furthest beyond its bound, in words, if there is one."""
    excess = (errors - bounds).flatten()
    if not bool((excess > 0).any()):
        return None
    place = int(excess.argmax())
    allowed = float(bounds.expand_as(errors).flatten()[place])
    return f"{float(errors.flatten()[place]):.3g}, where at most {allowed:.3g} is proved"
