"""Run all benchmarks, print their tables, write benchmarks/results.json; exit 1 over a limit."""

import json
import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import accuracy, memory, scaling, speed, start_up

Rows = list[dict[str, object]]

BENCHMARKS: dict[str, tuple[str, Callable[[], Rows]]] = {
    "speed": ("Fused against torch.autograd, float64, 64 pieces, 2 threads", speed.rows),
    "softmax_speed": ("Fused softmax-stack against fused relu-stack", speed.softmax_rows),
    "scaling": ("Cost of a fused run along each axis (tanh, width 32)", scaling.rows),
    "memory": ("Peak memory beyond the inputs", memory.rows),
    "start_up": ("Start-up", start_up.rows),
    "fits": ("Certified error of 64 pieces on [-6, 6]", accuracy.fits),
    "lattices": ("Softmax lattices: identity on [-1, 1], tanh on [-6, 6]", accuracy.lattices),
    "bounds": ("Bound (b) over the measured step error, random problems", accuracy.bounds),
    "weights": ("Trained weights, 3-4-4-2 tanh, n = 6, 5 steps, dense backend", accuracy.weights),
    "softmax_weights": (
        "Trained weights of softmax-stack, 3-4-4-2, n = 6, 5 steps, dense backend",
        accuracy.softmax_weights,
    ),
}


def main() -> None:
    torch.set_num_threads(2)
    console = Console(width=140)
    results: dict[str, Rows] = {}
    for name, (title, rows) in BENCHMARKS.items():
        results[name] = rows()
        console.print(_table(title, results[name]))
    machine = {"date": date.today().isoformat(), "torch": torch.__version__, "cpu": _cpu()}
    path = Path(__file__).with_name("results.json")
    path.write_text(json.dumps({"machine": machine, **results}, indent=1) + "\n")
    console.print(f"Written to benchmarks/{path.name}")
    over = [row for rows in results.values() for row in rows if _is_over_its_limit(row)]
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
    main()
