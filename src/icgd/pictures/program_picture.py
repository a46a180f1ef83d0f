"""Draw a program: slots of the residual stream as columns, layers as rows, time running down.

The line of a slot is strong from its first write until it is wiped. The font size is the same in
every picture, so a larger program makes a larger picture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from itertools import groupby, pairwise
from textwrap import wrap

from icgd.pictures.canvas import BOLD_WIDTH, MONO_WIDTH, SANS_WIDTH, Canvas, Point
from icgd.pictures.diagram import Column, Diagram, Line, Row, Section, diagram
from icgd.pictures.picture import Picture, saved
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED
from icgd.program.chain import FAR, NEAR, OUT, ChainMask, ChainProgram, Reading
from icgd.program.instructions import LayerKind
from icgd.program.program import AbstractProgram
from icgd.reprs import counted

# The layout of a diagram, in points; y runs downwards.

MARGIN = 26.0
GUTTER = 176.0
"""The space left of the columns, for the number, kind and size of a layer."""

PITCH = 19.0
"""The distance between two columns."""

LINE = 15.0
"""The height of a line of text."""

GAP = 8.0
HEADING = 30.0
TITLE = 74.0
SENTENCE_SIZE, NAME_SIZE, TITLE_SIZE = 9.0, 9.0, 15.0
WRAPPED = 60
"""The largest number of characters in a line of a sentence."""

INDENT = 4 * MONO_WIDTH * SENTENCE_SIZE
"""The indentation of continued lines of a sentence: four letters."""

MOST_TEXTS = 3
"""The largest number of lines of a sentence; the middle of longer ones is omitted."""

SLOPE = 0.86
"""The height of a column's slanted name relative to its length, about sin(60 degrees)."""


@dataclass(frozen=True)
class PlacedLine:
    """A line with its height `y`, and its sentence wrapped into `texts`."""

    y: float
    line: Line
    texts: tuple[str, ...]


@dataclass(frozen=True)
class PlacedRow:
    """A row with the heights of its top and bottom."""

    top: float
    bottom: float
    row: Row
    lines: tuple[PlacedLine, ...]


@dataclass(frozen=True)
class PlacedSection:
    """A section with the heights of its top, where the heading is, and bottom."""

    top: float
    bottom: float
    section: Section
    rows: tuple[PlacedRow, ...]


@dataclass(frozen=True)
class Plan:
    """The size of the sheet, and the positions of all its elements."""

    diagram: Diagram
    width: float
    height: float
    names: float
    start: PlacedLine
    sections: tuple[PlacedSection, ...]
    end: PlacedLine
    legend: float

    def x(self, place: int) -> float:
        """Return the horizontal position of a column."""
        return MARGIN + GUTTER + PITCH * place

    @property
    def sentences(self) -> float:
        """The horizontal position at which sentences begin."""
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
        """Yield columns with the heights from and to which they hold a value."""
        starts: dict[int, float] = {}
        for placed in self.lines:
            for place in self._places(placed.line.sets | placed.line.adds):
                starts.setdefault(place, placed.y)
            for place in self._places(placed.line.wipes):
                if place in starts:
                    yield place, starts.pop(place), placed.y
        yield from ((place, start, self.end.y) for place, start in starts.items())

    def _places(self, slots: frozenset[str]) -> list[int]:
        return sorted({self.diagram.place_of[slot] for slot in slots})


def plan(diagram: Diagram, title: str = "", above: float = 0.0) -> Plan:
    """Lay out a diagram, with space of height `above` below the title."""
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
    """Return the width of the sheet: the columns, and the longest sentence beside them."""
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
    """Place the title of a layer, and its lines below."""
    y, lines = top + 1.5 * LINE, list[PlacedLine]()
    for line in row.lines:
        lines.append(_line(line, y))
        y += LINE * len(lines[-1].texts)
    return PlacedRow(top, y - LINE / 2, row, tuple(lines))


# The strip of a chain: which two earlier blocks each block of a round reads.


MOST_LAYERS = 6
"""The largest depth of which all blocks are shown; otherwise those of two layers and the last."""

LEFT, TOP = 26.0, 92.0
BOX, BLOCK_PITCH, FOLD = (38.0, 22.0), 54.0, 34.0
"""The size of a block, the distance of neighbours, and the extra distance at a fold."""

HIGHEST, BEND = 74.0, 0.45
"""The largest height of an arrow above the blocks, and the curvature of lower arrows."""

BELOW = 76.0
"""The space below the blocks, for data and captions."""

ARROWS = ((BLUE, "the block before"), (ORANGE, "the block of the same layer"), (GREEN, "data"))
"""What a block reads, by the colour of the arrow."""


def strip_height(mask: ChainMask) -> float:
    """Return the height of the strip."""
    return _base(mask) - TOP + BOX[1] + BELOW


def _base(mask: ChainMask) -> float:
    """Return the height of the top of the blocks, below the highest arrow."""
    places = block_places(mask)
    spans = [places[end] - places[start] for start, end in far_arrows(mask)]
    return TOP + 40.0 + min(HIGHEST, BEND * max(spans, default=0.0) / 2)


def block_places(mask: ChainMask) -> dict[int, float]:
    """Return the positions of the shown blocks by number, with wider gaps at folds."""
    shown = range(1, mask.depth + 1) if mask.depth <= MOST_LAYERS else (1, 2, mask.depth)
    numbers = [n for n in range(1 - mask.depth, 2 * mask.depth + 1) if layer_of(mask, n) in shown]
    places = {numbers[0]: LEFT}
    for before, number in pairwise(numbers):
        places[number] = places[before] + BLOCK_PITCH + (FOLD if number > before + 1 else 0.0)
    return places


def far_arrows(mask: ChainMask) -> list[tuple[int, int]]:
    """Return pairs of shown blocks, of which the second reads the first as its second input."""
    shown = block_places(mask)
    readings = [reading for reading in mask.walk_round(0) if reading.number in shown]
    return [(r.far, r.number) for r in readings if r.far is not None and r.far in shown]


def layer_of(mask: ChainMask, number: int) -> int:
    """Return the layer of a block."""
    # The blocks of the prompt are B_N .. B_1, numbered -(N - 1) .. 0.
    return 1 - number if number < 1 else mask.place(number).layer


def block_name(mask: ChainMask, number: int) -> str:
    """Return F or B, for a forward or a backward block, and the layer."""
    is_forward = number > 0 and mask.place(number).is_forward
    return f"{'F' if is_forward else 'B'}{layer_of(mask, number)}"


def draw_chain(program: ChainProgram, canvas: Canvas) -> None:
    """Draw the initial blocks and those of the first round, with arrows from what each reads."""
    examples = counted(program.batch_size, "example")
    title = f"The chain: round 1 of {program.n_steps:,}, each a step on {examples}"
    canvas.text((LEFT, TOP), title, size=10.5, bold=True)
    x = LEFT
    for colour, words in ARROWS:
        canvas.arrow((x, TOP + 18), (x + 18, TOP + 18), colour)
        canvas.text((x + 23, TOP + 18), f"reads {words}", size=9)
        x += 23 + 5.2 * len(words) + 50
    strip = _Strip(canvas, program.mask)
    strip.draw_blocks()
    strip.draw_near()
    strip.draw_far()
    strip.draw_captions()


class _Strip:
    """The blocks of one round on a canvas."""

    def __init__(self, canvas: Canvas, mask: ChainMask) -> None:
        self.canvas, self.mask = canvas, mask
        self.places, self.base = block_places(mask), _base(mask)
        self.middle = self.base + BOX[1] / 2

    def centre(self, number: int) -> float:
        return self.places[number] + BOX[0] / 2

    def draw_blocks(self) -> None:
        for number, x in self.places.items():
            name = block_name(self.mask, number)
            fill = FAINT if number < 1 else PURPLE if name.startswith("F") else BLUE
            self.canvas.box((x, self.base), BOX, fill, above=True)
            at = (self.centre(number), self.middle)
            self.canvas.text(at, name, size=10, colour="white", ha="center", bold=True)

    def draw_near(self) -> None:
        """Draw arrows from the previous block, and from the data."""
        for reading in self.mask.walk_round(0):
            if reading.number in self.places:
                x = self.places[reading.number]
                # After a fold the previous block is not shown: draw a short arrow.
                start = x - BLOCK_PITCH + BOX[0] if reading.number - 1 in self.places else x - 18
                self.canvas.arrow((start + 1, self.middle), (x - 1, self.middle), BLUE)
                self._draw_data(reading)

    def _draw_data(self, reading: Reading) -> None:
        if reading.far is None:
            x, y = self.centre(reading.number), self.base + BOX[1]
            self.canvas.arrow((x, y + 19), (x, y + 1), GREEN)
            name = "X" if reading.place.is_forward else "Y"
            self.canvas.text((x, y + 27), name, size=10, colour=GREEN, ha="center", bold=True)

    def draw_far(self) -> None:
        """Draw curved arrows from the second block that is read, higher the longer they are."""
        for start, end in far_arrows(self.mask):
            left, right = self.centre(start) + 4, self.centre(end) - 6
            bend = min(BEND, 2 * HIGHEST / (right - left))
            self.canvas.arrow((left, self.base - 1), (right, self.base - 1), ORANGE, bend=-bend)

    def draw_captions(self) -> None:
        """Draw captions below the blocks, and an arrow to the next round beside them."""
        n = self.mask.depth
        for first, last, words in (
            (1 - n, 0, "prompt: initial weights"),
            (1, n, "forward"),
            (n + 1, 2 * n, "backward: new weights"),
        ):
            self._draw_caption(self.places[first], self.places[last] + BOX[0], words)
        for before, number in pairwise(self.places):
            if number > before + 1:
                x = self.places[before] + BOX[0] + 18
                self.canvas.text((x, self.middle - 3), "…", size=14, ha="center")
        x = self.places[2 * n] + BOX[0]
        self.canvas.arrow((x + 1, self.middle), (x + 15, self.middle), BLUE)
        self.canvas.text((x + 20, self.middle), "next round", size=9, colour=INK)

    def _draw_caption(self, left: float, right: float, words: str) -> None:
        """Draw a line below blocks and a caption in two rows, which fits below a single block."""
        y = self.base + BOX[1] + 40
        self.canvas.line((left, y), (right, y), FAINT, 0.8)
        for row, text in enumerate(words.split(": ")):
            at = ((left + right) / 2, y + 10 + 12 * row)
            self.canvas.text(at, text, size=9, colour=INK, ha="center")


TONES = {
    "input": (GREEN, "inputs"),
    "label": (ORANGE, "labels and predictions"),
    "residual": (ORANGE, "residuals: label minus prediction"),
    "velocity": (ORANGE, "changes in the last step"),
    "parameter": (BLUE, "trained weights"),
    NEAR: (BLUE, "the block before"),
    FAR: (ORANGE, "the block of the same layer, or data"),
    OUT: (RED, "the new block"),
    "scratch": (PURPLE, "intermediate results"),
    "shared": (RED, "gradients and steps"),
    "turn": (INK, "position in the order of batches"),
    "constant": (FAINT, "constants"),
}
"""The colours of slots and their legend, by role; those of a chain match its arrows."""

NAVY, BROWN, OLIVE = "#33527A", "#8A5A2B", "#4F6F3A"
KINDS: dict[LayerKind | None, tuple[str, str, str]] = {
    LayerKind.ATTENTION: ("{} attention", NAVY, "every token attends to all tokens; no softmax"),
    LayerKind.SOFTMAX: ("softmax attention", NAVY, "every token attends to others; softmax"),
    LayerKind.KERNEL: ("kernel attention", NAVY, "every token attends to the examples; a kernel"),
    LayerKind.GRID: ("grid attention", NAVY, "every token attends to a grid made by the layer"),
    LayerKind.MIRROR: (
        "mirror attention",
        NAVY,
        "every token attends to all tokens and their negatives; softmax",
    ),
    LayerKind.MLP: ("MLP", BROWN, "hidden units at every token"),
    LayerKind.PRODUCT: ("product", OLIVE, "products of features at every token"),
    None: ("several kinds", FAINT, ""),
}
"""The name, colour and explanation of each kind of layer."""

PAPER, THREAD, RULE = "#F4F6F9", "#E2E2E2", "#C9C9C9"
HEADING_WIDTH = 6.4
"""The width of a letter of a heading, which covers the lines of slots."""

SLANT = 60.0
"""The angle of the names of columns, in degrees."""

MARKS = {
    "reads": ("o", 5.0, True),
    "flags": ("o", 4.5, False),
    "sets": ("s", 8.0, True),
    "adds": ("P", 8.5, True),
    "wipes": ("X", 7.0, False),
}
"""The marker of each use of a slot: its shape, its size, and whether it is filled."""

HOW_TO_READ = "a column is a slot of the residual stream, a row is a layer; time runs down"

WORDS = {
    "reads": "reads",
    "flags": "only if a flag is set",
    "sets": "sets",
    "adds": "adds to",
    "wipes": "wipes: sets to 0",
}


def draw(
    program: AbstractProgram, title: str, path: str | os.PathLike[str] | None = None
) -> Picture:
    """Draw a program, and save the picture if there is a path."""
    placed = plan(diagram(program), title, above_of(program))
    canvas = Canvas(placed.width, placed.height)
    canvas.text((MARGIN, 26), title, size=TITLE_SIZE, bold=True)
    canvas.text((MARGIN, 47), placed.diagram.facts, size=10.5, colour=FAINT)
    canvas.text((MARGIN, 63), HOW_TO_READ, size=10.5, colour=FAINT)
    draw_above(program, canvas)
    _draw_stream(canvas, placed)
    for section in placed.sections:
        _draw_section(canvas, placed, section)
    _draw_ends(canvas, placed)
    _draw_legend(canvas, placed)
    return saved(Picture(title, canvas.figure), path)


@singledispatch
def above_of(program: AbstractProgram) -> float:
    """Return the height of the drawing above the layers."""
    return 0.0


@above_of.register
def _above_of_chain(program: ChainProgram) -> float:
    return strip_height(program.mask)


@singledispatch
def draw_above(program: AbstractProgram, canvas: Canvas) -> None:
    """Draw the part above the layers: the chain, or nothing."""


@draw_above.register
def _draw_above_chain(program: ChainProgram, canvas: Canvas) -> None:
    draw_chain(program, canvas)


def _draw_stream(canvas: Canvas, placed: Plan) -> None:
    """Draw names of slots, a faint line for each, and a strong one while the slot holds a value."""
    for place, column in enumerate(placed.diagram.columns):
        x = placed.x(place)
        at = (x + 2, placed.names + 8)
        canvas.text(at, column.label, size=NAME_SIZE, colour=_ink(column), rotation=SLANT)
        canvas.line((x, placed.start.y), (x, placed.end.y), THREAD, 1.0)
    for place, start, end in placed.lifelines():
        tone, x = placed.diagram.columns[place].tone, placed.x(place)
        width = 1.4 if tone == "constant" else 2.4
        canvas.line((x, start), (x, end), TONES[tone][0], width, alpha=0.55)
    for group, run in groupby(range(len(placed.diagram.columns)), lambda p: _group(placed, p)):
        _draw_group(canvas, placed, group, list(run))


def _group(placed: Plan, place: int) -> str:
    return placed.diagram.columns[place].group


def _draw_group(canvas: Canvas, placed: Plan, group: str, places: list[int]) -> None:
    """Draw a line below the names of a group of columns, with its heading if it fits."""
    left, right = placed.x(places[0]) - 6, placed.x(places[-1]) + 6
    y = placed.names + 13
    canvas.line((left, y), (right, y), RULE, 1.0)
    if len(group) * 4.6 < right - left + 4:
        canvas.text(((left + right) / 2, y + 7), group, size=7.5, colour=FAINT, ha="center")


def _ink(column: Column) -> str:
    return INK if column.tone == "constant" else TONES[column.tone][0]


def _draw_section(canvas: Canvas, placed: Plan, section: PlacedSection) -> None:
    """Draw a pale box around the layers of a section, with its heading."""
    corner, size = (
        (MARGIN - 10, section.top + 2),
        (placed.width - 2 * MARGIN + 20, section.bottom - section.top),
    )
    canvas.box(corner, size, PAPER, round=6.0)
    at, heading = (MARGIN, section.top + 17), section.section.heading
    canvas.box((MARGIN, at[1] - 9), (len(heading) * HEADING_WIDTH, 18), PAPER, above=True)
    canvas.text(at, heading, size=10.5, bold=True)
    for row in section.rows:
        _draw_row(canvas, placed, row)


def _draw_row(canvas: Canvas, placed: Plan, row: PlacedRow) -> None:
    """Draw the number, kind and size of a layer on the left, and its instructions on the right."""
    name, colour, _ = _kind(placed.diagram, row.row.kind)
    y = row.top + LINE / 2
    for number, text in enumerate(row.row.number.split(" ", 1)):
        at = (MARGIN + 32, y + LINE * number)
        canvas.text(at, text, size=9.5, colour=FAINT, ha="right")
    canvas.box((MARGIN + 37, y - 7.5), (len(name) * 5.6 + 14, 15), colour, round=7.0)
    canvas.text((MARGIN + 44, y), name, size=9, colour="white", bold=True)
    canvas.text((MARGIN + 44, y + LINE), row.row.size, size=8.5, colour=FAINT)
    canvas.text((placed.sentences, y), row.row.title, size=9.5, bold=True)
    for line in row.lines:
        _draw_line(canvas, placed, line, f"layer-{row.row.number}")


def _kind(of: Diagram, kind: LayerKind | None) -> tuple[str, str, str]:
    name, colour, words = KINDS[kind]
    return name.format(of.activation), colour, words


def _draw_line(canvas: Canvas, placed: Plan, line: PlacedLine, name: str) -> None:
    """Draw the markers of an instruction, and a thin line from them to its sentence."""
    places = [placed.diagram.place_of[slot] for slot in line.line.touched]
    if places:
        canvas.line((placed.x(min(places)), line.y), (placed.sentences - 5, line.y), RULE, 0.8)
    for use in MARKS:
        for place in sorted({placed.diagram.place_of[s] for s in getattr(line.line, use)}):
            slot = placed.diagram.columns[place].slots[0].name
            _mark(canvas, use, (placed.x(place), line.y), placed, place, f"{name}-{use}-{slot}")
    for number, text in enumerate(line.texts):
        shift = INDENT * bool(number)  # SVG drops leading spaces of a text
        at = (placed.sentences + shift, line.y + number * LINE)
        canvas.text(at, text.lstrip(), size=SENTENCE_SIZE, mono=True)


def _mark(canvas: Canvas, use: str, at: Point, placed: Plan, place: int, name: str) -> None:
    colour = TONES[placed.diagram.columns[place].tone][0]
    _stamp(canvas, use, at, colour, name)


def _stamp(canvas: Canvas, use: str, at: Point, colour: str, name: str) -> None:
    shape, size, is_filled = MARKS[use]
    canvas.mark(at, shape, colour, size=size, fill=colour if is_filled else "white", name=name)


def _draw_ends(canvas: Canvas, placed: Plan) -> None:
    """Draw the first line, the prompt, and the last line, the results."""
    for line, title in zip((placed.start, placed.end), placed.diagram.ends, strict=True):
        canvas.text((MARGIN, line.y), title, size=10.5, bold=True)
        _draw_line(canvas, placed, line, title.lower().replace(" ", "-"))


def _draw_legend(canvas: Canvas, placed: Plan) -> None:
    """Draw the legend of markers, colours and kinds of layer."""
    y = placed.legend
    canvas.line((MARGIN, y - 6), (placed.width - MARGIN, y - 6), RULE, 0.8)
    x, y = MARGIN + 6, y + LINE
    used = {use for line in placed.lines for use in MARKS if getattr(line.line, use)}
    for use, words in ((use, words) for use, words in WORDS.items() if use in used):
        _stamp(canvas, use, (x, y), INK, f"legend-{use}")
        canvas.text((x + 9, y), words, size=9)
        x += 9 + len(words) * 5.0 + 22
    x, y = MARGIN + 6, y + LINE * 1.3
    for tone in dict.fromkeys(column.tone for column in placed.diagram.columns):
        colour, words = TONES[tone]
        canvas.line((x - 5, y), (x + 5, y), colour, 4.0, alpha=0.7)
        canvas.text((x + 9, y), words, size=9)
        x += 9 + len(words) * 5.0 + 22
    for kind in placed.diagram.kinds:
        y += LINE * 1.2
        name, colour, words = _kind(placed.diagram, kind)
        canvas.text((MARGIN, y), name, size=9, colour=colour, bold=True)
        canvas.text((MARGIN + 120, y), words, size=9)
