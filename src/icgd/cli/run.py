"""`icgd run`: perform a compiled training run on your own data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from torch import Tensor

from icgd.backends.run import Run
from icgd.cli import show
from icgd.cli.data_options import GivenTable, takes_table
from icgd.cli.examples import Examples, labels_of, load_run, open_run, score
from icgd.cli.exit_codes import INTERRUPTED
from icgd.cli.options import (
    AsJson,
    BackendName,
    CompiledFile,
    DtypeName,
    PictureFile,
    QueryFile,
    Seed,
    in_panel,
    output,
)
from icgd.cli.progress import progress, training_progress
from icgd.cli.writing import (
    predictions_content,
    require_picture,
    require_weights_file,
    require_writable,
    write_file,
    write_weights,
)
from icgd.compiled import Compiled
from icgd.errors import InterruptedRunError, SettingError
from icgd.many_tasks import CHUNK_SIZE, FAILURES, run_tasks
from icgd.problems.convergence import Convergence, convergence
from icgd.problems.data import Task
from icgd.problems.tables import Numbers

_tasks = in_panel("Many tasks")
FAILED = 1
"""The exit code of many tasks, some of which could not be run."""


@takes_table
def run(
    file: CompiledFile,
    table: GivenTable | None = None,
    queries: QueryFile = None,
    seed: Seed = 0,
    backend: BackendName = "fused",
    dtype: DtypeName = "float64",
    out: Annotated[
        Path | None,
        output("CSV file for the queries and their predictions; with --tasks, a folder."),
    ] = None,
    stop_below: Annotated[
        float | None,
        typer.Option(
            help="Stop early once a step, or a pass over all batches, moves no weight by more."
        ),
    ] = None,
    weights_out: Annotated[
        Path | None,
        typer.Option(
            help="File to write the trained weights to: weights_1, bias_1, ..., or coefficients.",
            metavar="W.safetensors|W.json",
        ),
    ] = None,
    plot: PictureFile = None,
    as_json: AsJson = False,
    tasks: Annotated[
        Path | None,
        _tasks("Folder of Parquet or safetensors files of tasks, in place of DATA.", "--tasks"),
    ] = None,
    workers: Annotated[
        int | None, _tasks("Number of worker processes. Default: one for each core.")
    ] = None,
    ray: Annotated[
        str | None,
        _tasks("Address of a Ray cluster to run them on instead, such as auto.", metavar="ADDRESS"),
    ] = None,
    chunk_size: Annotated[
        int | None,
        _tasks(f"Largest number of tasks in one batch. Default: {CHUNK_SIZE}."),
    ] = None,
) -> None:
    """Train on a table in one forward pass, and predict.

    Labels that the queries have too are compared with the predictions. Ctrl-C stops after the
    current step, prints the results so far, and exits with 130.

    With --tasks it runs every task in a folder; the same command resumes after Ctrl-C or a kill.
    The exit code is 1 if a task could not be run.

    Example: icgd run run.safetensors train.csv --target price --queries new.csv -o prices.csv
    """
    alone = {"--workers": workers, "--ray": ray, "--chunk-size": chunk_size}
    for_table = {
        "DATA": table,
        "--queries": queries,
        "--stop-below": stop_below,
        "--weights-out": weights_out,
        "--plot": plot,
    }
    for name, value in (alone if tasks is None else for_table).items():
        if value is not None:
            without = "without" if tasks is None else "beside"
            raise SettingError(f"{name} has no effect {without} --tasks. Leave it out.")
    if tasks is not None:
        if out is None:
            raise SettingError("--tasks needs --output, the folder to write the results to.")
        settings = {"seed": seed, "backend": backend, "dtype": dtype, "ray_address": ray}
        settings["chunk_size"] = CHUNK_SIZE if chunk_size is None else chunk_size
        settings["n_workers"] = workers
        if workers is None and ray is None:
            has_affinity = hasattr(os, "sched_getaffinity")  # Linux; a container may have fewer
            settings["n_workers"] = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()
        _run_folder(load_run(file), tasks, out, settings, as_json=as_json)
        return
    if table is None:
        raise SettingError("Give DATA, a table of examples, or --tasks, a folder of tasks.")
    if out and not queries:
        raise SettingError("--output has no effect without --queries; give both or neither.")
    require_picture(plot)
    require_weights_file(weights_out)
    require_writable(out, weights_out, plot, read=(file, table.path, queries))
    compiled, examples, asked = open_run(file, table, queries)
    labels = labels_of(asked, examples) if asked else None
    task = compiled.task(
        examples.frame,
        examples.labels,
        queries=asked.inputs if asked else None,
        seed=seed,
        dtype=dtype,
    )
    outcome, result = _train(
        compiled, task, examples, labels, backend=backend, stop_below=stop_below
    )
    if not outcome.predictions:  # no queries, or Ctrl-C before anything could predict
        asked = out = labels = None
    if weights_out:
        write_weights(weights_out, result.weights)
    if out and asked:
        answers = outcome.labels, outcome.predictions
        write_file(out, predictions_content(asked.table.cells, *answers))
    if plot:
        result.plot(plot, labels=examples.named(labels))
    if as_json:
        show.print_json(outcome)
    else:
        _print(outcome, compiled)
        for path in filter(None, (out, weights_out, plot)):
            typer.echo(f"Saved {path}")
    raise typer.Exit(INTERRUPTED if outcome.ending is Ending.INTERRUPTED else 0)


def _run_folder(
    compiled: Compiled, tasks: Path, out: Path, settings: dict[str, Any], *, as_json: bool
) -> None:
    """Run many tasks under a bar. Ctrl-C says how to resume."""
    try:
        with training_progress("tasks", "tasks") as bar:
            results = run_tasks(compiled, tasks, out, **settings, on_progress=bar.update)
    except InterruptedRunError as interruption:
        typer.echo(f"icgd: {interruption}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    failures = results.failures
    n_unreadable = failures["task"].null_count()
    counts = {"tasks": results.n_tasks, "failed": len(failures) - n_unreadable}
    counts["unreadable files"] = n_unreadable
    if as_json:
        show.print_json({"output": str(out), **counts, "failures": failures.to_dicts()})
    else:
        show.print_rows("Many tasks", [(name, f"{n:,}") for name, n in counts.items()])
        if len(failures):
            texts = failures.head(show.LISTED_ROWS).cast(pl.String).fill_null("").rows()
            show.print_columns(str(out / FAILURES), failures.columns, texts)
        typer.echo(f"Saved {out}")
    raise typer.Exit(FAILED if len(failures) else 0)


class Ending(Enum):
    """Why a run ended."""

    ALL_TAKEN = "all steps taken"
    STILL = "weights move no more"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Outcome:
    """The results of a run: its training loss before and after, and a row for each query.

    A linear model has coefficients, and an objective, which is the loss with penalties. If the
    labels of the queries are known, `score` rates the predictions by `measure`.
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
    predictions: list[list[float | str]]
    measure: str | None
    score: float | None


def _train(
    compiled: Compiled, task: Task, examples: Examples, labels: Numbers | None, **options: Any
) -> tuple[Outcome, Run]:
    """Return what is printed of a run, and the run itself, to its end or to Ctrl-C."""
    try:
        with progress("training") as on_progress:
            result = compiled.run_task(task, on_progress=on_progress, **options)
        ending = Ending.ALL_TAKEN if result.stopped_after is None else Ending.STILL
    except InterruptedRunError as interruption:
        if not isinstance(interruption.partial, Run):
            raise
        result, ending = interruption.partial, Ending.INTERRUPTED
    predictions = result.predictions.double().numpy()
    measure, value = None, None
    if labels is not None and len(predictions):
        measure, value = score(predictions, labels, examples.classes, compiled.problem.loss)
    first, last = result.parameters[0], result.parameters[-1]
    oracle = compiled.problem.oracle
    outcome = Outcome(
        steps=len(result.parameters) - 1,
        ending=ending,
        risk_before=float(oracle.risk(task, first)),
        risk_after=float(oracle.risk(task, last)),
        objective_before=oracle.objective(task, first),
        objective_after=oracle.objective(task, last),
        coefficients=result.coefficients,
        convergence=convergence(oracle, task, result.parameters),
        labels=examples.answer_names,
        predictions=examples.answers(predictions),
        measure=measure,
        score=value,
    )
    return outcome, result


def _print(outcome: Outcome, compiled: Compiled) -> None:
    steps = f"{outcome.steps:,} of {compiled.program.n_steps:,}: {outcome.ending.value}"
    rows = [
        ("steps", steps),
        ("loss before", f"{outcome.risk_before:.6g}"),
        ("loss after", f"{outcome.risk_after:.6g}"),
    ]
    if outcome.objective_after not in (None, outcome.risk_after):
        rows += [
            ("with penalties before", f"{outcome.objective_before:.6g}"),
            ("with penalties after", f"{outcome.objective_after:.6g}"),
        ]
    if formula := compiled.problem.oracle.unusual_loss:
        rows.append(("an example's loss", formula))
    if outcome.measure is not None:
        is_known = outcome.score is not None and not isnan(outcome.score)
        text = f"{outcome.score:.4g}" if is_known else "none: the labels of all queries are equal"
        rows.append((f"{outcome.measure} of the predictions", text))
    show.print_rows("Training", rows)
    if not outcome.convergence.is_done:
        show.output.print(str(outcome.convergence), highlight=False)
    if outcome.coefficients is not None:
        show.print_coefficients(outcome.coefficients)
    if outcome.predictions:
        show.print_predictions(outcome.labels, outcome.predictions)
