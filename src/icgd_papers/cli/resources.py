"""`icgd resources`: what shallow and deep networks cost a transformer, by theorem and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.options import AsJson, output
from icgd.errors import SettingError, UnknownNameError, brief
from icgd_papers.cli.reproduce import reproduced
from icgd_papers.reproduction import PRESETS, Row
from icgd_papers.results import Order, stored_rows
from icgd_papers.studies import resources as theory_of
from icgd_papers.studies.resources import Pair, Resources
from icgd_papers.studies.wang_resources import RESOURCES
from icgd_papers.studies.wang_widths import DEPTHS, dimensions, needed, table

KINDS = ("indicator", "smooth")
ERRORS = {"indicator": "0.1,0.05,0.03", "smooth": "0.1,0.01,0.001,0.0001"}
"""The default errors: those that networks were trained for, and some that show a trend."""

SMOOTH = {"dimension": 2, "smoothness": 6, "depth": 2}
"""The default function, for which the deep network costs less in the end."""

LEMMAS = (
    "2 layers need at least that width, which is said for errors below 1 / d^4 only; "
    "3 layers need at most theirs."
)

COUNTS = ("width", "heads", "matrices", "printed")
"""What is counted of a network and its transformer; the last one is what the theorem prints."""

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
            help="Inputs of the function. Default: 2 for smooth; for the indicator all at once, by "
            "the theorem; one dimension has lemmas of its own."
        ),
    ] = None,
    smoothness: Annotated[
        int | None, typer.Option(help="smooth: derivatives of the function. Default: 6.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="smooth: layers of the shallow network. Default: 2.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help=f"indicator: train networks now; {', '.join(PRESETS)}.")
    ] = None,
    out: Annotated[Path, output("Folder of `icgd reproduce`.")] = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Count the parameter matrices of a transformer that learns a function through a network.

    The counts are those of the theorems with every constant 1. For the indicator they are followed
    by measured widths, if there are any.

    Example: icgd resources smooth --dimension 1 --smoothness 6 --depth 2 --errors 0.1,0.001
    """
    if kind not in KINDS:
        raise UnknownNameError.of("kind of function", kind, known=KINDS)
    wanted = parse_errors(ERRORS[kind] if errors is None else errors)
    if kind == "smooth":
        _refuse({"--measure": measure}, "indicator")
        theory = _of_smooth(wanted, dimension=dimension, smoothness=smoothness, depth=depth)
        rows = None
    else:
        _refuse({"--smoothness": smoothness, "--depth": depth}, "smooth")
        theory = _of_indicator(wanted, dimension)
        rows = _measured_rows(measure, out)
    places = [place for place in dimensions(rows or ()) if dimension in (None, place)]
    if as_json:
        show.print_json({**_data(theory), "measured": _measured_data(rows or (), places, wanted)})
        return
    _print_theory(theory)
    if kind == "indicator":
        _print_measured(rows, places, wanted)


@dataclass(frozen=True)
class Theory:
    """What a theorem says of some errors.

    Below an error of exp(-crossover) the deep network always costs less; where it does not, or
    nothing is known of it, `otherwise` says what holds.
    """

    title: str
    pairs: tuple[Pair, ...]
    crossover: float | None
    otherwise: str = ""

    @property
    def remark(self) -> str:
        if self.crossover is None:
            return self.otherwise
        return (
            f"The deep network always costs less below an error of {number_text(-self.crossover)}."
        )


def parse_errors(text: str) -> list[float]:
    """The text `0.1,0.05` as numbers between 0 and 1."""
    try:
        errors = [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(
            f"--errors must be numbers joined by commas, such as 0.1,0.05, got {brief(text)}."
        ) from None
    return [theory_of.within_one("--errors", error) for error in errors]


def _refuse(options: Mapping[str, object], kind: str) -> None:
    """Raise `SettingError` if an option was given that only the other kind has."""
    for name, value in options.items():
        if value is not None:
            raise SettingError(
                f"{name} has no effect without the kind {kind}; give both or neither."
            )


def _of_smooth(errors: Sequence[float], **given: int | None) -> Theory:
    """What Theorem 4 says of a smooth function."""
    chosen = {name: SMOOTH[name] if value is None else value for name, value in given.items()}
    d, s, n_layers = chosen.values()
    product = f"2 (L - 1) d = {2 * (n_layers - 1) * d}"
    never = f"For small errors the deep network costs more: {product} is not below {s} derivatives."
    title = f"Theorem 4: {s} derivatives, d = {d}"
    pairs = tuple(theory_of.smooth(error, **chosen) for error in errors)
    return Theory(title, pairs, theory_of.smooth_crossover(**chosen), never)


def _of_indicator(errors: Sequence[float], dimension: int | None) -> Theory:
    """What Theorem 3 says of the indicator, or what its lemmas say in one dimension."""
    if dimension is not None:
        pairs = tuple(theory_of.indicator_in(dimension, error) for error in errors)
        title = f"Lemmas 1 and 2: the indicator of a ball, d = {dimension}"
        return Theory(title, pairs, None, LEMMAS)
    pairs = tuple(theory_of.indicator(error) for error in errors)
    return Theory("Theorem 3: the indicator of a ball", pairs, theory_of.indicator_crossover())


def _measured_rows(preset: str | None, out: Path) -> list[Row] | None:
    """The rows of networks that are trained now or were trained before; None if there are none."""
    if preset is None:
        path = out / RESOURCES.name / "laptop.json"
        return stored_rows(path) if path.exists() else None
    rows: list[Row] = reproduced(Order(RESOURCES, preset, out)).numbers["rows"]
    return rows


def _data(theory: Theory) -> dict[str, Any]:
    crossover = None if theory.crossover is None else -theory.crossover / log(10)
    pairs = [_pair_data(pair) for pair in theory.pairs]
    return {"theorem": theory.title, "log10_crossover": crossover, "pairs": pairs}


def _pair_data(pair: Pair) -> dict[str, Any]:
    networks = {"shallow": _resource_data(pair.shallow), "deep": _resource_data(pair.deep)}
    return {"error": pair.error, **networks, "deep_is_cheaper": pair.deep_is_cheaper}


def _resource_data(resources: Resources) -> dict[str, Any]:
    """Counts as numbers, null if they exceed every float, and that of the matrices as a power."""
    logs = {name: getattr(resources, f"log_{name}") for name in COUNTS}
    counts = {
        name: None if value is None or value > LARGEST_LOG else exp(value)
        for name, value in logs.items()
    }
    sizes = {"depth": resources.depth, "layers": resources.n_layers, **counts}
    log10 = resources.log_matrices / log(10)
    return {"network": resources.network, **sizes, "log10_matrices": log10}


def _measured_data(
    rows: Sequence[Row], places: Sequence[int], errors: Sequence[float]
) -> list[dict[str, Any]]:
    return [
        {
            "dimension": place,
            "error": error,
            "depth": depth,
            **show.plain(needed(rows, place, depth, error)),
        }
        for place, error, depth in product(places, errors, DEPTHS)
    ]


def _print_theory(theory: Theory) -> None:
    names = ("error", "network", "width", "layers", "heads", "matrices", "as printed")
    rows = [
        (f"{pair.error:g}", *_cells(resources))
        for pair in theory.pairs
        for resources in (pair.shallow, pair.deep)
    ]
    show.print_columns(f"{theory.title}; every constant is 1", names, rows)
    show.output.print(theory.remark)


def _cells(resources: Resources) -> tuple[str, ...]:
    logs = [getattr(resources, f"log_{name}") for name in COUNTS]
    width, *others = ("" if value is None else number_text(value) for value in logs)
    return resources.network, width, f"{resources.n_layers:.3g}", *others


def number_text(log_value: float) -> str:
    """A count or an error, given its natural logarithm, however large or small."""
    if abs(log_value) > LARGEST_LOG:
        return f"10^{log_value / log(10):,.0f}"
    value = exp(log_value)
    if 1000 <= value < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 0.001 <= value < 1000 else f"{value:.1e}"


def _print_measured(
    rows: Sequence[Row] | None, places: Sequence[int], errors: Sequence[float]
) -> None:
    if rows is None:
        command = "icgd resources indicator --measure laptop"
        show.output.print(f"No widths are measured here; {command} takes {RESOURCES.laptop_time}.")
    elif not places:
        listed = ", ".join(map(str, dimensions(rows)))
        show.output.print(f"Widths are measured for d = {listed} only.")
    else:
        found = table(rows, places, errors)
        title = "\nMeasured, 2 layers / 3 layers: width found to suffice; heads of a training step"
        show.print_columns(title, found.names, found.rows)
