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
        found = check(
            compiled, examples.frame, examples.labels, backend=backend, on_progress=on_progress
        )
    if as_json:
        show.print_json({**_data(found), "box": compiled.problem.box})
    else:
        _print(found, compiled.problem.box)
    raise typer.Exit(EXIT_CODES[found.verdict])


def _data(found: Guarantee) -> dict[str, Any]:
    return {
        "verdict": found.verdict.name,
        "meaning": found.verdict.value,
        "distance_verdict": found.distance_verdict.name,
        "excess_verdict": found.excess_verdict.name,
        "holds": found.holds,
        **show.plain(found),
    }


def _print(found: Guarantee, box: float | None) -> None:
    distance, excess = CELLS[found.distance_verdict], CELLS[found.excess_verdict]
    promises = [("contraction", found.contraction_bound)]
    if found.theorem != "3.3":
        promises.insert(0, (f"Theorem {found.theorem}", found.distance_bound))
    rows = [
        ("" if number else "distance from the minimiser", found.distance, by, bound, distance)
        for number, (by, bound) in enumerate(promises)
    ]
    rows.append(
        ("objective above its minimum", found.excess, "Theorem 3.3", found.excess_bound, excess)
    )
    names = ("", "measured", "promised by", "at most", "")
    listed = [
        (what, f"{value:.3g}", by, _promise(most), is_kept)
        for what, value, by, most, is_kept in rows
    ]
    title = f"After {found.n_steps:,} steps of {found.step_size:.4g} ({found.backend} backend)"
    show.print_columns(title, names, listed)
    show.print_why_fused(found.fused_because)
    constants = [
        ("curvature", f"{found.smallest_curvature:.4g} to {found.largest_curvature:.4g}"),
        ("distance of the start", f"{found.start_distance:.4g}"),
        ("error of a step at most", f"{found.step_error:.2g}"),
        ("accuracy of the minimiser", _known(found.distance_slack)),
        ("accuracy of the minimum", _known(found.excess_slack + found.excess_rounding)),
        ("minimised over", "all coefficients" if box is None else f"coefficients within ±{box:g}"),
    ]
    show.print_rows("Constants", constants)
    if found.distance_slack == inf:
        show.output.print(
            "The objective is flat around the minimiser that was found, or nearly so: there may be "
            "others, and distances are those from the one that was found."
        )
    show.print_verdict(found.verdict.value, found.holds)


def _known(slack: float) -> str:
    return "not known" if slack == inf else f"about {slack:.2g} (estimated)"


def _promise(bound: float) -> str:
    return "nothing" if bound == inf else f"{bound:.3g}"
