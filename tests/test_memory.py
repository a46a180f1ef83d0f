"""Which limit of memory counts, on systems that are made of files."""

import os
import sys
from pathlib import Path

import pytest

from icgd import environment as memory
from icgd.environment import Memory, usable_memory
from icgd.errors import SizeError

GIB = 2**30
PHYSICAL = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10 * GIB // 4096}


@pytest.fixture(autouse=True)
def _a_machine_of_10_gib(monkeypatch):
    monkeypatch.setattr(os, "sysconf", PHYSICAL.__getitem__)


def written(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def meminfo(free: int) -> dict[str, str]:
    lines = f"MemTotal: 10485760 kB\nMemFree: 1 kB\nMemAvailable:    {free // 1024} kB\n"
    return {"proc/meminfo": lines}


def version_2(group: str, limit: object, usage: int, cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup{group}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\nactive_file 7\n",
    }


def version_1(group: str, limit: int, usage: int, cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory{group}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": f"inactive_file 3\ntotal_inactive_file {cache}\n",
    }


def test_what_fits_is_let_through_and_what_does_not_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(memory, "usable_memory", lambda: Memory(2**30, "half of the memory"))
    memory.require_memory("A table", 2**30, "Give less.")
    with pytest.raises(SizeError) as refusal:
        memory.require_memory("A table", 5 * 2**29, "Give less.")
    assert str(refusal.value) == (
        "A table takes about 2.5 GiB; 1.0 GiB may be used, half of the memory. Give less."
    )


def test_what_is_surely_free_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(memory, "usable_memory", lambda: pytest.fail("limits were read"))
    memory.require_memory("A table", memory.SURELY_FREE - 1, "Give less.")


def test_dense_weights_may_take_three_fifths_of_the_memory_of_a_machine_without_proc(tmp_path):
    assert usable_memory(tmp_path) == Memory(6 * GIB, "60% of the machine's memory")


@pytest.mark.parametrize("trouble", [AttributeError, ValueError, OSError])
def test_a_system_that_tells_of_no_limit_sets_none(tmp_path, monkeypatch, trouble):
    def sysconf(name: str) -> int:
        raise trouble(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert usable_memory(tmp_path).n_bytes > 2**60


def test_what_is_free_now_counts_if_it_is_less(tmp_path):
    found = usable_memory(written(tmp_path, meminfo(5 * GIB)))
    assert found == Memory(3 * GIB, "60% of the memory that is free now")


@pytest.mark.parametrize("version", [version_1, version_2])
def test_what_is_left_of_the_containers_limit_counts_if_it_is_less(tmp_path, version):
    """Pages of files count as left: the system gives them back."""
    line = "4:cpu,memory:/pod/box\n" if version is version_1 else "0::/pod/box\n"
    files = {
        "proc/self/cgroup": f"9:name=systemd:/\n8:pids:/pod\n{line}",
        **version("/pod/box", 4 * GIB, 3 * GIB, cache=GIB),
        **version("", 9 * GIB, GIB),
    }
    found = usable_memory(written(tmp_path, meminfo(8 * GIB) | files))
    assert found == Memory(int(0.6 * 2 * GIB), "60% of what the container's limit leaves")


@pytest.mark.parametrize("version", [version_1, version_2])
def test_a_limit_around_the_processs_own_group_counts(tmp_path, version):
    line = "4:memory:/pod/box\n" if version is version_1 else "0::/pod/box\n"
    files = {"proc/self/cgroup": line, **version("/pod", 3 * GIB, 2 * GIB)}
    files |= version("/pod/box", 2**62, 0)
    assert usable_memory(written(tmp_path, files)).n_bytes == int(0.6 * GIB)


def test_a_group_that_is_mounted_at_the_top_is_found_there(tmp_path):
    """A container may be told its path on the host, of which it sees only the last folder."""
    files = {"proc/self/cgroup": "0::/docker/1f\n", **version_2("", 2 * GIB, GIB)}
    assert usable_memory(written(tmp_path, files)).n_bytes == int(0.6 * GIB)


def test_a_group_without_a_limit_leaves_all(tmp_path):
    files = {"proc/self/cgroup": "0::/box\n", **version_2("/box", "max", GIB)}
    assert usable_memory(written(tmp_path, files)).limit == "60% of the machine's memory"


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path):
    files = {"proc/self/cgroup": "0::/box\n", **version_2("/box", GIB, 2 * GIB)}
    assert usable_memory(written(tmp_path, files)).n_bytes == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_what_is_left_of_the_limit_on_the_process_counts_if_it_is_less(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/statm").write_text("5 3 1 1 0 1 0\n")
    most = 1000 * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (most, most))
    left = 995 * os.sysconf("SC_PAGE_SIZE")
    expected = Memory(int(0.6 * left), "60% of what the limit on this process leaves")
    assert usable_memory(tmp_path) == expected
