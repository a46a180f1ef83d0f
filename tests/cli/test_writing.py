from pathlib import Path

import pytest

from icgd.cli.writing import make_folder, write_file
from icgd.errors import FileError
from icgd_papers.training.logs import Log, write_json
from tests.cli.files import listing, write_all


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "out.csv"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert listing(tmp_path) == ["out.csv"]


def test_a_new_file_can_be_read_by_whom_the_system_allows(tmp_path):
    (tmp_path / "usual").touch()
    write_file(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/out.csv", "No such file or directory"),
        ("plain/out.csv", "Not a directory"),
        ("folder", "it is a folder"),
    ],
)
def test_an_impossible_place_is_refused(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    Path("plain").touch()
    Path("folder").mkdir()
    with pytest.raises(FileError) as caught:
        write_file(Path(name), b"content")
    assert str(caught.value) == f"Cannot write {name}: {reason}."
    assert listing(tmp_path) == ["folder", "plain"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.csv"
    path.write_bytes(b"old")

    def interrupt(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["out.csv"]


def test_folders_are_made_where_possible(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert listing(tmp_path) == ["a", "a/b"]
    (tmp_path / "plain").touch()
    with pytest.raises(FileError, match=r"Cannot write .*plain: File exists\."):
        make_folder(tmp_path / "plain")


OWN_FILES = [
    ("run run.safetensors train.csv --queries new.csv -o train.csv", "train.csv"),
    ("run run.safetensors train.csv --queries new.csv -o new.csv", "new.csv"),
    ("run run.safetensors train.csv --queries new.csv -o run.safetensors", "run.safetensors"),
    ("run run.safetensors train.csv --queries new.csv -o linked.csv", "train.csv"),
    ("run run.safetensors train.csv --queries new.csv -o hard.csv", "train.csv"),
    ("run run.safetensors train.csv --weights-out run.safetensors", "run.safetensors"),
    ("run run.safetensors train.csv --queries new.csv -o a.json --weights-out ./a.json", "a.json"),
    ("run run.safetensors train.csv --plot a.svg --queries new.csv -o a.svg", "a.svg"),
    ("verify run.safetensors table.png --plot table.png", "table.png"),
    ("verify run.safetensors train.csv --queries table.png --plot table.png", "table.png"),
    ("compile --data train.csv -o train.csv", "train.csv"),
    ("certify run.safetensors train.csv -o train.csv", "train.csv"),
    ("draw run.svg", "run.svg"),
    ("plot training -o training/log.json", "training/log.json"),
    ("plot linked", "linked/log.json"),
]


@pytest.mark.parametrize(("arguments", "own"), OWN_FILES)
def test_no_command_replaces_what_it_reads_or_writes(command, tmp_path, arguments, own):
    write_all(tmp_path)
    copied = {"run.svg": "run.safetensors", "table.png": "train.csv"}
    for name, original in copied.items():
        Path(name).write_bytes(Path(original).read_bytes())
    Path("linked.csv").symlink_to("train.csv")
    Path("hard.csv").hardlink_to("train.csv")
    for name in ("training", "linked"):
        Path(name).mkdir()
        write_json(Log(({"step": 0.0, "loss": 1.0},)), Path(name, "log.json"))
    Path("linked/log.png").symlink_to("log.json")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = command(*arguments.split()).refusal()
    assert message.startswith("Cannot write ")
    assert f"it is the same file as {own}, which this command reads or writes too" in message
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
