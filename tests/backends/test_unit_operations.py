"""Operations by units: fine fits as the functions themselves, coarse ones unit by unit."""

from dataclasses import replace

import pytest
import torch

from icgd.approximation.ridge_sum import fit_product, fit_ridge_sum
from icgd.backends import unit_operations
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.rules import Machine, operation
from icgd.backends.unit_operations import UnitSum, is_computed_as_such
from icgd.constructions.recursion import Recursion
from icgd.problems.activations import TANH
from icgd.problems.data import as_task
from icgd.problems.domain import Domain
from icgd.problems.mlp import MLP
from icgd.problems.task import Task
from icgd.program.ridge import Band
from tests.approximation.yardsticks import evaluate
from tests.cases import batch_of, make_case
from tests.contracts.backend import RECURSION, distance

CASE = make_case(MLP((2, 3, 3, 2), "tanh"), "huber", box=2.0, seed=3)
"""Coarse with few units: r, s r'(t), the corners of the loss and of the box."""


@pytest.mark.parametrize("activation", ["relu", "elu", "sigmoid", "cos"])
@pytest.mark.parametrize("n_tasks", [0, 2], ids=["one task", "batch"])
def test_coarse_fits_are_those_of_the_dense_transformer(activation, n_tasks):
    construction = Recursion(units=40, unit_activation=activation)
    program = construction.build(CASE.problem, n_steps=2)
    assert any(not is_computed_as_such(function) for function in program.functions)
    task = (batch_of(CASE, n_tasks) if n_tasks else CASE).task()
    ours, truth = FusedBackend().run(program, task), DenseBackend().run(program, task)
    assert distance(ours.parameters, truth.parameters) <= 1e-10
    assert distance(ours.predictions, truth.predictions) <= 1e-10
    real = CASE.problem.oracle.train(task, 2)
    assert 1e-7 < distance(ours.parameters, real) < 0.3


def test_every_fit_summed_by_units_gives_what_the_functions_themselves_give(monkeypatch):
    """All operations have two ways; here both are nearly exact."""
    case = make_case(MLP((2, 3, 3, 2), "tanh"), "squared", box=2.0, seed=3)
    program = Recursion(unit_activation="sigmoid").build(case.problem, n_steps=2)
    task = batch_of(case, 2).task()
    as_such = FusedBackend().run(program, task)
    monkeypatch.setattr(unit_operations, "AS_SUCH", -1.0)
    by_units = FusedBackend().run(program, task)
    assert not torch.equal(by_units.parameters, as_such.parameters)
    assert distance(by_units.parameters, as_such.parameters) <= 1e-9
    assert distance(by_units.predictions, as_such.predictions) <= 1e-9


@pytest.mark.parametrize("at_once", [1, 50, 2**20])
def test_a_sum_of_units_is_that_of_its_fit_in_groups_of_any_size(monkeypatch, at_once):
    monkeypatch.setattr(unit_operations, "NUMBERS_AT_ONCE", at_once)
    a, b = torch.linspace(-1, 1, 7).double(), torch.linspace(-1, 1, 5).double().unsqueeze(-1)
    fit = fit_product((1.0, 1.0), "relu", 24)
    pairs = torch.stack(torch.broadcast_tensors(a, b), dim=-1)
    value = UnitSum(fit, a)(a, b)
    torch.testing.assert_close(value, evaluate(fit, pairs), rtol=0, atol=1e-13)
    assert (value - a * b).abs().max() > 1e-4


def test_a_fit_is_computed_as_such_if_its_error_is_small_everywhere():
    fine, coarse = (fit_ridge_sum(TANH, 2.0, name, 64) for name in ("sigmoid", "relu"))
    assert is_computed_as_such(fine)
    assert not is_computed_as_such(coarse)
    assert not is_computed_as_such(replace(fine, bands=(Band(0.0, 1.0, 0.5),)))


def test_a_clip_sums_units_near_the_corners_and_is_exact_elsewhere():
    problem = make_case(MLP((2, 3, 1), "tanh"), "squared", box=2.0, seed=3).problem
    program = Recursion(unit_activation="sigmoid").build(problem, n_steps=1)
    weights = torch.tensor([-5.0, -2.01, -1.0, 0.3, 1.0, 1.99, 2.0, 2.01, 3.5]).double()
    data = torch.zeros(1, 2).double()
    machine = Machine(program, weights, data, data[:, :1], data)
    (clip, *_) = program.block[-1].instructions
    operation(clip, machine)()
    clipped = torch.cat([machine.slots[f"weights_{j}"].flatten() for j in (1, 2)])
    far = (weights.abs() - 2.0).abs() > 0.5
    assert torch.equal(clipped[far], weights[far].clamp(-2, 2))
    by_units = weights + UnitSum(program.ridge_sum("clip"), weights)(weights)
    torch.testing.assert_close(clipped, by_units, rtol=0, atol=1e-9)
    assert (clipped - weights.clamp(-2, 2)).abs().max() > 1e-4


@pytest.mark.parametrize("n_tasks", [0, 2], ids=["one task", "batch"])
def test_units_on_a_kink_are_those_of_the_dense_transformer(n_tasks):
    """z is -1e-5 in both hidden layers, where s r' is 0, and relus give a part of s."""
    problem = make_case(
        MLP((2, 2, 2, 1), "relu"), "squared", box=2.0, domain=Domain(1.0, 1.0)
    ).problem
    program = RECURSION.build(problem, n_steps=1)
    first, second, last = [1.0, -1.0 - 1e-5, 0.5, 0.5], [1.0, -1e-5, 1.0, 1.0], [1.0, -1.0]
    weights = torch.tensor([*first, *second, *last]).double()
    x = torch.tensor([[1.0, 1.0], [0.5, -1.0]]).double()
    task = as_task(problem, x, torch.ones(2, 1), initial=weights)
    if n_tasks:
        parts = (task.x, task.y, task.queries, task.initial)
        task = Task(*(torch.stack([part, 0.5 * part]) for part in parts))
    ours, truth = FusedBackend().run(program, task), DenseBackend().run(program, task)
    assert distance(ours.parameters, truth.parameters) <= 1e-11
    real = problem.oracle.train(task, 1)
    assert distance(ours.parameters, real) > 1e-3
