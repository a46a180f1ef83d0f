"""`icgd init`: write a problem.toml for a table, with what was found in it."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.data_options import DROP, FILLS, GivenTable, described_source, takes_table
from icgd.cli.examples import Examples, loss_for, read_examples
from icgd.cli.options import AsJson, output
from icgd.cli.problem_file import Description
from icgd.cli.writing import require_writable, write_new_file
from icgd.errors import DataError
from icgd.problems.data import Domain
from icgd.problems.problem import Problem
from icgd.problems.tables import DATE
from icgd.reprs import counted

TEMPLATE = """\
# What `icgd compile` trains: written by `icgd init` for {table}.
# docs/problem_file.md has every key. Options of a command replace these keys.

loss = {loss}  # {loss_reason}
steps = 100
# construction = "relu-stack"  # left out: the smallest one that is accurate to rounding
# tolerance = 0.001            # or the coarsest that proves this error of a step

[target]  # {inputs} and {outputs}, as the table has them
hidden = [16]
activation = "tanh"
biases = true
# In place of these three: link = "identity" (a linear model), or kernel = "rbf". Then leave out
# loss and optimiser, step_size for the one that the table suggests, and box with a kernel.

[update]
optimiser = "sgd"  # or momentum, nesterov, adam, adamw, rmsprop
step_size = 0.1
box = 3.0  # every weight is clipped to -3 .. 3 after a step

[domain]  # bounds of inputs and labels{units}: a quarter more than the table has
x = {x}
y = {y}

[table]  # remembered by the compiled file
data = {path}
{options}
"""


@takes_table
def init(
    table: GivenTable,
    out: Annotated[Path, output("File to write.", "PROBLEM.toml")] = Path("problem.toml"),
    as_json: AsJson = False,
) -> None:
    """Write a problem.toml for a table, with the label, bounds and scaling found in it.

    Columns of texts that differ in every row are ignored; other texts and dates are encoded.

    Example: icgd init train.csv --target price
    """
    require_writable(out, read=(table.path,))
    options, reasons = _table_options(table)
    source = described_source(table.path, options, None, table.options)
    loss, reasons["loss"] = loss_for(source)
    content = {"loss": loss, "table": options}
    problem = Description(content, None, table.path).problem()
    bounds = {name: float(f"{getattr(problem.domain, name):.3g}") for name in ("x", "y")}
    problem = replace(problem, domain=Domain(**bounds))
    examples = read_examples(source, problem)
    raw = examples.input_scaling.undone(examples.inputs)
    reasons["standardize"] = f"inputs go from {raw.min():.4g} to {raw.max():.4g}"
    text = _rendered(problem, examples, out, options, reasons)
    write_new_file(out, text.encode())
    found = {
        "inputs": ", ".join(examples.input_names),
        **{
            name: f"{_words(value)}: {reasons[name]}"
            for name, value in options.items()
            if name in reasons
        },
        "loss": f"{loss}: {reasons['loss']}",
        "bounds": problem.domain.in_words(),
    }
    if as_json:
        show.print_json({"file": str(out), "problem": tomllib.loads(text), "found": found})
    else:
        show.print_rows(f"Found in {table.path}", found.items())
        typer.echo(f"Saved {out}\nNext: icgd compile {out} -o run.safetensors")


def _table_options(given: GivenTable) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of a table, found in it unless they are given, and the reasons."""
    options = {"standardize": True, **given.options}
    reasons = {}
    table = described_source(given.path, options, None, given.options).opened()
    if "target" not in options:
        options["target"] = [table.names[-1]]
        reasons["target"] = "the last column"
    columns = [name for name in table.names if name not in options["target"]]
    names = [name for name in columns if table.is_of_names(name)]
    if names:
        options["ignore"] = [*options.get("ignore", []), *names]
        reasons["ignore"] = "a different text in every row"
    kept = [name for name in columns if name not in names]
    if names and not kept:
        raise DataError(
            f"{table.path} has no column to learn from: {', '.join(names)} "
            f"{'has' if len(names) == 1 else 'have'} a different text in every row. If these are "
            "numbers, remove their units and thousands separators, or give --decimal."
        )
    codes = table.codes(kept)
    if codes and "encode" not in options:
        options["encode"] = True
        reasons["encode"] = "; ".join(
            f"{name}: {'dates' if code == DATE else f'{len(code)} categories'}"
            for name, code in codes.items()
        )
    if "missing" not in options:
        gaps = {name: len(table.gaps(name)) for name in (*kept, *options["target"])}
        if n_missing := sum(gaps.values()):
            has_labels = not any(gaps[name] for name in options["target"])
            options["missing"] = FILLS[0] if has_labels else DROP
            where = ", ".join(name for name, number in gaps.items() if number)
            reasons["missing"] = f"{counted(n_missing, 'value')} missing, in {where}"
    return options, reasons


def _rendered(
    problem: Problem,
    examples: Examples,
    out: Path,
    options: Mapping[str, Any],
    reasons: Mapping[str, str],
) -> str:
    """Return the text of problem.toml, with the reason for each value found in the table."""
    path = os.path.relpath(examples.source.data.absolute(), out.absolute().parent)
    lines = [
        f"{name} = {_toml(value)}" + (f"  # {reasons[name]}" if name in reasons else "")
        for name, value in options.items()
    ]
    return TEMPLATE.format(
        table=examples.source.data.name,
        loss=_toml(problem.loss),
        loss_reason=reasons["loss"],
        inputs=counted(problem.target.input_width, "input"),
        outputs=counted(problem.target.output_width, "output"),
        units=" in standard units" if examples.source.standardize else "",
        x=problem.domain.x,
        y=problem.domain.y,
        path=_toml(path),
        options="\n".join(lines),
    )


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _toml(value: Any) -> str:
    """Return a text, number, Boolean or list in TOML, which writes these as JSON does."""
    return json.dumps(value, ensure_ascii=False)
