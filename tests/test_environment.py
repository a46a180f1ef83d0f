"""Memory that may be used, modes of torch, and warnings at the user's line."""

import os
import sys
import warnings
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch

import icgd
from icgd import environment as memory
from icgd.environment import Memory, own_modes, usable_memory, warn
from icgd.errors import DivergenceWarning, SizeError
from icgd_papers.training import (
    Gaussian,
    InContextTask,
    KernelTransformer,
    LinearFunctions,
    Settings,
    train,
)

GIB = 2**30
PHYSICAL = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10 * GIB // 4096}


@pytest.fixture
def _a_machine_of_10_gib(monkeypatch):
    monkeypatch.setattr(os, "sysconf", PHYSICAL.__getitem__)


on_10_gib = pytest.mark.usefixtures("_a_machine_of_10_gib")


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


@on_10_gib
def test_what_fits_is_let_through_and_what_does_not_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(memory, "usable_memory", lambda: Memory(2**30, "half of the memory"))
    memory.require_memory("A table", 2**30, "Give less.")
    with pytest.raises(SizeError) as refusal:
        memory.require_memory("A table", 5 * 2**29, "Give less.")
    assert str(refusal.value) == (
        "A table takes about 2.5 GiB; 1.0 GiB may be used, half of the memory. Give less."
    )


@on_10_gib
def test_what_is_surely_free_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(memory, "usable_memory", lambda: pytest.fail("limits were read"))
    memory.require_memory("A table", memory.SURELY_FREE - 1, "Give less.")


@on_10_gib
def test_dense_weights_may_take_three_fifths_of_the_memory_of_a_machine_without_proc(tmp_path):
    assert usable_memory(tmp_path) == Memory(6 * GIB, "60% of the machine's memory")


@on_10_gib
@pytest.mark.parametrize("trouble", [AttributeError, ValueError, OSError])
def test_a_system_that_tells_of_no_limit_sets_none(tmp_path, monkeypatch, trouble):
    def sysconf(name: str) -> int:
        raise trouble(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert usable_memory(tmp_path).n_bytes > 2**60


@on_10_gib
def test_what_is_free_now_counts_if_it_is_less(tmp_path):
    found = usable_memory(written(tmp_path, meminfo(5 * GIB)))
    assert found == Memory(3 * GIB, "60% of the memory that is free now")


@on_10_gib
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
    assert found == Memory(int(0.6 * 2 * GIB), "60% of the memory left under the container's limit")


@on_10_gib
@pytest.mark.parametrize("version", [version_1, version_2])
def test_a_limit_around_the_processs_own_group_counts(tmp_path, version):
    line = "4:memory:/pod/box\n" if version is version_1 else "0::/pod/box\n"
    files = {"proc/self/cgroup": line, **version("/pod", 3 * GIB, 2 * GIB)}
    files |= version("/pod/box", 2**62, 0)
    assert usable_memory(written(tmp_path, files)).n_bytes == int(0.6 * GIB)


@on_10_gib
def test_a_group_that_is_mounted_at_the_top_is_found_there(tmp_path):
    """A container may be told its path on the host, of which it sees only the last folder."""
    files = {"proc/self/cgroup": "0::/docker/1f\n", **version_2("", 2 * GIB, GIB)}
    assert usable_memory(written(tmp_path, files)).n_bytes == int(0.6 * GIB)


@on_10_gib
def test_a_group_without_a_limit_leaves_all(tmp_path):
    files = {"proc/self/cgroup": "0::/box\n", **version_2("/box", "max", GIB)}
    assert usable_memory(written(tmp_path, files)).limit == "60% of the machine's memory"


@on_10_gib
def test_a_group_beyond_its_limit_leaves_nothing(tmp_path):
    files = {"proc/self/cgroup": "0::/box\n", **version_2("/box", GIB, 2 * GIB)}
    assert usable_memory(written(tmp_path, files)).n_bytes == 0


@on_10_gib
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_what_is_left_of_the_limit_on_the_process_counts_if_it_is_less(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/statm").write_text("5 3 1 1 0 1 0\n")
    most = 1000 * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (most, most))
    left = 995 * os.sysconf("SC_PAGE_SIZE")
    expected = Memory(int(0.6 * left), "60% of the memory left under this process's limit")
    assert usable_memory(tmp_path) == expected


X, Y = [[0.5, 1.0], [1.0, 0.0], [0.3, 0.7]], [1.0, 0.5, 0.0]


def of_medium_products():
    """`torch.set_float32_matmul_precision` as a context manager."""

    class Medium:
        def __enter__(self):
            torch.set_float32_matmul_precision("medium")

        def __exit__(self, *_):
            assert torch.get_float32_matmul_precision() == "medium"  # given back by icgd
            torch.set_float32_matmul_precision("highest")

    return Medium()


MODES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "products": of_medium_products,
    "device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_no_mode_changes_a_bit_of_a_run_and_of_its_report(mode, backend):
    step = icgd.GradientStep(0.1, box=1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1)), "squared", step, icgd.Domain(x=1.0, y=1.0))

    def results():
        compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        run = compiled.run(X, Y, queries=X, backend=backend, dtype="float32")
        again = compiled.run_task(compiled.task(X, Y, dtype="float32"), backend=backend)
        report = icgd.verify(compiled, X, Y, backend=backend, dtype="float32")
        tensors = (run.parameters, run.predictions, again.parameters, report.step_bounds)
        return [tensor.numpy() for tensor in tensors]

    expected = results()
    with mode():
        found = results()
    assert all(map(np.array_equal, found, expected))


def test_training_does_not_follow_the_caller_s_autocast_nor_inference_mode():
    eye = torch.eye(2, dtype=torch.float64)
    task = InContextTask(Gaussian(eye), LinearFunctions(), n_examples=4)

    def trained():
        model = KernelTransformer(2, 1, ("linear",), transforms_covariates=False, seed=0)
        train(model, task, Settings(n_steps=3, batch_size=4, learning_rate=0.02))
        return [parameter.tolist() for parameter in model.parameters()]

    expected = trained()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert trained() == expected


def test_the_caller_s_modes_are_back_afterwards():
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        with own_modes():
            assert not torch.is_autocast_enabled("cpu")
            assert not torch.is_inference_mode_enabled()
            assert torch.zeros(2).tolist() == [0.0, 0.0]
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_inference_mode_enabled()
        assert torch.zeros(2).is_meta


def test_training_may_keep_products_of_lower_precision():
    with of_medium_products(), own_modes(exact_products=False):
        assert torch.get_float32_matmul_precision() == "medium"


SCRIPT = """
import icgd

machine = icgd.KernelMachine(1, "linear")
problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(3.0), icgd.Domain(x=1.0, y=1.0))
compiled = icgd.compile(problem, n_steps=2)
compiled.run([[1.0]], [1.0])  # line 7
compiled.run_task(compiled.task([[1.0]], [1.0]))  # line 8
icgd.verify(compiled, [[1.0]], [1.0])  # line 9
"""


def test_a_warning_names_the_line_that_called_run_or_verify(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_path(str(path))
    found = [(one.filename, one.lineno) for one in caught if one.category is DivergenceWarning]
    assert found == [(str(path), line) for line in (7, 8, 9)]


def test_outside_icgd_it_names_its_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn(UserWarning("a"))
    assert caught[0].filename == __file__
