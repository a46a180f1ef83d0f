import os

import pytest

from icgd.errors import FileError
from icgd.weights.atomic import whole_file


def write_and_fail(path, problem):
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
        raise problem


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "out"
    with whole_file(path) as temporary:
        temporary.write_bytes(b"half")
        assert not path.exists()
    assert path.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError])
def test_an_interruption_keeps_the_old_file_and_leaves_nothing_else(tmp_path, problem):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(problem):
        write_and_fail(path, problem())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_an_error_of_ours(tmp_path):
    with pytest.raises(FileError, match=r"Cannot write .*out: No space left on device\."):
        write_and_fail(tmp_path / "out", OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_refused_and_stays_what_it_is(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"pipe: it is not an ordinary file\.$"):
        write_and_fail(path, AssertionError())
    assert path.is_fifo()


def test_a_link_is_followed(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with whole_file(link) as temporary:
        temporary.write_bytes(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_file_that_was_written_privately_gets_the_usual_rights(tmp_path):
    (tmp_path / "usual").touch()
    with whole_file(tmp_path / "out") as temporary:
        temporary.chmod(0o600)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode
