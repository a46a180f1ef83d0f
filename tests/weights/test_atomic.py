import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from icgd.errors import FileError
from icgd.weights.files import is_same_file, require_replaceable, whole_file


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


def test_threads_that_write_the_same_file_do_not_meet(tmp_path):
    path, contents = tmp_path / "out", [bytes([65 + i]) * 100_000 for i in range(4)]

    def write(content):
        for _ in range(25):
            with whole_file(path) as temporary:
                temporary.write_bytes(content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, contents))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_that_is_replaced_keeps_its_rights(tmp_path, mode):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(mode)
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == mode


def test_a_read_only_file_is_refused_also_for_those_who_may_do_everything(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with pytest.raises(FileError, match=r"^Cannot write .*out: it is read-only\.$"):
        write_and_fail(path, AssertionError())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_would_not_be_replaced_is_known_before(tmp_path):
    require_replaceable(tmp_path / "absent")
    (tmp_path / "usual").touch()
    require_replaceable(tmp_path / "usual")
    (tmp_path / "fixed").touch(0o444)
    for name, problem in (("fixed", "it is read-only"), ("a" * 300, "File name too long")):
        with pytest.raises(FileError, match=rf": {problem}\.$"):
            require_replaceable(tmp_path / name)


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("ä" * 127)
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["a" * 300, "no/folder", "a\0b"])
def test_a_name_that_cannot_be_is_an_error_of_ours(tmp_path, name):
    with pytest.raises(FileError, match=r"^Cannot write "):
        write_and_fail(tmp_path / name, AssertionError())


def test_a_loop_of_links_is_an_error_of_ours(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(FileError, match=r"^Cannot write .*a: "):
        write_and_fail(tmp_path / "a", AssertionError())


def test_what_is_being_written_stays(tmp_path):
    with whole_file(tmp_path / "slow") as slow:
        slow.write_bytes(b"slow")
        with whole_file(tmp_path / "fast") as fast:
            fast.write_bytes(b"fast")
        assert slow.exists()
    assert (tmp_path / "slow").read_bytes() == b"slow"


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *given, real=real, name=name: calls.append(name) or real(*given)
        )
    with whole_file(tmp_path / "out") as temporary:
        temporary.write_bytes(b"new")
    assert calls == ["fsync", "replace", "fsync"]


def test_two_names_of_one_file_are_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").touch()
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "hard").hardlink_to("one")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "other").touch()
    assert all(is_same_file("one", name) for name in ("one", "./one", "link", "hard"))
    assert is_same_file("new", tmp_path / "new")
    assert is_same_file("round", "round")
    assert not any(is_same_file("one", name) for name in ("other", "new", "round", "zero\0"))
