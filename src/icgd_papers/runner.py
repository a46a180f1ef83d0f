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
"""Seconds between two reports of a job, and between two readings of them."""

TIMES = "times.toml"


@dataclass(frozen=True)
class Progress:
    """Progress of all jobs: steps done, share of the work, and the loss of a recent step."""

    done: int
    total: int
    share: float
    loss: float | None


OnProgress = Callable[[Progress], None]

Results = Iterator[tuple[int, dict[str, Any]]]
"""The index and the record (rows, seconds) of each job, in the order in which they finish."""


@dataclass(frozen=True)
class Reproduction(Generic[Setting]):
    """What to reproduce and how, validated before anything is written.

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
        panels = [f"panel-{letter}" for letter in self.panels]
        for name in self.only:
            if not panels:
                raise SettingError(
                    f"{self.figure.name} has no panels to choose from. Leave out only."
                )
            if name not in panels:
                raise UnknownNameError.of(f"panel of {self.figure.name}", name, known=panels)

    @cached_property
    def all_settings(self) -> list[Setting]:
        """The settings of all panels."""
        return list(self.figure.settings(self.preset, self.seed))

    @cached_property
    def panels(self) -> list[str]:
        """The letters of the figure's panels."""
        return sorted(set(chain.from_iterable(getattr(x, "panel", "") for x in self.all_settings)))

    @cached_property
    def letters(self) -> set[str]:
        """The letters of the chosen panels; empty for all."""
        return {name.removeprefix("panel-") for name in self.only}

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings that the chosen panels need."""
        is_chosen = self.letters.intersection
        return [x for x in self.all_settings if not self.only or is_chosen(getattr(x, "panel", ""))]

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
        share = sum(map(work, self.unfinished)) / sum(map(work, self.all_settings))
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


def reproduce(
    reproduction: Reproduction[Setting], on_progress: OnProgress | None = None
) -> Reproduced:
    """Run the missing jobs of a figure, and write its rows and its picture.

    Rows of jobs are removed only when the whole figure is finished, so that panels share jobs.
    """
    if joblib is None:
        raise MissingExtraError(
            "Reproducing a figure needs joblib. Install it with: pip install 'icgd[train]'"
        )
    _require_memory(reproduction)
    partial = reproduction.partial_folder
    start = monotonic()
    try:
        with (
            _cluster(reproduction.ray_address) as ray,
            locked(partial),
            _progress_reports(reproduction, on_progress),
        ):
            for setting in reproduction.settings:  # refuse damaged rows before any work
                if reproduction.rows_file(setting).exists():
                    _read_record(reproduction, setting)
            _run_missing_jobs(reproduction, ray)
            records = [_read_record(reproduction, setting) for setting in reproduction.settings]
            done = _write(reproduction, records, monotonic() - start)
            if not reproduction.only:
                for setting in reproduction.all_settings:
                    reproduction.rows_file(setting).unlink(missing_ok=True)
                    shutil.rmtree(reproduction.job_folder(setting), ignore_errors=True)
                (partial / LOCK).unlink(missing_ok=True)
    except KeyboardInterrupt:
        n_finished = len(reproduction.settings) - len(reproduction.unfinished)
        n_begun = sum(
            reproduction.job_folder(setting).exists() for setting in reproduction.unfinished
        )
        raise InterruptedStudiesError(
            f"Stopped with {n_finished} of {len(reproduction.settings)} jobs finished and "
            f"{n_begun} begun, kept in {partial}. Give the same command again to resume."
        ) from None
    with suppress(OSError):  # it may hold the work of panels, or of other seeds
        partial.rmdir()
    return done


def _read_record(reproduction: Reproduction[Setting], setting: Setting) -> dict[str, Any]:
    """Read the rows and seconds of a finished job."""
    path = reproduction.rows_file(setting)
    record = read_checksummed(path)
    if not isinstance(record, dict) or record.get("setting") != _plain(setting):
        raise damaged(path, "it does not belong to this job")
    return record


def _plain(setting: Any) -> Any:
    """Return a setting as it reads after a round trip through JSON."""
    return json.loads(json.dumps(asdict(setting)))


def _require_memory(reproduction: Reproduction[Setting]) -> None:
    """Refuse jobs that do not fit into memory together, before the first one begins."""
    needed = reproduction.figure.memory
    if needed is not None and reproduction.unfinished and reproduction.ray_address is None:
        largest = sorted(map(needed, reproduction.unfinished))[-reproduction.n_workers :]
        require_memory(
            f"{len(largest)} jobs of {reproduction.figure.name} at the same time",
            int(sum(largest)),
            "Use fewer workers, or a smaller preset.",
        )


def _run_missing_jobs(reproduction: Reproduction[Setting], ray: Any) -> None:
    """Run the missing jobs, and write the rows of each as soon as it finishes."""
    settings = reproduction.unfinished
    device = reproduction.device if reproduction.figure.uses_device else "cpu"
    calls = [
        (reproduction.figure.run, i, x, reproduction.job_folder(x), device)
        for i, x in enumerate(settings)
    ]
    results = (
        _results_of_workers(reproduction, calls) if ray is None else _results_on_ray(ray, calls)
    )
    for i, record in results:
        write_checksummed(reproduction.rows_file(settings[i]), record)


def _results_of_workers(
    reproduction: Reproduction[Setting], calls: Sequence[tuple[Any, ...]]
) -> Results:
    """Run jobs in this process or in worker processes, and yield their results."""
    options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1}
    if reproduction.n_workers > 1:
        options |= {"initializer": _end_with_parent, "initargs": (os.getpid(),)}
    parallel = joblib.Parallel(
        n_jobs=reproduction.n_workers, backend="loky", pre_dispatch="all", **options
    )
    try:
        yield from parallel(joblib.delayed(_run_job)(*call) for call in calls)
    except TerminatedWorkerError as problem:
        raise WorkerError(
            "A worker process was killed, often because memory ran out. What is finished is kept "
            f"in {reproduction.partial_folder}; resume with fewer workers. ({problem})"
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
    """Run jobs on all processors of a Ray cluster, and yield their results.

    joblib's own backend for Ray cannot return results as jobs finish.
    """
    job = ray.remote(num_cpus=1)(_run_job)
    pending = [job.remote(*call) for call in calls]
    while pending:
        ready, pending = ray.wait(pending)
        yield from ray.get(ready)


def _run_job(
    run: Callable[[Any, Job], pl.DataFrame],
    index: int,
    setting: Any,
    folder: Path,
    device: str,
) -> tuple[int, dict[str, Any]]:
    """Run a job on one thread, here or in a worker process; return its index and record."""
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
    """Write a job's progress, and its seconds in all legs, into its folder every half second."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "progress.json"
        self.earlier = float(_last_report(self.path).get("seconds", 0.0))
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


def _last_report(path: Path) -> dict[str, Any]:
    """Return the last report of a job; empty if there is none."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


@contextmanager
def _progress_reports(
    reproduction: Reproduction[Setting], on_progress: OnProgress | None
) -> Iterator[None]:
    """Call `on_progress` with the progress of the jobs while the block runs.

    Jobs report through files, so it does not matter which process they run in.
    """
    if on_progress is None:
        yield
        return
    finished = Event()

    def poll() -> None:
        while not finished.wait(REPORT_EVERY):
            on_progress(_progress(reproduction))

    thread = Thread(target=poll, daemon=True)
    on_progress(_progress(reproduction))
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _progress(reproduction: Reproduction[Setting]) -> Progress:
    """Add up the progress of all jobs; a job that reports no steps counts as one."""
    done = total = 0
    worked, work, loss = 0.0, 0.0, None
    for setting in reproduction.settings:
        report = _last_report(reproduction.job_folder(setting) / "progress.json")
        n_steps = int(report.get("total", 1))
        n_done = n_steps if reproduction.rows_file(setting).exists() else int(report.get("done", 0))
        amount = reproduction.figure.work(setting)
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
    reproduction: Reproduction[Setting], records: Sequence[Mapping[str, Any]], wall_seconds: float
) -> Reproduced:
    """Write the rows as JSON and CSV, and the summary and the picture that follow from them."""
    rows = frame_of(records)
    if reproduction.only:
        rows = rows.filter(pl.col("panel").is_in(reproduction.letters))
    header = {
        "figure": reproduction.figure.name,
        "place": reproduction.figure.place,
        "preset": reproduction.preset,
        **({"only": list(reproduction.only)} if reproduction.only else {}),
        "seed": reproduction.seed,
        "settings": values_of_settings(reproduction.settings),
        **environment_record(),
        "n_workers": reproduction.n_workers,
        "n_jobs": len(reproduction.settings),
        "last_leg_seconds": round(wall_seconds, 1),
        "core_seconds": round(sum(record["seconds"] for record in records), 1),
    }
    return write_results(reproduction.figure, header, rows, reproduction.folder, reproduction.name)


def write_results(
    figure: Figure[Any], header: dict[str, Any], rows: pl.DataFrame, folder: Path, name: str
) -> Reproduced:
    """Write `name`.json, .csv and .png, each whole or not at all."""
    floats = pl.col(pl.Float64, pl.Float32)
    rows = rows.with_columns(pl.when(floats.is_finite()).then(floats).otherwise(None).name.keep())
    summary = figure.summarise(rows)
    table = with_checksum({**header, "summary": summary.to_dicts(), "rows": rows.to_dicts()})
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
    """Return all values of each field of the settings; nested fields have dotted names."""
    values_of: dict[str, dict[str, Any]] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{name}.{key}" if name else key, inner)
        else:
            values_of.setdefault(name, {})[json.dumps(value)] = value

    for setting in settings:
        visit("", asdict(setting))
    return {name: list(values.values()) for name, values in values_of.items()}


def environment_record() -> dict[str, Any]:
    """Return the date, the versions and the kind of machine, without its name."""
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
    """Return JSON with a line for each key and each row: short, and easy to compare."""
    lines_of_keys = []
    for key, value in table.items():
        text = json.dumps(value, allow_nan=False)
        if key in ("summary", "rows"):
            lines = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in value)
            text = f"[\n{lines}\n  ]"
        lines_of_keys.append(f"  {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines_of_keys) + "\n}\n").encode()
