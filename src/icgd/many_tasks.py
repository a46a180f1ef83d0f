"""Run the tasks of a folder, more than fit into memory, on processes here or on machines of Ray.

One process reads chunks of tasks, hands them out and writes what comes back; workers only compute.
So a killed worker leaves nothing half done, and Ray's machines need no shared disk. A chunk's file
is the only record that the chunk is done: it is there and whole, or not there. Chunks depend on the
input and the settings alone, so any number of workers, and any number of kills, gives equal files.

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
"""The most tasks of a chunk, by default."""

NUMBERS_OF_CHUNK = 2**22
"""The most numbers of a chunk, data and weights (32 MB); a larger task is a chunk by itself."""

ROWS_AT_ONCE = 2**22
"""How many rows of the column `task` are read at a time to find where tasks begin."""

MANIFEST, FAILURES, LOCK, OWNER = "manifest.json", "failures.csv", ".lock", ".owner"
PARTS = "part-*.parquet"
PARTIAL = ".*.icgd-partial"
"""The names of temporary files, which a kill leaves behind."""

FAULTS = (DataError, DomainError, KernelError, OverflowedRunError, SettingError)
"""Errors that are a task's own; settings were checked before."""

DAMAGE = (DataError, SafetensorError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Errors of a file that cannot be used. A disk that cannot be read, an OSError, is none of them."""

TENSORS = ("x", "y", "queries", "initial", "rates")
NUMBER_TYPES = ("F64", "F32", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")

Array = NDArray[Any]


@dataclass(frozen=True)
class TaskResults:
    """What `run_tasks` wrote.

    Attributes:
        output: the folder; its part-*.parquet have a row for each task: file, task, predictions,
            weights, and the reason if it failed.
        n_tasks: the number of tasks, those that failed included.
        failures: the tasks that could not be run, and the files that could not be read, whose task
            is null, with the reason.

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

    Call it again with the same arguments to go on after Ctrl-C, a kill or a full disk. A task that
    cannot be run is listed in failures.csv with its file, its number and the reason.

    Args:
        compiled: what is run on every task.
        folder: the tasks, in Parquet or safetensors files.
        output: the folder of the results, which is made.
        n_workers: how many processes work, each with one thread; the default is none but this one.
        ray_address: the cluster of Ray that works instead, such as "auto"; "local" starts one here.
        chunk_size: the most tasks that are read, run and written together.
        seed: what the initial weights of all tasks are drawn from, unless a task brings its own.
        backend: "fused", "literal" or "dense".
        dtype: "float64" or "float32".
        on_progress: is called with the number of tasks done and the number in all.

    Returns:
        How many tasks there were, which of them failed, and where the results are.

    Raises:
        DataError: if the folder has no tasks.
        FileError: if the output cannot be written, or was begun with other tasks or settings.
        RunFolderError: if another process writes to the output.
        WorkerError: if a worker is gone.
        MissingExtraError: if Ray is asked for and not installed.
        SettingError: if a setting is impossible.
        UnknownNameError: if no backend or dtype has this name.
        InterruptedRunError: on Ctrl-C; what is done is kept.

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
        raise SettingError("n_workers has no effect under Ray, which uses its whole cluster.")
    settings: dict[str, Any] = {
        "chunk_size": count("chunk_size", chunk_size),
        "seed": None if seed is None else count("seed", seed, least=0),
        "backend": backend,
        "dtype": dtype_name(dtype_named(dtype)),
        "engine": "auto" if has_numba() else "torch",  # which differ by rounding
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
        left = [chunk for chunk in chunks if chunk.file not in written]
        total = sum(chunk.n_tasks for chunk in chunks)
        done = total - sum(chunk.n_tasks for chunk in left)
        if on_progress:
            on_progress(done, total)
        kept = f"tasks are done and kept in {target}. Run the same again to go on."
        seen: set[type[Warning]] = set()
        try:
            with _workers(compiled, text, settings, n_workers, ray_address) as workers:
                for chunk, found in _finished(left, compiled.problem, workers):
                    _write(target / chunk.file, chunk, found, settings["dtype"])
                    done += chunk.n_tasks
                    for kind, message in found.warnings:
                        if kind not in seen:  # say it once, not for every chunk
                            seen.add(kind)
                            warn(kind(f"In {chunk.path.name}, and maybe elsewhere: {message}"))
                    if on_progress:
                        on_progress(done, total)
            results = pl.scan_parquet(sorted(target.glob(PARTS)), glob=False)
            failed = results.filter(pl.col("reason").is_not_null())
            try:
                failures = failed.select("file", "task", "reason").collect(engine="streaming")
            except pl.exceptions.PolarsError as error:
                raise FileError(
                    f"A part of {target} is damaged ({error}). Delete it, and run again: the other "
                    "parts are kept."
                ) from None
            with whole_file(target / FAILURES) as temporary:
                temporary.write_bytes(failures.write_csv().encode())
        except KeyboardInterrupt:
            message = f"The run was interrupted; {done:,} of {total:,} {kept}"
            raise InterruptedRunError(message, None) from None
        except FileError as error:
            raise FileError(f"{error} {done:,} of {total:,} {kept}") from None
        except WorkerError as error:
            raise WorkerError(f"{error} {done:,} of {total:,} {kept}") from None
    return TaskResults(target, total, failures)


# What a folder holds, and what was begun with it


def _members(folder: Path, output: Path) -> list[Path]:
    """Return the files of tasks in order of their names."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give the folder that holds the tasks.")
    if output.exists() and folder.samefile(output):
        raise FileError(f"Cannot write {output}: it holds the tasks. Name another folder.")
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in CUTTERS and path.is_file()]
    if not paths:
        raise DataError(
            f"{folder} has no tasks: {' and '.join(CUTTERS)} files are expected in it, and none "
            "is there."
        )
    return paths


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep the folder to this process; the system drops the lock of a process that is killed."""
    lock, owner = FileLock(folder / LOCK), folder / OWNER
    try:
        lock.acquire(blocking=False)
    except Timeout:
        name = owner.read_text(encoding="utf-8") if owner.exists() else "another process"
        raise RunFolderError(
            f"{folder} is in use by {name}. Nothing was changed; wait until that process ends, or "
            "name another folder."
        ) from None
    except OSError as error:
        raise FileError(f"Cannot write {folder}: {error.strerror or error}.") from None
    try:
        with whole_file(owner) as temporary:
            text = f"process {os.getpid()} on {socket.gethostname()}"
            temporary.write_text(text, encoding="utf-8")
        for left_by_a_kill in folder.glob(PARTIAL):
            left_by_a_kill.unlink()
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _begin(output: Path, paths: Sequence[Path], settings: dict[str, Any], digest: str) -> None:
    """Write the manifest, or compare with the one that is there."""
    manifest = output / MANIFEST
    if not manifest.exists():
        if next(output.glob(PARTS), None):
            raise FileError(
                f"{output} has results, but no {MANIFEST}, which says what they are results of. "
                "Name another folder."
            )
        members = [_fingerprint(path) | {"sha256": _sha256(path)} for path in paths]
        content = {"format": 1, "program": digest, "settings": settings, "members": members}
        with whole_file(manifest) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return
    try:
        begun = json.loads(manifest.read_text(encoding="utf-8"))
        differing = [
            f"{name} was {begun['settings'][name]!r} and is now {value!r}"
            for name, value in settings.items()
            if begun["settings"][name] != value
        ]
        if begun["program"] != digest:
            differing.append("the compiled run was another one")
        known = {member["file"]: member for member in begun["members"]}
        now = {path.name: path for path in paths}
        differing += [f"{name} is no longer there" for name in sorted(known.keys() - now.keys())]
        differing += [f"{name} is new" for name in sorted(now.keys() - known.keys())]
        for name in sorted(now.keys() & known.keys()):
            before, after = known[name], _fingerprint(now[name])
            if before["size"] == after["size"]:
                # A file that was copied, and not changed, has another time and the same content.
                if before["mtime_ns"] == after["mtime_ns"]:
                    continue
                if before["sha256"] == _sha256(now[name]):
                    continue
            differing.append(f"{name} has changed")
    except FileError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FileError(f"{manifest} is damaged ({error}). Name another folder.") from None
    if differing:
        rest = f", and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise FileError(
            f"{output} was begun with something else: {'; '.join(differing[:3])}{rest}. Nothing "
            "was changed; restore it to go on, or name another folder to start anew."
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
    """Tasks of one file: its rows (Parquet) or its tasks (safetensors) from `start` to `stop`.

    A file that cannot be used is one chunk, with the `reason`.
    """

    file: str
    path: Path
    start: int
    stop: int
    n_tasks: int
    reason: str | None = None


def _planned(problem: Problem, paths: Iterable[Path], chunk_size: int) -> Iterator[Chunk]:
    """All chunks, in order; reads no more than headers and the columns `task` and `query`."""
    for number, path in enumerate(paths):
        try:
            cuts = list(CUTTERS[path.suffix](problem, path, chunk_size))
        except OSError as error:
            raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
        except DAMAGE as error:
            yield Chunk(_part(number, 0), path, 0, 0, 0, _damaged(path, error))
            continue
        for place, (start, stop, n_tasks) in enumerate(cuts):
            yield Chunk(_part(number, place), path, start, stop, n_tasks)


def _part(member: int, place: int) -> str:
    return f"part-{member:06d}-{place:06d}.parquet"


def _damaged(path: Path, error: BaseException) -> str:
    text = cut(" ".join(str(error).split()))
    is_ours = isinstance(error, DataError)
    return text if is_ours else f"damaged, or no {path.suffix[1:]} file ({text})"


def _cuts(sizes: Iterable[int], chunk_size: int) -> Iterator[tuple[int, int]]:
    """Yield first task of each chunk and the one after its last, from the sizes of all tasks."""
    first = place = total = 0
    for place, size in enumerate(sizes):
        if place > first and (place - first == chunk_size or total + size > NUMBERS_OF_CHUNK):
            yield first, place
            first, total = place, 0
        total += size
    yield first, place + 1


def _n_weights(problem: Problem) -> int:
    return sum(map(prod, problem.oracle.weight_shapes))


def _parquet_cuts(problem: Problem, path: Path, chunk_size: int) -> Iterator[tuple[int, int, int]]:
    table = pl.scan_parquet(path, glob=False)
    schema = table.collect_schema()
    columns = _columns(problem, schema)
    if not schema["task"].is_integer():
        raise DataError(f"column task holds {schema['task']}; whole numbers are expected")
    for name in columns["x"] + columns["y"] + columns["rates"]:
        kind = schema[name]
        if not (kind.is_float() or kind.is_integer() or kind == pl.Boolean):
            raise DataError(f"column {name} holds {kind}; numbers are expected")
    if columns["query"] and schema["query"] != pl.Boolean:
        raise DataError(f"column query holds {schema['query']}; true or false is expected")
    numbers, lengths, row = [], [], 0
    marks = table.select("task", *columns["query"])
    while len(window := marks.slice(row, ROWS_AT_ONCE).collect()):
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
    begins = np.flatnonzero(np.append(True, number[1:] != number[:-1]))  # windows may cut a task
    number, length = number[begins], np.add.reduceat(length, begins)
    _require_unique(number, "rows of task {} do not stand together; sort the file by task")
    ends = np.append(0, np.cumsum(length))
    width, n_weights = len(columns["x"]) + len(columns["y"]), _n_weights(problem)
    for first, stop in _cuts((length * width + n_weights).tolist(), chunk_size):
        yield int(ends[first]), int(ends[stop]), stop - first


def _columns(problem: Problem, schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the columns of each part of a task; `y` alone holds the one label, or classes."""
    target = problem.target
    labels = [f"y_{place}" for place in range(1, target.output_width + 1)]
    columns = {
        "x": [f"x_{place}" for place in range(1, target.input_width + 1)],
        "y": ["y"] if "y" in schema or target.output_width == 1 else labels,
        "query": ["query"] if "query" in schema else [],
        "rates": ["rate"] if "rate" in schema else [],
    }
    missing = [name for name in ("task", *columns["x"], *columns["y"]) if name not in schema]
    if missing:
        raise DataError(
            f"there is no column {missing[0]}; expected are task, {columns['x'][0]} to "
            f"{columns['x'][-1]}, {' and '.join(columns['y'])}, and query if there are queries"
        )
    # Columns of other names may say what they like; an input or a label too many is a mistake.
    for name in schema:
        if re.fullmatch(r"[xy](_\d+)?", name) and name not in columns["x"] + columns["y"]:
            raise DataError(
                f"there is a column {name} that the model does not take; its inputs are "
                f"{columns['x'][0]} to {columns['x'][-1]}, its labels {' and '.join(columns['y'])}"
            )
    return columns


def _tensor_cuts(problem: Problem, path: Path, chunk_size: int) -> Iterator[tuple[int, int, int]]:
    with safe_open(path, "np") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        if missing := {"x", "y"} - parts.keys():
            raise DataError(f"there is no tensor {min(missing)}; x and y are expected")
        if unknown := parts.keys() - {"task", *TENSORS}:
            raise DataError(
                f"there is a tensor {min(unknown)}; expected are x and y, and maybe task, "
                f"{', '.join(TENSORS[2:])}"
            )
        shapes = {name: tuple(part.get_shape()) for name, part in parts.items()}
        lengths = {}
        for name in ("task", *TENSORS):
            if name not in parts:
                continue
            kind = parts[name].get_dtype()
            if kind not in NUMBER_TYPES or (name == "task" and kind[0] not in "IU"):
                wanted = "whole numbers" if name == "task" else f"{', '.join(NUMBER_TYPES)}"
                raise DataError(f"tensor {name} holds {kind}; expected: {wanted}")
            lengths[name] = shapes[name][0] if shapes[name] else 0
        width = problem.target.input_width
        has_inputs = len(shapes["x"]) == 3 and shapes["x"][-1] == width
        if not has_inputs or len(set(lengths.values())) > 1 or not lengths["x"]:
            found = ", ".join(f"{name} {shapes[name]}" for name in lengths)
            raise DataError(
                f"the tensors have the shapes {found}; expected is x (tasks, examples, {width}) "
                "and as many tasks in each of the others"
            )
        n_tasks = lengths["x"]
        if "task" in parts:
            if len(shapes["task"]) != 1:
                raise DataError(f"tensor task has shape {shapes['task']}; expected ({n_tasks},)")
            _require_unique(parts["task"][:], "number {} stands twice in the tensor task")
    size = _n_weights(problem) + sum(prod(shapes[name][1:]) for name in TENSORS if name in shapes)
    for first, stop in _cuts((size for _ in range(n_tasks)), chunk_size):
        yield first, stop, stop - first


def _require_unique(numbers: Array, message: str) -> None:
    known, counts = np.unique(numbers, return_counts=True)
    if len(known) < len(numbers):
        raise DataError(message.format(known[counts > 1][0]))


CUTTERS = {".parquet": _parquet_cuts, ".safetensors": _tensor_cuts}
"""What finds the chunks of a file, by the ending of its name."""


# Reading a chunk


@dataclass(frozen=True)
class Group:
    """Tasks of one shape: their places in the chunk, and arrays with an axis of tasks in front."""

    places: Array
    parts: dict[str, Array]


def _read_parquet(problem: Problem, chunk: Chunk) -> tuple[Array, list[Group]]:
    """Return the numbers of the tasks, and the tasks in groups of the same numbers of rows."""
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
        # Keep float32, in which a bound of the domain may have been rounded up.
        is_single = all(schema[name] == pl.Float32 for name in names)
        kind = pl.Float32 if is_single else pl.Float64
        return frame.select(pl.col(names).cast(kind)).to_numpy()[rows]

    x, y = numbers(columns["x"], ~is_query), numbers(columns["y"], ~is_query)
    asked = numbers(columns["x"], is_query)
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
        parts = {"x": x[rows], "y": y[rows]}
        if q:
            parts["queries"] = asked[first_query[places, None] + np.arange(q)]
        if rates is not None:
            parts["rates"] = rates[rows]
        groups.append(Group(places, parts))
    return runs["value"].to_numpy(), groups


def _read_tensors(problem: Problem, chunk: Chunk) -> tuple[Array, list[Group]]:
    rows = slice(chunk.start, chunk.stop)
    with safe_open(chunk.path, "np") as file:
        names = set(file.keys())
        parts = {name: file.get_slice(name)[rows] for name in TENSORS if name in names}
        numbers = np.arange(chunk.start, chunk.stop)
        if "task" in names:
            numbers = file.get_slice("task")[rows].astype(np.int64)
    if parts.get("queries", np.ones((1, 1))).shape[1] == 0:
        del parts["queries"]
    return numbers, [Group(np.arange(chunk.n_tasks), parts)]


READERS = {".parquet": _read_parquet, ".safetensors": _read_tensors}


def _numbers(chunk: Chunk) -> Array | None:
    """Return the numbers of tasks whose other columns are damaged."""
    try:
        rows = pl.scan_parquet(chunk.path, glob=False).select(pl.col("task").cast(pl.Int64))
        task = rows.slice(chunk.start, chunk.stop - chunk.start).collect()["task"]
    except DAMAGE:
        return None
    return task.unique(maintain_order=True).to_numpy()


# Running a chunk


@dataclass
class Results:
    """What came of a chunk: rows of predictions and weights, and reasons, by places in the chunk.

    `numbers` are those of the tasks, if they are known.
    """

    numbers: Array | None = None
    batches: list[tuple[Array, Array, Array]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    warnings: list[tuple[type[Warning], str]] = field(default_factory=list)


def _run_chunk(compiled: Compiled, settings: dict[str, Any], groups: list[Group]) -> Results:
    """Run tasks in batches of one shape, on one thread, so that workers share the cores."""
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
    """Run a group as a batch; halve it while it has a task that cannot be run."""
    places, parts = group.places, dict[str, Any](group.parts)
    oracle = compiled.problem.oracle
    if "initial" not in parts and oracle.weight_shapes:  # a function starts from 0
        # A batch would draw weights for each of its tasks; here each starts as it would by itself.
        parts["initial"] = oracle.own_start((), settings["seed"])
    options = {"dtype": settings["dtype"]}
    try:
        how = {"backend": settings["backend"], "engine": settings["engine"], "history": False}
        run = compiled.run(**_as_data(parts), **options, **how)
    except FAULTS as error:
        if len(places) > 1:
            middle = len(places) // 2
            for half in (slice(middle), slice(middle, None)):
                halves = {name: part[half] for name, part in group.parts.items()}
                _run_group(compiled, settings, Group(places[half], halves), results)
            return
        reason = str(error)
        try:  # the message then has the row and the column, and not the place in the batch
            alone = {name: part[0] for name, part in group.parts.items()}
            compiled.task(**_as_data(alone), **options)
        except FAULTS as plain:
            reason = str(plain)
        results.reasons[int(places[0])] = reason
        return
    weights = run.parameters[..., -1, :]
    results.batches.append((places, run.predictions.flatten(-2).numpy(), weights.numpy()))


def _as_data(parts: dict[str, Any]) -> dict[str, Any]:
    return {"X" if name == "x" else name: part for name, part in parts.items()}


def _write(path: Path, chunk: Chunk, results: Results, dtype: str) -> None:
    """Write a chunk's results: a row for each task, or one row if the tasks are not known."""
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
    for part in (pl.concat(done), failed):
        frame = frame.join(part, on="place", how="left", maintain_order="left")
    content = io.BytesIO()
    frame.drop("place").write_parquet(content)
    with whole_file(path) as temporary:
        temporary.write_bytes(content.getvalue())


# Workers


@dataclass(frozen=True)
class Workers:
    """What takes chunks, and how many of them at a time."""

    submit: Callable[[list[Group]], Future[Results]]
    n_at_once: int


def _finished(
    chunks: Iterable[Chunk], problem: Problem, workers: Workers
) -> Iterator[tuple[Chunk, Results]]:
    """Read chunks as workers have room for them; give each with its results as it is done."""
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
            known = None if chunk.reason else _numbers(chunk)
            reason = _damaged(chunk.path, error)
            n_rows = 1 if known is None else len(known)
            yield chunk, Results(known, reasons=dict.fromkeys(range(n_rows), reason))
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
    """Workers in this process, in others, or on the machines of Ray."""
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
    """Return what a worker does with a chunk; the compiled run comes as text, because it holds
    buffers.
    """
    try:
        compiled = _compiled(text)
    except UnknownNameError as error:
        raise SettingError(
            f"A worker cannot make the compiled run: {error} What you registered is known to your "
            "own process alone; run without workers."
        ) from None
    return _run_chunk(compiled, settings, groups)


@contextmanager
def _in_processes(text: str, settings: dict[str, Any], n_workers: int) -> Iterator[Workers]:
    """Processes that are spawned, not forked: a fork of a process with torch's threads may hang."""
    others = set(active_children())
    context = get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, mp_context=context, initializer=_end_with_parent)

    def submit(groups: list[Group]) -> Future[Results]:
        # A process inherits what is blocked when it starts: Ctrl-C is for this process alone.
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            return pool.submit(_job, text, settings, groups)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(_job, text, settings, groups)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield Workers(submit, 2 * n_workers)  # one waits for each that is worked on
    except BrokenProcessPool:
        raise WorkerError(
            "A worker's process was killed, maybe because memory ran out. Use fewer workers or "
            "smaller chunks if that comes again."
        ) from None
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()  # nothing is lost but the chunks under way
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker when its parent is gone, even if that was killed."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _on_ray(text: str, settings: dict[str, Any], address: str) -> Iterator[Workers]:
    """The processors of a cluster; Ray gives a job that was on a lost machine to another one."""
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
