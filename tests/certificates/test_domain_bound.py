from dataclasses import replace
from math import exp, inf, sqrt

import pytest
import torch

import icgd
from icgd.certificates.domain_bound import Weights, _reach_and_drift, after_steps
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.stack_bounds import StackBounds

HOW = Arithmetic.of(torch.float64, n_tokens=8, backend="fused")
DENSE = Arithmetic.of(torch.float64, n_tokens=8, backend="dense")


def compiled(pieces: int = 64, activation: str = "tanh", n_steps: int = 3) -> icgd.Compiled:
    problem = icgd.Problem(
        target=icgd.MLP((2, 3, 1), activation),
        loss="squared",
        update=icgd.GradientStep(step_size=0.1, box=1.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, "relu-stack", n_steps=n_steps, pieces=pieces)


def bound(**settings):
    run = compiled(**settings)
    return StackBounds(run.problem, run.program, HOW).domain()


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
    run = compiled(pieces=8)
    limit = StackBounds(run.problem, run.program, HOW).domain().step
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
    problem = replace(compiled().problem, update=AVERAGED)
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
    problem = replace(compiled().problem, update=AVERAGED)
    run = icgd.compile(problem, "relu-stack", n_steps=40)
    assert StackBounds(run.problem, run.program, HOW)._ends.numbers == (0, 39)


def softmax_stack(registers: int | None = None, n_steps: int = 3, step_size: float = 0.1):
    problem = icgd.Problem(
        target=icgd.MLP((2, 3, 1), "tanh"),
        loss="squared",
        update=icgd.GradientStep(step_size=step_size, box=0.5),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    return icgd.compile(problem, n_steps=n_steps, construction="softmax-stack", registers=registers)


def test_it_falls_exponentially_with_the_number_of_registers():
    steps = [
        StackBounds(run.problem, run.program, HOW).domain().step
        for run in map(softmax_stack, (32, 36, 40, 44))
    ]
    for more, fewer in zip(steps[1:], steps[:-1], strict=True):
        assert more < fewer / 15


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
        [StackBounds(run.problem, run.program, how).domain().step for run in (short, long)]
        for how in (DENSE, HOW)
    )
    assert in_fused[0] == in_fused[1]
    assert 5 * in_dense[0] < in_dense[1] < 1e-9


def test_a_drift_that_feeds_itself_has_no_bound():
    """Float32 and far steps: nothing but the box would be known, and not even that."""
    run = softmax_stack(n_steps=10, step_size=1e6)
    how = Arithmetic.of(torch.float32, n_tokens=8, backend="dense")
    assert StackBounds(run.problem, run.program, how).domain().step == inf


def test_weights_that_grow_a_little_with_their_reach_have_one():
    """A soft clip overshoots by its error, and its rounding by a share of what it clips."""

    def after_block(reach: float, error: float, drift: float) -> Weights:
        return Weights(
            torch.tensor([error]), torch.tensor([drift]), size=1.04 + 0.05 * (reach - 1.0)
        )

    reach, _ = _reach_and_drift(after_block, box=1.0, n_steps=1, kept=1.0)
    assert 1.04 + 0.05 * (reach - 1.0) <= reach < 1.05


def test_no_steps_no_trajectory_error():
    program = replace(compiled().program, n_steps=0)
    assert StackBounds(compiled().problem, program, HOW).domain().trajectory == 0.0


@pytest.mark.parametrize(("dtype", "n_tokens"), [(torch.float32, 10**9), (torch.float64, 10**18)])
def test_a_prompt_too_long_for_any_rounding_bound_has_no_bound(dtype, n_tokens):
    how = Arithmetic.of(dtype, n_tokens, backend="dense")
    assert StackBounds(compiled().problem, compiled().program, how).domain().step == inf


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
    run = compiled(activation="sigmoid")
    found = [
        StackBounds(run.problem, replace(run.program, n_steps=n), HOW).domain().trajectory
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
    found = after_steps(lambda e: kept * e + 1.0, n_steps, box=1e9, widest=2e9, kept=kept)
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
        found = after_steps(after, n_steps, box=1e9, widest=2e9, kept=0.9)
        assert errors[n_steps - 1] <= found <= 1.06 * errors[n_steps - 1]


@pytest.mark.parametrize("kept", [1.0, 0.9])
def test_drifts_that_decay_are_not_below_those_of_single_steps(kept):
    def after_block(reach, error, drift):
        return Weights(torch.zeros(1), torch.tensor([kept * drift + 0.01 + 1e-4 * drift]), 1.0)

    drift = 0.0
    for _ in range(199):
        drift = kept * drift + 0.01 + 1e-4 * drift
    _, found = _reach_and_drift(after_block, box=100.0, n_steps=200, kept=kept)
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
