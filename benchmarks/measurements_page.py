"""Write docs/measurements.md from the last benchmarks.

    python -m benchmarks.measurements_page

A table of benchmarks/results.json has a section with the columns and rows that tell most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        only: the values of columns that are shown; all of them where it says nothing.
    """

    title: str
    sentence: str
    columns: tuple[str, ...]
    goal: str = ""
    across: tuple[str, ...] = ()
    only: Mapping[str, Sequence[object]] = field(default_factory=dict)


SECTIONS = {
    "speed": Section(
        "A fused run of relu-stack beside torch.autograd",
        "Time over that of torch.autograd, one task or 256 at once.",
        ("widths", "ratio"),
        "ratio",
        across=("activation", "tasks"),
    ),
    "compiled": Section(
        "Compiled fused runs beside jax.jit and torch",
        'relu-stack with `engine="compiled"`: time over a scan under `jax.jit` for one task, over '
        "torch.autograd for many. Compiling is not counted.",
        ("widths", "ratio"),
        "ratio",
        across=("activation", "tasks"),
    ),
    "compiled_adam": Section(
        "Compiled Adam beside torch.optim",
        "Time over torch.autograd and torch.optim.",
        ("widths", "ratio"),
        "ratio",
        across=("activation", "tasks"),
    ),
    "optimisers": Section(
        "Optimisers beside torch.optim",
        "Fused relu-stack, 8-64-64-1, n = 64: time over torch.autograd and torch.optim.",
        ("optimiser", "ratio"),
        "ratio",
        across=("activation", "tasks"),
    ),
    "optimisers, weights": Section(
        "How far their weights end apart",
        "One task of the same runs: the largest difference of a weight.",
        ("optimiser", "largest weight difference"),
        across=("activation",),
        only={"tasks": (1,)},
    ),
    "adam_accuracy": Section(
        "Compiled Adam on real tables",
        "Test accuracy after 300 steps, beside torch from the same weights.",
        ("data", "accuracy, compiled", "accuracy, torch"),
        "difference",
    ),
    "adam_roots": Section(
        "What `eps` of Adam costs",
        "Pieces of the reciprocal root, 4-8-1 tanh at 64 pieces.",
        ("eps", "pieces"),
    ),
    "shaped_networks": Section(
        "The inner loop of a TTT-MLP layer",
        "x + norm(W_2 gelu(W_1 x)), 8-32-8, 16 tokens with rates, relu-stack; distances of a "
        "weight from torch after 20 steps of 0.1.",
        ("pieces", "step error", "step bound", "distance from torch"),
    ),
    "shaped_speed": Section(
        "The inner loop of a TTT-MLP layer beside torch.autograd",
        "64 pieces, 64 tokens, one thread.",
        ("widths", "ratio"),
        "ratio",
    ),
    "literal": Section(
        "The literal transformer",
        "Seconds of a step with every head, on 64 examples. Peak memory includes torch.",
        ("construction", "widths", "activation", "heads", "s", "peak MiB"),
        "s",
    ),
    "literal_distances": Section(
        "Backends beside each other",
        "How far weights and predictions of dense and fused runs are from the literal ones after "
        "five steps.",
        ("construction", "target", "dense off", "fused off"),
        only={"target": ("3-4-4-2 tanh", "3-4-4-2 relu", "rbf kernel", "softplus link")},
    ),
    "softmax_speed": Section(
        "softmax-stack beside relu-stack",
        "Time of a fused step.",
        ("widths", "tasks", "ratio"),
        "ratio",
        across=("activation",),
    ),
    "recursion_speed": Section(
        "recursion beside relu-stack",
        "Time of a fused step. Deep networks and kinks are slow.",
        ("widths", "activation", "ratio"),
        "ratio",
        across=("n",),
    ),
    "chain_speed": Section(
        "cot-network beside plain torch",
        "A whole fused run.",
        ("N, d, rounds", "beside", "ratio"),
        "ratio",
    ),
    "scaling": Section(
        "How the time of a fused run grows",
        "Times that of 2 layers, 512 examples, 10 steps, 16 pieces.",
        ("axis", "value", "times the first"),
        only={"value": (16, 4096, 80, 256)},
    ),
    "memory": Section(
        "Peak memory beside torch.autograd",
        "Of a fused run that keeps all steps.",
        ("widths", "n", "tasks", "ratio"),
        "ratio",
    ),
    "start_up": Section(
        "Start", "Seconds until something happens.", ("what", "seconds"), "seconds"
    ),
    "sizes": Section(
        "Sizes of transformers, before and after",
        "3-4-4-2, one step, box 1, |x| and |y| up to 1, with the layers that predict; a chain "
        "takes 8 examples a round. Larger ones, and what changed: [sizes](sizes.md).",
        ("case", "layers a step", "heads", "d_model", "non-zeros"),
        only={"widths": ("3-4-4-2",)},
    ),
    "weights": Section(
        "relu-stack: error over the number of pieces",
        "Five dense steps of 3-4-4-2 tanh: the error of the whole run, that of a step, and bounds "
        "of a step for this run, for any data, and by the paper's formula.",
        (
            "pieces",
            "largest weight error",
            "largest step error",
            "step bound, this run",
            "step bound, domain",
            "step bound, paper",
        ),
        only={"pieces": (8, 64, 512)},
    ),
    "softmax_weights": Section(
        "softmax-stack: error over the number of registers",
        "Five dense steps of 3-4-4-2.",
        ("activation", "dtype", "registers", "largest weight error", "bound, this run"),
    ),
    "recursion_weights": Section(
        "recursion: error over the activation of its units",
        "Of a weight after five dense steps, 200 units for each function.",
        ("units", "largest weight error"),
        across=("widths",),
        only={"backend": ("dense",)},
    ),
    "chain_weights": Section(
        "cot-network: error of the whole chain",
        "Against exact descent.",
        ("N, d, rounds", "network", "largest weight error"),
        across=("backend",),
    ),
    "chain_memory": Section(
        "cot-network: memory of a long chain",
        "",
        ("memory", "blocks", "blocks kept", "KiB grown"),
    ),
    "functional": Section(
        "functional: error at every token after 40 layers",
        "Beside functional gradient descent.",
        ("kernel", "dense error"),
    ),
    "schedules": Section(
        "functional: Chebyshev steps beside the best constant step",
        "What 40 layers leave of the error.",
        ("condition", "constant", "chebyshev"),
    ),
    "accelerated": Section(
        "functional: layers until predictions are within 1e-6 of their limit",
        "",
        (
            "kernel",
            "condition",
            "descent",
            "Nesterov",
            "heavy ball",
            "Chebyshev steps",
            "preconditioned",
            "Newton-Schulz",
        ),
    ),
    "linear_coefficients": Section(
        "Linear models beside scikit-learn",
        "Differences are relative to the largest coefficient.",
        ("scikit-learn", "steps", "relative difference", "largest dense step error"),
    ),
    "accelerated_linear": Section(
        "Linear models: steps until coefficients are within 1e-6 of the minimiser",
        "",
        ("fit", "descent", "FISTA", "Nesterov", "heavy ball"),
    ),
    "linear_guarantees": Section(
        "Linear models: what theorems promise, beside the run",
        "After 100 steps: the distance from the minimiser and what is left of the objective, with "
        "their bounds.",
        ("scikit-learn", "distance", "by contraction", "excess", "excess bound"),
        only={"steps": (100,)},
    ),
    "linear_sizes": Section(
        "Linear models: sizes", "Of one block.", ("scikit-learn", "heads", "weights")
    ),
    "linear_means": Section(
        "Linear models: tokens of a mean", "And its proved error.", ("link", "tokens", "error")
    ),
    "kinks": Section(
        "Relu networks: ramps at kinks",
        "Largest error of a step with ramps of 2^-13 and of the default width, box 2, step 0.1. "
        "In float32 the dense softmax-stack has no bound.",
        ("construction", "backend", "largest step error"),
        across=("kink_width",),
        only={"dtype": ("float64",)},
    ),
    "bounds": Section(
        "Bounds beside measured errors",
        "Of a step, over 100 random problems of depth 1 to 4, every activation and loss.",
        (
            "dtype",
            "backend",
            "verdicts that hold",
            "median bound / measured",
            "90th percentile",
        ),
    ),
    "rigorous": Section(
        "Whole runs proved by balls",
        'Proved distance from exact descent, and the time of `verify(backend="fused")` over that '
        "of the steps by torch.autograd. Labels are noise, or smooth.",
        ("widths", "labels", "steps", "construction", "proved", "ratio"),
        "ratio",
        only={"steps": (20, 100, 1600)},
    ),
    "verify_speed": Section(
        "Time of the bounds of a run",
        "Over that of the fused run.",
        ("construction", "ratio"),
        "ratio",
        across=("n_steps",),
    ),
    "fits": Section(
        "Sums of ReLUs: certified error of 64 pieces",
        "Over the asymptotic optimum.",
        ("function", "ratio"),
        "ratio",
    ),
    "ridge_sums": Section(
        "Sums over directions: certified errors",
        "200 units, float64, the functions that recursion needs.",
        ("activation", "s tanh'(t)", "a b", "tanh", "u logistic"),
        only={"units": (200,), "dtype": ("float64",)},
    ),
    "training": Section(
        "A training step beside einsum",
        "3000 tasks, 30 examples, 3 layers, float32.",
        ("attention", "ratio"),
        "ratio",
        across=("A", "threads"),
    ),
    "training_data": Section(
        "Drawing a batch beside using it",
        "Ten steps use a batch.",
        ("labels", "ms to draw", "ratio"),
        "ratio",
    ),
    "decoder": Section(
        "A training step of the decoder beside GPT2Model",
        "Time over that of the same sizes and loop.",
        ("blocks", "width", "attention", "ratio"),
        "ratio",
        across=("tokens",),
    ),
}
"""The tables in the order of the page."""

LEFT_OUT = ("loading", "lattices", "chain_blocks", "linear_speed")
"""Tables of results.json that say little beside the others."""

HEAD = """\
# Measurements

How long things take, how large they are and how far they err. A ratio is a median of runs that \
take turns; below 1 icgd is faster. A goal is the project's own: training in context should cost \
about what plain training costs.

`python -m benchmarks NAME` measures a table again, `make bench` all of them; \
`benchmarks/results.json` has every row and column.
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
    return "\n".join([HEAD, where, *parts])


def _section(name: str, section: Section, rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        row for row in rows if all(row[column] in values for column, values in section.only.items())
    ]
    columns, cells = _spread(section, shown) if section.across else _listed(section, shown)
    lines = [columns, ["---"] * len(columns), *cells]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    words = f"`{name}`. {section.sentence}".strip()
    return f"## {section.title}\n\n{words}{_goal(section, rows)}\n\n{table}"


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
        head = ", ".join(_head(name, row[name]) for name in section.across)
        line = lines.setdefault(tuple(_cell(row[name]) for name in names), {})
        line[head] = _cell(row[value])
    heads = list(dict.fromkeys(head for line in lines.values() for head in line))
    cells = [[*key, *(line.get(head, "") for head in heads)] for key, line in lines.items()]
    return [*names, *heads], cells


def _head(name: str, value: object) -> str:
    """Name a column after a setting; a word such as tanh says by itself what it is."""
    return str(value) if isinstance(value, str) and len(name) > 1 else f"{name} {_cell(value)}"


def _goal(section: Section, rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the rows should reach, and how many do not."""
    judged = [row for row in rows if row.get("limit") is not None]
    if not (section.goal and judged):
        return ""
    limits = sorted({row["limit"] for row in judged})
    span = " to ".join(map(_cell, limits[:: max(1, len(limits) - 1)]))
    missed = sum(row[section.goal] > row["limit"] for row in judged)
    end = f"{missed} of {len(judged)} rows miss it" if missed else "reached"
    what = section.goal if section.goal != "ratio" else ""
    which = "" if len(judged) == len(rows) else f" in {len(judged)} of {len(rows)} rows"
    return " " + " ".join(f"Goal{which}: {what} at most {span}; {end}.".split())


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
