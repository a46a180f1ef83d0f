"""The dense backend, and its executor of stacks."""

import warnings
from functools import cache, lru_cache

import pytest
import torch

import icgd
from icgd.backends import dense
from icgd.backends.dense import DenseBackend, DenseStack, build_transformer
from icgd.backends.run import RunOptions
from icgd.errors import PrecisionWarning, SizeError
from icgd.layers import Transformer
from icgd.problems.data import Task
from icgd.weights.lowering import lower_program
from icgd.weights.sizes import summarise
from tests import cases, machines
from tests.backends.test_fused import CASE
from tests.cases import build
from tests.contracts.backend import RELU_STACK, BackendContract
from tests.contracts.executor import ExecutorContract
from tests.contracts.functional import FunctionalContract
from tests.linear_cases import PROBLEMS, compiled_of, task_of


class TestDenseOnFunctions(FunctionalContract):
    def make_backend(self) -> DenseBackend:
        return DenseBackend()


@pytest.fixture
def _weights_built_once(monkeypatch):
    """For a program that runs several times in a test: building takes longer than running."""
    monkeypatch.setattr(dense, "build_transformer", lru_cache(maxsize=2)(build_transformer))


@pytest.mark.usefixtures("_weights_built_once")
class TestDense(BackendContract):
    def make_backend(self) -> DenseBackend:
        return DenseBackend()


PROGRAM_CASE = cases.FEW[0]


def test_it_is_called_dense():
    assert DenseBackend.name == "dense"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_that_do_not_fit_are_refused_with_the_numbers(monkeypatch, dtype):
    program = build(RELU_STACK, PROGRAM_CASE)
    parameters = summarise(program, n_tokens=1).parameters
    needed = parameters * dtype.itemsize
    machines.of_memory(monkeypatch, needed - 1, "half")
    with pytest.raises(SizeError) as caught:
        build_transformer(program, dtype)
    assert str(caught.value) == (
        f"The dense transformer of {parameters:,} weights takes about {needed / 2**30:,.1f} GiB; "
        f"{(needed - 1) / 2**30:,.1f} GiB may be used, half. {dense.INSTEAD}"
    )
    machines.of_memory(monkeypatch, needed, "half")
    built = build_transformer(program, dtype)
    assert sum(weight.numel() for weight in built.parameters()) == parameters


def test_a_run_on_the_dense_backend_is_refused_before_anything_is_built(monkeypatch):
    machines.of_memory(monkeypatch, 3 * 2**29, "half of it")
    monkeypatch.setattr(dense, "lower_program", lambda *_: pytest.fail("weights were built"))
    case = cases.make_case(cases.MLP((64, 512, 512, 1), "tanh"), "squared")
    program = build(RELU_STACK, case, n_steps=1)
    with pytest.raises(
        SizeError, match=r"takes about [\d.,]+ GiB; 1\.5 GiB may be used, half of it\."
    ):
        DenseBackend().run(program, case.task())


def float32_error(compiled: icgd.Compiled, x: torch.Tensor, y: torch.Tensor) -> float:
    report = icgd.verify(compiled, x, y, seed=0, backend="dense", dtype="float32")
    return float(report.trajectory_errors.max())


def test_weights_made_for_float64_are_used_in_float32_with_a_warning():
    """They err several times as much as those that are made for float32."""
    problem = icgd.Problem(
        icgd.MLP((4, 8, 1)), "squared", icgd.GradientStep(0.1, box=1.0), icgd.Domain(1.0, 1.0)
    )
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(20, 4, generator=generator, dtype=torch.float64) - 1
    y = torch.rand(20, 1, generator=generator, dtype=torch.float64)
    default = icgd.compile(problem, "softmax-stack", n_steps=20)
    with pytest.warns(PrecisionWarning, match=r"^This softmax-stack was compiled for float64, but"):
        unsuited = float32_error(default, x, y)
    with pytest.warns(PrecisionWarning, match="Compile with dtype='float32'"):
        default.transformer("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        suited = float32_error(
            icgd.compile(problem, icgd.SoftmaxStack(dtype="float32"), n_steps=20), x, y
        )
        default.run(x, y, backend="fused", dtype="float32")
        default.transformer("float64")
        icgd.compile(problem, "relu-stack", n_steps=1).transformer("float32")
    assert 3 * suited < unsuited
    assert suited < 2e-5


UNITS_PROBLEM = icgd.Problem(
    icgd.MLP((3, 4, 2)), "squared", icgd.GradientStep(0.1, box=2.0), icgd.Domain(2.0, 2.0)
)


def by_units(**settings) -> icgd.Compiled:
    return icgd.compile(UNITS_PROBLEM, icgd.Recursion(**settings), n_steps=1)


def test_units_that_do_not_bend_are_made_for_one_precision():
    with pytest.warns(PrecisionWarning, match=r"^This recursion was compiled for float64, but"):
        by_units(units=64, unit_activation="tanh").transformer("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_units(units=64, unit_activation="relu").transformer("float32")
        by_units(units=64, unit_activation="tanh", dtype="float32").transformer("float32")


@pytest.mark.slow
def test_sums_of_units_that_do_not_bend_cancel_in_float32():
    """Sums of softplus units, which bend like relus, hardly do."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    with pytest.warns(PrecisionWarning):
        unsuited = float32_error(by_units(unit_activation="sigmoid"), x, y)
    suited = float32_error(by_units(unit_activation="sigmoid", dtype="float32"), x, y)
    bending = float32_error(by_units(unit_activation="softplus"), x, y)
    assert 3 * suited < unsuited
    assert 3 * bending < unsuited


@cache
def transformer() -> Transformer:
    """The block does not depend on the number of steps."""
    return lower_program(build(RELU_STACK, CASE, pieces=16))


class TestDenseStack(ExecutorContract):
    traced = ("y", "weights_1", "delta_2")
    per_step = len(build(RELU_STACK, CASE, pieces=16).block)

    def task(self) -> Task:
        return CASE.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> DenseStack:
        program = build(RELU_STACK, CASE, n_steps, pieces=16)
        return DenseStack(program, task, transformer(), self.traced)


class TestDenseStackOfALinearModel(ExecutorContract):
    """What becomes of scores out of range is tested in test_prompt.py."""

    traced = ("w", "y")
    per_step = 3

    def task(self) -> Task:
        return task_of(PROBLEMS["logistic"])

    def overflowing(self) -> None:
        return None

    def make(self, n_steps: int, task: Task, options: RunOptions) -> DenseStack:
        program = compiled_of(PROBLEMS["logistic"], n_steps).program
        return DenseStack(program, task, lower_program(program), self.traced)
