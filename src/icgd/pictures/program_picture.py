"""A program drawn: slots of the residual stream as columns, layers as rows, time runs down.

A slot's line is strong from where something is written to it until it is wiped. Texts have the
same size in every picture: a larger program makes a larger picture.
"""

from __future__ import annotations

import os
from functools import singledispatch
from itertools import groupby

from icgd.pictures.canvas import Canvas, Point
from icgd.pictures.chain_strip import draw_chain, strip_height
from icgd.pictures.diagram import Column, Diagram, diagram
from icgd.pictures.picture import Picture, saved
from icgd.pictures.plan import (
    INDENT,
    LINE,
    MARGIN,
    NAME_SIZE,
    SENTENCE_SIZE,
    TITLE_SIZE,
    PlacedLine,
    PlacedRow,
    PlacedSection,
    Plan,
    plan,
)
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED
from icgd.program.chain import FAR, NEAR, OUT, ChainProgram
from icgd.program.instructions import LayerKind
from icgd.program.program import AbstractProgram

TONES = {
    "input": (GREEN, "inputs"),
    "label": (ORANGE, "labels and predictions"),
    "residual": (ORANGE, "what is left to learn"),
    "velocity": (ORANGE, "how it changed in the last step"),
    "parameter": (BLUE, "weights that are trained"),
    NEAR: (BLUE, "the block before"),
    FAR: (ORANGE, "the block of the same layer, or data"),
    OUT: (RED, "the block that is written"),
    "scratch": (PURPLE, "intermediate results"),
    "shared": (RED, "gradients, and what is made of them"),
    "turn": (INK, "whose turn it is"),
    "constant": (FAINT, "constants"),
}
"""The colours of slots, by what they are for; those of a chain are the colours of its arrows."""

NAVY, BROWN, OLIVE = "#33527A", "#8A5A2B", "#4F6F3A"
KINDS: dict[LayerKind | None, tuple[str, str, str]] = {
    LayerKind.ATTENTION: ("{} attention", NAVY, "every token reads all tokens; no softmax"),
    LayerKind.SOFTMAX: ("softmax attention", NAVY, "every token reads others, by a softmax"),
    LayerKind.KERNEL: ("kernel attention", NAVY, "every token reads the examples, by a kernel"),
    LayerKind.GRID: ("grid attention", NAVY, "every token reads a grid that the layer makes"),
    LayerKind.MLP: ("MLP", BROWN, "every token on its own, by hidden units"),
    LayerKind.PRODUCT: ("product", OLIVE, "every token multiplies features of its own"),
    None: ("several kinds", FAINT, ""),
}
"""The kinds of layer: what they are called, their colour, and what they do."""

PAPER, THREAD, RULE = "#F4F6F9", "#E2E2E2", "#C9C9C9"
HEADING_WIDTH = 6.4
"""The width of a letter of a heading, behind which the lines of slots pass."""

SLANT = 60.0
"""The degrees by which names of columns rise."""

MARKS = {
    "reads": ("o", 5.0, True),
    "flags": ("o", 4.5, False),
    "sets": ("s", 8.0, True),
    "adds": ("P", 8.5, True),
    "wipes": ("X", 7.0, False),
}
"""The mark of each use of a slot: its shape, its size, and whether it is filled."""

HOW_TO_READ = "a column is a slot of the residual stream, a row is a layer; time runs down"

WORDS = {
    "reads": "reads",
    "flags": "only where a flag says so",
    "sets": "sets",
    "adds": "adds to",
    "wipes": "wipes",
}


def draw(
    program: AbstractProgram, title: str, path: str | os.PathLike[str] | None = None
) -> Picture:
    """The picture of a program, which is also written to `path` if there is one."""
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
    """The height of what stands above the layers."""
    return 0.0


@above_of.register
def _above_of_chain(program: ChainProgram) -> float:
    return strip_height(program.mask)


@singledispatch
def draw_above(program: AbstractProgram, canvas: Canvas) -> None:
    """Draw what stands above the layers."""


@draw_above.register
def _draw_above_chain(program: ChainProgram, canvas: Canvas) -> None:
    draw_chain(program, canvas)


def _draw_stream(canvas: Canvas, placed: Plan) -> None:
    """Names of the slots, faint threads, and strong lines while a slot holds something."""
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
    """A line below the names of neighbouring columns, with their common name if it fits."""
    left, right = placed.x(places[0]) - 6, placed.x(places[-1]) + 6
    y = placed.names + 13
    canvas.line((left, y), (right, y), RULE, 1.0)
    if len(group) * 4.6 < right - left + 4:
        canvas.text(((left + right) / 2, y + 7), group, size=7.5, colour=FAINT, ha="center")


def _ink(column: Column) -> str:
    return INK if column.tone == "constant" else TONES[column.tone][0]


def _draw_section(canvas: Canvas, placed: Plan, part: PlacedSection) -> None:
    """A pale box around layers that belong together, with a heading."""
    corner, size = (
        (MARGIN - 10, part.top + 2),
        (placed.width - 2 * MARGIN + 20, part.bottom - part.top),
    )
    canvas.box(corner, size, PAPER, round=6.0)
    at, heading = (MARGIN, part.top + 17), part.section.heading
    canvas.box((MARGIN, at[1] - 9), (len(heading) * HEADING_WIDTH, 18), PAPER, above=True)
    canvas.text(at, heading, size=10.5, bold=True)
    for row in part.rows:
        _draw_row(canvas, placed, row)


def _draw_row(canvas: Canvas, placed: Plan, row: PlacedRow) -> None:
    """The number, kind and size of a layer on the left, what it does on the right."""
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
    """The marks of an instruction, joined by a thin line that leads to its sentence."""
    places = [placed.diagram.place_of[slot] for slot in line.line.touched]
    if places:
        canvas.line((placed.x(min(places)), line.y), (placed.sentences - 5, line.y), RULE, 0.8)
    for use in MARKS:
        for place in sorted({placed.diagram.place_of[s] for s in getattr(line.line, use)}):
            slot = placed.diagram.columns[place].slots[0].name
            _mark(canvas, use, (placed.x(place), line.y), placed, place, f"{name}-{use}-{slot}")
    for number, text in enumerate(line.texts):
        shift = INDENT * bool(number)  # an SVG file keeps no spaces in front of a text
        at = (placed.sentences + shift, line.y + number * LINE)
        canvas.text(at, text.lstrip(), size=SENTENCE_SIZE, mono=True)


def _mark(canvas: Canvas, use: str, at: Point, placed: Plan, place: int, name: str) -> None:
    colour = TONES[placed.diagram.columns[place].tone][0]
    _stamp(canvas, use, at, colour, name)


def _stamp(canvas: Canvas, use: str, at: Point, colour: str, name: str) -> None:
    shape, size, is_filled = MARKS[use]
    canvas.mark(at, shape, colour, size=size, fill=colour if is_filled else "white", name=name)


def _draw_ends(canvas: Canvas, placed: Plan) -> None:
    """What the prompt holds, and what is read in the end."""
    for line, title in zip((placed.start, placed.end), placed.diagram.ends, strict=True):
        canvas.text((MARGIN, line.y), title, size=10.5, bold=True)
        _draw_line(canvas, placed, line, title.lower().replace(" ", "-"))


def _draw_legend(canvas: Canvas, placed: Plan) -> None:
    """What marks, colours and kinds of layer mean."""
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
