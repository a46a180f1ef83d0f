"""`icgd resources`: what shallow and deep networks cost a transformer, by theorem and measured."""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.options import AsJson, output
from icgd.errors import SettingError, UnknownNameError, quoted
from icgd_papers.runner import stored_rows
from icgd_papers.studies import resources as theory
from icgd_papers.studies.wang_resources import needed, summarise

ERRORS = {"indicator": "0.1,0.05,0.03", "smooth": "0.1,0.01,0.001,0.0001"}
"""The default errors of each kind: those that networks were trained for, and some for a trend."""

LEMMAS = (
    "2 layers need at least that width, which is said for errors below 1 / d^4 only; "
    "3 layers need at most theirs."
)

LARGEST_LOG = log(1e300)
"""Counts up to here are written as numbers, larger ones as powers of ten."""


def resources(
    kind: Annotated[
        str, typer.Argument(help="What is learnt: indicator (of a ball) or smooth (function).")
    ],
    errors: Annotated[
        str | None, typer.Option(help="Errors between 0 and 1, joined by commas.")
    ] = None,
    dimension: Annotated[
        int | None,
        typer.Option(
            help="Inputs of the function. Default: 2 for smooth; for the indicator the theorem's, "
            "which grows as the error falls. A given dimension has its own lemmas."
        ),
    ] = None,
    smoothness: Annotated[
        int | None, typer.Option(help="smooth: derivatives of the function. Default: 6.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="smooth: layers of the shallow network. Default: 2.")
    ] = None,
    out: Annotated[Path, output("Folder of `icgd reproduce`.")] = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Count the parameter matrices of a transformer that learns a function through a network.

    The counts are those of the theorems with every constant 1. For the indicator they are followed
    by the widths that `icgd reproduce wang-resources` measured, if it was run.

    Example: icgd resources smooth --dimension 1 --smoothness 6 --depth 2 --errors 0.1,0.001
    """
    if kind not in ERRORS:
        raise UnknownNameError.of("kind of function", kind, known=list(ERRORS))
    wanted = parse_errors(ERRORS[kind] if errors is None else errors)
    if kind == "smooth":
        function = {
            "dimension": 2 if dimension is None else dimension,
            "smoothness": 6 if smoothness is None else smoothness,
            "depth": 2 if depth is None else depth,
        }
        pairs = [theory.smooth(error, **function) for error in wanted]
        crossover = theory.smooth_crossover(**function)
        d, s, n_layers = function.values()
        title = f"Theorem 4: {s} derivatives, d = {d}"
        remark = (
            f"For small errors the deep network costs more: 2 (L - 1) d = {2 * (n_layers - 1) * d} "
            f"is not below {s} derivatives."
        )
    else:
        for name, value in (("--smoothness", smoothness), ("--depth", depth)):
            if value is not None:
                raise SettingError(
                    f"{name} has no effect without the kind smooth; give both or neither."
                )
        if dimension is None:
            pairs = [theory.indicator(error) for error in wanted]
            crossover, remark = theory.indicator_crossover(), ""
            title = "Theorem 3: the indicator of a ball"
        else:
            pairs = [theory.indicator_in(dimension, error) for error in wanted]
            crossover, remark = None, LEMMAS
            title = f"Lemmas 1 and 2: the indicator of a ball, d = {dimension}"
    if crossover is not None:
        remark = f"The deep network always costs less below an error of {number_text(-crossover)}."
    path = out / "wang-resources" / "laptop.json"
    rows = stored_rows(path) if kind == "indicator" and path.exists() else None
    if rows is not None and dimension is not None:
        rows = rows.filter(dimension=dimension)
    if as_json:
        data = {
            "theorem": title,
            "log10_crossover": None if crossover is None else -crossover / log(10),
            "pairs": [
                {
                    "error": pair.error,
                    "shallow": _data(pair.shallow),
                    "deep": _data(pair.deep),
                    "deep_is_cheaper": pair.deep_is_cheaper,
                }
                for pair in pairs
            ],
            "measured": [] if rows is None else needed(rows, wanted).to_dicts(),
        }
        show.print_json(data)
        return
    cells = [
        (f"{pair.error:g}", *_cells(network))
        for pair in pairs
        for network in (pair.shallow, pair.deep)
    ]
    names = ("error", "network", "width", "layers", "heads", "matrices", "as printed")
    show.print_columns(f"{title}; every constant is 1", names, cells)
    show.output.print(remark)
    if rows is not None and rows.height:
        table = summarise(rows, wanted)
        title = "\nMeasured, 2 layers / 3 layers: width found to suffice; heads of a training step"
        show.print_columns(title, table.columns, table.rows())
    elif kind == "indicator":
        show.output.print(
            "No widths were measured for this; icgd reproduce wang-resources trains networks."
        )


def parse_errors(text: str) -> list[float]:
    """Read numbers between 0 and 1 from a text such as `0.1,0.05`."""
    try:
        errors = [float(number) for number in text.split(",")]
    except ValueError:
        raise SettingError(
            f"--errors must be numbers joined by commas, such as 0.1,0.05, got {quoted(text)}."
        ) from None
    return [theory.within_one("--errors", error) for error in errors]


def _data(network: theory.Resources) -> dict[str, Any]:
    """Return counts as numbers, null if they exceed every float, and the matrices as a power."""
    counts = {
        name: None if value is None or value > LARGEST_LOG else exp(value)
        for name, value in network.logs().items()
    }
    sizes = {"depth": network.depth, "layers": network.n_layers, **counts}
    log10 = network.log_matrices / log(10)
    return {"network": network.network, **sizes, "log10_matrices": log10}


def _cells(network: theory.Resources) -> tuple[str, ...]:
    texts = ["" if value is None else number_text(value) for value in network.logs().values()]
    return network.network, texts[0], f"{network.n_layers:.3g}", *texts[1:]


def number_text(log_value: float) -> str:
    """Write a count or an error, given its natural logarithm, however large or small."""
    if abs(log_value) > LARGEST_LOG:
        return f"10^{log_value / log(10):,.0f}"
    value = exp(log_value)
    if 1000 <= value < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 0.001 <= value < 1000 else f"{value:.1e}"
