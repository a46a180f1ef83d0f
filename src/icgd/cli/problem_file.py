"""What compile, size and compare read: a problem.toml, a table, and a few options.

problem.toml has what `icgd.Problem.from_data` reads, the number of steps, the construction with its
settings, and the table; docs/problem_file.md has every key. Options are written into the same data
first, so there is one way from a description to a problem. Keys that are left out come from the
table, or have a default.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli.data_options import (
    TABLE_OPTIONS,
    Source,
    described_source,
    given_options,
    is_table,
)
from icgd.cli.examples import (
    Examples,
    loss_for,
    read_examples,
    require_within,
    widths_in,
)
from icgd.cli.options import in_panel, in_users_words, option_name, options_of, with_options
from icgd.cli.progress import progress
from icgd.compiled import Compiled
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.environment import warn
from icgd.errors import FileError, SettingError, UnknownNameError, quoted
from icgd.pipeline import compile
from icgd.problems.convergence import sized_problem
from icgd.problems.data import Domain, as_task
from icgd.problems.functions import ACTIVATIONS
from icgd.problems.losses import CROSS_ENTROPY, LOGISTIC, LOSS_NAMES, SQUARED
from icgd.problems.mlp import MLP
from icgd.problems.problem import OPTIMISERS, Problem
from icgd.problems.settings import MOST_STEPS, as_row, count

DEFAULT_HIDDEN = (16,)
DEFAULT_STEPS, COMPARED_STEPS = 20, 5
DEFAULT_STEP_SIZE = 0.1
"""For networks and kernels. A linear model gets its own from the curvature of its table."""

DEFAULT_BOX = 3.0
DEFAULT_DOMAIN = {"x": 4.0, "y": 2.0}

SECTIONS = ("target", "update", "domain", "settings", "table", "functions")
TOP_KEYS = ("loss", "steps", "construction", "tolerance", "initial")
KEYS = (*TOP_KEYS, *SECTIONS)

_problem, _table = in_panel("The problem"), in_panel("The table")


File = Annotated[
    Path | None,
    typer.Argument(
        help="Description of the problem, which `icgd init` writes. Options replace its keys.",
        metavar="PROBLEM.toml",
    ),
]
TableFile = Annotated[
    Path | None,
    _table(
        "Take inputs, outputs, bounds (with room for a quarter more) and the step size of a linear "
        "model from this table.",
        "--data",
        "--bounds-from",
        metavar="DATA",
    ),
]

USUAL: dict[str, tuple[str, type, str]] = {
    "hidden": (
        "target.hidden",
        str,
        f"Widths of the hidden layers. Default: {','.join(map(str, DEFAULT_HIDDEN))}.",
    ),
    "activation": (
        "target.activation",
        str,
        f"Activation of the hidden layers: {', '.join(ACTIVATIONS)}. Default: {MLP.activation}.",
    ),
    "loss": (
        "loss",
        str,
        f"One of {', '.join(LOSS_NAMES)}, or the text of a slope u(t, y) of your own, such as "
        f"'tanh(t - y)'. Default: {SQUARED.name}, or {LOGISTIC.name} or {CROSS_ENTROPY.name} for "
        "labels that are texts.",
    ),
    "step_size": (
        "update.step_size",
        float,
        f"Learning rate. Default: {DEFAULT_STEP_SIZE}; of a linear model 1 / curvature of the "
        "table.",
    ),
    "steps": (
        "steps",
        int,
        f"Training steps. Default: {DEFAULT_STEPS}; compare: {COMPARED_STEPS}.",
    ),
    "optimiser": (
        "update.optimiser",
        str,
        f"One of {', '.join(OPTIMISERS)}, as in torch.optim. Default: sgd.",
    ),
}
"""The options for the usual case: the key of problem.toml, the type and the help of each."""

NAMES = {"optimiser": ("--optimiser", "--optimizer")}
METAVARS = {"hidden": "N,...,N"}

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
"""The options of the last release, which work for one more, and the keys that replace them."""

PLACES = (
    {name: key for name, (key, *_) in USUAL.items()}
    | FORMER
    | {option.name: f"table.{option.name}" for option in TABLE_OPTIONS}
)
"""The key of problem.toml that each option stands for."""


@dataclass(frozen=True)
class Description:
    """What is trained and how; the table at `path` fills in what is left out.

    `data` is the content of `file`, if there is one, and of the options that were given. `given`
    has those options by their keys, such as {"update.step_size": "step_size"}.
    """

    data: Mapping[str, Any]
    file: str | None
    path: Path | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def read(self) -> tuple[Path, ...]:
        """The files that it was read from."""
        return tuple(Path(path) for path in (self.file, self.path) if path is not None)

    @property
    def source(self) -> Source:
        """How its table is read."""
        options = self.data.get("table", {})
        given = [name for name in options if f"table.{name}" in self.given]
        return described_source(self.path or Path(), options, self.file, given)

    def _in_users_words(self) -> AbstractContextManager[None]:
        return in_users_words(self.file, self.given, self.data)

    def n_steps(self, default: int = DEFAULT_STEPS) -> int:
        """Return the number of steps, or `default` if none is given."""
        with self._in_users_words():
            return count("steps", self.data.get("steps", default), least=0, most=MOST_STEPS)

    def filled(self) -> tuple[Problem, Examples | None]:
        """Return the problem with what it leaves out, and the examples of the table, if any."""
        source = self.source
        stated = self.data.get("domain", {})
        with self._in_users_words():
            target = self._target(source)
            is_linear, is_network = "link" in target, "widths" in target
            update = {} if is_linear else {"step_size": DEFAULT_STEP_SIZE}
            update |= {"box": DEFAULT_BOX} if is_linear or is_network else {}
            completed = {
                **self.data,
                **({"loss": self._loss(source)} if is_network else {}),
                "target": target,
                "update": {**update, **self.data.get("update", {})},
                "domain": {**DEFAULT_DOMAIN, **stated},
            }
            problem = Problem.from_data(completed)
        if self.path is None:
            return problem, None
        examples = read_examples(source, problem)
        of_table = Domain.of(examples.inputs, examples.labels)
        bounds = {name: stated.get(name, getattr(of_table, name)) for name in ("x", "y")}
        problem = replace(problem, domain=replace(problem.domain, **bounds))
        require_within(problem.domain, examples)
        if problem.update.step_size is None:
            task = as_task(problem, examples.inputs, examples.labels)
            problem = sized_problem(problem, task.x)
        return problem, examples

    def problem(self) -> Problem:
        """Return the problem, with what it leaves out."""
        return self.filled()[0]

    def _target(self, source: Source) -> dict[str, Any]:
        """Return the target with its inputs and outputs, which may be those of the table."""
        target = dict(self.data.get("target", {}))
        is_linear, is_kernel = "link" in target, not {"kernel", "heads"}.isdisjoint(target)
        if is_linear and is_kernel:
            raise SettingError(
                "link makes a linear model and kernel a kernel machine. Keep one of them."
            )
        if not (is_linear or is_kernel):
            known = ["hidden", *(key.name for key in fields(MLP))]
            for name in target:
                if name not in known:
                    raise UnknownNameError.of("key", name, known=known, where=" in [target]")
            if "widths" in target:
                if "hidden" in target:
                    raise SettingError("hidden is a part of widths. Keep one of them.")
                return target
            hidden = [
                count(f"hidden[{place}]", width)
                for place, width in enumerate(as_row(target.pop("hidden", DEFAULT_HIDDEN)))
            ]
            n_inputs, n_outputs = self._widths(source, "widths = [4, 16, 1]")
            return {**target, "widths": [n_inputs, *hidden, n_outputs]}
        if "widths" in target:  # the old option gave inputs and outputs by widths too
            widths = as_row(target.pop("widths"))
            if len(widths) != 2 or (is_linear and widths[1] != 1):
                raise SettingError(
                    f"widths of a {'linear model' if is_linear else 'kernel'} must be "
                    f"its inputs and {'one output' if is_linear else 'outputs'}, such as 4,1, got "
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

    def _widths(self, source: Source, key: str) -> tuple[int, int]:
        if self.path is None:
            raise SettingError(
                "How many inputs and outputs are there? Give a table that has them (--data, or "
                f"data under [table] in problem.toml), or {key} under [target]."
            )
        return widths_in(source, self._loss(source))

    def _loss(self, source: Source) -> Any:
        """Return the loss of a network: by default the one that suits the labels of the table."""
        if "loss" in self.data or self.path is None:
            return self.data.get("loss", SQUARED.name)
        return loss_for(source)[0]

    def compiled(self) -> Compiled:
        """Return the training run, which knows how its table was read."""
        steps, settings = self.n_steps(), self.data.get("settings", {})
        problem, examples = self.filled()
        if problem.update.step_size is None:
            raise SettingError(
                "A linear model needs a step size: give --step-size, or a table with --data, "
                "which has a curvature to take it from."
            )
        chosen, tolerance = self.data.get("construction"), self.data.get("tolerance")
        with progress("compiling"), self._in_users_words():
            made = compile(problem, chosen, n_steps=steps, tolerance=tolerance, **settings)
        return replace(made, table=self._remembered(examples))

    def _remembered(self, examples: Examples | None) -> dict[str, Any] | None:
        """Return how tables are to be read for this run."""
        source, stated = self.source, self.data.get("table", {})
        table: dict[str, Any] = {
            name: list(getattr(source, name)) if name in ("target", "ignore") else value
            for name, value in stated.items()
        }
        if examples is None:
            return table or None
        table["standardize"] = bool(source.standardize)
        if examples.has_header:  # or another order of columns would train another label
            table["target"], table["inputs"] = list(examples.label_names), list(examples.columns)
        return {**table, "codes": dict(examples.codes)} if examples.codes else table


def description_from(file: File = None, data: TableFile = None, **options: Any) -> Description:
    """Return what a file and options describe together; options replace keys of the file."""
    content = {} if file is None else read_problem_file(file)
    table = given_options({option.name: options.pop(option.name) for option in TABLE_OPTIONS})
    given = {name: value for name, value in options.items() if value is not None}
    _warn_of_former({name: value for name, value in given.items() if name in FORMER})
    step_from = given.pop("step_from", None)
    stated = content.get("update", {}).get("betas")
    betas = dict(zip(("beta1", "beta2"), stated, strict=False)) if isinstance(stated, list) else {}
    given = {name: _value(name, value, {**betas, **given}) for name, value in given.items()}
    if {"hidden", "widths"} & given.keys():
        for key in ("hidden", "widths"):
            content.get("target", {}).pop(key, None)
    places = {name: PLACES[name] for name in (*given, *table)}
    for name, value in (given | table).items():
        *sections, key = places[name].split(".")
        section = content.setdefault(sections[0], {}) if sections else content
        section[key] = value
    if step_from is not None:  # it had the default bounds, not those of the table
        content["domain"] = {**DEFAULT_DOMAIN, **content.get("domain", {})}
    path = data or (None if step_from is None else Path(step_from))
    if file is not None and (named := content.get("table", {}).pop("data", None)) is not None:
        if not isinstance(named, str):
            raise SettingError(
                f"{file}, [table]: data must be the name of a file, got {quoted(named)}."
            )
        path = path or file.parent / named
    if file is None and path is None and table:
        option = option_name(next(iter(table)))
        raise SettingError(f"{option} has no effect without --data; give both or neither.")
    by_key = {key: option for option, key in places.items()}
    return Description(content, None if file is None else str(file), path, by_key)


def read_problem_file(path: Path) -> dict[str, Any]:
    """Return the content of a problem.toml; raise `UnknownNameError` for an unknown key."""
    content = _toml(path)
    for name, value in content.items():
        if name not in KEYS:
            raise UnknownNameError.of("key", name, known=KEYS, where=f" in {path}")
        if (name in SECTIONS) is not isinstance(value, dict):
            form = f"a table, [{name}]" if name in SECTIONS else f"one value, {name} = ..."
            raise SettingError(f"{path}: {name} must be {form}, got {quoted(value)}.")
    settings = [name for each in CONSTRUCTIONS.values() for name in each.settings()]
    known = {
        "table": ["data", *(option.name for option in TABLE_OPTIONS)],
        "settings": list(dict.fromkeys(settings)),
    }
    for section in SECTIONS:
        for name in content.get(section, {}):
            if name in TOP_KEYS and section != "functions":
                raise SettingError(
                    f"{path}, [{section}]: {name} is no key of this section. Move it to the top of "
                    "the file, above the first [section]."
                )
            if name not in known.get(section, [name]):
                where = f" in [{section}] of {path}"
                raise UnknownNameError.of("key", name, known=known[section], where=where)
    return content


def _toml(path: Path) -> dict[str, Any]:
    if is_table(path):
        raise FileError(f"{path} is a table, not a problem.toml. Give it as --data {path}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
        ) from None


def _value(option: str, value: Any, given: Mapping[str, Any]) -> Any:
    """Return the value of an option as problem.toml has it."""
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
    """Warn, in one line, where old options belong in problem.toml."""
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
            "These options will be removed in the next release. Write them into problem.toml, "
            f"which `icgd init DATA` makes: {', '.join(lines)}."
        )
    )


def takes_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what describes a problem in place of its parameter `described`."""

    def parameter(name: str, kind: Any, option: Any) -> Parameter:
        annotation = Annotated[kind | None, option]
        return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    usual = [
        parameter(name, kind, _problem(text, *NAMES.get(name, ()), metavar=METAVARS.get(name)))
        for name, (_, kind, text) in USUAL.items()
    ]
    former = [
        parameter(
            name, bool if name in FLAGS else str, typer.Option(option_name(name), hidden=True)
        )
        for name in FORMER
    ]
    offered = (*options_of(description_from)[:2], *usual, *TABLE_OPTIONS, *former)
    return with_options(command, "described", offered, description_from)
