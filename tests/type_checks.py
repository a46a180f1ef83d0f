"""The runtime type checker of the tests: what jaxtyping checks, at a fraction of its cost.

jaxtyping binds the arguments of every call and hands them to two stand-ins of the function, which
takes longer than most functions here. beartype wraps the function itself instead, in a context of
its own if it names axes, so that equal names stand for equal sizes in one call. A check of axes
takes longer than many functions, and depends on types, shapes and dtypes alone: a call of a form
that has passed before is not checked again. A function inside a function is made anew at every
call, too often to be wrapped: its values are checked singly.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial, wraps
from types import CodeType
from typing import Any, get_args, get_type_hints

from beartype import beartype
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, config
from jaxtyping import jaxtyped as checked_by_jaxtyping
from torch import Tensor

_OF_INNER: dict[tuple[str, CodeType], dict[str, Any]] = {}


def jaxtyped(checked: Any = None, *, typechecker: Any = None) -> Any:
    """Stands in for the decorator of this name that jaxtyping's import hook puts everywhere."""
    if checked is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not inspect.isclass(checked):
        return _checked(checked)
    if is_dataclass(checked) and "__init__" in vars(checked):
        checked.__init__ = _checked(checked.__init__)
    return checked


def _checked(function: Callable) -> Callable:
    is_inner = "<locals>" in function.__qualname__
    function.__annotations__ = hints = _hints(function, is_inner)
    ours = _checked_singly(function, hints) if is_inner else beartype(function)
    return _in_own_axes(function, ours, hints) if any(map(_names_axes, hints.values())) else ours


def _hints(function: Callable, is_inner: bool) -> dict[str, Any]:
    """Types by names; those of an inner function are found once."""
    place = (function.__module__, function.__code__)
    if is_inner and place in _OF_INNER:
        return _OF_INNER[place]
    named = function.__annotations__.items()
    hints = {name: _resolved(hint, function.__globals__) for name, hint in named}
    if is_inner:
        _OF_INNER[place] = hints
    return hints


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    """The type that a string stands for; anything, if that is not known yet."""

    def holder() -> None: ...

    holder.__annotations__ = {"hint": hint}
    try:
        return get_type_hints(holder, names, include_extras=True)["hint"]
    except NameError:
        return Any


def _names_axes(hint: Any) -> bool:
    is_array = inspect.isclass(hint) and issubclass(hint, AbstractArray)
    return is_array or any(map(_names_axes, get_args(hint)))


def _checked_singly(function: Callable, hints: Mapping[str, Any]) -> Callable:
    @wraps(function)
    def singly(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function, hints, args, kwargs)
        result = function(*args, **kwargs)
        die_if_unbearable(result, hints.get("return", Any))
        return result

    return singly


def _check_arguments(
    function: Callable, hints: Mapping[str, Any], args: tuple, kwargs: dict
) -> None:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        die_if_unbearable(value, hints.get(name, Any))


def _in_own_axes(function: Callable, ours: Callable, hints: Mapping[str, Any]) -> Callable:
    passed: dict[Any, set[Any]] = {}

    @wraps(function)
    def with_axes(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        call = form_of((*args, *kwargs.items()))
        if call is None or call not in passed:
            with checked_by_jaxtyping("context"):
                result = ours(*args, **kwargs)
            if call is not None:
                passed[call] = {form_of(result)}
            return result
        result = function(*args, **kwargs)
        form = form_of(result)
        if form is None or form not in passed[call]:
            with checked_by_jaxtyping("context"):
                _check_arguments(function, hints, args, kwargs)
                die_if_unbearable(result, hints.get("return", Any))
            passed[call].add(form)
        return result

    return with_axes


def form_of(value: Any) -> Any:
    """All that a check of the value depends on; none if that may be more than is told here."""
    if isinstance(value, Tensor):
        return Tensor, value.dtype, value.shape
    if isinstance(value, tuple | list):
        forms = tuple(map(form_of, value))
        return None if None in forms else (type(value), forms)
    if isinstance(value, str | int | None):
        return type(value), value
    return None if isinstance(value, Collection | Iterator) else type(value)
