"""Write docs/measurements.md from the last benchmarks.

    python -m benchmarks.measurements_page

Every table of benchmarks/results.json has a section: what was measured in a sentence, and all rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from icgd.weights.files import whole_file

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results.json", ROOT / "docs" / "measurements.md"

SECTIONS = {
    "speed": (
        "A fused run of relu-stack beside torch.autograd",
        "Times of a step. `ratio` is that of a run that keeps the final weights only; `limit` is "
        "the ratio that is asked for. Runs are interleaved, and ratios are medians.",
    ),
    "compiled": (
        "Compiled fused runs beside jax.jit and torch",
        'Times of a step of relu-stack with `engine="compiled"`, and of plain descent: a scan '
        "under `jax.jit`, torch.autograd, and torch with its gradient written down. `ratio` is "
        "that to the baseline; compiling is not counted, and runs are interleaved.",
    ),
    "compiled_adam": (
        "Compiled Adam beside torch.optim",
        "Times of a step; the loop has torch.autograd and torch.optim.",
    ),
    "optimisers": (
        "Optimisers beside torch.optim",
        "Fused relu-stack, 8-64-64-1, n = 64; the loop has torch.autograd and torch.optim.",
    ),
    "adam_accuracy": (
        "Compiled Adam on real tables",
        "Test accuracy beside torch's own run from the same weights, lr 0.001, eps 1e-3.",
    ),
    "adam_roots": (
        "What `eps` of Adam costs",
        "Pieces of the reciprocal root of a 4-8-1 tanh network at 64 pieces, and layers of a step.",
    ),
    "shaped_networks": (
        "The inner loop of a TTT-MLP layer",
        "x + norm(W_2 gelu(W_1 x)), 8-32-8, 16 tokens with rates, relu-stack. The distance of any "
        "weight from torch.autograd is that after 20 steps of 0.1.",
    ),
    "shaped_speed": (
        "The inner loop of a TTT-MLP layer beside torch.autograd",
        "Fused relu-stack with 64 pieces, 64 tokens with rates, one thread.",
    ),
    "literal": (
        "The literal transformer",
        "A step of every head on 64 examples, each in a process of its own, whose peak memory "
        "includes torch. `dense s` is the same with matrices.",
    ),
    "literal_distances": (
        "Backends beside each other",
        "The largest distance of any weight or prediction of dense and fused runs from the literal "
        "one after five steps, and the largest errors of steps of literal and fused runs.",
    ),
    "softmax_speed": ("softmax-stack beside relu-stack", "Times of a fused step."),
    "recursion_speed": (
        "recursion beside relu-stack",
        "Times of a fused step. Rows without a limit are cases that it is slow in.",
    ),
    "chain_speed": ("cot-network beside plain torch", "A whole fused run."),
    "linear_speed": ("Linear models beside plain torch", "Times of a fused step."),
    "scaling": ("How the time of a fused run grows", "With depth, width, examples and steps."),
    "memory": ("Peak memory beside torch.autograd", "Of a fused run that keeps all steps."),
    "start_up": ("Start", "Seconds until something happens."),
    "loading": (
        "Loading a compiled run",
        "A file without weights is read, and its checksum compared.",
    ),
    "sizes": (
        "Sizes of transformers, before and after",
        "Of one step, box 1, |x| and |y| up to 1, and of the layers that predict; a chain takes 8 "
        "examples a round. What changed them: [sizes](sizes.md).",
    ),
    "weights": (
        "relu-stack: error over the number of pieces",
        "Five dense steps of 3-4-4-2 tanh. The error of weights is that of the whole run.",
    ),
    "softmax_weights": (
        "softmax-stack: error over the number of registers",
        "Five dense steps of 3-4-4-2. The error of weights is that of the whole run.",
    ),
    "recursion_weights": (
        "recursion: error over the activation of its units",
        "Five steps, 200 units for each function.",
    ),
    "chain_weights": ("cot-network: error of the whole chain", "Against exact descent."),
    "chain_blocks": ("cot-network: time of a block over the depth", "By the fused backend."),
    "chain_memory": ("cot-network: memory of a long chain", "With short and whole memory."),
    "functional": (
        "functional: error at every token after 40 layers",
        "Against functional gradient descent, kernel by kernel.",
    ),
    "schedules": (
        "functional: Chebyshev steps beside the best constant step",
        "What 40 layers leave of the error, by the condition number.",
    ),
    "accelerated": (
        "functional: layers until predictions are within 1e-6 of their limit",
        "By method; the linear kernel also preconditioned, and by Newton-Schulz. The largest error "
        "is that of the dense transformers with these layers, of up to 2,000.",
    ),
    "accelerated_linear": (
        "Linear models: steps until coefficients are within 1e-6 of the minimiser",
        "By method, with steps of 1 / beta; a step has 3 layers. The condition number is that at "
        "the minimiser, among coefficients that are not kept at 0.",
    ),
    "linear_coefficients": (
        "Linear models beside scikit-learn",
        "Differences are relative to the largest coefficient.",
    ),
    "linear_sizes": ("Linear models: sizes", "Of one block."),
    "linear_means": ("Linear models: tokens of a mean", "And the proved error of the mean."),
    "linear_guarantees": (
        "Linear models: what theorems promise, beside the run",
        "Distances from the minimiser, and what is left of the objective.",
    ),
    "kinks": (
        "Relu networks: ramps at kinks",
        "The default width beside 2^-13; box 2, step 0.1.",
    ),
    "bounds": (
        "Bounds beside measured errors",
        "Of a step, over random problems of depth 1 to 4, every activation and loss.",
    ),
    "rigorous": (
        "Whole runs proved by balls",
        '`ratio` is the time of the whole of `verify(backend="fused")` over that of the same steps '
        "by torch.autograd. `proved` is the distance from exact descent, `measured` that from one "
        "in float64. Labels are normal numbers, or the mean of the sines of the inputs.",
    ),
    "verify_speed": ("Time of the bounds of a run", "Beside the fused run itself."),
    "fits": (
        "Sums of ReLUs: certified error of 64 pieces",
        "Beside the asymptotic optimum.",
    ),
    "lattices": ("Softmax look-ups: certified errors", "By the number of tokens."),
    "ridge_sums": (
        "Sums over directions: certified errors",
        "Of the functions that recursion needs, activation by activation.",
    ),
    "training": (
        "A training step beside einsum",
        "3000 tasks, 30 examples, 3 layers, float32. `ratio` is the time over that of einsum.",
    ),
    "training_data": ("Drawing a batch beside using it", "Ten steps use a batch."),
    "decoder": (
        "A training step of the decoder beside GPT2Model",
        "The same sizes and the same loop, interleaved, medians.",
    ),
}
"""The tables in the order of the page: what each shows, and how it was measured."""

HEAD = """\
# Measurements

`make bench` measures these tables again, and `python -m benchmarks.measurements_page` writes \
this page from `benchmarks/results.json`. A part may be older than the date below: \
`python -m benchmarks NAME` measures one table alone.
"""


def main() -> None:
    with whole_file(PAGE) as temporary:
        temporary.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), "utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    machine = results["machine"]
    where = f"Last measured on {machine['date']}, torch {machine['torch']}, {machine['cpu']}.\n"
    parts = [
        _section(title, sentence, results[name])
        for name, (title, sentence) in SECTIONS.items()
        if name in results
    ]
    return "\n".join([HEAD, where, *parts])


def _section(title: str, sentence: str, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(name)) for name in columns] for row in rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"## {title}\n\n{sentence}\n\n{table}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    if isinstance(value, list):
        return " to ".join(map(_cell, value))
    return "" if value is None else str(value)


if __name__ == "__main__":
    main()
