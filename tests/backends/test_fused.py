"""The fused backend beside the dense one, and its executors of stacks."""

import pytest
import torch

import icgd
from icgd.backends import fused, look_up
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import STEPS_BETWEEN, FusedBackend, FusedStack
from icgd.backends.run import Run, RunOptions
from icgd.problems.data import Task
from icgd.program.instructions import AddGradient
from icgd.program.stack import StackProgram
from tests import cases
from tests.cases import Case, batch_of, build, every_construction_on, over
from tests.contracts.backend import (
    RECURSION,
    RELU_STACK,
    SOFTMAX_STACK,
    BackendContract,
    distance,
    traced,
    untraced,
)
from tests.contracts.executor import ExecutorContract
from tests.contracts.functional import FunctionalContract


class TestFusedOnFunctions(FunctionalContract):
    def make_backend(self) -> FusedBackend:
        return FusedBackend()


class TestFused(BackendContract):
    def make_backend(self) -> FusedBackend:
        return FusedBackend()


def assert_same_trace(
    case: Case, ours: Run, truth: Run, allowed: float = 1e-11, n_registers: int = 0
) -> None:
    """Layer by layer: each slot of each layer is measured against its own largest entry.

    Registers have no input. Their z is 0, or what rounding makes of it, where slopes jump.
    """
    assert ours.trace.keys() == truth.trace.keys()
    for name in truth.trace:
        size = allowed + ON_RAMPS if may_meet_a_ramp(case, name) else allowed
        layers = zip(by_layer(ours.trace[name]), by_layer(truth.trace[name]), strict=True)
        start = n_registers if name.startswith(("slope", "delta")) else 0
        for number, (mine, theirs) in enumerate(layers):
            off = distance(mine[..., start:, :], theirs[..., start:, :])
            assert off <= size, f"{name} after layer {number}"


ALLOWED = {RECURSION: 1e-8}
"""Fits that are closer than that are computed as such."""

ON_RAMPS = 1e-10
"""A band of recursion is 2^13 steep, and preactivations are rounded to 1e-15 of about 10."""


def may_meet_a_ramp(case: Case, slot: str) -> bool:
    kinked = case.problem.target.activation in {"relu", "leaky_relu"}
    return kinked and slot.startswith("jacobian")


def by_layer(trace: torch.Tensor) -> torch.Tensor:
    return trace.movedim(-3, 0)


@every_construction_on(cases.SMALL)
def test_every_slot_after_every_layer_is_that_of_dense(construction, case):
    ours, truth = (traced(b, construction, case) for b in (FusedBackend, DenseBackend))
    n_registers = build(construction, case, pieces=32).n_registers
    assert_same_trace(case, ours, truth, ALLOWED.get(construction, 1e-11), n_registers)


@every_construction_on(cases.SMALL, cases.FEW)
def test_every_slot_after_every_layer_is_that_of_dense_for_a_batch(construction, case):
    program, task = build(construction, case, pieces=16), batch_of(case, n_tasks=3).task()
    names = program.layout.names
    ours, truth = (
        b.run(program, task, RunOptions(names)) for b in (FusedBackend(), DenseBackend())
    )
    allowed = ALLOWED.get(construction, 1e-11)
    assert_same_trace(case, ours, truth, allowed, program.n_registers)


@every_construction_on(cases.SMALL)
def test_the_untraced_run_is_that_of_dense(construction, case):
    ours, truth = (untraced(b, construction, case) for b in (FusedBackend, DenseBackend))
    allowed = ALLOWED.get(construction, 1e-11)
    assert distance(ours.parameters, truth.parameters) <= allowed
    assert distance(ours.predictions, truth.predictions) <= allowed


WIDE = tuple(
    case
    for case in cases.SMALL
    if case.name in {"identity-3-4-4-2-squared", "tanh-2-3-3-3-2-squared", "gelu-2-3-3-3-2-huber"}
)
"""In a large box, where slopes of 700 to 400 000 are possible."""


@over(WIDE)
def test_softmax_stack_loses_to_rounding_in_proportion_to_the_largest_slope(case):
    """The gradient heads divide the rounding of a softmax weight by the probe."""
    ours, truth = (traced(b, SOFTMAX_STACK, case) for b in (FusedBackend, DenseBackend))
    allowed = 1e-14 * largest_inverse_probe(build(SOFTMAX_STACK, case))
    assert 1e-10 < allowed < 2e-7
    assert_same_trace(case, ours, truth, allowed)


def largest_inverse_probe(program: StackProgram) -> float:
    """32 times the largest slope on the domain."""
    instructions = [part for layer in program.block for part in layer.instructions]
    return max(1 / part.probe for part in instructions if isinstance(part, AddGradient))


@over(cases.FEW)
def test_searching_for_cells_changes_nothing(monkeypatch, case):
    program, task = build(RELU_STACK, case), case.task()
    by_grid = FusedBackend().run(program, task)
    monkeypatch.setattr(look_up, "MOST_CELLS", 0)
    by_search = FusedBackend().run(program, task)
    assert distance(by_search.parameters, by_grid.parameters) <= 1e-13


@over(cases.FEW)
def test_running_tasks_in_groups_changes_nothing(monkeypatch, case):
    program, task = build(RELU_STACK, case), batch_of(case, n_tasks=5).task()
    together = FusedBackend().run(program, task, RunOptions(("y",)))
    monkeypatch.setattr(fused, "NUMBERS_AT_ONCE", 60)
    in_groups = FusedBackend().run(program, task, RunOptions(("y",)))
    assert in_groups.parameters.shape == together.parameters.shape
    assert distance(in_groups.parameters, together.parameters) <= 1e-13
    assert distance(in_groups.predictions, together.predictions) <= 1e-13
    assert distance(in_groups.trace["y"], together.trace["y"]) <= 1e-13


def test_progress_over_groups_counts_the_steps_of_all_groups(monkeypatch):
    case, calls = cases.FEW[0], []
    task = batch_of(case, n_tasks=2).task()
    monkeypatch.setattr(fused, "NUMBERS_AT_ONCE", 1)
    program = build(RELU_STACK, case, n_steps=2)
    FusedBackend().run(program, task, RunOptions(on_progress=lambda *call: calls.append(call)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


CASE = next(case for case in cases.FEW if case.name == "tanh-2-3-3-3-2-squared")

REMEMBERING = {
    "momentum": icgd.Problem(
        icgd.MLP((2, 3, 1), "relu"), "squared", icgd.MomentumStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    ),
    "linear momentum": icgd.Problem(
        icgd.LinearModel(2),
        "matching",
        icgd.ProximalStep(0.1, box=2.0, momentum=0.9),
        icgd.Domain(1.0, 1.0),
    ),
}
"""Problems whose steps take over more than the weights."""


class TestFusedStack(ExecutorContract):
    def task(self) -> Task:
        return CASE.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> FusedStack:
        return FusedStack(build(RELU_STACK, CASE, n_steps, pieces=16), task)


def test_an_earlier_step_is_found_again_bit_by_bit():
    """Weights change in place; those that were set aside lead to all steps since."""
    task = CASE.task()
    executor = FusedStack(build(RELU_STACK, CASE, pieces=16), task)
    rows = torch.empty(2 * STEPS_BETWEEN + 4, *task.initial.shape, dtype=torch.float64)
    for row in rows:
        executor.read(executor.step(), row)
    assert executor.at_hand(len(rows), len(rows)) == (2 * STEPS_BETWEEN, 2 * STEPS_BETWEEN)
    again = torch.empty_like(task.initial)
    for step in (2 * STEPS_BETWEEN, len(rows) - 1, len(rows)):
        executor.read(step, again)
        assert torch.equal(again, rows[step - 1])


@pytest.mark.parametrize("name", ["momentum", "linear momentum"])
def test_what_a_step_takes_over_is_set_aside_too(name):
    """What an optimiser remembers, also where it is not among the parameters."""
    problem = REMEMBERING[name]
    compiled = icgd.compile(problem, n_steps=STEPS_BETWEEN + 3)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    task = compiled.task(x, x[:, :1])
    executor = FusedStack(compiled.program, task)
    found, again = torch.empty(2, *task.initial.shape, dtype=torch.float64)
    for _ in range(STEPS_BETWEEN + 2):
        reached = executor.step()
    executor.read(reached, found)
    executor.step()
    executor.read(reached, again)
    assert torch.equal(again, found)
