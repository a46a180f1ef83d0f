"""What compile, size and compare are told: a problem.toml, a table, and a few options.

problem.toml is what `icgd.Problem.from_data` reads, and beside it the number of steps, the
construction with its settings, and the table. docs/problem_file.md has every key. Options go into
the same data before they are read, so there is one way from a description to a problem. What is
left out comes from the table, or has a default.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli.data_options import TABLE_OPTIONS, described_source, given_options, with_lists
from icgd.cli.examples import Examples, Source, read_examples, require_within, widths_in
from icgd.cli.options import in_panel, option_name, options_of, with_options
from icgd.cli.progress import progress
from icgd.compiled import Compiled
from icgd.environment import warn
from icgd.errors import FileError, SettingError, UnknownNameError, quoted
from icgd.pipeline import compile
from icgd.problems.convergence import sized_problem
from icgd.problems.data import Domain, as_task
from icgd.problems.functions import ACTIVATIONS
from icgd.problems.losses import LOSS_NAMES, SQUARED
from icgd.problems.mlp import MLP
from icgd.problems.problem import OPTIMISERS, Problem
from icgd.problems.settings import as_row, described

DEFAULT_HIDDEN = (16,)
DEFAULT_STEPS = 20
DEFAULT_STEP_SIZE = 0.1
"""For networks and kernels. A linear model gets its own from the curvature of its table."""

DEFAULT_BOX = 3.0
DEFAULT_DOMAIN = {"x": 4.0, "y": 2.0}

SECTIONS = ("target", "update", "domain", "settings", "table", "functions")
KEYS = ("loss", "steps", "construction", "tolerance", "initial", *SECTIONS)

_problem, _table = in_panel("The problem"), in_panel("The table")


def _usual(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="problem.toml, which `icgd init` writes; options come before what it says.",
            metavar="PROBLEM.toml",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        _table(
            "Take inputs, outputs, bounds (with room for a quarter more) and the step size of a "
            "linear model from this table.",
            "--data",
            "--bounds-from",
            metavar="DATA",
        ),
    ] = None,
    hidden: Annotated[
        str | None, _problem("Widths of the hidden layers. Default: 16.", metavar="N,...,N")
    ] = None,
    activation: Annotated[
        str | None, _problem(f"Of the hidden layers: {', '.join(ACTIVATIONS)}. Default: tanh.")
    ] = None,
    loss: Annotated[
        str | None,
        _problem(
            f"One of {', '.join(LOSS_NAMES)}, or the text of a slope u(t, y) of your own, such as "
            "'tanh(t - y)'. Default: squared."
        ),
    ] = None,
    step_size: Annotated[
        float | None,
        _problem("Learning rate. Default: 0.1; of a linear model 1 / curvature of the table."),
    ] = None,
    steps: Annotated[int | None, _problem("Training steps. Default: 20; compare: 5.")] = None,
    optimiser: Annotated[
        str | None,
        _problem(
            f"One of {', '.join(OPTIMISERS)}, as torch.optim has them. Default: sgd.",
            "--optimiser",
            "--optimizer",
        ),
    ] = None,
) -> None:
    """The options for the usual case, which stay."""


PLACES = {
    "hidden": "target.hidden",
    "activation": "target.activation",
    "loss": "loss",
    "step_size": "update.step_size",
    "steps": "steps",
    "optimiser": "update.optimiser",
}
"""The keys of problem.toml that the options for the usual case are."""

FLAGS = ("biases", "intercept")
FORMER = {
    "construction": "construction",
    "tolerance": "tolerance",
    "functions": "functions",
    "x_bound": "domain.x",
    "y_bound": "domain.y",
    "score_bound": "domain.score",
    "beta1": "update.betas",
    "beta2": "update.betas",
    "examples": "settings.n_examples",
    "step_from": "table.data",
    **{
        name: f"{section}.{name}"
        for section, names in (
            ("target", "widths output_activation kernel link reduction biases intercept"),
            ("update", "box l2 l1 noise batch_size average"),
            ("update", "momentum dampening weight_decay alpha eps"),
            ("settings", "pieces registers levels grid_tokens mirrored_heads units"),
            ("settings", "unit_activation kink_width dtype"),
        )
        for name in names.split()
    },
}
"""The options of the last release, which work for one more: the keys of problem.toml they are now.

They go with everything that this module says of `FORMER`.
"""


@dataclass(frozen=True)
class Description:
    """What is trained and how, before what is left out is filled in from the table at `path`.

    `name` says where it comes from, `read` are the files that hold it.
    """

    data: Mapping[str, Any]
    name: str
    path: Path | None = None
    read: tuple[Path, ...] = ()

    @property
    def source(self) -> Source | None:
        """The table, if there is one."""
        if self.path is None:
            return None
        return described_source(self.path, self.data.get("table", {}), self.name)

    @property
    def n_steps(self) -> int | None:
        """The number of steps, if it says one."""
        return self.data.get("steps")

    def filled(self) -> tuple[Problem, Examples | None]:
        """Return the problem, with what it leaves out, and the examples of the table, if there is
        one.
        """
        source = self.source
        with described("problem"):
            target = self._target(source)
        is_linear, is_network = "link" in target, "widths" in target
        sizes = {} if is_linear else {"step_size": DEFAULT_STEP_SIZE}
        boxes = {"box": DEFAULT_BOX} if is_linear or is_network else {}
        stated = self.data.get("domain", {})
        completed = {
            **self.data,
            "target": target,
            "update": {**sizes, **boxes, **self.data.get("update", {})},
            "domain": {**DEFAULT_DOMAIN, **stated},
        }
        problem = Problem.from_data(completed)
        if source is None:
            return problem, None
        examples = read_examples(source, problem)
        found = Domain.of(examples.inputs, examples.labels)
        bounds = {name: stated.get(name, getattr(found, name)) for name in ("x", "y")}
        problem = replace(problem, domain=replace(problem.domain, **bounds))
        require_within(problem.domain, examples)
        if problem.update.step_size is None:
            task = as_task(problem, examples.inputs, examples.labels)
            problem = sized_problem(problem, task.x)
        return problem, examples

    def problem(self) -> Problem:
        """Return the problem, with what it leaves out."""
        return self.filled()[0]

    def _target(self, source: Source | None) -> dict[str, Any]:
        """Return the target with its inputs and outputs, which may be those of the table."""
        target = dict(self.data.get("target", {}))
        is_linear, is_kernel = "link" in target, not {"kernel", "heads"}.isdisjoint(target)
        if is_linear and is_kernel:
            raise SettingError(f"{self.name} has a link and a kernel in [target]; keep one.")
        if not (is_linear or is_kernel):
            known = ["hidden", *(field.name for field in fields(MLP))]
            for name in target:
                if name not in known:
                    raise UnknownNameError.of("key", name, known=known, where=" in [target]")
            if "widths" in target:
                return {name: value for name, value in target.items() if name != "hidden"}
            hidden = target.pop("hidden", list(DEFAULT_HIDDEN))
            n_inputs, n_outputs = self._widths(source, "widths = [4, 16, 1]")
            return {**target, "widths": [n_inputs, *as_row(hidden), n_outputs]}
        if "widths" in target:  # the old option said these too by widths
            widths = target.pop("widths")
            if len(widths) != 2 or (is_linear and widths[1] != 1):
                raise SettingError(
                    f"widths of a {'linear model' if is_linear else 'kernel'} are its inputs and "
                    f"{'one output' if is_linear else 'outputs'}, such as 4,1, got "
                    f"{','.join(map(str, widths))}."
                )
            target["input_width"], target["output_width"] = widths
        elif "input_width" not in target:
            n_inputs, n_outputs = self._widths(source, "input_width = 4")
            target["input_width"] = n_inputs
            target.setdefault("output_width", n_outputs)
        if is_linear:
            target.pop("output_width", None)
        return target

    def _widths(self, source: Source | None, key: str) -> tuple[int, int]:
        if source is None:
            raise SettingError(
                "How many inputs and outputs are there? Give --data, a table that has them, or "
                f"{key} under [target] in problem.toml."
            )
        return widths_in(source, str(self.data.get("loss", SQUARED.name)))

    def compiled(self) -> Compiled:
        """Return the training run, which knows how its table was read."""
        problem, examples = self.filled()
        if problem.update.step_size is None:
            raise SettingError(
                "A linear model needs a step size: give --step-size, or --data, a table whose "
                "curvature says one."
            )
        steps = DEFAULT_STEPS if self.n_steps is None else self.n_steps
        settings = self.data.get("settings", {})
        chosen, tolerance = self.data.get("construction"), self.data.get("tolerance")
        with progress("compiling"):
            made = compile(problem, chosen, n_steps=steps, tolerance=tolerance, **settings)
        return replace(made, table=self._remembered(examples))

    def _remembered(self, examples: Examples | None) -> dict[str, Any] | None:
        """Return how tables are to be read for this run."""
        table = with_lists(self.data.get("table", {}))
        if examples is None:
            return table or None
        table["standardize"] = examples.source.standardized
        if examples.has_header:  # or another order of columns would train another label
            table["target"], table["inputs"] = list(examples.label_names), list(examples.columns)
        return {**table, "codes": dict(examples.codes)} if examples.codes else table


def description_from(file: Path | None, data: Path | None, **given: Any) -> Description:
    """Return what a file and options describe together; options come before what the file says."""
    content = {} if file is None else read_problem_file(file)
    of_table = given_options({option.name: given.pop(option.name) for option in TABLE_OPTIONS})
    given = {name: value for name, value in given.items() if value is not None}
    _warn_of_former({name: value for name, value in given.items() if name in FORMER})
    step_from = given.pop("step_from", None)
    stated = content.get("update", {}).get("betas")
    betas = dict(zip(("beta1", "beta2"), stated, strict=False)) if isinstance(stated, list) else {}
    for option, value in given.items():
        _put(content, (PLACES | FORMER)[option], _value(option, value, {**betas, **given}))
    if "hidden" in given:
        content["target"].pop("widths", None)
    for option, value in of_table.items():
        _put(content, f"table.{option}", value)
    if step_from is not None:  # it had the default bounds, not those of the table
        content["domain"] = {**DEFAULT_DOMAIN, **content.get("domain", {})}
    path = data or (None if step_from is None else Path(step_from))
    if file is not None and (named := content.get("table", {}).pop("data", None)) is not None:
        path = path or file.parent / str(named)
    if file is None and path is None and of_table:
        option = option_name(next(iter(of_table)))
        raise SettingError(f"{option} has no effect without --data; give both or neither.")
    files = tuple(each for each in (file, path) if each is not None)
    return Description(content, "the options" if file is None else str(file), path, files)


def read_problem_file(path: Path) -> dict[str, Any]:
    """Return the content of a problem.toml; raise `UnknownNameError` for an unknown key."""
    content = _toml(path)
    for name, value in content.items():
        if name not in KEYS:
            raise UnknownNameError.of("key", name, known=KEYS, where=f" in {path}")
        if (name in SECTIONS) is not isinstance(value, dict):
            form = f"a table, [{name}]" if name in SECTIONS else f"one value, {name} = ..."
            raise SettingError(f"{name} in {path} must be {form}, got {quoted(value)}.")
    return content


def _toml(path: Path) -> dict[str, Any]:
    if path.suffix.lower() in (".csv", ".gz", ".parquet", ".arrow"):
        raise FileError(f"{path} is a table, not a problem.toml. Give it as --data {path}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
        ) from None


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Write a value to its place, such as domain.x."""
    *sections, name = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
    content[name] = value


def _value(option: str, value: Any, given: Mapping[str, Any]) -> Any:
    """Return what an option says, as problem.toml has it."""
    match option:
        case "hidden" | "widths":
            try:
                return [int(width) for width in value.split(",") if value.strip()]
            except ValueError:
                raise SettingError(
                    f"{option_name(option)} must be whole numbers joined by commas, such as "
                    f"16,16, got {quoted(value)}."
                ) from None
        case "functions":
            if not (functions := _toml(Path(value)).get("functions")):
                raise SettingError(f"{value} has no table [functions.NAME], such as [functions.f].")
            return functions
        case "beta1" | "beta2":
            return [_plain(given.get("beta1", "0.9")), _plain(given.get("beta2", "0.999"))]
    return _plain(value) if option in FORMER else value


def _plain(text: Any) -> Any:
    """Return the number in a text, or its numbers if it has several, or the text itself."""
    try:
        numbers = json.loads(f"[{text}]")
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers


def _warn_of_former(given: Mapping[str, Any]) -> None:
    """Say in one line where old options go in problem.toml."""
    if not given:
        return
    lines = []
    for option, value in given.items():
        *section, key = FORMER[option].split(".")
        text = "..." if option in ("functions", "step_from") else _value(option, value, given)
        place = f"under [{section[0]}]" if section else "at the top"
        lines.append(f"{key} = {json.dumps(text)} {place} ({option_name(option)})")
    warn(
        FutureWarning(
            "Write these into problem.toml, which `icgd init DATA` makes; their options go with "
            f"the next release: {', '.join(lines)}."
        )
    )


def takes_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what describes a problem in place of its parameter `described`."""
    former = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                bool | None if name in FLAGS else str | None,
                typer.Option(option_name(name), hidden=True),
            ],
        )
        for name in FORMER
    ]
    options = (*options_of(_usual), *TABLE_OPTIONS, *former)
    return with_options(command, "described", options, description_from)
