r"""meta-gradients: gradients through the transformer against autograd through exact descent.

The loss at the queries after three steps has a gradient by the step sizes and by the initial
weights. Through softmax-stack, and through relu-stack for piecewise-linear networks, it is that of
exact descent to rounding. A smooth function made of pieces has a slope that jumps from piece to
piece, and the gradient holds the slope of a slope: it errs far more than the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor

from icgd.learnable import LearnableRun, unrolled_descent
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, RED, Axes, Figure
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)

STEP_SIZES = (0.3, 0.2, 0.4)
N_EXAMPLES, N_QUERIES, N_TASKS = 5, 4, 3

ASKED = 1e-8
"""The relative error that is asked for."""

SMALLEST = 1e-17
"""Errors that are 0 are drawn here."""


@dataclass(frozen=True)
class Case:
    """A construction on a network 2-4-3-1; `pieces` are those of relu-stack."""

    construction: str
    activation: str
    loss: str
    pieces: int | None = None

    @property
    def name(self) -> str:
        pieces = f", {self.pieces} pieces" if self.pieces else ""
        return f"{self.construction}, {self.activation}, {self.loss}{pieces}"


CASES = (
    Case("softmax-stack", "tanh", "squared"),
    Case("softmax-stack", "sigmoid", "logistic"),
    Case("softmax-stack", "gelu", "squared"),
    Case("softmax-stack", "silu", "huber"),
    Case("softmax-stack", "softplus", "squared"),
    Case("softmax-stack", "relu", "squared"),
    Case("relu-stack", "relu", "squared"),
    Case("relu-stack", "relu", "huber"),
    Case("relu-stack", "leaky_relu", "squared"),
    Case("relu-stack", "relu", "logistic", 128),
    Case("relu-stack", "tanh", "squared", 32),
    Case("relu-stack", "tanh", "squared", 128),
    Case("relu-stack", "tanh", "squared", 512),
)


@dataclass(frozen=True)
class Budget:
    """How many seeds, and on which cases."""

    n_seeds: int
    cases: tuple[int, ...]


BUDGETS = {
    "smoke": Budget(1, (0, 6, 10)),
    "laptop": Budget(3, tuple(range(len(CASES)))),
    "paper": Budget(10, tuple(range(len(CASES)))),
}
"""No paper has this figure; the longest preset is called after the others."""


@dataclass(frozen=True)
class Outcome:
    """Largest errors, those of gradients as shares of the largest entry of the gradient."""

    predictions: float
    step_sizes: float
    start: float
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """One case with the data of one seed."""

    case: Case
    seed: int
    budget: Budget

    def train(self, folder: Path | None = None) -> Outcome:
        began = perf_counter()
        run, (x, y, queries, labels) = _run(self.case, self.seed), _data(self.seed)
        exact = unrolled_descent(run.problem, x, y, queries, run.initial, run.step_sizes)
        through, direct = run(x, y, queries), exact.predictions[:, -1]
        found, true = (_gradients(run, each, labels) for each in (through, direct))
        return Outcome(
            predictions=float((through - direct).detach().abs().max()),
            step_sizes=_error(found[0], true[0]),
            start=_error(found[1], true[1]),
            seconds=perf_counter() - began,
        )

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return Outcome(**data)


def _run(case: Case, seed: int) -> LearnableRun:
    problem = Problem(
        target=MLP((2, 4, 3, 1), case.activation),
        loss=case.loss,
        update=GradientStep(step_size=STEP_SIZES[0], box=1.0),
        domain=Domain(x=1.0, y=1.0),
    )
    settings: dict[str, Any] = {"pieces": case.pieces} if case.pieces else {}
    compiled = compile(problem, case.construction, n_steps=len(STEP_SIZES), **settings)
    return LearnableRun(compiled, step_sizes=STEP_SIZES, seed=seed)


def _data(seed: int) -> tuple[Tensor, ...]:
    """Inputs in [-1, 1] and labels in [0, 1] of examples, then of queries."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((N_EXAMPLES, 2), (N_EXAMPLES, 1), (N_QUERIES, 2), (N_QUERIES, 1))
    drawn = (torch.rand(N_TASKS, *size, generator=generator).double() for size in sizes)
    return tuple(2 * part - 1 if part.shape[-1] == 2 else part for part in drawn)


def _gradients(run: LearnableRun, predictions: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The gradients of the loss at the queries by the step sizes and by the initial weights."""
    loss = (predictions - labels).square().mean()
    return torch.autograd.grad(loss, (run.step_sizes, run.initial), retain_graph=True)


def _error(found: Tensor, true: Tensor) -> float:
    """The largest error as a share of the largest entry."""
    return float((found - true).abs().max() / true.abs().max())


@final
@dataclass(frozen=True)
class MetaGradients(AbstractReproduction[Study, Outcome]):
    """Errors of gradients, case by case."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        budget = preset_of(BUDGETS, preset)
        seeds = range(seed, seed + budget.n_seeds)
        return [Study(CASES[case], each, budget) for case in budget.cases for each in seeds]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each case and seed."""
        return [_row(study, found) for study, found in zip(studies, outcomes, strict=True)]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The largest error of all seeds."""
        names = ("construction, activation, loss", "predictions", "by step sizes", "by the start")
        columns = ("prediction_error", "step_size_error", "start_error")
        found = (
            (str(name), *(f"{max(number(row, column) for row in of):.1e}" for column in columns))
            for (name,), of in groups(rows, "case").items()
        )
        return Summary(names, tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Draw a line for each case, and a point for each seed and gradient."""
        cases = [str(name) for (name,) in groups(rows, "case")]
        figure, [panel] = plotting.new_figure(10.0, 1.6 + 0.38 * len(cases), 1)
        for column, colour in (("step_size_error", BLUE), ("start_error", RED)):
            _draw(panel, rows, cases, column, colour)
        panel.axvline(ASKED, color=FAINT, linewidth=1.5, linestyle="--")
        panel.set_xscale("log")
        panel.set_yticks(range(len(cases)), cases)
        panel.invert_yaxis()
        message = "Gradients through the transformer against autograd through exact descent"
        plotting.describe(panel, message, "largest error over largest entry", "")
        entries = [("by step sizes", BLUE), ("by initial weights", RED), ("asked for", FAINT)]
        plotting.legend(figure, entries, dashed=["asked for"])
        return figure


def _draw(panel: Axes, rows: Sequence[Row], cases: list[str], column: str, colour: str) -> None:
    shift = -0.12 if colour == BLUE else 0.12
    heights = [cases.index(str(row["case"])) + shift for row in rows]
    errors = [max(number(row, column), SMALLEST) for row in rows]
    panel.plot(errors, heights, "o", color=colour, markersize=6, alpha=0.7)


def _row(study: Study, found: Outcome) -> Row:
    case = study.case
    return {
        "case": case.name,
        "construction": case.construction,
        "activation": case.activation,
        "loss": case.loss,
        "pieces": case.pieces,
        "seed": study.seed,
        "n_steps": len(STEP_SIZES),
        "n_examples": N_EXAMPLES,
        "n_tasks": N_TASKS,
        "prediction_error": six_digits(found.predictions),
        "step_size_error": six_digits(found.step_sizes),
        "start_error": six_digits(found.start),
        "seconds": round(found.seconds, 1),
    }


GRADIENTS = MetaGradients(
    name="meta-gradients",
    place="no paper",
    shows="gradients by step sizes and start, through transformers and through exact descent",
    laptop_time="1 minute",
)
