r"""Section 3: layers as steps of functional gradient descent, and their limit, Bayes' estimator.

With h[i, j] = K(u_i, w_j), B = C = I and V = diag(0, -r_l) the label of the query after layer l is

    TF_l(x) = -f_l(x),    f_0 = 0,    f_{l+1} = f_l + r_l sum_i (y_i - f_l(x_i)) K(., x_i).   (9)

With a constant step r the labels left on the examples after layer l are (I - r K)^l y, and the
query's label is -r nu^T sum_{k < l} (I - r K)^k y, where nu holds the kernel of the query and the
examples. If r < 2 / |K| this tends to -nu^T K^-1 y, at the rate max |1 - r t| over the eigenvalues
t of K; and nu^T K^-1 y is the mean of the query's label given the others in a Gaussian process.

The transformer is the compiled one, with every head computed, where nothing else is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from math import e

import torch
from scipy.linalg import polar
from torch import Tensor

from icgd.errors import DivergenceWarning
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.kernel_machine import KERNELS, KernelHead, KernelMachine, kernel_named
from icgd.problems.problem import Problem
from icgd.problems.spectrum import spectrum
from icgd.problems.steps import FunctionalStep, chebyshev_steps
from icgd_papers.theorems.cheng.transformer import (
    ACTIVATIONS,
    DIFFERENCE,
    EXACT,
    WIDTH,
    difference,
    exponential,
    eye,
    generator,
    label_rows,
    linear,
    sphere_points,
    wave,
)
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.labels import KernelProcess

N_EXAMPLES = 30
N_QUERIES = 8
N_LAYERS = 60
STEP = 0.02
"""A step size that suits exp attention on 12 examples: below 1 over the largest eigenvalue."""


def transformer_values(
    machine: KernelMachine, steps: Sequence[float] | float, x: Tensor, y: Tensor, n_layers: int
) -> Tensor:
    """Return f_l at all points, by layer, as the compiled transformer computes it.

    The first points are the examples, a label in y for each; the others are queries.
    """
    domain = Domain(float(x.abs().max()), float(y.abs().max()))
    problem = Problem(machine, "squared", FunctionalStep(steps), domain)
    examples, queries = x[: len(y)], x[len(y) :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # relu has negative eigenvalues
        compiled = compile(problem, n_steps=n_layers)
        run = compiled.run(examples, y[:, None], queries=queries, backend="literal")
    return run.parameters


def functional_descent(kernel: Tensor, y: Tensor, step: float, n_layers: int) -> Tensor:
    """Return f_l at all points by (9), from the kernel of all points and the examples."""
    values = [torch.zeros(len(kernel), dtype=torch.float64)]
    for _ in range(n_layers):
        values.append(values[-1] + step * kernel @ (y - values[-1][: len(y)]))
    return torch.stack(values)


def norm(kernel: Tensor) -> float:
    """Return |K|, the largest singular value of the examples' part of a kernel matrix."""
    return float(torch.linalg.matrix_norm(kernel[: kernel.shape[1]], ord=2))


def every_layer(heads: Sequence[KernelHead], seed: int, n_layers: int = N_LAYERS) -> Comparison:
    """Compare the transformer of these heads with functional descent, layer by layer."""
    x, machine = sphere_points(N_EXAMPLES + N_QUERIES, seed), KernelMachine(WIDTH, tuple(heads))
    y, kernel = wave(x)[:N_EXAMPLES], machine.matrix(x, x[:N_EXAMPLES])
    step = 1 / norm(kernel)
    values = transformer_values(machine, step, x, y, n_layers)
    error = difference(values, functional_descent(kernel, y, step, n_layers))
    names = " + ".join(head.kernel for head in heads)
    case = f"{names}: {n_layers} layers of the literal transformer beside functional descent"
    return at_most(error, EXACT, case, DIFFERENCE)


@statement("cheng", "Proposition 3.1")
def layers_are_steps(seed: int) -> Iterator[Comparison]:
    """Try every kernel of icgd, and equation (22): what an example's label is beside a query's."""
    for name, kernel in KERNELS.items():
        if not kernel.is_own:
            yield every_layer([KernelHead(name)], seed)
    x = sphere_points(12, seed)
    x[-1] = x[0]
    rows = label_rows(x, wave(x), exponential, STEP, 20)
    case = "(22): the label of an example beside that of a query at the same point"
    yield at_most(difference(rows[:, 0], wave(x)[0] + rows[:, -1]), EXACT, case, DIFFERENCE)


@statement("cheng", "Equation (24)")
def one_more_layer(seed: int) -> Iterator[Comparison]:
    """Compare the transformer with the recursion, once with f(x_i) and once with f(x)."""
    x = sphere_points(12, seed)
    y, kernel = wave(x)[:-1], exponential(x.mT, x.mT)[:, :-1]
    values = transformer_values(KernelMachine(WIDTH, "exp"), STEP, x, y, 20)[:, -1]
    with_index = functional_descent(kernel, y, STEP, 20)[:, -1]
    without = [torch.zeros((), dtype=torch.float64)]
    for _ in range(20):
        without.append(without[-1] + STEP * (y - without[-1]) @ kernel[-1])
    case = "exp, 20 layers: the prediction beside the recursion with f(x{})"
    yield at_most(difference(values, with_index), EXACT, case.format("_i"), DIFFERENCE)
    yield printed(difference(values, torch.stack(without)), EXACT, case.format(""), DIFFERENCE)


@statement("cheng", "Equation (10)")
def softmax_steps(seed: int) -> Iterator[Comparison]:
    """Compare softmax attention with the descent that divides by the sum of the kernels."""
    x = sphere_points(12, seed)
    y, kernel = wave(x)[:-1], exponential(x.mT, x.mT)[:, :-1]
    values = transformer_values(KernelMachine(WIDTH, "softmax"), 0.5, x, y, 20)
    tau = 1 / kernel.sum(1, keepdim=True)
    case = "20 layers of softmax attention beside descent with the factor tau"
    error = difference(values, functional_descent(tau * kernel, y, 0.5, 20))
    yield at_most(error, EXACT, case, DIFFERENCE)


@statement("cheng", "Equation (17)")
def steps_of_any_attention(seed: int) -> Iterator[Comparison]:
    """Compare attention with B = b S^-1, C = c S^-1 with the recursion, with and without b c.

    For linear and relu attention a factor b c > 0 belongs to the step; exp and softmax attention
    with another factor are other functions, whatever the step.
    """
    ellipsoid, scale = Ellipsoid.of_seed(seed), 0.5
    x = ellipsoid.sample(1, N_EXAMPLES + N_QUERIES, generator(seed, 50))[0]
    y = wave(x)[:N_EXAMPLES]
    W = ellipsoid.whitening @ x.mT
    for name in ACTIVATIONS:
        kernel = kernel_named(name).matrix
        scaled = kernel(scale * W.mT, W.mT[:N_EXAMPLES])
        step = 1 / norm(scaled)
        head = KernelHead(name, scale**0.5 * ellipsoid.whitening)
        values = transformer_values(KernelMachine(WIDTH, (head,)), step, x, y, 4)
        error = difference(values, functional_descent(scaled, y, step, 4))
        case = f"{name} attention, b c = {scale}: 4 layers beside the recursion with b and c"
        yield at_most(error, EXACT, case, DIFFERENCE)
        if name in ("exp", "softmax"):
            # After one layer the printed form can still choose its step: take the best one.
            plain = kernel(W.mT, W.mT[:N_EXAMPLES]) @ y
            best = (plain @ values[1]) / (plain @ plain)
            case = f"{name} attention, b c = {scale}: a layer beside (17) without b and c"
            yield printed(difference(values[1], best * plain), EXACT, case, DIFFERENCE)


@statement("cheng", "Remark 3.2")
def exponential_and_gaussian_kernels(seed: int) -> Iterator[Comparison]:
    """Compare the two kernels on points of the unit sphere."""
    x = sphere_points(40, seed)
    exp, rbf = (kernel_named(name).matrix(x, x) for name in ("exp", "rbf"))
    case = "all pairs of 40 points: exp beside e times rbf"
    yield at_most(difference(exp, e * rbf), EXACT, case, DIFFERENCE)


@statement("cheng", "Appendix I.2")
def descent_on_coefficients(seed: int) -> Iterator[Comparison]:
    """Compare gradient descent on theta by autograd with linear attention, layer by layer."""
    x = sphere_points(12, seed)
    examples, y = x[:-1], wave(x)[:-1]
    values = transformer_values(KernelMachine(WIDTH, "linear"), 0.1, x, y, 30)
    theta = torch.zeros(WIDTH, dtype=torch.float64, requires_grad=True)
    predictions = [x @ theta.detach()]
    for _ in range(30):
        risk = (examples @ theta - y).square().sum() / 2
        (slope,) = torch.autograd.grad(risk, theta)
        theta = (theta - 0.1 * slope).detach().requires_grad_()
        predictions.append(x @ theta.detach())
    case = "30 layers of linear attention beside gradient descent on theta"
    yield at_most(difference(values, torch.stack(predictions)), EXACT, case, DIFFERENCE)


@statement("cheng", "Definition 3.3")
def covariance_of_a_kernel_process(seed: int) -> Iterator[Comparison]:
    """Compare the covariance of icgd's kernel processes with the polar factor of the kernel.

    The polar factor (K^T K)^(1/2) of a symmetric K is U |D| U^T.
    """
    x = sphere_points(6, seed)
    for name in ("relu", "exp"):
        covariance = KernelProcess(KernelMachine(WIDTH, name)).covariance(x[None])[0]
        kernel = kernel_named(name).matrix(x, x)
        factor = torch.from_numpy(polar(kernel.numpy())[1])
        case = f"{name}: the covariance of the labels beside the polar factor of K"
        yield at_most(difference(covariance, factor), EXACT, case, DIFFERENCE)
    yield at_most(
        difference(factor, kernel), EXACT, "exp, a positive kernel: K_+ beside K", DIFFERENCE
    )


@statement("cheng", "Equation (13)")
def bayes_estimator(seed: int) -> Iterator[Comparison]:
    """Compare (13) with the conditional mean by the precision matrix, and count the rows it needs.

    The mean of y_q given the others is -sum_i P_qi y_i / P_qq, with P the inverse covariance.
    """
    n_examples = 8
    x = sphere_points(n_examples + 1, seed)
    for name in ("rbf", "relu"):
        values, vectors = torch.linalg.eigh(kernel_named(name).matrix(x, x))
        positive = (vectors * values.abs()) @ vectors.mT
        K_hat, nu = positive[:-1, :-1], positive[:-1, -1]
        weights = torch.linalg.solve(K_hat, nu)
        precision = torch.linalg.inv(positive)
        error = difference(weights, -precision[-1, :-1] / precision[-1, -1])
        case = f"{name}: the weights of (13) beside those of the conditional mean"
        yield at_most(error, 1e-9, case, DIFFERENCE)
        if name == "rbf":
            kernel = kernel_named(name).matrix(x, x)
            plain = torch.linalg.solve(kernel[:-1, :-1], kernel[:-1, -1])
            case = f"{name}: the weights of (13) beside those of kernel regression (25)"
            yield at_most(difference(weights, plain), 1e-9, case, DIFFERENCE)
    case = f"K_hat of {{}} rows with d = {WIDTH}, n = {n_examples}: labels that have no row"
    yield at_most(n_examples - len(K_hat), 0, case.format("n"), "labels")
    yield printed(n_examples - WIDTH, 0, case.format("d"), "labels")


def rate(kernel: str, seed: int) -> Comparison:
    """Compare the distance to kernel regression with |nu^T K^-1| max |1 - r t|^l |y|, by layer."""
    x, machine = sphere_points(N_EXAMPLES + N_QUERIES, seed), KernelMachine(WIDTH, kernel)
    y, gram = wave(x)[:N_EXAMPLES], machine.gram(x[:N_EXAMPLES])
    eigenvalues = torch.linalg.eigvalsh(gram)
    step = 1.9 / float(eigenvalues[-1])
    values = transformer_values(machine, step, x, y, N_LAYERS)[:, N_EXAMPLES:]
    weights = torch.linalg.solve(gram, machine.matrix(x[:N_EXAMPLES], x[N_EXAMPLES:]))
    slowest = (1 - step * eigenvalues).abs().max()
    layers = torch.arange(N_LAYERS + 1, dtype=torch.float64)[:, None]
    bound = slowest**layers * weights.norm(dim=0) * y.norm()
    case = f"{kernel}, {N_LAYERS} layers: the distance to kernel regression over its bound"
    return at_most(float(((values - y @ weights).abs() / bound).max()), 1, case, "of the bound")


def excess_loss(machine: KernelMachine, n_examples: int, n_layers: int, seed: int) -> Comparison:
    """Compare the loss of a transformer of Chebyshev steps with Bayes' loss, over all labels.

    The prediction is linear in the labels, w^T y, so that a run for each unit vector y gives w, and
    the mean squared error over the process is mu - 2 w^T nu + w^T K w.
    """
    x = sphere_points(n_examples + 1, seed)
    kernel = machine.matrix(x, x)
    bounds = spectrum(machine, x[:-1])
    steps = chebyshev_steps(bounds.low, bounds.high, n_layers)
    w = torch.stack(
        [transformer_values(machine, steps, x, y, n_layers)[-1, -1] for y in eye(n_examples)]
    )
    best = torch.linalg.solve(kernel[:-1, :-1], kernel[:-1, -1])
    excess = (w - best) @ kernel[:-1, :-1] @ (w - best)
    bayes_loss = kernel[-1, -1] - best @ kernel[:-1, -1]
    names = " + ".join(head.kernel for head in machine.heads)
    case = f"{names}: the loss of {n_layers} layers above Bayes' loss, over all labels"
    return at_most(float(excess / bayes_loss), 1e-9, case, "of Bayes' loss")


@statement("cheng", "Proposition 3.4")
def layers_tend_to_bayes_estimator(seed: int) -> Iterator[Comparison]:
    """Measure how fast layers approach Bayes' estimator, and try the steps of the proof."""
    yield rate("laplace", seed)
    yield rate("matern", seed)
    yield excess_loss(KernelMachine(WIDTH, "rbf"), 8, 100, seed)
    yield from step_size(seed)
    yield from powers(seed)
    yield from limit(seed)


def laplace_descent(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return 21 points, the last a query, the labels of the examples and the kernel matrix."""
    x = sphere_points(21, seed)
    return x, wave(x)[:-1], kernel_named("laplace").matrix(x, x[:-1])


def step_size(seed: int) -> Iterator[Comparison]:
    """Take steps on either side of 2 / |K|, and one below |K|."""
    x, y, kernel = laplace_descent(seed)
    machine, size = KernelMachine(WIDTH, "laplace"), norm(kernel)

    def left(step: float, n_layers: int) -> float:
        values = transformer_values(machine, step, x, y, n_layers)[-1, :-1]
        return float((y - values).norm() / y.norm())

    case = "laplace, {} layers of step {}: the errors left over the errors at first"
    yield at_most(left(1.99 / size, 100), 1, case.format(100, "1.99 / |K|"), "times")
    over = "laplace, 100 layers of step 2.2 / |K|: the errors at first over the errors left"
    yield at_most(1 / left(2.2 / size, 100), 1, over, "times")
    yield in_proof(left(0.9 * size, 20), 1, case.format(20, "0.9 |K|"), "times")


def powers(seed: int) -> Iterator[Comparison]:
    """Compare every layer with the powers of I - r K, with the printed exponent and the right one.

    The query's label is compared in the same way, with and without the factor r. The rows hold
    y - f on the examples and -f at the query.
    """
    x, y, kernel = laplace_descent(seed)
    step = 1 / norm(kernel)
    values = transformer_values(KernelMachine(WIDTH, "laplace"), step, x, y, 10)
    labels, query = y - values[:, :-1], -values[:, -1]
    once = eye(len(y)) - step * kernel[:-1]
    powers = torch.stack([torch.linalg.matrix_power(once, k) @ y for k in range(11)])
    sums = -powers[:-1].cumsum(0) @ kernel[-1]
    case = "laplace, 10 layers: the examples' labels after layer l + 1 beside (I - r K)^{} y"
    exponents = ((at_most, "(l + 1)", powers[1:]), (in_proof, "l", powers[:-1]))
    for compare, exponent, power in exponents:
        yield compare(difference(labels[1:], power), EXACT, case.format(exponent), DIFFERENCE)
    case = "laplace, 10 layers: the query's label beside {} nu^T sum_k (I - r K)^k y"
    for compare, factor, total in ((at_most, "-r", step * sums), (in_proof, "-", sums)):
        yield compare(difference(query[1:], total), EXACT, case.format(factor), DIFFERENCE)


def limit(seed: int) -> Iterator[Comparison]:
    """Compare the query's label after many layers with minus and plus kernel regression."""
    x, y, kernel = laplace_descent(seed)
    bounds = spectrum(KernelMachine(WIDTH, "laplace"), x[:-1])
    steps = chebyshev_steps(bounds.low, bounds.high, 200)
    label = -transformer_values(KernelMachine(WIDTH, "laplace"), steps, x, y, 200)[-1, -1]
    regression = kernel[-1] @ torch.linalg.solve(kernel[:-1], y)
    case = "laplace, 200 layers: the query's label beside {} nu^T K^-1 y"
    yield at_most(difference(label, -regression), 1e-9, case.format("minus"), DIFFERENCE)
    yield in_proof(difference(label, regression), 1e-9, case.format("plus"), DIFFERENCE)


def transforms() -> tuple[Tensor, Tensor]:
    """Return G_1, which keeps the first two inputs, and G_2, which keeps the other three."""
    first = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    return first, eye() - first


def sum_kernel(second: str = "exp") -> KernelMachine:
    """Return the kernel of Figure 4(c), by its definition, or with another second head."""
    G_1, G_2 = transforms()
    return KernelMachine(WIDTH, (KernelHead("linear", G_1, 0.5), KernelHead(second, G_2, 0.5)))


@statement("cheng", "Proposition D.1(A)")
def heads_add_kernels(seed: int) -> Iterator[Comparison]:
    """Compare two and three heads with descent on the sum kernel, layer by layer."""
    yield every_layer(sum_kernel().heads, seed)
    third = KernelHead("rbf", 0.5 * eye(), 0.3)
    yield every_layer([*sum_kernel().heads, third], seed)


@statement("cheng", "Proposition D.1(B)")
def heads_tend_to_bayes_estimator(seed: int) -> Iterator[Comparison]:
    """Compare many layers of two heads with Bayes' estimator of the sum kernel's process."""
    yield excess_loss(sum_kernel(), 5, 150, seed)


@statement("cheng", "Figure 4, heads")
def heads_of_figure_4(seed: int) -> Iterator[Comparison]:
    """Compare both pairs of heads with descent on the linear and exponential kernel."""
    x = sphere_points(15, seed)
    y, kernel = wave(x)[:-1], sum_kernel().matrix(x, x[:-1])
    descent = functional_descent(kernel, y, 0.05, 20)
    for compare, name in ((at_most, "exp"), (printed, "linear")):
        values = transformer_values(sum_kernel(name), 0.05, x, y, 20)
        case = f"heads linear and {name}, 20 layers: the predictions beside descent"
        yield compare(difference(values, descent), EXACT, case, DIFFERENCE)


@statement("cheng", "Figure 4(c), kernel")
def kernel_of_figure_4(seed: int) -> Iterator[Comparison]:
    """Compare the kernel that Figure 4(c) prints with the one that its definition gives."""
    x = sphere_points(15, seed)
    kernel = sum_kernel().matrix(x, x)
    first, rest = linear(x[:, :2].mT, x[:, :2].mT), linear(x[:, 2:].mT, x[:, 2:].mT)
    case = "all pairs of 15 points: the definition beside the kernel with exp({})"
    for compare, name, exponent in ((at_most, "s", rest), (printed, "s / 2", rest / 2)):
        error = difference(kernel, (first + exponent.exp()) / 2)
        yield compare(error, EXACT, case.format(name), DIFFERENCE)
