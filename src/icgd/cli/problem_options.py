"""The options that describe a training run, shared by `compile` and `size`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from icgd.cli.linear_options import (
    L1,
    L2,
    Intercept,
    LinearOptions,
    LinkName,
    Reduction,
    ScoreBound,
    StepFrom,
    StepLabel,
    linear_problem,
    refuse_beside,
    sized_by,
)
from icgd.cli.progress import progress
from icgd.compiled import Compiled
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import SettingError
from icgd.pipeline import compile
from icgd.problems.activations import ACTIVATIONS
from icgd.problems.arrays import DTYPES
from icgd.problems.domain import Domain
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.kernels import KERNELS
from icgd.problems.losses import LOSSES
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.unit_activations import UNIT_ACTIVATIONS
from icgd.problems.updates import FunctionalStep, GradientStep

NETWORK, TRAINING, BUILDING = "The network", "Its training", "The transformer"

DEFAULT_STEP_SIZE = 0.1
"""Of networks and kernels; a linear model's must be said, for it decides whether it converges."""

Widths = Annotated[
    str,
    typer.Option(
        help="Widths from the input to the output, joined by commas.",
        metavar="N,...,N",
        rich_help_panel=NETWORK,
    ),
]
ActivationName = Annotated[
    str | None,
    typer.Option(
        "--activation",
        help=f"Activation of the hidden layers: {', '.join(ACTIVATIONS)}; tanh unless said.",
        rich_help_panel=NETWORK,
    ),
]
OutputActivationName = Annotated[
    str | None,
    typer.Option(
        "--output-activation",
        help="Activation of the last layer; identity unless said.",
        rich_help_panel=NETWORK,
    ),
]
Biases = Annotated[
    bool,
    typer.Option("--biases", help="Every layer has biases.", rich_help_panel=NETWORK),
]
KernelName = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        help="Train the function of a kernel instead of a network (widths: inputs, outputs): "
        f"{', '.join(KERNELS)}.",
        rich_help_panel=NETWORK,
    ),
]
Noise = Annotated[
    float,
    typer.Option(
        help="With --kernel: added to the kernel where an example meets itself (ridge).",
        rich_help_panel=TRAINING,
    ),
]
LossName = Annotated[
    str | None,
    typer.Option(
        "--loss",
        help=f"One of {', '.join(LOSSES)}; squared unless said.",
        rich_help_panel=TRAINING,
    ),
]
StepSize = Annotated[
    float | None,
    typer.Option(
        help="Learning rate; 0.1 unless said, but a linear model needs one.",
        rich_help_panel=TRAINING,
    ),
]
Box = Annotated[
    float,
    typer.Option(help="After every step each weight is clipped to ±box.", rich_help_panel=TRAINING),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Examples of a step, taken in turn; all of them unless said.",
        rich_help_panel=TRAINING,
    ),
]
XBound = Annotated[
    float, typer.Option(help="Largest size of an input (domain.x).", rich_help_panel=TRAINING)
]
YBound = Annotated[
    float, typer.Option(help="Largest size of a label (domain.y).", rich_help_panel=TRAINING)
]
Steps = Annotated[int, typer.Option(help="Gradient steps.", rich_help_panel=TRAINING)]
ConstructionName = Annotated[
    str | None,
    typer.Option(
        "--construction",
        help=f"One of {', '.join(CONSTRUCTIONS)}. Default: the smallest that is accurate to "
        "rounding, or that proves --tolerance.",
        rich_help_panel=BUILDING,
    ),
]
Pieces = Annotated[
    int | None,
    typer.Option(
        help="relu-stack: linear pieces of every smooth function; 64 unless said.",
        rich_help_panel=BUILDING,
    ),
]
Registers = Annotated[
    int | None,
    typer.Option(
        help="softmax-stack: registers of its look-ups; enough for full accuracy unless said.",
        rich_help_panel=BUILDING,
    ),
]
Levels = Annotated[
    int | None,
    typer.Option(
        help="universal: levels of every entry in its table; 4 unless said.",
        rich_help_panel=BUILDING,
    ),
]
Examples = Annotated[
    int | None,
    typer.Option(
        help="Examples in every prompt of universal (default 2).",
        rich_help_panel=BUILDING,
    ),
]
Units = Annotated[
    int | None,
    typer.Option(
        help="recursion: units of every function at most; 200 unless said.",
        rich_help_panel=BUILDING,
    ),
]
UnitActivationName = Annotated[
    str | None,
    typer.Option(
        "--unit-activation",
        help=f"recursion: what heads and hidden units apply, one of {', '.join(UNIT_ACTIVATIONS)}; "
        "the network's own unless said.",
        rich_help_panel=BUILDING,
    ),
]
KinkWidth = Annotated[
    float | None,
    typer.Option(
        help="Width of the ramp that stands in for a jump, a power of two. Default: 2^-13, and "
        "2^-30 in cot-network.",
        rich_help_panel=BUILDING,
    ),
]
MadeFor = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="softmax-stack, recursion, cot-network: the arithmetic that it is made for, "
        f"{' or '.join(DTYPES)}. Default: float64.",
        rich_help_panel=BUILDING,
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="Instead of pieces, registers, levels or units: as many as prove that no step errs "
        "by more.",
        rich_help_panel=BUILDING,
    ),
]


def problem_from(
    widths: Widths,
    activation: ActivationName = None,
    output_activation: OutputActivationName = None,
    biases: Biases = False,
    kernel: KernelName = None,
    link: LinkName = None,
    intercept: Intercept = False,
    l2: L2 = None,
    l1: L1 = None,
    reduction: Reduction = None,
    score_bound: ScoreBound = None,
    loss: LossName = None,
    step_size: StepSize = None,
    box: Box = 3.0,
    batch_size: BatchSize = None,
    noise: Noise = 0.0,
    x_bound: XBound = 4.0,
    y_bound: YBound = 2.0,
) -> Problem:
    """The problem that the options describe."""
    sizes, linear = parse_widths(widths), LinearOptions(intercept, l2, l1, reduction, score_bound)
    if noise and kernel is None:
        raise SettingError.without("noise", "--kernel")
    of_networks = {
        "--activation": activation,
        "--output-activation": output_activation,
        "--biases": biases or None,
        "--batch-size": batch_size,
    }
    if link is not None:
        refuse_beside("--link", {"--kernel": kernel, **of_networks, "--loss": loss})
        bounds = {"box": box, "x_bound": x_bound, "y_bound": y_bound}
        return linear_problem(link, sizes, linear, step_size=step_size, **bounds)
    linear.refuse()
    domain, loss = Domain(x_bound, y_bound), loss or "squared"
    step_size = DEFAULT_STEP_SIZE if step_size is None else step_size
    if kernel is not None:
        refuse_beside("--kernel", of_networks)
        return Problem(_machine(sizes, kernel), loss, FunctionalStep(step_size, noise), domain)
    target = MLP(sizes, activation or "tanh", output_activation or "identity", biases)
    return Problem(target, loss, GradientStep(step_size, box, batch_size), domain)


def compiled_from(
    problem: Problem,
    step_from: StepFrom = None,
    label: StepLabel = None,
    steps: Steps = 20,
    construction: ConstructionName = None,
    pieces: Pieces = None,
    registers: Registers = None,
    levels: Levels = None,
    examples: Examples = None,
    units: Units = None,
    unit_activation: UnitActivationName = None,
    kink_width: KinkWidth = None,
    dtype: MadeFor = None,
    tolerance: Tolerance = None,
) -> Compiled:
    """The training run that the options describe."""
    problem = sized_by(problem, step_from, label)
    options = {
        "pieces": pieces,
        "registers": registers,
        "levels": levels,
        "n_examples": examples,
        "units": units,
        "unit_activation": unit_activation,
        "kink_width": kink_width,
        "dtype": dtype,
    }
    settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    with progress("compiling"):
        return compile(problem, construction, n_steps=steps, tolerance=tolerance, **settings)


def _machine(widths: tuple[int, ...], kernel: str) -> KernelMachine:
    if len(widths) != 2:
        expected = "2 with --kernel: inputs and outputs, such as 4,1"
        raise SettingError.wrong_length("widths", len(widths), expected)
    return KernelMachine(widths[0], kernel, widths[1])


def parse_widths(text: str) -> tuple[int, ...]:
    """The text `4,16,1` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingError.not_joined("--widths", "whole numbers", "4,16,1", text) from None


def takes_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a problem in place of its first parameter."""
    return _with_options(command, _options(problem_from), problem_from)


def takes_training_run(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a compiled training run in place of its first parameter."""
    building = _options(compiled_from)[1:]

    def make(**given: Any) -> Compiled:
        chosen = {option.name: given.pop(option.name) for option in building}
        return compiled_from(problem_from(**given), **chosen)

    return _with_options(command, [*_options(problem_from), *building], make)


def _options(function: Callable[..., Any]) -> list[Parameter]:
    return list(signature(function, eval_str=True).parameters.values())


def _with_options(
    command: Callable[..., None], options: list[Parameter], make: Callable[..., Any]
) -> Callable[..., None]:
    """typer reads options from a signature, so that of the result joins both."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        made = make(**{option.name: given.pop(option.name) for option in options})
        command(made, **given)

    parameters = [*options, *_options(command)[1:]]
    keyword_only = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
    with_options.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    return with_options
