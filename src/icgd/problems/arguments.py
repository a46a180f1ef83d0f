"""Arguments of public callables, checked against the types in their signatures.

`@checked` stands above a function, a method or a dataclass. A value of another type is refused by
a `SettingError` that names the argument, the value and what is expected. Numbers of numpy become
plain numbers, and rows become tuples, so that whatever comes later, such as a file, finds the same
types however a value was given. What a type does not say, such as that a number is positive, is
checked where the value is used, by the checks of `settings.py` and `arrays.py`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, wraps
from math import isinf
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import AbstractArray
from torch import Tensor

from icgd.errors import DataError, SettingError
from icgd.problems.settings import LARGEST_COUNT, as_float, as_whole, entries, is_sequence, is_text
from icgd.problems.surroundings import usual_place, usual_surroundings

Checked = TypeVar("Checked", bound=Callable[..., Any])
Accept = Callable[[str, Any], Any]
Axes = dict[str, tuple[list[str], list[str]]]

LONGEST_PATH, LONGEST_NAME = 4096, 255
"""The most bytes of a path, and of each name in it, that file systems take."""

FLOATS = frozenset((torch.float32, torch.float64))

REFUSED = object()
"""What `accept` of a kind returns for a value of another kind."""


@dataclass(frozen=True)
class Kind:
    """What an argument may be: in words, and as a function of its name and value."""

    expected: str
    accept: Accept


def checked(part: Checked) -> Checked:
    """`part`, with its arguments checked; of a class, those that an object is made of."""
    return checked_but()(part)


def checked_in_training(part: Checked) -> Checked:
    """`part`, with its arguments checked, in the precision that a program trains in."""
    return _checked(part, Plan(part, (), usual_place))


def checked_but(*others: str) -> Callable[[Checked], Checked]:
    """`checked` for all arguments but `others`, which the function has better words for."""

    def decorate(part: Checked) -> Checked:
        if not inspect.isclass(part):
            return _checked(part, Plan(part, others))
        made = vars(part)["__init__"]
        type.__setattr__(part, "__init__", _checked(made, Plan(made, others)))
        return part

    return decorate


def _checked(function: Checked, plan: Plan) -> Checked:
    """A lambda, because the type checker of the tests wraps every other inner function."""
    call = wraps(function)(lambda *args, **kwargs: _called(function, plan, args, kwargs))
    return call  # type: ignore[return-value]


def _called(
    function: Callable[..., Any], plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What the function returns, if its arguments are of the right kinds."""
    positions, kinds, axes = plan.parts
    values = [
        value if kind is None else accepted(name, value, kind)
        for value, (name, kind) in zip(args, positions, strict=False)
    ]
    for name, value in kwargs.items():
        if name in kinds:
            kwargs[name] = accepted(name, value, kinds[name])
    if axes:
        places = zip((name for name, _ in positions), args, strict=False)
        _require_shared(axes, dict(places) | kwargs)
    with plan.surroundings():
        return function(*values, *args[len(values) :], **kwargs)


@dataclass(frozen=True)
class Plan:
    """What is known of the arguments of a function, all but `others`, and where it is run."""

    function: Callable[..., Any]
    others: Sequence[str]
    surroundings: Callable[[], AbstractContextManager[object]] = usual_surroundings

    @cached_property
    def parts(self) -> tuple[list[tuple[str, Kind | None]], dict[str, Kind], Axes]:
        """Kinds by place, kinds by name, and axes; types are looked up in the first call."""
        hints = get_type_hints(self.function)
        found = inspect.signature(self.function).parameters.values()
        parts = [part for part in found if part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD)]
        made = {part.name: kind_of(hints.get(part.name, Any)) for part in parts}
        kinds = {name: kind for name, kind in made.items() if kind and name not in self.others}
        placed = [part.name for part in parts if part.kind is not part.KEYWORD_ONLY]
        return [(name, kinds.get(name)) for name in placed], kinds, _axes(self.function)


def _axes(function: Callable[..., Any]) -> Axes:
    """The words of the first and of the last axes of every tensor, if there are two at least."""
    named = {
        name: _ends(hint.dim_str)
        for name, hint in get_type_hints(function).items()
        if name != "return" and inspect.isclass(hint) and issubclass(hint, AbstractArray)
    }
    return named if len(named) > 1 else {}


def _ends(words: str) -> tuple[list[str], list[str]]:
    """The words before and after an open number of axes, which "*tasks" or "..." stand for."""
    first, *last = re.split(r"\*\w+|\.\.\.", words)
    return first.split(), last[0].split() if last else []


def _require_shared(axes: Axes, given: Mapping[str, Any]) -> None:
    """Raise `DataError` if an axis of one name has two lengths, or if precisions differ."""
    lengths: dict[str, int] = {}
    tensors = [name for name in axes if isinstance(given.get(name), Tensor)]
    for name in tensors:
        shape, (first, last) = given[name].shape, axes[name]
        places = (*zip(first, shape, strict=False), *zip(last[::-1], shape[::-1], strict=False))
        for word, length in places:
            if lengths.setdefault(word, length) != length:
                expected = f"{lengths[word]} along the axis {word}"
                raise DataError.wrong_shape(name, shape, expected)
        if given[name].dtype != given[tensors[0]].dtype:
            raise DataError.other_precision(name, given[name].dtype, given[tensors[0]].dtype)


def accepted(name: str, value: object, kind: Kind) -> Any:
    """`value` as it is handed on, if it is of this kind."""
    taken = kind.accept(name, value)
    if taken is REFUSED:
        raise SettingError.wrong_kind(name, value, kind.expected)
    return taken


def kind_of(hint: Any) -> Kind | None:
    """What a type in a signature allows; None if anything goes, or if it says nothing checkable."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _any_of(parts)
    if origin in (tuple, list) or (inspect.isclass(origin) and issubclass(Sequence, origin)):
        return _row_of(origin, parts)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return Kind("a mapping of texts", _mapping)
    if origin is Callable:
        return Kind("a function", lambda name, value: value if callable(value) else REFUSED)
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return _tensor(hint)
    return _object_of(origin or hint)


def _object_of(kind: Any) -> Kind | None:
    """Objects of a class."""
    if not inspect.isclass(kind) or getattr(kind, "_is_protocol", False) or kind is object:
        return None
    expected = kind.__name__.removeprefix("Abstract")
    return Kind(expected, lambda name, value: value if isinstance(value, kind) else REFUSED)


def _any_of(parts: Sequence[Any]) -> Kind | None:
    """What one of several types allows; a text beside a path is a path."""
    if torch.dtype in parts:
        return None  # a dtype has many names; `dtype_named` knows them
    are_paths = any(_is_path(part) for part in parts)
    kinds = [kind_of(part) for part in parts if not (are_paths and part is str)]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    words = dict.fromkeys(kind.expected for kind in known if kind is not NOTHING)
    expected = " or ".join(words)
    return Kind(expected, lambda name, value: _first(name, value, known))


def _first(name: str, value: object, kinds: Sequence[Kind]) -> Any:
    taken = (kind.accept(name, value) for kind in kinds)
    return next((found for found in taken if found is not REFUSED), REFUSED)


def _is_path(hint: Any) -> bool:
    return hint is Path or (get_origin(hint) or hint) is os.PathLike


def _row_of(kind: Any, parts: Sequence[Any]) -> Kind:
    """A row whose entries are all of one kind, or each of its own."""
    is_even = kind is not tuple or parts[-1:] == (Ellipsis,)
    inner = [kind_of(part) for part in parts if part is not Ellipsis]

    def accept(name: str, value: object) -> Any:
        if not is_sequence(value):
            return REFUSED
        row = entries(name, value)
        if not is_even and len(row) != len(inner):
            raise SettingError.wrong_length(name, len(row), str(len(inner)))
        each = inner * len(row) if is_even and inner else inner
        taken = (
            entry if part is None else accepted(f"{name}[{place}]", entry, part)
            for place, (entry, part) in enumerate(zip(row, each, strict=False))
        )
        return list(taken) if kind is list else tuple(taken)

    return Kind("a row", accept)


def _tensor(hint: Any) -> Kind:
    """A tensor of floats with as many axes as its shape in words says."""
    n_axes, is_open = len(hint.dims), hint.index_variadic is not None
    least = n_axes - is_open

    def accept(name: str, value: Any) -> Any:
        if _numbers(name, value) is REFUSED:
            return REFUSED
        right = value.ndim >= least if is_open else value.ndim == least
        return value if right else REFUSED

    axes = f"{'at least ' * is_open}{least} ax{'i' if least == 1 else 'e'}s"
    return Kind(f"a float tensor of {axes}", accept)


def _numbers(name: str, value: Any) -> Any:
    """Tensors that can be computed with: dense, with memory, of floats."""
    right = (
        isinstance(value, Tensor)
        and value.dtype in FLOATS
        and value.layout is torch.strided
        and not (value.is_nested or value.is_meta)
    )
    return value if right else REFUSED


def _whole(name: str, value: object) -> Any:
    whole = as_whole(value)
    if whole is None:
        return REFUSED
    if abs(whole) > LARGEST_COUNT:
        raise SettingError.too_large(name, value, most=LARGEST_COUNT)
    return whole


def _number(name: str, value: object) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return REFUSED
    if isinf(number := as_float(value)) and not isinstance(value, float | np.floating):
        raise SettingError.wrong_kind(name, value, "a number that float64 can hold")
    return value if isinstance(value, int) else number


def _truth(name: str, value: object) -> Any:
    return bool(value) if isinstance(value, bool | np.bool_) else REFUSED


def _text(name: str, value: object) -> Any:
    return value if is_text(value) else REFUSED


def _path(name: str, value: object) -> Any:
    """A path that a system can have: not empty, of characters that names of files may have."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
        is_right = isinstance(text, str) and bool(text) and b"\0" not in os.fsencode(text)
    except Exception:  # a value of any class may be wrong in any way
        return REFUSED
    if not is_right:
        return REFUSED
    if len(text) > LONGEST_PATH or max(map(len, os.fsencode(text).split(b"/"))) > LONGEST_NAME:
        expected = f"a path with names of up to {LONGEST_NAME} bytes"
        raise SettingError.wrong_kind(name, value, expected)
    return value


def _mapping(name: str, value: object) -> Any:
    is_right = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return value if is_right else REFUSED


NOTHING = Kind("None", lambda name, value: None if value is None else REFUSED)

PLAIN: dict[Any, Kind | None] = {
    Any: None,
    inspect.Parameter.empty: None,
    NoneType: NOTHING,
    bool: Kind("bool", _truth),
    int: Kind("a whole number", _whole),
    float: Kind("a number", _number),
    str: Kind("a text", _text),
    Path: Kind("a path", lambda name, value: _made(name, value)),
    os.PathLike[str]: Kind("a path", _path),
    Tensor: Kind("a dense tensor of floats", _numbers),
    Iterable[Any]: Kind("a row", lambda name, value: value if is_sequence(value) else REFUSED),
}
"""The kinds of types that occur often."""


def _made(name: str, value: object) -> Any:
    taken = _path(name, value)
    return taken if taken is REFUSED else Path(taken)
