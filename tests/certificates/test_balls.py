"""Trajectories enclosed by balls, and the certificates that carry them."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import inf

import pytest
import torch
from flint import arb, ctx, fmpq

import icgd
import icgd_check
from icgd.certificates import balls as rigorous
from icgd.certificates.balls import Sources, Trajectory, exact_data, rigorous_trajectory, rounded_up
from icgd.errors import DataError, FileError, MissingExtraError, ProofError, SettingError
from icgd.problems.data import Task
from icgd.problems.functions import ACTIVATIONS, LOSSES
from icgd.problems.kernel_machine import KERNELS
from icgd.problems.linear_model import LINKS
from tests.cases import make_case, tasks_of


def _normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def balls_of(problem, task, n_steps, bits=256):
    described = problem.oracle.described(task, n_steps)
    return list(icgd_check.enclosures(described, exact_data(task), n_steps, bits))


def off_oracle(problem, task, n_steps):
    """How far the middles of the balls are from float64 training, relative to its numbers."""
    middles = [[float(ball) for ball in balls] for balls in balls_of(problem, task, n_steps)]
    real = problem.oracle.train(task, n_steps)[1:]
    off = torch.tensor(middles, dtype=torch.float64) - real
    return float(off.abs().max() / real.abs().max().clamp(min=1.0))


@pytest.mark.parametrize(("activation", "loss"), list(product(ACTIVATIONS, LOSSES)))
def test_balls_enclose_what_a_network_learns(activation, loss):
    output = activation if loss == "squared" else "identity"
    case = make_case(icgd.MLP((2, 3, 2), activation, output), loss, box=0.8, seed=4)
    assert off_oracle(case.problem, case.task(), 6) < 1e-14


def test_balls_know_biases_and_batches():
    target = icgd.MLP((2, 3, 3, 1), "silu", biases=True)
    for batch_size in (None, 1, 2, 3, 5):
        update = icgd.GradientStep(0.7, 1.0, batch_size)
        problem = icgd.Problem(target, "huber", update, icgd.Domain(3.0, 3.0))
        task = icgd.as_task(problem, _normal(5, 2).clamp(-3, 3), _normal(5, 1).clamp(-3, 3), seed=2)
        assert off_oracle(problem, task, 7) < 1e-14, batch_size


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_balls_enclose_what_a_linear_model_learns(link, reduction):
    x, y = _normal(6, 3), _normal(6, 1).abs().clamp(max=1.0)
    for intercept, l1, l2, box in product((False, True), (0.0, 0.05), (0.0, 0.3), (None, 0.2)):
        model = icgd.LinearModel(3, link, intercept, reduction)
        step = icgd.ProximalStep(0.1, l2, l1, box)
        problem = icgd.Problem(model, "matching", step, icgd.Domain(4.0, 1.0))
        assert off_oracle(problem, icgd.as_task(problem, x, y), 5) < 1e-14


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
        x, y, queries = 0.4 * _normal(4, 2), _normal(4, 2, seed=1), _normal(3, 2, seed=2)
        task = icgd.as_task(problem, x, y, queries=queries)
        assert off_oracle(problem, task, 3) < 1e-13


def _exact_step(matrices, x, y, step_size, box):
    """One step of a relu network on the squared loss, in rational numbers."""
    gradients = [[[Fraction(0)] * len(row) for row in matrix] for matrix in matrices]
    for point, label in zip(x, y, strict=True):
        outputs, slopes = [point], []
        for number, matrix in enumerate(matrices):
            z = [sum(a * b for a, b in zip(row, outputs[-1], strict=True)) for row in matrix]
            is_last = number == len(matrices) - 1
            outputs.append([v if is_last else max(v, Fraction(0)) for v in z])
            slopes.append([Fraction(1) if is_last or v > 0 else Fraction(0) for v in z])
        back = [2 * (p - t) for p, t in zip(outputs[-1], label, strict=True)]
        for number in range(len(matrices) - 1, -1, -1):
            delta = [s * b for s, b in zip(slopes[number], back, strict=True)]
            for i, j in product(range(len(delta)), range(len(outputs[number]))):
                gradients[number][i][j] += delta[i] * outputs[number][j]
            columns = range(len(outputs[number]))
            back = [
                sum(delta[i] * matrices[number][i][j] for i in range(len(delta))) for j in columns
            ]
    share = step_size / (2 * len(x))
    return [
        [[min(box, max(-box, w - share * g)) for w, g in zip(*rows, strict=True)]
         for rows in zip(matrix, gradient, strict=True)]
        for matrix, gradient in zip(matrices, gradients, strict=True)
    ]  # fmt: skip


def _fractions(rows):
    return [[Fraction(value) for value in row] for row in rows]


@pytest.mark.parametrize("bits", [64, 128, 1024])
def test_balls_hold_the_exact_rational_numbers_of_a_relu_network(bits):
    target = icgd.MLP((2, 3, 1), "relu")
    problem = icgd.Problem(target, "squared", icgd.GradientStep(0.3, 0.9), icgd.Domain(3.0, 3.0))
    task = icgd.as_task(problem, _normal(3, 2).clamp(-3, 3), _normal(3, 1).clamp(-3, 3), seed=1)
    matrices = [_fractions(matrix.tolist()) for matrix in target.matrices(task.initial)]
    x, y = _fractions(task.x.tolist()), _fractions(task.y.tolist())
    for balls in balls_of(problem, task, 3, bits):
        matrices = _exact_step(matrices, x, y, Fraction(0.3), Fraction(0.9))
        exact = [value for matrix in matrices for row in matrix for value in row]
        with ctx.workprec(8192):  # or else the fraction would be rounded
            for ball, value in zip(balls, exact, strict=True):
                assert ball.contains(arb(fmpq(value.numerator, value.denominator)))


def test_a_unit_that_is_exactly_at_its_kink_has_the_slope_from_the_left():
    problem = icgd.Problem(
        icgd.MLP((2, 1, 1), "relu"), "squared", icgd.GradientStep(0.5, 2.0), icgd.Domain(1.0, 1.0)
    )
    x, y = [[0.5, 0.5]], [[1.0]]
    task = icgd.as_task(problem, x, y, initial=[0.75, -0.75, 1.0])
    (balls,) = balls_of(problem, task, 1)
    assert [float(ball) for ball in balls] == [0.75, -0.75, 1.0]
    assert all(ball.is_exact() for ball in balls)


def test_a_ball_that_holds_a_kink_keeps_both_sides():
    value, slope = icgd_check.ACTIVATIONS["relu"](arb(0, 0.125))
    assert [value.contains(z) for z in (0, 0.125, 0.2)] == [True, True, False]
    assert [slope.contains(z) for z in (0, 1)] == [True, True]
    _, slope = icgd_check.ACTIVATIONS["leaky_relu"](arb(0, 0.125))
    assert [slope.contains(z) for z in (0, arb(0.01), 1)] == [False, True, True]


def test_balls_that_cannot_leave_a_kink_are_wide_and_more_bits_are_not_tried_for_ever():
    # The first step ends at w = 0 exactly, which balls cannot know because of 1 / 3. From there the
    # left side leaves w where it is, and the right side moves it by 0.75.
    problem = icgd.Problem(
        icgd.MLP((1, 1, 1), "relu"), "squared", icgd.GradientStep(0.5, 4.0), icgd.Domain(1.0, 3.0)
    )
    task = icgd.as_task(problem, [[1.0]] * 3, [[1.0]] * 3, initial=[1.0, 2.0])
    history = problem.oracle.train(task, 2)
    assert history.tolist() == [[1.0, 2.0], [0.0, 1.5], [0.0, 1.5]]
    found = rigorous_trajectory(problem, task, history)
    assert float(found.distances[0]) < 1e-16
    assert 0.75 <= float(found.distances[1]) < 0.76
    assert found.least.tolist() == [0.0, 0.0]
    assert found.bits < 1024


def test_more_bits_are_taken_until_the_balls_are_small():
    case = make_case(icgd.MLP((3, 6, 6, 1), "tanh"), "squared", step_size=0.5, n_examples=8)
    compiled = icgd.compile(case.problem, "softmax-stack", n_steps=60)
    task = case.task()
    run, seen = compiled.run_task(task).parameters, []
    found = rigorous_trajectory(case.problem, task, run, lambda *place: seen.append(place))
    measured = (run - case.problem.oracle.train(task, 60)).abs().amax(-1)[1:]
    assert found.bits > rigorous.FIRST_BITS
    assert seen == [(step, 60) for step in range(1, 61)]
    assert bool((found.distances >= 0.99 * measured - 1e-15).all())
    assert bool((found.distances <= 1.1 * measured + 1e-15).all())
    assert bool((found.least <= found.distances).all())
    assert bool((found.distances <= (1 + 2 * rigorous.SMALL) * found.least + 1e-18).all())


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
    found = rigorous_trajectory(problem, task, problem.oracle.train(task, 2))
    assert bool((found.distances < 1e-15).all())
    assert 400 < found.bits <= 1024


def test_balls_that_are_far_larger_than_the_numbers_of_the_run_are_no_obstacle():
    # The quotient of the two is no double.
    search = rigorous._Search({}, {}, [[2.0**-1000, 0.0]], rigorous._Follow(None, 0, 1))
    failed = rigorous._Attempt(128, [inf], [0.0], 2.0**800, final=False)
    assert search._bits_for(failed) > 1800


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


def random_run(seed):
    """A random network with smooth units, its data and the run of a construction."""
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (1,), generator=generator))]

    depth = pick(1, 2, 3)
    widths = (pick(1, 2, 3), *(pick(2, 3, 4) for _ in range(depth - 1)), pick(1, 2))
    target = icgd.MLP(widths, pick("tanh", "sigmoid", "gelu", "silu", "softplus"))
    case = make_case(
        target,
        pick("squared", "logistic"),
        step_size=pick(0.05, 0.2, 0.5, 1.0),
        box=pick(0.5, 1.0, 2.0),
        domain=icgd.Domain(1.0, 1.0),
        n_examples=pick(1, 3, 8),
        seed=seed,
    )
    construction = pick("relu-stack", "relu-stack", "softmax-stack")
    compiled = icgd.compile(case.problem, construction, n_steps=pick(5, 20, 60, 200))
    return compiled, case.task()


def require_tight(compiled, task):
    """The proved distance is at most twice the measured one, and never below it.

    The measured one is that from float64 descent, which has a rounding of its own.
    """
    run = compiled.run_task(task).parameters
    real = compiled.problem.oracle.train(task, compiled.program.n_steps)
    found = rigorous_trajectory(compiled.problem, task, run)
    measured = (run - real).abs().amax(-1)[1:]
    own = rigorous_trajectory(compiled.problem, task, real).distances
    assert bool((found.distances >= measured - own).all())
    assert bool((found.distances <= 2 * measured + own).all())


@pytest.mark.parametrize("seed", range(6))
def test_the_proved_distance_is_close_to_the_measured_one(seed):
    require_tight(*random_run(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 206))
def test_the_proved_distance_is_close_to_the_measured_one_in_200_runs(seed):
    require_tight(*random_run(seed))


def test_every_task_of_a_batch_is_enclosed_alone():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", tasks=(3,))
    compiled, task = icgd.compile(case.problem, "relu-stack", n_steps=4), case.task()
    found = rigorous_trajectory(case.problem, task, compiled.run_task(task).parameters)
    alone = [
        rigorous_trajectory(case.problem, one, compiled.run_task(one).parameters)
        for one in tasks_of(task)
    ]
    assert found.distances.shape == (3, 4)
    assert torch.allclose(
        found.distances, torch.stack([one.distances for one in alone]), rtol=1e-9, atol=0.0
    )


def test_float32_runs_are_compared_with_exact_descent_on_their_own_numbers():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=4)
    report = icgd.verify(
        compiled, case.x, case.y, seed=0, dtype="float32", backend="dense", rigorous=True
    )
    assert torch.allclose(report.rigorous.distances, report.trajectory_errors, rtol=1e-6)


def test_no_steps_have_no_distances():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=0)
    assert icgd.verify(compiled, case.x, case.y, rigorous=True).rigorous.distances.shape == (0,)


def test_a_chain_is_enclosed_with_its_batches():
    update = icgd.GradientStep(0.3, 1.0, batch_size=2)
    target = icgd.MLP((2, 3, 1), "relu", biases=True)
    problem = icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0))
    compiled = icgd.compile(problem, "cot-network", n_steps=6)
    x, y = _normal(5, 2).clamp(-1, 1), _normal(5, 1).clamp(-1, 1)
    report = icgd.verify(compiled, x, y, seed=3, rigorous=True)
    assert report.verdict.holds
    assert float(report.rigorous.distances.max()) < 1e-12


def test_a_bound_below_the_proved_distance_is_broken():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=3)
    report = icgd.verify(compiled, case.x, case.y, rigorous=True)
    assert report.verdict.holds
    far = Trajectory(report.rigorous.distances, report.trajectory_bounds * 1.01, 128)
    assert replace(report, rigorous=far).verdict is icgd.Verdict.BROKEN


def test_a_run_that_takes_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(icgd_check, "MOST_MEMORY", 2**12)
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared", n_examples=4)
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=1)
    expected = "icgd-check would refuse a proof of this run: it needs 12 balls at once, too many"
    with pytest.raises(ProofError, match=expected):
        icgd.verify(compiled, case.x, case.y, rigorous=True)


def test_without_python_flint_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(rigorous, "find_spec", lambda name: None)
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=1)
    with pytest.raises(MissingExtraError, match=r"pip install 'icgd\[proofs\]'"):
        icgd.verify(compiled, case.x, case.y, rigorous=True)


def test_a_kernel_of_the_users_own_is_refused():
    """Before it runs, so that nobody waits for it, and whatever is stated of it."""

    def never(u, w):
        raise AssertionError

    for statement in ({}, {"lipschitz": 1.0, "bound": 1.0}):
        icgd.register_kernel("mine for a proof", never, **statement)
        machine = icgd.KernelMachine(2, "mine for a proof")
        problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0))
        compiled = icgd.compile(problem, n_steps=1)
        message = "'mine for a proof' is a function of your own, which no rigorous proof can enc"
        with pytest.raises(SettingError, match=message):
            icgd.verify(compiled, [[0.5, 0.5]], [[1.0]], rigorous=True)
        with pytest.raises(SettingError, match=message):
            compiled.certify([[0.5, 0.5]], [[1.0]])
    KERNELS.pop("mine for a proof")


# Proof-carrying files.


def test_distances_are_rounded_up_to_three_digits():
    assert rounded_up(1.2341e-13) == 1.24e-13
    assert rounded_up(0.0) == 0.0
    for number in (1.23e-13, 0.1, 7.0, 1 / 3, 5e-324, 1.7976931348623157e308):
        short = rounded_up(number)
        assert number <= short <= 1.011 * number or short == 5e-324


def test_certify_writes_what_it_returns(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    path = tmp_path / "run.cert.json"
    proof = compiled.certify(case.x, case.y, path=path, seed=3)
    fields = json.loads(path.read_text())
    run = compiled.run(case.x, case.y, seed=3, backend="literal").parameters
    assert path.read_text() == proof.text
    assert fields["steps"] == [[value.hex() for value in row] for row in run[1:].tolist()]
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
    with pytest.raises(FileError, match="none"):
        compiled.certify(case.x[0], case.y[0], files=(tmp_path / "none", None))
    assert Sources({}).file is None


def test_a_certificate_never_replaces_what_it_is_about(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    file, data = tmp_path / "run.safetensors", tmp_path / "train.csv"
    file.write_bytes(b"run")
    data.write_bytes(b"table")
    for own in (file, data, tmp_path / "." / "train.csv", str(file)):
        with pytest.raises(FileError, match=r"would replace .*\. Write it elsewhere\."):
            compiled.certify(case.x, case.y, path=own, files=(str(file), data))
    assert (file.read_bytes(), data.read_bytes()) == (b"run", b"table")


def test_a_missing_table_is_not_called_a_damaged_transformer(tmp_path):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    with pytest.raises(FileError, match=r"^Cannot read .*none\.csv: No such file or directory\.$"):
        compiled.certify(case.x, case.y, files=(None, str(tmp_path / "none.csv")))


def test_what_cannot_be_certified_is_refused_before_the_run(monkeypatch):
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2)
    monkeypatch.setattr(rigorous, "find_spec", lambda name: None)
    monkeypatch.setattr(icgd.Compiled, "run_task", lambda *parts, **options: pytest.fail("it ran"))
    with pytest.raises(MissingExtraError, match=r"icgd\[proofs\]"):
        compiled.certify(case.x, case.y)


def test_a_proof_shows_itself_in_a_line():
    case = make_case(icgd.MLP((2, 3, 1), "tanh"), "squared")
    proof = icgd.compile(case.problem, "relu-stack", n_steps=2).certify(case.x, case.y, seed=3)
    assert repr(proof) == (
        f"Proof(claim: {proof.claim}; steps: 2; "
        f"distance in the end: at most {proof.distances[-1]:.4g}; bits: {proof.bits})"
    )
