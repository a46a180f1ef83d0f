"""Many tasks, streamed from a folder: how fast, in how much memory, and what kills change.

`python -m benchmarks.many_tasks` runs 100,000 tasks of 8-16-16-1 with 1 and with 2 workers, then
again with 50 kills of all processes at random moments, and compares every byte.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from safetensors.numpy import save_file

import icgd

N_EXAMPLES, N_QUERIES, WIDTH = 32, 4, 8
TASKS_OF_FILE = 10_000
PARTS = "part-*.parquet"


def write_run(path: Path) -> None:
    network, step = icgd.MLP((WIDTH, 16, 16, 1), "tanh"), icgd.GradientStep(0.05, box=4.0)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
    icgd.compile(problem, "relu-stack", n_steps=10).save(path)


def write_tasks(folder: Path, n_tasks: int, tasks_of_file: int = TASKS_OF_FILE) -> None:
    """Write files of tasks, Parquet and safetensors in turn."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, first in enumerate(range(0, n_tasks, tasks_of_file)):
        n = min(tasks_of_file, n_tasks - first)
        rows = N_EXAMPLES + N_QUERIES
        x, y = rng.uniform(-1, 1, (n, rows, WIDTH)), rng.uniform(-1, 1, (n, rows))
        task = np.arange(first, first + n)
        name = f"tasks-{number:04d}"
        if number % 2:
            examples = {"x": x[:, :N_EXAMPLES], "y": y[:, :N_EXAMPLES], "task": task}
            whole = {"queries": x[:, N_EXAMPLES:], **examples}
            contiguous = {part: np.ascontiguousarray(array) for part, array in whole.items()}
            save_file(contiguous, folder / f"{name}.safetensors")
        else:
            columns = {f"x_{i + 1}": x[..., i].ravel() for i in range(WIDTH)}
            is_query = np.tile(np.arange(rows) >= N_EXAMPLES, n)
            frame = {"task": np.repeat(task, rows), "query": is_query, **columns, "y": y.ravel()}
            pl.DataFrame(frame).write_parquet(folder / f"{name}.parquet")


def start(folder: Path, output: str, n_workers: int, chunk_size: int) -> subprocess.Popen[bytes]:
    """Start `icgd run --tasks` in a process group of its own."""
    options = ["--tasks", "tasks", "-o", output, "--workers", str(n_workers)]
    command = [sys.executable, "-m", "icgd", "run", "run.safetensors", *options, "--json"]
    command += ["--chunk-size", str(chunk_size)]
    return subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=None
    )


def run_with_kills(
    folder: Path, output: str, n_workers: int, chunk_size: int, n_kills: int, seed: int = 0
) -> list[int]:
    """Kill all processes `n_kills` times at random moments; return the parts found after each.

    A quarter of the kills come while Python starts, the others while a part is computed or written.
    """
    rng, found = random.Random(seed), []
    place = folder / output
    while len(found) < n_kills:
        process = start(folder, output, n_workers, chunk_size)
        if rng.random() < 0.25:
            time.sleep(rng.uniform(0, 4))
        else:
            wanted = (found[-1] if found else 0) + rng.randrange(1, 4)
            while process.poll() is None and len(list(place.glob(PARTS))) < wanted:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.2))
        if process.poll() == 0:  # done before the kill: give more tasks, or smaller chunks
            return found
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode} after {len(found)} kills")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        found.append(len(list(place.glob(PARTS))))
    if start(folder, output, n_workers, chunk_size).wait():
        raise RuntimeError("the last run failed")
    return found


def measured(folder: Path, output: str, n_workers: int, chunk_size: int) -> dict[str, float]:
    """What a run takes that nothing disturbs.

    `seconds` are those of the command; `between` are those between its first part and its last,
    which leaves the start of Python out; `megabytes` is the peak of its main process.
    """
    before = time.perf_counter()
    process = start(folder, output, n_workers, chunk_size)
    status, kibibytes = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        # VmHWM is the peak so far; wait4 would count the memory of this process too, from its fork.
        if found := re.search(r"VmHWM:\s*(\d+)", status.read_text()):
            kibibytes = int(found[1])
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}")
    written = [path.stat().st_mtime for path in (folder / output).glob(PARTS)]
    seconds = time.perf_counter() - before
    between, megabytes = max(written) - min(written), kibibytes / 1024
    return {"seconds": seconds, "between": between, "megabytes": megabytes}


def differences(one: Path, other: Path) -> list[str]:
    """The files of results that are not equal byte for byte, or only in one of two folders."""
    files = [{p.name: p for p in folder.iterdir() if p.name[0] != "."} for folder in (one, other)]
    shared = files[0].keys() & files[1].keys()
    unequal = [n for n in shared if files[0][n].read_bytes() != files[1][n].read_bytes()]
    return sorted((files[0].keys() ^ files[1].keys()) | set(unequal))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--tasks", type=int, default=100_000)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--chunk-size", type=int, default=512)
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    with TemporaryDirectory() as place:
        folder = Path(place)
        write_run(folder / "run.safetensors")
        write_tasks(folder / "tasks", given.tasks)
        whole = folder / "undisturbed-1-0"
        runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for repeat in range(given.repeats):
            for n_workers in runs:
                output = f"undisturbed-{n_workers}-{repeat}"
                runs[n_workers].append(measured(folder, output, n_workers, given.chunk_size))
                print(
                    n_workers, runs[n_workers][-1], "differs:", differences(whole, folder / output)
                )
        for n_workers, rows in runs.items():
            print(f"{n_workers} workers, tasks a second:")
            for name in ("seconds", "between"):
                speeds = sorted(given.tasks / row[name] for row in rows)
                print(f"  {name}: best {speeds[-1]:,.0f}, median {np.median(speeds):,.0f}")
        if not given.kills:
            return
        found = run_with_kills(folder, "killed", 2, given.chunk_size, given.kills)
        results = pl.read_parquet(folder / "killed" / PARTS)
        print(f"{len(found)} kills, parts found after each: {found}")
        print("tasks:", len(results), "distinct:", results["task"].n_unique(), end=" ")
        print("failed:", results["reason"].count())
        print("differs:", differences(whole, folder / "killed"))


if __name__ == "__main__":
    main()
