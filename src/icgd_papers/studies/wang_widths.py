"""Widths found to suffice: the narrowest networks, among a figure's rows, that reach an error.

A width that is not found may suffice all the same: only some starts of one method were tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from icgd_papers.reproduction import Row, Summary, groups, number

ERRORS = (0.1, 0.05, 0.03)
"""The errors for which widths are sought; the best constant has the error 0.25."""

SHALLOW, DEEP = DEPTHS = (2, 3)


@dataclass(frozen=True)
class Needed:
    """The narrowest network of one depth that was found to reach an error.

    `width` is None if no start of a width up to `widest` reached it. `rows` has a row for each
    construction that compiled the network.
    """

    width: int | None
    widest: int
    rows: Mapping[str, Row]

    @property
    def width_text(self) -> str:
        return f">{self.widest}" if self.width is None else str(self.width)

    def heads(self, construction: str) -> int | None:
        """The number of parameter matrices of its transformer, if there is one."""
        row = self.rows.get(construction)
        return None if row is None else int(number(row, "heads"))

    def heads_text(self, construction: str) -> str:
        heads = self.heads(construction)
        return "-" if heads is None else f"{heads:,}"


def needed(rows: Sequence[Row], dimension: int, depth: int, error: float) -> Needed:
    """The narrowest network of `depth` layers that comes to `error` or below."""
    tried = [row for row in rows if (row["dimension"], row["depth"]) == (dimension, depth)]
    widest = max(int(number(row, "width")) for row in tried)
    reached = [row for row in tried if number(row, "error") <= error]
    if not reached:
        return Needed(None, widest, {})
    width = min(int(number(row, "width")) for row in reached)
    of_width = [row for row in reached if row["width"] == width and row["construction"]]
    return Needed(width, widest, {str(row["construction"]): row for row in of_width})


def suffices(row: Row, rows: Sequence[Row]) -> bool:
    """Whether `row` is the best start of the narrowest network for one of the errors."""
    dimension, depth = int(number(row, "dimension")), int(number(row, "depth"))
    if row["width"] not in {needed(rows, dimension, depth, error).width for error in ERRORS}:
        return False
    shape = ("dimension", "depth", "width")
    alike = groups(rows, *shape)[tuple(row[name] for name in shape)]
    return number(row, "error") == min(number(each, "error") for each in alike)


def dimensions(rows: Sequence[Row]) -> list[int]:
    """The dimensions in which networks were trained."""
    return sorted({int(number(row, "dimension")) for row in rows})


def table(rows: Sequence[Row], places: Sequence[int], errors: Sequence[float]) -> Summary:
    """The widths found to suffice, and the heads of one training step, for 2 / 3 layers."""
    constructions = [str(name) for (name,) in groups(rows, "construction") if name]
    found = []
    for dimension, error in product(places, errors):
        pair = [needed(rows, dimension, depth, error) for depth in DEPTHS]
        cells = [[each.heads_text(name) for each in pair] for name in constructions]
        widths = [each.width_text for each in pair]
        found.append((str(dimension), f"{error:g}", *map(" / ".join, [widths, *cells])))
    return Summary(("d", "error", "width", *constructions), tuple(found))
