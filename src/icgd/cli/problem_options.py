"""The options that describe a problem and its training run, shared by several subcommands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

from icgd.cli.fitting import fitted_to
from icgd.cli.linear_options import LinearOptions, refuse_beside
from icgd.cli.optimiser_options import ADAMW_DECAY, OPTIMISERS, OptimiserOptions
from icgd.cli.options import in_panel, options_of
from icgd.cli.progress import progress
from icgd.cli.writing import require_writable
from icgd.compiled import Compiled
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import FileError, SettingError, brief
from icgd.pipeline import compile
from icgd.problems.data import DTYPES, Domain
from icgd.problems.functions import ACTIVATIONS, UNIT_ACTIVATIONS, functions_in
from icgd.problems.kernel_machine import KERNELS, KernelMachine
from icgd.problems.linear_model import LINKS, REDUCTIONS
from icgd.problems.losses import LOSS_NAMES, Loss
from icgd.problems.mlp import MLP
from icgd.problems.piecewise import Function, is_written
from icgd.problems.problem import Problem
from icgd.problems.steps import FunctionalStep

_network, _linear = in_panel("The network"), in_panel("A linear model")
_training, _building = in_panel("Its training"), in_panel("The transformer")
_optimiser = in_panel("The optimiser of a network")

DEFAULT_STEP_SIZE = 0.1
"""For networks and kernels. A linear model has no default: its data decide what converges."""

DEFAULT_BOX = 3.0

_WIDTHS = "Widths from the input to the output, joined by commas."
_ACTIVATION = f"Activation of the hidden layers: {', '.join(ACTIVATIONS)}. Default: tanh."
_FUNCTIONS = "A TOML file with a table [functions.NAME] for each activation or link of your own."
_KERNEL = f"Train the function of a kernel instead (widths: inputs, outputs): {', '.join(KERNELS)}."
_LINK = f"Train a linear model of this link instead (widths: inputs, 1): {', '.join(LINKS)}."
_REDUCTION = f"What is made of the examples' losses: {' or '.join(REDUCTIONS)}. Default: mean."
_SCORE = "Largest size of a score <w, x> (domain.score). Default: what box and inputs allow."
_STEP_SIZE = "Learning rate. Default: 0.1; a linear model needs this or --step-from."
_BOX = "After every step each weight is clipped to ±box; 2,1,0.5 is one for each layer. Default: 3."
_X_BOUND = "Largest size of an input (domain.x). Default: 4, or from --bounds-from."
_Y_BOUND = "Largest size of a label (domain.y). Default: 2, or from --bounds-from."
_OPTIMISER = f"One of {', '.join(OPTIMISERS)}, as torch.optim has them. Default: sgd."
_DECAY = f"Added to the gradient, times the weights. Default: 0; adamw {ADAMW_DECAY}, by itself."
_AVERAGE = "Predict with an average of the weights that keeps this much in a step. Default: none."
_NOISE = "With --kernel: added to the kernel where an example meets itself (ridge)."
_CONSTRUCTION = (
    f"One of {', '.join(CONSTRUCTIONS)}. Default: the smallest that is accurate to rounding, or "
    "that proves --tolerance."
)
_LOSS = (
    f"One of {', '.join(LOSS_NAMES)}, or the text of a slope u(t, y) of your own, such as "
    "'tanh(t - y)'. Default: squared."
)
_TOLERANCE = "Instead of pieces, registers, levels or units: prove that no step errs by more."

SETTINGS: dict[str, tuple[type, str]] = {
    "pieces": (int, "relu-stack: linear pieces of every smooth function. Default: 64."),
    "registers": (int, "softmax-stack: registers of its look-ups. Default: full accuracy."),
    "levels": (int, "universal: levels of every entry in its table. Default: 4."),
    "n_examples": (
        int,
        "universal, cot-ridge, cot-lasso, cot-glm: examples in every prompt. Default of universal: "
        "2.",
    ),
    "grid_tokens": (int, "cot-glm: tokens of a head whose function has a kink. Default: 256."),
    "mirrored_heads": (
        int,
        "linear-stack: heads of pure softmax attention for the gradient, 1 to 4, in place of two "
        "with ReLUs. Default: 0.",
    ),
    "units": (int, "recursion: units of every function at most. Default: 200."),
    "unit_activation": (
        str,
        "recursion: what heads and hidden units apply, one of "
        f"{', '.join(UNIT_ACTIVATIONS)}. Default: the network's own.",
    ),
    "kink_width": (
        float,
        "Width of the ramp in place of a jump, a power of two. Default: so narrow that hardly any "
        "number lies on it; recursion and universal 2^-13.",
    ),
    "dtype": (
        str,
        "softmax-stack, recursion, cot-network: the arithmetic that it is made for, "
        f"{' or '.join(DTYPES)}. Default: float64.",
    ),
}
"""The settings of constructions: what each is, and its help."""

Steps = Annotated[int, _training("Gradient steps.")]


def problem_from(
    widths: Annotated[str, _network(_WIDTHS, metavar="N,...,N")],
    activation: Annotated[str | None, _network(_ACTIVATION)] = None,
    output_activation: Annotated[
        str | None, _network("Activation of the last layer. Default: identity.")
    ] = None,
    functions: Annotated[Path | None, _network(_FUNCTIONS)] = None,
    biases: Annotated[bool, _network("Every layer has biases.", "--biases")] = False,
    kernel: Annotated[str | None, _network(_KERNEL)] = None,
    link: Annotated[str | None, _linear(_LINK)] = None,
    intercept: Annotated[
        bool, _linear("Add a constant, which no penalty applies to.", "--intercept")
    ] = False,
    l2: Annotated[float | None, _linear("Penalty (l2 / 2) |w|^2. Default: 0.")] = None,
    l1: Annotated[float | None, _linear("Penalty l1 sum |w_j|. Default: 0.")] = None,
    reduction: Annotated[str | None, _linear(_REDUCTION)] = None,
    score_bound: Annotated[float | None, _linear(_SCORE)] = None,
    loss: Annotated[str | None, _training(_LOSS)] = None,
    step_size: Annotated[float | None, _training(_STEP_SIZE)] = None,
    box: Annotated[str | None, _training(_BOX, metavar="B,...,B")] = None,
    batch_size: Annotated[
        int | None, _training("Examples of a step, taken in turn. Default: all.")
    ] = None,
    optimiser: Annotated[str | None, _optimiser(_OPTIMISER, "--optimiser", "--optimizer")] = None,
    momentum: Annotated[
        float | None, _optimiser("momentum, nesterov: how much is kept. Default: 0.9.")
    ] = None,
    dampening: Annotated[
        float | None, _optimiser("momentum: how much of the gradient is left out. Default: 0.")
    ] = None,
    weight_decay: Annotated[float | None, _optimiser(_DECAY)] = None,
    beta1: Annotated[
        float | None, _optimiser("adam, adamw: kept of the mean gradient. Default: 0.9.", "--beta1")
    ] = None,
    beta2: Annotated[
        float | None, _optimiser("adam, adamw: kept of its square. Default: 0.999.", "--beta2")
    ] = None,
    alpha: Annotated[
        float | None, _optimiser("rmsprop: kept of the mean square. Default: 0.99.")
    ] = None,
    eps: Annotated[
        float | None, _optimiser("adam, adamw, rmsprop: added to the root. Default: 0.001.")
    ] = None,
    average: Annotated[float | None, _optimiser(_AVERAGE)] = None,
    noise: Annotated[float, _training(_NOISE)] = 0.0,
    x_bound: Annotated[float | None, _training(_X_BOUND)] = None,
    y_bound: Annotated[float | None, _training(_Y_BOUND)] = None,
) -> Problem:
    """The problem that the options describe."""
    sizes = parse_widths(widths)
    domain = Domain(4.0 if x_bound is None else x_bound, 2.0 if y_bound is None else y_bound)
    linear = LinearOptions(intercept, l2, l1, reduction, score_bound)
    chosen = OptimiserOptions(
        optimiser, momentum, dampening, weight_decay, beta1, beta2, alpha, eps, average
    )
    if noise and kernel is None:
        raise SettingError("--noise has no effect without --kernel; give both or neither.")
    of_networks = {
        "--activation": activation,
        "--output-activation": output_activation,
        "--biases": biases or None,
        "--batch-size": batch_size,
        **chosen.given(),
    }
    boxes = (DEFAULT_BOX,) if box is None else parse_boxes(box)
    own = {} if functions is None else _functions_of(functions)
    if link is not None:
        refuse_beside("--link", {"--kernel": kernel, **of_networks, "--loss": loss})
        link_itself, one_box = own.get(link, link), _one_box(boxes, "--link")
        return linear.problem(link_itself, sizes, step_size, one_box, domain)
    linear.refuse()
    loss, step_size = loss or "squared", DEFAULT_STEP_SIZE if step_size is None else step_size
    if kernel is not None:
        refuse_beside("--kernel", {**of_networks, "--functions": functions, "--box": box})
        return Problem(_machine(sizes, kernel), loss, FunctionalStep(step_size, noise), domain)
    hidden, output = activation or "tanh", output_activation or "identity"
    target = MLP(sizes, own.get(hidden, hidden), own.get(output, output), biases)
    box_or_boxes = boxes if len(boxes) > 1 else boxes[0]
    update = chosen.update(step_size, box_or_boxes, batch_size)
    is_slope = re.search(r"\bt\b", loss) is not None and not is_written(loss)
    return Problem(target, Loss(loss) if is_slope else loss, update, domain)


def compiled_from(
    problem: Problem,
    steps: Steps = 20,
    construction: Annotated[str | None, _building(_CONSTRUCTION)] = None,
    tolerance: Annotated[float | None, _building(_TOLERANCE)] = None,
    **settings: Any,
) -> Compiled:
    """The training run that the options describe; a setting that is None is left to its default."""
    given = {name: value for name, value in settings.items() if value is not None}
    with progress("compiling"):
        return compile(problem, construction, n_steps=steps, tolerance=tolerance, **given)


@cache
def run_options() -> tuple[Parameter, ...]:
    """The options of a training run beyond those of its problem and of a table."""
    own = options_of(compiled_from)[1:-1]
    return *own, *(_setting(name, kind, text) for name, (kind, text) in SETTINGS.items())


def _setting(name: str, kind: Any, text: str) -> Parameter:
    option = _building(text, f"--{name.removeprefix('n_').replace('_', '-')}")
    how = Parameter.KEYWORD_ONLY
    return Parameter(name, how, default=None, annotation=Annotated[kind | None, option])


def _functions_of(path: Path) -> dict[str, Function]:
    """The functions that a TOML file defines."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"Cannot read {path}: {error}.") from None
    if not (found := functions_in(content.get("functions", {}))):
        raise SettingError(f"{path} has no table [functions.NAME], such as [functions.swish].")
    return found


def _machine(widths: tuple[int, ...], kernel: str) -> KernelMachine:
    if len(widths) != 2:
        raise SettingError(
            f"widths has {len(widths)} entries; expected 2 with --kernel: inputs and outputs, such "
            "as 4,1."
        )
    return KernelMachine(widths[0], kernel, widths[1])


def parse_widths(text: str) -> tuple[int, ...]:
    """The text `4,16,1` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingError(
            f"--widths must be whole numbers joined by commas, such as 4,16,1, got {brief(text)}."
        ) from None


def parse_boxes(text: str) -> tuple[float, ...]:
    """The text `2` or `2,1,0.5` as numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SettingError(
            "--box must be a positive number, or one for each layer joined by commas, such as "
            f"2,1,0.5, got {brief(text)}."
        ) from None


def _one_box(boxes: tuple[float, ...], chosen: str) -> float:
    if len(boxes) > 1:
        raise SettingError(
            f"--box has {len(boxes)} numbers, one for each layer of a network; with {chosen} give "
            "one."
        )
    return boxes[0]


def takes_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a problem in place of its first parameter."""
    return _with_options(command, options_of(problem_from), problem_from)


def takes_training_run(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a compiled training run in place of its first parameter."""
    of_table = options_of(fitted_to)[2:]

    def make(**given: Any) -> Compiled:
        chosen = {option.name: given.pop(option.name) for option in run_options()}
        table = {option.name: given.pop(option.name) for option in of_table}
        stated = {name: given[name] for name in ("x_bound", "y_bound")}
        return compiled_from(fitted_to(problem_from(**given), stated, **table), **chosen)

    options = (*options_of(problem_from), *of_table, *run_options())
    compiling = _with_options(command, options, make)

    @wraps(compiling)
    def checking_first(**given: Any) -> None:
        require_writable(given.get("out"), read=(given["bounds_from"], given["step_from"]))
        compiling(**given)

    return checking_first


def _with_options(
    command: Callable[..., None], options: tuple[Parameter, ...], make: Callable[..., Any]
) -> Callable[..., None]:
    """The command with these options; typer reads them from the signature, which joins both."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        made = make(**{option.name: given.pop(option.name) for option in options})
        command(made, **given)

    parameters = [*options, *options_of(command)[1:]]
    keyword_only = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
    with_options.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    return with_options
