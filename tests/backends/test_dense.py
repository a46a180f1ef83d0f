"""The dense backend: the contract, and the guard against weights that do not fit in memory."""

from functools import lru_cache

import pytest
import torch

from icgd.backends import dense
from icgd.backends.dense import DenseBackend, build_transformer
from icgd.backends.memory import Memory
from icgd.errors import DenseSizeError
from icgd.weights.summary import summarise
from tests import cases
from tests.cases import build
from tests.contracts.backend import RELU_STACK, BackendContract
from tests.contracts.functional import FunctionalContract


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
    monkeypatch.setattr(dense, "usable_memory", lambda: Memory(needed - 1, "half"))
    with pytest.raises(DenseSizeError) as caught:
        build_transformer(program, dtype)
    assert str(caught.value) == str(
        DenseSizeError.too_large(needed, needed - 1, "half", parameters)
    )
    assert f"has {parameters:,} weights" in str(caught.value)
    monkeypatch.setattr(dense, "usable_memory", lambda: Memory(needed, "half"))
    built = build_transformer(program, dtype)
    assert sum(weight.numel() for weight in built.parameters()) == parameters


def test_a_run_on_the_dense_backend_is_refused_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(dense, "usable_memory", lambda: Memory(3 * 2**29, "half of it"))
    monkeypatch.setattr(dense, "lower_program", lambda *_: pytest.fail("weights were built"))
    case = cases.make_case(cases.MLP((64, 512, 512, 1), "tanh"), "squared")
    program = build(RELU_STACK, case, n_steps=1)
    with pytest.raises(
        DenseSizeError, match=r"needs [\d.]+ GiB; 1\.5 GiB may be used, half of it\."
    ):
        DenseBackend().run(program, case.task())
