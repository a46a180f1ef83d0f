"""Plot the residual stream of a run as a heat map: slots, or the tokens of one slot, by layer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import singledispatch

import torch
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from torch import Tensor

from icgd.errors import ProgramError
from icgd.pictures import plotting
from icgd.pictures.picture import Picture, saved
from icgd.pictures.plotting import INK, Axes, Figure
from icgd.program.chain import ChainProgram
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram

SHADES = LinearSegmentedColormap.from_list("shades", ("#D6E6F4", "#6AAED6", "#2070B4", "#08306B"))
"""From small to large values; exact zeros are white."""

LEAST_SHARE = 1e-12
"""The value of the lightest shade, relative to the largest."""

MOST_NAMES = 60
"""The largest number of labelled rows."""

MOST_STEPS = 60
"""The largest number of steps with dividing lines; more lines would hide the map."""

TITLE = "The residual stream, layer by layer"


def draw(
    trace: Mapping[str, Tensor],
    program: AbstractProgram,
    slot: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Picture:
    """Draw a row for each traced slot, or for each token of `slot`, and a column for each layer."""
    names, values = (list(trace), by_slot(trace)) if slot is None else by_token(trace[slot])
    title = TITLE if slot is None else f"Slot {slot}, token by token and layer by layer"
    size = (10.5, 1.9 + 0.22 * min(len(names), MOST_NAMES))
    figure, (panel,) = plotting.new_figure(*size, 1)
    plotting.describe(panel, title, layers_in_words(program), "")
    _draw_map(figure, panel, values)
    _name_rows(panel, names)
    starts = step_starts(program, values.shape[1])
    for start in starts if len(starts) <= MOST_STEPS else ():
        panel.axvline(start - 0.5, color=INK, lw=0.7, ls=":")
    return saved(Picture(title, figure), path)


def by_slot(trace: Mapping[str, Tensor]) -> Tensor:
    """Return the root mean square of every slot (row) after every layer (column)."""
    rows = [_mean_square(values, (-2, -1)) for values in trace.values()]
    return torch.stack(rows).sqrt()


def by_token(values: Tensor) -> tuple[list[str], Tensor]:
    """Return names of tokens, and the root mean square of a slot at each token (row) after each
    layer (column).
    """
    rows = _mean_square(values, (-1,)).sqrt().mT
    return [f"token {number}" for number in range(len(rows))], rows


def _mean_square(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the mean square over `axes` and over all tasks."""
    squares = values.double().square().mean(axes)
    n_axes = 3 - len(axes)
    return squares.flatten(0, -n_axes - 1).mean(0) if squares.ndim > n_axes else squares


def _draw_map(figure: Figure, panel: Axes, values: Tensor) -> None:
    """Draw a heat map with a logarithmic scale and a colour bar."""
    largest = float(values.max()) or 1.0
    scale = LogNorm(max(float(values[values > 0].min()), LEAST_SHARE * largest), largest, clip=True)
    shown = values.where(values > 0, torch.nan).numpy()
    shades = panel.imshow(shown, aspect="auto", cmap=SHADES, norm=scale, interpolation="nearest")
    bar = figure.colorbar(shades, ax=panel, pad=0.01, aspect=30)
    bar.set_label("root mean square; white: exactly 0", fontsize=10, color=INK)
    panel.grid(visible=False)


def _name_rows(panel: Axes, names: list[str]) -> None:
    stride = -(-len(names) // MOST_NAMES)
    shown = range(0, len(names), stride)
    panel.set_yticks(list(shown), [names[place] for place in shown], fontsize=9)


@singledispatch
def step_starts(program: AbstractProgram, n_columns: int) -> range:
    """Return the columns at which steps begin, and the one after the last step."""
    raise ProgramError(f"{type(program).__name__} has no rule in pictures/stream_picture.py")


@step_starts.register
def _of_stack(program: StackProgram, n_columns: int) -> range:
    # Column 0 is the prompt.
    return range(1, n_columns, max(1, program.layers_per_step))


@step_starts.register
def _of_chain(program: ChainProgram, n_columns: int) -> range:
    # The first columns are the blocks of the prompt.
    return range(program.mask.depth, n_columns, program.mask.blocks_per_round)


@singledispatch
def layers_in_words(program: AbstractProgram) -> str:
    """Return the label of the axis of columns."""
    return "layer (0: the prompt); dotted lines separate training steps"


@layers_in_words.register
def _blocks_in_words(program: ChainProgram) -> str:
    return "block of the chain (first those of the prompt); dotted lines separate rounds"
