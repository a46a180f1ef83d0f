"""Run a folder of tasks, larger than memory, on local processes or on a Ray cluster.

One process reads chunks of tasks, distributes them and writes the results; workers only compute. So
a killed worker leaves nothing half done, and the machines of a cluster need no shared disk. The
file of a chunk is the only record that the chunk is done: it is complete or absent. Chunks depend
on the input and the settings only, so the files do not depend on the number of workers or
interruptions.

docs/many_tasks.md describes the files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from math import prod
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import polars as pl
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from icgd.backends.fused import has_numba
from icgd.backends.registry import BACKENDS
from icgd.backends.run import OnProgress
from icgd.compiled import Compiled
from icgd.environment import warn
from icgd.errors import (
    DataError,
    DomainError,
    FileError,
    InterruptedRunError,
    KernelError,
    MissingExtraError,
    OverflowedRunError,
    RunFolderError,
    SettingError,
    UnknownNameError,
    WorkerError,
    cut,
)
from icgd.problems.data import dtype_name, dtype_named
from icgd.problems.problem import Problem
from icgd.problems.settings import count, named
from icgd.program.check import from_data
from icgd.weights.files import whole_file

CHUNK_SIZE = 1024
"""The default limit on the number of tasks in a chunk."""

NUMBERS_OF_CHUNK = 2**22
"""The largest number of values in a chunk, data and weights (32 MB); a larger task is a chunk."""

ROWS_AT_ONCE = 2**22
"""The number of rows of the column `task` that are read at a time to find the tasks."""

MANIFEST, FAILURES, LOCK, OWNER = "manifest.json", "failures.csv", ".lock", ".owner"
PARTS = "part-*.parquet"
PARTIAL = ".*.icgd-partial"
"""The names of temporary files, which a killed process leaves behind."""

FAULTS = (DataError, DomainError, KernelError, OverflowedRunError, SettingError)
"""Errors that one task causes; settings are checked before the first task."""

DAMAGE = (DataError, SafetensorError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Errors of an unusable file, as opposed to an unreadable disk (OSError), which ends the run."""

TENSORS = ("x", "y", "queries", "initial", "rates")
NUMBER_TYPES = ("F64", "F32", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")

Array = NDArray[Any]


@dataclass(frozen=True)
class TaskResults:
    """The results of `run_tasks`.

    Attributes:
        output: the folder; its part-*.parquet files have a row for each task: file, task,
            predictions, weights, and the reason if the task failed.
        n_tasks: the number of tasks, including those that failed.
        failures: the failed tasks with their reasons; a file that could not be read is a row whose
            task is null.

    Example:
        >>> import icgd
        >>> import polars as pl
        >>> from pathlib import Path
        >>> icgd.TaskResults(Path("out"), n_tasks=100, failures=pl.DataFrame()).n_tasks
        100
    """

    output: Path
    n_tasks: int
    failures: pl.DataFrame


def run_tasks(
    compiled: Compiled,
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    n_workers: int | None = None,
    ray_address: str | None = None,
    chunk_size: int = CHUNK_SIZE,
    seed: int | None = None,
    backend: str = "fused",
    dtype: str | torch.dtype = "float64",
    on_progress: OnProgress | None = None,
) -> TaskResults:
    """Run every task of a folder, and write predictions and final weights to another folder.

    Call again with the same arguments to resume after Ctrl-C, a kill or a full disk. Tasks that
    cannot be run are listed in failures.csv with their file, their number and the reason.

    Args:
        compiled: the run to perform on every task.
        folder: the tasks, in Parquet or safetensors files.
        output: the folder for the results; created if it does not exist.
        n_workers: the number of worker processes, each with one thread; by default the calling
            process does the work.
        ray_address: the address of a Ray cluster to use instead, such as "auto"; "local" starts
            one on this machine.
        chunk_size: the largest number of tasks that are read, run and written together.
        seed: the seed of the random initial weights of all tasks that bring none.
        backend: "fused", "literal" or "dense".
        dtype: "float64" or "float32".
        on_progress: a callback, called with the number of finished tasks and their total.

    Returns:
        The number of tasks, those that failed, and the folder of the results.

    Raises:
        DataError: if the folder has no tasks.
        FileError: if the output cannot be written, or was begun with other tasks or settings.
        RunFolderError: if another process writes to the output.
        WorkerError: if a worker process died.
        MissingExtraError: if Ray is requested and not installed.
        SettingError: if a setting is impossible.
        UnknownNameError: if no backend or dtype has this name.
        InterruptedRunError: on Ctrl-C; finished chunks are kept.

    Example:
        >>> import icgd
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from safetensors.numpy import save_file
        >>> from tempfile import TemporaryDirectory
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> with TemporaryDirectory() as folder:
        ...     data = {"x": np.ones((2, 1, 2)), "y": np.array([[1.0], [9.0]])}
        ...     save_file(data, Path(folder, "tasks.safetensors"))
        ...     results = icgd.run_tasks(compiled, folder, Path(folder, "out"))
        ...     print(*results.failures.row(0))
        tasks.safetensors 1 y[0, 0] is 9, outside [-1, 1]. ...
    """
    named("backend", backend, BACKENDS)
    if ray_address is not None and n_workers is not None:
        raise SettingError(
            "n_workers has no effect with ray_address: Ray uses the whole cluster. Omit one of the "
            "two."
        )
    settings: dict[str, Any] = {
        "chunk_size": count("chunk_size", chunk_size),
        "seed": None if seed is None else count("seed", seed, least=0),
        "backend": backend,
        "dtype": dtype_name(dtype_named(dtype)),
        "engine": "auto" if has_numba() else "torch",  # a setting, as the two round differently
    }
    n_workers = None if n_workers is None else count("n_workers", n_workers)
    whole = compiled.whole
    program: dict[str, Any] = {"problem": whole.problem.to_data()}
    program["program"] = whole.program.to_data()
    if compiled.wide is not None:
        program["widths"] = compiled.problem.network.widths
    text = json.dumps(program, sort_keys=True)
    source, target = Path(folder), Path(output)
    paths = _members(source, target)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot write {target}: {error.strerror or error}.") from None
    with _locked(target):
        _begin(target, paths, settings, hashlib.sha256(text.encode()).hexdigest())
        chunks = list(_planned(compiled.problem, paths, settings["chunk_size"]))
        written = {path.name for path in target.glob(PARTS)}
        pending = [chunk for chunk in chunks if chunk.file not in written]
        total = sum(chunk.n_tasks for chunk in chunks)
        done = total - sum(chunk.n_tasks for chunk in pending)
        if on_progress:
            on_progress(done, total)
        resume = f"tasks are finished and saved in {target}. Run it again to resume."
        seen: set[type[Warning]] = set()
        try:
            with _workers(compiled, text, settings, n_workers, ray_address) as workers:
                for chunk, results in _finished(pending, compiled.problem, workers):
                    _write(target / chunk.file, chunk, results, settings["dtype"])
                    done += chunk.n_tasks
                    for category, message in results.warnings:
                        if category not in seen:  # warn once, not for every chunk
                            seen.add(category)
                            file = chunk.path.name
                            warn(category(f"In {file}, and maybe other files: {message}"))
                    if on_progress:
                        on_progress(done, total)
            parts = pl.scan_parquet(sorted(target.glob(PARTS)), glob=False)
            failed = parts.filter(pl.col("reason").is_not_null())
            try:
                failures = failed.select("file", "task", "reason").collect(engine="streaming")
            except pl.exceptions.PolarsError as error:
                raise FileError(
                    f"A part-*.parquet file in {target} is damaged ({error}). Delete it and run "
                    "again; the other parts are kept."
                ) from None
            with whole_file(target / FAILURES) as temporary:
                temporary.write_bytes(failures.write_csv().encode())
        except KeyboardInterrupt:
            message = f"The run was interrupted; {done:,} of {total:,} {resume}"
            raise InterruptedRunError(message, None) from None
        except FileError as error:
            raise FileError(f"{error} {done:,} of {total:,} {resume}") from None
        except WorkerError as error:
            raise WorkerError(f"{error} {done:,} of {total:,} {resume}") from None
    return TaskResults(target, total, failures)


# Folders and the manifest


def _members(folder: Path, output: Path) -> list[Path]:
    """Return the task files in alphabetical order."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give the folder that holds the tasks.")
    if output.exists() and folder.samefile(output):
        raise FileError(f"Cannot write {output}: it holds the tasks. Give another folder.")
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in CUTTERS and path.is_file()]
    if not paths:
        raise DataError(f"{folder} has no tasks; expected {' or '.join(CUTTERS)} files in it.")
    return paths


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; the system releases the lock of a killed process."""
    lock, owner = FileLock(folder / LOCK), folder / OWNER
    try:
        lock.acquire(blocking=False)
    except Timeout:
        name = owner.read_text(encoding="utf-8") if owner.exists() else "another process"
        raise RunFolderError(
            f"{folder} is in use by {name}. Nothing was changed. Wait until that process ends, or "
            "give another folder."
        ) from None
    except OSError as error:
        raise FileError(f"Cannot write {folder}: {error.strerror or error}.") from None
    try:
        with whole_file(owner) as temporary:
            text = f"process {os.getpid()} on {socket.gethostname()}"
            temporary.write_text(text, encoding="utf-8")
        for abandoned in folder.glob(PARTIAL):
            abandoned.unlink()
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _begin(output: Path, paths: Sequence[Path], settings: dict[str, Any], digest: str) -> None:
    """Write the manifest, or raise if an existing one describes other tasks or settings."""
    manifest = output / MANIFEST
    if not manifest.exists():
        if next(output.glob(PARTS), None):
            raise FileError(
                f"{output} has results but no {MANIFEST} to tell which tasks they belong to. "
                "Give another folder."
            )
        members = [_fingerprint(path) | {"sha256": _sha256(path)} for path in paths]
        content = {"format": 1, "program": digest, "settings": settings, "members": members}
        with whole_file(manifest) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return
    try:
        recorded = json.loads(manifest.read_text(encoding="utf-8"))
        differences = [
            f"{name} was {recorded['settings'][name]!r} and is now {value!r}"
            for name, value in settings.items()
            if recorded["settings"][name] != value
        ]
        if recorded["program"] != digest:
            differences.append("the compiled run is a different one")
        old = {member["file"]: member for member in recorded["members"]}
        now = {path.name: path for path in paths}
        differences += [f"{name} is missing" for name in sorted(old.keys() - now.keys())]
        differences += [f"{name} is new" for name in sorted(now.keys() - old.keys())]
        for name in sorted(now.keys() & old.keys()):
            before, after = old[name], _fingerprint(now[name])
            if before["size"] == after["size"]:
                # A copied file has another time but the same content: hash only in that case.
                if before["mtime_ns"] == after["mtime_ns"]:
                    continue
                if before["sha256"] == _sha256(now[name]):
                    continue
            differences.append(f"{name} has changed")
    except FileError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FileError(f"{manifest} is damaged ({error}). Give another folder.") from None
    if differences:
        more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise FileError(
            f"{output} was begun with other tasks or settings: {'; '.join(differences[:3])}{more}. "
            "Nothing was changed. Restore them to resume, or give another folder to start over."
        )


def _fingerprint(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"file": path.name, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None


# Chunks


@dataclass(frozen=True)
class Chunk:
    """Tasks of one file: the rows (Parquet) or tasks (safetensors) from `start` to `stop`.

    An unusable file is a chunk without tasks, with the `reason`.
    """

    file: str
    path: Path
    start: int
    stop: int
    n_tasks: int
    reason: str | None = None


def _planned(problem: Problem, paths: Iterable[Path], chunk_size: int) -> Iterator[Chunk]:
    """Yield all chunks in order; read only headers and the columns `task` and `query`."""
    for number, path in enumerate(paths):
        try:
            cuts = list(CUTTERS[path.suffix](problem, path, chunk_size))
        except OSError as error:
            raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
        except DAMAGE as error:
            yield Chunk(_part_name(number, 0), path, 0, 0, 0, _damage_reason(path, error))
            continue
        for chunk_number, (start, stop, n_tasks) in enumerate(cuts):
            yield Chunk(_part_name(number, chunk_number), path, start, stop, n_tasks)


def _part_name(file_number: int, chunk_number: int) -> str:
    return f"part-{file_number:06d}-{chunk_number:06d}.parquet"


def _damage_reason(path: Path, error: BaseException) -> str:
    text = cut(" ".join(str(error).split()))
    is_ours = isinstance(error, DataError)
    return text if is_ours else f"damaged, or not a {path.suffix[1:]} file ({text})"


def _cuts(sizes: Iterable[int], chunk_size: int) -> Iterator[tuple[int, int]]:
    """Yield the range (first, stop) of each chunk's tasks, from the sizes of all tasks."""
    first = task = total = 0
    for task, size in enumerate(sizes):
        if task > first and (task - first == chunk_size or total + size > NUMBERS_OF_CHUNK):
            yield first, task
            first, total = task, 0
        total += size
    yield first, task + 1


def _n_weights(problem: Problem) -> int:
    return sum(map(prod, problem.oracle.weight_shapes))


def _parquet_cuts(problem: Problem, path: Path, chunk_size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first row, the stop row and the number of tasks of each chunk."""
    table = pl.scan_parquet(path, glob=False)
    schema = table.collect_schema()
    columns = _columns(problem, schema)
    if not schema["task"].is_integer():
        raise DataError(f"column task has type {schema['task']}; expected integers")
    for name in columns["x"] + columns["y"] + columns["rates"]:
        kind = schema[name]
        if not (kind.is_float() or kind.is_integer() or kind == pl.Boolean):
            raise DataError(f"column {name} has type {kind}; expected numbers")
    if columns["query"] and schema["query"] != pl.Boolean:
        raise DataError(f"column query has type {schema['query']}; expected true or false")
    numbers, lengths, row = [], [], 0
    keys = table.select("task", *columns["query"])
    while len(window := keys.slice(row, ROWS_AT_ONCE).collect()):
        for name, series in window.to_dict().items():
            if series.null_count():
                gap = row + int(series.is_null().arg_true()[0])
                raise DataError(f"column {name} has no value in row {gap} (counted from 0)")
        runs = window["task"].cast(pl.Int64).rle().struct.unnest()
        numbers.append(runs["value"].to_numpy())
        lengths.append(runs["len"].to_numpy().astype(np.int64))
        row += len(window)
    if not row:
        raise DataError("the file has no rows")
    number, length = np.concatenate(numbers), np.concatenate(lengths)
    # Join the runs of a task that a window's end cut in two.
    begins = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    number, length = number[begins], np.add.reduceat(length, begins)
    _require_unique(number, "the rows of task {} are not consecutive; sort the file by task")
    ends = np.append(0, np.cumsum(length))
    width, n_weights = len(columns["x"]) + len(columns["y"]), _n_weights(problem)
    for first, stop in _cuts((length * width + n_weights).tolist(), chunk_size):
        yield int(ends[first]), int(ends[stop]), stop - first


def _columns(problem: Problem, schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the columns of each array of a task; labels of width 1 and classes are column `y`."""
    target = problem.target
    labels = [f"y_{number}" for number in range(1, target.output_width + 1)]
    columns = {
        "x": [f"x_{number}" for number in range(1, target.input_width + 1)],
        "y": ["y"] if "y" in schema or target.output_width == 1 else labels,
        "query": ["query"] if "query" in schema else [],
        "rates": ["rate"] if "rate" in schema else [],
    }
    missing = [name for name in ("task", *columns["x"], *columns["y"]) if name not in schema]
    if missing:
        raise DataError(
            f"there is no column {missing[0]}; expected task, {columns['x'][0]} to "
            f"{columns['x'][-1]}, {' and '.join(columns['y'])}, and query if there are queries"
        )
    # Other columns are ignored, but an additional input or label is a mistake.
    for name in schema:
        if re.fullmatch(r"[xy](_\d+)?", name) and name not in columns["x"] + columns["y"]:
            raise DataError(
                f"there is a column {name}, which the model does not use; its inputs are "
                f"{columns['x'][0]} to {columns['x'][-1]}, its labels {' and '.join(columns['y'])}"
            )
    return columns


def _tensor_cuts(problem: Problem, path: Path, chunk_size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first task, the stop task and the number of tasks of each chunk."""
    with safe_open(path, "np") as file:
        tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        if missing := {"x", "y"} - tensors.keys():
            raise DataError(f"there is no tensor {min(missing)}; expected x and y")
        if unknown := tensors.keys() - {"task", *TENSORS}:
            raise DataError(
                f"there is an unknown tensor {min(unknown)}; expected x and y, and optionally "
                f"task, {', '.join(TENSORS[2:])}"
            )
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
        lengths = {}
        for name in ("task", *TENSORS):
            if name not in tensors:
                continue
            kind = tensors[name].get_dtype()
            if kind not in NUMBER_TYPES or (name == "task" and kind[0] not in "IU"):
                expected = "integers" if name == "task" else f"{', '.join(NUMBER_TYPES)}"
                raise DataError(f"tensor {name} has type {kind}; expected {expected}")
            lengths[name] = shapes[name][0] if shapes[name] else 0
        width = problem.target.input_width
        has_inputs = len(shapes["x"]) == 3 and shapes["x"][-1] == width
        if not has_inputs or len(set(lengths.values())) > 1 or not lengths["x"]:
            actual = ", ".join(f"{name} {shapes[name]}" for name in lengths)
            raise DataError(
                f"the tensors have the shapes {actual}; expected x (tasks, examples, {width}) "
                "and the same number of tasks in the others"
            )
        n_tasks = lengths["x"]
        if "task" in tensors:
            if len(shapes["task"]) != 1:
                raise DataError(f"tensor task has shape {shapes['task']}; expected ({n_tasks},)")
            _require_unique(tensors["task"][:], "number {} occurs twice in the tensor task")
    size = _n_weights(problem) + sum(prod(shapes[name][1:]) for name in TENSORS if name in shapes)
    for first, stop in _cuts((size for _ in range(n_tasks)), chunk_size):
        yield first, stop, stop - first


def _require_unique(numbers: Array, message: str) -> None:
    distinct, counts = np.unique(numbers, return_counts=True)
    if len(distinct) < len(numbers):
        raise DataError(message.format(distinct[counts > 1][0]))


CUTTERS = {".parquet": _parquet_cuts, ".safetensors": _tensor_cuts}
"""The function that divides a file into chunks, by the extension of its name."""


# Reading a chunk


@dataclass(frozen=True)
class Group:
    """Tasks of one shape: their indices in the chunk, and arrays with a leading axis of tasks."""

    places: Array
    arrays: dict[str, Array]


def _read_parquet(problem: Problem, chunk: Chunk) -> tuple[Array, list[Group]]:
    """Return the task numbers, and the tasks grouped by their numbers of examples and queries."""
    table = pl.scan_parquet(chunk.path, glob=False)
    schema = table.collect_schema()
    columns = _columns(problem, schema)
    used = [name for names in columns.values() for name in names]
    frame = table.select("task", *used).slice(chunk.start, chunk.stop - chunk.start).collect()
    if len(frame) != chunk.stop - chunk.start:
        raise DataError(f"the file ends after {chunk.start + len(frame)} rows")
    runs = frame["task"].cast(pl.Int64).rle().struct.unnest()
    task = np.repeat(np.arange(len(runs)), runs["len"].to_numpy())
    is_query = np.zeros(len(frame), bool)
    if columns["query"]:
        is_query = frame["query"].to_numpy()

    def numbers(names: list[str], rows: Array) -> Array:
        # Keep float32: a value that float32 rounded up is compared with a bound rounded likewise.
        is_single = all(schema[name] == pl.Float32 for name in names)
        kind = pl.Float32 if is_single else pl.Float64
        return frame.select(pl.col(names).cast(kind)).to_numpy()[rows]

    x, y = numbers(columns["x"], ~is_query), numbers(columns["y"], ~is_query)
    queries = numbers(columns["x"], is_query)
    rates = numbers(columns["rates"], ~is_query) if columns["rates"] else None
    if columns["y"] == ["y"]:
        y = y[:, 0]
    n_examples = np.bincount(task[~is_query], minlength=len(runs))
    n_queries = np.bincount(task[is_query], minlength=len(runs))
    shapes, group_of = np.unique(np.stack([n_examples, n_queries]), axis=1, return_inverse=True)
    first_example, first_query = n_examples.cumsum() - n_examples, n_queries.cumsum() - n_queries
    groups = []
    for number, (n, q) in enumerate(shapes.T):
        places = np.flatnonzero(group_of == number)
        rows = first_example[places, None] + np.arange(n)
        arrays = {"x": x[rows], "y": y[rows]}
        if q:
            arrays["queries"] = queries[first_query[places, None] + np.arange(q)]
        if rates is not None:
            arrays["rates"] = rates[rows]
        groups.append(Group(places, arrays))
    return runs["value"].to_numpy(), groups


def _read_tensors(problem: Problem, chunk: Chunk) -> tuple[Array, list[Group]]:
    """Return the task numbers, and the tasks as one group."""
    rows = slice(chunk.start, chunk.stop)
    with safe_open(chunk.path, "np") as file:
        names = set(file.keys())
        arrays = {name: file.get_slice(name)[rows] for name in TENSORS if name in names}
        numbers = np.arange(chunk.start, chunk.stop)
        if "task" in names:
            numbers = file.get_slice("task")[rows].astype(np.int64)
    if arrays.get("queries", np.ones((1, 1))).shape[1] == 0:
        del arrays["queries"]
    return numbers, [Group(np.arange(chunk.n_tasks), arrays)]


READERS = {".parquet": _read_parquet, ".safetensors": _read_tensors}


def _task_numbers(chunk: Chunk) -> Array | None:
    """Return the task numbers of a chunk whose other columns are damaged, or None."""
    try:
        rows = pl.scan_parquet(chunk.path, glob=False).select(pl.col("task").cast(pl.Int64))
        task = rows.slice(chunk.start, chunk.stop - chunk.start).collect()["task"]
    except DAMAGE:
        return None
    return task.unique(maintain_order=True).to_numpy()


# Running a chunk


@dataclass
class Results:
    """The results of a chunk: predictions and weights of tasks, and reasons of failures.

    Tasks are identified by their index in the chunk. `numbers` are the task numbers, or None if
    they cannot be read.
    """

    numbers: Array | None = None
    batches: list[tuple[Array, Array, Array]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    warnings: list[tuple[type[Warning], str]] = field(default_factory=list)


def _run_chunk(compiled: Compiled, settings: dict[str, Any], groups: list[Group]) -> Results:
    """Run the tasks in batches of one shape, on one thread per worker."""
    results = Results()
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for group in groups:
                _run_group(compiled, settings, group, results)
    finally:
        torch.set_num_threads(n_threads)
    results.warnings = [(warning.category, str(warning.message)) for warning in caught]
    return results


def _run_group(
    compiled: Compiled, settings: dict[str, Any], group: Group, results: Results
) -> None:
    """Run a group as a batch; if a task fails, bisect the batch until it is found."""
    places, arrays = group.places, dict[str, Any](group.arrays)
    oracle = compiled.problem.oracle
    if "initial" not in arrays and oracle.weight_shapes:  # a function starts from 0
        # A batch would draw different weights for its tasks; here every task starts as if alone.
        arrays["initial"] = oracle.own_start((), settings["seed"])
    dtype = settings["dtype"]
    options = {"backend": settings["backend"], "engine": settings["engine"], "history": False}
    try:
        run = compiled.run(**_as_arguments(arrays), dtype=dtype, **options)
    except FAULTS as error:
        if len(places) > 1:
            middle = len(places) // 2
            for half in (slice(middle), slice(middle, None)):
                halves = {name: array[half] for name, array in group.arrays.items()}
                _run_group(compiled, settings, Group(places[half], halves), results)
            return
        reason = str(error)
        try:  # without a batch axis, the message names the row and the column of the task
            single = {name: array[0] for name, array in group.arrays.items()}
            compiled.task(**_as_arguments(single), dtype=dtype)
        except FAULTS as error_of_task:
            reason = str(error_of_task)
        results.reasons[int(places[0])] = reason
        return
    weights = run.parameters[..., -1, :]
    results.batches.append((places, run.predictions.flatten(-2).numpy(), weights.numpy()))


def _as_arguments(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"X" if name == "x" else name: array for name, array in arrays.items()}


def _write(path: Path, chunk: Chunk, results: Results, dtype: str) -> None:
    """Write the results of a chunk: a row for each task, or one row for an unreadable file."""
    kind = pl.List(pl.Float64 if dtype == "float64" else pl.Float32)

    def lists(rows: Array) -> pl.Series:
        if not rows.size:
            return pl.Series([[]] * len(rows), dtype=kind)
        return pl.Series(rows.reshape(-1)).reshape(rows.shape).cast(kind)

    numbers = [None] if results.numbers is None else results.numbers.tolist()
    frame = pl.DataFrame(
        {
            "place": range(len(numbers)),
            "file": [chunk.path.name] * len(numbers),
            "task": pl.Series(numbers, dtype=pl.Int64),
        }
    )
    empty = np.zeros((0, 0))
    done = [
        pl.DataFrame(
            {"place": places, "predictions": lists(predictions), "weights": lists(weights)}
        )
        for places, predictions, weights in [*results.batches, (np.arange(0), empty, empty)]
    ]
    reasons = pl.Series(list(results.reasons.values()), dtype=pl.String)
    failed = pl.DataFrame(
        {"place": pl.Series(list(results.reasons), dtype=pl.Int64), "reason": reasons}
    )
    for columns in (pl.concat(done), failed):
        frame = frame.join(columns, on="place", how="left", maintain_order="left")
    content = io.BytesIO()
    frame.drop("place").write_parquet(content)
    with whole_file(path) as temporary:
        temporary.write_bytes(content.getvalue())


# Workers


@dataclass(frozen=True)
class Workers:
    """A pool of workers, and the number of chunks to hand out at a time."""

    submit: Callable[[list[Group]], Future[Results]]
    n_at_once: int


def _finished(
    chunks: Iterable[Chunk], problem: Problem, workers: Workers
) -> Iterator[tuple[Chunk, Results]]:
    """Read chunks when a worker is free, and yield each with its results as it finishes."""
    pending: dict[Future[Results], tuple[Chunk, Array]] = {}

    def next_done() -> Iterator[tuple[Chunk, Results]]:
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            chunk, numbers = pending.pop(future)
            results = future.result()
            results.numbers = numbers
            yield chunk, results

    for chunk in chunks:
        try:
            if chunk.reason:
                raise DataError(chunk.reason)
            numbers, groups = READERS[chunk.path.suffix](problem, chunk)
        except OSError as error:
            raise FileError(f"Cannot read {chunk.path}: {error.strerror or error}.") from None
        except DAMAGE as error:
            numbers_or_none = None if chunk.reason else _task_numbers(chunk)
            reason = _damage_reason(chunk.path, error)
            n_rows = 1 if numbers_or_none is None else len(numbers_or_none)
            yield chunk, Results(numbers_or_none, reasons=dict.fromkeys(range(n_rows), reason))
            continue
        pending[workers.submit(groups)] = chunk, numbers
        if len(pending) >= workers.n_at_once:
            yield from next_done()
    while pending:
        yield from next_done()


@contextmanager
def _workers(
    compiled: Compiled,
    text: str,
    settings: dict[str, Any],
    n_workers: int | None,
    ray_address: str | None,
) -> Iterator[Workers]:
    """Provide workers in this process, in others, or on a Ray cluster."""
    if ray_address is not None:
        with _on_ray(text, settings, ray_address) as workers:
            yield workers
    elif n_workers is not None and n_workers > 1:
        with _in_processes(text, settings, n_workers) as workers:
            yield workers
    else:

        def submit(groups: list[Group]) -> Future[Results]:
            future: Future[Results] = Future()
            future.set_result(_run_chunk(compiled, settings, groups))
            return future

        yield Workers(submit, 1)


@lru_cache(maxsize=1)
def _compiled(text: str) -> Compiled:
    data = json.loads(text)
    compiled = Compiled(Problem.from_data(data["problem"]), from_data(data["program"]))
    return compiled.for_widths(data["widths"]) if "widths" in data else compiled


def _job(text: str, settings: dict[str, Any], groups: list[Group]) -> Results:
    """Run a chunk in a worker; `text` is the compiled run, which itself holds buffers."""
    try:
        compiled = _compiled(text)
    except UnknownNameError as error:
        raise SettingError(
            f"A worker cannot rebuild the compiled run: {error} Names that you registered exist "
            "in your own process only. Run without workers."
        ) from None
    return _run_chunk(compiled, settings, groups)


@contextmanager
def _in_processes(text: str, settings: dict[str, Any], n_workers: int) -> Iterator[Workers]:
    """Provide spawned processes; forking a process with torch's threads may deadlock."""
    others = set(active_children())
    context = get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, mp_context=context, initializer=_end_with_parent)

    def submit(groups: list[Group]) -> Future[Results]:
        # Workers inherit the signal mask, so Ctrl-C reaches this process only.
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            return pool.submit(_job, text, settings, groups)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(_job, text, settings, groups)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield Workers(submit, 2 * n_workers)  # one chunk waits for each that is being run
    except BrokenProcessPool:
        raise WorkerError(
            "A worker process was killed, maybe because memory ran out. If this happens again, use "
            "fewer workers or smaller chunks."
        ) from None
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()  # only unfinished chunks are lost
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker when its parent process ends, even if the parent is killed."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _on_ray(text: str, settings: dict[str, Any], address: str) -> Iterator[Workers]:
    """Provide the processors of a Ray cluster; Ray repeats jobs of a lost machine on another."""
    try:
        ray = import_module("ray")
    except ImportError:
        raise MissingExtraError(
            "Running tasks through Ray needs ray. Install it with: pip install 'icgd[sweeps]'"
        ) from None
    starts = not ray.is_initialized()
    if starts:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="WARNING")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SettingError(f"Cannot reach Ray at {address!r}: {error}") from None
    try:
        job, shared = ray.remote(num_cpus=1)(_job), ray.put(text)
        n_processors = int(ray.cluster_resources().get("CPU", 1))
        yield Workers(
            lambda groups: job.remote(shared, settings, groups).future(), 2 * n_processors
        )
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise WorkerError(f"Ray lost a worker: {error}") from None
    finally:
        if starts:
            ray.shutdown()
