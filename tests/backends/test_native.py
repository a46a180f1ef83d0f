"""Loops as machine code: products, look-ups, whole runs within their bounds, and the cache."""

from pathlib import Path
from random import Random

import pytest

import icgd
from icgd.backends import fused
from icgd.backends.fused import FusedBackend
from tests import cases
from tests.backends.test_loops import COMPILED, PROBLEMS, TORCH, assert_same, problem, task_of
from tests.cases import build
from tests.contracts.backend import RECURSION, RELU_STACK, distance

numba = pytest.importorskip("numba")
np = pytest.importorskip("numpy")
native = pytest.importorskip("icgd.backends.native")


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """A cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(path))
        patch.setattr(native, "_COMPILED", {})
        yield path


SIZES = [(1, 1, 1), (3, 5, 2), (8, 4, 16), (9, 7, 33), (16, 1, 1), (1, 30, 12), (17, 9, 7)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_products_of_any_size_and_stride(rows, depth, columns, dtype):
    generator = np.random.default_rng(rows * depth * columns)
    left, right, base = (
        generator.normal(size=shape).astype(dtype)
        for shape in ((depth, rows), (depth, columns + 2), (rows, columns))
    )
    sizes = rows, depth, columns
    plain = native.product(*sizes, (1, rows), columns + 2, columns, False, False)
    scaled = native.product(*sizes, (1, rows), columns + 2, columns, False, True)
    added = native.product(*sizes, (1, rows), columns + 2, columns, True, True)

    @native.inlined
    def multiply(out, left, right, base, scale):
        n = rows * columns
        plain(out, 1, left, 0, right, 1, base, 0, scale)
        scaled(out, 1 + n, left, 0, right, 1, base, 0, scale)
        added(out, 1 + 2 * n, left, 0, right, 1, base, 0, scale)

    out = np.full(3 * rows * columns + 2, 7.0, dtype)
    multiply(out, left.ravel(), right.ravel(), base.ravel(), base.dtype.type(0.5))
    product = left.T.astype("float64") @ right[:, 1 : columns + 1].astype("float64")
    truth = np.stack([product, 0.5 * product, base + 0.5 * product]).ravel()
    allowed = (depth + 2) * np.finfo(dtype).eps * (1 + np.abs(left).max() * np.abs(right).max())
    assert np.abs(out[1:-1] - truth).max() <= depth * allowed
    assert out[0] == out[-1] == 7.0


@pytest.mark.parametrize(
    ("name", "construction", "tasks", "dtype"),
    [
        ("adam", "relu-stack", (3,), "float64"),
        ("adam, small eps", "relu-stack", (), "float32"),
        ("schedule of batches", "softmax-stack", (2,), "float64"),
        pytest.param("norm", "relu-stack", (), "float64", marks=pytest.mark.slow),
        pytest.param("classes", "softmax-stack", (), "float64", marks=pytest.mark.slow),
        pytest.param("wide", "relu-stack", (2,), "float32", marks=pytest.mark.slow),
    ],
)
def test_runs_are_those_of_torch(name, construction, tasks, dtype):
    compiled = icgd.compile(PROBLEMS[name], construction, n_steps=5)
    task = task_of(PROBLEMS[name], tasks, dtype)
    assert_same(compiled.program, task, 1e-12 if dtype == "float64" else 2e-5)


def test_recursion_runs_too():
    case = cases.ROOMY[next(case for case in cases.SMALL if case.name == "gelu-2-3-3-3-2-huber")]
    assert_same(build(RECURSION, case), case.task())


ACTIVATIONS = ["relu", "leaky_relu", "tanh", "sigmoid", "gelu", "silu", "softplus"]


@pytest.mark.parametrize("seed", [1, 3])  # momentum in float32, plain steps in float64
def test_random_runs_stay_within_their_bounds(monkeypatch, seed):
    """`verify` compares every step with exact descent and with the bounds of the fused backend."""
    draw = Random(seed)
    widths = (2, *(draw.randint(1, 9) for _ in range(draw.randint(1, 2))), 1)
    update = draw.choice(
        [icgd.GradientStep(0.2, 1.0), icgd.MomentumStep(0.1, 1.0), icgd.AdamStep(0.05, 1.0)]
    )
    drawn = problem(
        update,
        draw.choice(["squared", "logistic", "huber"]),
        widths=widths,
        activation=draw.choice(ACTIVATIONS),
        biases=draw.random() < 0.5,
    )
    compiled = icgd.compile(drawn, "relu-stack", n_steps=6)
    task = task_of(drawn, dtype=draw.choice(["float64", "float32"]))
    monkeypatch.setattr(fused, "PAYS", 0.0)  # all work is worth compiling
    made, n_made = fused.CompiledStack, []
    monkeypatch.setattr(fused, "CompiledStack", lambda *args: n_made.append(1) or made(*args))
    report = icgd.verify(
        compiled, task.x, task.y, initial=task.initial, dtype=task.x.dtype, backend="fused"
    )
    assert n_made
    assert float(report.step_errors.max()) > 0
    assert bool((report.step_errors <= report.step_bounds).all())


CASE = cases.FEW[0]


def stats():
    """How often machine code was found on disk, after it was forgotten."""
    program, task = build(RELU_STACK, CASE), CASE.task()
    native._COMPILED.clear()
    run = FusedBackend().run(program, task, COMPILED)
    assert distance(run.parameters, FusedBackend().run(program, task, TORCH).parameters) <= 1e-12
    (found,) = native._COMPILED.values()
    return found.stats


def test_machine_code_stays_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not stats().cache_hits
    assert stats().cache_hits
    (source,) = (tmp_path / "icgd" / "loops").glob("*.py")
    source.write_text("a damaged file")
    stats()
    assert source.read_text().startswith("from numpy")


def test_where_nothing_can_be_written_loops_are_compiled_anew(monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert not stats().cache_hits
    assert not stats().cache_hits


def test_the_cache_is_in_the_home_by_default(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert native._folder() == Path.home() / ".cache" / "icgd" / "loops"
