"""Bounds of kernels of a user's own: real numbers hold them, and false statements are found."""

from itertools import product
from math import inf, nan

import mpmath
import pytest
import torch

import icgd
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import Rounded, largest_own, own_error, worst_own_error
from icgd.errors import EstimateWarning, KernelError, ToleranceError
from icgd.problems import kernel_machine as kernels
from icgd.problems.kernel_machine import KernelHead

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
    how = Arithmetic.of(torch.float32, 30, "dense")
    off = (moved.double() - x).abs()
    bound = own_error(KernelHead(name), Rounded(x, off), Rounded(x, torch.zeros_like(x)), how)
    measured = (kernel.matrix(moved, x.float()).double() - kernel.matrix(x, x)).abs()
    assert (measured <= bound).all()
    worst = float(x.norm(dim=-1).max()), float(off.norm(dim=-1).max())
    assert bound.max() <= worst_own_error(kernel, *worst, 3, how) * (1 + 1e-6)
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
    message = "no Lipschitz constant was stated of the kernel 'unstated'"
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
        r"^lipschitz of kernel 'no number' is nan for points of norm up to 1\.\d+; expected a numb",
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
    layer = "icgd.backends.functional.sum_of_heads"
    monkeypatch.setattr(layer, lambda heads, u, w: 1.000000001 * heads[0].matrix(u, w))
    report = icgd.verify(compiled("falling"), x, y)
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
    assert report.verdict is icgd.Verdict.HOLDS_EMPTY
    icgd.register_kernel("cosine", cosine, lipschitz=8.0, bound=1.0)
    assert icgd.verify(compiled("cosine"), x, y).verdict is icgd.Verdict.HOLDS


def test_one_example_alone_has_nothing_to_be_compared_with():
    icgd.register_kernel("falling", falling, **FALLING)
    assert icgd.verify(compiled("falling"), [[0.5, 0.5, 0.0]], [1.0]).verdict.holds
    icgd.register_kernel("unstated", falling)
    with pytest.warns(EstimateWarning):
        assert icgd.verify(compiled("unstated"), [[0.5, 0.5, 0.0]], [1.0]).verdict.holds
