"""Many tasks of a folder: each runs exactly once, whatever happens, as it would by itself."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from filelock import FileLock
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

import icgd
from benchmarks.many_tasks import differences, run_with_kills, start, write_run, write_tasks
from icgd import errors, many_tasks
from icgd.problems.kernel_machine import KERNELS

PROBLEM = icgd.Problem(
    icgd.MLP((2, 3, 1)), "squared", icgd.GradientStep(0.1, box=2.0), icgd.Domain(x=1.0, y=1.0)
)


@pytest.fixture(scope="module")
def compiled() -> icgd.Compiled:
    return icgd.compile(PROBLEM, "relu-stack", n_steps=3)


def tensors(n_tasks: int, n: int = 4, q: int = 2, *, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-1, 1, (n_tasks, n, 2)), rng.uniform(-1, 1, (n_tasks, n))
    return {"x": x, "y": y, "queries": rng.uniform(-1, 1, (n_tasks, q, 2))}


def table(lengths: list[int], *, seed: int = 0) -> pl.DataFrame:
    """Tasks 10, 11, ... of so many rows, every third of which is a query."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    x, is_query = rng.uniform(-1, 1, (rows, 2)), np.arange(rows) % 3 == 2
    return pl.DataFrame(
        {
            "y": rng.uniform(-1, 1, rows),
            "task": np.repeat(np.arange(10, 10 + len(lengths)), lengths),
            "x_2": x[:, 1],
            "x_1": x[:, 0],
            "query": is_query,
            "note": ["not read"] * rows,
        }
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    """Ragged tasks in a Parquet file, and others of one shape in a safetensors file."""
    place = tmp_path / "tasks"
    place.mkdir()
    table([5, 8, 5, 3, 8, 6, 2]).write_parquet(place / "a.parquet")
    save_file(tensors(9), place / "b.safetensors")
    return place


def read(output: Path) -> pl.DataFrame:
    return pl.read_parquet(output / "part-*.parquet")


def names(output: Path) -> list[str]:
    return sorted(path.name for path in output.glob("part-*"))


# What comes out


def test_every_task_learns_what_it_learns_by_itself(compiled, folder, tmp_path):
    results = icgd.run_tasks(compiled, folder, tmp_path / "out", chunk_size=3, seed=4)
    assert (results.n_tasks, len(results.failures)) == (16, 0)
    rows = read(tmp_path / "out")
    assert rows["file"].to_list() == ["a.parquet"] * 7 + ["b.safetensors"] * 9
    assert rows["task"].to_list() == [*range(10, 17), *range(9)]
    frame, data = table([5, 8, 5, 3, 8, 6, 2]), load_file(folder / "b.safetensors")
    for row in rows.iter_rows(named=True):
        if row["file"] == "a.parquet":
            own = frame.filter(pl.col("task") == row["task"])
            examples, asked = own.filter(~pl.col("query")), own.filter(pl.col("query"))
            x, y = examples.select("x_1", "x_2").to_numpy(), examples["y"].to_numpy()
            queries = asked.select("x_1", "x_2").to_numpy()
        else:
            x, y, queries = (data[name][row["task"]] for name in ("x", "y", "queries"))
        queries = queries if len(queries) else None
        run = compiled.run(x, y, queries=queries, seed=4)
        assert row["weights"] == pytest.approx(run.parameters[-1].tolist(), abs=1e-14)
        assert row["predictions"] == pytest.approx(run.predictions.flatten().tolist(), abs=1e-14)


def test_the_start_of_a_task_may_be_its_own(compiled, tmp_path):
    rng = np.random.default_rng(3)
    initial = rng.uniform(-1, 1, (5, 9))
    data = tensors(5) | {"initial": initial, "task": np.array([7, 3, 9, 1, 0], np.int32)}
    del data["queries"]
    save_file(data, tmp_path / "a.safetensors")
    icgd.run_tasks(compiled, tmp_path, tmp_path / "out", dtype="float32")
    rows = read(tmp_path / "out")
    assert rows["task"].to_list() == [7, 3, 9, 1, 0]
    assert rows["predictions"].to_list() == [[]] * 5
    assert rows.schema["weights"] == pl.List(pl.Float32)
    run = compiled.run(data["x"], data["y"], initial=initial, dtype="float32")
    assert np.allclose(rows["weights"].to_list(), run.parameters[:, -1], atol=1e-6, rtol=0)


def by_itself(problem, construction, tmp_path, data, **parts):
    """The weights that `run_tasks` finds, and those of a run by itself of the first task."""
    compiled = icgd.compile(problem, construction, n_steps=2)
    if isinstance(data, pl.DataFrame):
        data.write_parquet(tmp_path / "a.parquet")
    else:
        save_file(data, tmp_path / "a.safetensors")
    results = icgd.run_tasks(compiled, tmp_path, tmp_path / "out")
    assert results.failures.rows() == []
    run = compiled.run(**parts)
    rows = read(tmp_path / "out")
    assert rows["predictions"][0].to_list() == pytest.approx(run.predictions.flatten().tolist())
    assert rows["weights"][0].to_list() == pytest.approx(run.parameters[-1].tolist())


X = np.array([[0.5, -1.0], [1.0, 0.25], [-0.5, 0.5]])
Q = np.array([[0.25, 0.25]])


def test_adam_classes_kernels_linear_models_and_rates(tmp_path):
    places = [tmp_path / name for name in "abcd"]
    for place in places:
        place.mkdir()
    network, domain = icgd.MLP((2, 3, 2)), icgd.Domain(x=1.0, y=1.0)
    classes = {"task": [5] * 4, "x_1": [*X[:, 0], 0.25], "x_2": [*X[:, 1], 0.25]}
    classes |= {"y": [0, 1, 1, None], "query": [False, False, False, True]}
    adam = icgd.AdamStep(0.01, box=2.0)
    problem = icgd.Problem(network, "cross_entropy", adam, domain)
    by_itself(problem, None, places[0], pl.DataFrame(classes), X=X, y=[0, 1, 1], queries=Q)

    kernel = icgd.KernelMachine(2, icgd.KernelHead("rbf"))
    problem = icgd.Problem(kernel, "squared", icgd.FunctionalStep(0.1), domain)
    data = {"x": X[None], "y": np.array([[0.5, 1.0, -1.0]]), "queries": Q[None]}
    given = {"X": X, "y": [0.5, 1.0, -1.0], "queries": Q}
    by_itself(problem, "functional", places[1], data, **given)

    model = icgd.LinearModel(2, "identity")
    problem = icgd.Problem(model, "matching", icgd.ProximalStep(0.1, box=4.0), domain)
    by_itself(problem, None, places[2], data, **given)

    domain = icgd.Domain(x=1.0, y=1.0, rate=2.0)
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", PROBLEM.update, domain)
    rates = np.array([[2.0, 0.0, 1.0]])
    by_itself(problem, "relu-stack", places[3], data | {"rates": rates}, **given, rates=rates[0])


def test_chunks_depend_on_the_sizes_of_tasks_alone(monkeypatch):
    assert list(many_tasks._cuts([1] * 7, 3)) == [(0, 3), (3, 6), (6, 7)]
    monkeypatch.setattr(many_tasks, "NUMBERS_OF_CHUNK", 10)
    assert list(many_tasks._cuts([4, 4, 4, 30, 1, 9, 1], 3)) == [
        (0, 2),
        (2, 3),
        (3, 4),
        (4, 6),
        (6, 7),
    ]


def test_tasks_may_reach_over_what_is_read_at_once(compiled, folder, tmp_path, monkeypatch):
    icgd.run_tasks(compiled, folder, tmp_path / "one", chunk_size=4)
    monkeypatch.setattr(many_tasks, "ROWS_AT_ONCE", 4)
    icgd.run_tasks(compiled, folder, tmp_path / "other", chunk_size=4)
    assert differences(tmp_path / "one", tmp_path / "other") == []


def test_processes_give_the_same_bytes(compiled, folder, tmp_path):
    icgd.run_tasks(compiled, folder, tmp_path / "one", chunk_size=2)
    icgd.run_tasks(compiled, folder, tmp_path / "other", chunk_size=2, n_workers=2)
    assert differences(tmp_path / "one", tmp_path / "other") == []
    assert not active_children()


def test_a_warning_is_given_once_with_its_file(tmp_path):
    kernel = icgd.KernelMachine(2, icgd.KernelHead("rbf"))
    problem = icgd.Problem(kernel, "squared", icgd.FunctionalStep(9.0), icgd.Domain(1.0, 1.0))
    save_file(tensors(6), tmp_path / "a.safetensors")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        diverging = icgd.compile(problem, "functional", n_steps=2)
        icgd.run_tasks(diverging, tmp_path, tmp_path / "out", chunk_size=2)
    assert [warning.category for warning in caught] == [errors.DivergenceWarning]
    assert str(caught[0].message).startswith("In a.safetensors, and maybe other files: The steps")


# Stops and going on


class Stopped(BaseException):
    """What nothing catches."""


def stop_after(n_chunks: int, how: BaseException):
    calls = []

    def on_progress(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) > n_chunks:
            raise how

    return on_progress


def test_stops_lose_no_task_and_repeat_none(compiled, folder, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    icgd.run_tasks(compiled, folder, whole, chunk_size=2)
    n_run, run_chunk = [], many_tasks._run_chunk
    monkeypatch.setattr(
        many_tasks, "_run_chunk", lambda *given: n_run.append(1) or run_chunk(*given)
    )
    for n_chunks in (1, 0, 3, 2):
        progress = stop_after(n_chunks, Stopped())
        with pytest.raises(Stopped):
            icgd.run_tasks(compiled, folder, stopped, chunk_size=2, on_progress=progress)
    assert len(n_run) == 6 < len(names(whole)) == 9
    (stopped / ".part-000001-000000.parquet.0123.icgd-partial").write_bytes(b"half")
    seen = []
    icgd.run_tasks(
        compiled, folder, stopped, chunk_size=2, on_progress=lambda *given: seen.append(given)
    )
    assert seen == [(11, 16), (13, 16), (15, 16), (16, 16)]
    assert len(n_run) == 9
    assert differences(whole, stopped) == []
    assert not list(stopped.glob("*partial"))
    icgd.run_tasks(compiled, folder, stopped, chunk_size=2)  # nothing is left to do
    assert len(n_run) == 9


def test_ctrl_c_says_how_to_go_on(compiled, folder, tmp_path):
    progress = stop_after(2, KeyboardInterrupt())
    with pytest.raises(errors.InterruptedRunError, match="4 of 16 tasks are finished and saved in"):
        icgd.run_tasks(compiled, folder, tmp_path / "out", chunk_size=2, on_progress=progress)
    assert len(names(tmp_path / "out")) == 2


def test_a_full_disk_tears_nothing(compiled, folder, tmp_path, monkeypatch):
    output, write, n_written = tmp_path / "out", Path.write_bytes, []

    def full(path: Path, content: bytes) -> int:
        n_written.append(1)
        if len(n_written) == 3:
            write(path, content[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    icgd.run_tasks(compiled, folder, tmp_path / "whole", chunk_size=2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(errors.FileError) as refusal:
            icgd.run_tasks(compiled, folder, output, chunk_size=2)
    assert re.fullmatch(
        r"Cannot write .*part-000000-000002.parquet: No space left on device. 4 of 16 tasks are "
        r"finished and saved in .*out. Run it again to resume.",
        str(refusal.value),
    )
    assert sorted(path.name for path in output.iterdir() if path.name != ".lock") == [
        "manifest.json",
        "part-000000-000000.parquet",
        "part-000000-000001.parquet",
    ]
    icgd.run_tasks(compiled, folder, output, chunk_size=2)
    assert differences(tmp_path / "whole", output) == []


def test_a_second_process_is_refused(compiled, folder, tmp_path):
    output = tmp_path / "out"
    who = f"in use by process {os.getpid()} on {re.escape(socket.gethostname())}"

    def second(done: int, total: int) -> None:
        with pytest.raises(errors.RunFolderError, match=who):
            icgd.run_tasks(compiled, folder, output)

    icgd.run_tasks(compiled, folder, output, on_progress=second)
    with FileLock(output / ".lock"), pytest.raises(errors.RunFolderError, match="another process"):
        icgd.run_tasks(compiled, folder, output)
    assert icgd.run_tasks(compiled, folder, output).n_tasks == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float32"}, "dtype was 'float64' and is now 'float32'"),
        ({"seed": 1}, "seed was None and is now 1"),
        ({"chunk_size": 7}, "chunk_size was 1024 and is now 7"),
        ({"backend": "dense"}, "backend was 'fused' and is now 'dense'"),
    ],
)
def test_other_settings_are_refused(compiled, folder, tmp_path, change, message):
    icgd.run_tasks(compiled, folder, tmp_path / "out")
    with pytest.raises(
        errors.FileError, match=f"was begun with other tasks or settings: {message}"
    ):
        icgd.run_tasks(compiled, folder, tmp_path / "out", **change)


def test_other_inputs_are_refused(compiled, folder, tmp_path):
    output, file = tmp_path / "out", folder / "b.safetensors"
    icgd.run_tasks(compiled, folder, output)
    with pytest.raises(errors.FileError, match="the compiled run is a different one"):
        icgd.run_tasks(icgd.compile(PROBLEM, "relu-stack", n_steps=4), folder, output)
    content = file.read_bytes()
    file.write_bytes(content)
    os.utime(file, (1, 1))
    assert icgd.run_tasks(compiled, folder, output).n_tasks == 16  # only its time has changed
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(errors.FileError, match=r"b.safetensors has changed. Nothing was changed"):
        icgd.run_tasks(compiled, folder, output)
    file.rename(folder / "c.safetensors")
    message = "b.safetensors is missing; c.safetensors is new"
    with pytest.raises(errors.FileError, match=message):
        icgd.run_tasks(compiled, folder, output)


def test_a_folder_of_something_else_is_refused(compiled, folder, tmp_path):
    output = tmp_path / "out"
    icgd.run_tasks(compiled, folder, output)
    (output / "manifest.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(errors.FileError, match=r"manifest.json is damaged \('settings'\)"):
        icgd.run_tasks(compiled, folder, output)
    (output / "manifest.json").unlink()
    with pytest.raises(errors.FileError, match=r"has results but no manifest.json"):
        icgd.run_tasks(compiled, folder, output)
    with pytest.raises(errors.FileError, match="it holds the tasks"):
        icgd.run_tasks(compiled, folder, folder)
    with pytest.raises(
        errors.DataError, match=r"has no tasks; expected .parquet or .safetensors files"
    ):
        icgd.run_tasks(compiled, tmp_path, output)
    with pytest.raises(errors.DataError, match="There is no folder"):
        icgd.run_tasks(compiled, tmp_path / "none", output)
    with pytest.raises(errors.FileError, match="Cannot write"):
        icgd.run_tasks(compiled, folder, folder / "a.parquet")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"chunk_size": 0}, "chunk_size"),
        ({"n_workers": 0}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"backend": "fast"}, "backend"),
        ({"dtype": "float16"}, "dtype"),
        ({"ray_address": "auto", "n_workers": 2}, "n_workers has no effect with ray_address"),
    ],
)
def test_impossible_settings_leave_no_output(compiled, folder, tmp_path, setting, message):
    with pytest.raises((errors.SettingError, errors.UnknownNameError), match=message):
        icgd.run_tasks(compiled, folder, tmp_path / "out", **setting)
    assert not (tmp_path / "out").exists()


# Damaged files and tasks


def truncated(frame: pl.DataFrame, path: Path) -> None:
    frame.write_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])


def with_task(frame: pl.DataFrame, values: list[object]) -> pl.DataFrame:
    return frame.with_columns(pl.Series("task", values))


SMALL = table([3, 3])
BAD_TABLES = {
    "truncated": (lambda path: truncated(SMALL, path), "damaged, or not a parquet file"),
    "empty file": (lambda path: path.write_bytes(b""), "damaged, or not a parquet file"),
    "no rows": (lambda path: SMALL.head(0).write_parquet(path), "the file has no rows"),
    "no column": (
        lambda path: SMALL.drop("x_2").write_parquet(path),
        "there is no column x_2; expected task, x_1 to x_2, y, and query if there are queries",
    ),
    "texts": (
        lambda path: SMALL.with_columns(pl.col("x_1").cast(pl.String)).write_parquet(path),
        "column x_1 has type String; expected numbers",
    ),
    "fractions": (
        lambda path: SMALL.with_columns(pl.col("task") / 2).write_parquet(path),
        "column task has type Float64; expected integers",
    ),
    "no number": (
        lambda path: with_task(SMALL, [1, 1, 1, 2, None, 2]).write_parquet(path),
        r"column task has no value in row 4 \(counted from 0\)",
    ),
    "scattered": (
        lambda path: with_task(SMALL, [1, 1, 2, 2, 1, 1]).write_parquet(path),
        "the rows of task 1 are not consecutive; sort the file by task",
    ),
    "flags": (
        lambda path: SMALL.with_columns(pl.col("query").cast(pl.Int8)).write_parquet(path),
        "column query has type Int8; expected true or false",
    ),
    "too many inputs": (
        lambda path: SMALL.with_columns(x_3=pl.lit(1.0)).write_parquet(path),
        "there is a column x_3, which the model does not use; its inputs are x_1 to x_2",
    ),
}


def saved(**changes: object):
    """A function that writes two tasks, some of whose tensors are others, or left out."""

    def write(path: Path) -> None:
        parts = {name: torch.from_numpy(array) for name, array in tensors(2).items()} | changes
        save_tensors({name: part for name, part in parts.items() if part is not None}, path)

    return write


def truncated_tensors(path: Path) -> None:
    saved()(path)
    path.write_bytes(path.read_bytes()[:-20])


BAD_TENSORS = {
    "truncated": (truncated_tensors, "damaged, or not a safetensors file"),
    "no tensor": (saved(y=None), "there is no tensor y; expected x and y"),
    "bfloat16": (
        saved(x=torch.ones(2, 4, 2).bfloat16()),
        "tensor x has type BF16; expected F64, F32",
    ),
    "ragged": (saved(y=torch.ones(3, 4)), r"shapes x \(2, 4, 2\), y \(3, 4\), queries \(2, 2, 2\)"),
    "too wide": (saved(x=torch.ones(2, 4, 3)), r"expected x \(tasks, examples, 2\)"),
    "scalar": (saved(y=torch.tensor(1.0)), r"y \(\), queries"),
    "no tasks": (saved(x=torch.ones(0, 4, 2), y=torch.ones(0, 4), queries=None), "shapes x"),
    "misspelt": (
        saved(querys=torch.ones(2, 1, 2)),
        "there is an unknown tensor querys; expected x and",
    ),
    "twice": (saved(task=torch.tensor([4, 4])), "number 4 occurs twice in the tensor task"),
    "fractions": (saved(task=torch.tensor([1.0, 2.0])), "tensor task has type F32"),
    "numbers in a table": (saved(task=torch.ones(2, 2).int()), r"task has shape \(2, 2\)"),
}
BAD_FILES = [(f"{name}.parquet", *case) for name, case in BAD_TABLES.items()]
BAD_FILES += [(f"{name}.safetensors", *case) for name, case in BAD_TENSORS.items()]


def test_a_damaged_part_is_told(compiled, folder, tmp_path):
    icgd.run_tasks(compiled, folder, tmp_path / "out")
    part = sorted((tmp_path / "out").glob("part-*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(
        errors.FileError, match=r"A part-\*.parquet file in .* is damaged .* Delete it"
    ):
        icgd.run_tasks(compiled, folder, tmp_path / "out")


@pytest.mark.parametrize(("name", "write", "reason"), BAD_FILES, ids=[bad[0] for bad in BAD_FILES])
def test_a_damaged_file_is_named_and_the_others_go_on(
    compiled, folder, tmp_path, name, write, reason
):
    write(folder / name)
    results = icgd.run_tasks(compiled, folder, tmp_path / "out")
    [(file, task, text)] = results.failures.rows()
    assert (file, task) == (name, None)
    assert re.search(reason, text), text
    assert results.n_tasks == 16
    assert read(tmp_path / "out")["weights"].count() == 16
    listed = pl.read_csv(tmp_path / "out" / "failures.csv")
    assert listed.rows() == results.failures.rows()


def test_a_damaged_page_costs_its_chunk_alone(compiled, tmp_path):
    place = tmp_path / "tasks"
    place.mkdir()
    table([4] * 200).write_parquet(place / "a.parquet", row_group_size=400)
    icgd.run_tasks(compiled, place, tmp_path / "whole", chunk_size=20)
    content = bytearray((place / "a.parquet").read_bytes())
    start = content.find(
        b"\x28\xb5\x2f\xfd"
    )  # where zstd's first page, of the first column, begins
    content[start : start + 4] = bytes(4)
    (place / "a.parquet").write_bytes(content)
    results = icgd.run_tasks(compiled, place, tmp_path / "out", chunk_size=20)
    assert results.n_tasks == 200
    failed = results.failures["task"].to_list()
    assert failed == list(range(10, 10 + len(failed)))
    assert 0 < len(failed) <= 100
    assert "damaged, or not a parquet file" in results.failures["reason"][0]
    sound, whole = (read(tmp_path / output)[len(failed) :] for output in ("out", "whole"))
    assert sound.equals(whole)


BAD_TASKS = {
    11: ("x_1", 7.0, r"X\[\d, 0\] is 7, outside \[-1, 1\]"),
    12: ("y", -1.5, r"y\[\d, 0\] is -1.5, outside \[-1, 1\]"),
    14: ("x_2", float("nan"), r"X\[\d, 1\] is nan; every entry must be finite"),
    15: ("y", None, r"y\[\d(, 0)?\] is nan; every entry must be finite"),
}


def test_a_bad_task_is_named_by_its_number_and_the_others_go_on(compiled, folder, tmp_path):
    icgd.run_tasks(compiled, folder, tmp_path / "whole")
    frame = pl.read_parquet(folder / "a.parquet")
    for task, (column, value, _) in BAD_TASKS.items():
        is_there = (pl.col("task") == task) & ~pl.col("query")
        frame = frame.with_columns(
            pl.when(is_there).then(value).otherwise(pl.col(column)).alias(column)
        )
    is_query = pl.col("query") | (pl.col("task") == 13)  # a task without examples
    frame.with_columns(is_query.alias("query")).write_parquet(folder / "a.parquet")
    data = load_file(folder / "b.safetensors")
    data["queries"][3, 1, 0] = 2.0
    save_file(data, folder / "b.safetensors")
    results = icgd.run_tasks(compiled, folder, tmp_path / "out")
    reasons = {(file, task): reason for file, task, reason in results.failures.rows()}
    expected = {("a.parquet", task): case[2] for task, case in BAD_TASKS.items()}
    expected[("a.parquet", 13)] = "X is empty"
    expected[("b.safetensors", 3)] = r"queries\[1, 0\] is 2, outside"
    assert reasons.keys() == expected.keys()
    for key, reason in expected.items():
        assert re.match(reason, reasons[key]), reasons[key]
    assert results.n_tasks == 16
    rows, whole = read(tmp_path / "out"), read(tmp_path / "whole")
    sound = rows["reason"].is_null()
    assert sound.sum() == 10
    assert rows.filter(~sound).select("predictions", "weights").null_count().row(0) == (6, 6)
    for row, same in zip(rows.filter(sound).rows(), whole.filter(sound).rows(), strict=True):
        assert row[:2] == same[:2]
        assert row[2] == pytest.approx(same[2], abs=1e-14)
        assert row[3] == pytest.approx(same[3], abs=1e-14)


def test_a_run_that_overflows_is_its_tasks_own(tmp_path):
    kernel = icgd.KernelMachine(2, icgd.KernelHead("linear"))
    problem = icgd.Problem(kernel, "squared", icgd.FunctionalStep(1e30), icgd.Domain(1e30, 1.0))
    data = tensors(4)
    data["x"] *= 1e-20
    data["x"][2] *= 1e50
    save_file(data, tmp_path / "a.safetensors")
    with warnings.catch_warnings(action="ignore"):
        compiled = icgd.compile(problem, "functional", n_steps=5)
        results = icgd.run_tasks(compiled, tmp_path, tmp_path / "out")
    [(_, task, reason)] = results.failures.rows()
    assert task == 2
    assert "float64" in reason


# Workers


def test_ray_is_an_extra(compiled, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'icgd\[sweeps\]'"):
        icgd.run_tasks(compiled, folder, tmp_path / "out", ray_address="auto")


@pytest.mark.slow
def test_ray_gives_the_same_bytes(compiled, folder, tmp_path):
    pytest.importorskip("ray")
    icgd.run_tasks(compiled, folder, tmp_path / "one", chunk_size=2)
    icgd.run_tasks(compiled, folder, tmp_path / "other", chunk_size=2, ray_address="local")
    assert differences(tmp_path / "one", tmp_path / "other") == []
    with pytest.raises(errors.SettingError, match="Cannot reach Ray at 'auto'"):
        icgd.run_tasks(compiled, folder, tmp_path / "none", ray_address="auto")


@pytest.mark.slow
def test_a_lost_worker_is_told_and_the_others_end(compiled, folder, tmp_path):
    def kill(done: int, total: int) -> None:
        for process in active_children():
            process.kill()

    icgd.run_tasks(compiled, folder, tmp_path / "whole", chunk_size=1)
    with pytest.raises(errors.WorkerError, match=r"A worker process was killed.* to resume"):
        icgd.run_tasks(
            compiled, folder, tmp_path / "out", chunk_size=1, n_workers=2, on_progress=kill
        )
    assert not active_children()
    icgd.run_tasks(compiled, folder, tmp_path / "out", chunk_size=1)
    assert differences(tmp_path / "whole", tmp_path / "out") == []


@pytest.mark.slow
def test_kills_at_random_moments_change_no_byte(tmp_path):
    write_run(tmp_path / "run.safetensors")
    write_tasks(tmp_path / "tasks", 400, 100)
    assert start(tmp_path, "whole", 1, 1).wait() == 0
    found = run_with_kills(tmp_path, "killed", 2, 1, n_kills=3)
    assert found == sorted(found)
    assert 0 < found[0] < 400
    assert differences(tmp_path / "whole", tmp_path / "killed") == []
    assert sorted(read(tmp_path / "killed")["task"].to_list()) == list(range(400))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_worker_outlives_its_parent(tmp_path, number, code):
    write_run(tmp_path / "run.safetensors")
    write_tasks(tmp_path / "tasks", 400, 100)
    process = start(tmp_path, "out", 2, 1)
    while len(names(tmp_path / "out")) < 3:
        time.sleep(0.01)
    os.kill(process.pid, number)  # it alone: its workers would not hear of it
    assert process.wait() == code
    while workers := living(process.pid):
        time.sleep(0.01)
    assert not workers
    assert 3 <= len(names(tmp_path / "out")) < 400


def living(session: int) -> list[str]:
    """Processes of a session that are still at work."""
    listed = subprocess.run(["ps", "-eo", "sess=,stat=,pid="], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [pid for sess, stat, pid in rows if sess == str(session) and not stat.startswith("Z")]


@pytest.mark.slow
def test_a_kernel_of_ones_own_runs_in_ones_own_process(tmp_path, monkeypatch):
    monkeypatch.setattr("icgd.problems.kernel_machine.KERNELS", dict(KERNELS))
    icgd.register_kernel("wave", lambda u, w: torch.cos(u @ w.mT), lipschitz=abs)
    target, domain = icgd.KernelMachine(2, "wave"), icgd.Domain(x=1.0, y=1.0)
    problem = icgd.Problem(target, "squared", icgd.FunctionalStep(0.1), domain)
    compiled = icgd.compile(problem, "functional", n_steps=2)
    save_file(tensors(4), tmp_path / "a.safetensors")
    assert icgd.run_tasks(compiled, tmp_path, tmp_path / "out").failures.rows() == []
    with pytest.raises(
        errors.SettingError, match=r"cannot rebuild the compiled run: Unknown kernel"
    ):
        icgd.run_tasks(compiled, tmp_path, tmp_path / "other", n_workers=2)
