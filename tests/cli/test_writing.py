from pathlib import Path

import pytest

from icgd.cli.writing import make_folder, write_file
from icgd.errors import FileError
from tests.cli.files import listing


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
        ("folder", "Is a directory"),
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
