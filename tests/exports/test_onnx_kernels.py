"""Kernel attention in ONNX, against the dense transformer."""

import numpy as np
import pytest
import torch

import icgd
from icgd.backends.prompt import encode
from icgd.errors import ExportError
from icgd.exports.onnx import export_onnx, run_onnx
from icgd.training.covariates import Ellipsoid
from icgd.training.descents import as_compiled
from icgd.training.models import KernelTransformer
from tests.cases import KERNEL_CASES, over

pytest.importorskip("onnxruntime")


def stream_by_onnx(compiled, task, path):
    export_onnx(compiled, path, dtype=task.x.dtype)
    return run_onnx(path, encode(compiled.program, task))


@over(KERNEL_CASES)
def test_every_kernel_gives_the_stream_of_the_dense_transformer(case, tmp_path):
    compiled, task = icgd.compile(case.problem, n_steps=3), case.task()
    found = stream_by_onnx(compiled, task, tmp_path / "run.onnx")
    prompt = encode(compiled.program, task)
    dense = compiled.transformer()(prompt).detach()
    assert (dense - prompt).abs().max() > 1e-2
    assert (found - dense).abs().max() <= 1e-12


@pytest.mark.parametrize("shape", [0.5, 1.5, 2.5])
def test_every_smoothness_of_the_matern_kernel_and_float32(shape, tmp_path):
    machine = icgd.KernelMachine(3, icgd.KernelHead("matern", shape=shape))
    update, domain = icgd.FunctionalStep(0.2, noise=0.1), icgd.Domain(2.0, 4.0)
    compiled = icgd.compile(icgd.Problem(machine, "squared", update, domain), n_steps=2)
    case = KERNEL_CASES[3]
    for dtype, most in (("float64", 1e-13), ("float32", 1e-5)):
        task = compiled.task(case.x, case.y, queries=case.queries, dtype=dtype)
        found = stream_by_onnx(compiled, task, tmp_path / f"{dtype}.onnx")
        dense = compiled.transformer(dtype)(encode(compiled.program, task)).detach()
        assert found.dtype is task.x.dtype
        assert (found - dense).abs().max() <= most


def test_a_query_far_away_overflows_nothing(tmp_path):
    """exp(<x, x>) of two queries is infinite, but nobody reads a query."""
    machine, update = icgd.KernelMachine(2, "exp"), icgd.FunctionalStep(0.01)
    problem = icgd.Problem(machine, "squared", update, icgd.Domain(40.0, 1.0))
    compiled = icgd.compile(problem, n_steps=2)
    x = torch.eye(2).double()
    task = compiled.task(x, torch.ones(2).double(), queries=40 * x)
    found = stream_by_onnx(compiled, task, tmp_path / "far.onnx")
    dense = compiled.transformer()(encode(compiled.program, task)).detach()
    assert ((found - dense).abs() <= 1e-12 * (1 + dense.abs())).all()


def test_a_learnt_model_runs_in_onnxruntime_for_any_number_of_tasks(tmp_path):
    model = KernelTransformer(5, 3, ("exp",), transforms_covariates=False, seed=0)
    with torch.no_grad():
        model.r.copy_(-model.r.abs())
    compiled = as_compiled(model, domain=icgd.Domain(x=10.0, y=10.0))
    x = Ellipsoid.of_seed(0).sample(4, 7, np.random.default_rng(0))
    y = x.sum(-1)
    task = compiled.task(x[:, :-1], y[:, :-1], queries=x[:, -1:])
    found = stream_by_onnx(compiled, task, tmp_path / "learnt.onnx")
    place = compiled.program.layout.range_of("y")
    assert (-found[:, -1, place].flatten() - model(x, y)).abs().max() <= 1e-12


def test_a_kernel_of_ones_own_is_refused(tmp_path):
    icgd.register_kernel("own for onnx", lambda u, w: u @ w.mT)
    machine, update = icgd.KernelMachine(2, "own for onnx"), icgd.FunctionalStep(0.01)
    problem = icgd.Problem(machine, "squared", update, icgd.Domain(1.0, 1.0))
    with pytest.raises(ExportError) as caught:
        export_onnx(icgd.compile(problem, n_steps=1), tmp_path / "own.onnx")
    assert str(caught.value) == (
        "ONNX cannot hold the kernel 'own for onnx', which is a function of your own. It has "
        "linear, relu, exp, polynomial, softmax, rbf, laplace, matern. Use compiled.transformer(), "
        "a torch module."
    )
    assert not list(tmp_path.iterdir())
