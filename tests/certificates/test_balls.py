"""Trajectories enclosed by balls, and the certificates that carry them."""

import json
import re
from dataclasses import replace
from itertools import product
from math import inf

import pytest
import torch
from flint import arb, ctx

import icgd
import icgd_check
from icgd.certificates import balls as rigorous
from icgd.certificates.balls import (
    Sources,
    Straddle,
    Trajectory,
    exact_data,
    rigorous_trajectory,
    rounded_up,
    why_unproved,
)
from icgd.errors import DataError, FileError, ProofError
from icgd.problems.data import Task
from icgd.problems.kernel_machine import KERNELS
from icgd.problems.linear_model import LINKS
from icgd.problems.losses import LOSSES
from tests.cases import KNOWN, make_case, tasks_of
from tests.forgeries import PLAIN
from tests.precise_training import is_inside, mp, real, train
from tests.whole_run_cases import CASES, N_STEPS, normal


def balls_of(problem, task, n_steps, bits=128, method="balls"):
    """The numbers after each step and the predictions after the last one."""
    described, data = problem.oracle.described(task, n_steps), exact_data(task)
    descent = icgd_check.Descent(described, data, n_steps, bits, method)
    return [descent.step() for _ in range(n_steps)], descent.predictions()


def require_enclosed(problem, task, n_steps, method="balls"):
    """Balls of 128 bits hold what is computed independently in 60 digits, and little else."""
    steps, predictions = balls_of(problem, task, n_steps, method=method)
    exact = train(problem, task, n_steps)
    for balls, values in zip([*steps, predictions], [*exact.steps, exact.predictions], strict=True):
        for ball, value in zip(balls, values, strict=True):
            assert is_inside(value, ball)
            assert float(ball.rad()) < 1e-25


@pytest.mark.parametrize("name", CASES)
def test_balls_enclose_every_rule_and_every_kind(name):
    require_enclosed(CASES[name].problem, CASES[name].task, N_STEPS)


@pytest.mark.parametrize("name", PLAIN)
def test_norms_enclose_plain_steps(name):
    require_enclosed(CASES[name].problem, CASES[name].task, N_STEPS, "norm")


@pytest.mark.parametrize("name", CASES)
def test_balls_come_close_to_the_formulas_of_textbooks(name):
    """There coefficients such as 1 - beta^t are real numbers, which rules round to float64."""
    problem, task = CASES[name].problem, CASES[name].task
    steps, predictions = balls_of(problem, task, N_STEPS)
    exact = train(problem, task, N_STEPS, coefficients=real)
    for balls, values in zip([*steps, predictions], [*exact.steps, exact.predictions], strict=True):
        for ball, value in zip(balls, values, strict=True):
            assert abs(real(float(ball)) - value) <= 1e-14 * (1 + abs(value))


@pytest.mark.parametrize(("activation", "loss"), list(product(KNOWN, LOSSES)))
def test_balls_enclose_what_a_network_learns(activation, loss):
    output = activation if loss == "squared" else "identity"
    case = make_case(icgd.MLP((2, 3, 2), activation, output), loss, box=0.8, seed=4)
    require_enclosed(case.problem, case.task(), 6)


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 5])
def test_balls_know_biases_and_batches(batch_size):
    target, update = icgd.MLP((2, 3, 3, 1), "silu", biases=True), icgd.GradientStep(0.7, 1.0)
    problem = icgd.Problem(
        target, "huber", replace(update, batch_size=batch_size), icgd.Domain(3.0, 3.0)
    )
    require_enclosed(problem, icgd.as_task(problem, normal(5, 2), normal(5, 1), seed=2), 7)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_balls_enclose_what_a_linear_model_learns(link, reduction):
    x, y = normal(6, 3), normal(6, 1).abs().clamp(max=1.0)
    momenta = (None, 0.5, (0.0, 0.2, 0.4, 0.5, 0.6))
    for intercept, l1, l2, box, momentum in product(
        (False, True), (0.0, 0.05), (0.0, 0.3), (None, 0.2), momenta
    ):
        nesterov = momentum is not None and intercept
        step = icgd.ProximalStep(0.1, l2, l1, box, momentum, nesterov)
        model = icgd.LinearModel(3, link, intercept, reduction)
        problem = icgd.Problem(model, "matching", step, icgd.Domain(4.0, 1.0))
        require_enclosed(problem, icgd.as_task(problem, x, y, queries=x[:2] / 2), 5)


HEADS = {
    **{name: icgd.KernelHead(name) for name, kernel in KERNELS.items() if not kernel.is_own},
    "matern-0.5": icgd.KernelHead("matern", shape=0.5),
    "matern-2.5": icgd.KernelHead("matern", shape=2.5),
    "polynomial-3": icgd.KernelHead("polynomial", shape=3.0, weight=0.1),
    "moved": icgd.KernelHead("rbf", [[0.5, 0.2], [0.0, 1.5], [1.0, 0.0]], 2.0),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_balls_enclose_what_a_kernel_machine_learns(head):
    transforms = ((), 0.05, [0.01 * torch.eye(2), 0.02 * torch.ones(2, 2), torch.zeros(2, 2)])
    for noise, moves in product((0.0, 0.3), transforms):
        update = icgd.FunctionalStep((0.1, 0.2, 0.05), noise, moves)
        machine = icgd.KernelMachine(2, (head, icgd.KernelHead("linear", weight=0.2)), 2)
        problem = icgd.Problem(machine, "squared", update, icgd.Domain(3.0, 3.0))
        x, y, queries = 0.4 * normal(4, 2), normal(4, 2, seed=1), normal(3, 2, seed=2)
        require_enclosed(problem, icgd.as_task(problem, x, y, queries=queries), 3)


@pytest.mark.parametrize("bits", [64, 128, 1024])
def test_balls_hold_the_exact_numbers_of_a_relu_network(bits):
    """Sums and products of binary fractions, four examples: all digits of mpmath are exact."""
    target = icgd.MLP((2, 3, 1), "relu")
    problem = icgd.Problem(target, "squared", icgd.GradientStep(0.3, 0.9), icgd.Domain(3.0, 3.0))
    task = icgd.as_task(problem, normal(4, 2), normal(4, 1), seed=1)
    with mp.workprec(2**14):
        exact = train(problem, task, 3).steps
    with mp.workprec(2**15):
        assert train(problem, task, 3).steps == exact
    for balls, values in zip(balls_of(problem, task, 3, bits)[0], exact, strict=True):
        with ctx.workprec(2**15):
            for ball, value in zip(balls, values, strict=True):
                size = arb(int(value.man)) * arb(2) ** int(value.exp)
                assert ball.contains(size if value >= 0 else -size)


# Kinks


def _relu(update, initial, x, y):
    target = icgd.MLP((len(x[0]), 1, 1), "relu")
    problem = icgd.Problem(target, "squared", update, icgd.Domain(1.0, 3.0))
    return problem, icgd.as_task(problem, x, y, queries=[x[0]], initial=initial)


def test_a_unit_that_is_exactly_at_its_kink_has_the_slope_from_the_left():
    start = [0.75, -0.75, 1.0]
    problem, task = _relu(icgd.GradientStep(0.5, 2.0), start, [[0.5, 0.5]], [[1.0]])
    (balls,), predictions = balls_of(problem, task, 1)
    assert [float(ball) for ball in balls] == [0.75, -0.75, 1.0]
    assert all(ball.is_exact() for ball in balls)
    assert [float(ball) for ball in predictions] == [0.0]
    report = icgd.verify(icgd.compile(problem, n_steps=1), task.x, task.y, initial=start)
    assert (report.rigorous.n_kinks, report.rigorous.kinks) == (0, ())


def test_a_ball_that_holds_a_kink_keeps_both_sides():
    (value,), (slope,) = icgd_check.ACTIVATIONS["relu"]([arb(0, 0.125)])
    assert [value.contains(z) for z in (0, 0.125, 0.2)] == [True, True, False]
    assert [slope.contains(z) for z in (0, 1)] == [True, True]
    _, (slope,) = icgd_check.ACTIVATIONS["leaky_relu"]([arb(0, 0.125)])
    assert [slope.contains(z) for z in (0, arb(0.01), 1)] == [False, True, True]


def test_a_run_that_lands_on_a_kink_is_named_and_both_slopes_are_kept():
    # The first step ends at w = 0 exactly, which balls cannot know because of 1 / 3. From there the
    # left side leaves w where it is, and the right side moves it by 0.75. The other unit is far
    # from its kink.
    start = [1.0, 2.0]
    problem, task = _relu(icgd.GradientStep(0.5, 4.0), start, [[1.0]] * 3, [[1.0]] * 3)
    history = problem.oracle.train(task, 2)
    assert history.tolist() == [[1.0, 2.0], [0.0, 1.5], [0.0, 1.5]]
    predictions = problem.oracle.predict(task, history[-1])
    found = rigorous_trajectory(problem, task, history, predictions, history)
    assert float(found.distances[0]) < 1e-16
    assert 0.75 <= float(found.distances[1]) < 0.76
    assert found.least.tolist() == [0.0, 0.0]
    assert found.bits < 1024
    places = tuple(Straddle(task=0, step=2, layer=1, example=n, unit=0) for n in range(3))
    assert (found.n_kinks, found.kinks) == (3, places)
    compiled = icgd.compile(problem, "relu-stack", n_steps=2)
    report = icgd.verify(compiled, task.x, task.y, initial=start)
    assert report.rigorous.kinks == places
    assert report.headline.startswith("proved: the whole run is within 0.75")
    assert (
        "from step 2 on this allows for both slopes of a kink that exact descent may lie on"
        in report.headline
    )
    assert report.verdict.holds


def test_an_honest_certificate_of_a_run_on_a_kink_claims_the_distance_of_both_sides():
    start = [1.0, 2.0]
    problem, task = _relu(icgd.GradientStep(0.5, 4.0), start, [[1.0]] * 3, [[1.0]] * 3)
    proof = icgd.compile(problem, "relu-stack", n_steps=2).certify(task.x, task.y, initial=start)
    assert proof.distances[0] < 1e-10
    assert 0.75 <= proof.distances[1] < 0.76
    icgd_check.check(proof.text.encode())


@pytest.mark.parametrize("eps", [1e-3, 1e-8])
def test_adam_leaves_a_dead_unit_where_it_is(eps):
    """Its gradient and both moments are 0 exactly: 0 / (sqrt(0) + eps) is 0."""
    start = [-1.0, 0.5]
    problem, task = _relu(icgd.AdamStep(0.1, 4.0, eps=eps), start, [[1.0], [0.5]], [[1.0], [2.0]])
    steps, predictions = balls_of(problem, task, 4)
    for balls in steps:
        assert [float(ball) for ball in balls] == [-1.0, 0.5, 0.0, 0.0, 0.0, 0.0]
        assert all(ball.is_exact() for ball in [*balls, *predictions])
    half = [[1.0], [-1.0]]  # one of the units is dead on all examples, the other is not
    target = icgd.MLP((1, 2, 1), "relu", biases=True)
    problem = icgd.Problem(
        target, "squared", icgd.AdamStep(0.1, 4.0, eps=eps), icgd.Domain(1.0, 3.0)
    )
    task = icgd.as_task(problem, half, half, initial=[0.5, 1.0, 0.5, -2.0, 0.5, 0.5, 0.1])
    require_enclosed(problem, task, 4)
    assert [float(ball) for ball in balls_of(problem, task, 4)[0][-1][2:4]] == [0.5, -2.0]


# How many bits


def trajectory_of(problem, task, history, on_progress=None):
    """What is proved of a history."""
    predictions = problem.oracle.predict(task, history[..., -1, :])
    n_steps = history.shape[-2] - 1
    real = problem.oracle.train(task, n_steps)
    return rigorous_trajectory(problem, task, history, predictions, real, on_progress)


def test_more_bits_are_taken_until_the_balls_are_small():
    update = icgd.MomentumStep(0.3, 3.0, momentum=0.8)
    case = make_case(icgd.MLP((3, 6, 6, 1), "tanh"), "squared", n_examples=8)
    problem = replace(case.problem, update=update)
    task = icgd.as_task(problem, case.x, case.y, queries=case.queries, seed=0)
    run, seen = icgd.compile(problem, "softmax-stack", n_steps=60).run_task(task), []
    found = trajectory_of(problem, task, run.parameters, lambda *place: seen.append(place))
    measured = (run.parameters - problem.oracle.train(task, 60)).abs().amax(-1)[1:]
    assert found.bits > rigorous.FIRST_BITS
    assert found.method == "balls"
    assert seen == [(step, 60) for step in range(1, 61)]
    assert bool((found.distances >= measured - found.of_oracle).all())
    assert bool((found.distances <= measured + found.of_oracle).all())
    assert bool((found.least <= found.distances).all())
    assert bool((found.distances <= (1 + 4 * rigorous.SMALL) * found.least + 1e-18).all())
    assert float(found.of_oracle.max()) < 1e-11


def test_an_exact_first_step_does_not_ask_for_many_bits():
    # All numbers are multiples of 2^-4, so that the first balls are points.
    problem = icgd.Problem(
        icgd.MLP((4, 8, 1), "relu"), "squared", icgd.GradientStep(0.25, 2.0), icgd.Domain(2.5, 2.5)
    )
    shapes = ((16, 4), (16, 1), (40,))
    x, y, initial = ((8 * normal(*shape, seed=1)).round() / 8 for shape in shapes)
    task = icgd.as_task(problem, x, y, initial=initial.clamp(-1, 1) / 2)
    assert all(ball.is_exact() for ball in balls_of(problem, task, 1)[0][0])
    history = problem.oracle.train(task, 60)
    assert trajectory_of(problem, task, history).bits < 1024


def _linear(link, update, x, y, initial):
    """A linear model whose inputs have two columns, far beyond what a transformer is made for."""
    model = icgd.LinearModel(2, link)
    problem = icgd.Problem(model, "matching", update, icgd.Domain(1e300, 1.0, 1.0))
    parts = [torch.tensor(part, dtype=torch.float64) for part in (x, y)]
    start = torch.tensor(initial, dtype=torch.float64)
    return problem, Task(*parts, parts[0][:0], start)


def test_balls_that_are_infinite_with_some_bits_are_tried_with_more():
    # Exact descent stays at w_1 = -w_2, which balls know to about 2^-bits; times 1e120 that is
    # the score of the last example, whose exponential is beyond all doubles below 400 bits.
    x, y = [[1.0, 0.0], [0.0, -1.0], [1e120, 1e120]], [[0.0], [0.0], [1.0]]
    problem, task = _linear("poisson", icgd.ProximalStep(0.1), x, y, [0.3, -0.3])
    found = trajectory_of(problem, task, problem.oracle.train(task, 2))
    assert bool((found.distances < 1e-15).all())
    assert 400 < found.bits <= 1024
    assert found.first_unproved is None


def test_what_has_no_finite_enclosure_is_not_proved(monkeypatch):
    monkeypatch.setattr(icgd_check, "MOST_BITS", 256)
    x, y = [[1.0, 0.0], [0.0, -1.0], [1e120, 1e120]], [[0.0], [0.0], [1.0]]
    problem, task = _linear("poisson", icgd.ProximalStep(0.1), x, y, [0.3, -0.3])
    history = problem.oracle.train(task, 3)
    found = trajectory_of(problem, task, history)
    assert found.first_unproved == 2
    assert found.distances.isfinite().tolist() == [True, False, False]
    assert found.least.tolist()[1:] == [0.0, 0.0]
    with pytest.raises(ProofError, match="Nothing can be proved of step 2: exact descent has no"):
        rigorous.prove(problem, task, history, history[:0, :1], Sources({}))


def test_balls_that_are_far_larger_than_the_numbers_of_the_run_are_no_obstacle():
    # The quotient of the two is no double.
    run = torch.tensor([[0.0], [2.0**-1000]], dtype=torch.float64)
    search = rigorous._Search({}, {}, run, run, run, run, rigorous._Progress(None, 0, 1))
    failed = rigorous._Attempt(128, "balls", radii=[2.0**800])
    assert search._missing_bits(failed) > 1800


@pytest.mark.parametrize("label", [5e-324, 1e-310, 1e-300, 1e-150])
def test_numbers_at_the_end_of_all_doubles_are_proved(label):
    problem = icgd.Problem(
        icgd.MLP((1, 1)), "squared", icgd.GradientStep(0.3, 1.0), icgd.Domain(1.0, 1.0)
    )
    compiled = icgd.compile(problem, "relu-stack", n_steps=3)
    report = icgd.verify(compiled, [[1.0], [0.3], [0.7]], [[label]] * 3, initial=[0.0])
    assert float(report.rigorous.distances.max()) <= max(1e-15 * label, 1.5e-323)


@pytest.mark.parametrize("problem", [ZeroDivisionError, KeyboardInterrupt])
def test_the_precision_of_flint_is_left_as_it_was(problem):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=3)

    def stop(step, n_steps):
        raise problem

    with pytest.raises(problem) as kept:
        compiled.certify(case.x, case.y, on_progress=stop)
    assert kept.value is not None
    assert ctx.prec == 53


# Reports


def test_every_task_of_a_batch_is_enclosed_alone():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", tasks=(3,))
    compiled, task = icgd.compile(case.problem, "relu-stack", n_steps=4), case.task()
    found = trajectory_of(case.problem, task, compiled.run_task(task).parameters)
    assert found.distances.shape == found.of_oracle.shape == found.least.shape == (3, 4)
    assert found.predictions.shape == found.predictions_of_oracle.shape == (3, 2, 1)
    for place, one in enumerate(tasks_of(task)):
        alone = trajectory_of(case.problem, one, compiled.run_task(one).parameters)
        for name in ("distances", "predictions"):
            both = getattr(found, name)[place], getattr(alone, name)
            assert torch.allclose(*both, rtol=1e-9, atol=0.0), name


def test_float32_runs_are_compared_with_exact_descent_on_their_own_numbers():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=4)
    how = {"dtype": "float32", "backend": "dense"}
    report = icgd.verify(compiled, case.x, case.y, queries=case.queries, seed=0, **how)
    assert torch.allclose(report.rigorous.distances, report.trajectory_errors, rtol=1e-6)
    assert torch.allclose(report.rigorous.predictions, report.prediction_errors, rtol=1e-6)


def test_no_steps_have_no_distances():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    report = icgd.verify(icgd.compile(case.problem, "relu-stack", n_steps=0), case.x, case.y)
    assert report.rigorous.distances.shape == (0,)
    assert report.headline is None


def test_a_chain_is_enclosed_with_its_batches():
    update = icgd.GradientStep(0.3, 1.0, batch_size=2)
    target = icgd.MLP((2, 3, 1), "relu", biases=True)
    problem = icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0))
    compiled = icgd.compile(problem, "cot-network", n_steps=6)
    x, y = normal(5, 2).clamp(-1, 1), normal(5, 1).clamp(-1, 1)
    report = icgd.verify(compiled, x, y, seed=3)
    assert report.verdict.holds
    assert float(report.rigorous.distances.max()) < 1e-12


def test_a_bound_below_the_proved_distance_is_broken():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=3)
    report = icgd.verify(compiled, case.x, case.y)
    assert report.verdict.holds
    far = replace(report.rigorous, least=report.trajectory_bounds * 1.01)
    assert isinstance(far, Trajectory)
    assert replace(report, rigorous=far).verdict is icgd.Verdict.BROKEN


def test_a_run_that_takes_too_long_is_proved_only_if_that_is_asked_for(monkeypatch):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=3)
    assert why_unproved(case.problem, case.task(), 3) is None
    monkeypatch.setattr(rigorous, "LARGEST_WORK", 100)
    said = r"exact descent in balls takes \d\.\de\+03 operations, more than 1e\+02; ask for it"
    report = icgd.verify(compiled, case.x, case.y)
    assert report.rigorous is report.trajectory_bounds is report.prediction_bounds is None
    assert icgd.verify(compiled, case.x, case.y, rigorous=True).rigorous.distances.shape == (3,)
    assert re.match(said, report.unproved_because)
    assert report.headline == f"not proved by balls: {report.unproved_because}"
    left_out = icgd.verify(compiled, case.x, case.y, rigorous=False)
    assert left_out.rigorous is left_out.unproved_because is left_out.headline is None


def test_a_run_that_takes_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(icgd_check, "MOST_MEMORY", 2**12)
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", n_examples=4)
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=1)
    expected = "icgd-check would refuse a proof of this run: it needs 24 balls at once, too many"
    with pytest.raises(ProofError, match=expected):
        icgd.verify(compiled, case.x, case.y, rigorous=True)


def test_a_kernel_of_the_users_own_is_not_proved():
    """If a proof is asked for, that is said before the kernel runs."""

    def never(u, w):
        raise AssertionError

    icgd.register_kernel("mine for a proof", never, lipschitz=1.0, bound=1.0)
    machine = icgd.KernelMachine(2, "mine for a proof")
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0))
    compiled, given = icgd.compile(problem, n_steps=1), ([[0.5, 0.5]], [[1.0]])
    message = "The kernel 'mine for a proof' is your own function, which ball arithmetic"
    for call in (
        lambda: icgd.verify(compiled, *given, rigorous=True),
        lambda: compiled.certify(*given),
    ):
        with pytest.raises(ProofError, match=message):
            call()
    icgd.register_kernel("mine for a proof", lambda u, w: u @ w.mT, lipschitz=1.0, bound=1.0)
    report = icgd.verify(compiled, *given)
    assert report.rigorous is None
    assert report.unproved_because.startswith(message)
    KERNELS.pop("mine for a proof")


# Proof-carrying files


def test_distances_are_rounded_up_to_three_digits():
    assert rounded_up(1.2341e-13) == 1.24e-13
    assert (rounded_up(0.0), rounded_up(inf)) == (0.0, inf)
    for number in (1.23e-13, 0.1, 7.0, 1 / 3, 5e-324, 1.7976931348623157e308):
        short = rounded_up(number)
        assert number <= short <= 1.011 * number or short == 5e-324


def test_certify_writes_what_it_returns(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    path = tmp_path / "run.cert.json"
    proof = compiled.certify(case.x, case.y, queries=case.queries, path=path, seed=3)
    fields = json.loads(path.read_text())
    run = compiled.run(case.x, case.y, queries=case.queries, seed=3, backend="literal")
    assert path.read_text() == proof.text
    for name, rows in (("steps", run.parameters[1:]), ("predictions", run.predictions)):
        assert fields[name] == [[value.hex() for value in row] for row in rows.tolist()]
    assert tuple(map(float.fromhex, fields["distances"])) == proof.distances
    assert fields["transformer"] == {
        "construction": "relu-stack", "backend": "literal", "dtype": "float64"
    }  # fmt: skip


def test_batches_no_steps_and_missing_files_are_refused(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", tasks=(2,))
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    with pytest.raises(DataError, match="one task at a time"):
        compiled.certify(case.x, case.y)
    with pytest.raises(ProofError, match="no steps"):
        icgd.compile(case.problem, "relu-stack", n_steps=0).certify(case.x[0], case.y[0])
    for files in ((tmp_path / "none.csv", None), (None, str(tmp_path / "none.csv"))):
        with pytest.raises(FileError, match=r"^Cannot read .*none\.csv: No such file or direct"):
            compiled.certify(case.x[0], case.y[0], files=files)


def test_a_certificate_never_replaces_what_it_is_about(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    file, data = tmp_path / "run.safetensors", tmp_path / "train.csv"
    file.write_bytes(b"run")
    data.write_bytes(b"table")
    for own in (file, data, tmp_path / "." / "train.csv", str(file)):
        with pytest.raises(FileError, match=r"would replace .*\. Give another path\."):
            compiled.certify(case.x, case.y, path=own, files=(str(file), data))
    assert (file.read_bytes(), data.read_bytes()) == (b"run", b"table")


def test_a_certificate_that_would_be_too_large_is_not_written(monkeypatch):
    monkeypatch.setattr(icgd_check, "MOST_BYTES", 1000)
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    with pytest.raises(ProofError, match=r"would have [\d,]+ bytes, and icgd-check reads at most"):
        compiled.certify(case.x, case.y)


def test_a_proof_shows_itself_in_a_line():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    proof = icgd.compile(case.problem, "relu-stack", n_steps=2).certify(case.x, case.y, seed=3)
    assert repr(proof) == (
        f"Proof(claim: {proof.claim}; steps: 2; "
        f"distance in the end: at most {proof.distances[-1]:.4g}; bits: {proof.bits})"
    )
