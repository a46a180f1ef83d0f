"""What objects show of themselves: one line in a terminal, and a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Protocol, TypeVar, runtime_checkable

MOST_LISTED = 6
"""How many of several things a fact names."""

MINUTE, HOUR, DAY = 60, 3600, 86_400


@runtime_checkable
class HasFacts(Protocol):
    """An object that knows a few facts about itself, in words."""

    def facts(self) -> Mapping[str, str]:
        """Return the facts by name, the most important first."""


Shown = TypeVar("Shown", bound=type[HasFacts])


def with_repr(kind: Shown) -> Shown:
    """Give a class with `facts` a `__repr__` of one line, and a `_repr_html_` for notebooks."""
    kind.__repr__ = line  # type: ignore[method-assign,assignment]
    kind._repr_html_ = table  # type: ignore[attr-defined]
    return kind


def line(thing: HasFacts) -> str:
    """Return the name of its class, and its facts in brackets."""
    facts = "; ".join(f"{name}: {fact}" for name, fact in thing.facts().items())
    return f"{type(thing).__name__}({facts})"


def table(thing: HasFacts) -> str:
    """Return the name of its class above a table of its facts."""
    rows = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(fact)}</td></tr>'
        for name, fact in thing.facts().items()
    )
    return f"<strong>{escape(type(thing).__name__)}</strong><table>{rows}</table>"


def number(value: float | int | None) -> str:
    """Return a number in at most four figures, or "none"."""
    return "none" if value is None else f"{value:.4g}"


def in_short(texts: Sequence[str]) -> str:
    """Return the first texts of a list, and how many more there are."""
    rest = len(texts) - MOST_LISTED
    return ", ".join(texts[:MOST_LISTED]) + (f" and {rest:,} more" if rest > 0 else "")


def counted(n: int, noun: str) -> str:
    """Return a number of things, such as "1 layer" and "1,200 layers"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def used(n_layers: int, n_times: int) -> str:
    """Layers that are used again, such as "4 layers used 82 times"."""
    return counted(n_layers, "layer") + (f" used {n_times:,} times" if n_times != 1 else "")


def duration(seconds: float) -> str:
    """Return a time in its two largest units, such as "3 h 05 min"."""
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    return f"{whole // DAY} days {whole % DAY // HOUR} h"
