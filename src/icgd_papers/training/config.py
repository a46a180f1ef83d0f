"""The config of a training: every key with its default, read from TOML and from options.

A key has the same name in the file, in `--help` of `icgd train`, and in the file of all defaults.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icgd.errors import DataError, SettingError, UnknownNameError
from icgd_papers.training.config_keys import SECTIONS, Key

Values = dict[str, dict[str, Any]]
"""The value of every key, by section."""


@dataclass(frozen=True)
class Config:
    """A whole config; relative paths in it start at `folder`."""

    values: Values
    folder: Path

    def __getitem__(self, section: str) -> dict[str, Any]:
        return self.values[section]

    @property
    def run_folder(self) -> Path:
        """The folder of the run."""
        if not self.values[""]["folder"]:
            raise SettingError("folder must be a folder's name, got ''.")
        return Path(self.folder, self.values[""]["folder"])

    def moved_to(self, folder: Path) -> Config:
        """The same config for a file in another folder."""
        values = {
            section: {
                name: key.moved(self.values[section][name], self.folder, folder)
                for name, key in keys.items()
            }
            for section, keys in SECTIONS.items()
        }
        return Config(values, folder)

    def text(self) -> str:
        """The config as TOML, with a comment for every key; keys without a value are comments."""
        parts = [_section_text(name, self.values[name]) for name in SECTIONS]
        return "\n".join(parts)


def read_config(path: Path | str | None = None, options: Mapping[str, Any] | None = None) -> Config:
    """The config in a file, with `options` in place of what it says, and defaults for the rest.

    Files are named relative to the config's folder in it, and to the working folder in options.

    Args:
        path: the TOML file; without one, options and defaults alone make the config.
        options: values of single keys; those that are None are left out.

    Returns:
        The config.

    Raises:
        DataError: if the file cannot be read.
        UnknownNameError: if there is no such section or key.
        SettingError: if a value does not suit its key.

    Example:
        >>> from icgd_papers.training import read_config
        >>> read_config(options={"n_steps": 5})["training"]["n_steps"]
        5
    """
    path = None if path is None else Path(path)
    read = {} if path is None else _read(path)
    given = {name: value for name, value in (options or {}).items() if value is not None}
    values = _checked(read, "" if path is None else f" in {path}")
    folder = Path() if path is None else path.parent
    for name, value in given.items():
        section, key = _key_named(name)
        values[section][name] = key.moved(key.checked(value), Path.cwd(), folder)
    return Config(values, folder)


def _read(path: Path) -> dict[str, Any]:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"Cannot read {path}: it is a device or a pipe; a file is expected.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise DataError(f"Cannot read {path}: {problem.strerror or problem}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise DataError(f"Cannot read {path}: {problem}.") from None
    except RecursionError:
        raise DataError(f"Cannot read {path}: it is nested too deeply.") from None


def _checked(read: Mapping[str, Any], where: str) -> Values:
    """All values; keys and sections that are not known are refused."""
    top = {name: part for name, part in read.items() if not isinstance(part, dict)}
    tables = {name: part for name, part in read.items() if isinstance(part, dict)}
    for name in tables:
        if name not in SECTIONS or not name:
            known = [f"[{each}]" for each in SECTIONS if each]
            raise UnknownNameError.of("section", f"[{name}]", known=known, where=where)
    return {name: _section(name, {"": top, **tables}.get(name, {}), where) for name in SECTIONS}


def _section(section: str, read: Mapping[str, Any], where: str) -> dict[str, Any]:
    keys = SECTIONS[section]
    for name in read:
        if name not in keys:
            place = f"{where} [{section}]" if section else where
            raise UnknownNameError.of("key", name, known=list(keys), where=place)
    return {
        name: key.checked(read[name]) if name in read else key.default for name, key in keys.items()
    }


def _key_named(name: str) -> tuple[str, Key]:
    for section, keys in SECTIONS.items():
        if name in keys:
            return section, keys[name]
    known = [each for keys in SECTIONS.values() for each in keys]
    raise UnknownNameError.of("key", name, known=known)


def _section_text(section: str, values: Mapping[str, Any]) -> str:
    head = [f"[{section}]"] if section else []
    lines = [_line(key, values[name]) for name, key in SECTIONS[section].items()]
    return "\n".join([*head, *lines, ""])


def _line(key: Key, value: Any) -> str:
    """A comment that explains the key, and the key with its value."""
    setting = f"# {key.name} =" if value is None else f"{key.name} = {_toml(value)}"
    return f"# {key.help}\n{setting}"


def _toml(value: Any) -> str:
    """A text, a number, a truth value or a list of them; JSON writes most as TOML does."""
    if isinstance(value, float):
        return f"{value:.1f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
