"""A chain of 20,000 blocks: what is kept of it, and how the process grows; Linux only."""

import json
import subprocess
import sys

from benchmarks.chains import compiled_of, task_for
from benchmarks.memory import status
from icgd.backends.chain import GENERATORS, MEMORIES, Chain

DEPTH, WIDTH, N_ROUNDS = 5, 16, 2000
FIRST_ROUND = 200
"""From here on the process is looked at: 2,000 blocks, when all that is made once is made."""


def rows() -> list[dict[str, object]]:
    """Each memory in a process of its own."""
    return [_row(memory) for memory in MEMORIES]


def _row(memory: str) -> dict[str, object]:
    command = [sys.executable, "-m", "benchmarks.chain_memory", memory]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, before, after = json.loads(done.stdout)
    per_round = 2 * DEPTH
    return {
        "N, d": f"({DEPTH}, {WIDTH})",
        "memory": memory,
        "blocks": per_round * N_ROUNDS,
        "blocks kept": kept,
        f"MiB at block {per_round * FIRST_ROUND:,}": before / 1024,
        "MiB at the end": after / 1024,
        "KiB grown": after - before,
    }


def _measure(memory: str) -> tuple[int, int, int]:
    """Blocks that are kept at the end, and KiB of the process early and at the end."""
    compiled = compiled_of(DEPTH, WIDTH, N_ROUNDS)
    task, program = task_for(compiled), compiled.program
    chain = Chain(program, task, GENERATORS["fused"](program, task.x), memory, ())
    for number, _ in enumerate(chain.rounds(), start=1):
        if number == FIRST_ROUND:
            before = status("VmRSS")
    return len(chain.blocks), before, status("VmRSS")


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1])))
