"""Eigenvalues of kernels, and the steps that diverge on them."""

import pytest
import torch

import icgd
from icgd.errors import DataError, DivergenceWarning, KernelError, SettingError
from icgd.problems import spectrum as module
from icgd.problems.kernel_machine import KERNELS
from icgd.problems.linear_model import LINKS, LinearModel
from icgd.problems.spectrum import (
    Curvature,
    Divergence,
    Spectrum,
    common,
    curvature,
    divergence,
    everywhere,
    growth,
    outermost,
    over_ball,
    over_box,
    spanned,
    spectrum,
)
from icgd.problems.steps import ProximalStep
from tests.bare_oracles import on_linear_model as reference

LINE = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double()
"""Examples whose linear kernel has eigenvalues 1, 4 and 9."""


def task_of(kernel, update, x=LINE):
    machine = icgd.KernelMachine(3, kernel)
    problem = icgd.Problem(machine, "squared", update, icgd.Domain(4.0, 1.0))
    return problem, icgd.as_task(problem, x, torch.ones(*x.shape[:-1], 1).double())


def divergence_of(problem, task, n_steps):
    return divergence(problem.machine, problem.functional_step, task.x, n_steps)


def test_the_spectrum_has_the_smallest_and_the_largest_eigenvalue():
    found = spectrum(icgd.KernelMachine(3, "linear"), LINE, noise=0.5)
    assert found.low == pytest.approx(1.5)
    assert found.high == pytest.approx(9.5)
    assert found.condition == pytest.approx(9.5 / 1.5)
    assert Spectrum(-1.0, 2.0).condition == float("inf")
    with pytest.raises(KernelError, match="The spectrum needs a symmetric kernel, and 'softm"):
        spectrum(icgd.KernelMachine(3, "softmax"), LINE)


def test_shares_whose_eigenvalues_are_not_found_have_the_largest_eigenvalue_1():
    """Rows of softmax add up to 1; far from 0 almost every share is 0 or 1."""
    x = torch.randn(31, 5, generator=torch.Generator().manual_seed(0)).double() + 100
    machine = icgd.KernelMachine(5, "softmax")
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.eigvals(machine.matrix(x, x))
    assert divergence(machine, icgd.FunctionalStep(1.9), x, 1) is None
    found = divergence(machine, icgd.FunctionalStep(2.5), x, 1)
    assert found.eigenvalue == pytest.approx(1.0)
    assert found.growth == pytest.approx(1.5)


def test_growth_is_that_of_the_recurrence():
    eigenvalues = torch.tensor([4.0, 1.0], dtype=torch.float64)
    plain = icgd.FunctionalStep((0.5, 0.1))
    torch.testing.assert_close(growth(plain, eigenvalues, 2).tolist(), [0.6, 0.45])
    heavy = icgd.FunctionalStep(0.5, momentum=0.5)  # 1, 1 - 2, -1 - 1 + 2 of 4; 1, 0.5, 0 of 1
    torch.testing.assert_close(growth(heavy, eigenvalues, 2).tolist(), [0.0, 0.0])
    ahead = icgd.FunctionalStep(0.5, momentum=0.5, nesterov=True)  # (1 - 2) (-1 - 1), (1/2) (1/4)
    torch.testing.assert_close(growth(ahead, eigenvalues, 2).tolist(), [2.0, 0.125])


def test_errors_that_grow_at_first_and_shrink_in_the_end_are_no_divergence():
    x = torch.diag(torch.linspace(0.1, 10.0, 40)).double()
    update = icgd.heavy_ball(0.01, 100.0)
    assert growth(update, torch.tensor([100.0]).double(), 10) > 5
    assert divergence(icgd.KernelMachine(40, "linear"), update, x, 10) is None


def test_momentum_allows_longer_steps_and_nesterovs_shorter_ones():
    """The limits are 2 (1 + m) / 9 = 0.333 and (1 + 1 / (1 + 2 m)) / 9 = 0.1667 for m = 0.5."""
    for nesterov, limit in ((False, 3 / 9), (True, 1.5 / 9)):
        for factor, diverges in ((0.99, False), (1.01, True)):
            update = icgd.FunctionalStep(factor * limit, momentum=0.5, nesterov=nesterov)
            assert bool(divergence_of(*task_of("linear", update), n_steps=200)) is diverges


@pytest.mark.parametrize(
    ("size", "noise", "grows"), [(0.22, 0.0, None), (0.24, 0.0, 9.0), (0.22, 0.5, 9.5)]
)
def test_a_constant_step_diverges_beyond_two_over_the_largest_eigenvalue(size, noise, grows):
    problem, task = task_of("linear", icgd.FunctionalStep(size, noise))
    worst = divergence_of(problem, task, n_steps=3)
    if grows is None:
        assert worst is None
    else:
        assert worst is not None
        assert worst.eigenvalue == pytest.approx(grows)
        assert worst.growth == pytest.approx(abs(1 - size * grows) ** 3)


def test_a_schedule_is_judged_as_a_whole():
    """Single steps may be long if others make up for them."""
    steps = icgd.chebyshev_steps(1.0, 9.0, 6)
    assert max(steps) * 9.0 > 2
    assert divergence_of(*task_of("linear", icgd.FunctionalStep(steps)), n_steps=6) is None
    short = icgd.chebyshev_steps(1.0, 4.0, 6)
    worst = divergence_of(*task_of("linear", icgd.FunctionalStep(short)), n_steps=6)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(9.0)


def test_a_negative_eigenvalue_lets_every_step_diverge():
    x = torch.tensor([[1.0, 0, 0], [-0.5, 3, 0], [-0.5, -3, 0], [1.0, 1, 0], [1.0, -1, 0]]).double()
    worst = divergence_of(*task_of("relu", icgd.FunctionalStep(1e-3), x), n_steps=2)
    assert isinstance(worst, Divergence)
    assert worst.eigenvalue < 0
    assert worst.growth > 1


def test_softmax_is_judged_by_its_complex_eigenvalues():
    assert divergence_of(*task_of("softmax", icgd.FunctionalStep(0.9)), n_steps=4) is None
    worst = divergence_of(*task_of("softmax", icgd.FunctionalStep(2.5)), n_steps=4)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(1.0)


def test_of_a_batch_the_worst_task_counts():
    batch = torch.stack([LINE, 1.1 * LINE])
    problem, task = task_of("linear", icgd.FunctionalStep(0.2), batch)
    worst = divergence_of(problem, task, n_steps=1)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(1.21 * 9)


def cloud(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(0)).double()


def test_many_examples_are_judged_by_the_largest_eigenvalue(monkeypatch):
    monkeypatch.setattr(module, "EXACT_SIZE", 2)
    worst = divergence_of(*task_of("linear", icgd.FunctionalStep(0.3)), n_steps=2)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(9.0, rel=1e-6)
    assert worst.growth == pytest.approx(1.7**2, rel=1e-6)


@pytest.mark.parametrize("n_examples", [500, 600])
def test_a_negative_eigenvalue_is_seen_however_many_examples_there_are(n_examples):
    x = cloud(n_examples).clip(-4, 4)
    problem, task = task_of("relu", icgd.FunctionalStep(1e-5), x)
    exact = spectrum(problem.machine, x)
    assert exact.low < -10
    worst = divergence_of(problem, task, n_steps=100)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(exact.low, rel=1e-3)
    assert worst.growth == pytest.approx((1 - 1e-5 * exact.low) ** 100, rel=1e-3)


@pytest.fixture
def lopsided():
    """A kernel that is not symmetric and has negative eigenvalues."""

    def matrix(u, w):
        return torch.relu(u @ w.mT) + 0.1 * u[..., :1] * w[..., 1:2].mT

    yield icgd.register_kernel("lopsided", matrix, symmetric=False).name
    del KERNELS["lopsided"]


@pytest.mark.parametrize("n_examples", [500, 600])
def test_a_negative_eigenvalue_of_a_kernel_that_is_not_symmetric_is_seen(lopsided, n_examples):
    x = cloud(n_examples) / 4
    problem, task = task_of(lopsided, icgd.FunctionalStep(0.01), x)
    values = torch.linalg.eigvals(problem.machine.gram(x)).real
    assert values.min() < -0.5
    assert values.max() < 100
    worst = divergence_of(problem, task, n_steps=100)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(float(values.min()), rel=1e-3)


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_nothing_is_warned_of_a_large_softmax_kernel_that_converges(scale):
    """All its eigenvalues are in [0, 1]; those that are nearly 0 are found with errors."""
    x = (scale * cloud(700)).clip(-4, 4)
    assert divergence_of(*task_of("softmax", icgd.FunctionalStep(1.9), x), n_steps=1000) is None


def test_a_run_on_600_examples_warns_of_the_negative_eigenvalue():
    x = cloud(600) / 4
    problem, _ = task_of("relu", icgd.FunctionalStep(0.01), x)
    compiled = icgd.compile(problem, construction="functional", n_steps=100)
    with pytest.warns(DivergenceWarning, match="an eigenvector of the kernel with eigenvalue -1"):
        compiled.run(x, x[:, :1].clip(-1, 1))


def test_a_negative_eigenvalue_of_one_task_of_a_large_batch_is_seen():
    """The linear part of the kernel dominates, so that the negative end is far from the largest."""
    x = cloud(3, 520).clip(-4, 4)
    x[:2] = x[:2].abs()  # the relu kernel of positive inputs is the linear one, which is positive
    problem, task = task_of("relu", icgd.FunctionalStep(1e-5), x)
    worst = divergence_of(problem, task, n_steps=100)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(spectrum(problem.machine, x[2]).low, rel=1e-3)
    positive = task_of("relu", icgd.FunctionalStep(1e-5), x[:2])
    assert divergence_of(*positive, n_steps=100) is None


def test_many_examples_of_a_softmax_kernel_are_judged_by_the_largest_eigenvalue():
    x = cloud(520).clip(-4, 4)
    assert divergence_of(*task_of("softmax", icgd.FunctionalStep(0.9), x), n_steps=4) is None
    worst = divergence_of(*task_of("softmax", icgd.FunctionalStep(2.5), x), n_steps=4)
    assert worst is not None
    assert worst.eigenvalue == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("X", "noise", "error", "words"),
    [
        ([[1.0, 0.0]], float("nan"), SettingError, "noise must be a finite number, got nan"),
        ([[1.0, 0.0, 0.0]], 0.0, DataError, r"X has shape \(1, 3\); expected \(n, 2\)"),
        ([[1j, 0.0]], 0.0, DataError, "X has dtype complex128"),
    ],
)
def test_data_and_noise_of_a_spectrum_are_checked(X, noise, error, words):
    with pytest.raises(error, match=words):
        spectrum(icgd.KernelMachine(2, "linear"), X, noise)


@pytest.mark.parametrize("momentum", [None, 0.5])
@pytest.mark.parametrize("step_size", [0.1, 5.0])
def test_a_billion_steps_are_judged_at_once(momentum, step_size):
    x = torch.eye(3, dtype=torch.float64)
    update = icgd.FunctionalStep(step_size, momentum=momentum)
    machine = icgd.KernelMachine(3, "linear")
    found, few = (divergence(machine, update, x, n_steps) for n_steps in (10**9, 10))
    assert (found is None) == (few is None) == (step_size == 0.1)
    alike = icgd.FunctionalStep((step_size,) * 10, momentum=momentum)
    expected = divergence(machine, alike, x, 10)
    assert few == expected or few.growth == pytest.approx(expected.growth, rel=1e-9)


@pytest.mark.filterwarnings("ignore::icgd.errors.DivergenceWarning")
def test_steps_that_leave_the_range_of_numbers_print_nothing(capfd):
    step = icgd.FunctionalStep(1e308, momentum=0.5)
    machine, domain = icgd.KernelMachine(1, "linear"), icgd.Domain(x=2.0, y=1e-300)
    compiled = icgd.compile(icgd.Problem(machine, "squared", step, domain), n_steps=1)
    compiled.run([[2.0], [1.0], [1.5]], [1e-300, 0.0, 0.0])
    assert capfd.readouterr() == ("", "")


# Bounds on the Hessian against autograd's, and the step size that comes of them.


GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.rand(12, 1, generator=GENERATOR, dtype=torch.float64)
RIDGE = ProximalStep(l2=0.3)


def hessian_eigenvalues(model, update, w):
    hessian = torch.autograd.functional.hessian(
        lambda v: reference.objective(model, update, v, X, Y), w
    )
    return torch.linalg.eigvalsh(hessian)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_least_squares_has_one_hessian_whose_ends_are_found(reduction):
    model = LinearModel(3, intercept=True, reduction=reduction)
    values = hessian_eigenvalues(model, RIDGE, torch.randn(4, generator=GENERATOR).double())
    found = curvature(model, RIDGE, X)
    assert found.smallest == pytest.approx(float(values[0]), rel=1e-9)
    assert found.largest == pytest.approx(float(values[-1]), rel=1e-12)
    assert found.condition == pytest.approx(float(values[-1] / values[0]), rel=1e-9)


@pytest.mark.parametrize("name", LINKS)
def test_no_hessian_of_the_box_or_the_ball_leaves_the_bounds(name):
    model = LinearModel(3, name, intercept=True)
    center = torch.tensor([0.4, -0.2, 0.1, 0.3], dtype=torch.float64)
    box, ball = over_box(model, X, 0.5), over_ball(model, X, center, 0.5)
    inside_box, inside_ball = (curvature(model, RIDGE, X, scores) for scores in (box, ball))
    for _ in range(4):
        direction = torch.randn(4, generator=GENERATOR, dtype=torch.float64)
        for found, w in (
            (inside_box, direction.sign() * 0.5),
            (inside_ball, center + 0.5 * direction / direction.norm()),
        ):
            values = hessian_eigenvalues(model, RIDGE, w)
            assert found.smallest <= values[0] + 1e-12
            assert values[-1] <= found.largest + 1e-12


def test_the_bounds_are_those_of_single_examples_not_of_the_worst_one():
    """On x = 1 and 2 with |w| <= 1 exp has slopes up to e and e^2: (e + 4 e^2) / 2."""
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    model = LinearModel(1, "poisson")
    e = torch.e
    found = curvature(model, ProximalStep(), x, over_box(model, x, 1.0))
    assert found.largest == pytest.approx((e + 4 * e**2) / 2)
    assert found.smallest == pytest.approx((1 / e + 4 / e**2) / 2)
    moved = over_ball(model, x, torch.tensor([3.0]).double(), 1.0)
    assert tuple(end.flatten().tolist() for end in moved) == ([2.0, 4.0], [4.0, 8.0])


def test_a_slope_without_bound_needs_a_range():
    model = LinearModel(3, "poisson")
    with pytest.raises(SettingError, match="The slope of the poisson link is unbounded"):
        curvature(model, RIDGE, X)
    assert all(end.isinf().all() for end in everywhere(X))


def test_the_step_is_one_over_beta_of_the_worst_task_unless_given():
    model = LinearModel(3, "logistic")
    batch = torch.stack([X, 2 * X])
    alone = curvature(model, ProximalStep(), 2 * X).largest
    assert module.step_size(model, ProximalStep(), batch) == pytest.approx(1 / alone)
    assert module.sized(model, RIDGE, X).l2 == 0.3
    assert module.sized(model, ProximalStep(0.7), X) == ProximalStep(0.7)
    assert module.step_size(model, ProximalStep(), 0 * X) == 1.0


def test_contraction_is_decided_by_the_nearer_end():
    assert Curvature(1.0, 4.0).contraction(0.25) == 0.75
    assert Curvature(1.0, 4.0).contraction(0.5) == 1.0
    assert Curvature(0.0, 4.0).condition == float("inf")


def test_ranges_of_scores_are_joined_and_narrowed_example_by_example():
    first = (torch.tensor([[-1.0], [0.0]]), torch.tensor([[1.0], [4.0]]))
    second = (torch.tensor([[-2.0], [1.0]]), torch.tensor([[0.5], [5.0]]))
    assert [end.flatten().tolist() for end in common(first, second)] == [[-1.0, 1.0], [0.5, 4.0]]
    assert [end.flatten().tolist() for end in spanned(first, second)] == [[-2.0, 0.0], [1.0, 5.0]]


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "linear"])
def test_a_large_spectrum_is_enclosed_without_all_eigenvalues(kernel, monkeypatch):
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    machine = icgd.KernelMachine(3, kernel)
    exact = icgd.spectrum(machine, x, 0.5)
    monkeypatch.setattr("icgd.problems.spectrum.spectrum", None)
    found = outermost(machine, x, 0.5)
    assert found.low == 0.5 <= exact.low + 1e-9
    assert exact.high <= found.high <= 1.002 * exact.high


def test_a_small_spectrum_is_found_exactly():
    x = torch.eye(4, dtype=torch.float64)
    machine = icgd.KernelMachine(4)
    assert outermost(machine, x, 0.1) == icgd.spectrum(machine, x, 0.1)
