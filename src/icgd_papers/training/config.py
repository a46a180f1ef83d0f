"""The config of a training: dataclasses that are read from TOML and from the command line.

A key has the same name in the file, among the options of `icgd train`, and in Python.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from os.path import realpath, relpath
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from icgd.errors import DataError, SettingError, UnknownNameError, quoted
from icgd.problems.settings import as_float, is_row
from icgd_papers.training.settings import Settings, option


@dataclass(frozen=True)
class DataConfig:
    """The tasks: a table, a function that draws them, or a law of inputs and one of labels."""

    tasks: str | None = option(None, "A table of tasks: CSV with a column `task`, or NPZ.", "file")
    label_columns: tuple[str, ...] = option((), "Its labels. Default: the last column but `task`.")
    validation_share: float = option(0.1, "Share of its tasks that is held out for validation.")
    shuffle_tokens: bool = option(False, "Put the tokens of its tasks in a random order.")
    generator: str | None = option(None, "Or a function that draws tasks: my_data.py:draw.", "code")
    inputs: str = option("gaussian", "Or inputs: gaussian, ellipsoid, mixture, shifted-mixture ...")
    spectrum: tuple[float, ...] = option((), "Eigenvalues of their covariance. Default: all 1.")
    n_clusters: int = option(2, "Clusters of a mixture.")
    weights: tuple[float, ...] = option((1.0, 0.0), "Weights of a shifted-mixture's components.")
    centres: tuple[float, ...] = option((-2.0, 2.0), "Centres of those, the same in all inputs.")
    labels: str = option("linear", "... and labels: linear, relu-network, teachers, or a kernel.")
    hidden_width: int = option(20, "Hidden units of a relu-network, or of a teacher's layer.")
    teacher_layers: int = option(3, "Layers of the teachers.")
    teacher_mean: float = option(0.0, "Mean of the teachers' weights.")
    teacher_activation: str = option("relu", "Activation of the teachers.")
    input_width: int = option(5, "Entries of an input.")
    output_width: int = option(1, "Entries of a label, which are independent.")
    n_examples: int = option(20, "Examples in a prompt.")
    average_labels: bool = option(False, "Average the loss over labels in closed form.")
    every_token: bool = option(False, "Take the loss at every token; needs a decoder.")
    curriculum_batches: int | None = option(None, "Batches in which prompts grow. Default: none.")
    first_width: int | None = option(None, "Active inputs of the first batch. Default: all.")
    first_examples: int | None = option(None, "Examples of the first batch. Default: all.")


@dataclass(frozen=True)
class ModelConfig:
    """The model: your own, a kernel transformer or a decoder."""

    factory: str | None = option(None, "A function that makes a model: my_model.py:make.", "code")
    kind: str = option("kernel-transformer", "Or a model of icgd: kernel-transformer, decoder.")
    kernels: tuple[str, ...] = option(("linear",), "Kernel transformer: the kernel of each head.")
    n_layers: int = option(3, "Its layers.")
    transform_inputs: bool = option(False, "Whether its layers change the inputs too.")
    n_blocks: int = option(4, "Decoder: its blocks.")
    width: int = option(64, "Entries of its stream, a multiple of n_heads.")
    n_heads: int = option(4, "Heads of a block.")
    mlp_width: int | None = option(None, "Hidden units of a block. Default: 4 * width.")
    attention: str = option("softmax", "softmax or relu.")
    tokens: str = option("joint", "joint (an example per token) or interleaved (x, y, x, y).")
    n_positions: int | None = option(None, "Places with learnt positions. Default: none.")
    model_seed: int = option(0, "Seed of the model's initial weights.")


@dataclass(frozen=True)
class Config:
    """All of a training; paths are relative to the working folder."""

    folder: str = option("run", "Folder of the run, which no other run may use.", "file")
    imports: tuple[str, ...] = option((), "Python files or modules to import first.", "code")
    callbacks: tuple[str, ...] = option((), "tensorboard, or your own: my_log.py:MyLog.", "code")
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: Settings = field(default_factory=Settings)

    def section(self, name: str) -> Any:
        """Return the section of this name; the top of the file has none."""
        return getattr(self, name) if name else self

    def text(self, folder: Path) -> str:
        """Return the config as TOML for a file in `folder`, with a comment for every key."""
        lines = []
        for name, key in KEYS.items():
            if key.section and f"[{key.section}]" not in lines:
                lines += ["", f"[{key.section}]"]
            value = getattr(self.section(key.section), name)
            if isinstance(value, tuple):
                value = [_relative(key, entry, folder) for entry in value]
            elif value is not None:
                value = _relative(key, value, folder)
            lines.append(f"# {key.text}")
            lines.append(f"# {name} =" if value is None else f"{name} = {_toml(value)}")
        return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Key:
    """A key of the config; `kind` is the type of its value, or of each entry of a list."""

    name: str
    section: str
    kind: type
    is_list: bool
    default: Any
    text: str
    path: str


SECTIONS: dict[str, type] = {
    "": Config,
    "data": DataConfig,
    "model": ModelConfig,
    "training": Settings,
}


def _keys() -> Iterator[Key]:
    for section, of in SECTIONS.items():
        types = get_type_hints(of)
        for entry in fields(of):
            if "text" in entry.metadata:
                hint = types[entry.name]
                kind = next(
                    iter(get_args(hint)), hint
                )  # float of float | None, of tuple[float, ...]
                is_list = get_origin(hint) is tuple
                yield Key(entry.name, section, kind, is_list, entry.default, **entry.metadata)


KEYS = {key.name: key for key in _keys()}
"""Every key of the config, in the order of the file."""

DECODER_KEYS = (
    "n_blocks",
    "width",
    "n_heads",
    "mlp_width",
    "attention",
    "tokens",
    "n_positions",
)
"""The keys of [model] that a decoder is made from."""

NEEDS: dict[tuple[str, str, tuple[Any, ...]], tuple[str, ...]] = {
    ("data", "tasks", ()): ("label_columns", "validation_share", "shuffle_tokens"),
    ("data", "inputs", ("mixture",)): ("n_clusters",),
    ("data", "inputs", ("shifted-mixture",)): ("weights", "centres"),
    ("data", "labels", ("relu-network", "teachers")): ("hidden_width",),
    ("data", "labels", ("teachers",)): ("teacher_layers", "teacher_mean", "teacher_activation"),
    ("data", "every_token", (True,)): ("curriculum_batches",),
    ("data", "curriculum_batches", ()): ("first_width", "first_examples"),
    ("model", "kind", ("kernel-transformer",)): ("kernels", "n_layers", "transform_inputs"),
    ("model", "kind", ("decoder",)): DECODER_KEYS,
}
"""Keys that have an effect only beside certain values of another; () stands for any value given."""

KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def read_config(path: Path | str | None = None, options: Mapping[str, Any] | None = None) -> Config:
    """Read a config file, with `options` in place of what it says, and defaults for the rest.

    Paths in the file are relative to its folder, paths in options to the working folder.

    Args:
        path: the TOML file; without one, options and defaults alone make the config.
        options: values of single keys; those that are None are left out.

    Returns:
        The config.

    Raises:
        DataError: if the file cannot be read.
        UnknownNameError: if there is no such section or key.
        SettingError: if a value does not suit its key, or has no effect beside the others.

    Example:
        >>> from icgd_papers.training import read_config
        >>> read_config(options={"n_steps": 5}).training.n_steps
        5
    """
    values = {} if path is None else _read(Path(path))
    for name, value in (options or {}).items():
        if name not in KEYS:
            raise UnknownNameError.of("key", name, known=list(KEYS))
        if value is not None:
            values[name] = _checked(KEYS[name], value, Path())
    tables: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in values.items():
        tables[KEYS[name].section][name] = value
    sections = {name: of(**tables[name]) for name, of in SECTIONS.items() if name}
    config = Config(**tables[""], **sections)
    _require_effects(config)
    return config


def _read(path: Path) -> dict[str, Any]:
    """Return the values in a TOML file by key."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"Cannot read {path}: it is a device or a pipe; a file is expected.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise DataError(f"Cannot read {path}: {problem.strerror or problem}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise DataError(f"Cannot read {path}: {problem}.") from None
    except RecursionError:
        raise DataError(f"Cannot read {path}: it is nested too deeply.") from None
    tables = {name: table for name, table in content.items() if isinstance(table, dict)}
    for name in tables:
        if not name or name not in SECTIONS:
            headers = [f"[{section}]" for section in SECTIONS if section]
            raise UnknownNameError.of("section", f"[{name}]", known=headers, where=f" in {path}")
    tables[""] = {name: value for name, value in content.items() if name not in tables}
    values = {}
    for section, table in tables.items():
        keys = [name for name, key in KEYS.items() if key.section == section]
        for name, value in table.items():
            if name not in keys:
                where = f" in {path} [{section}]" if section else f" in {path}"
                raise UnknownNameError.of("key", name, known=keys, where=where)
            values[name] = _checked(KEYS[name], value, path.parent)
    values.setdefault("folder", str(path.parent / KEYS["folder"].default))
    return values


def _checked(key: Key, value: object, base: Path) -> Any:
    """Return a value of the key's type; paths in it are relative to `base`."""
    if not key.is_list:
        return _checked_entry(key, value, base)
    if isinstance(value, str):  # an option on the command line
        value = [_parsed(key.kind, entry) for entry in value.split(",")] if value else []
    if not is_row(value):
        raise SettingError(
            f"{key.name} must be a list, each entry {KINDS[key.kind]}, got {quoted(value)}."
        )
    return tuple(_checked_entry(key, entry, base) for entry in value)


def _parsed(kind: type, text: str) -> object:
    """Return the text as this type, or as it is if that fails."""
    try:
        return kind(text)
    except ValueError:
        return text


def _checked_entry(key: Key, value: object, base: Path) -> Any:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if key.kind is float and is_whole:
        return as_float(value)
    if not (is_whole if key.kind is int else isinstance(value, key.kind)):
        raise SettingError(f"{key.name} must be {KINDS[key.kind]}, got {quoted(value)}.")
    if not isinstance(value, str):
        return value
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise SettingError(f"{key.name} must be a text that can be written, got {quoted(value)}.")
    if key.path == "file":
        if not value:
            raise SettingError(f"{key.name} must be the name of a file or folder, got ''.")
        return str(base / value)
    if key.path == "code":
        module, separator, function = value.rpartition(":") if ":" in value else (value, "", "")
        file = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
        # A name means the file beside the config if there is one, and else an installed module.
        if file == module or (base / file).is_file():
            return f"{base / file}{separator}{function}"
    return value


def _relative(key: Key, value: Any, folder: Path) -> Any:
    """Return a path relative to `folder`, and any other value as it is."""
    if not key.path:
        return value
    module, separator, function = value.rpartition(":") if ":" in value else (value, "", "")
    if key.path == "file":
        module, separator, function = value, "", ""
    elif not module.endswith(".py"):
        return value
    # The parent of a linked folder is that of what it links to, so links are followed first.
    path = Path(relpath(realpath(module), realpath(folder))).as_posix()
    return f"{path}{separator}{function}"


def _require_effects(config: Config) -> None:
    """Raise `SettingError` if a key was changed that has no effect beside the others."""
    for (section, other, values), names in NEEDS.items():
        table = getattr(config, section)
        value = getattr(table, other)
        if value in values if values else value != KEYS[other].default:
            continue
        for name in names:
            if getattr(table, name) != KEYS[name].default:
                needed = f"{other}={' or '.join(map(repr, values))}" if values else other
                raise SettingError(f"{name} has no effect without {needed}; give both or neither.")


def _toml(value: Any) -> str:
    """Write a text, a number, a truth value or a list of them; JSON writes most as TOML does."""
    if isinstance(value, float):
        return f"{value:.1f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
