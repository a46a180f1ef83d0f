"""Bounds for every task of updates that remember: by hand, and of runs from any state."""

from math import inf

import pytest
import torch

import icgd
from icgd.certificates import state_bound
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.stack_bounds import StackBounds
from icgd.certificates.state_bound import StateBound, Trained

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


UPDATES = {
    "momentum": icgd.MomentumStep(0.1, 0.5),
    "nesterov": icgd.MomentumStep(0.1, 0.5, momentum=0.8, nesterov=True, weight_decay=0.2),
    "dampening": icgd.MomentumStep((0.3, 0.1, 0.2, 0.1), 0.5, dampening=0.5, average=0.75),
    "batches": icgd.MomentumStep(0.2, 0.5, 2, momentum=0.5, gradient_scale=2.0),
}
N_STEPS, N_TASKS = 4, 40


def compiled(name: str, construction: str) -> icgd.Compiled:
    settings = {"pieces": 8} if construction == "relu-stack" else {"registers": 34}
    target, domain = icgd.MLP((2, 3, 1), "tanh", biases=True), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(target, "squared", UPDATES[name], domain)
    return icgd.compile(problem, construction, n_steps=N_STEPS, **settings)


def corners(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 2, shape, generator=generator) * 2 - 1).double()


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return corners(N_TASKS, 3, 2, seed=seed), corners(N_TASKS, 3, 1, seed=seed + 1)


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("name", UPDATES)
def test_runs_from_the_corners_stay_within_what_is_proved(name, construction, backend):
    run, (x, y) = compiled(name, construction), data()
    initial = 0.5 * corners(N_TASKS, run.problem.network.n_parameters, seed=2)
    report = icgd.verify(run, x, y, initial=initial, queries=x, backend=backend)
    proved = report.certificate
    assert report.verdict.holds
    assert 0 < float(report.step_errors.max()) <= proved.domain_step < 1.0
    assert float(report.trajectory_errors.max()) <= proved.domain_trajectory < inf
    assert float(report.prediction_errors.max()) <= proved.domain_predictions


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("name", UPDATES)
def test_one_step_from_any_state_stays_within_what_is_proved(name, construction):
    """The largest state that the bounds allow before the last step, of any sign, in one step."""
    run, (x, y) = compiled(name, construction), data(seed=7)
    how = Arithmetic.of(torch.float64, n_tokens=3, backend="fused")
    bounds = StackBounds(run.problem, run.program, how)._state_bound
    seen = []
    followed = StateBound(
        lambda before, step: seen.append(before.sizes) or bounds.after_step(before, step),
        bounds.is_state,
        bounds.kept,
        bounds.ends,
        N_STEPS,
    )
    proved = followed.domain(0.5)
    largest = seen[N_STEPS - 1].squeeze()
    start = largest * corners(N_TASKS, len(largest), seed=8)
    start = torch.where(bounds.is_state, start, start.clamp(-0.5, 0.5))
    task = run.task(x, y, initial=start)
    history = run.run_task(task).parameters
    errors = (history[:, 1:] - run.problem.oracle.stepped(task, history)).abs().amax(-1)
    assert float(start[:, bounds.is_state].abs().max()) > 0.5
    assert 0 < float(errors[:, 0].max()) <= proved.step


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_the_momentum_of_real_runs_stays_below_its_bound(construction):
    run, (x, y) = compiled("momentum", construction), data()
    initial = 0.5 * corners(N_TASKS, run.problem.network.n_parameters, seed=2)
    history = run.run(x, y, initial=initial).parameters
    how = Arithmetic.of(torch.float64, n_tokens=3, backend="fused")
    bounds, sizes = StackBounds(run.problem, run.program, how)._state_bound, []
    StateBound(
        lambda before, step: sizes.append(before.sizes) or bounds.after_step(before, step),
        bounds.is_state,
        bounds.kept,
        bounds.ends,
        N_STEPS,
    ).domain(0.5)
    for step in range(N_STEPS):
        measured = history[:, step, bounds.is_state].abs().amax(0)
        assert (measured <= sizes[step].squeeze()[bounds.is_state]).all()


def test_a_long_run_has_a_bound_on_every_step(monkeypatch):
    monkeypatch.setattr(state_bound, "MOST_STEPS", 30)
    problem = compiled("momentum", "relu-stack").problem
    short, long = (
        icgd.compile(problem, "relu-stack", n_steps=n, pieces=8).certificate() for n in (30, 300)
    )
    assert short.domain_step <= long.domain_step < 1.01 * short.domain_step
    assert long.says_nothing(long.domain_trajectory)


def test_a_run_that_begins_with_momentum_is_left_out():
    run, (x, y) = compiled("momentum", "relu-stack"), data()
    assert run.certificate().condition == "of runs whose momentum is 0 at the start"
    n_weights = run.problem.network.n_parameters
    start = torch.cat([torch.zeros(n_weights), torch.full((n_weights,), 1e3)]).double()
    report = icgd.verify(run, x[0], y[0], initial=start)
    assert report.certificate.domain_step == inf
    assert report.verdict is icgd.Verdict.HOLDS_EMPTY
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
