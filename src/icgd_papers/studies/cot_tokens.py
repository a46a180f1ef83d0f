r"""cot-tokens: how many grid tokens a head of Section 3 needs for a lasso of L steps.

Remark 3.3 and Appendix C.3 of cot keep a chain's errors below what L exact steps leave: each step
may err by eps = R^2 / (8 C L^2), for which the paper takes H = O(L^4) heads. Here every example has
one head, and the tokens of its grid are counted until the measured error is small enough:

    nearest points   the grid of Lemma A.5, whose softmax picks the point nearest to s - y
    lattice          wide weights on a coarse grid that goes beyond the reach

for two accuracies: the error of every step of the chain is at most eps ("each step"), or the chain
ends within |w*| / L^2 of exact proximal descent ("the end").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log, sqrt
from typing import NamedTuple

import polars as pl
import torch
from torch import Tensor

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.training.covariates import normal
from icgd_papers.training.tasks import generator_of

LATTICE, NEAREST = "lattice", "nearest points"
EACH_STEP, END = "each step", "the end"

DIMENSION, N_EXAMPLES, L1 = 3, 10, 0.1

GROWTH = 1.03
"""Factor between the grids of nearest points that are tried: their error is no smooth function."""


class Grid(NamedTuple):
    """The slopes, offsets and values of a head's tokens: scores are slopes * s + offsets."""

    slopes: Tensor
    offsets: Tensor
    values: Tensor


def smooth_line(reach: float, n_tokens: int = 31) -> Grid:
    """Return tokens that look up s itself, to rounding for |s| <= reach and 31 tokens.

    Their weights are wider than the grid's spacing, and the grid goes far beyond the reach.
    """
    spacing = 4 / 3 * reach
    points = spacing * (torch.arange(n_tokens, dtype=torch.float64) - (n_tokens - 1) / 2)
    variance = (spacing * min(0.285 * sqrt(n_tokens), 1.45)) ** 2
    return Grid(points / variance, -(points**2) / (2 * variance), points)


def nearest_points(
    low: float, high: float, n_tokens: int, values: Callable[[Tensor], Tensor] = torch.clone
) -> Grid:
    """Return the tokens of Lemma A.5, which look up the value at the grid point nearest to s."""
    points = torch.linspace(low, high, n_tokens, dtype=torch.float64)
    # A point that is further away by a spacing has a weight of exp(-40).
    slopes = 80 / (points[1] - points[0]) ** 2 * points
    return Grid(slopes, -slopes * points / 2, values(points))


def look_up(grid: Grid, s: Tensor) -> Tensor:
    """Return what a head over these tokens makes of the score s."""
    return torch.softmax(s[..., None] * grid.slopes + grid.offsets, -1) @ grid.values


@dataclass(frozen=True)
class Setting:
    """A curve's points at these lengths L, on the data of one seed."""

    grid: str
    accuracy: str
    seed: int
    lengths: tuple[int, ...]


def settings(preset: str, seed: int) -> list[Setting]:
    """Return both grids for both accuracies; nearest points grow too fast for long chains."""
    n_seeds, few, many = of_preset(
        {
            "smoke": (1, (3, 10), (3, 10, 30)),
            "laptop": (3, (3, 10, 30, 100), (3, 10, 30, 100, 300, 1000)),
            "paper": (10, (3, 10, 30, 100, 300), (3, 10, 30, 100, 300, 1000, 3000)),
        },
        preset,
    )
    return [
        Setting(grid, accuracy, seed + number, lengths)
        for grid, lengths in ((LATTICE, many), (NEAREST, few))
        for accuracy in (EACH_STEP, END)
        for number in range(n_seeds)
    ]


@dataclass(frozen=True)
class Lasso:
    """(1 / 2n) |X w - y|^2 + l1 |w|_1 with steps of 1 / beta, its minimiser and C of Theorem 3.3.

    A head's grid covers what the ball |w| <= R with R = 2 |w*| allows of <w, x> - y.
    """

    x: Tensor
    y: Tensor
    beta: float
    minimiser: Tensor

    @property
    def radius(self) -> float:
        return 2 * float(self.minimiser.norm())

    @property
    def reach(self) -> float:
        return self.radius * float(self.x.norm(dim=-1).max()) + float(self.y.abs().max())

    @property
    def slope(self) -> float:
        """C = C_0 + beta R + l1 sqrt(d), with the length C_0 of the gradient at 0."""
        initial = float((self.x.T @ self.y).norm()) / len(self.y)
        return initial + self.beta * self.radius + L1 * sqrt(self.x.shape[-1])

    def step(self, w: Tensor, grid: Grid | None = None) -> Tensor:
        """Return the next w: an exact step, or the layer's with one head for each example."""
        residual = self.x @ w - self.y
        read = residual if grid is None else look_up(grid, residual)
        moved = w - self.x.T @ read / (len(self.y) * self.beta)
        threshold = L1 / self.beta
        return torch.relu(moved - threshold) - torch.relu(-moved - threshold)

    def chain(self, n_steps: int, grid: Grid | None = None) -> Tensor:
        """Return w after 0 .. `n_steps` steps from 0."""
        points = [torch.zeros_like(self.minimiser)]
        for _ in range(n_steps):
            points.append(self.step(points[-1], grid))
        return torch.stack(points)

    def grid(self, kind: str, n_tokens: int) -> Grid:
        if kind == LATTICE:
            return smooth_line(self.reach, n_tokens)
        return nearest_points(-self.reach, self.reach, n_tokens)


def lasso(seed: int) -> Lasso:
    """Return a lasso on random data; its minimiser is where 20,000 exact steps end."""
    generator = generator_of(seed, 0, 0)
    x = normal(generator, N_EXAMPLES, DIMENSION)
    truth = torch.tensor([1.0, -0.8, 0.02], dtype=torch.float64)
    y = x @ truth + 0.1 * normal(generator, N_EXAMPLES)
    beta = float(torch.linalg.eigvalsh(x.T @ x / N_EXAMPLES)[-1])
    fit = Lasso(x, y, beta, torch.zeros(DIMENSION, dtype=torch.float64))
    return Lasso(x, y, beta, fit.chain(20_000)[-1])


def allowed_error(fit: Lasso, accuracy: str, length: int) -> float:
    """Return R^2 / (8 C L^2) for each step, or |w*| / L^2 for the end."""
    if accuracy == END:
        return float(fit.minimiser.norm()) / length**2
    return fit.radius**2 / (8 * fit.slope * length**2)


def measured_error(fit: Lasso, accuracy: str, length: int, grid: Grid) -> float:
    """Return the largest error of a step in the 2-norm, or the distance of the ends."""
    chain = fit.chain(length, grid)
    if accuracy == END:
        return float((chain[-1] - fit.chain(length)[-1]).norm())
    errors = [(after - fit.step(before)).norm() for before, after in pairwise(chain)]
    return float(torch.stack(errors).max())


def fewest_tokens(fit: Lasso, kind: str, accuracy: str, length: int) -> tuple[int, float]:
    """Return the first number of tokens that is accurate enough, and its error.

    All numbers are tried for the lattice. Nearest points err by at most half a spacing, which a
    step averages: the search begins where even a thirtieth of that is too much.
    """
    allowed, n_tokens = allowed_error(fit, accuracy, length), 3
    if kind == NEAREST:
        n_tokens = max(3, ceil(fit.reach / (30 * allowed)))
    while (error := measured_error(fit, accuracy, length, fit.grid(kind, n_tokens))) > allowed:
        n_tokens = n_tokens + 1 if kind == LATTICE else ceil(GROWTH * n_tokens) + 1
    return n_tokens, error


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Count the tokens at every length."""
    del job  # a curve takes minutes at most
    fit = lasso(setting.seed)
    counts = [
        fewest_tokens(fit, setting.grid, setting.accuracy, length) for length in setting.lengths
    ]
    return pl.DataFrame(
        {
            "grid": setting.grid,
            "accuracy": setting.accuracy,
            "seed": setting.seed,
            "length": setting.lengths,
            "tokens": [n_tokens for n_tokens, _ in counts],
            "error": [six_digits(error) for _, error in counts],
            "allowed": [
                six_digits(allowed_error(fit, setting.accuracy, length))
                for length in setting.lengths
            ],
        }
    )


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the median tokens at every length, and the exponent of their growth."""
    lines = []
    for (grid, accuracy), curve in rows.group_by("grid", "accuracy", maintain_order=True):
        medians = curve.group_by("length", maintain_order=True).agg(pl.col("tokens").median())
        lengths, tokens = medians["length"].to_list(), medians["tokens"].to_list()
        exponent = log(tokens[-1] / tokens[-2]) / log(lengths[-1] / lengths[-2])
        lines.append(
            {
                "grid": str(grid),
                "accuracy": str(accuracy),
                "L": ", ".join(f"{length:,}" for length in lengths),
                "tokens of a head": ", ".join(f"{n_tokens:,.0f}" for n_tokens in tokens),
                "last exponent": f"{exponent:.2f}",
            }
        )
    return pl.DataFrame(lines)


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw tokens over the length of the chain, with the growth that the paper has for heads."""
    figure, (panel,) = plotting.new_figure(7.6, 5.2, 1)
    for grid, colour in ((LATTICE, BLUE), (NEAREST, ORANGE)):
        for accuracy, style in ((EACH_STEP, "-"), (END, "--")):
            curve = rows.filter(grid=grid, accuracy=accuracy)
            curve = curve.cast({"length": pl.Float64, "tokens": pl.Float64})
            points = curve.group_by("length", maintain_order=True).agg("tokens")
            places, tokens = points["length"].to_list(), points["tokens"].to_list()
            plotting.band(panel, places, tokens, colour, marker="o", linestyle=style)
    panel.set_xscale("log")
    panel.set_yscale("log")
    lengths = sorted(set(rows["length"].to_list()))
    first, *_, last = (length for length in lengths if length <= 100)
    panel.plot([first, last], [3.0, 3.0 * (last / first) ** 4], ":", color=FAINT, linewidth=1.6)
    plotting.note(panel, "$L^4$", (1.1 * last, 3.0 * (last / first) ** 4), FAINT)
    title = "Tokens of a head for a lasso of L steps"
    plotting.describe(panel, title, "steps L", "tokens of one head")
    plotting.legend(
        figure,
        [(LATTICE, BLUE), (NEAREST, ORANGE), (EACH_STEP, FAINT), (END, FAINT)],
        dashed=(END,),
    )
    return figure


def _work(setting: Setting) -> float:
    """Return longest chain times the tokens of its grid, which grow as L^2 for nearest points."""
    longest = max(setting.lengths)
    return float(longest**3 if setting.grid == NEAREST else longest * 1e3)


FIGURES = (
    Figure(
        name="cot-tokens",
        place="Remark 3.3, Appendix C.3",
        shows="tokens of a head over the length of a lasso's chain, on two grids",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=_work,
    ),
)
