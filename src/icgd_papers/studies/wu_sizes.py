r"""wu-sizes: how wide transformers are, how wide they must be, and what a step costs.

App. B.3 of wu asks for a smaller hidden dimension than O(N K^2) + D_w, and prints the FLOPs
O(n L N^3 K^5 / eps^2). Both are counted here for networks d-K-...-K-d of N layers, as in Theorem 1,
with d = K, so that D_w = N K^2. With a fixed d the first and the last matrix are smaller than the
others, and powers that are fitted to few layers are larger; one row shows this.

The bound. Let z hold what a prompt is about: D_w weights to start from and n examples, together

    m = D_w + n (d + d_y) numbers.

Let G(z) be the first weights and those after one and two exact steps. If the Jacobian of G has rank
m at some z_0, then |G(z) - G(z')| >= c |z - z'| with a c > 0 in a ball around z_0. The stream of a
transformer before the first step, T columns of width D, is continuous in z. If T D < m, then by the
theorem of Borsuk and Ulam it takes the same value at two opposite points of a sphere of radius r in
the ball, and so does all that is computed from it. But their G are 2 c r apart. So the transformer
errs by c r for one of the two. One that follows descent more closely has T D >= m. With one column
and one example that is

    D >= D_w + d + d_y.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from math import log, sqrt

import numpy as np
import polars as pl
import torch
from torch.func import jacrev

from icgd.learnable import unrolled_descent
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, RED
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Figure, Job, of_preset, six_digits

FIXED = 4
"""The width of inputs and outputs where it is fixed."""

N_EXAMPLES = 32
"""The examples of the prompt whose FLOPs are counted; a query comes after them."""

CHAIN = "cot-network"
BATCH = 8
"""The examples of a round of a chain."""

TRANSFORMERS = (
    ("relu-stack", "tanh", None),
    ("relu-stack", "relu", None),
    ("softmax-stack", "tanh", None),
    (CHAIN, "tanh", None),
    ("relu-stack", "tanh", FIXED),
)
"""A construction, an activation, and the width d of inputs and outputs, if it is not K."""

FITTED_DEPTHS, FITTED_WIDTHS = tuple(range(2, 9)), (4, 8, 16, 32, 64)
"""The grid on which exponents are fitted."""

LONG = ((*FITTED_DEPTHS, 16, 32), (*FITTED_WIDTHS, 128, 256))
GRIDS = {"smoke": ((2, 3, 4), (4, 8)), "laptop": LONG, "paper": LONG}

LARGEST_RANK = 256
"""Ranks are measured for networks of so many weights: a Jacobian has a column for each."""

EXAMPLES_OF_RANK = {"tanh": (1, 2, 4), "relu": (1,)}
N_DRAWS = 8
"""One point of full rank suffices; a relu unit that is off says nothing of what it reads."""

COUNTS = {"flops": "dense weights", "sparse_flops": "weights that are not 0"}


@dataclass(frozen=True)
class Counted:
    """A construction and an activation, and the depths and widths of the networks."""

    construction: str
    activation: str
    data_width: int | None
    depths: tuple[int, ...]
    widths: tuple[int, ...]

    def network(self, depth: int, width: int) -> MLP:
        """Return the network d-K-...-K-d; as in the paper, its outputs are activated too."""
        d = self.data_width or width
        return MLP((d, *[width] * (depth - 1), d), self.activation, self.activation)


def settings(preset: str, seed: int) -> list[Counted]:
    """List all transformers on the grid of a preset."""
    del seed  # what is drawn for ranks has seeds of its own
    depths, widths = of_preset(GRIDS, preset)
    return [
        Counted(construction, activation, data_width, depths, widths)
        for construction, activation, data_width in TRANSFORMERS
    ]


def run(counted: Counted, job: Job) -> pl.DataFrame:
    """Count every network of the grid."""
    rows = []
    for number, (depth, width) in enumerate(product(counted.depths, counted.widths), start=1):
        rows.append(row_of(counted, depth, width))
        if job.on_step:
            job.on_step(number, len(counted.depths) * len(counted.widths), 0.0)
    return pl.DataFrame(rows, infer_schema_length=None)


def row_of(counted: Counted, depth: int, width: int) -> dict[str, object]:
    """Count one transformer, and what its stream has to carry."""
    network = counted.network(depth, width)
    is_chain = counted.construction == CHAIN
    # Arguments of units stay within 1, so that functions have the same pieces at all sizes.
    box = 1 / max(network.widths)
    update = GradientStep(0.1, box, **({"batch_size": BATCH} if is_chain else {}))
    problem = Problem(network, "squared", update, Domain(1.0, 1.0))
    one, two = (
        compile(problem, counted.construction, n_steps=n).summary(N_EXAMPLES + 1) for n in (1, 2)
    )
    n_weights, d = network.n_parameters, network.input_width
    missing, stretch = None, None
    if counted.construction == "relu-stack" and n_weights <= LARGEST_RANK:
        ranks = [rank_of(network, n) for n in EXAMPLES_OF_RANK[counted.activation]]
        missing, stretch = max(missing for missing, _ in ranks), six_digits(ranks[0][1])
    return {
        "construction": counted.construction,
        "activation": counted.activation,
        "n_layers": depth,
        "width": width,
        "data_width": d,
        "has_fixed_data": counted.data_width is not None,
        "n_weights": n_weights,
        "lower_bound": n_weights + 2 * d,
        "missing_rank": missing,
        "least_stretch": stretch,
        # x, y, w, the outputs, slopes and deltas of all units and q, as the proof lists them.
        "paper_list": n_weights + (3 * depth - 4) * width + 6 * d,
        "d_model": one.d_model,
        "d_mlp": one.d_mlp,
        "n_registers": one.n_registers,
        "layers_per_step": one.layers_per_step,
        # A second step adds no layer that predicts.
        **{
            name: None if is_chain else getattr(two, name) - getattr(one, name)
            for name in (*COUNTS, "direct_flops")
        },
    }


def rank_of(network: MLP, n_examples: int) -> tuple[int, float]:
    """Return what the Jacobian of G lacks of full rank, and the least it stretches by.

    G has the weights before and after two steps, as a function of weights and examples. Of a few
    random points the one of largest rank counts.
    """
    box = 100.0  # far from every weight
    problem = Problem(network, "squared", GradientStep(0.1, box), Domain(1.0, 1.0))
    sizes = torch.full((2,), 0.1, dtype=torch.float64)
    n_weights, widths = network.n_parameters, network.widths
    ends = n_weights, n_weights + n_examples * widths[0]

    def path(point: torch.Tensor) -> torch.Tensor:
        initial, x, y = point.tensor_split(ends)
        x, y = x.reshape(n_examples, -1), y.reshape(n_examples, -1)
        return unrolled_descent(problem, x, y, x[:0], initial, sizes).parameters.flatten()

    ranks = []
    for seed in range(N_DRAWS):
        source = np.random.default_rng(seed)
        # Near the identity no signal dies on its way through many layers.
        matrices = [
            np.eye(n_out, n_in) + sqrt(0.25 / n_in) * source.normal(size=(n_out, n_in))
            for n_in, n_out in pairwise(widths)
        ]
        data = source.uniform(size=n_examples * (widths[0] + widths[-1]))
        point = np.concatenate([*(matrix.ravel() for matrix in matrices), data])
        singular_values = torch.linalg.svdvals(jacrev(path)(torch.tensor(point)))
        missing = int((singular_values <= 1e-12 * singular_values[0]).sum())
        ranks.append((missing, float(singular_values[-1])))
        if not missing:
            break
    return min(ranks, key=lambda rank: rank[0])


def fit(rows: pl.DataFrame, column: str) -> tuple[float, float]:
    """Return the powers a, b of the least squares fit log(count) = a log N + b log K + c."""
    logs = [rows[name].cast(pl.Float64).log().to_numpy() for name in ("n_layers", "width", column)]
    table = np.column_stack([*logs[:2], np.ones(rows.height)])
    (of_depth, of_width, _), *_ = np.linalg.lstsq(table, logs[2])
    return float(of_depth), float(of_width)


def last_slopes(rows: pl.DataFrame, column: str) -> tuple[float, float]:
    """Return the slopes in log N and log K between the last two depths and the last two widths."""

    def slope(name: str, other: str) -> float:
        end = rows.filter(pl.col(other) == pl.col(other).max()).sort(name)[-2:]
        growth = log(end[column][1] / end[column][0])
        return growth / log(end[name][1] / end[name][0])

    return slope("n_layers", "width"), slope("width", "n_layers")


def exponents(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the powers of N and K in the FLOPs of a step, and of direct training."""
    table = []
    stacks = rows.filter(pl.col("construction") != CHAIN)
    groups = stacks.partition_by(
        "construction", "activation", "has_fixed_data", maintain_order=True
    )

    def name_of(group: pl.DataFrame) -> str:
        d = f", d = {FIXED}" if group["has_fixed_data"][0] else ""
        return f"{group['construction'][0]}, {group['activation'][0]}{d}"

    cases = [
        (name_of(group), words, group, column)
        for column, words in COUNTS.items()
        for group in groups
    ]
    for name, words, group, column in [*cases, ("direct training", "", groups[0], "direct_flops")]:
        depths, widths = FITTED_DEPTHS[-1], FITTED_WIDTHS[-1]
        fitted = group.filter((pl.col("n_layers") <= depths) & (pl.col("width") <= widths))
        last = [fitted, group]
        cells = [fit(fitted, column), *(last_slopes(part, column) for part in last)]
        ends = [f"at N = {max(part['n_layers'])}, K = {max(part['width'])}" for part in last]
        texts = [f"N^{a:.2f} K^{b:.2f}" for a, b in cells]
        table.append(
            {
                "a step of": name,
                "counted": words,
                "fit": texts[0],
                **dict(zip(ends, texts[1:], strict=True)),
            }
        )
    return pl.DataFrame(table)


def dimensions(rows: pl.DataFrame) -> pl.DataFrame:
    """Return d_model and hidden units beside the number of weights and the lower bound."""
    tanh = rows.filter(activation="tanh", has_fixed_data=False)
    n_layers, widths = (tanh[name].unique().sort() for name in ("n_layers", "width"))
    shown = tanh.filter(
        pl.col("n_layers").is_in([n for n in (2, 4, 8, 32) if n in n_layers])
        & pl.col("width").is_in([k for k in (4, 16, 64, 256) if k in widths])
    )
    table = []
    for group in shown.partition_by("n_layers", "width", maintain_order=True):
        of = {row["construction"]: row for row in group.iter_rows(named=True)}
        stack = of["relu-stack"]
        table.append(
            {
                "N": str(stack["n_layers"]),
                "K": str(stack["width"]),
                "D_w": f"{stack['n_weights']:,}",
                "lower bound": f"{stack['lower_bound']:,}",
                "relu-stack": f"{stack['d_model']:,}",
                "over the bound": f"{stack['d_model'] / stack['lower_bound']:.3f}",
                "the proof's slots": f"{stack['paper_list']:,}",
                "softmax-stack": f"{of['softmax-stack']['d_model']:,}",
                CHAIN: f"{of[CHAIN]['d_model']:,}",
                "hidden units, relu-stack": f"{stack['d_mlp']:,}",
                f"hidden units, {CHAIN}": f"{of[CHAIN]['d_mlp']:,}",
            }
        )
    return pl.DataFrame(table)


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw d_model over the bound, d_model of the widest networks, and FLOPs of a step."""
    figure, (ratios, streams, costs) = plotting.new_figure(15.0, 4.8, 3)
    rows = rows.filter(has_fixed_data=False)
    stack = rows.filter(construction="relu-stack", activation="tanh")
    depths = [n for n in (2, 4, 8, 32) if n in stack["n_layers"]] or [stack["n_layers"][0]]
    for depth, colour in zip(depths, (BLUE, GREEN, ORANGE, RED), strict=False):
        line = stack.filter(n_layers=depth)
        ratio = (line["d_model"] / line["lower_bound"]).to_list()
        ratios.plot(line["width"].to_list(), ratio, "o-", color=colour, ms=4, label=f"N = {depth}")
    ratios.axhline(1.0, color=INK, lw=1)
    ratios.set_ylim(bottom=0.9)
    plotting.describe(ratios, "relu-stack: d_model over the bound", "K", "times")
    ratios.legend(frameon=False, fontsize=10.5)

    deepest = rows.filter(pl.col("n_layers") == pl.col("n_layers").max(), activation="tanh")
    depth = deepest["n_layers"][0]
    colours = {"relu-stack": BLUE, "softmax-stack": ORANGE, CHAIN: GREEN}
    styles = {"relu-stack": "-", "softmax-stack": ":", CHAIN: "-"}
    for name, colour in colours.items():
        line = deepest.filter(construction=name)
        streams.plot(line["width"], line["d_model"], styles[name], color=colour, lw=2, label=name)
    line = deepest.filter(construction="relu-stack")
    streams.plot(
        line["width"], line["lower_bound"], "--", color=INK, lw=1, label="bound for one column"
    )
    streams.set_yscale("log")
    plotting.describe(streams, f"d_model at N = {depth}", "K", "numbers a token")
    streams.legend(frameon=False, fontsize=10.5)

    counts = {"flops": (RED, "dense"), "sparse_flops": (BLUE, "weights that are not 0")}
    line = deepest.filter(construction="relu-stack")
    for column, (colour, words) in counts.items():
        costs.plot(line["width"], line[column], "o-", color=colour, ms=4, label=words)
    costs.plot(line["width"], line["direct_flops"], "-", color=FAINT, label="direct training")
    start = line[0]
    printed = [start["flops"][0] * (k / start["width"][0]) ** 5 for k in line["width"]]
    costs.plot(line["width"], printed, "--", color=INK, lw=1, label="K^5, as printed")
    costs.set_yscale("log")
    plotting.describe(
        costs, f"FLOPs of a step of relu-stack, N = {depth}", "K", f"FLOPs, {N_EXAMPLES} examples"
    )
    costs.legend(frameon=False, fontsize=10.5)
    for panel in (ratios, streams, costs):
        panel.set_xscale("log")
        widths = rows["width"].unique().sort().to_list()
        panel.set_xticks(widths, [str(width) for width in widths])
        panel.set_xticks([], minor=True)
    return figure


FIGURES = (
    Figure(
        name="wu-sizes",
        place="App. B.3",
        shows="d_model beside a lower bound, and powers of N and K in the FLOPs of a step",
        settings=settings,
        run=run,
        summarise=exponents,
        draw=draw,
    ),
)
