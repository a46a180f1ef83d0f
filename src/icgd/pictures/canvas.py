"""A drawing surface in points, with y downwards: marks, texts and boxes at exact positions."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from icgd.pictures.plotting import DOTS_PER_INCH, INK, Figure

POINTS_PER_INCH = 72.0

MONO_WIDTH, SANS_WIDTH, BOLD_WIDTH = 0.602, 0.59, 0.68
"""The average width of a letter relative to the font size: monospaced, sans-serif, and bold."""

Number = float | int
Point = tuple[Number, Number]


class Canvas:
    """A figure of `width` times `height` points, with the origin at the top left."""

    def __init__(self, width: Number, height: Number) -> None:
        size = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
        self.figure = Figure(figsize=size, dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(self.figure)
        self.panel = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.panel.axis("off")

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: Number = 9.5,
        colour: str = INK,
        ha: str = "left",
        va: str = "center",
        mono: bool = False,
        bold: bool = False,
        rotation: Number = 0.0,
    ) -> None:
        """Write a line of text."""
        self.panel.text(
            *at,
            text,
            fontsize=size,
            color=colour,
            ha=ha,
            va=va,
            family="monospace" if mono else "sans-serif",
            weight="bold" if bold else "normal",
            rotation=rotation,
            rotation_mode="anchor",
            parse_math=False,
        )

    def line(
        self, start: Point, end: Point, colour: str, width: Number = 1.0, *, alpha: Number = 1.0
    ) -> None:
        """Draw a straight line."""
        across, down = zip(start, end, strict=True)
        self.panel.plot(
            across, down, color=colour, lw=width, alpha=alpha, solid_capstyle="butt", zorder=1
        )

    def mark(
        self, at: Point, shape: str, colour: str, *, size: Number, fill: str, name: str
    ) -> None:
        """Draw a marker; `name` is its id in an SVG file."""
        self.panel.plot(
            *at, marker=shape, ms=size, mfc=fill, mec=colour, mew=1.3, ls="", gid=name, zorder=3
        )

    def box(
        self, corner: Point, size: Point, fill: str, *, round: Number = 3.0, above: bool = False
    ) -> None:
        """Draw a box with rounded corners behind everything else, or above the lines."""
        style = f"round,pad=0,rounding_size={round}"
        order = 2 if above else 0
        self.panel.add_patch(
            FancyBboxPatch(corner, *size, boxstyle=style, fc=fill, lw=0.0, zorder=order)
        )

    def arrow(self, start: Point, end: Point, colour: str, *, bend: Number = 0.0) -> None:
        """Draw an arrow, curved if `bend` is not 0."""
        self.panel.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=9, color=colour, lw=1.2,
                connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=0, zorder=2,
            )
        )  # fmt: skip

    def texts(self) -> Sequence[str]:
        """Return all texts in the order in which they were written."""
        return [text.get_text() for text in self.panel.texts]
