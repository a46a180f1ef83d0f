r"""Proposition 3.4: enough layers predict as Bayes' estimator does.

With a constant step r the labels left on the examples after layer l are (I - r K)^l y, and the
query's label is -r nu^T sum_{k < l} (I - r K)^k y, where nu holds the kernel of the query and the
examples. If r < 2 / |K| this tends to -nu^T K^-1 y, at the rate max |1 - r t| over the eigenvalues
t of K; and nu^T K^-1 y is the mean of the query's label given the others in a Gaussian process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.backends.registry import AUTO
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.kernel_machine import KernelMachine, kernel_named
from icgd.problems.problem import Problem
from icgd.problems.spectrum import spectrum
from icgd.problems.steps import FunctionalStep, chebyshev_steps
from icgd_papers.theorems.cheng.proposition_3_1 import sphere_task
from icgd_papers.theorems.cheng.written_out import (
    EXACT,
    WIDTH,
    agreement,
    descent_layers,
    hidden,
    identity,
    sphere_points,
    stream,
    wave,
)
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.training.covariates import AbstractCovariates, Gaussian
from icgd_papers.training.labels import KernelProcess
from icgd_papers.training.tasks import InContextTask, generator_of

N_EXAMPLES = 30
N_LAYERS = 60
N_TASKS = 16
N_DRAWS = 20_000
SAMPLING_ERRORS = 5.0
"""How many sampling errors a mean may be off; by chance it is further off with odds below 1e-6."""


def rate(seed: int) -> Comparison:
    """Compare the distance to kernel regression with |k_q K^-1| max |1 - r t|^l |y|, by layer."""
    machine, points = KernelMachine(WIDTH, "laplace"), sphere_points(5 * N_EXAMPLES // 4, seed)
    found = spectrum(machine, points[: 4 * len(points) // 5])
    step = FunctionalStep(1.9 / found.high)
    task = sphere_task(machine, step, points)
    problem = Problem(machine, "squared", step, Domain(1.0, 1.0))
    run = compile(problem, n_steps=N_LAYERS).run_task(task, backend=AUTO)
    values = run.parameters[:, task.n_examples :]
    limit = problem.function_oracle.limit(task).flatten()
    slowest = max(abs(1 - 1.9 / found.condition), 0.9)
    cross = machine.matrix(task.x, task.queries)
    reading = torch.linalg.solve(machine.gram(task.x), cross).norm(dim=0)
    layers = torch.arange(len(values), dtype=torch.float64)
    bound = slowest ** layers[:, None] * reading * task.y.norm()
    case = f"laplace, {N_LAYERS} layers: the distance to kernel regression over its bound"
    return Comparison(case, float(((values - limit).abs() / bound).max()), 1.0, "of the bound")


def bayes(
    machine: KernelMachine, inputs: AbstractCovariates, n_examples: int, n_layers: int, seed: int
) -> Comparison:
    """Compare a transformer of Chebyshev steps with Bayes' estimator of the machine's process."""
    task = InContextTask(inputs, KernelProcess(machine), n_examples)
    batch = task.sample(N_TASKS, seed=seed, index=0)
    x, y = batch.x[:, :-1], batch.y[:, :-1, None]
    found = spectrum(machine, x)
    steps = FunctionalStep(chebyshev_steps(found.low, found.high, n_layers))
    domain = Domain(float(batch.x.abs().max()), float(batch.y.abs().max()))
    compiled = compile(Problem(machine, "squared", steps, domain), n_steps=n_layers)
    ours = compiled.run(x, y, queries=batch.x[:, -1:], history=False, backend=AUTO).predictions[
        :, 0, 0
    ]
    best = task.labels.bayes(batch.x, batch.y)
    off = ours.new_tensor(torch.nan) if best is None else (ours - best).abs().max()
    names = " + ".join(head.kernel for head in machine.heads)
    case = f"{names}: {n_layers} layers beside Bayes' estimator on {N_TASKS} tasks"
    return Comparison(case, float(off), 1e-6, "largest difference")


def proposition_3_4(seed: int) -> Finding:
    """Measure how fast layers approach kernel regression, and that it is Bayes' estimator."""
    machine, inputs = KernelMachine(WIDTH, "rbf"), Gaussian(identity())
    return Finding(right=(rate(seed), bayes(machine, inputs, N_EXAMPLES, 300, seed)))


def equation_13(seed: int) -> Finding:
    """Compare (13) with kernel regression for a positive kernel, and count the rows it needs."""
    n_examples = 8
    machine = KernelMachine(WIDTH, "rbf")
    task = InContextTask(Gaussian(identity()), KernelProcess(machine), n_examples)
    batch = task.sample(N_TASKS, seed=seed, index=0)
    gram, nu = (machine.matrix(batch.x, batch.x)[:, :-1, part] for part in (slice(-1), -1))
    regression = (nu[:, None] @ torch.linalg.solve(gram, batch.y[:, :-1, None]))[:, 0, 0]
    same = "rbf: (13) beside kernel regression (25) on 16 tasks"
    case = f"K_hat of {{}} rows with d = {WIDTH}, n = {n_examples}: labels that have no row"
    missing = {"n": 0.0, "d": float(n_examples - WIDTH)}
    rows = [Comparison(case.format(name), count, 0.0, "labels") for name, count in missing.items()]
    mean = task.labels.bayes(batch.x, batch.y)
    off = torch.full_like(regression, torch.nan) if mean is None else mean
    return Finding(right=(agreement(same, off, regression, 1e-9), rows[0]), printed=(rows[1],))


def definition_3_3(seed: int) -> Finding:
    """Compare the covariance of drawn labels with U |D| U^T, for a kernel that is not positive."""
    x = sphere_points(6, seed)
    gram = kernel_named("relu").matrix(x, x)
    values, vectors = torch.linalg.eigh(gram)
    wanted = (vectors * values.abs()) @ vectors.mT
    labels = KernelProcess(KernelMachine(WIDTH, "relu"))
    y = labels.sample(x.expand(N_DRAWS, -1, -1), generator_of(seed, 1))
    products = (y[:, :, None] * y[:, None, :]).flatten(1)
    error = products.std(0) / N_DRAWS**0.5
    off = float(((products.mean(0) - wanted.flatten()).abs() / error).max())
    drawn = Comparison(
        f"relu: the covariance of {N_DRAWS:,} draws", off, SAMPLING_ERRORS, "sampling errors"
    )
    positive = kernel_named("exp").matrix(x, x)
    same = KernelProcess(KernelMachine(WIDTH, "exp")).covariance(x[None])[0]
    return Finding(right=(drawn, agreement("exp, which is positive: K_+ beside K", same, positive)))


def _sphere_descent(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A prompt, its kernel matrix of the examples, nu, and the labels of the examples."""
    x = sphere_points(21, seed)
    kernel = _laplace(x.mT, x.mT)
    return stream(x, hidden(wave(x))), kernel[:-1, :-1], kernel[:-1, -1], wave(x)[:-1]


def _laplace(U: Tensor, W: Tensor) -> Tensor:
    return kernel_named("laplace").matrix(U.mT, W.mT)


def appendix_c_step_size(seed: int) -> Finding:
    """Take steps on either side of 2 / |K|, and one below |K|."""
    Z, gram, _, y = _sphere_descent(seed)
    size = float(torch.linalg.matrix_norm(gram, ord=2))
    case = "laplace, {} layers of step {}: the labels left over the labels at first"

    def left(step: float, n_layers: int) -> float:
        row = descent_layers(Z, _laplace, step, n_layers)[-1, :-1]
        return float(row.norm() / y.norm())

    short = Comparison(case.format(400, "1.99 / |K|"), left(1.99 / size, 400), 1.0, "times")
    over = "laplace, 400 layers of step 2.1 / |K|: the labels at first over the labels left"
    sharp = Comparison(over, 1 / left(2.1 / size, 400), 1.0, "times")
    long = Comparison(case.format(20, "0.9 |K|"), left(0.9 * size, 20), 1.0, "times")
    return Finding(right=(short, sharp), printed=(long,))


def appendix_c_layers(seed: int) -> Finding:
    """Compare every layer with the powers of I - r K, with the printed exponent and the right one.

    The query's label is compared in the same way, with and without the factor r.
    """
    Z, gram, nu, y = _sphere_descent(seed)
    step = 1 / float(torch.linalg.matrix_norm(gram, ord=2))
    rows = descent_layers(Z, _laplace, step, 10)
    once = torch.eye(len(y), dtype=torch.float64) - step * gram
    powers = torch.stack([torch.linalg.matrix_power(once, k) @ y for k in range(11)])
    sums = -powers[:-1].cumsum(0) @ nu
    examples = "laplace, 10 layers: the examples' labels after layer l + 1 beside (I - r K)^{} y"
    query = "laplace, 10 layers: the query's label beside {} nu^T sum_k (I - r K)^k y"
    return Finding(
        right=(
            agreement(examples.format("(l + 1)"), rows[1:, :-1], powers[1:]),
            agreement(query.format("-r"), rows[1:, -1], step * sums),
        ),
        printed=(
            agreement(examples.format("l"), rows[1:, :-1], powers[:-1]),
            agreement(query.format("-"), rows[1:, -1], sums),
        ),
    )


def appendix_c_limit(seed: int) -> Finding:
    """Compare the query's label after many layers with minus and plus kernel regression."""
    Z, gram, nu, y = _sphere_descent(seed)
    step = 1.9 / float(torch.linalg.matrix_norm(gram, ord=2))
    last = descent_layers(Z, _laplace, step, 3000)[-1, -1]
    regression = nu @ torch.linalg.solve(gram, y)
    case = "laplace, 3000 layers: the query's label beside {} nu^T K^-1 y"
    return Finding(
        right=(agreement(case.format("minus"), last, -regression, 1e3 * EXACT),),
        printed=(agreement(case.format("plus"), last, regression, 1e3 * EXACT),),
    )


DEFINITION_3_3 = Statement(
    "cheng",
    "Definition 3.3",
    "The labels of a kernel's Gaussian process have the kernel matrix as covariance, with the signs"
    " of its negative eigenvalues changed.",
    "Y | X ~ N(0, U |D| U^T), K = U D U^T",
    definition_3_3,
)

EQUATION_13 = Statement(
    "cheng",
    "Equation (13)",
    "Bayes' estimator is kernel regression with the covariance of the labels, which is the kernel"
    " itself if the kernel is positive.",
    "f(x_q) = nu^T K_hat^-1 y, [K_hat, nu; nu^T, mu] = K_+, K_hat of shape n x n",
    equation_13,
    correction="K_hat is n x n and nu has n entries; both are printed with d.",
)

PROPOSITION_3_4 = Statement(
    "cheng",
    "Proposition 3.4",
    "If the attention's kernel is that of the labels' Gaussian process, the prediction tends to"
    " Bayes' estimator as layers are added.",
    "f_l(x) -> nu^T K^-1 y = E[y_q | y_1, ..., y_n]",
    proposition_3_4,
)

APPENDIX_C = (
    Statement(
        "cheng",
        "Appendix C, step size",
        "A constant step converges if it is short enough for the largest eigenvalue.",
        "r < 2 / |K|",
        appendix_c_step_size,
        correction="The condition is r < 2 / |K|; it is printed as r < |K|, which lets descent"
        " diverge.",
    ),
    Statement(
        "cheng",
        "Appendix C, layers",
        "The labels after each layer are a power of I - r K times the labels, and the query's label"
        " is a sum of these powers.",
        "Y_{l+1} = (I - r K)^(l+1) y, y_{l+1}^q = -r nu^T sum_{k <= l} (I - r K)^k y",
        appendix_c_layers,
        correction="The exponent is l + 1, printed as l; the query's label has the factor r, which"
        " is left out.",
    ),
    Statement(
        "cheng",
        "Appendix C, limit",
        "The query's label tends to minus the kernel regression.",
        "y_l^q -> -nu^T K^-1 y",
        appendix_c_limit,
        correction="The row of labels holds minus the prediction; the limit is printed without the"
        " minus.",
    ),
)
