"""Folding: of many things that are alike the first and the last are shown, the rest as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

Thing = TypeVar("Thing")
Key = Callable[[Thing], Hashable]

SHOWN_IN_FRONT, SHOWN_BEHIND = 2, 1
"""How many of a run of things that are alike are shown before and after the fold."""


def folded(things: Sequence[Thing], alike: Key[Thing], most: int) -> list[tuple[Thing, ...]]:
    """The things in order, as groups of one, or of those that are shown as one.

    Up to `most` things are all shown. Of more, runs of neighbours with the same key are folded. If
    more than twice as many are left, all in the middle are folded too.
    """
    if len(things) <= most:
        return [(thing,) for thing in things]
    groups = [group for _, run in groupby(things, alike) for group in _run(tuple(run))]
    if len(groups) <= 2 * most:
        return groups
    front, behind = most - 1, most
    middle = tuple(thing for group in groups[front:-behind] for thing in group)
    return [*groups[:front], middle, *groups[-behind:]]


def _run(run: tuple[Thing, ...]) -> Iterator[tuple[Thing, ...]]:
    """A run of things that are alike, of which two or more are folded."""
    front, behind = run[:SHOWN_IN_FRONT], run[len(run) - SHOWN_BEHIND :]
    middle = run[SHOWN_IN_FRONT : len(run) - SHOWN_BEHIND]
    if len(middle) < 2:
        yield from ((thing,) for thing in run)
    else:
        yield from (*((thing,) for thing in front), middle, *((thing,) for thing in behind))
