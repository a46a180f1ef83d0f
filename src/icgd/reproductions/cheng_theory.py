r"""The statements of cheng, each compared with a measurement.

    3.1        every layer is a step of functional descent           dense transformer, any kernel
    3.4        it tends to kernel regression, at the spectrum's rate every layer within the bound
    3.4        which is Bayes' estimator of a Gaussian process       300 layers of Chebyshev steps
    D.1        a head for each summand descends on the sum           dense transformer
    4.1 - 4.3  the assumptions, for the data and the attentions      training/assumptions.py
    4.5, 4.6   the gradient vanishes off the predicted family        training/stationarity.py

A row holds if what was measured is at most what is allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from icgd.errors import DivergenceWarning
from icgd.pipeline import compile
from icgd.problems.domain import Domain
from icgd.problems.entry import as_task
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.kernels import KERNELS
from icgd.problems.problem import Problem
from icgd.problems.spectrum import spectrum
from icgd.problems.task import Task
from icgd.problems.updates import FunctionalStep, chebyshev_steps
from icgd.training.assumptions import (
    Check,
    attention_is_invariant,
    covariance_is_invariant,
    covariates_are_round,
)
from icgd.training.covariates import AbstractCovariates, Ellipsoid, Gaussian, GaussianMixture
from icgd.training.labels import AbstractLabels, KernelProcess, LinearFunctions, ReluNetworks
from icgd.training.stationarity import LARGEST_RATIO, measure_stationarity
from icgd.training.tasks import InContextTask, generator_of

EXACT = 1e-12
"""The largest difference of a value after any layer that rounding may cause."""

INPUT_WIDTH = 5

N_STATEMENTS = 28
"""The number of `checks`."""


@dataclass(frozen=True)
class Sizes:
    """How much is computed."""

    n_examples: int = 30
    n_layers: int = 60
    n_bayes_tasks: int = 64
    n_draws: int = 20_000
    n_batches: int = 20
    batch_size: int = 2000
    stationary_examples: int = 10


QUICK = Sizes(n_bayes_tasks=4, n_draws=2000, n_batches=6, batch_size=200)
"""The sizes that tests use."""


def checks(sizes: Sizes, seed: int = 0) -> Iterator[Check]:
    """Every statement with its measurement, one after the other."""
    for kernel in (name for name, kernel in KERNELS.items() if not kernel.is_own):
        yield _every_layer((KernelHead(kernel),), f"3.1, {kernel}", sizes, seed)
    yield _every_layer(_summands(), "D.1, linear + exp, two heads", sizes, seed)
    yield _rate(sizes, seed)
    yield _bayes(sizes, seed)
    yield from _assumptions(sizes, seed)
    yield from _stationarity(sizes, seed)


def _summands() -> tuple[KernelHead, ...]:
    first = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]))
    return KernelHead("linear", first, 0.5), KernelHead("exp", torch.eye(5) - first, 0.5)


def _sphere_task(machine: KernelMachine, update: FunctionalStep, points: Tensor) -> Task:
    """A task on these points; the last fifth of them are queries, and the labels are a sine."""
    n_examples = 4 * len(points) // 5
    y = torch.sin(3 * points[:n_examples].sum(-1, keepdim=True))
    problem = Problem(machine, "squared", update, Domain(1.0, 1.0))
    return as_task(problem, points[:n_examples], y, queries=points[n_examples:])


def _points(sizes: Sizes, seed: int) -> Tensor:
    sphere = Ellipsoid.sphere(INPUT_WIDTH)
    return sphere.sample(1, 5 * sizes.n_examples // 4, generator_of(seed, 0))[0]


def _every_layer(heads: tuple[KernelHead, ...], name: str, sizes: Sizes, seed: int) -> Check:
    """Propositions 3.1 and D.1: compare the dense transformer with functional descent by layer."""
    machine, points = KernelMachine(INPUT_WIDTH, heads), _points(sizes, seed)
    step = FunctionalStep(1.0 / float(torch.linalg.matrix_norm(machine.gram(points), ord=2)))
    task = _sphere_task(machine, step, points)
    compiled = compile(Problem(machine, "squared", step, Domain(1.0, 1.0)), n_steps=sizes.n_layers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # relu has negative eigenvalues
        values = compiled.run_task(task, backend="dense").parameters
    real = compiled.problem.oracle.train(task, sizes.n_layers)
    claim = f"Proposition {name}: every layer is a step of functional descent"
    return Check(claim, float((values - real).abs().max()), EXACT, "largest difference")


def _rate(sizes: Sizes, seed: int) -> Check:
    """Proposition 3.4 with its rate: |f_l - limit| <= |k_q K^-1| max |1 - r t|^l |y|."""
    machine, points = KernelMachine(INPUT_WIDTH, "laplace"), _points(sizes, seed)
    examples = points[: 4 * len(points) // 5]
    found = spectrum(machine, examples)
    step = FunctionalStep(1.9 / found.high)
    task = _sphere_task(machine, step, points)
    problem = Problem(machine, "squared", step, Domain(1.0, 1.0))
    run = compile(problem, n_steps=sizes.n_layers).run_task(task)
    values = run.parameters[:, task.n_examples :]
    limit = problem.function_oracle.limit(task).flatten()
    rate = max(abs(1 - 1.9 / found.condition), 0.9)
    cross = machine.matrix(task.x, task.queries)
    reading = torch.linalg.solve(machine.gram(task.x), cross).norm(dim=0)
    layers = torch.arange(len(values), dtype=torch.float64)
    bound = rate ** layers[:, None] * reading * task.y.norm()
    claim = "Proposition 3.4, laplace: the distance to kernel regression over its bound"
    return Check(claim, float(((values - limit).abs() / bound).max()), 1.0, "of the bound")


def _bayes(sizes: Sizes, seed: int) -> Check:
    """Proposition 3.4: 300 layers reach Bayes' estimator of the kernel's Gaussian process."""
    machine = KernelMachine(INPUT_WIDTH, "rbf")
    inputs = Gaussian(torch.eye(INPUT_WIDTH, dtype=torch.float64))
    task = InContextTask(inputs, KernelProcess(machine), sizes.n_examples)
    batch = task.sample(sizes.n_bayes_tasks, seed=seed, index=0)
    x, y = batch.x[:, :-1], batch.y[:, :-1, None]
    found = spectrum(machine, x)
    steps = FunctionalStep(chebyshev_steps(found.low, found.high, 300))
    domain = Domain(float(batch.x.abs().max()), float(batch.y.abs().max()))
    compiled = compile(Problem(machine, "squared", steps, domain), n_steps=300)
    ours = compiled.run(x, y, queries=batch.x[:, -1:], history=False).predictions[:, 0, 0]
    best = task.labels.bayes(batch.x, batch.y)
    off = ours.new_tensor(torch.nan) if best is None else (ours - best).abs().max()
    claim = "Proposition 3.4, rbf: 300 layers predict as Bayes' estimator"
    return Check(claim, float(off), 1e-6, "largest difference")


def _assumptions(sizes: Sizes, seed: int) -> Iterator[Check]:
    ellipsoid = Ellipsoid.of_seed(seed)
    laws: tuple[AbstractCovariates, ...] = (
        ellipsoid,
        Gaussian(ellipsoid.covariance),
        GaussianMixture(torch.eye(INPUT_WIDTH, dtype=torch.float64), 2),
    )
    for law in laws:
        yield covariates_are_round(law, n_draws=sizes.n_draws, seed=seed)
    for labels in _label_laws(ellipsoid):
        yield covariance_is_invariant(labels, ellipsoid, n_draws=sizes.n_draws, seed=seed)
    for attention in ("linear", "relu", "exp", "softmax"):
        yield attention_is_invariant(attention, seed=seed)


def _label_laws(covariates: AbstractCovariates) -> Iterator[AbstractLabels]:
    whitening = covariates.whitening
    yield LinearFunctions(whitening)
    for kernel in ("relu", "exp"):
        yield KernelProcess(KernelMachine(INPUT_WIDTH, kernel), whitening)
    yield ReluNetworks(20, whitening)


def _stationarity(sizes: Sizes, seed: int) -> Iterator[Check]:
    ellipsoid = Ellipsoid.of_seed(seed)
    labels = KernelProcess(KernelMachine(INPUT_WIDTH, "exp"), ellipsoid.whitening)
    task = InContextTask(ellipsoid, labels, sizes.stationary_examples)
    work = {"n_batches": sizes.n_batches, "batch_size": sizes.batch_size, "seed": seed}
    theorems = {"4.5": False, "4.6": True}
    for theorem, attention in product(theorems, ("linear", "relu", "softmax")):
        moves = theorems[theorem]
        found = measure_stationarity(attention, task, transforms_covariates=moves, **work)
        claim = f"Theorem {theorem}, {attention}: the gradient off the family vanishes"
        yield Check(claim, found.ratio, LARGEST_RATIO, "sampling errors")
