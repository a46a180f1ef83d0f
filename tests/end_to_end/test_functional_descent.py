"""Functional descent end to end: within its bounds, to its limit, and as fast as Chebyshev says."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge

import icgd
from icgd.backends.registry import BACKENDS
from icgd.errors import DivergenceWarning
from icgd.problems.steps import best_constant_step
from tests.cases import KERNEL_CASES, Case, over

on_every_backend = pytest.mark.parametrize("backend", BACKENDS)


@over(KERNEL_CASES)
@on_every_backend
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_step_and_the_run_stay_within_their_bounds(case: Case, backend: str, dtype: str):
    compiled = icgd.compile(case.problem, n_steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # relu has negative eigenvalues
        report = icgd.verify(
            compiled, case.x, case.y, queries=case.queries, backend=backend, dtype=dtype
        )
    assert report.verdict.holds
    assert report.step_bounds.max() <= report.certificate.domain_step
    assert report.trajectory_bounds.max() <= report.certificate.domain_trajectory
    most = 1e-12 if dtype == "float64" else 1e-4
    assert report.step_errors.max() <= most
    assert report.trajectory_bounds.max() <= 1e6 * most


@pytest.mark.parametrize("seed", range(36))
def test_random_problems_stay_within_their_bounds(seed: int):
    """Any kernels, heads, steps, noise, transforms, momentum, sizes, backends and precisions."""
    draw = np.random.default_rng(seed)
    width, outputs, n_steps = int(draw.integers(1, 5)), int(draw.integers(1, 3)), 4
    names = ("linear", "relu", "exp", "rbf", "laplace", "matern", "polynomial", "softmax")
    heads = [
        icgd.KernelHead(
            str(draw.choice(names)),
            0.5 * draw.normal(size=(int(draw.integers(1, 4)), width)),
            float(draw.uniform(0.1, 2)),
        )
        for _ in range(draw.integers(1, 4))
    ]
    update = icgd.FunctionalStep(
        draw.uniform(0.001, 0.2, n_steps).tolist(),
        noise=float(draw.choice([0.0, 0.3])),
        transforms=draw.normal(size=(n_steps, width, width)) * 1e-3 if draw.integers(2) else (),
        **(
            {"momentum": draw.uniform(0, 1, n_steps), "nesterov": bool(draw.integers(2))}
            if draw.integers(2)
            else {}
        ),
    )
    problem = icgd.Problem(
        icgd.KernelMachine(width, heads, outputs), "squared", update, icgd.Domain(1.0, 2.0)
    )
    tasks = () if draw.integers(2) else (2,)
    x, queries = (draw.uniform(-1, 1, (*tasks, int(draw.integers(1, 9)), width)) for _ in "xq")
    y = draw.uniform(-2, 2, (*x.shape[:-1], outputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        report = icgd.verify(
            icgd.compile(problem, n_steps=n_steps),
            x,
            y,
            queries=queries,
            backend=str(draw.choice(list(BACKENDS))),
            dtype=str(draw.choice(["float64", "float32"])),
        )
    assert report.verdict.holds


def scattered(noise: float, n_steps: int) -> tuple[icgd.Problem, tuple[np.ndarray, ...]]:
    """Points in a square, labels of a smooth function, and Chebyshev steps for their kernel."""
    draw = np.random.default_rng(1)
    x, queries = draw.uniform(-4, 4, (14, 2)), draw.uniform(-4, 4, (5, 2))
    machine = icgd.KernelMachine(2, "rbf")
    found = icgd.spectrum(machine, torch.from_numpy(x), noise)
    steps = icgd.chebyshev_steps(found.low, found.high, n_steps)
    problem = icgd.Problem(
        machine, "squared", icgd.FunctionalStep(steps, noise), icgd.Domain(4.0, 2.0)
    )
    return problem, (x, np.sin(x).sum(1), queries)


@on_every_backend
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_many_layers_are_kernel_ridge_and_the_mean_of_a_gaussian_process(backend, noise):
    problem, (x, y, queries) = scattered(noise, n_steps=150)
    run = icgd.compile(problem, n_steps=150).run(x, y, queries=queries, backend=backend)
    ours = run.predictions.flatten().numpy()
    ridge = KernelRidge(alpha=max(noise, 1e-13), kernel="rbf", gamma=0.5).fit(x, y)
    process = GaussianProcessRegressor(RBF(1.0), alpha=max(noise, 1e-13), optimizer=None)
    assert np.abs(ours - ridge.predict(queries)).max() <= 1e-9
    assert np.abs(ours - process.fit(x, y).predict(queries)).max() <= 1e-9


def condition_100(update: icgd.FunctionalStep) -> tuple[icgd.Problem, torch.Tensor, torch.Tensor]:
    """A linear kernel with 65 eigenvalues between 1 and 100, and labels along all of them."""
    x = torch.diag(torch.linspace(1.0, 100.0, 65, dtype=torch.float64).sqrt())
    problem = icgd.Problem(
        icgd.KernelMachine(65, "linear"), "squared", update, icgd.Domain(10.0, 1.0)
    )
    return problem, x, torch.ones(65, 1, dtype=torch.float64)


def residual_after_40_layers(update: icgd.FunctionalStep) -> float:
    """The largest error that is left along any eigenvector."""
    problem, x, y = condition_100(update)
    run = icgd.compile(problem, n_steps=40).run(x, y, backend="dense", trace=["y"])
    return float(run.trace["y"][-1].abs().max())


def test_chebyshev_steps_leave_300_times_less_than_the_best_constant_step():
    """Theory: 1/2 (11/9)^40 (99/101)^40 = 687 times."""
    chebyshev = residual_after_40_layers(icgd.FunctionalStep(icgd.chebyshev_steps(1.0, 100.0, 40)))
    constant = residual_after_40_layers(icgd.FunctionalStep(best_constant_step(1.0, 100.0)))
    assert constant == pytest.approx((99 / 101) ** 40)
    assert constant / chebyshev >= 680


@pytest.mark.parametrize("share", [0.5, 1.0, 1.9])
def test_what_is_left_shrinks_at_the_rate_of_the_spectrum(share):
    """Proposition 3.4 with its rate: |f_l - limit| <= |k_q K^-1| max |1 - r t|^l |y|."""
    problem, (x, y, queries) = scattered(0.0, n_steps=1)
    task = icgd.as_task(problem, x, y, queries=queries)
    found = icgd.spectrum(problem.machine, task.x)
    size = share / found.high
    problem = icgd.Problem(
        problem.target, "squared", icgd.FunctionalStep(size), icgd.Domain(4.0, 2.0)
    )
    compiled = icgd.compile(problem, n_steps=60)
    run = compiled.run_task(compiled.task(x, y, queries=queries))
    values = run.parameters.unflatten(-1, (19, 1))
    rate = max(abs(1 - size * found.low), abs(1 - size * found.high))
    limit = problem.function_oracle.limit(task)
    gram = problem.machine.gram(task.x)
    reading = torch.linalg.solve(gram, problem.machine.matrix(task.x, task.queries)).norm(dim=0)
    for step in range(61):
        bound = rate**step * np.linalg.norm(y)
        assert (values[step, :14] - task.y).norm() <= bound * (1 + 1e-9)
        off = (values[step, 14:] - limit).abs().flatten()
        assert (off <= reading * bound * (1 + 1e-9)).all()


def test_the_papers_step_condition_diverges_and_ours_does_not():
    """The paper prints step < norm of K; it is step < 2 / norm of K."""
    problem, (x, y, queries) = scattered(0.0, n_steps=1)
    high = icgd.spectrum(problem.machine, torch.from_numpy(x)).high
    assert 0.9 * high > 2 / high  # allowed by the paper's condition alone
    for size, diverges in ((0.9 * high, True), (1.9 / high, False)):
        update = icgd.FunctionalStep(size)
        problem = icgd.Problem(problem.target, "squared", update, icgd.Domain(4.0, 2.0))
        compiled = icgd.compile(problem, n_steps=50)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = compiled.run(x, y, queries=queries)
        assert bool(caught) is diverges
        left = torch.from_numpy(y) - run.parameters[-1, :14]
        assert (left.norm() > np.linalg.norm(y)) == diverges


def test_a_step_that_is_too_long_warns_with_the_eigenvalue_and_the_limit():
    problem, x, y = condition_100(icgd.FunctionalStep(0.021))
    compiled = icgd.compile(problem, n_steps=2)
    with pytest.warns(DivergenceWarning) as caught:
        compiled.run(x, y)
    assert str(caught[0].message) == (
        "The steps diverge on these data: the error grows 1.21-fold along an eigenvector of the "
        "kernel with eigenvalue 100. step_size is 0.021; it must be below 0.02."
    )


def test_two_heads_descend_in_the_space_of_the_sum_of_their_kernels():
    """Proposition D.1: one head a summand is the same as one head with the summed kernel."""
    first = ((1.0, 0.0), (0.0, 0.0))
    second = ((0.0, 0.0), (0.0, 1.0))
    heads = (icgd.KernelHead("linear", first, 0.5), icgd.KernelHead("exp", second, 0.5))

    def composite(u: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        linear = u[..., :1] @ w[..., :1].mT
        return 0.5 * linear + 0.5 * torch.exp(u[..., 1:] @ w[..., 1:].mT)

    icgd.register_kernel("composite", composite)
    draw = np.random.default_rng(3)
    x, y, queries = draw.uniform(-1, 1, (9, 2)), draw.normal(size=9), draw.uniform(-1, 1, (4, 2))
    runs = []
    for kernel in (heads, "composite"):
        problem = icgd.Problem(
            icgd.KernelMachine(2, kernel),
            "squared",
            icgd.FunctionalStep(0.1),
            icgd.Domain(1.0, 4.0),
        )
        compiled = icgd.compile(problem, n_steps=20)
        runs.append(compiled.run(x, y, queries=queries, backend="dense").parameters)
    assert (runs[0] - runs[1]).abs().max() <= 1e-13
    assert runs[0][-1].abs().max() > 0.1


def test_linear_functional_descent_is_gradient_descent_on_the_weights():
    """App. I.2: the linear kernel trains w by the sum of squares; checked with relu-stack's oracle.

    A network of one linear layer descends the mean of squares, so its step is n times as long.
    """
    draw = np.random.default_rng(4)
    x, y, queries = draw.uniform(-1, 1, (6, 3)), draw.uniform(-1, 1, 6), draw.uniform(-1, 1, (2, 3))
    network = icgd.Problem(
        icgd.MLP((3, 1), "identity"), "squared", icgd.GradientStep(0.6, 50.0), icgd.Domain(1.0, 1.0)
    )
    weights = icgd.compile(network, "relu-stack", n_steps=8).run(
        x, y, initial=np.zeros(3), queries=queries, dtype="float64"
    )
    machine = icgd.Problem(
        icgd.KernelMachine(3, "linear"), "squared", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0)
    )
    function = icgd.compile(machine, n_steps=8).run(x, y, queries=queries)
    assert (weights.predictions - function.predictions).abs().max() <= 1e-12
    assert function.predictions.abs().max() > 0.01


def test_a_saved_run_is_loaded_with_all_its_matrices(tmp_path):
    for case in KERNEL_CASES[8:]:
        compiled = icgd.compile(case.problem, n_steps=3)
        compiled.save(tmp_path / "run.safetensors")
        again = icgd.load(tmp_path / "run.safetensors")
        assert again == compiled
        assert torch.equal(
            again.run(case.x, case.y).parameters, compiled.run(case.x, case.y).parameters
        )
