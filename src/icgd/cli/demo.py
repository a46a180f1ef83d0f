"""`icgd demo`: compile, run, verify and draw a training run on real data, in a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.cars_demo import Result, Settings, numbers, picture
from icgd.cli.options import AsJson, output
from icgd.cli.progress import progress
from icgd.cli.writing import make_folder, write_file
from icgd.pictures import plotting

SETTINGS = Settings()


def demo(
    out: Annotated[Path, output("Folder for demo.png and demo.json.")] = Path("icgd-demo"),
    as_json: AsJson = False,
) -> None:
    """Train a network on real cars in a transformer's forward pass, and check it.

    It needs no arguments.

    Example: icgd demo --output icgd-demo
    """
    make_folder(out)
    with progress("training, checking, timing") as on_progress:
        result = numbers(SETTINGS, on_progress)
        figure = plotting.png(picture(result))
    data = show.json_text(_data(result))
    write_file(out / "demo.png", figure)
    write_file(out / "demo.json", f"{data}\n".encode())
    if as_json:
        typer.echo(data)
    else:
        _print(result)
        typer.echo(f"Saved {out / 'demo.png'} and {out / 'demo.json'}")


def _data(result: Result) -> dict[str, Any]:
    return {
        **show.plain(result),
        "problem": result.settings.problem.to_data(),
        "summary": show.summary_data(result.summary),
        "report": show.report_data(result.report),
        "transformer_rmse": result.transformer_rmse,
        "descent_rmse": result.descent_rmse,
    }


def _print(result: Result) -> None:
    show.output.print(_story(result))
    show.print_summary(result.summary)
    show.print_report(result.report)
    learnt = (
        ("transformer", result.transformer_losses, result.transformer_rmse),
        ("real gradient descent", result.descent_losses, result.descent_rmse),
    )
    show.print_columns(
        "What was learnt",
        ("", "loss before", "loss after", "error on held-out cars"),
        [
            (name, f"{losses[0]:.5f}", f"{losses[-1]:.5f}", f"{rmse:.3f} mpg")
            for name, losses, rmse in learnt
        ],
    )
    seconds, n_steps = result.seconds, result.settings.n_steps
    difference = show.error_text(result.fused_difference)
    times = (
        ("compile", seconds.compile, ""),
        (f"gradient descent, {n_steps} steps", seconds.descent, "torch.autograd"),
        (f"transformer, {n_steps} steps", seconds.literal, "literal: every head is computed"),
        (f"its fast twin, {n_steps} steps", seconds.transformer, f"fused: within {difference}"),
    )
    texts = [(name, f"{show.seconds_text(time):<9} {remark}") for name, time, remark in times]
    show.print_rows("Times, on one thread", texts)


def _story(result: Result) -> str:
    """Return the introduction to the numbers."""
    settings, n_held_out = result.settings, len(result.predictions)
    widths = "-".join(str(width) for width in settings.problem.network.widths)
    return (
        f"A {widths} {settings.activation} network learns the miles per gallon of a car from "
        "weight, horsepower and quarter-mile time (Motor Trend 1974: "
        f"{result.summary.n_tokens - n_held_out} cars to learn from, {n_held_out} held out). "
        f"Its {settings.n_steps} steps of gradient descent become the weights of a transformer: "
        "the prompt holds the cars and the initial weights, and one forward pass trains the "
        "network and predicts.\n"
    )
