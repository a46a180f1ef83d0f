r"""wu-flops: what a prompt costs in context, by direct training, and constructed.

App. B.3 says 3.3 billion FLOPs in context against 7.6 billion by direct training, for 6 layers, and
not how they are counted. Both are counted here under every convention that comes to mind:

    what counts      a multiplication with its addition as 2 FLOPs or as 1
    passes           forward only, or forward and backward, which takes three times as much
    prompt           50 examples and a query, or 75, in places of inputs and labels in turn; the
                     label of the query has a place or not
    attention        with the products of queries, keys and values, or weights alone
    biases           of the trained network, with or without

Ours are also counted by torch while they run. Direct training has 100 epochs on a network of hidden
width 200. The first layer needs no gradient of its inputs, which torch does not compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import polars as pl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from icgd.pictures import plotting
from icgd.pictures.plotting import FAINT, GREEN, INK, RED
from icgd_papers.figure import Figure, Job, of_preset
from icgd_papers.figures.wu import SETUPS
from icgd_papers.figures.wu_prompts import PRETRAINING, Constructed, DirectTraining, Setup

N_LAYERS = 6
IN_CONTEXT, DIRECT, CONSTRUCTED = "in context", "direct training", "constructed"
PRINTED = {IN_CONTEXT: 3.3e9, DIRECT: 7.6e9}
"""What App. B.3 prints, with two digits."""

N_CONSTRUCTED_STEPS = 100
"""As many as direct training has epochs."""

UNITS = {"FLOPs": 2, "multiply-adds": 1}
PASSES = {"forward": 1, "forward and backward": 3}

Count = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The one job: all counts at the sizes of a preset."""

    setup: Setup


def settings(preset: str, seed: int) -> list[Sizes]:
    """Return the paper's sizes for every preset but smoke."""
    del seed  # nothing that is counted is random
    of_preset(SETUPS, preset)
    return [Sizes(SETUPS["smoke" if preset == "smoke" else "paper"])]


def run(sizes: Sizes, job: Job) -> pl.DataFrame:
    """Return a row for each convention, and for what is counted while it runs."""
    del job  # it takes seconds
    setup = sizes.setup
    counts = [
        *in_context(setup),
        *direct(setup),
        counted_decoder(setup),
        counted_direct(setup),
        constructed(setup),
    ]
    rows = []
    for count in counts:
        printed = PRINTED.get(count["side"])
        rows.append(
            {
                **count,
                "printed": printed,
                "rounds_to_printed": printed is not None
                and abs(count["flops"] - printed) <= 0.05e9,
                "n_layers": N_LAYERS,
                "input_width": setup.input_width,
                "n_blocks": setup.n_blocks,
                "width": setup.width,
                "mlp_width": setup.mlp_width,
                "direct_width": setup.baselines.direct_width,
                "n_epochs": setup.baselines.n_epochs,
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def _count(
    side: str, n: int, unit: str, passes: str, details: str, flops: int, by: str = "formula"
) -> Count:
    return {
        "side": side,
        "n_examples": n,
        "unit": unit,
        "passes": passes,
        "details": details,
        "counted_by": by,
        "flops": flops,
    }


def in_context(setup: Setup) -> Iterator[Count]:
    """Count the decoder on one prompt under each convention."""
    lengths, last_places = (setup.n_examples, setup.longest), {"without": 1, "with": 2}
    kinds = {"all products": True, "weights alone": False}
    cases = product(lengths, UNITS.items(), PASSES.items(), last_places.items(), kinds.items())
    for n, (unit, per_product), (passes, times), (word, last), (kind, attends) in cases:
        products = decoder_products(setup, 2 * n + last, attends=attends)
        details = f"{kind}, {2 * n + last} places ({word} the query's label)"
        yield _count(IN_CONTEXT, n, unit, passes, details, per_product * times * products)


def decoder_products(setup: Setup, n_places: int, *, attends: bool = True) -> int:
    """Return the multiplications of a forward pass on `n_places` places."""
    width = setup.width
    weights = width * (4 * width + 2 * setup.mlp_width)
    mixing = 2 * n_places * width if attends else 0  # scores, and sums of values
    ends = width * (setup.input_width + 2)  # an input and a label come in, a label goes out
    return n_places * (setup.n_blocks * (weights + mixing) + ends)


def direct(setup: Setup) -> Iterator[Count]:
    """Count direct training on one prompt under each convention."""
    tokens = {"the examples": 0, "the examples and the query": 1}
    lengths, biases = (setup.n_examples, setup.longest), {"no biases": False, "biases": True}
    cases = product(lengths, UNITS.items(), PASSES.items(), tokens.items(), biases.items())
    for n, (unit, per_product), (passes, times), (word, query), (kind, has_biases) in cases:
        weights = network_weights(setup, biases=has_biases)
        flops = per_product * times * weights * (n + query) * setup.baselines.n_epochs
        yield _count(DIRECT, n, unit, passes, f"{word}, {kind}", flops)


def network_weights(setup: Setup, *, biases: bool = False) -> int:
    """Return the number of weights that direct training trains."""
    hidden = [setup.baselines.direct_width] * (N_LAYERS - 1)
    return sum((a + biases) * b for a, b in pairwise((setup.input_width, *hidden, 1)))


def counted_decoder(setup: Setup) -> Count:
    """Let torch count the decoder's forward pass on one prompt."""
    model = setup.decoder("softmax", seed=0).float()
    prompt = setup.task(N_LAYERS, PRETRAINING, setup.n_examples).sample(1, seed=0, index=0)
    x, y = prompt.x.float(), prompt.y.float()
    with sdpa_kernel(SDPBackend.MATH):  # torch counts nothing inside fused attention and blocks
        flops = counted(lambda: model.streams(x, y)[-1] @ model.read_out.mT)
    details = f"our decoder, {setup.tokens} tokens"
    return _count(IN_CONTEXT, setup.n_examples, "FLOPs", "forward", details, flops, "torch")


def counted_direct(setup: Setup) -> Count:
    """Let torch count one epoch of direct training on one prompt."""
    plan, n = setup.baselines, setup.n_examples
    training = DirectTraining(N_LAYERS, plan.direct_width, 1, 0.01)
    prompt = setup.task(N_LAYERS, PRETRAINING, n).sample(1, seed=0, index=0)
    flops = plan.n_epochs * counted(lambda: training.predictions(prompt.x, prompt.y))
    details = "ours, with a prediction of the query in every epoch"
    return _count(DIRECT, n, "FLOPs", "forward and backward", details, flops, "torch")


def constructed(setup: Setup) -> Count:
    """Count the constructed transformer that trains this network, from its program."""
    width, n = setup.baselines.direct_width, setup.n_examples
    transformer = Constructed(N_LAYERS, width, 0.05)
    flops = transformer.compiled(setup.input_width, n, N_CONSTRUCTED_STEPS).summary(n + 1).flops
    details = f"relu-stack of {N_CONSTRUCTED_STEPS} steps as dense weights"
    return _count(CONSTRUCTED, n, "FLOPs", "forward", details, flops, "program")


def counted(job: Callable[[], object]) -> int:
    """Return the FLOPs of all matrix products in a job, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        job()
    return int(counter.get_total_flops())


def nearest(rows: pl.DataFrame, side: str) -> pl.DataFrame:
    """Return the formulas of a side, the nearest to the printed number in ratio first."""
    off = (pl.col("flops") / pl.col("printed")).log().abs()
    return rows.filter(side=side, counted_by="formula").sort(off, maintain_order=True)


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what was counted while it ran, and the conventions nearest to the printed numbers."""
    counted_rows = rows.filter(pl.col("counted_by") != "formula")
    shown = pl.concat([counted_rows, *(nearest(rows, side).head(3) for side in PRINTED)])
    return pl.DataFrame(
        {
            "side": row["side"],
            "examples": str(row["n_examples"]),
            "unit": row["unit"],
            "passes": row["passes"],
            "details": row["details"],
            "counted by": row["counted_by"],
            "billions": f"{row['flops'] / 1e9:,.3g}",
            "paper": "" if row["printed"] is None else f"{row['printed'] / 1e9:.1f}",
        }
        for row in shown.iter_rows(named=True)
    )


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a column of points for each side and length, and the printed numbers as lines."""
    figure, [ax] = plotting.new_figure(9.0, 5.4, 1)
    columns = rows.filter(pl.col("side").is_in(PRINTED)).partition_by("side", "n_examples")
    best = {side: nearest(rows, side)["flops"][0] for side in PRINTED}
    for place, column in enumerate(columns):
        for i, row in enumerate(column.iter_rows(named=True)):
            x, height = place - 0.3 + 0.6 * i / len(column), row["flops"] / 1e9
            by_torch = row["counted_by"] == "torch"
            is_best = row["flops"] == best[row["side"]]
            colour = RED if is_best else GREEN if by_torch else FAINT
            ax.plot([x], [height], "o", color=colour, ms=9 if is_best or by_torch else 5)
            if is_best or by_torch:
                plotting.tag(ax, f"{height:.2f}", (x + 0.05, height - 0.24))
        ax.plot([place - 0.42, place + 0.42], [column["printed"][0] / 1e9] * 2, color=INK, lw=1.5)
    labels = [f"{column['side'][0]},\n{column['n_examples'][0]} examples" for column in columns]
    ax.set_xticks(range(len(columns)), labels)
    ax.set_ylim(bottom=0)
    total = rows.filter(side=CONSTRUCTED)["flops"][0]
    title = f"One prompt, counted in many ways; the constructed transformer takes {total:.2g}"
    plotting.describe(ax, title, "", "billion FLOPs")
    plotting.legend(
        figure,
        [
            ("a formula", FAINT),
            ("counted by torch", GREEN),
            ("nearest to the printed number", RED),
            ("printed", INK),
        ],
    )
    return figure


FIGURES = (
    Figure(
        name="wu-flops",
        place="App. B.3",
        shows="FLOPs of a prompt in context, by direct training, and constructed; many conventions",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
    ),
)
