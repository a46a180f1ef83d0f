"""`icgd run`: a compiled training run on data of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.csv_data import csv_content, read_examples, read_queries
from icgd.cli.options import AsJson, BackendName, CompiledFile, Data, DtypeName, Labels, Seed
from icgd.cli.progress import progress
from icgd.cli.writing import write_file
from icgd.compiled import Compiled
from icgd.errors import SettingError
from icgd.pipeline import load
from icgd.problems import functional_reference, reference
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.shapes import Parameters


def run(
    file: CompiledFile,
    data: Data,
    queries: Annotated[
        Path | None, typer.Option(help="CSV of inputs to predict labels for.", metavar="Q.csv")
    ] = None,
    label: Labels = None,
    seed: Seed = 0,
    backend: BackendName = "fused",
    dtype: DtypeName = "float64",
    out: Annotated[
        Path | None, typer.Option(help="CSV to write the predictions to.", metavar="P.csv")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train on a CSV file in one forward pass, and predict.

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
    outcome = _train(compiled, task, backend, examples.label_names)
    if out:
        write_file(out, csv_content(outcome.labels, outcome.predictions))
    if as_json:
        show.print_json(outcome)
    else:
        _print(outcome)


@dataclass(frozen=True)
class Outcome:
    """Training loss before and after, and a row of labels for each query."""

    risk_before: float
    risk_after: float
    labels: tuple[str, ...]
    predictions: list[list[float]]


def _train(compiled: Compiled, task: Task, backend: str, labels: tuple[str, ...]) -> Outcome:
    with progress("training") as on_progress:
        result = compiled.run_task(task, backend=backend, on_progress=on_progress)
    return Outcome(
        risk_before=_risk(compiled.problem, result.parameters[0], task),
        risk_after=_risk(compiled.problem, result.parameters[-1], task),
        labels=labels,
        predictions=result.predictions.tolist(),
    )


def _risk(problem: Problem, parameters: Parameters, task: Task) -> float:
    if problem.trains_function:
        return functional_reference.risk(task, parameters)
    x, y = task.x.double(), task.y.double()
    return float(reference.risk(problem, parameters.double(), x, y))


def _print(outcome: Outcome) -> None:
    rows = [
        ("before", f"{outcome.risk_before:.6g}"),
        ("after", f"{outcome.risk_after:.6g}"),
    ]
    show.print_rows("Training loss", rows)
    if outcome.predictions:
        show.print_predictions(outcome.labels, outcome.predictions)
