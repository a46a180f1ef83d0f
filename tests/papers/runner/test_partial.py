"""Studies in a folder: what is kept, what is told, and what stops them."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from icgd.errors import CheckpointError, SweepError, TrainingError
from icgd_papers.checksummed_json import write_checksummed
from icgd_papers.partial import (
    Job,
    Standing,
    carry_out,
    claim,
    clear,
    interruption,
)
from icgd_papers.reproduction import AbstractStudy
from icgd_papers.training.lock import LOCK

PARTIAL = import_module("icgd_papers.partial")


@dataclass(frozen=True)
class Found:
    value: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Counting(AbstractStudy[Found]):
    """Counts to `size`, and fails at 13."""

    size: int
    seed: int = 0
    budget: int = 0

    @property
    def n_steps(self):
        return self.size

    @property
    def work(self):
        return float(self.size**2)

    def train(self, folder=None):
        raise NotImplementedError

    def train_with(self, conduct, folder):
        for done in range(1, self.size + 1):
            if done == 13:
                raise TrainingError("thirteen is not counted.")
            folder.mkdir(exist_ok=True)
            (folder / "log.csv").write_text(f"step,loss\n0,1.0\n{done},{1 / done}\n")
            conduct.on_step(done, self.size, 1 / done)
        return Found(self.size)

    def outcome_of(self, data):
        return Found(**data)


def jobs_of(folder: Path, *sizes: int) -> list[Job]:
    return [Job(Counting(size), folder / f"{i:03d}", "cpu") for i, size in enumerate(sizes)]


def test_the_standing_counts_steps_and_weighs_work(tmp_path, monkeypatch):
    monkeypatch.setattr(PARTIAL, "REPORT_EVERY", 0.0)
    heard: list[Standing] = []
    jobs = jobs_of(tmp_path, 1, 2)
    assert carry_out(jobs, 1, heard.append) == [Found(1), Found(2)]
    assert heard == [
        Standing(0, 3, 0.0, None),
        Standing(1, 3, 0.2, 1.0),  # the second study has four times the work
        Standing(1, 3, 0.2, None),
        Standing(2, 3, 0.6, 1.0),
        Standing(3, 3, 1.0, 0.5),
        Standing(3, 3, 1.0, None),
    ]
    again: list[Standing] = []
    assert carry_out(jobs, 1, again.append) == [Found(1), Found(2)]
    assert again == [Standing(3, 3, 1.0, None)]  # nothing was done again


def test_reports_are_rare(tmp_path, monkeypatch):
    monkeypatch.setattr(PARTIAL, "REPORT_EVERY", 1e9)
    heard: list[Standing] = []
    carry_out(jobs_of(tmp_path, 9), 1, heard.append)
    assert [now.done for now in heard] == [0, 9]


def test_an_error_of_ours_stays_one_sentence(tmp_path):
    with pytest.raises(TrainingError, match=r"^thirteen is not counted\.$"):
        carry_out(jobs_of(tmp_path, 2, 14), 1, None)


def test_another_error_names_its_study(tmp_path):
    (tmp_path / "000").touch()  # where a folder should be
    with pytest.raises(SweepError, match=r"^Configuration 0, Job\(.*failed with FileExistsError"):
        carry_out(jobs_of(tmp_path, 2), 1, None)


def test_what_is_kept_is_counted(tmp_path):
    jobs = jobs_of(tmp_path, 2, 14, 3, 4)
    with pytest.raises(TrainingError):
        carry_out(jobs, 1, None)
    jobs[2].folder.mkdir()
    (jobs[2].folder / ".lock").touch()  # nothing that is worth keeping
    assert str(interruption(jobs, tmp_path)) == (
        f"Stopped with 1 of 4 studies finished and 1 begun; they are kept in {tmp_path}. "
        "Give the same command again to go on."
    )


def test_the_record_goes_last_and_the_lock_stays(tmp_path, monkeypatch):
    claim(tmp_path, 0, [Counting(1)])
    carry_out(jobs_of(tmp_path, 1), 1, None)
    (tmp_path / LOCK).touch()
    gone: list[str] = []
    real = Path.unlink

    def noted(path, missing_ok=False):
        gone.append(path.name)
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert gone[-1] == "runs.json"


def test_studies_without_a_record_are_left_alone(tmp_path):
    (tmp_path / "000").mkdir()
    with pytest.raises(CheckpointError) as caught:
        claim(tmp_path, 0, [Counting(1)])
    assert str(caught.value) == (
        f"{tmp_path} is damaged or not a checkpoint (it has no runs.json). It was left as it is; "
        "remove it to train without it."
    )
    assert (tmp_path / "000").exists()


def test_an_outcome_of_another_form_is_named(tmp_path):
    jobs = jobs_of(tmp_path, 2)
    carry_out(jobs, 1, None)
    for data in ({"other": 1}, [1], None):
        write_checksummed(jobs[0].folder / "outcome.json", data)
        with pytest.raises(CheckpointError, match=r"outcome\.json is damaged .*it is no outcome: "):
            carry_out(jobs, 1, None)


def test_every_changed_bit_of_an_outcome_is_noticed(tmp_path):
    jobs = jobs_of(tmp_path, 2)
    carry_out(jobs, 1, None)
    path = jobs[0].folder / "outcome.json"
    content = path.read_bytes()
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            assert carry_out(jobs, 1, None) == [Found(2)]  # it was a space
        except CheckpointError:
            continue


def test_a_record_that_is_no_table_is_named(tmp_path):
    write_checksummed(tmp_path / "runs.json", [1])
    with pytest.raises(CheckpointError, match=r"runs\.json is damaged .*\(it is no table\)"):
        claim(tmp_path, 0, [Counting(1)])
