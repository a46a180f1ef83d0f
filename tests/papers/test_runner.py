"""The runner of figures: jobs are done once, resumed, chosen by panel, and written."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest
from filelock import FileLock

from icgd.errors import (
    CheckpointError,
    InterruptedStudiesError,
    MissingExtraError,
    RunFolderError,
    SettingError,
    SizeError,
    UnknownNameError,
)
from icgd.pictures import plotting
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.runner import Reproduction, reproduce, stored_results, stored_rows

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Power:
    """Square or cube a number; each panel shows one exponent."""

    exponent: int
    number: float
    seed: int
    trace: str = ""

    @property
    def panel(self) -> str:
        return {2: "a", 3: "b"}[self.exponent]


def run(setting: Power, job: Job) -> pl.DataFrame:
    if setting.trace:
        with Path(setting.trace).open("a") as file:
            file.write(f"{setting.exponent} {setting.number}\n")
    if job.on_step:
        for step in range(3):
            job.on_step(step + 1, 3, 0.5)
    value = setting.number**setting.exponent + setting.seed
    return pl.DataFrame(
        {"panel": [setting.panel], "number": [setting.number], "value": [value], "none": [None]}
    )


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by("panel", maintain_order=True).agg(
        pl.col("value").max().map_elements(lambda value: f"{value:g}", pl.String)
    )


def draw(rows: pl.DataFrame) -> plotting.Figure:
    figure, panels = plotting.new_panels(1, 1, 3.0, 2.0)
    panels[0].plot(rows["number"], rows["value"])
    return figure


def settings(trace: str = ""):
    def of(preset: str, seed: int) -> list[Power]:
        numbers = of_preset({"smoke": (0.1, 0.3), "laptop": (0.1, 0.2, 0.3)}, preset)
        return [Power(power, number, seed, trace) for power in (2, 3) for number in numbers]

    return of


POWERS = Figure("powers", "nowhere", "powers of numbers", settings(), run, summarise, draw)


def traced(tmp_path: Path) -> tuple[Figure[Power], Path]:
    trace = tmp_path / "trace"
    trace.touch()
    return replace(POWERS, settings=settings(str(trace))), trace


def test_results_say_which_settings_made_them(tmp_path):
    done = reproduce(Reproduction(POWERS, "laptop", tmp_path, seed=7))
    assert done.rows["value"].to_list() == [x**k + 7 for k in (2, 3) for x in (0.1, 0.2, 0.3)]
    facts = stored_results(tmp_path / "powers" / "laptop.json")
    assert facts["settings"] == {
        "exponent": [2, 3],
        "number": [0.1, 0.2, 0.3],
        "seed": [7],
        "trace": [""],
    }
    assert facts["summary"] == [
        {"panel": "a", "value": "7.09"},
        {"panel": "b", "value": "7.027"},
    ]
    assert stored_rows(tmp_path / "powers" / "laptop.json").equals(done.rows)
    assert sorted(path.name for path in (tmp_path / "powers").iterdir()) == [
        "laptop.csv",
        "laptop.json",
        "laptop.png",
    ]


@pytest.mark.parametrize("where", ["here", "on Ray"])
def test_two_workers_find_the_same_rows(tmp_path, where):
    if where == "on Ray":
        pytest.importorskip("ray")
    address = {"here": None, "on Ray": "local"}[where]
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.papers.test_runner import POWERS\n"
        "from icgd_papers.runner import Reproduction, reproduce\n"
        f"where = {{'n_workers': 2, 'ray_address': {address!r}}}\n"
        "order = Reproduction(POWERS, 'laptop', Path(sys.argv[1]), **where)\n"
        "print(reproduce(order).rows['value'].to_list())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    alone = reproduce(Reproduction(POWERS, "laptop", tmp_path / "alone"))
    assert done.stdout == f"{alone.rows['value'].to_list()}\n", done.stderr


def test_without_ray_a_cluster_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="needs ray"):
        reproduce(Reproduction(POWERS, "smoke", tmp_path / "new", ray_address="auto"))
    assert not (tmp_path / "new").exists()


def test_finished_jobs_are_kept_and_panels_share_them(tmp_path):
    figure, trace = traced(tmp_path)
    part = reproduce(Reproduction(figure, "smoke", tmp_path, only=("panel-b",)))
    assert part.rows["panel"].unique().to_list() == ["b"]
    assert trace.read_text() == "3 0.1\n3 0.3\n"
    whole = reproduce(Reproduction(figure, "smoke", tmp_path))
    assert trace.read_text() == "3 0.1\n3 0.3\n2 0.1\n2 0.3\n"
    assert whole.rows.height == 4
    assert (tmp_path / "powers" / "smoke-panel-b.json").exists()
    assert not (tmp_path / "powers" / ".smoke.partial").exists()


def test_another_seed_is_other_work(tmp_path):
    figure, trace = traced(tmp_path)
    for seed in (0, 1):
        reproduce(Reproduction(figure, "smoke", tmp_path, seed=seed, only=("panel-a",)))
    assert trace.read_text().count("2 0.1\n") == 2


def test_ctrl_c_says_what_is_kept_and_the_same_order_resumes(tmp_path):
    figure, trace = traced(tmp_path)

    def interrupted(setting: Power, job: Job) -> pl.DataFrame:
        if setting.exponent == 3:
            raise KeyboardInterrupt
        return run(setting, job)

    order = Reproduction(replace(figure, run=interrupted), "smoke", tmp_path)
    with pytest.raises(InterruptedStudiesError, match="2 of 4 jobs finished and 0 begun"):
        reproduce(order)
    assert reproduce(replace(order, figure=figure)).rows.height == 4
    assert trace.read_text() == "2 0.1\n2 0.3\n3 0.1\n3 0.3\n"


def test_a_damaged_row_file_is_refused(tmp_path):
    order = Reproduction(POWERS, "smoke", tmp_path, only=("panel-a",))
    reproduce(order)
    path = order.rows_file(order.settings[0])
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(CheckpointError, match="checksum does not match"):
        reproduce(order)


def test_one_process_at_a_time_works_on_a_preset(tmp_path):
    order = Reproduction(POWERS, "smoke", tmp_path)
    order.partial_folder.mkdir(parents=True)
    with (
        FileLock(order.partial_folder / ".lock"),
        pytest.raises(RunFolderError, match="in use by another process"),
    ):
        reproduce(order)


def test_memory_is_asked_for_before_work_begins(tmp_path):
    figure, trace = traced(tmp_path)
    greedy = replace(figure, memory=lambda _: 2**50)
    with pytest.raises(SizeError, match=r"2 jobs of powers at the same time .* fewer workers"):
        reproduce(Reproduction(greedy, "smoke", tmp_path, n_workers=2))
    assert trace.read_text() == ""


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"preset": "smok"}, UnknownNameError, "Did you mean 'smoke'"),
        ({"only": ("panel-c",)}, UnknownNameError, "panel of powers"),
        ({"n_workers": 0}, SettingError, "n_workers"),
        ({"seed": -1}, SettingError, "seed"),
        ({"device": "cuda"}, SettingError, "compute on the processor"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, given, error, message):
    with pytest.raises(error, match=message):
        Reproduction(**{"figure": POWERS, "preset": "smoke", "out": tmp_path, **given})


def test_progress_counts_finished_jobs_and_reported_steps(tmp_path):
    order = Reproduction(POWERS, "smoke", tmp_path)
    reports = []
    reproduce(replace(order, only=("panel-a",)))
    folder = order.job_folder(order.settings[2])
    folder.mkdir()
    (folder / "progress.json").write_text(json.dumps({"done": 1, "total": 2, "loss": 0.25}))
    reproduce(order, reports.append)
    first = reports[0]
    assert (first.done, first.total, first.share, first.loss) == (3, 5, 2.5 / 4, 0.25)


def test_the_estimate_is_a_share_of_the_measured_time(tmp_path, monkeypatch):
    monkeypatch.setattr("icgd_papers.runner.core_seconds", lambda _: {"smoke": 8 * 3600.0})
    order = Reproduction(POWERS, "smoke", tmp_path)
    assert order.estimate == "powers, smoke: 4 jobs, about 8 core-hours"
    reproduce(replace(order, only=("panel-a",)))
    assert order.estimate == "powers, smoke: 2 jobs, about 4 core-hours"


def test_six_digits():
    assert (six_digits(1.23456789), six_digits(float("nan"))) == (1.23457, None)
    assert six_digits(float("inf")) is None


def test_a_job_keeps_the_result_of_a_stage(tmp_path):
    results = iter([0.1, 0.2])
    job = Job(tmp_path / "job")
    assert [job.cached("stage", lambda: next(results)) for _ in range(2)] == [0.1, 0.1]
    assert Job().cached("stage", lambda: next(results)) == 0.2


def test_rows_of_another_job_are_refused_before_any_work(tmp_path):
    figure, trace = traced(tmp_path)
    order = Reproduction(figure, "smoke", tmp_path)
    reproduce(replace(order, only=("panel-a",)))
    trace.write_text("")
    first, second = map(order.rows_file, order.settings[:2])
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="it does not belong to this job"):
        reproduce(order)
    assert trace.read_text() == ""
