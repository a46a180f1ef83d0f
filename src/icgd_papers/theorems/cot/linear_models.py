r"""Theorems 3.1 to 3.3 of cot: chains of a layer on generalised linear models, ridge and lasso.

Chains of two transformers are compared with the bounds: cot-ridge, cot-lasso and cot-glm, run
literally, and the layer written out in `layer`, with a grid so coarse that its errors can be seen.
Minimisers come from Newton's method or in closed form. The printed rates are tried by exact
descent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import exp

import torch
from torch import Tensor

from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.linear_model import LinearModel
from icgd.problems.problem import Problem
from icgd.problems.steps import ProximalStep
from icgd_papers.studies.cot_tokens import (
    EACH_STEP,
    LATTICE,
    NEAREST,
    fewest_tokens,
    lasso,
    look_up,
    nearest_points,
    smooth_line,
)
from icgd_papers.theorems.cot.convex import Map, newton, normal, soft_threshold
from icgd_papers.theorems.cot.layer import (
    bounded_data,
    mirrored_heads,
    next_block,
    of_label,
    of_residual,
    of_score,
    prompt,
    weights_of,
)
from icgd_papers.theorems.statement import Comparison, at_most, printed, statement

DIMENSION, N_EXAMPLES, N_STEPS = 3, 24, 40

COARSE_TOKENS, REACH = 129, 8.0
"""A grid whose errors can be seen beside the bounds, and the scores that grids cover."""

ACCURATE, COARSE = 1e-11, 0.1
"""The largest errors of a step that the accurate and the coarse layer may make."""

MIRRORED = ((2.5e-5, 1e-10), (2e-3, 2e-12), (1.3e-2, 5e-13), (3e-2, 3e-13))
"""For 1 to 4 mirrored heads, the largest k |s| and the relative error that is allowed."""


@dataclass(frozen=True)
class Fit:
    """A linear model with data: gradient, curvature on the ball of radius B_w, and minimiser."""

    model: str
    x: Tensor
    y: Tensor
    gradient: Map
    alpha: float
    beta: float
    minimiser: Tensor
    l2: float = 0.0
    l1: float = 0.0

    @property
    def name(self) -> str:
        """The model with its penalty."""
        penalty = self.l1 if self.model == "lasso" else self.l2
        return f"{self.model}, lambda = {penalty:g}" if self.is_squared else self.model

    @property
    def is_squared(self) -> bool:
        """Whether the loss is the mean of squares, and not a sum of GLM losses."""
        return self.model in ("ridge", "lasso")

    @property
    def radius(self) -> float:
        """B_w, or R: twice the length of the minimiser."""
        return 2 * float(self.minimiser.norm())

    def step(self, w: Tensor, size: float) -> Tensor:
        """Take an exact (proximal) gradient step."""
        return soft_threshold(w - size * self.gradient(w), size * self.l1)

    def objective(self, w: Tensor) -> Tensor:
        """Return the penalised mean of squares."""
        squares = (self.x @ w - self.y).square().sum() / (2 * len(self.y))
        return squares + self.l2 / 2 * w @ w + self.l1 * w.abs().sum()

    def exact_chain(self, size: float, n_steps: int = N_STEPS) -> Tensor:
        """Return the weights after every exact step from 0."""
        points = [torch.zeros_like(self.minimiser)]
        for _ in range(n_steps):
            points.append(self.step(points[-1], size))
        return torch.stack(points)

    def literal_chain(self, size: float) -> Tensor:
        """Return the weights after every call of the layer of Section 3, every head computed."""
        update = ProximalStep(size, l2=self.l2, l1=self.l1)
        if self.is_squared:
            model, domain = LinearModel(DIMENSION), Domain(8.0, 8.0, score=REACH)
        else:
            model = LinearModel(DIMENSION, self.model, reduction="sum")
            domain = Domain(1.0, 2.0, score=4.0)
        problem = Problem(model, "matching", update, domain)
        name = "cot-glm" if not self.is_squared else "cot-lasso" if self.l1 else "cot-ridge"
        compiled = compile(problem, name, n_steps=N_STEPS, n_examples=len(self.y))
        return compiled.run(self.x, self.y[:, None], backend="literal").parameters

    def coarse_chain(self, size: float, n_tokens: int, n_steps: int = N_STEPS) -> Tensor:
        """Return the weights after every call of a layer with `n_tokens` nearest points a head."""
        line = nearest_points(-REACH, REACH, n_tokens)
        if self.is_squared:
            heads = [(-size / len(self.y), of_residual(line))]
        else:
            mean = {"logistic": torch.sigmoid, "poisson": torch.exp}[self.model]
            grid = nearest_points(-REACH, REACH, n_tokens, mean)
            heads = [(-size, of_score(grid)), (size, of_label(line))]
        block = prompt(self.x, self.y, torch.zeros_like(self.minimiser))
        points = [weights_of(block)[:, 0]]
        for _ in range(n_steps):
            block = next_block(block, heads, decay=size * self.l2, threshold=size * self.l1)
            points.append(weights_of(block)[:, 0])
        return torch.stack(points)

    def chains(self, share: float) -> Iterator[tuple[str, Tensor, float]]:
        """Yield each chain with its name and the error that its steps may have."""
        size, case = share / self.beta, f"{self.name}, eta = {share:g}/beta"
        yield f"{case}, literal", self.literal_chain(size), ACCURATE
        coarse = self.coarse_chain(size, COARSE_TOKENS)
        yield f"{case}, {COARSE_TOKENS} nearest points", coarse, COARSE

    def step_error(self, chain: Tensor, size: float) -> float:
        """Return the largest error of a step, in the 2-norm."""
        errors = [(after - self.step(before, size)).norm() for before, after in pairwise(chain)]
        return float(torch.stack(errors).max())


def least_squares(
    model: str,
    seed: int,
    l2: float = 0.0,
    l1: float = 0.0,
    *,
    d: int = DIMENSION,
    n: int = N_EXAMPLES,
) -> Fit:
    """Return ridge or lasso on inputs with orthogonal columns, so that its minimiser is known."""
    basis, _ = torch.linalg.qr(normal(seed, n, d))
    lengths = torch.linspace(1.0, 0.4, d, dtype=torch.float64)
    x = n**0.5 * basis * lengths
    truth = torch.tensor([1.0, -0.8, 0.02], dtype=torch.float64).repeat(d // 3 + 1)[:d]
    y = x @ truth + 0.1 * normal(seed + 1, n)
    moment = x.T @ y / n
    curvature = lengths**2 + l2
    return Fit(
        model,
        x,
        y,
        lambda w: x.T @ (x @ w) / n + l2 * w - moment,
        float(curvature.min()),
        float(curvature.max()),
        soft_threshold(moment, l1) / curvature,
        l2,
        l1,
    )


def generalised(link: str, seed: int) -> Fit:
    """Return a logistic or a Poisson model, the sum of its losses without a penalty."""
    x = 0.4 * normal(seed, N_EXAMPLES, DIMENSION).clamp(-2, 2)
    mean, n_draws = (torch.sigmoid, 1) if link == "logistic" else (torch.exp, 2)
    y = (normal(seed + 1, N_EXAMPLES, n_draws) > 0).double().sum(-1)

    def slope(s: Tensor) -> Tensor:
        return torch.sigmoid(s) * torch.sigmoid(-s) if link == "logistic" else torch.exp(s)

    def gradient(w: Tensor) -> Tensor:
        return x.T @ (mean(x @ w) - y)

    def hessian(w: Tensor) -> Tensor:
        return (x.T * slope(x @ w)) @ x

    minimiser = newton(gradient, hessian, torch.zeros(DIMENSION, dtype=torch.float64))
    # On the ball scores are at most |x_i| B_w: their least and their largest slope.
    scores = 2 * minimiser.norm() * x.norm(dim=-1)
    steepest = slope(0 * scores) if link == "logistic" else slope(scores)
    alpha = float(torch.linalg.eigvalsh((x.T * slope(-scores)) @ x)[0])
    beta = float(torch.linalg.eigvalsh((x.T * steepest) @ x)[-1])
    return Fit(link, x, y, gradient, alpha, beta, minimiser)


def allowed_steps(fit: Fit, eps: float) -> Tensor:
    """Return 1, 2, .. up to the steps that were taken and that L <= B_w / (2 eps) allows."""
    return torch.arange(1, int(min(N_STEPS, fit.radius / (2 * eps + 1e-300))) + 1).double()


def distances(fit: Fit, share: float) -> Iterator[Comparison]:
    """Compare the chains' distances from the minimiser with the corrected bound."""
    size = share / fit.beta
    rate = max(1 - size * fit.alpha, size * fit.beta - 1)
    for case, chain, accuracy in fit.chains(share):
        eps = fit.step_error(chain, size)
        yield at_most(eps, accuracy, f"{case}: error of a step", "2-norm")
        count = allowed_steps(fit, eps)
        bound = count * eps + rate**count * fit.radius / 2
        ratios = (chain[1 : len(count) + 1] - fit.minimiser).norm(dim=-1) / bound
        text = f"{case}: |w_L - w*| over its bound, worst L up to {len(count)}"
        yield at_most(float(ratios.max()), 1.0, text, "ratio")


def printed_distances(fits: list[Fit], share: float) -> Comparison:
    """Count problems in which exact descent leaves the printed bound, whatever eps."""
    n_violated = 0
    for fit in fits:
        chain = fit.exact_chain(share / fit.beta)[1:]
        count = torch.arange(1, len(chain) + 1, dtype=torch.float64)
        bound = torch.exp(-count * fit.alpha / fit.beta / 2) * fit.radius / 2
        n_violated += bool(((chain - fit.minimiser).norm(dim=-1) > (1 + 1e-9) * bound).any())
    case = f"{fits[0].model}, {len(fits)} random problems, exact steps of {share:g}/beta"
    return printed(n_violated, 0, case, "problems outside exp(-L/(2 kappa)) B_w/2")


def on_one_example(factor: float, n_steps: int, step: str) -> Comparison:
    """Follow exact descent from 0 whose distance from w* = 1 is multiplied at every step.

    The loss has alpha = beta, so that kappa = 1 and B_w = 2, and there is no error.
    """
    case = f"one example, {step}, L = {n_steps}: |w_L - w*|"
    return printed(abs(factor) ** n_steps, exp(-n_steps / 2), case, "|w|; exp(-L/2)")


@statement("cot", "Theorem 3.1")
def chains_fit_generalised_linear_models(seed: int) -> Iterator[Comparison]:
    """Run logistic and Poisson regression."""
    for link in ("logistic", "poisson"):
        for share in (1.9, 1.0, 0.1):
            yield from distances(generalised(link, seed), share)
        fits = [generalised(link, 100 * seed + number) for number in range(10)]
        yield printed_distances(fits, 0.1)
    yield on_one_example(-1.0, 2, "eta = 2/beta")
    yield on_one_example(1.0 - 4 * 2, 2, "beta = 4, eta = beta/2 (Appendix C.1)")


@statement("cot", "Theorem 3.2")
def chains_fit_ridge_regression(seed: int) -> Iterator[Comparison]:
    """Run ridge regression with several penalties, 0 among them."""
    for l2 in (0.0, 0.1, 1.0):
        for share in (1.9, 1.0, 0.1):
            yield from distances(least_squares("ridge", seed, l2=l2), share)
    fits = [
        least_squares("ridge", 100 * seed + number, l2=0.1, d=1 + number % 6)
        for number in range(20)
    ]
    for share in (2.0, 0.1):
        yield printed_distances(fits, share)


def largest_slope(fit: Fit) -> float:
    """Return C = C_0 + beta R + lambda sqrt(d), which bounds the slope of the lasso's objective."""
    initial_slope = float((fit.x.T @ fit.y / len(fit.y)).norm())
    return initial_slope + fit.beta * fit.radius + fit.l1 * float(len(fit.minimiser) ** 0.5)


def excesses(fit: Fit, share: float) -> Iterator[Comparison]:
    """Compare the chains' excesses with the corrected bound, whose last term is R^2/(8 eta L)."""
    size, least, slope = share / fit.beta, fit.objective(fit.minimiser), largest_slope(fit)
    for case, chain, accuracy in fit.chains(share):
        eps = fit.step_error(chain, size)
        yield at_most(eps, accuracy, f"{case}: error of a step", "2-norm")
        count = allowed_steps(fit, eps)
        bound = slope * count * eps + fit.beta / 2 * (count * eps) ** 2
        bound = bound + fit.radius**2 / (8 * size * count)
        excess = torch.stack([fit.objective(w) - least for w in chain[1 : len(count) + 1]])
        text = f"{case}: F(w_L) - F* over its bound, worst L up to {len(count)}"
        yield at_most(float((excess / bound).max()), 1.0, text, "ratio")


@statement("cot", "Theorem 3.3")
def chains_fit_the_lasso(seed: int) -> Iterator[Comparison]:
    """Run the lasso with several penalties, and exact steps at the printed bound."""
    for l1 in (0.02, 0.1, 0.5):
        for share in (1.0, 0.5, 0.1):
            yield from excesses(least_squares("lasso", seed, l1=l1), share)
    fits = [
        least_squares("lasso", 100 * seed + number, l1=0.1, d=1 + number % 6)
        for number in range(20)
    ]
    for share in (2.0, 0.1):
        n_violated = 0
        for fit in fits:
            chain, least = fit.exact_chain(share / fit.beta)[1:], fit.objective(fit.minimiser)
            excess = torch.stack([fit.objective(w) - least for w in chain])
            count = torch.arange(1, len(chain) + 1, dtype=torch.float64)
            bound = fit.beta * fit.radius**2 / (8 * count)
            n_violated += bool((excess > (1 + 1e-9) * bound).any())
        case = f"lasso, 20 random problems, exact steps of {share:g}/beta"
        yield printed(n_violated, 0, case, "problems outside beta R^2/(8L)")


def accuracy_for(fit: Fit, n_steps: int) -> float:
    """Return R^2/(8 C L^2), the error of a step that leaves the last term of the bound largest."""
    return float(fit.radius**2 / (8 * largest_slope(fit) * n_steps**2))


@statement("cot", "Remark 3.3")
def accurate_steps_keep_the_rate(seed: int) -> Iterator[Comparison]:
    """Run the lasso with errors of 1/L^2, and look beyond the grid for the error itself."""
    fit = least_squares("lasso", seed, l1=0.1, n=10)
    size = 1 / fit.beta
    for n_steps, n_tokens in ((10, 5_000), (30, 40_000)):
        chain = fit.coarse_chain(size, n_tokens, n_steps)
        case = f"lasso, L = {n_steps}, {n_tokens} tokens"
        error, allowed = fit.step_error(chain, size), accuracy_for(fit, n_steps)
        yield at_most(error, allowed, f"{case}: error of a step", "2-norm; R^2/(8 C L^2)")
        excess = float(fit.objective(chain[-1]) - fit.objective(fit.minimiser))
        # The first term then equals the last one, and the middle one is smaller still.
        bound = 3 * fit.beta * fit.radius**2 / (8 * n_steps)
        yield at_most(excess, bound, f"{case}: F(w_L) - F*", "excess; 3 beta R^2/(8L)")
    far = torch.tensor([1e3, 1e4], dtype=torch.float64) * REACH
    for name, grid in (
        ("nearest points", nearest_points(-REACH, REACH, 33)),
        ("wide weights", smooth_line(REACH)),
    ):
        error = float((look_up(grid, far) - far).abs().min())
        case = f"{name}: error at 1000 times the reach, where a head returns at most its last point"
        yield at_most(1.0, error, case, "1; error, which is inevitable")


@statement("cot", "Appendix C.3, heads")
def heads_need_not_grow(seed: int) -> Iterator[Comparison]:
    """Count the tokens of one head an example, and the error of heads that serve every n."""
    fit = lasso(seed)
    text = "lasso, d = 3, n = 10, one head an example"
    for n_steps in (3, 10):
        n_tokens, _ = fewest_tokens(fit, NEAREST, EACH_STEP, n_steps)
        case = f"{text}, L = {n_steps}, nearest points"
        yield at_most(n_tokens, 60 * n_steps**2, case, "tokens; 60 L^2")
    for n_steps in (10, 100):
        n_tokens, _ = fewest_tokens(fit, LATTICE, EACH_STEP, n_steps)
        yield at_most(n_tokens, 16, f"{text}, L = {n_steps}, lattice", "tokens; 16")
    for n_heads, (largest, allowed) in enumerate(MIRRORED, start=1):
        errors = []
        for n in (5, 50, 500, 3000):
            x, y, w = bounded_data(seed, n=n)
            block = prompt(x, y, w)
            exact = x.T @ (x @ w - y) / n
            read = mirrored_heads(block, n_heads, largest / 4.0)[:, 0]
            errors.append(float((read - exact).norm() / exact.norm()))
        case = f"{n_heads} mirrored heads for every n, worst of n = 5, 50, 500, 3000"
        yield at_most(max(errors), allowed, case, "error of the mean gradient, relative")


@statement("cot", "Appendix C.1")
def linear_models_start_at_zero(seed: int) -> Iterator[Comparison]:
    """Descend from 0, and show that a network of two layers does not leave it."""
    for fit in (least_squares("ridge", seed, l2=0.1), generalised("logistic", seed)):
        distance = float((fit.literal_chain(1 / fit.beta)[-1] - fit.minimiser).norm())
        bound = exp(-N_STEPS * fit.alpha / fit.beta / 2) * float(fit.minimiser.norm())
        case = f"{fit.name}, {N_STEPS} calls of the layer from w = 0, literal: |w_L - w*|"
        yield at_most(distance, bound, case, "|w|; exp(-L/(2 kappa)) |w*|")
    # All that a step adds to a weight matrix of a network is a product with another one, or with 0.
    fit, weights = (
        generalised("logistic", seed),
        [torch.zeros(3, 3, requires_grad=True) for _ in "12"],
    )
    outputs = fit.x.float() @ weights[0].T
    loss = (torch.relu(torch.relu(outputs) @ weights[1].T) - 1).square().sum()
    gradients = torch.autograd.grad(loss, weights)
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    yield at_most(largest, 0.0, "ReLU network of 2 layers with all weights 0", "largest gradient")


@statement("cot", "Appendix C.3")
def smooth_part_of_the_lasso(seed: int) -> Iterator[Comparison]:
    """Take a proximal step with the gradient of either smooth part."""
    fit, w = least_squares("lasso", seed, l1=0.1), normal(seed + 5, DIMENSION)
    size, gradient = 1 / fit.beta, fit.x.T @ (fit.x @ w - fit.y) / N_EXAMPLES
    exact = fit.step(w, size)
    for compare, factor, text in ((at_most, 1.0, "1/(2n)"), (printed, 2.0, "1/n")):
        step = soft_threshold(w - size * factor * gradient, size * fit.l1)
        case = f"{text} before the sum of squares: distance from the lasso's step"
        yield compare(float((step - exact).abs().max()), 1e-12, case, "error of a weight")
