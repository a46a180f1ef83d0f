"""Bounds of functional descent, and of the kernels that it evaluates."""

from dataclasses import replace
from itertools import product
from math import inf, nan

import mpmath
import pytest
import torch

import icgd
from icgd.certificates import report as measured
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import (
    FunctionBounds,
    Rounded,
    Worst,
    kernel_error,
    largest_kernel,
    largest_own,
    moved_error,
    nan_to_infinity,
    own_error,
    sizes_of,
    worst_kernel_error,
    worst_own_error,
)
from icgd.errors import EstimateWarning, KernelError, OverflowedRunError, SizeError, ToleranceError
from icgd.problems import kernel_machine as kernels
from icgd.problems.kernel_machine import KERNELS, KernelHead, register_kernel
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
        layer = "icgd.backends.engine.sum_of_heads"
        monkeypatch.setattr(layer, lambda heads, u, w: 1.000000001 * heads[0].matrix(u, w))
    else:
        layer = "icgd.backends.functional.known_labels"
        monkeypatch.setattr(layer, lambda task: torch.cat([task.y[:-1], 0 * task.y[-1:]]))
    report = icgd.verify(compiled, case.x, case.y, backend="fused")
    assert report.verdict is icgd.Verdict.BROKEN


def test_where_scores_have_no_digit_that_is_known_shares_are_still_at_most_1():
    """The scores of softmax are as large as 1e12, and float32 knows none of their digits."""
    update, domain = icgd.FunctionalStep(0.05), icgd.Domain(1e6, 0.01)
    problem = icgd.Problem(icgd.KernelMachine(2, "softmax"), "squared", update, domain)
    compiled = icgd.compile(problem, n_steps=2)
    x = torch.tensor([[1e6, -9e5], [3e5, 7e5]], dtype=torch.float64)
    y = torch.full((2,), 0.01).double()
    report = icgd.verify(compiled, x, y, dtype="float32", rigorous=False)
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
    how = {"backend": backend, "dtype": dtype, "rigorous": False}
    report = icgd.verify(compiled, x, (4 * x[:, 0]).sin(), **how)
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
            report = icgd.verify(compiled, x, [0.5, -0.5], queries=x[:1], rigorous=False)
        except (icgd.errors.OverflowedRunError, icgd.errors.KernelError):
            break
        for bounds in (report.step_bounds, report.trajectory_bounds, report.prediction_bounds):
            assert not bounds.isnan().any()
        assert report.verdict is icgd.Verdict.HOLDS
    assert report.empty == ("domain_step", "domain_trajectory"), "before the run overflows"


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
    report = icgd.verify(icgd.compile(problem, n_steps=3), x, y, rigorous=False)
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
        lambda: measured.stepwise_errors(problem, task, history).errors,
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


# Bound (a) with momentum.


def worst_of(update: icgd.FunctionalStep, n_steps: int, kernel: str = "rbf") -> Worst:
    machine = icgd.KernelMachine(3, kernel)
    worst = Worst(icgd.Problem(machine, "squared", update, icgd.Domain(2.0, 4.0)), DOUBLE)
    for step in range(n_steps):
        worst.take(step)
    return worst


@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_that_are_short_enough_for_any_data_have_a_small_bound(nesterov):
    limit = (1.5 if nesterov else 3.0) / 64
    short = icgd.FunctionalStep(0.99 * limit, momentum=0.5, nesterov=nesterov)
    long = icgd.FunctionalStep(1.1 * limit, momentum=0.5, nesterov=nesterov)
    assert worst_of(short, 100).error <= 1e-4
    assert worst_of(long, 100).error >= 1.0
    assert worst_of(short, 100, "relu").error >= 1.0


def test_what_is_left_is_bounded_by_the_impulse_response():
    """(2 k + 1) times the norm of the labels, which are 4 at each of 64 examples."""
    update = icgd.FunctionalStep(1 / 64, momentum=0.5)
    assert worst_of(update, 5).residual == pytest.approx(11 * 32.0)
    assert worst_of(update, 5).change == pytest.approx(20 * 32.0)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.9, (0.0, 0.9, 0.1, 0.8)])
def test_runs_stay_within_what_is_said_of_all_tasks(nesterov, momentum):
    update = icgd.FunctionalStep(0.02, momentum=momentum, nesterov=nesterov)
    x = torch.rand(20, 3, generator=torch.Generator().manual_seed(0)).double() / 4
    problem = icgd.Problem(icgd.KernelMachine(3), "squared", update, icgd.Domain(2.0, 4.0))
    task = icgd.as_task(problem, x, torch.full((20, 1), 4.0).double(), queries=x[:2])
    real = problem.oracle.train(task, 4)
    for step in range(1, 5):
        worst = worst_of(update, step)
        values = real[step]
        assert (4.0 - values[:20]).norm() <= worst.residual
        assert values.abs().max() <= worst.value
        assert (values - real[step - 1]).abs().max() <= worst.token_change
        assert (values - real[step - 1])[:20].norm() <= worst.change


def test_what_infinities_make_is_not_known():
    assert (nan_to_infinity(nan), nan_to_infinity(2.0), nan_to_infinity(inf)) == (inf, 2.0, inf)


# Bounds on the rounding of points that a head moves, against float32.


SINGLE = Arithmetic.of(torch.float32, 9, "dense")
G = ((0.7, -0.3, 0.2), (0.1, 0.9, -0.4))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_moved_points_are_off_by_less_than_their_bound_and_not_by_far(scale):
    generator = torch.Generator().manual_seed(0)
    x = (scale * torch.randn(50, 3, generator=generator)).double()
    head, off = KernelHead("rbf", G), 1e-6 * scale * torch.ones_like(x)
    bound = moved_error(head, Rounded(x, off), SINGLE)
    measured = (head.moved((x + off).float()).double() - head.moved(x)).abs()
    assert (measured <= bound).all()
    assert bound.max() <= 20 * measured.max()


def test_sizes_are_those_of_the_terms_and_not_of_their_sum():
    x = torch.tensor([[1.0, -1.0, 2.0]]).double()
    assert sizes_of(KernelHead("rbf", G), x)[0].tolist() == pytest.approx([1.4, 1.8])
    assert sizes_of(KernelHead("rbf"), x)[0].tolist() == [1.0, 1.0, 2.0]


# Bounds on the rounding of kernels, against kernels in low precision and moved points.


H = ((-0.2, 0.5, 0.1), (0.3, 0.8, 0.6))
NAMES = [name for name, kernel in KERNELS.items() if not kernel.is_own]
every_head = pytest.mark.parametrize(
    "head",
    [
        KernelHead(name, *matrices)
        for name in NAMES
        for matrices in ((None, 1.5), (G, 1.5), (G, 1.5, None, H))
    ],
    ids=lambda head: (
        f"{head.kernel}-{'G' if head.transform else 'I'}{'H' if head.key_transform else ''}"
    ),
)


def points(seed: int) -> torch.Tensor:
    """Numbers that float32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(9, 3, generator=generator).clamp(-2, 2).double()


@every_head
def test_float32_kernels_err_by_less_than_their_bound_and_not_by_far(head):
    x = points(0)
    exact = Rounded(x, torch.zeros_like(x))
    bound = kernel_error(head, exact, exact, SINGLE)
    measured = (head.matrix(x.float(), x.float()).double() - head.matrix(x, x)).abs()
    assert (measured <= bound).all()
    assert bound.max() <= 3000 * measured.max()


@every_head
def test_moved_points_move_the_kernel_by_less_than_its_bound(head):
    x, way = points(1), points(2)
    moved = x + 1e-3 * way
    bound = kernel_error(head, *[Rounded(x, 1e-3 * way.abs())] * 2, SINGLE)
    measured = (head.matrix(moved, moved) - head.matrix(x, x)).abs()
    assert (measured <= bound).all()
    assert bound.max() <= 60 * measured.max()


@every_head
def test_no_kernel_in_the_domain_is_larger_or_rounds_more_than_the_worst(head):
    worst = Rounded(torch.full((1, 3), 2.0).double(), torch.full((1, 3), 1e-4).double())
    x = points(3)
    found = Rounded(x, torch.full_like(x, 1e-4))
    assert head.matrix(x, x).abs().max() <= largest_kernel(head, worst.points)
    assert kernel_error(head, found, found, SINGLE).max() <= worst_kernel_error(head, worst, SINGLE)


@pytest.mark.parametrize("kernel", ["exp", "polynomial"])
def test_the_largest_kernel_is_not_rounded_below_the_kernel_itself(kernel):
    """In float32, 0.01 would be a little less."""
    head, x = KernelHead(kernel), torch.tensor([[0.1]], dtype=torch.float64)
    assert largest_kernel(head, x) >= float(head.matrix(x, x))


def test_no_kernel_of_the_users_own_is_bounded_without_a_statement(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    register_kernel("secret", lambda u, w: torch.exp(-(u @ w.mT).abs()))
    head, x = KernelHead("secret"), Rounded(points(4), torch.zeros(9, 3).double())
    assert largest_kernel(head, x.points[:1]) == float("inf")
    assert worst_kernel_error(head, Rounded(*(part[:1] for part in x)), SINGLE) == float("inf")


def test_a_head_of_the_users_own_kernel_has_its_transform_and_weight(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    register_kernel("known", lambda u, w: torch.tanh(u @ w.mT), lipschitz=lambda r: r, bound=1.0)
    x = Rounded(points(4), torch.full((9, 3), 1e-4).double())
    head, moved = KernelHead("known", G, 1.5), points(4) + 1e-4
    bound = kernel_error(head, x, x, SINGLE)
    assert torch.allclose(bound, 1.5 * own_error(head, x, x, SINGLE), rtol=1e-9)
    measured = (head.matrix(moved, moved) - head.matrix(x.points, x.points)).abs()
    assert (measured <= bound).all()
    worst = Rounded(torch.full((1, 3), 2.0).double(), torch.full((1, 3), 1e-4).double())
    assert largest_kernel(head, worst.points) == 1.5
    assert bound.max() <= worst_kernel_error(head, worst, SINGLE)


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "matern", "softmax"])
@pytest.mark.parametrize("off", [10.0, 1e30, float("inf")])
def test_what_lies_between_0_and_1_is_off_by_at_most_1_however_far_its_points_are(kernel, off):
    x = Rounded(points(5), torch.full((9, 3), off).double())
    assert (kernel_error(KernelHead(kernel), x, x, SINGLE) <= 1 + 1e-4).all()
    one = Rounded(*(part[:1] for part in x))
    assert worst_kernel_error(KernelHead(kernel), one, SINGLE) <= 1 + 1e-4


@pytest.mark.parametrize("shape", [0.5, 1.5, 2.5])
def test_every_matern_kernel_is_as_steep_as_its_bound_says(shape):
    """Pairs of points on a line, from next to each other to far apart."""
    far = torch.linspace(0, 6, 200).double()[:, None]
    origin, head = torch.zeros(1, 1).double(), KernelHead("matern", shape=shape)
    double = Arithmetic.of(torch.float64, 200, "dense")
    off = torch.full_like(far, 1e-4)
    bound = kernel_error(
        head, Rounded(far, off), Rounded(origin, torch.zeros(1, 1).double()), double
    )
    exact = head.matrix(far, origin)
    moved = torch.maximum(*((head.matrix(far + way, origin) - exact).abs() for way in (off, -off)))
    assert (moved <= bound).all()
    assert (bound[2:] <= 1.1 * moved[2:] + 1e-13).all()


# Bounds of kernels of a user's own: real numbers hold them, and false statements are found.


PRECISIONS = ["float64", "float32"]
BACKENDS = ["fused", "dense"]


def distance(u, w):
    return torch.cdist(u, w, compute_mode="donot_use_mm_for_euclid_dist")


def falling(u, w):
    return torch.exp(-distance(u, w))


def cube(u, w):
    return (0.5 + u @ w.mT) ** 3


def jump(u, w):
    return (distance(u, w) < 0.5).to(u.dtype)


FALLING = {"lipschitz": 1.0, "bound": 1.0}
CUBE = {"lipschitz": lambda r: 3 * (0.5 + r * r) ** 2 * r, "bound": lambda r: (0.5 + r * r) ** 3}

REAL = {
    "falling": lambda u, w: mpmath.exp(-mpmath.norm([a - b for a, b in zip(u, w, strict=True)])),
    "cube": lambda u, w: (mpmath.mpf("0.5") + mpmath.fdot(u, w)) ** 3,
}
"""The kernels in real numbers, to 50 digits."""


@pytest.fixture(autouse=True)
def _own_names(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))


def data(n: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers that float32 holds exactly: inputs, labels and two queries."""
    draw = torch.Generator().manual_seed(seed)
    x = (2 * torch.rand(n + 2, 3, generator=draw) - 1).double()
    return x[:n], torch.sin(4 * x[:n, 0]).float().double(), x[n:]


def compiled(name: str, n_steps: int = 3, **update: float) -> icgd.Compiled:
    machine = icgd.KernelMachine(3, icgd.KernelHead(name, weight=0.5))
    step = icgd.FunctionalStep(0.125, noise=0.0625, **update)
    problem = icgd.Problem(machine, "squared", step, icgd.Domain(1.0, 1.0))
    return icgd.compile(problem, n_steps=n_steps)


def in_real_numbers(name: str, n_steps: int) -> list[list[float]]:
    """The values at all tokens after each step, by functional descent in 50 digits."""
    x, y, queries = data()
    points = [[mpmath.mpf(c) for c in row] for row in torch.cat([x, queries]).tolist()]
    n, values = len(x), [mpmath.mpf(0)] * len(points)
    noise, size, half = mpmath.mpf("0.0625"), mpmath.mpf("0.125"), mpmath.mpf("0.5")
    kernel = [[half * REAL[name](u, w) for w in points[:n]] for u in points]
    history = []
    for _ in range(n_steps):
        left = [mpmath.mpf(label) - f for label, f in zip(y.tolist(), values, strict=False)]
        sums = [mpmath.fdot(row, left) for row in kernel]
        own = [noise * part for part in left] + [0] * (len(points) - n)
        values = [f + size * (s + o) for f, s, o in zip(values, sums, own, strict=True)]
        history.append(values)
    return history


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", ["falling", "cube"])
def test_with_constants_that_are_stated_a_run_is_as_near_to_real_numbers_as_proved(
    name, dtype, backend
):
    icgd.register_kernel(name, globals()[name], **{"falling": FALLING, "cube": CUBE}[name])
    x, y, queries = data()
    program = compiled(name)
    report = icgd.verify(program, x, y, queries=queries, backend=backend, dtype=dtype)
    assert report.verdict is icgd.Verdict.HOLDS
    assert report.certificate.stated == (name,)
    assert report.certificate.estimated == ()
    run = program.run(x, y, queries=queries, backend=backend, dtype=dtype)
    with mpmath.workdps(50):
        pairs = zip(in_real_numbers(name, 3), run.parameters[1:].tolist(), strict=True)
        far = [max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in pairs]
    for distance_, bound in zip(far, report.trajectory_bounds.tolist(), strict=True):
        assert distance_ <= bound <= report.certificate.domain_trajectory
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    assert report.trajectory_bounds.max() <= 5000 * unit, "it says something"
    assert report.certificate.domain_step <= 1e8 * unit


@pytest.mark.parametrize(
    ("name", "scale"),
    [*product(["falling", "cube"], [1e-30, 1e-3, 1.0, 1e3]), ("falling", 1e18)],
)
def test_float32_errs_by_less_than_the_bound_at_every_scale(name, scale):
    kernel = icgd.register_kernel(name, globals()[name], **{"falling": FALLING, "cube": CUBE}[name])
    x = (scale * data(30)[0]).float().double()
    moved = (x + 1e-5 * scale).float()
    arithmetic = Arithmetic.of(torch.float32, 30, "dense")
    off = (moved.double() - x).abs()
    bound = own_error(
        KernelHead(name), Rounded(x, off), Rounded(x, torch.zeros_like(x)), arithmetic
    )
    measured = (kernel.matrix(moved, x.float()).double() - kernel.matrix(x, x)).abs()
    assert (measured <= bound).all()
    worst = float(x.norm(dim=-1).max()), float(off.norm(dim=-1).max())
    assert bound.max() <= worst_own_error(kernel, *worst, 3, arithmetic) * (1 + 1e-6)
    assert kernel.matrix(x, x).abs().max() <= largest_own(kernel, worst[0], 3) * (1 + 1e-12)


def test_without_a_bound_the_largest_kernel_follows_from_the_lipschitz_constant():
    kernel = icgd.register_kernel("falling", falling, lipschitz=1.0)
    assert largest_own(kernel, 2.0, 3) == pytest.approx(1 + 2 * 2.0, rel=1e-6)
    assert largest_own(icgd.register_kernel("unstated", falling), 2.0, 3) == inf
    x, y, _ = data()
    report = icgd.verify(compiled("falling"), x, y)
    assert report.verdict is icgd.Verdict.HOLDS
    assert report.certificate.domain_trajectory < 1e-8


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("function", [falling, cube, jump])
def test_if_nothing_is_stated_bounds_are_estimates_and_no_proof(function, dtype, backend):
    icgd.register_kernel("unstated", function)
    x, y, queries = data()
    with pytest.warns(EstimateWarning, match="the kernel 'unstated' that are estimated"):
        report = icgd.verify(
            compiled("unstated"), x, y, queries=queries, dtype=dtype, backend=backend
        )
    assert report.verdict is icgd.Verdict.HOLDS_ESTIMATED
    assert report.verdict.holds
    assert report.certificate.estimated == ("unstated",)
    assert report.empty == ("domain_step", "domain_trajectory")
    assert report.trajectory_bounds.max() < (1e-8 if dtype == "float64" else 1.0)


def test_no_tolerance_rests_on_an_estimate():
    icgd.register_kernel("unstated", falling)
    x, y, _ = data()
    program = compiled("unstated")
    message = "no Lipschitz constant was given for the kernel 'unstated'"
    for task in (None, program.task(x, y)):
        with pytest.raises(ToleranceError, match=message):
            icgd.compile(program.problem, n_steps=1, tolerance=1e-3, task=task)
    icgd.register_kernel("unstated", falling, lipschitz=1.0)
    assert icgd.compile(program.problem, n_steps=1, tolerance=1e-3, task=program.task(x, y))


def with_many_points(u, w):
    """Distances by products, as torch takes them for more than 25 points: they cancel."""
    squares = u.square().sum(-1)[..., :, None] + w.square().sum(-1)[..., None, :] - 2 * u @ w.mT
    return torch.exp(-squares.clamp(min=0).sqrt())


FALSE = {
    "too flat": (falling, {"lipschitz": 0.3}, r"it changes by 0\.\d+ between .* lipschitz is 0.3"),
    "jumps": (jump, FALLING, r"it changes by 1 between two points .* 0\.\d+ apart, and lip"),
    "too small": (falling, {"lipschitz": 1.0, "bound": 0.5}, r"it is 1 at \[0, 0\], and bound is"),
    "cancels": (with_many_points, FALLING, r"changes by \S+ at \S+ \S+ if a point moves by its la"),
    "shares": (
        lambda u, w: torch.softmax(u @ w.mT, dim=-1),
        {"lipschitz": 10.0, "symmetric": False},
        r"not a function of two points: at \[0, 0\] it is 1 for the pair alone and 0\.",
    ),
    "no number": (
        falling,
        {"lipschitz": lambda r: nan},
        r"^lipschitz of kernel 'no number' is nan for points of norm up to 1\.\d+; expected a",
    ),
    "negative": (falling, {"lipschitz": 1.0, "bound": lambda r: -r}, "^bound of .* is -1"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", FALSE)
def test_what_contradicts_its_statement_is_an_error(name, dtype, backend):
    function, statement, message = FALSE[name]
    icgd.register_kernel(name, function, **statement)
    x, y, _ = data(30)
    with pytest.raises(KernelError, match=message):
        icgd.verify(compiled(name), x, y, dtype=dtype, backend=backend)


def test_what_is_beyond_a_bound_of_a_kernel_as_stated_is_in_doubt(monkeypatch):
    icgd.register_kernel("falling", falling, **FALLING)
    x, y, _ = data()
    layer = "icgd.backends.engine.sum_of_heads"
    monkeypatch.setattr(layer, lambda heads, u, w: 1.000000001 * heads[0].matrix(u, w))
    report = icgd.verify(compiled("falling"), x, y, backend="fused")
    assert report.verdict is icgd.Verdict.IN_DOUBT
    assert not report.verdict.holds


@pytest.mark.parametrize("lipschitz", [lambda r: inf, lambda r: (1e200 + r) ** 2])
def test_a_constant_that_is_infinite_is_no_information(lipschitz):
    icgd.register_kernel("unknown", cube, lipschitz=lipschitz)
    x, y, queries = data()
    report = icgd.verify(compiled("unknown"), x, y, queries=queries)
    assert report.verdict is icgd.Verdict.HOLDS_EMPTY
    assert report.empty == (
        "step_bounds",
        "trajectory_bounds",
        "prediction_bounds",
        "domain_step",
        "domain_trajectory",
    )
    for bounds in (report.step_bounds, report.trajectory_bounds, report.prediction_bounds):
        assert (bounds == inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_kernel_with_a_bound_keeps_its_bounds_where_inputs_move(dtype, backend):
    icgd.register_kernel("falling", falling, **FALLING)
    x, y, queries = data()
    report = icgd.verify(
        compiled("falling", 60, transforms=0.02),
        x,
        y,
        queries=queries,
        dtype=dtype,
        backend=backend,
    )
    assert report.verdict is icgd.Verdict.HOLDS
    assert report.trajectory_bounds.isfinite().all()


def test_kernels_are_compared_in_every_task_of_a_batch():
    icgd.register_kernel("late", lambda u, w: falling(u, w) + jump(u, w - 10), lipschitz=1.0)
    x, y, _ = data()
    task = torch.stack([x, x / 2]), torch.stack([y, y])
    assert icgd.verify(compiled("late"), *task).verdict is icgd.Verdict.HOLDS
    icgd.register_kernel("late", lambda u, w: falling(u, 0.1 / w.abs().amin() * w), lipschitz=1.0)
    with pytest.raises(KernelError, match="'late'"):
        icgd.verify(compiled("late"), *task)


def cosine(u, w):
    return (u / u.norm(dim=-1, keepdim=True)) @ (w / w.norm(dim=-1, keepdim=True)).mT


def test_a_kernel_that_is_not_defined_at_0_needs_a_bound_for_all_data():
    """It is steep near 0 only, where these points are not."""
    x, y, _ = data()
    icgd.register_kernel("cosine", cosine, lipschitz=8.0)
    report = icgd.verify(compiled("cosine"), x, y)
    assert report.empty == ("domain_step", "domain_trajectory")
    assert report.verdict is icgd.Verdict.HOLDS
    icgd.register_kernel("cosine", cosine, lipschitz=8.0, bound=1.0)
    assert icgd.verify(compiled("cosine"), x, y).empty == ()


def test_one_example_alone_has_nothing_to_be_compared_with():
    icgd.register_kernel("falling", falling, **FALLING)
    assert icgd.verify(compiled("falling"), [[0.5, 0.5, 0.0]], [1.0]).verdict.holds
    icgd.register_kernel("unstated", falling)
    with pytest.warns(EstimateWarning):
        assert icgd.verify(compiled("unstated"), [[0.5, 0.5, 0.0]], [1.0]).verdict.holds
