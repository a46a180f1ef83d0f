"""Reprs of objects: one line in a terminal, and a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Protocol, TypeVar, runtime_checkable

MOST_LISTED = 6
"""The largest number of items that a fact lists."""

MINUTE, HOUR, DAY = 60, 3600, 86_400


@runtime_checkable
class HasFacts(Protocol):
    """An object with a summary of named facts."""

    def facts(self) -> Mapping[str, str]:
        """Return the facts by name, the most important first."""


Shown = TypeVar("Shown", bound=type[HasFacts])


def with_repr(kind: Shown) -> Shown:
    """Give a class with `facts` a one-line `__repr__` and a `_repr_html_` for notebooks."""
    kind.__repr__ = line  # type: ignore[method-assign,assignment]
    kind._repr_html_ = table  # type: ignore[attr-defined]
    return kind


def line(thing: HasFacts) -> str:
    """Return the name of the class, and the facts in brackets."""
    facts = "; ".join(f"{name}: {fact}" for name, fact in thing.facts().items())
    return f"{type(thing).__name__}({facts})"


def table(thing: HasFacts) -> str:
    """Return HTML with the name of the class above a table of the facts."""
    rows = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(fact)}</td></tr>'
        for name, fact in thing.facts().items()
    )
    return f"<strong>{escape(type(thing).__name__)}</strong><table>{rows}</table>"


def number(value: float | int | None) -> str:
    """Return a number with at most four significant digits, or "none"."""
    return "none" if value is None else f"{value:.4g}"


def in_short(texts: Sequence[str]) -> str:
    """Return the first texts of a list, and the number of those omitted."""
    n_omitted = len(texts) - MOST_LISTED
    return ", ".join(texts[:MOST_LISTED]) + (f" and {n_omitted:,} more" if n_omitted > 0 else "")


def counted(n: int, noun: str) -> str:
    """Return a count with its noun, such as "1 layer" or "1,200 layers"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def used(n_layers: int, n_times: int) -> str:
    """Return the number of layers and of their repetitions, such as "4 layers used 82 times"."""
    return counted(n_layers, "layer") + (f" used {n_times:,} times" if n_times != 1 else "")


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as "3 h 05 min"."""
    total = round(seconds)
    if total < MINUTE:
        return f"{total} s"
    if total < HOUR:
        return f"{total // MINUTE} min {total % MINUTE:02d} s"
    if total < DAY:
        return f"{total // HOUR} h {total % HOUR // MINUTE:02d} min"
    return f"{total // DAY} days {total % DAY // HOUR} h"
