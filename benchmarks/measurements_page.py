"""Write docs/measurements.md from the last benchmarks.

    python -m benchmarks.measurements_page

A table of benchmarks/results.json stands on this page or on the page of what it measures, not on
both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icgd.weights.files import whole_file

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results.json", ROOT / "docs" / "measurements.md"


@dataclass(frozen=True)
class Section:
    """A table of the page.

    Attributes:
        title: its heading.
        sentence: what was measured, and how.
        columns: those shown, in order.
        goal: the column that a row's `limit` is the goal for; it is at most the limit.
        across: columns whose values head columns of their own, in which the last of `columns`
            stands.
    """

    title: str
    sentence: str
    columns: tuple[str, ...]
    goal: str = ""
    across: tuple[str, ...] = ()


WEIGHTS = ("largest weight error", "largest step error", "step bound, this run")

SECTIONS = {
    "compiled": Section(
        "Compiled runs beside jax.jit and torch",
        'Microseconds of a step of relu-stack with `engine="compiled"` and of plain descent. '
        "Compiling is not counted. `ratio` is over a scan under `jax.jit` for one task, over "
        "torch.autograd for many.",
        (
            "widths",
            "activation",
            "tasks",
            "compiled us/step",
            "jax.jit us/step",
            "autograd us/step",
            "ratio",
        ),
        "ratio",
    ),
    "compiled_adam": Section(
        "Compiled Adam beside torch.optim",
        "Microseconds of a step; the loop beside it has torch.autograd and torch.optim.",
        (
            "widths",
            "activation",
            "tasks",
            "compiled us/step",
            "torch.optim us/step",
            "largest weight difference",
        ),
        "ratio",
    ),
    "optimisers": Section(
        "Optimisers beside torch.optim",
        "Time of a step of fused relu-stack, 8-64-64-1 with n = 64, over that of torch.autograd "
        "and torch.optim.",
        ("optimiser", "ratio"),
        "ratio",
        across=("activation", "tasks"),
    ),
    "optimisers, weights": Section(
        "How far their weights end apart",
        "The largest difference of a weight in the same runs.",
        ("optimiser", "largest weight difference"),
        across=("activation", "tasks"),
    ),
    "adam_accuracy": Section(
        "Compiled Adam on real tables",
        "Test accuracy after 300 steps, beside torch from the same weights (rate 0.001, eps 1e-3).",
        ("data", "accuracy, compiled", "accuracy, torch", "largest prediction difference"),
        "difference",
    ),
    "adam_roots": Section(
        "What Adam's eps costs",
        "Pieces of the reciprocal root, 4-8-1 tanh at 64 pieces.",
        ("eps", "pieces"),
    ),
    "shaped_networks": Section(
        "The inner loop of a TTT-MLP layer",
        "x + norm(W_2 gelu(W_1 x)), 8-32-8, 16 tokens with rates, relu-stack. The last column is "
        "the largest distance of a weight from torch.autograd after 20 steps of 0.1.",
        ("pieces", "pieces of the root", "step error", "step bound", "distance from torch"),
    ),
    "shaped_speed": Section(
        "Its time beside torch.autograd",
        "Fused, 64 pieces, 64 tokens, one thread.",
        ("widths", "fused us/step", "torch us/step", "ratio"),
        "ratio",
    ),
    "literal": Section(
        "The literal transformer",
        "Seconds of a step with every head, on 64 examples. Peak memory includes torch.",
        ("construction", "widths", "activation", "heads", "s", "peak MiB"),
        "s",
    ),
    "softmax_speed": Section(
        "softmax-stack beside relu-stack",
        "Time of a fused step over that of relu-stack.",
        ("widths", "tasks", "ratio"),
        "ratio",
        across=("activation",),
    ),
    "recursion_speed": Section(
        "recursion beside relu-stack",
        "Time of a fused step over that of relu-stack. Deep networks and kinks are slow.",
        ("widths", "n", "activation", "recursion us/step", "ratio"),
        "ratio",
    ),
    "chain_speed": Section(
        "cot-network beside others",
        "Milliseconds of a whole fused run.",
        ("N, d, rounds", "beside", "chain ms", "other ms", "ratio"),
        "ratio",
    ),
    "scaling": Section(
        "How the time of a fused run grows",
        "Times the first of each axis.",
        ("axis", "value", "times the first"),
    ),
    "start_up": Section(
        "Start", "Seconds until something happens.", ("what", "seconds"), "seconds"
    ),
    "loading": Section(
        "Loading a compiled run", "With its checksum.", ("construction", "widths", "KiB", "load ms")
    ),
    "sizes": Section(
        "Sizes of transformers, before and after",
        "One step, box 1, |x| and |y| up to 1, with the layers that predict; a chain takes 8 "
        "examples a round. What changed them: [sizes](sizes.md).",
        ("case", "widths", "layers a step", "heads", "d_model", "non-zeros"),
    ),
    "weights": Section(
        "relu-stack: error over the number of pieces",
        "Five dense steps of 3-4-4-2 tanh. The error of weights is that of the whole run; the "
        "last columns are bounds of a step: for any data, and the paper's formula.",
        ("pieces", *WEIGHTS, "step bound, domain", "step bound, paper"),
    ),
    "softmax_weights": Section(
        "softmax-stack: error over the number of registers",
        "Five dense steps of 3-4-4-2.",
        ("activation", "dtype", "registers", "largest weight error", "bound, this run"),
    ),
    "functional": Section(
        "functional: error at every token after 40 layers",
        "Beside functional gradient descent.",
        ("kernel", "dense error", "fused error"),
    ),
    "kinks": Section(
        "Relu networks: ramps at kinks",
        "The default width of the ramp beside 2^-13; box 2, step 0.1. In float32 the dense "
        "softmax-stack has no bound.",
        (
            "construction",
            "backend",
            "dtype",
            "kink_width",
            "near-kink events",
            "largest step error",
        ),
    ),
    "bounds": Section(
        "Bounds beside measured errors",
        "Of a step, over random problems of depth 1 to 4, every activation and loss.",
        (
            "dtype",
            "backend",
            "problems",
            "verdicts that hold",
            "median bound / measured",
            "90th percentile",
        ),
    ),
    "verify_speed": Section(
        "Time of the bounds of a run",
        "Over the time of the fused run itself.",
        ("construction", "ratio"),
        "ratio",
        across=("n_steps",),
    ),
    "fits": Section(
        "Sums of ReLUs: certified error of 64 pieces",
        "Beside the asymptotic optimum.",
        ("function", "error", "optimum"),
        "ratio",
    ),
    "training": Section(
        "A training step beside einsum",
        "Time over that of einsum: 3000 tasks, 30 examples, 3 layers, float32.",
        ("attention", "ratio"),
        "ratio",
        across=("A", "threads"),
    ),
    "training_data": Section(
        "Drawing a batch beside using it",
        "Ten steps use a batch.",
        ("labels", "ms to draw", "ms to use", "ratio"),
        "ratio",
    ),
}
"""The tables in the order of the page."""

ELSEWHERE = {
    "proofs.md": ("speed", "memory", "literal_distances"),
    "certificates.md": ("rigorous",),
    "constructions/recursion.md": ("recursion_weights",),
    "constructions/cot_network.md": ("chain_weights", "chain_blocks", "chain_memory"),
    "constructions/functional.md": ("schedules", "accelerated"),
    "constructions/linear_stack.md": (
        "linear_coefficients",
        "linear_guarantees",
        "linear_sizes",
        "linear_means",
        "linear_speed",
        "accelerated_linear",
    ),
    "approximation/ridge_sum.md": ("ridge_sums",),
    "approximation/lattice.md": ("lattices",),
    "training/decoder.md": ("decoder",),
}
"""The pages that show the other tables."""

HEAD = """\
# Measurements

How long things take, how large they are and how far they err, where no other page says it. \
Methods that are compared take turns, and ratios are medians: below 1 icgd is faster. A goal is \
the project's own: training in context should cost about what plain training costs.

`python -m benchmarks NAME` measures one table again, `make bench` all of them, and `python -m \
benchmarks.measurements_page` writes this page.
"""


def main() -> None:
    with whole_file(PAGE) as temporary:
        temporary.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), "utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")


def page(results: Mapping[str, Any]) -> str:
    """Return the whole page."""
    machine = results["machine"]
    where = f"Last measured on {machine['date']}, torch {machine['torch']}, {machine['cpu']}.\n"
    parts = [
        _section(name, section, results[name.split(",")[0]])
        for name, section in SECTIONS.items()
        if name.split(",")[0] in results
    ]
    links = [f"- [{path}]({path}): {_code(names)}\n" for path, names in ELSEWHERE.items()]
    return "\n".join([HEAD, where, *parts, "## On other pages\n", "".join(links)])


def _section(name: str, section: Section, rows: Sequence[Mapping[str, Any]]) -> str:
    columns, cells = _spread(section, rows) if section.across else _listed(section, rows)
    lines = [columns, ["---"] * len(columns), *cells]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    words = f"{section.sentence}{_goal(section, rows)}"
    return f"## {section.title}\n\n`{name}`: {words}\n\n{table}"


Table = tuple[Sequence[str], list[list[str]]]


def _listed(section: Section, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each row."""
    cells = [[_cell(row.get(column)) for column in section.columns] for row in rows]
    return section.columns, cells


def _spread(section: Section, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for all rows that differ in `across` only."""
    *names, value = section.columns
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        head = ", ".join(f"{name} {_cell(row[name])}" for name in section.across)
        line = lines.setdefault(tuple(_cell(row[name]) for name in names), {})
        line[head] = _cell(row[value])
    heads = list(dict.fromkeys(head for line in lines.values() for head in line))
    cells = [[*key, *(line.get(head, "") for head in heads)] for key, line in lines.items()]
    return [*names, *heads], cells


def _goal(section: Section, rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the rows should reach, and how many do not."""
    judged = [row for row in rows if row.get("limit") is not None]
    if not (section.goal and judged):
        return ""
    limits = sorted({row["limit"] for row in judged})
    span = " to ".join(map(_cell, limits[:: max(1, len(limits) - 1)]))
    missed = sum(row[section.goal] > row["limit"] for row in judged)
    end = f"{missed} of {len(judged)} rows miss it" if missed else "all rows reach it"
    what = f"a {section.goal} of" if section.goal not in section.columns else section.goal
    return f" Goal: {what} at most {span}; {end}."


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    if isinstance(value, list):
        return " to ".join(map(_cell, value))
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    main()
