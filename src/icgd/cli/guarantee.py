"""`icgd guarantee`: a linear model's descent beside what cot's theorems promise of it."""

from __future__ import annotations

from math import inf

import typer

from icgd.certificates.guarantee import Guarantee
from icgd.cli import show
from icgd.cli.csv_data import read_examples
from icgd.cli.options import AsJson, BackendName, CompiledFile, Data, Labels
from icgd.cli.progress import progress
from icgd.pipeline import guarantee as check
from icgd.pipeline import load


def guarantee(
    file: CompiledFile,
    data: Data,
    label: Labels = None,
    backend: BackendName = "fused",
    as_json: AsJson = False,
) -> None:
    """Compare the end of a linear model's descent with Theorems 3.1 to 3.3 of cot.

    The minimiser is found by exact descent. The exit code is 0 if every promise is kept, else 1.

    Example: icgd guarantee model.safetensors patients.csv --label ill
    """
    compiled = load(file)
    examples = read_examples(data, compiled.problem.target, label)
    with progress("descending") as on_progress:
        found = check(
            compiled, examples.inputs, examples.labels, backend=backend, on_progress=on_progress
        )
    if as_json:
        show.print_json({**show.plain(found), "holds": found.holds})
    else:
        _print(found)
    raise typer.Exit(0 if found.holds else 1)


def _print(found: Guarantee) -> None:
    bound = "Theorem 3.1" if found.theorem == "3.1" else "Theorem 3.2"
    rows = [
        ("distance from the minimiser", found.distance, bound, found.distance_bound),
        ("", found.distance, "contraction", found.contraction_bound),
        ("objective above its minimum", found.excess, "Theorem 3.3", found.excess_bound),
    ]
    names = ("", "measured", "promised by", "at most")
    listed = [(what, f"{value:.3g}", by, f"{most:.3g}") for what, value, by, most in rows]
    show.print_columns(f"After {found.n_steps:,} steps of {found.step_size:.4g}", names, listed)
    constants = [
        ("curvature", f"{found.smallest_curvature:.4g} to {found.largest_curvature:.4g}"),
        ("start from the minimiser", f"{found.start_distance:.4g}"),
        ("error of a step at most", f"{found.step_error:.2g}"),
    ]
    show.print_rows("Constants", constants)
    if found.distance_slack == inf:
        show.output.print(
            "The risk is flat around the minimiser that was found, so that there may be others, "
            "and distances from it say little."
        )
    show.output.print("Every promise is kept." if found.holds else "A promise is broken.")
