"""The chain of blocks as a strip: which two earlier blocks each block of a round reads."""

from __future__ import annotations

from itertools import pairwise

from icgd.facts import counted
from icgd.pictures.canvas import Canvas
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE
from icgd.program.chain import ChainMask, ChainProgram, Reading

MOST_LAYERS = 6
"""Of a deeper network the blocks of two layers and of the last one are shown."""

LEFT, TOP = 26.0, 92.0
BOX, PITCH, FOLD = (38.0, 22.0), 54.0, 34.0
"""The size of a block, the distance of neighbours, and what a fold adds to it."""

HIGHEST, BEND = 74.0, 0.45
"""How high an arrow may rise above the blocks, and how much it bends if it stays below that."""

BELOW = 76.0
"""The room below the blocks for the data and for captions."""

ARROWS = ((BLUE, "the block before"), (ORANGE, "the block of the same layer"), (GREEN, "data"))
"""What a block reads, by the colour of the arrow."""


def strip_height(mask: ChainMask) -> float:
    """The height of the strip."""
    return _base(mask) - TOP + BOX[1] + BELOW


def _base(mask: ChainMask) -> float:
    """Where the blocks begin: below the highest arrow."""
    places = block_places(mask)
    spans = [places[end] - places[start] for start, end in far_arrows(mask)]
    return TOP + 40.0 + min(HIGHEST, BEND * max(spans, default=0.0) / 2)


def block_places(mask: ChainMask) -> dict[int, float]:
    """Where the shown blocks stand, by number, with wider gaps where blocks are folded."""
    shown = range(1, mask.depth + 1) if mask.depth <= MOST_LAYERS else (1, 2, mask.depth)
    numbers = [n for n in range(1 - mask.depth, 2 * mask.depth + 1) if layer_of(mask, n) in shown]
    places = {numbers[0]: LEFT}
    for before, number in pairwise(numbers):
        places[number] = places[before] + PITCH + (FOLD if number > before + 1 else 0.0)
    return places


def far_arrows(mask: ChainMask) -> list[tuple[int, int]]:
    """The blocks that are read and those that read them, where both are shown and no neighbours."""
    shown = block_places(mask)
    readings = [reading for reading in mask.walk_round(0) if reading.number in shown]
    return [(r.far, r.number) for r in readings if r.far is not None and r.far in shown]


def layer_of(mask: ChainMask, number: int) -> int:
    """The layer of a block; those of the prompt are B_N .. B_1, and B_1 has the number 0."""
    return 1 - number if number < 1 else mask.place(number).layer


def block_name(mask: ChainMask, number: int) -> str:
    """F or B, for a forward or a backward block, and the layer."""
    is_forward = number > 0 and mask.place(number).is_forward
    return f"{'F' if is_forward else 'B'}{layer_of(mask, number)}"


def draw_chain(program: ChainProgram, canvas: Canvas) -> None:
    """The initial blocks, then those of the first round, with arrows from what each reads."""
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
        """Arrows from the block before, and from the data."""
        for reading in self.mask.walk_round(0):
            if reading.number in self.places:
                here = self.places[reading.number]
                room = PITCH if reading.number - 1 in self.places else PITCH + FOLD
                start = here - room + BOX[0] if room == PITCH else here - 18
                self.canvas.arrow((start + 1, self.middle), (here - 1, self.middle), BLUE)
                self._draw_data(reading)

    def _draw_data(self, reading: Reading) -> None:
        if reading.far is None:
            x, y = self.centre(reading.number), self.base + BOX[1]
            self.canvas.arrow((x, y + 19), (x, y + 1), GREEN)
            name = "X" if reading.place.is_forward else "Y"
            self.canvas.text((x, y + 27), name, size=10, colour=GREEN, ha="center", bold=True)

    def draw_far(self) -> None:
        """Curves that rise the higher the further they reach, but stay within the strip."""
        for start, end in far_arrows(self.mask):
            left, right = self.centre(start) + 4, self.centre(end) - 6
            bend = min(BEND, 2 * HIGHEST / (right - left))
            self.canvas.arrow((left, self.base - 1), (right, self.base - 1), ORANGE, bend=-bend)

    def draw_captions(self) -> None:
        """Below the blocks: what they are; beside them that it goes on."""
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
        """A line below blocks with words in two rows, so that those of one block fit."""
        y = self.base + BOX[1] + 40
        self.canvas.line((left, y), (right, y), FAINT, 0.8)
        for row, text in enumerate(words.split(": ")):
            at = ((left + right) / 2, y + 10 + 12 * row)
            self.canvas.text(at, text, size=9, colour=INK, ha="center")
