"""Where everything of a diagram stands on the sheet, in points; y runs downwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

from icgd.pictures.canvas import BOLD_WIDTH, MONO_WIDTH, SANS_WIDTH
from icgd.pictures.diagram import Diagram, Line, Row, Section

MARGIN = 26.0
GUTTER = 176.0
"""The room for the number, kind and size of a layer, left of the columns."""

PITCH = 19.0
"""The distance between two columns."""

LINE = 15.0
"""The height of a line of text."""

GAP = 8.0
HEADING = 30.0
TITLE = 74.0
SENTENCE_SIZE, NAME_SIZE, TITLE_SIZE = 9.0, 9.0, 15.0
WRAPPED = 60
"""The most characters in a line of a sentence."""

INDENT = 4 * MONO_WIDTH * SENTENCE_SIZE
"""How far the further lines of a sentence stand to the right: four letters."""

MOST_TEXTS = 3
"""The most lines of a sentence; of a longer one the middle is left out."""

SLOPE = 0.86
"""How much a column's slanted name rises, of its length."""


@dataclass(frozen=True)
class PlacedLine:
    """A line whose marks are at height `y`, and its sentence in as many lines as it needs."""

    y: float
    line: Line
    texts: tuple[str, ...]


@dataclass(frozen=True)
class PlacedRow:
    """A layer between two heights."""

    top: float
    bottom: float
    row: Row
    lines: tuple[PlacedLine, ...]


@dataclass(frozen=True)
class PlacedSection:
    """A section between two heights; its heading is at the top."""

    top: float
    bottom: float
    section: Section
    rows: tuple[PlacedRow, ...]


@dataclass(frozen=True)
class Plan:
    """The size of the sheet, and where its parts stand."""

    diagram: Diagram
    width: float
    height: float
    names: float
    start: PlacedLine
    sections: tuple[PlacedSection, ...]
    end: PlacedLine
    legend: float

    def x(self, place: int) -> float:
        """Where a column stands."""
        return MARGIN + GUTTER + PITCH * place

    @property
    def sentences(self) -> float:
        """Where sentences begin."""
        return self.x(len(self.diagram.columns)) + 6.0

    @property
    def lines(self) -> Iterator[PlacedLine]:
        """All lines from top to bottom."""
        yield self.start
        for section in self.sections:
            for row in section.rows:
                yield from row.lines
        yield self.end

    def lifelines(self) -> Iterator[tuple[int, float, float]]:
        """A column, and two heights between which it holds something."""
        alive: dict[int, float] = {}
        for placed in self.lines:
            for place in self._places(placed.line.sets | placed.line.adds):
                alive.setdefault(place, placed.y)
            for place in self._places(placed.line.wipes):
                if place in alive:
                    yield place, alive.pop(place), placed.y
        yield from ((place, start, self.end.y) for place, start in alive.items())

    def _places(self, slots: frozenset[str]) -> list[int]:
        return sorted({self.diagram.place_of[slot] for slot in slots})


def plan(diagram: Diagram, title: str = "", above: float = 0.0) -> Plan:
    """Place a diagram, with room of height `above` below the title."""
    longest = max(len(column.label) for column in diagram.columns)
    names = TITLE + above + SLOPE * SANS_WIDTH * NAME_SIZE * longest + 12.0
    start = _line(diagram.start, names + 34.0)
    y, sections = names + 34.0 + LINE * len(start.texts), []
    for section in diagram.sections:
        sections.append(_section(section, y))
        y = sections[-1].bottom + GAP
    end = _line(diagram.end, y + LINE)
    legend = y + LINE * (1 + len(end.texts)) + 16.0
    height = legend + LINE * (4 + len(diagram.kinds)) + 4.0
    width = max(_width(diagram), 2 * MARGIN + len(title) * BOLD_WIDTH * TITLE_SIZE)
    return Plan(diagram, width, height, names, start, tuple(sections), end, legend)


def _width(diagram: Diagram) -> float:
    """The sheet is as wide as the columns and the longest sentence beside them need."""
    lines = [line for section in diagram.sections for row in section.rows for line in row.lines]
    texts = [text for line in (*lines, diagram.start, diagram.end) for text in _wrapped(line)]
    longest = max(map(len, texts)) * MONO_WIDTH * SENTENCE_SIZE
    titles = [row.title for section in diagram.sections for row in section.rows]
    longest = max(longest, max(map(len, titles), default=0) * SANS_WIDTH * SENTENCE_SIZE)
    return 2 * MARGIN + GUTTER + PITCH * len(diagram.columns) + 6.0 + longest


def _wrapped(line: Line) -> tuple[str, ...]:
    texts = wrap(line.sentence, WRAPPED, subsequent_indent="    ")
    if len(texts) > MOST_TEXTS:
        texts = [*texts[: MOST_TEXTS - 2], "    …", texts[-1]]
    return tuple(texts)


def _line(line: Line, y: float) -> PlacedLine:
    return PlacedLine(y, line, _wrapped(line))


def _section(section: Section, top: float) -> PlacedSection:
    y, rows = top + HEADING, list[PlacedRow]()
    for row in section.rows:
        rows.append(_row(row, y))
        y = rows[-1].bottom + GAP
    return PlacedSection(top, y, section, tuple(rows))


def _row(row: Row, top: float) -> PlacedRow:
    """The title, then the lines one below the other."""
    y, lines = top + 1.5 * LINE, list[PlacedLine]()
    for line in row.lines:
        lines.append(_line(line, y))
        y += LINE * len(lines[-1].texts)
    return PlacedRow(top, y - LINE / 2, row, tuple(lines))
