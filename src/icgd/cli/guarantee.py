"""`icgd guarantee`: check a linear model's descent against cot's theorems."""

from __future__ import annotations

from math import inf
from typing import Any

import typer

from icgd.backends.registry import AUTO
from icgd.certificates.guarantee import Guarantee, Outcome
from icgd.cli import show
from icgd.cli.data_options import GivenTable, takes_table
from icgd.cli.examples import open_run
from icgd.cli.options import AsJson, ClaimBackend, CompiledFile
from icgd.cli.progress import progress
from icgd.pipeline import guarantee as check

EXIT_CODES = {Outcome.KEPT: 0, Outcome.BROKEN: 1, Outcome.NOT_KNOWN: 2}
"""An unknown outcome is no success, so that a script does not take it for one."""

CELLS = {Outcome.KEPT: "kept", Outcome.BROKEN: "broken", Outcome.NOT_KNOWN: "not known"}


@takes_table
def guarantee(
    file: CompiledFile,
    table: GivenTable,
    backend: ClaimBackend = AUTO,
    as_json: AsJson = False,
) -> None:
    """Check the result of a linear model's descent against Theorems 3.1 to 3.3 of cot.

    Newton steps find the minimiser, in the box if there is one, and estimate its accuracy. The exit
    code is 0 if every promise is kept, 1 if one is broken, 2 if that is not known.

    Example: icgd guarantee model.safetensors patients.csv --target ill
    """
    compiled, examples, _ = open_run(file, table)
    with progress("descending") as on_progress:
        result = check(
            compiled, examples.frame, examples.labels, backend=backend, on_progress=on_progress
        )
    if as_json:
        show.print_json({**_data(result), "box": compiled.problem.box})
    else:
        _print(result, compiled.problem.box)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _data(result: Guarantee) -> dict[str, Any]:
    return {
        "verdict": result.verdict.name,
        "meaning": result.verdict.value,
        "distance_verdict": result.distance_verdict.name,
        "excess_verdict": result.excess_verdict.name,
        "holds": result.holds,
        **show.plain(result),
    }


def _print(result: Guarantee, box: float | None) -> None:
    distance, excess = CELLS[result.distance_verdict], CELLS[result.excess_verdict]
    promises = [("contraction", result.contraction_bound)]
    if result.theorem != "3.3":
        promises.insert(0, (f"Theorem {result.theorem}", result.distance_bound))
    rows = [
        ("" if number else "distance from the minimiser", result.distance, by, bound, distance)
        for number, (by, bound) in enumerate(promises)
    ]
    rows.append(
        ("objective above its minimum", result.excess, "Theorem 3.3", result.excess_bound, excess)
    )
    names = ("", "measured", "promised by", "at most", "")
    listed = [
        (what, f"{value:.3g}", by, _promise(most), is_kept)
        for what, value, by, most, is_kept in rows
    ]
    title = f"After {result.n_steps:,} steps of {result.step_size:.4g} ({result.backend} backend)"
    show.print_columns(title, names, listed)
    show.print_why_fused(result.fused_because)
    constants = [
        ("curvature", f"{result.smallest_curvature:.4g} to {result.largest_curvature:.4g}"),
        ("distance of the start", f"{result.start_distance:.4g}"),
        ("error of a step at most", f"{result.step_error:.2g}"),
        ("accuracy of the minimiser", _known(result.distance_slack)),
        ("accuracy of the minimum", _known(result.excess_slack + result.excess_rounding)),
        ("minimised over", "all coefficients" if box is None else f"coefficients within ±{box:g}"),
    ]
    show.print_rows("Constants", constants)
    if result.distance_slack == inf:
        show.output.print(
            "The objective is flat around the minimiser that was found, or nearly so: there may be "
            "others, and distances are those from the one that was found."
        )
    show.print_verdict(result.verdict.value, result.holds)


def _known(slack: float) -> str:
    return "not known" if slack == inf else f"about {slack:.2g} (estimated)"


def _promise(bound: float) -> str:
    return "nothing" if bound == inf else f"{bound:.3g}"
