"""The mask of a chain as a picture: which block (row) reads which (column)."""

from __future__ import annotations

from dataclasses import dataclass

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, GREEN, INK, ORANGE, Axes, Figure
from icgd.program.chain import ChainMask


@dataclass(frozen=True)
class Picture:
    """Names of the rows and columns, and the cells (row, column) that are read, by their kind.

    A name such as F_1^{(2)} is that of the forward block of layer 1 in round 2; the blocks of round
    0 hold the initial weights.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    near: tuple[tuple[int, int], ...]
    far: tuple[tuple[int, int], ...]
    data: tuple[tuple[int, int], ...]


def measure(depth: int = 3, n_rounds: int = 2) -> Picture:
    """What the mask of a network of `depth` layers lets the blocks of so many rounds read."""
    mask = ChainMask(depth)
    n_data, matrix = 2 * n_rounds, mask.matrix(n_rounds)
    steps = [step.place for step in mask.walk(1, len(matrix))]
    rows = tuple(
        f"{'F' if step.is_forward else 'B'}_{step.layer}^{{({step.round + 1})}}" for step in steps
    )
    data = tuple(f"{name}^{{({number})}}" for number in range(1, n_rounds + 1) for name in "XY")
    initial = tuple(f"B_{layer}^{{(0)}}" for layer in range(depth, 0, -1))
    cells = [
        (row, column)
        for row, reads in enumerate(matrix)
        for column, is_read in enumerate(reads)
        if is_read
    ]
    near = tuple(cell for cell in cells if cell[1] == n_data + depth - 1 + cell[0])
    return Picture(
        rows=rows,
        columns=(*data, *initial, *rows),
        near=near,
        far=tuple(cell for cell in cells if cell[1] >= n_data and cell not in near),
        data=tuple(cell for cell in cells if cell[1] < n_data),
    )


def draw(picture: Picture) -> Figure:
    """A square for every block that is read."""
    figure, (panel,) = plotting.new_figure(9.0, 6.0, 1)
    kinds = ((picture.near, BLUE), (picture.far, ORANGE), (picture.data, GREEN))
    for cells, colour in kinds:
        rows, columns = zip(*cells, strict=True) if cells else ((), ())
        panel.scatter(columns, rows, marker="s", s=150, color=colour)
    _name_ticks(panel, picture)
    plotting.legend(figure, [("block before", BLUE), ("same layer", ORANGE), ("data", GREEN)])
    plotting.describe(
        panel,
        "Every block of the chain reads two others",
        "block that is read: forward (F) or backward (B), layer below, round above; round 0 is the "
        "prompt",
        "block that reads",
    )
    return figure


def _name_ticks(panel: Axes, picture: Picture) -> None:
    """Blocks by name, the first row on top."""
    columns, rows = ([f"${name}$" for name in part] for part in (picture.columns, picture.rows))
    panel.set_xticks(range(len(columns)), columns, fontsize=11, color=INK)
    panel.set_yticks(range(len(rows)), rows, fontsize=11, color=INK)
    panel.set_xlim(-0.7, len(picture.columns) - 0.3)
    panel.set_ylim(len(picture.rows) - 0.3, -0.7)
