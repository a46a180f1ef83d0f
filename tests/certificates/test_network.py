"""Bounds of stacks that train a network: of runs, of all tasks, of long runs."""

from dataclasses import replace
from math import exp, inf, isclose, sqrt

import pytest
import torch
from torch import Tensor

import icgd
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.prompt import encode, read_parameters
from icgd.backends.run import RunOptions
from icgd.certificates import network
from icgd.certificates.enclosures import Arithmetic, Enclosure, Interval
from icgd.certificates.network import (
    Ends,
    StackBounds,
    StateBound,
    Trained,
    Weights,
    _reach_and_drift,
    after_steps,
    closed_form_step,
    smallest_kept_share,
    step_lipschitz,
    table_step,
)
from icgd.choice import construction_named
from icgd.errors import ProgramError
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.program.layout import Role
from icgd.program.network_instructions import Recombine
from icgd.weights.lowering import lower_program
from tests.bare_oracles import on_network
from tests.cases import batch_of, build, exact_step, make_case, tasks_of

# Steps of a run.


CASE = make_case(MLP((3, 4, 4, 2), "tanh"), "squared")
PROGRAM = build(construction_named("relu-stack"), CASE, n_steps=4, pieces=32)
HOW = Arithmetic.of(torch.float64, n_tokens=7, backend="fused")


def bounds_of(task, on_progress=None):
    history = FusedBackend().run(PROGRAM, task).parameters
    return StackBounds(CASE.problem, PROGRAM, HOW).steps(task, history, on_progress)


def test_a_batch_gets_the_bounds_of_its_tasks():
    batch = batch_of(CASE, 3).task()
    together = bounds_of(batch)
    for number, task in enumerate(tasks_of(batch)):
        torch.testing.assert_close(together[number], bounds_of(task), rtol=1e-9, atol=0)


def test_steps_bounded_in_groups_equal_steps_bounded_at_once(monkeypatch):
    at_once, calls = bounds_of(CASE.task()), []
    monkeypatch.setattr(network, "NUMBERS_AT_ONCE", 1)
    in_groups = bounds_of(CASE.task(), lambda *call: calls.append(call))
    assert at_once.shape == (4,)
    torch.testing.assert_close(in_groups, at_once, rtol=1e-9, atol=0)
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


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
        StackBounds(NARROW.problem, SOFTMAX, arithmetic).steps(task, standing_still)
        for arithmetic in (DENSE, HOW)
    )
    assert (dense[1:] > dense[:-1]).all()
    assert fused.unique().numel() == 1


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


# Every task of the domain.


OF_FUSED = Arithmetic.of(torch.float64, n_tokens=8, backend="fused")
OF_DENSE = Arithmetic.of(torch.float64, n_tokens=8, backend="dense")


def small_network(pieces: int = 64, activation: str = "tanh", n_steps: int = 3) -> icgd.Compiled:
    problem = icgd.Problem(
        target=icgd.MLP((2, 3, 1), activation),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=1.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, "relu-stack", n_steps=n_steps, pieces=pieces)


def bound(**settings):
    run = small_network(**settings)
    return StackBounds(run.problem, run.program, OF_FUSED).domain()


def test_it_falls_with_the_square_of_the_number_of_pieces():
    assert bound(pieces=32).step / bound(pieces=128).step == pytest.approx(16, rel=0.2)


def test_the_trajectory_bound_grows_with_the_steps_and_stops_at_the_width_of_the_box():
    one, three, many = (bound(n_steps=n).trajectory for n in (1, 3, 50))
    assert bound(n_steps=1).step == one < three < many == pytest.approx(2.0)


def test_a_linear_network_has_only_rounding():
    assert 0 < bound(activation="identity").step < 1e-12


def test_a_step_function_makes_it_as_large_as_the_gradient_itself():
    assert bound(activation="relu").step > 0.01


def test_weights_at_the_corners_of_the_box_stay_within_it():
    run = small_network(pieces=8)
    limit = StackBounds(run.problem, run.program, OF_FUSED).domain().step
    x, y, initial = corners(n_tasks=50)
    report = icgd.verify(run, x, y, initial=initial)
    assert report.step_errors.shape == (50, 3)
    assert float(report.step_errors.max()) <= limit


def corners(n_tasks: int) -> list[torch.Tensor]:
    """Inputs, labels and weights of which every entry is 1 or -1."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((n_tasks, 4, 2), (n_tasks, 4, 1), (n_tasks, 9))
    signs = [torch.randint(0, 2, shape, generator=generator) * 2 - 1 for shape in shapes]
    return [part.double() for part in signs]


AVERAGED = icgd.GradientStep(step_size=0.1, box=1.0, average=0.75)


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_averages_of_any_weights_in_the_box_stay_within_it(backend):
    problem = replace(small_network().problem, update=AVERAGED)
    run = icgd.compile(problem, "relu-stack", n_steps=3, pieces=8)
    certificate = run.certificate(backend=backend)
    x, y, initial = corners(n_tasks=20)
    start = torch.cat([initial, initial.roll(1, 0)], dim=-1)
    report = icgd.verify(run, x, y, initial=start, queries=x, backend=backend)
    assert report.step_errors.shape == (20, 3)
    assert float(report.step_errors.max()) <= certificate.domain_step < 0.1
    assert float(report.trajectory_errors.max()) <= certificate.domain_trajectory
    assert float(report.prediction_errors.max()) <= certificate.domain_predictions


def test_many_steps_with_an_average_have_two_different_ends():
    problem = replace(small_network().problem, update=AVERAGED)
    run = icgd.compile(problem, "relu-stack", n_steps=40)
    assert StackBounds(run.problem, run.program, OF_FUSED)._ends.numbers == (0, 39)


def softmax_stack(
    registers: int | None = None, n_steps: int = 3, step_size: float = 0.1, box: float = 0.5
):
    problem = icgd.Problem(
        target=icgd.MLP((2, 3, 1), "tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=step_size, box=box),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, n_steps=n_steps, construction="softmax-stack", registers=registers)


def test_it_falls_exponentially_with_the_number_of_registers():
    steps = [
        StackBounds(run.problem, run.program, OF_FUSED).domain().step
        for run in (softmax_stack(registers, box=1.0) for registers in (32, 36, 40, 44))
    ]
    for more, fewer in zip(steps[1:], steps[:-1], strict=True):
        assert more < fewer / 12


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("registers", [34, None])
def test_weights_at_the_corners_of_the_box_stay_within_it_in_softmax_stack(backend, registers):
    run = softmax_stack(registers)
    certificate = run.certificate(backend=backend)
    x, y, initial = corners(n_tasks=16)
    report = icgd.verify(run, x, y, initial=initial / 2, backend=backend)
    assert report.verdict.holds
    assert report.step_errors.max() <= certificate.domain_step
    assert certificate.domain_step <= (1e-7 if registers is None else 0.1)


def test_only_the_dense_transformer_drifts_with_the_number_of_steps():
    short, long = softmax_stack(n_steps=1), softmax_stack(n_steps=50)
    in_dense, in_fused = (
        [StackBounds(run.problem, run.program, arithmetic).domain().step for run in (short, long)]
        for arithmetic in (OF_DENSE, OF_FUSED)
    )
    assert in_fused[0] == in_fused[1]
    assert 5 * in_dense[0] < in_dense[1] < 1e-9


def test_a_drift_that_feeds_itself_has_no_bound():
    """Float32 and far steps: nothing but the box would be known, and not even that."""
    run = softmax_stack(n_steps=10, step_size=1e6)
    arithmetic = Arithmetic.of(torch.float32, n_tokens=8, backend="dense")
    assert StackBounds(run.problem, run.program, arithmetic).domain().step == inf


def test_weights_that_grow_a_little_with_their_reach_have_one():
    """A soft clip overshoots by its error, and its rounding by a share of what it clips."""

    def after_block(reach: float, error: float, drift: float) -> Weights:
        return Weights(
            torch.tensor([error]), torch.tensor([drift]), reach=1.04 + 0.05 * (reach - 1.0)
        )

    reach, _ = _reach_and_drift(after_block, box=1.0, n_steps=1, kept_share=1.0)
    assert 1.04 + 0.05 * (reach - 1.0) <= reach < 1.05


def test_no_steps_no_trajectory_error():
    program = replace(small_network().program, n_steps=0)
    assert StackBounds(small_network().problem, program, OF_FUSED).domain().trajectory == 0.0


@pytest.mark.parametrize(("dtype", "n_tokens"), [(torch.float32, 10**9), (torch.float64, 10**18)])
def test_a_prompt_too_long_for_any_rounding_bound_has_no_bound(dtype, n_tokens):
    arithmetic = Arithmetic.of(dtype, n_tokens, backend="dense")
    assert (
        StackBounds(small_network().problem, small_network().program, arithmetic).domain().step
        == inf
    )


def test_many_slow_steps_are_bounded_quickly_and_never_below_step_by_step():
    increase = lambda error: 1e-6 + 1e-4 * error  # noqa: E731
    exact = 0.0
    for _ in range(20_000):
        exact += increase(exact)
    calls = []
    bound = after_steps(lambda e: calls.append(e) or e + increase(e), 20_000, inf, inf)
    assert exact <= bound <= 1.2 * exact
    assert len(calls) < 1000


def test_more_steps_never_have_a_smaller_bound_though_a_clip_cuts_what_large_errors_gain():
    """From 1.9 on a step gains nothing, since two weights in the box are at most 2 apart."""
    counts = (1, 50, 99, 100, 101, 102, 150, 200, 300, 1000, 10_000)
    for growth in (0.01, 0.03, 0.3):

        def after(error: float, growth: float = growth) -> float:
            return min(error + 0.01 + growth * error, 2.0)

        exact = [0.0]
        for _ in range(counts[-1]):
            exact.append(after(exact[-1]))
        found = [after_steps(after, n, box=1.0, widest=2.0) for n in counts]
        assert found == sorted(found)
        assert all(bound >= exact[n] for bound, n in zip(found, counts, strict=True))
        assert found[-1] == 2.0


def test_the_trajectory_bound_of_a_program_never_falls_with_more_steps():
    run = small_network(activation="sigmoid")
    found = [
        StackBounds(run.problem, replace(run.program, n_steps=n), OF_FUSED).domain().trajectory
        for n in (1, 20, 60, 100, 101, 110, 150, 400)
    ]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(2.0)


def test_an_error_that_takes_too_long_to_follow_is_the_box():
    assert after_steps(lambda error: error + 1.0, 10**6, box=0.5, widest=1e9) == 1e9


def test_a_network_whose_bounds_overflow_has_an_infinite_one_not_a_broken_one():
    problem = icgd.Problem(
        target=icgd.MLP((4,) * 40, "tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=1e8),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    deep = icgd.compile(problem, "relu-stack", n_steps=1, pieces=4)
    certificate = deep.certificate()
    assert certificate.domain_step <= 2.001e8 or certificate.domain_step == inf
    assert certificate.paper_step == inf


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("n_steps", [90, 101, 150, 1000, 10**6])
def test_errors_that_decay_are_not_below_those_of_single_steps(kept, n_steps):
    """A step adds less to a larger error if it keeps less than all of it."""
    error = 0.0
    for _ in range(min(n_steps, 30_000)):
        error = kept * error + 1.0
    found = after_steps(lambda e: kept * e + 1.0, n_steps, box=1e9, widest=2e9, kept_share=kept)
    assert error * (1 - 1e-12) <= found <= 1.06 * error


def test_errors_that_decay_are_followed_to_where_they_end():
    """What else a step adds grows with the error, as the curvature of a loss makes it grow."""
    error, errors = 0.0, []
    for _ in range(3000):
        error = 0.9 * error + 1.0 + 0.05 * min(error, 15.0)
        errors.append(error)

    def after(e):
        return 0.9 * e + 1.0 + 0.05 * min(e, 15.0)

    for n_steps in (101, 130, 200, 3000):
        found = after_steps(after, n_steps, box=1e9, widest=2e9, kept_share=0.9)
        assert errors[n_steps - 1] <= found <= 1.06 * errors[n_steps - 1]


@pytest.mark.parametrize("kept", [1.0, 0.9])
def test_drifts_that_decay_are_not_below_those_of_single_steps(kept):
    def after_block(reach, error, drift):
        return Weights(torch.zeros(1), torch.tensor([kept * drift + 0.01 + 1e-4 * drift]), 1.0)

    drift = 0.0
    for _ in range(199):
        drift = kept * drift + 0.01 + 1e-4 * drift
    _, found = _reach_and_drift(after_block, box=100.0, n_steps=200, kept_share=kept)
    assert drift <= found <= 1.4 * drift


def decaying(n_steps: int, construction: str = "relu-stack") -> icgd.Compiled:
    step = icgd.MomentumStep(
        0.02, box=1.0, momentum=0.0, weight_decay=4.0, batch_size=BATCH[construction]
    )
    problem = icgd.Problem(icgd.MLP((1, 1)), "squared", step, icgd.Domain(x=1.0, y=1.0))
    return icgd.compile(problem, construction, n_steps=n_steps)


BATCH = {"relu-stack": None, "softmax-stack": None, "cot-network": 2}


@pytest.mark.parametrize("construction", BATCH)
def test_a_whole_run_with_weight_decay_is_bounded_no_lower_by_more_steps(construction):
    few, more, many = (
        decaying(n, construction).certificate().domain_trajectory for n in (100, 150, 1000)
    )
    assert 0 < few <= more <= many <= 1.06 * few


def test_a_whole_run_with_weight_decay_stays_within_its_bound():
    """A step is off by the same in every step of this run, the worst that a sigmoid is off."""
    reach, decay, size, n_steps = 0.01, 1.0, 0.08, 400
    x = sqrt(4.6 * decay * reach)
    step = icgd.MomentumStep(size, box=reach / x, momentum=0.0, weight_decay=decay)
    problem = icgd.Problem(icgd.MLP((1, 1)), "logistic", step, icgd.Domain(x=x, y=1.0))
    run = icgd.compile(problem, icgd.ReluStack(pieces=512), n_steps=n_steps)
    sigmoid = run.program.relu_sum("sigmoid")
    points = torch.linspace(0.0, reach, 401, dtype=torch.float64)
    off = torch.stack([torch.tensor(sigmoid(float(at))) for at in points]) - points.sigmoid()
    at = float(points[off.abs().argmax()])
    y = 2 * at * decay / x**2 + 1 / (1 + exp(-at))
    report = icgd.verify(run, [[x]], [y], initial=[at / x])
    largest = float(report.trajectory_errors.max())
    assert largest > 0.95 * report.certificate.domain_trajectory
    assert report.verdict.holds


# Updates that remember: by hand, and of runs from any state.


IS_STATE = torch.tensor([False, True])
ALL_KEPT = torch.ones(2, dtype=torch.float64)
GRADIENT, LOST, BOX = 2.0, 2.0**-20, 1.0


def by_hand(mu: float = 0.5, n_steps: int = 3, drift: float = 0.0) -> StateBound:
    """One weight w and its momentum m <- mu m + g, of which a step loses a little."""

    def after_step(before: Trained, step: int) -> Trained:
        kept = mu * before.sizes[1] + GRADIENT
        off = mu * before.error[1] + LOST
        apart = before.drift + drift
        return Trained(
            torch.stack([before.sizes[0].new_tensor(BOX), kept]),
            torch.stack([before.error[0] + 0.5 * off, off]),
            apart,
        )

    return StateBound(after_step, IS_STATE, ALL_KEPT, [0], n_steps)


@pytest.mark.parametrize("n_steps", [0, 1, 3, 20])
def test_sizes_are_the_sum_of_a_geometric_series(n_steps):
    found = []

    def after_step(before: Trained, step: int) -> Trained:
        found.append(float(before.sizes[1]))
        return by_hand().after_step(before, step)

    StateBound(after_step, IS_STATE, ALL_KEPT, [0], n_steps).domain(BOX)
    sums = [GRADIENT * (1 - 0.5**step) / (1 - 0.5) for step in range(n_steps)]
    assert found[:n_steps] == pytest.approx(sums)
    assert found[-1] == pytest.approx(sums[-1] if sums else 0.0)


@pytest.mark.parametrize("n_steps", [1, 3, 20])
def test_errors_are_those_of_a_run_step_by_step(n_steps):
    of_weight = of_momentum = 0.0
    for _ in range(n_steps):
        of_momentum = 0.5 * of_momentum + LOST
        of_weight += 0.5 * of_momentum
    bound = by_hand(n_steps=n_steps).domain(BOX)
    assert bound.step == pytest.approx(LOST)
    assert bound.trajectory == pytest.approx(max(of_weight, of_momentum))
    assert bound.reach == BOX


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9, 0.99])
def test_a_long_run_stays_below_the_whole_series(mu):
    bound = by_hand(mu, n_steps=10**6).domain(BOX)
    limit = GRADIENT / (1 - mu)
    assert 2 * limit <= bound.trajectory <= 2 * limit * 1.01
    assert bound.step == pytest.approx(LOST)


@pytest.mark.parametrize("mu", [1.0, 1.5])
def test_what_is_never_forgotten_has_a_bound_for_a_short_run_only(mu):
    assert by_hand(mu, n_steps=100).domain(BOX).step == pytest.approx(LOST)
    long = by_hand(mu, n_steps=101).domain(BOX)
    assert (long.step, long.trajectory) == (inf, inf)


def test_copies_drift_apart_with_every_step():
    assert by_hand(n_steps=7, drift=2.0**-40).domain(BOX).drift == pytest.approx(7 * 2.0**-40)
    long = by_hand(n_steps=1000, drift=2.0**-40).domain(BOX).drift
    assert 1000 * 2.0**-40 <= long <= 1.01 * 1001 * 2.0**-40


def test_a_number_that_is_none_is_no_proof():
    def after_step(before: Trained, step: int) -> Trained:
        return Trained(before.sizes, torch.full_like(before.error, torch.nan), before.drift)

    bound = StateBound(after_step, IS_STATE, ALL_KEPT, [0], 3).domain(BOX)
    assert (bound.step, bound.trajectory) == (inf, inf)


WITH_STATE = {
    "momentum": icgd.MomentumStep(0.1, 0.5),
    "nesterov": icgd.MomentumStep(0.1, 0.5, momentum=0.8, nesterov=True, weight_decay=0.2),
    "dampening": icgd.MomentumStep((0.3, 0.1, 0.2, 0.1), 0.5, dampening=0.5, average=0.75),
    "batches": icgd.MomentumStep(0.2, 0.5, 2, momentum=0.5, gradient_scale=2.0),
}
N_STEPS, N_TASKS = 4, 40


def remembering(name: str, construction: str) -> icgd.Compiled:
    settings = {"pieces": 8} if construction == "relu-stack" else {"registers": 34}
    target, domain = icgd.MLP((2, 3, 1), "tanh", biases=True), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(target, "squared", WITH_STATE[name], domain)
    return icgd.compile(problem, construction, n_steps=N_STEPS, **settings)


def any_corners(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 2, shape, generator=generator) * 2 - 1).double()


def examples(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return any_corners(N_TASKS, 3, 2, seed=seed), any_corners(N_TASKS, 3, 1, seed=seed + 1)


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("name", WITH_STATE)
def test_runs_from_the_corners_stay_within_what_is_proved(name, construction, backend):
    run, (x, y) = remembering(name, construction), examples()
    initial = 0.5 * any_corners(N_TASKS, run.problem.network.n_parameters, seed=2)
    report = icgd.verify(run, x, y, initial=initial, queries=x, backend=backend)
    proved = report.certificate
    assert report.verdict.holds
    assert 0 < float(report.step_errors.max()) <= proved.domain_step < 1.0
    assert float(report.trajectory_errors.max()) <= proved.domain_trajectory < inf
    assert float(report.prediction_errors.max()) <= proved.domain_predictions


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("name", WITH_STATE)
def test_one_step_from_any_state_stays_within_what_is_proved(name, construction):
    """The largest state that the bounds allow before the last step, of any sign, in one step."""
    run, (x, y) = remembering(name, construction), examples(seed=7)
    arithmetic = Arithmetic.of(torch.float64, n_tokens=3, backend="fused")
    bounds = StackBounds(run.problem, run.program, arithmetic)._state_bound
    seen = []
    followed = StateBound(
        lambda before, step: seen.append(before.sizes) or bounds.after_step(before, step),
        bounds.is_state,
        bounds.kept_share,
        bounds.ends,
        N_STEPS,
    )
    proved = followed.domain(0.5)
    largest = seen[N_STEPS - 1].squeeze()
    start = largest * any_corners(N_TASKS, len(largest), seed=8)
    start = torch.where(bounds.is_state, start, start.clamp(-0.5, 0.5))
    task = run.task(x, y, initial=start)
    history = run.run_task(task).parameters
    errors = (history[:, 1:] - run.problem.oracle.stepped(task, history)).abs().amax(-1)
    assert float(start[:, bounds.is_state].abs().max()) > 0.5
    assert 0 < float(errors[:, 0].max()) <= proved.step


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_the_momentum_of_real_runs_stays_below_its_bound(construction):
    run, (x, y) = remembering("momentum", construction), examples()
    initial = 0.5 * any_corners(N_TASKS, run.problem.network.n_parameters, seed=2)
    history = run.run(x, y, initial=initial).parameters
    arithmetic = Arithmetic.of(torch.float64, n_tokens=3, backend="fused")
    bounds, sizes = StackBounds(run.problem, run.program, arithmetic)._state_bound, []
    StateBound(
        lambda before, step: sizes.append(before.sizes) or bounds.after_step(before, step),
        bounds.is_state,
        bounds.kept_share,
        bounds.ends,
        N_STEPS,
    ).domain(0.5)
    for step in range(N_STEPS):
        measured = history[:, step, bounds.is_state].abs().amax(0)
        assert (measured <= sizes[step].squeeze()[bounds.is_state]).all()


def test_a_long_run_has_a_bound_on_every_step(monkeypatch):
    monkeypatch.setattr(network, "MOST_FOLLOWED", 30)
    problem = remembering("momentum", "relu-stack").problem
    short, long = (
        icgd.compile(problem, "relu-stack", n_steps=n, pieces=8).certificate() for n in (30, 300)
    )
    assert short.domain_step <= long.domain_step < 1.01 * short.domain_step
    assert long.says_nothing(long.domain_trajectory)


def test_a_run_that_begins_with_momentum_is_left_out():
    run, (x, y) = remembering("momentum", "relu-stack"), examples()
    assert run.certificate().condition == "of runs whose momentum is 0 at the start"
    n_weights = run.problem.network.n_parameters
    start = torch.cat([torch.zeros(n_weights), torch.full((n_weights,), 1e3)]).double()
    report = icgd.verify(run, x[0], y[0], initial=start)
    assert report.certificate.domain_step == inf
    assert report.empty == ("domain_step", "domain_trajectory")
    assert report.verdict is icgd.Verdict.HOLDS
    fresh = icgd.verify(run, x[0], y[0], initial=start[:n_weights])
    assert fresh.certificate.domain_step < inf


def test_what_divides_by_a_root_has_none():
    target, domain = icgd.MLP((2, 3, 1), "tanh"), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(target, "squared", icgd.AdamStep(0.1, 0.5), domain)
    certificate = icgd.compile(problem, "relu-stack", n_steps=2).certificate()
    assert (certificate.domain_step, certificate.widest) == (inf, inf)
    assert certificate.condition is None


def test_drifts_of_which_a_step_keeps_a_part_grow_more_before_they_are_large():
    """The first 100 steps add 1 each; later ones keep 0.9 of the drift and add 16."""

    def drift_after(drift, step):
        return drift + 1.0 if step < 100 else 0.9 * drift + 16.0

    def after_step(before: Trained, step: int) -> Trained:
        return Trained(before.sizes, before.error, drift_after(before.drift, step))

    kept = torch.tensor([0.9], dtype=torch.float64)
    ends = [99, *range(100, 150)]
    found = StateBound(after_step, torch.tensor([False]), kept, ends, 150).domain(1.0)
    drift = 0.0
    for step in range(150):
        drift = drift_after(drift, step)
    assert drift <= found.drift <= 1.1 * drift


# Steps of a schedule.


def with_schedule(update, n_steps, construction="relu-stack", activation="tanh", **domain):
    network = icgd.MLP((2, 2, 1), activation, "identity", biases=bool(update.groups))
    bounds = icgd.Domain(**{"x": 1.0, "y": 1.0, **domain})
    problem = icgd.Problem(network, "squared", update, bounds)
    return icgd.compile(problem, construction, n_steps=n_steps)


def cosine(n_steps):
    turns = torch.linspace(0.0, torch.pi, n_steps, dtype=torch.float64)
    return tuple((0.2 + 0.1 * turns.cos()).tolist())


N = 12

UPDATES = [
    icgd.GradientStep(cosine(N), box=1.0),
    icgd.GradientStep(cosine(N), box=1.0, average=0.9),
    icgd.MomentumStep(cosine(N), box=1.0, momentum=0.5, dampening=0.2, weight_decay=0.1),
    icgd.MomentumStep(cosine(N), box=1.0, momentum=0.0, weight_decay=0.1),
    icgd.MomentumStep(
        cosine(N),
        box=1.0,
        momentum=0.5,
        weight_decay=0.1,
        groups={"bias_1": {"weight_decay": 0.0}, "weights_2": {"step_size": (0.1,) * N}},
    ),
]


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("update", UPDATES)
def test_a_span_is_no_smaller_than_the_largest_of_its_ends_and_not_much_larger(
    update, construction, monkeypatch
):
    run = with_schedule(update, N, construction)
    found = run.certificate()
    assert len(Ends.of(run.stack.schedule).numbers) < N
    monkeypatch.setattr(network, "FEW", N)
    of_all = run.certificate()
    assert len(Ends.of(run.stack.schedule).numbers) == N
    for name in ("domain_step", "domain_trajectory"):
        assert getattr(of_all, name) <= getattr(found, name) <= 1.2 * getattr(of_all, name)


def test_a_span_covers_steps_between_a_small_one_and_one_that_fills_the_box(monkeypatch):
    """Where gradients have one sign, a huge step is exact: it takes every weight to its end."""
    sizes = (0.01, *(2.0**k for k in range(-5, 8)), 1e9)
    run = with_schedule(
        icgd.GradientStep(sizes, box=1.0), len(sizes), y=1e-6, activation="softplus"
    )
    found = run.certificate().domain_step
    for step in range(len(sizes)):
        alone = replace(run.stack, schedule=run.stack.schedule[step : step + 1], n_steps=1)
        alone = replace(alone, block=(*run.stack.common, *run.stack.schedule[step]))
        update = replace(run.problem.update, step_size=sizes[step])
        problem = replace(run.problem, update=update)
        assert icgd.Compiled(problem, alone).certificate().domain_step <= found


def test_the_least_share_of_a_weight_that_is_kept_is_that_of_all_groups():
    groups = {"bias_1": {"weight_decay": 0.0}, "weights_2": {"weight_decay": 0.5}}
    update = icgd.MomentumStep(0.25, 1.0, momentum=0.0, weight_decay=0.1, groups=groups)
    assert smallest_kept_share(update, N) == pytest.approx(1 - 0.25 * 0.5)
    assert smallest_kept_share(
        replace(update, groups={"bias_1": groups["bias_1"]}), N
    ) == pytest.approx(1 - 0.25 * 0.1)


def test_few_ends_are_looked_at_one_by_one():
    sizes = (0.1, 0.2, 0.1, 0.3)
    schedule = with_schedule(icgd.GradientStep(sizes, box=1.0), 4).stack.schedule
    assert Ends.of(schedule) == Ends(schedule, (2, 1, 3))
    assert Ends.of(()).numbers == (0,)


def test_one_end_of_many_has_all_of_their_coefficients():
    schedule = with_schedule(icgd.GradientStep(cosine(N), box=1.0), N).stack.schedule
    found = Ends.of(schedule)
    assert found.numbers == (N,)
    assert found.layers[:N] == schedule
    sums = [part for part in found.layers[N][-1].instructions if isinstance(part, Recombine)]
    terms = dict(sums[0].assignments[0].value.terms())
    assert list(terms["gradient_1"]) == pytest.approx([-size for size in cosine(N)])
    assert terms["weights_1"] == 1.0


def test_ends_that_differ_in_more_than_coefficients_are_not_joined():
    schedule = with_schedule(icgd.GradientStep(cosine(N), box=1.0), N).stack.schedule
    longer = [(*end, replace(end[-1], instructions=())) for end in schedule]
    assert Ends.of([*schedule, *longer]).numbers == (2 * N, 2 * N + 1)


def test_multiples_within_a_range():
    interval = Interval(*torch.tensor([[-1.0, 2.0], [3.0, 4.0]], dtype=torch.float64).unbind())
    found = interval.times_within(-2.0, 0.5)
    for factor in (-2.0, -0.3, 0.0, 0.5):
        some = interval.times(factor)
        assert bool((found.low <= some.low).all() and (some.high <= found.high).all())
    assert found.low.tolist() == pytest.approx([-6.0, -8.0])
    assert found.high.tolist() == pytest.approx([2.0, 2.0])
    assert torch.equal(interval.times_within(0.5, 0.5).low, interval.times(0.5).low)


# Bound (c), by hand and against sampled slopes.


# Networks.


OF_CLOSED_FORM = Arithmetic.of(torch.float64, n_tokens=8, backend="fused")


def compiled(widths=(2, 3, 1), activation="tanh", box=1.0) -> icgd.Compiled:
    problem = icgd.Problem(
        target=icgd.MLP(widths, activation, "identity"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.5, box=box),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, "relu-stack", n_steps=1, pieces=32)


def test_depth_one_by_hand():
    """N = 1, K = 4, P = 2, exact identity: every error term vanishes."""
    run = compiled(widths=(4, 1))
    assert closed_form_step(run.program, run.problem) == 0.0


def test_depth_two_by_hand():
    run = compiled(widths=(2, 4, 1))
    eps, slope_eps = (run.program.relu_sum(name).error for name in ("tanh", "tanh'"))
    norm, vector = 2.0, 2.0
    forward = norm * (1 + norm * vector * 1.0)
    output = 4.0 * 1.0 * (torch.tanh(torch.tensor(4.0).double()).item() + eps)
    loss = 2 * (output + 1.0)
    slope = 1.0 + slope_eps
    largest_curve = 4 / (3 * sqrt(3))  # max |tanh''|
    d_slope = slope_eps + largest_curve * vector * forward * eps
    d_loss = 2.0 * forward * eps
    ratio = slope * vector * norm
    delta = ratio * slope * loss
    d_delta = d_slope * norm * vector * delta + ratio * (loss * d_slope + slope * d_loss)
    inputs = max(1.0, torch.tanh(torch.tensor(4.0).double()).item() + eps)
    expected = 0.5 * 2 / 2 * norm * (d_delta * norm * inputs + delta * forward * eps)
    assert closed_form_step(run.program, run.problem) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("widths", [(2, 3, 1), (3, 4, 4, 2), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "softplus"])
def test_it_is_never_below_the_propagated_bound(widths, activation):
    run = compiled(widths, activation)
    propagated = StackBounds(run.problem, run.program, OF_CLOSED_FORM).domain().step
    assert StackBounds(run.problem, run.program, OF_CLOSED_FORM).paper_step() >= propagated


def test_rounding_is_part_of_it():
    run = compiled(activation="identity")
    assert closed_form_step(run.program, run.problem) == 0.0
    assert 0 < StackBounds(run.problem, run.program, OF_CLOSED_FORM).paper_step() < 1e-12


def test_there_is_none_for_look_ups():
    problem = compiled().problem
    run = icgd.compile(problem, n_steps=1, construction="softmax-stack", registers=40)
    assert StackBounds(run.problem, run.program, OF_CLOSED_FORM).paper_step() is None
    assert run.certificate().paper_step is None


def test_there_is_none_for_shortcuts_norms_and_rates():
    update, plain = icgd.GradientStep(0.1, box=1.0), icgd.MLP((2, 2), "relu")
    rated = icgd.Domain(1.0, 1.0, rate=1.0)
    cases = [
        (plain, icgd.Domain(1.0, 1.0), True),
        (plain, rated, False),
        (icgd.MLP((2, 2), "relu", shortcuts=((0, 1),)), icgd.Domain(1.0, 1.0), False),
        (icgd.MLP((2, 2), "relu", norms=(1,)), icgd.Domain(1.0, 1.0), False),
    ]
    for target, domain, is_known in cases:
        problem = icgd.Problem(target, "squared", update, domain)
        certificate = icgd.compile(problem, "relu-stack", n_steps=1).certificate()
        assert (certificate.paper_step is not None) == is_known


# Tables of whole steps.


DOMAIN = icgd.Domain(2.0, 1.0)


def problem(output: str = "identity", loss: str = "squared") -> icgd.Problem:
    target = icgd.MLP((1, 1), output_activation=output)
    return icgd.Problem(target, loss, icgd.GradientStep(0.7, 1.5), DOMAIN)


def sampled_lipschitz(problem: icgd.Problem, n: int) -> float:
    """Largest slope of a step at random points: of the data, and of the weight in n copies."""
    generator = torch.Generator().manual_seed(0)

    def anywhere(bound: float, *shape: int) -> Tensor:
        share = 2 * torch.rand(20_000, *shape, generator=generator, dtype=torch.float64) - 1
        return (bound * share).requires_grad_()

    x, y, w = anywhere(DOMAIN.x, n, 1), anywhere(DOMAIN.y, n, 1), anywhere(1.5, 1)
    step = w - 0.7 * on_network.gradient(problem, w, x, y)
    by_x, by_y, by_w = torch.autograd.grad(step.sum(), (x, y, w))
    squares = by_x.square().sum((-2, -1)) + by_y.square().sum((-2, -1))
    return float((squares + by_w.square().sum(-1) / n).max().sqrt())


@pytest.mark.parametrize("output", ["identity", "tanh", "sigmoid", "softplus", "gelu", "silu"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_the_lipschitz_constant_bounds_every_slope_and_is_not_far_above(output, loss):
    sampled = sampled_lipschitz(problem(output, loss), 2)
    proved = step_lipschitz(problem(output, loss), 2)
    assert sampled <= proved <= 1.6 * sampled


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_lipschitz_constant_of_least_squares_is_known(n):
    """f = 2 (w x - y) x at a corner: f_x = 4 w x - 2 y = 14, f_y = -2 x = -4, f_w = 2 x^2 = 8."""
    expected = sqrt(n * (0.7 / (2 * n)) ** 2 * (14**2 + 4**2) + (1 - 0.7 * 8 / 2) ** 2 / n)
    assert isclose(step_lipschitz(problem(), n), expected, rel_tol=1e-9)


@pytest.mark.parametrize(("levels", "n"), [(2, 2), (3, 2), (2, 3)])
def test_the_bound_is_that_of_the_lemma(levels, n):
    compiled = icgd.compile(
        problem(), n_steps=1, construction="universal", levels=levels, n_examples=n
    )
    expected = step_lipschitz(problem(), n) * (8 * sqrt(3 * n) + sqrt(n)) * 4.0 / (2 * levels)
    assert isclose(table_step(compiled.program, problem()), expected)
    proved = compiled.certificate().paper_step
    assert proved is not None
    assert expected < proved < expected + 1e-6  # and rounding


def test_a_program_without_a_table_has_no_such_bound():
    case = make_case(icgd.MLP((1, 1)), "squared")
    program = icgd.compile(case.problem, "relu-stack", n_steps=1).program
    with pytest.raises(ProgramError) as caught:
        table_step(program, case.problem)
    assert "relu-stack program has no table of steps" in str(caught.value)
