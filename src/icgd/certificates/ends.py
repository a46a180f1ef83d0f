"""The ends of steps that a bound for every step looks at; where there are many, one for all.

Steps of a schedule differ in the coefficients of `Recombine`. Of a few different ends each is
looked at. Of many, every coefficient is taken to lie anywhere between its smallest and its largest
value, so that one enclosure holds for all of them. It is a little wider than the widest of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat

from icgd.program.instructions import Instruction
from icgd.program.program import Layer
from icgd.program.update_instructions import Assignment, Recombine

End = tuple[Layer, ...]

FEW = 8
"""So many different ends are looked at one by one."""


@dataclass(frozen=True)
class Ends:
    """The ends that stand for all steps of a schedule, by numbers.

    Numbers below `n_steps` are those of its steps, counted from 0. Those from it on are of `spans`,
    whose sums have the smallest coefficients of many steps; `highest` gives the largest ones for
    each of them. Sums that have the same smallest coefficients share the largest ones of all.
    """

    n_steps: int
    numbers: tuple[int, ...] = (0,)
    spans: tuple[End, ...] = ()
    highest: Mapping[Recombine, Recombine] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Sequence[End]) -> Ends:
        if not schedule:
            return cls(0)
        groups: dict[object, dict[End, int]] = {}
        for step, end in enumerate(schedule):
            groups.setdefault(_outline(end), {})[end] = step
        numbers, spans, highest = list[int](), list[End](), dict[Recombine, Recombine]()
        for group in groups.values():
            if len(group) <= FEW:
                numbers.extend(group.values())
            else:
                numbers.append(len(schedule) + len(spans))
                spans.append(_spanned(group, min))
                for low, high in zip(_sums(spans[-1]), _sums(_spanned(group, max)), strict=True):
                    highest[low] = _larger(high, highest.get(low, high))
        return cls(len(schedule), tuple(numbers), tuple(spans), highest)

    def span(self, number: int) -> End:
        """The end that stands for many steps."""
        return self.spans[number - self.n_steps]


def _outline(end: End) -> End:
    """An end without the coefficients of its sums."""
    return _with(end, repeat(0.0))


def _spanned(ends: Iterable[End], extreme: Callable[[Iterable[float]], float]) -> End:
    """The end whose coefficients are each the smallest or the largest of those of all ends."""
    first, *others = ends
    columns = zip(*(_coefficients(_sums(end)) for end in (first, *others)), strict=True)
    return _with(first, map(extreme, columns))


def _larger(one: Recombine, other: Recombine) -> Recombine:
    """A sum with the larger of each two coefficients of sums that differ in nothing else."""
    return _changed(one, map(max, _coefficients([one]), _coefficients([other])))


def _coefficients(sums: Iterable[Recombine]) -> list[float]:
    parts = (part for each in sums for part in each.assignments)
    return [coefficient for part in parts for coefficient in part.value.coefficients]


def _with(end: End, coefficients: Iterator[float]) -> End:
    """The end with other coefficients, which are taken one after the other."""

    def changed(part: Instruction) -> Instruction:
        return _changed(part, coefficients) if isinstance(part, Recombine) else part

    return tuple(
        replace(layer, instructions=tuple(map(changed, layer.instructions))) for layer in end
    )


def _changed(part: Recombine, coefficients: Iterator[float]) -> Recombine:
    return replace(part, assignments=tuple(_other(each, coefficients) for each in part.assignments))


def _other(part: Assignment, coefficients: Iterator[float]) -> Assignment:
    taken = tuple(islice(coefficients, len(part.value.coefficients)))
    return replace(part, value=replace(part.value, coefficients=taken))


def _sums(end: End) -> list[Recombine]:
    parts = (part for layer in end for part in layer.instructions)
    return [part for part in parts if isinstance(part, Recombine)]
