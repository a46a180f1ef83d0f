"""`icgd run`: a compiled training run on data of your own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from icgd.backends.run import Run
from icgd.cli import show
from icgd.cli.csv_data import Examples, csv_content, read_examples, read_queries
from icgd.cli.options import (
    INTERRUPTED,
    AsJson,
    BackendName,
    CompiledFile,
    Data,
    DtypeName,
    Labels,
    QueryFile,
    Seed,
)
from icgd.cli.progress import progress
from icgd.cli.writing import write_file
from icgd.compiled import Compiled
from icgd.errors import InterruptedRunError, SettingError
from icgd.pipeline import load
from icgd.problems.convergence import Convergence, convergence
from icgd.problems.task import Task


def run(
    file: CompiledFile,
    data: Data,
    queries: QueryFile = None,
    label: Labels = None,
    seed: Seed = 0,
    backend: BackendName = "fused",
    dtype: DtypeName = "float64",
    out: Annotated[
        Path | None, typer.Option(help="CSV to write the predictions to.", metavar="P.csv")
    ] = None,
    stop_below: Annotated[
        float | None,
        typer.Option(help="Stop when a step, or a pass of batches, moves no weight by more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train on a CSV file in one forward pass, and predict.

    Ctrl-C ends the run after the last whole step, prints what is known, and exits with 130.

    Example: icgd run run.safetensors train.csv --label price --queries new.csv --out prices.csv
    """
    if out and not queries:
        raise SettingError.without("--out", "--queries")
    compiled = load(file)
    examples = read_examples(data, compiled.problem.target, label)
    task = compiled.task(
        examples.inputs,
        examples.labels,
        queries=read_queries(queries, examples) if queries else None,
        seed=seed,
        dtype=dtype,
    )
    outcome = _train(compiled, task, examples, backend=backend, stop_below=stop_below)
    if out:
        write_file(out, csv_content(outcome.labels, outcome.predictions))
    if as_json:
        show.print_json(outcome)
    else:
        _print(outcome, compiled)
        if out:
            typer.echo(f"Saved {out}")
    raise typer.Exit(INTERRUPTED if outcome.ending is Ending.INTERRUPTED else 0)


class Ending(Enum):
    """Why a run took no further step."""

    ALL_TAKEN = "all steps taken"
    STILL = "weights move no more"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Outcome:
    """How far a run came, its training loss before and after, and a row of labels for each query.

    A linear model has an objective too, which is the loss with penalties, and coefficients.
    """

    steps: int
    ending: Ending
    risk_before: float
    risk_after: float
    objective_before: Tensor | None
    objective_after: Tensor | None
    coefficients: dict[str, float] | None
    convergence: Convergence
    labels: tuple[str, ...]
    predictions: list[list[float]]


def _train(compiled: Compiled, task: Task, examples: Examples, **options: Any) -> Outcome:
    result, ending = _ended_run(compiled, task, options)
    first, last = result.parameters[0], result.parameters[-1]
    oracle = compiled.problem.oracle
    return Outcome(
        steps=len(result.parameters) - 1,
        ending=ending,
        risk_before=float(oracle.risk(task, first)),
        risk_after=float(oracle.risk(task, last)),
        objective_before=oracle.objective(task, first),
        objective_after=oracle.objective(task, last),
        coefficients=oracle.named(last, examples.input_names),
        convergence=convergence(oracle, task, result.parameters),
        labels=examples.label_names,
        predictions=result.predictions.tolist(),
    )


def _ended_run(compiled: Compiled, task: Task, options: dict[str, Any]) -> tuple[Run, Ending]:
    """The run to its end, or to the step after which the user stopped it."""
    try:
        with progress("training") as on_progress:
            result = compiled.run_task(task, on_progress=on_progress, **options)
    except InterruptedRunError as interruption:
        if not isinstance(interruption.partial, Run):
            raise
        return interruption.partial, Ending.INTERRUPTED
    return result, Ending.ALL_TAKEN if result.stopped_after is None else Ending.STILL


def _print(outcome: Outcome, compiled: Compiled) -> None:
    steps = f"{outcome.steps:,} of {compiled.program.n_steps:,}: {outcome.ending.value}"
    rows = [
        ("steps", steps),
        ("loss before", f"{outcome.risk_before:.6g}"),
        ("loss after", f"{outcome.risk_after:.6g}"),
    ]
    rows += _penalised_rows(outcome)
    if formula := compiled.problem.oracle.unusual_loss:
        rows.append(("an example's loss", formula))
    show.print_rows("Training", rows)
    if not outcome.convergence.is_done:
        show.output.print(str(outcome.convergence), highlight=False)
    if outcome.coefficients is not None:
        show.print_coefficients(outcome.coefficients)
    if outcome.predictions:
        show.print_predictions(outcome.labels, outcome.predictions)


def _penalised_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """The objective before and after, if it is not the loss itself."""
    if outcome.objective_after in (None, outcome.risk_after):
        return []
    return [
        ("with penalties before", f"{outcome.objective_before:.6g}"),
        ("with penalties after", f"{outcome.objective_after:.6g}"),
    ]
