"""Run benchmarks, print their tables, write benchmarks/results.json; exit 1 over a limit.

`python -m benchmarks` runs all of them; names run those alone and leave other rows as they are.
"""

import json
import platform
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import (
    accelerated,
    accelerated_linear,
    accuracy,
    chain_memory,
    chains,
    compiled,
    decoder,
    functional,
    linear,
    literal,
    loading,
    memory,
    optimisers,
    recursion,
    rigorous,
    scaling,
    shaped_networks,
    sizes,
    speed,
    start_up,
    training,
    verify_speed,
)
from icgd.cli.show import plain

Rows = list[dict[str, object]]

BENCHMARKS: dict[str, tuple[str, Callable[[], Rows]]] = {
    "speed": ("Fused against torch.autograd, float64, 64 pieces, 2 threads", speed.rows),
    "compiled": (
        "Compiled fused runs against jax.jit (one task) and torch.autograd (256), float64, "
        "2 threads",
        compiled.rows,
    ),
    "compiled_adam": (
        "Compiled fused runs of Adam against torch.autograd and torch.optim, float64, 2 threads",
        compiled.optimiser_rows,
    ),
    "optimisers": (
        "Fused relu-stack against torch.autograd and torch.optim, 8-64-64-1, n = 64, 2 threads",
        optimisers.rows,
    ),
    "adam_roots": ("Pieces of Adam's reciprocal root, 4-8-1 tanh", optimisers.root_rows),
    "adam_accuracy": (
        "Compiled Adam and torch's own run on real tables: test accuracy",
        optimisers.accuracy_rows,
    ),
    "shaped_networks": (
        "The inner loop of a TTT-MLP layer, 8-32-8 gelu, n = 16, 20 steps of 0.1, relu-stack",
        shaped_networks.rows,
    ),
    "shaped_speed": (
        "Fused inner loops of TTT-MLP layers against torch.autograd, n = 64, one thread",
        shaped_networks.speed_rows,
    ),
    "literal": (
        "A step of the literal transformer, n = 64, 2 threads; at most 1 GiB",
        literal.rows,
    ),
    "literal_distances": (
        "How far dense and fused runs are from literal ones, 5 steps, 8 examples",
        literal.distances,
    ),
    "softmax_speed": ("Fused softmax-stack against fused relu-stack", speed.softmax_rows),
    "recursion_speed": (
        "Fused recursion against fused relu-stack, own units, one thread",
        recursion.speed,
    ),
    "verify_speed": (
        "Bounds (b) of all steps against the fused run, 8-16-16-1 tanh, n = 32, one thread",
        verify_speed.rows,
    ),
    "scaling": ("Cost of a fused run along each axis (tanh, width 32)", scaling.rows),
    "memory": ("Peak memory beyond the inputs", memory.rows),
    "start_up": ("Start-up", start_up.rows),
    "sizes": ("Sizes before and after heads and slots were shared", sizes.rows),
    "loading": ("Loading a compiled run, tanh, one thread", loading.rows),
    "fits": ("Certified error of 64 pieces on [-6, 6]", accuracy.fits),
    "lattices": ("Softmax lattices: identity on [-1, 1], tanh on [-6, 6]", accuracy.lattices),
    "ridge_sums": ("Ridge sums: certified errors on [-2, 2]^2, r = tanh", accuracy.ridge_sums),
    "kinks": ("Relu networks: near-kink events and errors", accuracy.kinks),
    "bounds": ("Bound (b) over the measured step error, random problems", accuracy.bounds),
    "rigorous": ("Rigorous distance of a run from exact descent, tanh, one thread", rigorous.rows),
    "weights": ("Trained weights, 3-4-4-2 tanh, n = 6, 5 steps, dense backend", accuracy.weights),
    "softmax_weights": (
        "Trained weights of softmax-stack, 3-4-4-2, n = 6, 5 steps, dense backend",
        accuracy.softmax_weights,
    ),
    "recursion_weights": (
        "Trained weights of recursion, tanh, 200 units, n = 6, 5 steps",
        recursion.weights,
    ),
    "chain_weights": (
        "Trained weights of cot-network, one example a round, float64",
        chains.weights,
    ),
    "chain_blocks": ("A fused block of cot-network as N grows, d = 8, one thread", chains.blocks),
    "chain_speed": (
        "Fused cot-network against plain torch and relu-stack, one thread",
        chains.speed,
    ),
    "chain_memory": ("A fused chain of 20,000 blocks, by what is kept of it", chain_memory.rows),
    "linear_coefficients": (
        "Linear models until nothing moves, beside scikit-learn; dense steps beside exact ones",
        linear.coefficients,
    ),
    "linear_guarantees": (
        "Linear models: what Theorems 3.1 to 3.3 promise, and what runs do",
        linear.guarantees,
    ),
    "linear_means": ("Means of links by one head", linear.means),
    "linear_sizes": ("Linear models: one block, dense", linear.sizes),
    "linear_speed": ("Fused steps of linear models against plain torch, one thread", linear.speed),
    "training": (
        "Training steps against plain einsum, batch 3000, n = 30, d = 5, 3 layers, float32",
        training.rows,
    ),
    "decoder": (
        "Training steps of the decoder against transformers' GPT2Model, batch 64, one thread",
        decoder.rows,
    ),
    "functional": ("Functional descent, 40 layers, 30 examples, 10 queries", functional.rows),
    "schedules": ("What 40 layers leave, constant and Chebyshev steps", functional.schedules),
    "accelerated": (
        "Layers until functional descent predicts its limit to 1e-6, by method",
        accelerated.rows,
    ),
    "accelerated_linear": (
        "Steps until the coefficients of linear models are within 1e-6, by method; 3 layers a step",
        accelerated_linear.rows,
    ),
    "training_data": ("Drawing a batch against ten steps on it, 3000 tasks", training.data_rows),
}


def main(names: list[str]) -> None:
    torch.set_num_threads(2)
    console = Console(width=140)
    path = Path(__file__).with_name("results.json")
    results = json.loads(path.read_text())
    for name in names or BENCHMARKS:
        title, rows = BENCHMARKS[name]
        results[name] = rows()
        console.print(_table(title, results[name]))
    results["machine"] = {
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "cpu": _cpu(),
    }
    path.write_text(json.dumps(plain(results), indent=1, allow_nan=False) + "\n")
    console.print(f"Written to benchmarks/{path.name}")
    over = [row for name in names or BENCHMARKS for row in results[name] if _is_over_its_limit(row)]
    for row in over:
        console.print("over its limit:", row)
    raise SystemExit(1 if over else 0)


def _is_over_its_limit(row: dict[str, object]) -> bool:
    measured, limit = row.get("ratio", row.get("seconds")), row.get("limit")
    return isinstance(limit, float) and isinstance(measured, float) and measured > limit


def _table(title: str, rows: Rows) -> Table:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    return table


def _cpu() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main(sys.argv[1:])
