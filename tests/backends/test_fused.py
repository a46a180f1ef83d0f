"""The fused backend: the contract, and agreement with the dense one to the last digits."""

import torch

from icgd.backends import fused, look_up
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.run import Run, RunOptions
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
