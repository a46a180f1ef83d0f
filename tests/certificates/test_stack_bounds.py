import torch

import icgd
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.prompt import encode, read_parameters
from icgd.backends.run import RunOptions
from icgd.certificates import stack_bounds, streams
from icgd.certificates.bounds import apart_by
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.stack_bounds import StackBounds
from icgd.constructions.registry import construction_named
from icgd.problems.domain import Domain
from icgd.problems.mlp import MLP
from icgd.program.layout import Role
from icgd.weights.lowering import lower_program
from tests.cases import batch_of, build, exact_step, make_case, tasks_of

CASE = make_case(MLP((3, 4, 4, 2), "tanh"), "squared")
PROGRAM = build(construction_named("relu-stack"), CASE, n_steps=4, pieces=32)
HOW = Arithmetic.of(torch.float64, n_tokens=7, backend="fused")


def bounds_of(task):
    history = FusedBackend().run(PROGRAM, task).parameters
    real = CASE.problem.oracle.train(task, 4)
    bounds = StackBounds(CASE.problem, PROGRAM, HOW).run(task, history, real)
    return bounds.steps, bounds.trajectory


def test_a_batch_gets_the_bounds_of_its_tasks():
    batch = batch_of(CASE, 3).task()
    together = bounds_of(batch)
    for number, task in enumerate(tasks_of(batch)):
        for ours, alone in zip(together, bounds_of(task), strict=True):
            torch.testing.assert_close(ours[number], alone, rtol=1e-9, atol=0)


def test_steps_bounded_in_groups_equal_steps_bounded_at_once(monkeypatch):
    at_once, _ = bounds_of(CASE.task())
    monkeypatch.setattr(stack_bounds, "NUMBERS_AT_ONCE", 1)
    in_groups, _ = bounds_of(CASE.task())
    assert at_once.shape == (4,)
    torch.testing.assert_close(in_groups, at_once, rtol=1e-9, atol=0)


def test_the_first_step_of_a_trajectory_is_a_single_step_and_later_ones_carry_its_error():
    stepwise, trajectory = bounds_of(CASE.task())
    torch.testing.assert_close(trajectory[0], stepwise[0], rtol=1e-9, atol=0)
    assert (trajectory[1:] > trajectory[:-1]).all()
    assert (trajectory[1:] > stepwise[1:]).all()


NARROW = make_case(MLP((2, 3, 2), "tanh"), "squared", box=0.5, domain=Domain(1.0, 2.0))
SOFTMAX = build(construction_named("softmax-stack"), NARROW, n_steps=5)
DENSE = Arithmetic.of(torch.float64, n_tokens=7, backend="dense")
SOFTMAX_BOUNDS = StackBounds(NARROW.problem, SOFTMAX, DENSE)


def bound_of_a_step(weights: torch.Tensor, drift: torch.Tensor):
    task = NARROW.task()
    x, y, start = (Interval.point(part) for part in (task.x, task.y, weights))
    return SOFTMAX_BOUNDS.after_block({"x": x, "y": y}, Enclosure.common(start), drift)


def grid_copies(stream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of the grid registers, and their copies of all weights."""
    layout = SOFTMAX.layout
    scales = stream[1 : SOFTMAX.n_registers, layout.range_of("scale")]
    slots = [layout.range_of(slot.name) for slot in layout.having(Role.PARAMETER)]
    return scales, stream[1 : SOFTMAX.n_registers, slots[0].start : slots[-1].stop]


def test_a_step_from_copies_that_lie_apart_stays_within_the_bound_for_their_drift():
    task, drift = NARROW.task(), 1e-7
    stream = encode(SOFTMAX, task)
    scales, copies = grid_copies(stream)
    generator = torch.Generator().manual_seed(0)
    copies += drift * scales * torch.randint(0, 2, copies.shape, generator=generator).mul(2).sub(1)
    for layer in lower_program(SOFTMAX).block:
        stream = layer(stream)
    after = read_parameters(SOFTMAX.layout, stream)
    missed = (after - exact_step(NARROW.problem, task.initial, task.x, task.y)).abs().max()
    apart, together = (
        bound_of_a_step(task.initial, torch.full_like(task.initial, size)).error.max()
        for size in (drift, 0.0)
    )
    assert 100 * together < missed <= apart < 100 * missed


def test_copies_drift_apart_by_no_more_than_is_proved():
    task = NARROW.task()
    names = tuple(slot.name for slot in SOFTMAX.layout.having(Role.PARAMETER))
    run = DenseBackend().run(SOFTMAX, task, RunOptions(("scale", *names)))
    drift, n_layers, grid = torch.zeros_like(task.initial), len(SOFTMAX.block), SOFTMAX.n_registers
    for step in range(1, 6):
        drift = bound_of_a_step(run.parameters[step - 1], drift).drift
        copies = torch.cat([run.trace[name][step * n_layers] for name in names], -1)[1:grid]
        scales = run.trace["scale"][0][1:grid]
        gap = (copies - scales * run.parameters[step]).abs()
        assert (gap <= scales.abs() * drift).all()
        assert (drift <= 3e-12 * step).all()
        assert drift.min() > 0


def test_only_bounds_of_the_dense_transformer_grow_with_the_drift_of_earlier_steps():
    task = NARROW.task()
    standing_still = task.initial.expand(4, -1)
    dense, fused = (
        StackBounds(NARROW.problem, SOFTMAX, how).steps(task, standing_still)
        for how in (DENSE, HOW)
    )
    assert (dense[1:] > dense[:-1]).all()
    assert fused.unique().numel() == 1


def test_the_trajectory_of_a_dense_transformer_is_bounded_with_the_drift_of_its_copies(monkeypatch):
    task = NARROW.task()
    real = NARROW.problem.oracle.train(task, 5)
    bounds = SOFTMAX_BOUNDS.run(task, real, real).trajectory
    run = DenseBackend().run(SOFTMAX, task)
    errors = (run.parameters - real).abs().amax(-1)[1:]
    assert (errors <= bounds).all()
    stepwise = SOFTMAX_BOUNDS.steps(task, run.parameters)
    torch.testing.assert_close(bounds[0], stepwise[0], rtol=1e-9, atol=0)
    assert (bounds[1:] > stepwise[1:]).all()
    assert bounds.max() <= 1e-10
    monkeypatch.setattr(streams, "apart_by", lambda distance: apart_by(0 * distance))
    without_drift = SOFTMAX_BOUNDS.run(task, real, real).trajectory
    assert bounds[0] == without_drift[0]
    assert (bounds[1:] > without_drift[1:]).all()


def test_a_run_that_is_lost_is_still_followed():
    """A clip by ReLUs overshoots by the rounding of what it clips: far, after a long step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    step = icgd.GradientStep((30.0,) * 12 + (1e17,) * 3, box=1.0)
    network, domain = icgd.MLP((2, 3, 1), "tanh"), icgd.Domain(x=1.0, y=1.0)
    problem = icgd.Problem(network, "squared", step, domain)
    run = icgd.compile(problem, icgd.ReluStack(pieces=4), n_steps=15)
    report = icgd.verify(run, x, x.sin().mean(1), seed=0, backend="dense")
    assert bool((report.trajectory_errors <= report.trajectory_bounds).all())
