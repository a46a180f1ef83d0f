"""Bounds of functional descent: what they hold against is in tests/end_to_end."""

from dataclasses import replace
from math import inf

import pytest
import torch

import icgd
from icgd.certificates import report as measured
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import FunctionBounds
from icgd.errors import OverflowedRunError, SizeError
from icgd.problems import kernel_machine as kernels
from tests.cases import KERNEL_CASES

DOUBLE = Arithmetic.of(torch.float64, 64, "dense")


def problem_of(step_size: float, kernel: str = "rbf") -> icgd.Problem:
    update = icgd.FunctionalStep(step_size)
    return icgd.Problem(icgd.KernelMachine(3, kernel), "squared", update, icgd.Domain(2.0, 4.0))


def bounds_of(problem: icgd.Problem, n_steps: int) -> FunctionBounds:
    return FunctionBounds(problem, icgd.compile(problem, n_steps=n_steps).program, DOUBLE)


def test_where_steps_converge_the_bound_of_a_run_grows_with_the_square_of_its_length():
    """Errors do not multiply: they add up on the examples, and once more where those are read."""
    problem, case = problem_of(0.2), KERNEL_CASES[3]
    task = icgd.as_task(problem, case.x, case.y, queries=case.queries)
    real = problem.oracle.train(task, 400)
    proved = bounds_of(problem, 400).run(task, real, real)
    bounds, one = proved.trajectory, proved.steps
    assert bounds[-1] <= 400**2 * one.max()
    assert bounds[-1] <= 1e-9


def test_on_the_domain_too_if_the_step_is_short_enough_for_any_data():
    short, long = 2 / 64, 2.5 / 64
    assert bounds_of(problem_of(short), 100).domain().trajectory <= 1e-6
    assert bounds_of(problem_of(long), 100).domain().trajectory >= 1.0
    assert bounds_of(problem_of(short, "relu"), 100).domain().trajectory >= 1.0


def test_no_steps_have_no_error():
    bound = bounds_of(problem_of(0.1), 0).domain()
    assert (bound.step, bound.trajectory) == (0.0, 0.0)


def test_kernels_of_the_users_own_are_named_by_whether_something_is_stated_of_them(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))
    icgd.register_kernel("known", lambda u, w: u @ w.mT, lipschitz=lambda r: r)
    icgd.register_kernel("unknown", lambda u, w: u @ w.mT)
    names = ("known", "rbf", "unknown", "known")
    machine = icgd.KernelMachine(3, tuple(icgd.KernelHead(name) for name in names))
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.01), icgd.Domain(2.0, 4.0))
    bounds = bounds_of(problem, 2)
    assert (bounds.stated, bounds.estimated) == (("known",), ("unknown",))
    assert bounds.domain().trajectory == torch.inf
    built_in = bounds_of(problem_of(0.1), 2)
    assert (built_in.stated, built_in.estimated) == ((), ())


@pytest.mark.parametrize("part", ["kernel", "sum"])
def test_a_wrong_layer_breaks_its_bound(part, monkeypatch):
    """The certificate notices a kernel that is off by 1e-9, and a forgotten example."""
    case = KERNEL_CASES[3]
    compiled = icgd.compile(case.problem, n_steps=2)
    right = icgd.verify(compiled, case.x, case.y)
    assert right.verdict.holds
    if part == "kernel":
        layer = "icgd.backends.operations.sum_of_heads"
        monkeypatch.setattr(layer, lambda heads, u, w: 1.000000001 * heads[0].matrix(u, w))
    else:
        layer = "icgd.backends.functional.known_labels"
        monkeypatch.setattr(layer, lambda task: torch.cat([task.y[:-1], 0 * task.y[-1:]]))
    assert icgd.verify(compiled, case.x, case.y).verdict is icgd.Verdict.BROKEN


def test_where_scores_have_no_digit_that_is_known_shares_are_still_at_most_1():
    """The scores of softmax are as large as 1e12, and float32 knows none of their digits."""
    update, domain = icgd.FunctionalStep(0.05), icgd.Domain(1e6, 0.01)
    problem = icgd.Problem(icgd.KernelMachine(2, "softmax"), "squared", update, domain)
    compiled = icgd.compile(problem, n_steps=2)
    x = torch.tensor([[1e6, -9e5], [3e5, 7e5]], dtype=torch.float64)
    report = icgd.verify(compiled, x, torch.full((2,), 0.01).double(), dtype="float32")
    assert report.trajectory_bounds.max() <= 0.01
    assert report.verdict is icgd.Verdict.HOLDS


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kernel", ["rbf", "laplace", "matern", "softmax"])
def test_where_inputs_move_the_bounds_of_kernels_up_to_1_stay_finite(kernel, dtype, backend):
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(20, 3, generator=draw).double()
    update = icgd.FunctionalStep(0.05, noise=0.1, transforms=0.02)
    problem = icgd.Problem(icgd.KernelMachine(3, kernel), "squared", update, icgd.Domain(1.1, 2.0))
    compiled = icgd.compile(problem, n_steps=60)
    report = icgd.verify(compiled, x, (4 * x[:, 0]).sin(), backend=backend, dtype=dtype)
    assert report.empty == ()
    assert report.verdict is icgd.Verdict.HOLDS
    unit = torch.finfo(getattr(torch, dtype)).eps
    assert report.trajectory_bounds[4] <= 1e5 * unit, "after a few steps it says something"


@pytest.mark.parametrize("kernel", ["linear", "exp", "polynomial"])
def test_where_inputs_move_and_bounds_leave_the_range_they_are_no_information(kernel):
    """The run itself stays in range: its two examples move on their own, and not for long."""
    x = torch.tensor([[0.9, 0.2], [-0.3, 0.8]]).double()
    update = icgd.FunctionalStep(0.01, transforms=0.3)
    problem = icgd.Problem(icgd.KernelMachine(2, kernel), "squared", update, icgd.Domain(1.0, 1.0))
    for n_steps in range(1, 40):
        compiled = icgd.compile(problem, n_steps=n_steps)
        try:
            report = icgd.verify(compiled, x, [0.5, -0.5], queries=x[:1])
        except (icgd.errors.OverflowedRunError, icgd.errors.KernelError):
            break
        for bounds in (report.step_bounds, report.trajectory_bounds, report.prediction_bounds):
            assert not bounds.isnan().any()
        assert report.verdict.holds
        assert report.verdict is (icgd.Verdict.HOLDS_EMPTY if report.empty else icgd.Verdict.HOLDS)
    assert report.empty, "infinite before the run overflows"


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_momentum_that_is_a_little_off_breaks_its_bound(backend, nesterov):
    case = KERNEL_CASES[3]
    right, wrong = (
        replace(
            case.problem,
            update=icgd.FunctionalStep(0.3, 0.1, momentum=momentum, nesterov=nesterov),
        )
        for momentum in (0.6, 0.6 + 1e-9)
    )
    compiled = icgd.compile(right, n_steps=4)
    assert icgd.verify(compiled, case.x, case.y, backend=backend).verdict is icgd.Verdict.HOLDS
    other = replace(icgd.compile(wrong, n_steps=4), problem=right)
    report = icgd.verify(other, case.x, case.y, backend=backend)
    assert report.verdict is icgd.Verdict.BROKEN


def test_where_steps_with_momentum_converge_the_bound_of_a_run_stays_small():
    """The matrix of a step has a norm of about 2, so that multiplied norms would be 1e90."""
    case = KERNEL_CASES[3]
    found = icgd.spectrum(icgd.KernelMachine(3), case.x, noise=0.1)
    problem = replace(case.problem, update=icgd.heavy_ball(found.low, found.high, noise=0.1))
    task = icgd.as_task(problem, case.x, case.y, queries=case.queries)
    real = problem.oracle.train(task, 300)
    proved = bounds_of(problem, 300).run(task, real, real)
    assert proved.trajectory[-1] <= 1e-9
    assert proved.steps.max() <= 1e-11


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_a_billion_steps_of_a_function_are_certified_and_refused_at_once(momentum):
    step = icgd.FunctionalStep(1e-4, momentum=momentum)
    problem = icgd.Problem(icgd.KernelMachine(2), "squared", step, icgd.Domain(x=1.0, y=1.0))
    run = icgd.compile(problem, n_steps=10**9)
    assert run.certificate().domain_trajectory == inf
    with pytest.raises(SizeError, match="The history of 1,000,000,000 steps"):
        run.run(torch.zeros(30, 2), torch.zeros(30))


def test_ten_thousand_steps_with_momentum_are_certified():
    step = icgd.FunctionalStep(1e-4, momentum=0.9)
    problem = icgd.Problem(icgd.KernelMachine(2), "squared", step, icgd.Domain(x=1.0, y=1.0))
    assert icgd.compile(problem, n_steps=10**4).certificate().domain_step < 1e-3


@pytest.mark.parametrize("largest", [1.0, 1e-150, 1e-200, 1e-300])
@pytest.mark.parametrize("momentum", [None, 0.5])
def test_errors_of_tiny_labels_are_not_squared_away(largest, momentum):
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(3, 2, generator=generator, dtype=torch.float64)
    y = largest * torch.rand(3, 1, generator=generator, dtype=torch.float64)
    step, domain = icgd.FunctionalStep(0.5, momentum=momentum), icgd.Domain(x=2.0, y=largest)
    problem = icgd.Problem(icgd.KernelMachine(2, "rbf"), "squared", step, domain)
    report = icgd.verify(icgd.compile(problem, n_steps=3), x, y)
    assert report.verdict.holds
    assert bool((report.trajectory_bounds > 0).all())


def test_training_that_leaves_the_range_of_numbers_is_nothing_to_compare_with():
    """A run may stay in it by a hair where real training, which rounds otherwise, does not."""
    step, domain = icgd.FunctionalStep((0.5, 1e100)), icgd.Domain(x=0.5, y=1e300)
    problem = icgd.Problem(icgd.KernelMachine(1, "linear"), "squared", step, domain)
    task = icgd.as_task(problem, [[0.5], [0.25]], [1e300, 5e299])
    history = torch.full((3, 2), -1e300, dtype=torch.float64)
    for measure in (
        lambda: measured.real_training(problem, task, 2),
        lambda: measured.stepwise_errors(problem, task, history),
    ):
        with pytest.raises(OverflowedRunError, match=r"^Real training leaves the range of float64"):
            measure()


@pytest.mark.filterwarnings("ignore::icgd.errors.DivergenceWarning")
@pytest.mark.parametrize(
    ("kernel", "sizes", "noise"),
    [("linear", (1.0, 1e308), 0.0), ("softmax", (0.1, 1e308), 2.0), ("exp", (1.0, 1.7e308), 0.1)],
)
def test_steps_beyond_all_numbers_are_not_taken_for_broken_ones(kernel, sizes, noise, tmp_path):
    """The run or the oracle may stay within the range of numbers where the other one leaves it."""
    machine, step = icgd.KernelMachine(1, kernel), icgd.FunctionalStep(sizes, noise=noise)
    problem = icgd.Problem(machine, "squared", step, icgd.Domain(x=2.0, y=0.1))
    compiled = icgd.compile(problem, n_steps=2)
    compiled.save(tmp_path / "run.safetensors")
    assert icgd.load(tmp_path / "run.safetensors") == compiled
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.rand(3, 1, generator=generator, dtype=torch.float64) for _ in range(2))
        try:
            report = icgd.verify(compiled, 2 * x, 0.1 * y, queries=x)
        except OverflowedRunError:
            continue
        assert report.verdict.holds
