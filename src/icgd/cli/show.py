"""Results on the terminal: as tables to read, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from math import isfinite, isnan
from pathlib import Path
from typing import Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from icgd.certificates.balls import rounded_up
from icgd.certificates.report import Certificate, Report
from icgd.program.functions import Function
from icgd.program.instructions import LayerKind
from icgd.weights.sizes import Summary, dense_bytes

output = Console(highlight=False)
"""Standard output; a table there is as wide as the terminal, or 80 columns in a file."""

FLOAT64_BYTES = 8
LISTED_ROWS = 10
"""The number of predictions that a table shows; a file holds all."""


def plain(value: Any) -> Any:
    """Return `value` as JSON data; numbers that are not finite become null."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def json_text(data: Any) -> str:
    """Return JSON data as text."""
    return json.dumps(plain(data), indent=2, allow_nan=False)


def print_json(data: Any) -> None:
    """Print JSON data on standard output."""
    typer.echo(json_text(data))


def print_saved(path: Path, *, as_json: bool) -> None:
    """Print which file was written."""
    if as_json:
        print_json({"file": str(path)})
    else:
        typer.echo(f"Saved {path}")


def summary_data(summary: Summary) -> dict[str, Any]:
    """Return the sizes with every digit, and the memory that dense weights take."""
    return {**plain(summary), "dense_bytes": dense_bytes(summary, FLOAT64_BYTES)}


def report_data(report: Report) -> dict[str, Any]:
    """Return the report with its verdict and the largest error and bound over all steps."""
    kinds = ("step", "trajectory", "prediction")
    names = [f"{kind}_{what}" for kind in kinds for what in ("errors", "bounds")]
    bounds: dict[str, Any] = report.informative_bounds  # JSON shows NaN as null
    shown = replace(report, **bounds)
    known = {name: getattr(shown, name) for name in names}
    return {
        "verdict": report.verdict.name,
        "meaning": report.verdict.value,
        "headline": report.headline,
        "largest": {name: largest(part) for name, part in known.items() if part is not None},
        "beyond_paper": report.beyond_paper,
        "backend": report.backend,
        "dtype": report.dtype,
        **plain(shown),
        "certificate": certificate_data(report.certificate),
        "says_nothing": list(report.empty),
    }


def certificate_data(certificate: Certificate) -> dict[str, Any]:
    """Return the certificate; a bound without information is null, and its name is listed."""
    says_nothing = dict.fromkeys(certificate.empty)
    return {**plain(certificate), **says_nothing, "says_nothing": list(certificate.empty)}


def largest(values: Tensor) -> float:
    """Return the largest entry, which is NaN if one is NaN, and 0 if there are no steps."""
    return float(values.max()) if values.numel() else 0.0


def count_text(number: int) -> str:
    """Return a count: with every digit below 100,000, then as "1.25 million"."""
    if number < 100_000:
        return f"{number:,}"
    if number >= 10**15:
        return f"{number:.2e}"
    words = ("thousand", "million", "billion", "trillion")
    power = (len(str(number)) - 1) // 3
    return f"{three_digits(number / 1000**power)} {words[power - 1]}"


def bytes_text(number: int) -> str:
    """Return a number of bytes in the largest binary unit that it fills."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = min(max(number.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{three_digits(number / 1024**power)} {units[power]}"


def three_digits(number: float) -> str:
    """Return a number with its first three digits; below 1 with two digits after the point."""
    return f"{number:.{max(0, 3 - len(str(int(number))))}f}"


def seconds_text(seconds: float) -> str:
    """Return a time in milliseconds or seconds."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def error_text(value: float | None) -> str:
    """Return an error or a bound with two digits."""
    if value is None:
        return "none"
    is_everyday = value == 0 or 0.01 <= value < 10_000
    return f"{value:.2g}" if is_everyday else f"{value:.1e}"


def bound_text(value: float, certificate: Certificate) -> str:
    """Return a bound, or that it gives no information beyond the box of the weights."""
    if certificate.says_nothing(value):
        return no_information(certificate)
    return error_text(rounded_up(value, digits=2))


def no_information(certificate: Certificate) -> str:
    """Return the text in place of a bound without information."""
    return "no information (beyond the box)" if isfinite(certificate.widest) else "no information"


def print_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of two columns: a name and its value. No word or number is cut."""
    rows = list(rows)
    table, columns = Table(box=box.SIMPLE, show_header=False), list(zip(*rows, strict=True))
    for style, width in zip(("dim", ""), _widths(columns), strict=False):
        table.add_column(style=style, min_width=width, max_width=width)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    output.print(Text(title, style="bold"), table, sep="\n", crop=False)


def print_columns(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a header; numbers stand flush right, and no word or number is cut.

    The first column is not wrapped, unless the terminal is too narrow for that. In a terminal that
    is too narrow for the words of all columns side by side, each row is a table of its own.
    """
    rows = list(rows)
    columns = list(zip(names, *rows, strict=True))
    if rows and not _fits([_longest_word(cells) for cells in columns]):
        return _print_apart(title, names, rows)
    table = Table(box=box.SIMPLE)
    for position, (name, width) in enumerate(zip(names, _widths(columns), strict=True)):
        is_text = not position or any(row[position][:1].isalpha() for row in rows)
        side: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(Text(name), justify=side, min_width=width, max_width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    output.print(Text(title, style="bold"), table, sep="\n", crop=False)


def _print_apart(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row by itself: its first cell, then the names and the values of the others."""
    output.print(Text(title, style="bold"))
    for first, *others in rows:
        named = zip(names[1:], others, strict=True)
        print_rows(f"{names[0]} {first}".strip(), [(name, cell) for name, cell in named if cell])


def _widths(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return widths that cut no word: wide columns are narrowed first, the first one last."""
    longest = [max(map(len, cells)) for cells in columns]
    words = [_longest_word(cells) for cells in columns]
    least = [*longest[:1], *words[1:]]
    least = least if _fits(least) else words
    caps = range(max(longest, default=0), 0, -1)
    tried = (
        [max(low, min(full, cap)) for low, full in zip(least, longest, strict=True)] for cap in caps
    )
    return next(filter(_fits, tried), least)


def _fits(widths: Sequence[int]) -> bool:
    """Return whether columns of these widths, with the space around them, fit into the terminal."""
    return sum(widths) + 3 * len(widths) + 1 <= output.width


def _longest_word(cells: Sequence[str]) -> int:
    return max((len(word) for cell in cells for word in cell.split()), default=0)


def print_summary(summary: Summary) -> None:
    """Print the size of a transformer, and why its construction was chosen."""
    memory = bytes_text(dense_bytes(summary, FLOAT64_BYTES))
    nonzero_share = summary.nonzeros / summary.parameters
    rows = [("layers", summary.layers_in_words)]
    if summary.chosen_because is not None:
        rows.insert(0, ("chosen", f"because {summary.chosen_because}"))
    if summary.paper_layers:
        here = sum(layer.kind is not LayerKind.MLP for layer in summary.layers_of_a_step)
        text = f"{summary.paper_layers} layers of attention and MLP for each step; here {here}"
        rows.append(("in the paper", text))
    if summary.n_registers:  # tokens in the stream, or a grid that a layer makes
        is_grid = any(layer.n_grid for layer in summary.layers)
        rows.append(("grid tokens" if is_grid else "registers", f"{summary.n_registers:,}"))
    rows += [
        ("d_model", count_text(summary.d_model)),
        ("heads", f"at most {count_text(summary.max_heads)} a layer, d_head {summary.d_head:,}"),
    ]
    if summary.d_mlp:
        rows.append(("hidden units of an MLP", f"at most {count_text(summary.d_mlp)}"))
    rows += [
        ("weights", f"{count_text(summary.parameters)} ({memory} dense; steps share them)"),
        ("non-zero weights", f"{count_text(summary.nonzeros)} ({nonzero_share:.2g} of all)"),
        (
            f"FLOPs, {summary.n_tokens} tokens",
            f"{count_text(summary.sparse_flops)} literal, {count_text(summary.flops)} dense",
        ),
        ("direct training", f"{count_text(summary.direct_flops)} FLOPs"),
    ]
    print_rows(f"The transformer ({summary.construction})", rows)


def print_functions(functions: Iterable[Function]) -> None:
    """Print how finely each function is approximated."""
    rows = [
        (function.name, f"{function.fineness}, error at most {error_text(function.error)}")
        for function in functions
        if not function.is_exact
    ]
    print_rows("Approximated functions", rows or [("all", "exact")])


def print_certificate(certificate: Certificate) -> None:
    """Print what is proved before any run."""
    rows = [
        ("(a) one step", bound_text(certificate.domain_step, certificate)),
        ("(a) the whole run", bound_text(certificate.domain_trajectory, certificate)),
    ]
    if certificate.paper_step is not None:
        rows += [("(c) one step, the paper's closed form", error_text(certificate.paper_step))]
    tokens = f"up to {certificate.n_tokens:,} tokens"
    how = f"{certificate.backend} backend, {certificate.dtype}, {tokens}"
    if certificate.condition is not None:
        rows += [("(a) holds only", certificate.condition)]
    title = f"Largest error of a trained value, proved for all data in the domain ({how})"
    print_rows(title, rows)
    _print_own_kernels(certificate)


def print_report(report: Report) -> None:
    """Print measured errors beside their bounds, the backend that made them, and the verdict."""
    proved, kinks = report.certificate, report.near_kinks.count
    run_of_paper = None if report.paper_trajectory is None else largest(report.paper_trajectory)
    has_paper = (proved.paper_step, run_of_paper) != (None, None)
    lines = (
        ("one step", "step", proved.domain_step, proved.paper_step),
        ("the whole run", "trajectory", proved.domain_trajectory, run_of_paper),
    )
    rows = []
    for name, kind, domain, paper in lines:
        errors, bounds = getattr(report, f"{kind}_errors"), getattr(report, f"{kind}_bounds")
        of_run = "not proved" if bounds is None else bound_text(largest(bounds), proved)
        row = [name, error_text(largest(errors)), of_run, bound_text(domain, proved)]
        of_paper = "" if paper is None else error_text(paper)
        rows.append([*row, of_paper] if has_paper else row)
    rows += _prediction_rows(report, has_paper)
    names = ("", "measured", "(b) this run", "(a) any data", *(["(c) paper"] if has_paper else []))
    what = "bounds, of which (b) is an estimate" if proved.estimated else "proved bounds"
    where = f"{report.backend} backend, {report.dtype}"
    print_columns(f"Largest error of a trained value, and its {what} ({where})", names, rows)
    if proved.paper_step is not None and proved.says_nothing(proved.paper_step):
        output.print("(c) multiplies the worst cases of all layers; (a) and (b) follow intervals.")
    if report.rigorous is not None:
        output.print("(b) includes the rounding of the float64 training that is compared with.")
    print_why_fused(report.fused_because)
    _print_own_kernels(proved)
    if proved.condition is not None:
        output.print(f"(a) holds only {proved.condition}.")
    if report.furthest:
        output.print(Text(f"Furthest from real descent at the end: {report.furthest}"))
    if report.idle:
        output.print(f"For comparison, {report.idle}.")
    if kinks:
        output.print(
            f"Near-kink events: {kinks:,} (inputs so close to a kink of an activation that a ramp "
            "replaces the jump of its slope)"
        )
    if report.beyond_paper:
        output.print(
            f"From step {report.beyond_paper:,} on the run exceeds the paper's bound, which holds "
            "only where no step expands distances."
        )
    verdict = report.verdict
    print_verdict(f"{report.conclusion}.", verdict.holds)
    if report.headline:
        is_proved = verdict.holds and report.headline.startswith("proved: the whole")
        style = "bold green" if is_proved else "bold"
        output.print(Text(f"{report.headline[0].upper()}{report.headline[1:]}.", style=style))


def print_why_fused(reason: str | None) -> None:
    """Print why the fused backend ran in place of the transformer itself."""
    if reason:
        output.print(f"The fused backend ran, because {reason}.")


def _print_own_kernels(proved: Certificate) -> None:
    """Print what bounds assume about kernels of the user's own."""
    if proved.stated:
        names = ", ".join(map(repr, proved.stated))
        output.print(
            Text(f"All bounds rely on the constants that were stated for the kernel {names}.")
        )
    if proved.estimated:
        names = ", ".join(map(repr, proved.estimated))
        output.print(
            Text(f"No constants were stated for the kernel {names}, so nothing is proved.")
        )


def print_verdict(text: str, is_good: bool) -> None:
    """Print a verdict in green if it is good, else in red."""
    output.print(Text(text, style="bold green" if is_good else "bold red"))


def _prediction_rows(report: Report, has_paper: bool) -> list[list[str]]:
    """Return the row of the predictions, if there are any; the paper proves nothing of them."""
    errors, proved = report.prediction_errors, report.certificate
    if errors is None or not errors.numel():
        return []
    bounds = report.informative_bounds.get("prediction_bounds")
    of_run = "not proved"
    if bounds is not None:
        bound = largest(bounds)
        of_run = no_information(proved) if isnan(bound) else error_text(rounded_up(bound, digits=2))
    domain = proved.domain_predictions
    anywhere = error_text(domain) if isfinite(domain) else no_information(proved)
    return [["predictions", error_text(largest(errors)), of_run, anywhere, *[""] * has_paper]]


def print_coefficients(coefficients: Mapping[str, float]) -> None:
    """Print what a linear model has learnt, with a row for each input."""
    rows = [(name, f"{value:.6g}") for name, value in coefficients.items()]
    print_columns("Coefficients", ("input", "coefficient"), rows)


def print_predictions(names: Sequence[str], rows: Sequence[Sequence[float | str]]) -> None:
    """Print the first predictions, numbered as the rows of the queries."""
    listed = [
        (str(number), *(cell if isinstance(cell, str) else f"{cell:.6g}" for cell in row))
        for number, row in enumerate(rows[:LISTED_ROWS], start=1)
    ]
    print_columns("Predictions", ("query", *names), listed)
    if len(rows) > LISTED_ROWS:
        output.print(f"and {len(rows) - LISTED_ROWS} more; the file of --output has all")
