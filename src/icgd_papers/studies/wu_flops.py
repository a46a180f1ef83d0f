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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any, final

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from icgd.pictures import plotting
from icgd.pictures.plotting import FAINT, GREEN, INK, RED, Axes, Figure
from icgd_papers.figures.wu_constructed import Constructed
from icgd_papers.figures.wu_curves import BUDGETS
from icgd_papers.figures.wu_direct import DirectTraining
from icgd_papers.figures.wu_setting import PRETRAINING, Budget
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Row,
    Summary,
    groups,
    number,
    preset_of,
)

N_LAYERS = 6
IN_CONTEXT, DIRECT, BUILT = "in context", "direct training", "constructed"
PRINTED = {IN_CONTEXT: 3.3e9, DIRECT: 7.6e9}
"""What App. B.3 prints."""

CLOSE = 0.05e9
"""Printed numbers have two digits: what rounds to them is at most so far off."""

N_BUILT_STEPS = 100
"""The steps of the constructed transformer: as many as direct training has epochs."""


@dataclass(frozen=True)
class Convention:
    """A way of counting, in words, and the number that it gives."""

    side: str
    n_examples: int
    unit: str
    passes: str
    details: str
    flops: int
    by: str = "formula"


@dataclass(frozen=True)
class Outcome:
    """All counts."""

    counts: tuple[Convention, ...]
    seconds: float


@final
@dataclass(frozen=True)
class FlopsStudy(AbstractStudy[Outcome]):
    """All counts at the sizes of a preset; the laptop preset has those of the paper."""

    budget: Budget

    def train(self, folder: Path | None = None) -> Outcome:
        del folder  # it takes seconds
        start = perf_counter()
        counts = [*in_context(self.budget), *direct(self.budget)]
        measured = [counted_decoder(self.budget), counted_direct(self.budget), built(self.budget)]
        return Outcome((*counts, *measured), perf_counter() - start)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        counts = tuple(Convention(**count) for count in data["counts"])
        return Outcome(counts, data["seconds"])


UNITS = {"FLOPs": 2, "multiply-adds": 1}
PASSES = {"forward": 1, "forward and backward": 3}


def in_context(budget: Budget) -> Iterator[Convention]:
    """The decoder on one prompt, under each convention."""
    lengths, ends = (budget.n_examples, budget.longest), {"without": 1, "with": 2}
    kinds = {"all products": True, "weights alone": False}
    cases = product(lengths, UNITS.items(), PASSES.items(), ends.items(), kinds.items())
    for n, (unit, per_product), (passes, times), (word, last), (kind, attends) in cases:
        products = decoder_products(budget, 2 * n + last, attends=attends)
        details = f"{kind}, {2 * n + last} places ({word} the query's label)"
        yield Convention(IN_CONTEXT, n, unit, passes, details, per_product * times * products)


def decoder_products(budget: Budget, n_places: int, *, attends: bool = True) -> int:
    """The multiplications of a forward pass on so many places."""
    width = budget.width
    weights = width * (4 * width + 2 * budget.mlp_width)
    mixing = 2 * n_places * width if attends else 0  # scores, and sums of values
    ends = width * (budget.input_width + 2)  # an input and a label come in, a label goes out
    return n_places * (budget.n_blocks * (weights + mixing) + ends)


def direct(budget: Budget) -> Iterator[Convention]:
    """Direct training on one prompt, under each convention."""
    tokens = {"the examples": 0, "the examples and the query": 1}
    lengths, biases = (budget.n_examples, budget.longest), {"no biases": False, "biases": True}
    cases = product(lengths, UNITS.items(), PASSES.items(), tokens.items(), biases.items())
    for n, (unit, per_product), (passes, times), (word, query), (kind, has_biases) in cases:
        weights = network_weights(budget, biases=has_biases)
        flops = per_product * times * weights * (n + query) * budget.baselines.n_epochs
        yield Convention(DIRECT, n, unit, passes, f"{word}, {kind}", flops)


def network_weights(budget: Budget, *, biases: bool = False) -> int:
    """The weights of the network that direct training trains."""
    hidden = [budget.baselines.direct_width] * (N_LAYERS - 1)
    return sum((a + biases) * b for a, b in pairwise((budget.input_width, *hidden, 1)))


def counted_decoder(budget: Budget) -> Convention:
    """The decoder's forward pass on one prompt, counted by torch."""
    model = budget.decoder("softmax", seed=0).float()
    batch = budget.task(N_LAYERS, PRETRAINING, budget.n_examples).sample(1, seed=0, index=0)
    x, y = batch.x.float(), batch.y.float()
    with sdpa_kernel(SDPBackend.MATH):  # torch counts nothing inside fused attention and blocks
        flops = counted(lambda: model.streams(x, y)[-1] @ model.read_out.mT)
    details = f"our decoder, {budget.tokens} tokens"
    n = budget.n_examples
    return Convention(IN_CONTEXT, n, "FLOPs", "forward", details, flops, "torch")


def counted_direct(budget: Budget) -> Convention:
    """Direct training on one prompt, counted by torch in one epoch."""
    plan, n = budget.baselines, budget.n_examples
    training = DirectTraining(N_LAYERS, plan.direct_width, 1, 0.01)
    batch = budget.task(N_LAYERS, PRETRAINING, n).sample(1, seed=0, index=0)
    flops = plan.n_epochs * counted(lambda: training.predictions(batch.x, batch.y))
    details = "ours, with a prediction of the query in every epoch"
    return Convention(DIRECT, n, "FLOPs", "forward and backward", details, flops, "torch")


def built(budget: Budget) -> Convention:
    """The constructed transformer that trains this network, counted from its program."""
    width, n = budget.baselines.direct_width, budget.n_examples
    compiled = Constructed(N_LAYERS, width, 0.05).compiled(budget.input_width, n, N_BUILT_STEPS)
    details = f"relu-stack of {N_BUILT_STEPS} steps as dense weights"
    flops = compiled.summary(n + 1).flops
    return Convention(BUILT, n, "FLOPs", "forward", details, flops, "program")


def counted(job: Callable[[], object]) -> int:
    """The FLOPs of matrix products in a job, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        job()
    return int(counter.get_total_flops())


@final
@dataclass(frozen=True)
class FlopsFigure(AbstractReproduction[FlopsStudy, Outcome]):
    """Every convention's number beside the printed one."""

    def studies(self, preset: str, seed: int) -> list[FlopsStudy]:
        """One study; only the smoke preset has other sizes than the paper."""
        del seed  # nothing is random that is counted
        return [FlopsStudy(preset_of(BUDGETS, "smoke" if preset == "smoke" else "paper"))]

    def rows(self, studies: Sequence[FlopsStudy], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each convention."""
        pairs = zip(studies, outcomes, strict=True)
        return [_row(study.budget, each) for study, found in pairs for each in found.counts]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """What is counted while it runs, and the conventions nearest to the printed numbers."""
        names = ("side", "examples", "unit", "passes", "details", "counted by", "billions", "paper")
        chosen = [row for row in rows if row["counted_by"] != "formula"]
        for side in PRINTED:
            chosen += nearest([row for row in rows if row["side"] == side])
        return Summary(names, tuple(_text(row) for row in chosen))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """A column of points for each side and length, and the printed numbers as lines."""
        figure, [ax] = plotting.new_figure(9.0, 5.4, 1)
        _draw(ax, [row for row in rows if row["side"] in PRINTED])
        [built_row] = [row for row in rows if row["side"] == BUILT]
        beyond = f"the constructed transformer takes {number(built_row, 'flops'):.2g}"
        plotting.describe(ax, f"One prompt, counted in many ways; {beyond}", "", "billion FLOPs")
        plotting.legend(figure, [("a formula", FAINT), ("counted by torch", GREEN), *LEGEND])
        return figure


def _row(budget: Budget, count: Convention) -> Row:
    printed = PRINTED.get(count.side)
    return {
        "side": count.side,
        "n_examples": count.n_examples,
        "unit": count.unit,
        "passes": count.passes,
        "details": count.details,
        "counted_by": count.by,
        "flops": count.flops,
        "printed": printed,
        "rounds_to_printed": printed is not None and abs(count.flops - printed) <= CLOSE,
        "n_layers": N_LAYERS,
        "input_width": budget.input_width,
        "n_blocks": budget.n_blocks,
        "width": budget.width,
        "mlp_width": budget.mlp_width,
        "direct_width": budget.baselines.direct_width,
        "n_epochs": budget.baselines.n_epochs,
    }


def nearest(rows: Sequence[Row], n_rows: int = 3) -> list[Row]:
    """The conventions whose number is nearest to the printed one, in ratio."""
    formulas = [row for row in rows if row["counted_by"] == "formula"]
    return sorted(formulas, key=lambda row: _off(row))[:n_rows]


def _off(row: Row) -> float:
    return abs(log(number(row, "flops") / number(row, "printed")))


def _text(row: Row) -> tuple[str, ...]:
    columns = ("side", "n_examples", "unit", "passes", "details", "counted_by")
    printed = "" if row["printed"] is None else f"{number(row, 'printed') / 1e9:.1f}"
    billions = f"{number(row, 'flops') / 1e9:,.3g}"
    return (*(str(row[name]) for name in columns), billions, printed)


LEGEND = (("nearest to the printed number", RED), ("printed", INK))


def _draw(ax: Axes, rows: Sequence[Row]) -> None:
    columns = groups(rows, "side", "n_examples")
    for place, ((side, _), of_column) in enumerate(columns.items()):
        best = nearest([row for row in rows if row["side"] == side], n_rows=1)[0]
        for shift, row in enumerate(of_column):
            _draw_count(ax, place - 0.3 + 0.6 * shift / len(of_column), row, is_best=row is best)
        ax.plot([place - 0.42, place + 0.42], [PRINTED[str(side)] / 1e9] * 2, color=INK, lw=1.5)
    ax.set_xticks(range(len(columns)), [f"{side},\n{n} examples" for side, n in columns])
    ax.set_ylim(bottom=0)


def _draw_count(ax: Axes, place: float, row: Row, *, is_best: bool) -> None:
    by_torch, height = row["counted_by"] == "torch", number(row, "flops") / 1e9
    colour = RED if is_best else GREEN if by_torch else FAINT
    ax.plot([place], [height], "o", color=colour, ms=9 if is_best or by_torch else 5)
    if is_best or by_torch:
        plotting.tag(ax, f"{height:.2f}", (place + 0.05, height - 0.24))


FLOPS = FlopsFigure(
    name="wu-flops",
    place="App. B.3",
    shows="FLOPs of a prompt in context, by direct training, and constructed; many conventions",
    laptop_time="10 seconds",
)
