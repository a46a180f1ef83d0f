"""Run the jobs of a figure, keep what is finished, and write the results.

    <out>/<figure>/<preset>.json, <preset>.csv    the rows, and the settings that made them
    <out>/<figure>/<preset>.png                   the picture
    <out>/<figure>/<preset>-panel-b.json, ...     the same of some panels
    <out>/<figure>/.<preset>.partial/             rows and checkpoints of jobs, until the end

A job is identified by a hash of its setting, so an interrupted run resumes whatever else changed:
finished jobs are read, and a job that was under way continues from its own checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from importlib.resources import files
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, Generic

import numpy as np
import polars as pl
import torch

from icgd.environment import one_thread, require_memory
from icgd.errors import (
    InterruptedStudiesError,
    MissingExtraError,
    SettingError,
    UnknownNameError,
    WorkerError,
    quoted,
)
from icgd.pictures import plotting
from icgd.problems.settings import count
from icgd.reprs import duration
from icgd.weights.files import whole_file
from icgd_papers.checksummed_json import (
    damaged,
    read_checksummed,
    read_json,
    with_checksum,
    without_checksum,
    write_checksummed,
)
from icgd_papers.figure import Figure, Job, Setting
from icgd_papers.training.checkpoints import LOCK, locked
from icgd_papers.training.devices import torch_device

try:
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError
except ImportError:
    joblib = None

LARGEST_FIRST_SEED = 2**32 - 101
"""No preset takes more than 100 seeds, from the first one on."""

REPORT_EVERY = 0.5
"""Seconds between two reports of a job, and between two looks at them."""

TIMES = "times.toml"


@dataclass(frozen=True)
class Progress:
    """How far all jobs are: their steps, the share of the work, and the loss of a recent step."""

    done: int
    total: int
    share: float
    loss: float | None


OnProgress = Callable[[Progress], None]

Results = Iterator[tuple[int, dict[str, Any]]]
"""The numbers of jobs in the order in which they finish, each with its rows and seconds."""


@dataclass(frozen=True)
class Reproduction(Generic[Setting]):
    """A figure to reproduce, and how; it is checked before anything is written.

    Attributes:
        figure: what is reproduced.
        preset: "smoke", "laptop" or "paper".
        out: the folder that gets a folder for the figure.
        seed: the first seed.
        n_workers: jobs that run at the same time, each on one thread.
        device: where jobs compute, if the figure uses devices.
        only: panels, such as ("panel-b",); all if there are none.
        ray_address: the Ray cluster whose processors do the jobs, such as "auto"; "local" starts
            one here, and None does without Ray.
    """

    figure: Figure[Setting]
    preset: str
    out: Path
    seed: int = 0
    n_workers: int = 1
    device: str = "cpu"
    only: tuple[str, ...] = ()
    ray_address: str | None = None

    def __post_init__(self) -> None:
        count("n_workers", self.n_workers)
        count("seed", self.seed, least=0, most=LARGEST_FIRST_SEED)
        if self.device not in ("cpu", "auto") and not self.figure.uses_device:
            raise SettingError(
                f"device={quoted(self.device)} would not be used: the jobs of {self.figure.name} "
                "compute on the processor. Leave it out, or use 'auto'."
            )
        if self.figure.uses_device and self.device != "cpu":
            torch_device(self.device)  # refuses one that is not there
        known = [f"panel-{letter}" for letter in self.panels]
        for name in self.only:
            if not known:
                raise SettingError(
                    f"{self.figure.name} has no panels to choose from. Leave out only."
                )
            if name not in known:
                raise UnknownNameError.of(f"panel of {self.figure.name}", name, known=known)

    @cached_property
    def whole(self) -> list[Setting]:
        """The settings of all panels."""
        return list(self.figure.settings(self.preset, self.seed))

    @cached_property
    def panels(self) -> list[str]:
        """The letters of the figure's panels."""
        return sorted(set(chain.from_iterable(getattr(x, "panel", "") for x in self.whole)))

    @cached_property
    def letters(self) -> set[str]:
        """The letters of the panels that are asked for; none if all are."""
        return {name.removeprefix("panel-") for name in self.only}

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings that the chosen panels need."""
        is_chosen = self.letters.intersection
        return [x for x in self.whole if not self.only or is_chosen(getattr(x, "panel", ""))]

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        return self.out / self.figure.name

    @property
    def partial_folder(self) -> Path:
        """The folder of unfinished work."""
        return self.folder / f".{self.preset}.partial"

    @property
    def name(self) -> str:
        """The name of the result files."""
        return "-".join((self.preset, *self.only))

    def job_folder(self, setting: Setting) -> Path:
        """Return the folder of a job's checkpoints; its rows stand beside it, with the suffix
        .json.
        """
        text = json.dumps([self.figure.name, asdict(setting)], sort_keys=True)  # type: ignore[call-overload]
        return self.partial_folder / hashlib.sha256(text.encode()).hexdigest()[:16]

    def rows_file(self, setting: Setting) -> Path:
        """Return the file of a finished job's rows."""
        return self.job_folder(setting).with_suffix(".json")

    @property
    def unfinished(self) -> list[Setting]:
        """The settings whose rows are not there yet."""
        return [x for x in self.settings if not self.rows_file(x).exists()]

    @property
    def estimate(self) -> str:
        """What is left to do, in words.

        Times are those of the machine that made the committed results.
        """
        work = self.figure.work
        share = sum(map(work, self.unfinished)) / sum(map(work, self.whole))
        text = f"{self.figure.name}, {self.name}: {len(self.unfinished):,} jobs"
        seconds = core_seconds(self.figure.name).get(self.preset)
        return text if seconds is None else f"{text}, about {core_time(share * seconds)}"


@dataclass(frozen=True)
class Reproduced:
    """A figure's rows, their summary, and where they were written; `table` is the JSON file."""

    table: dict[str, Any]
    rows: pl.DataFrame
    summary: pl.DataFrame
    folder: Path
    files: tuple[str, ...]


def core_seconds(figure: str) -> dict[str, float]:
    """Return the core-seconds of a figure's presets, measured or extrapolated: `times.toml`."""
    text = files("icgd_papers").joinpath(TIMES).read_text(encoding="utf-8")
    times = tomllib.loads(text).get(figure, {})
    return {name.removesuffix("_core_seconds"): float(value) for name, value in times.items()}


def core_time(seconds: float) -> str:
    """Return a time of one core in words; an estimate is worth two digits."""
    if seconds < 3600:
        return f"{duration(seconds)} of one core"
    return f"{float(f'{seconds / 3600:.2g}'):,.10g} core-hours"


def reproduce(order: Reproduction[Setting], on_progress: OnProgress | None = None) -> Reproduced:
    """Do the jobs of a figure that are missing, and write its rows and its picture.

    The rows of jobs are removed only with the whole figure: jobs that panels share are done once.
    """
    if joblib is None:
        raise MissingExtraError(
            "Reproducing a figure needs joblib. Install it with: pip install 'icgd[train]'"
        )
    _require_memory(order)
    partial = order.partial_folder
    start = monotonic()
    try:
        with (
            _cluster(order.ray_address) as ray,
            locked(partial),
            _reported(order, on_progress),
        ):
            for setting in order.settings:  # refuse damaged rows before any work
                if order.rows_file(setting).exists():
                    _record(order, setting)
            _do_jobs(order, ray)
            records = [_record(order, setting) for setting in order.settings]
            done = _write(order, records, monotonic() - start)
            if not order.only:
                for setting in order.whole:
                    order.rows_file(setting).unlink(missing_ok=True)
                    shutil.rmtree(order.job_folder(setting), ignore_errors=True)
                (partial / LOCK).unlink(missing_ok=True)
    except KeyboardInterrupt:
        n_finished = len(order.settings) - len(order.unfinished)
        n_begun = sum(order.job_folder(setting).exists() for setting in order.unfinished)
        raise InterruptedStudiesError(
            f"Stopped with {n_finished} of {len(order.settings)} jobs finished and {n_begun} "
            f"begun, kept in {partial}. Give the same command again to resume."
        ) from None
    with suppress(OSError):  # it may hold the work of panels, or of other seeds
        partial.rmdir()
    return done


def _record(order: Reproduction[Setting], setting: Setting) -> dict[str, Any]:
    """Read the rows and seconds of a finished job."""
    path = order.rows_file(setting)
    record = read_checksummed(path)
    if not isinstance(record, dict) or record.get("setting") != _plain(setting):
        raise damaged(path, "it does not belong to this job")
    return record


def _plain(setting: Any) -> Any:
    """Return a setting as JSON holds it."""
    return json.loads(json.dumps(asdict(setting)))


def _require_memory(order: Reproduction[Setting]) -> None:
    """Refuse jobs that do not fit into memory together, before the first one begins."""
    needed = order.figure.memory
    if needed is not None and order.unfinished and order.ray_address is None:
        largest = sorted(map(needed, order.unfinished))[-order.n_workers :]
        require_memory(
            f"{len(largest)} jobs of {order.figure.name} at the same time",
            int(sum(largest)),
            "Use fewer workers, or a smaller preset.",
        )


def _do_jobs(order: Reproduction[Setting], ray: Any) -> None:
    """Do what is missing, and write the rows of each job as soon as they are there."""
    settings = order.unfinished
    device = order.device if order.figure.uses_device else "cpu"
    calls = [(order.figure.run, i, x, order.job_folder(x), device) for i, x in enumerate(settings)]
    results = _results_here(order, calls) if ray is None else _results_on_ray(ray, calls)
    for i, record in results:
        write_checksummed(order.rows_file(settings[i]), record)


def _results_here(order: Reproduction[Setting], calls: Sequence[tuple[Any, ...]]) -> Results:
    """Do the jobs in this process or in worker processes; yield what they return."""
    options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1}
    if order.n_workers > 1:
        options |= {"initializer": _end_with_parent, "initargs": (os.getpid(),)}
    parallel = joblib.Parallel(
        n_jobs=order.n_workers, backend="loky", pre_dispatch="all", **options
    )
    try:
        yield from parallel(joblib.delayed(_do)(*call) for call in calls)
    except TerminatedWorkerError as problem:
        raise WorkerError(
            "A worker process was killed, often because memory ran out. What is finished is kept "
            f"in {order.partial_folder}; resume with fewer workers. ({problem})"
        ) from None


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Connect Ray to a cluster, or yield None if no address is given."""
    if address is None:
        yield None
        return
    try:
        ray = import_module("ray")
    except ImportError:
        raise MissingExtraError(
            "Working on a cluster needs ray. Install it with: pip install 'icgd[sweeps]'"
        ) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except (ConnectionError, ValueError, RuntimeError) as problem:
        raise SettingError(
            f"Ray at {quoted(address)} cannot be used: {problem} Give the address of a running "
            "cluster, or 'local'."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _results_on_ray(ray: Any, calls: Sequence[tuple[Any, ...]]) -> Results:
    """Do the jobs on all processors of a Ray cluster; yield what they return.

    joblib's own backend for Ray cannot tell of jobs as they finish.
    """
    job = ray.remote(num_cpus=1)(_do)
    pending = [job.remote(*call) for call in calls]
    while pending:
        ready, pending = ray.wait(pending)
        yield from ray.get(ready)


def _do(
    run: Callable[[Any, Job], pl.DataFrame],
    index: int,
    setting: Any,
    folder: Path,
    device: str,
) -> tuple[int, dict[str, Any]]:
    """Do a job on one thread, here or in a worker process; return its rows and its seconds."""
    report = _Report(folder)
    with one_thread():
        rows = run(setting, Job(folder, device, report))
    return index, {
        "setting": _plain(setting),
        "seconds": round(report.seconds, 1),
        "rows": rows.to_dict(as_series=False),
    }


def _end_with_parent(parent: int) -> None:
    """End this worker soon after the process `parent` is gone, even if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            Event().wait(REPORT_EVERY)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


class _Report:
    """Write how far a job is, and its seconds in all legs, into its folder now and then."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "progress.json"
        self.earlier = float(_progress_in(self.path).get("seconds", 0.0))
        self.start = self.written = monotonic()

    @property
    def seconds(self) -> float:
        return self.earlier + monotonic() - self.start

    def __call__(self, done: int, total: int, loss: float) -> None:
        if monotonic() - self.written >= REPORT_EVERY:
            self.written = monotonic()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            news = {"done": done, "total": total, "loss": loss, "seconds": self.seconds}
            with whole_file(self.path) as temporary:
                temporary.write_text(json.dumps(news), encoding="utf-8")


def _progress_in(path: Path) -> dict[str, Any]:
    """Return the last report of a job; empty if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _reported(order: Reproduction[Setting], on_progress: OnProgress | None) -> Iterator[None]:
    """Tell `on_progress` how far the jobs are while the block runs.

    Jobs report into files, so that it does not matter which process they run in.
    """
    if on_progress is None:
        yield
        return
    over = Event()

    def look() -> None:
        while not over.wait(REPORT_EVERY):
            on_progress(_progress(order))

    thread = Thread(target=look, daemon=True)
    on_progress(_progress(order))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _progress(order: Reproduction[Setting]) -> Progress:
    """Put together how far all jobs are; a job without steps counts as one step."""
    done = total = 0
    worked, work, loss = 0.0, 0.0, None
    for setting in order.settings:
        report = _progress_in(order.job_folder(setting) / "progress.json")
        n_steps = int(report.get("total", 1))
        n_done = n_steps if order.rows_file(setting).exists() else int(report.get("done", 0))
        amount = order.figure.work(setting)
        done, total = done + n_done, total + n_steps
        worked, work = worked + amount * n_done / max(n_steps, 1), work + amount
        loss = report.get("loss", loss)
    return Progress(done, total, worked / work, loss)


def frame_of(records: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Join the rows of jobs; each has its job's seconds in the column `seconds`.

    A figure whose rows measure `seconds` themselves keeps its own.
    """
    frames = [pl.DataFrame(record["rows"], strict=False) for record in records]
    timed = [
        frame if "seconds" in frame.columns else frame.with_columns(seconds=pl.lit(x["seconds"]))
        for frame, x in zip(frames, records, strict=True)
    ]
    return pl.concat(timed, how="diagonal_relaxed")


def _write(
    order: Reproduction[Setting], records: Sequence[Mapping[str, Any]], wall_seconds: float
) -> Reproduced:
    """Write the rows as JSON and CSV, and the summary and the picture that follow from them."""
    rows = frame_of(records)
    if order.only:
        rows = rows.filter(pl.col("panel").is_in(order.letters))
    facts = {
        "figure": order.figure.name,
        "place": order.figure.place,
        "preset": order.preset,
        **({"only": list(order.only)} if order.only else {}),
        "seed": order.seed,
        "settings": values_of_settings(order.settings),
        **circumstances(),
        "n_workers": order.n_workers,
        "n_jobs": len(order.settings),
        "last_leg_seconds": round(wall_seconds, 1),
        "core_seconds": round(sum(record["seconds"] for record in records), 1),
    }
    return write_results(order.figure, facts, rows, order.folder, order.name)


def write_results(
    figure: Figure[Any], facts: dict[str, Any], rows: pl.DataFrame, folder: Path, name: str
) -> Reproduced:
    """Write `name`.json, .csv and .png, each whole or not at all."""
    floats = pl.col(pl.Float64, pl.Float32)
    rows = rows.with_columns(pl.when(floats.is_finite()).then(floats).otherwise(None).name.keep())
    summary = figure.summarise(rows)
    table = with_checksum({**facts, "summary": summary.to_dicts(), "rows": rows.to_dicts()})
    contents = {
        f"{name}.json": _json(table),
        f"{name}.csv": rows.write_csv().encode(),
        f"{name}.png": plotting.png(figure.draw(rows)),
    }
    for file, content in contents.items():
        with whole_file(folder / file) as temporary:
            temporary.write_bytes(content)
    return Reproduced(table, rows, summary, folder, tuple(contents))


def values_of_settings(settings: Sequence[Any]) -> dict[str, list[Any]]:
    """Every value that a field of the settings takes, fields of fields by dotted names."""
    found: dict[str, dict[str, Any]] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                visit(f"{name}.{key}" if name else key, part)
        else:
            found.setdefault(name, {})[json.dumps(value)] = value

    for setting in settings:
        visit("", asdict(setting))
    return {name: list(values.values()) for name, values in found.items()}


def circumstances() -> dict[str, Any]:
    """Return the date, the versions and the kind of machine; nothing that names the machine."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def stored_results(path: Path) -> dict[str, Any]:
    """Read a result file, and check its checksum."""
    return without_checksum(path, read_json(path))


def stored_rows(path: Path) -> pl.DataFrame:
    """Read the rows of a result file."""
    rows = stored_results(path).get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise damaged(path, "it has no rows")
    return pl.DataFrame(rows, infer_schema_length=None)


def _json(table: Mapping[str, Any]) -> bytes:
    """JSON with a line for each fact and for each row, which is short and easy to compare."""
    parts = []
    for key, value in table.items():
        text = json.dumps(value, allow_nan=False)
        if key in ("summary", "rows"):
            lines = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in value)
            text = f"[\n{lines}\n  ]"
        parts.append(f"  {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()
