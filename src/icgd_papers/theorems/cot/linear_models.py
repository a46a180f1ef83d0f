r"""Section 3: a block that is used again descends on generalised linear models, ridge and lasso.

Each theorem is tried on two runs: of icgd's literal transformer, whose block has three layers and
no error but rounding, and of one softmax layer as the paper has it, with a coarse grid. Minimisers
are found by Newton's method or in closed form. The printed forms are tried on one example, where
exact descent is a sequence of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from icgd_papers.theorems.cot.descent import Map, drawn, newton, soft_threshold
from icgd_papers.theorems.cot.heads import grid, mean_minus_label
from icgd_papers.theorems.statement import Comparison, Finding, Statement

DIMENSION, N_EXAMPLES, N_STEPS = 3, 24, 40

N_TOKENS, REACH = 33, 8.0
"""The grid of one softmax layer, which is coarse, so that its errors can be seen."""

EXACT, COARSE = 1e-11, 0.1
"""Errors of a step that icgd's block, which is accurate to rounding, and the coarse layer must stay
below."""

SHARES = (1.0, 0.5)
"""Step sizes as shares of 1/beta."""


@dataclass(frozen=True)
class Fit:
    """A linear model with data: its exact step, its curvature on the ball, and its minimiser."""

    name: str
    problem: Problem
    construction: str
    x: Tensor
    y: Tensor
    mean: Map
    scale: float
    step: Map
    alpha: float
    beta: float
    minimiser: Tensor

    @property
    def radius(self) -> float:
        """B_w, or R: twice the length of the minimiser."""
        return 2 * float(self.minimiser.norm())

    @property
    def size(self) -> float:
        """The step size."""
        return self.problem.proximal_step.step_size or 0.0

    def run(self) -> Tensor:
        """The weights after every step of the literal transformer, from 0."""
        compiled = compile(self.problem, self.construction, n_steps=N_STEPS)
        return compiled.run(self.x, self.y[:, None], backend="literal").parameters

    def softmax_run(self) -> Tensor:
        """The weights after every step of one softmax layer of 2n heads with a coarse grid."""
        update, points, w = self.problem.proximal_step, grid(REACH, N_TOKENS), 0 * self.minimiser
        history = [w]
        for _ in range(N_STEPS):
            gradient = self.scale * mean_minus_label(self.x, self.y, w, self.mean, points)
            w = soft_threshold(w - self.size * (gradient + update.l2 * w), self.size * update.l1)
            history.append(w)
        return torch.stack(history)

    def runs(self) -> Iterator[tuple[str, Tensor]]:
        """Two runs: of the library's block of three layers, and of one coarse softmax layer."""
        step = f"{self.name}, step {self.size * self.beta:g}/beta"
        yield f"{step}, icgd's literal block", self.run()
        yield f"{step}, one softmax layer, {N_TOKENS} tokens", self.softmax_run()

    def step_errors(self, history: Tensor) -> Tensor:
        """How far each step is from the exact one, coordinate by coordinate."""
        return torch.stack([after - self.step(before) for before, after in pairwise(history)])


def _extreme(matrix: Tensor) -> tuple[float, float]:
    eigenvalues = torch.linalg.eigvalsh(matrix)
    return float(eigenvalues[0]), float(eigenvalues[-1])


@dataclass(frozen=True)
class Link:
    """The mean of labels 0 .. `most`, and its least and largest slope for scores up to a size."""

    name: str
    most: int
    mean: Map
    slope: Map
    slopes: Callable[[Tensor], tuple[Tensor, Tensor]]


def _logistic_slope(s: Tensor) -> Tensor:
    return torch.sigmoid(s) * torch.sigmoid(-s)


LINKS = (
    Link(
        "logistic", 1, torch.sigmoid, _logistic_slope, lambda s: (_logistic_slope(s), 0 * s + 0.25)
    ),
    Link("poisson", 2, torch.exp, torch.exp, lambda s: (torch.exp(-s), torch.exp(s))),
)


def _glm(link: Link, share: float, seed: int) -> Fit:
    """A generalised linear model on the sum of its losses, without a penalty."""
    x = 0.4 * drawn(seed, N_EXAMPLES, DIMENSION).clamp(-2, 2)
    y = (drawn(seed + 1, N_EXAMPLES, link.most) > 0).double().sum(-1)

    def gradient(w: Tensor) -> Tensor:
        return x.T @ (link.mean(x @ w) - y)

    def hessian(w: Tensor) -> Tensor:
        return (x.T * link.slope(x @ w)) @ x

    minimiser = newton(gradient, hessian, torch.zeros(DIMENSION, dtype=torch.float64))
    least, largest = link.slopes(2 * minimiser.norm() * x.norm(dim=-1))
    alpha, beta = _extreme((x.T * least) @ x)[0], _extreme((x.T * largest) @ x)[1]
    size = share / beta
    model = LinearModel(DIMENSION, link.name, reduction="sum")
    domain = Domain(1.0, 2.0, score=4.0)
    problem = Problem(model, "matching", ProximalStep(size, box=20.0), domain)
    return Fit(
        link.name,
        problem,
        "cot-glm",
        x,
        y,
        link.mean,
        1.0,
        lambda w: w - size * gradient(w),
        alpha,
        beta,
        minimiser,
    )


def _least_squares(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, labels, and X^T X / n and X^T y / n; the inputs' columns are orthogonal."""
    basis, _ = torch.linalg.qr(drawn(seed, N_EXAMPLES, DIMENSION))
    lengths = torch.tensor([1.0, 0.7, 0.4], dtype=torch.float64)
    x = N_EXAMPLES**0.5 * basis * lengths
    y = x @ torch.tensor([1.0, -0.8, 0.02], dtype=torch.float64)
    y = y + 0.1 * drawn(seed + 1, N_EXAMPLES)
    return x, y, x.T @ x / N_EXAMPLES, x.T @ y / N_EXAMPLES


def _linear(name: str, share: float, seed: int, l2: float = 0.0, l1: float = 0.0) -> Fit:
    """Ridge or lasso, with 1/(2n) before the sum of squares."""
    x, y, covariance, moment = _least_squares(seed)
    hessian = covariance + l2 * torch.eye(DIMENSION, dtype=torch.float64)
    alpha, beta = _extreme(hessian)
    size = share / beta
    minimiser = soft_threshold(moment, l1) / hessian.diagonal()
    update = ProximalStep(size, l2=l2, l1=l1, box=20.0)
    problem = Problem(LinearModel(DIMENSION), "matching", update, Domain(8.0, 8.0))

    def step(w: Tensor) -> Tensor:
        return soft_threshold(w - size * (hessian @ w - moment), size * l1)

    return Fit(
        name,
        problem,
        f"cot-{name}",
        x,
        y,
        torch.clone,
        1 / N_EXAMPLES,
        step,
        alpha,
        beta,
        minimiser,
    )


def _step_error(case: str, errors: Tensor) -> Comparison:
    allowed = EXACT if "literal" in case else COARSE
    return Comparison(f"{case}: error of a step", float(errors.abs().max()), allowed, "weight")


def _allowed_steps(fit: Fit, eps: float) -> Tensor:
    """1, 2, .. up to the number of steps that were taken and that L <= B_w/(2 eps) allows."""
    most = min(float(N_STEPS), fit.radius / (2 * eps)) if eps else float(N_STEPS)
    return torch.arange(1, int(most) + 1, dtype=torch.float64)


def _distances(fit: Fit) -> Iterator[Comparison]:
    """The errors of steps, and the runs' distances from the minimiser over their bounds."""
    for case, history in fit.runs():
        errors = fit.step_errors(history)
        eps = float(errors.norm(dim=-1).max())
        count = _allowed_steps(fit, eps)
        bound = count * eps + torch.exp(-fit.size * fit.alpha * count / 2) * fit.radius / 2
        distances = (history[1 : len(count) + 1] - fit.minimiser).norm(dim=-1)
        text = f"{case}: |w_L - w*| over its bound, worst L up to {len(count)}"
        yield _step_error(case, errors)
        yield Comparison(text, float((distances / bound).max()), 1.0, "ratio")


def _on_one_example(factor: float, n_steps: int, what: str) -> Comparison:
    """Exact descent from 0 whose distance from w* = 1 is multiplied by `factor` at every step.

    The loss has alpha = beta, so that kappa = 1, B_w = 2, and there is no error.
    """
    measured, allowed = abs(factor) ** n_steps, exp(-n_steps / 2)
    return Comparison(f"one example, {what}, L = {n_steps}: |w_L - w*|", measured, allowed, "|w|")


TOO_LONG = _on_one_example(-1.0, 2, "eta = 2/beta")
TOO_SHORT = _on_one_example(0.9, 4, "eta = 0.1/beta")
WRONG_UNITS = _on_one_example(1.0 - 4 * 2, 2, "beta = 4, eta = beta/2 (Appendix C.1)")

STEP_CORRECTION = (
    "eta = 1/beta, or eta <= 1/beta and the rate exp(-eta alpha L / 2). At 2/beta descent may "
    "oscillate for ever, and a step far below 1/beta is slower than exp(-L/(2 kappa)). eps is the "
    "error of a step in the 2-norm."
)


def _generalised(seed: int) -> Finding:
    fits = [_glm(link, share, seed) for link in LINKS for share in SHARES]
    right = tuple(comparison for fit in fits for comparison in _distances(fit))
    return Finding(right, printed=(TOO_LONG, TOO_SHORT, WRONG_UNITS))


GENERALISED = Statement(
    paper="cot",
    label="Theorem 3.1",
    claim=(
        "One attention layer performs gradient steps on a generalised linear model to within eps, "
        "and L <= B_w/(2 eps) of them with a step size of at most 2/beta end within L eps + "
        "exp(-L/(2 kappa)) B_w/2 of the minimiser, whose length is at most B_w/2."
    ),
    formula="|w_L - w*| <= L eps + exp(-L/(2 kappa)) B_w/2 for eta <= 2/beta",
    check=_generalised,
    correction=STEP_CORRECTION,
)


def _ridge(seed: int) -> Finding:
    fits = [_linear("ridge", share, seed, l2=0.1) for share in SHARES]
    right = tuple(comparison for fit in fits for comparison in _distances(fit))
    return Finding(right, printed=(TOO_LONG, TOO_SHORT))


RIDGE = Statement(
    paper="cot",
    label="Theorem 3.2",
    claim=(
        "For ridge regression with any penalty lambda >= 0 there is an attention layer whose "
        "chain of L <= B_w/(2 eps) steps, of a size up to 2/beta, ends within L eps + "
        "exp(-L/(2 kappa)) B_w/2 of the minimiser, whose length is at most B_w/2."
    ),
    formula="|w_L - w_ridge| <= L eps + exp(-L/(2 kappa)) B_w/2 for eta <= 2/beta",
    check=_ridge,
    correction=STEP_CORRECTION,
)

L1 = 0.1


def _objective(fit: Fit, w: Tensor) -> Tensor:
    residual = fit.x @ w - fit.y
    return residual @ residual / (2 * len(fit.y)) + L1 * w.abs().sum()


def _excesses(fit: Fit) -> Iterator[Comparison]:
    """The errors of proximal steps, and the runs' excesses over their bounds."""
    slope = float((fit.x.T @ fit.y / len(fit.y)).norm())
    slope += fit.beta * fit.radius + L1 * DIMENSION**0.5
    least = _objective(fit, fit.minimiser)
    for case, history in fit.runs():
        errors = fit.step_errors(history)
        eps = float(errors.norm(dim=-1).max())
        count = _allowed_steps(fit, eps)
        off, exact = count * eps, fit.radius**2 / (8 * fit.size * count)
        bound = slope * off + fit.beta * off**2 / 2 + exact
        reached = history[1 : len(count) + 1]
        excess = torch.stack([_objective(fit, w) - least for w in reached])
        text = f"{case}: F(w_L) - F* over its bound, worst L up to {len(count)}"
        yield _step_error(case, errors)
        yield Comparison(text, float((excess / bound).max()), 1.0, "ratio")


def _lasso_on_one_example(size: float, n_steps: int) -> Comparison:
    """Exact steps on (w - 3/2)^2 / 2 + |w| / 2, which is least at w* = 1; beta = 1, R = 2."""

    def objective(w: Tensor) -> float:
        return float((w - 1.5) ** 2 / 2 + w.abs() / 2)

    w = torch.zeros((), dtype=torch.float64)
    for _ in range(n_steps):
        w = soft_threshold(w - size * (w - 1.5), size / 2)
    excess = objective(w) - objective(torch.ones((), dtype=torch.float64))
    case = f"one example, lambda = 1/2, eta = {size:g}/beta, L = {n_steps}: F(w_L) - F*"
    return Comparison(case, excess, 2**2 / (8 * n_steps), "F")


def _lasso(seed: int) -> Finding:
    fits = [_linear("lasso", share, seed, l1=L1) for share in SHARES]
    right = tuple(comparison for fit in fits for comparison in _excesses(fit))
    return Finding(right, printed=(_lasso_on_one_example(2.0, 2), _lasso_on_one_example(0.1, 2)))


LASSO = Statement(
    paper="cot",
    label="Theorem 3.3",
    claim=(
        "One attention layer and one MLP perform proximal gradient steps on the lasso to within "
        "eps, and L <= R/(2 eps) of them with a step size of at most 2/beta end with an excess "
        "of at most three terms, of which the one without eps falls like 1/L."
    ),
    formula=(
        "F(w_L) - F* <= (C_0 + beta R + lambda sqrt(d)) L eps + beta/2 (L eps)^2 + beta R^2/(8L) "
        "for eta <= 2/beta"
    ),
    check=_lasso,
    correction=(
        "eta = 1/beta, or eta <= 1/beta and the last term R^2/(8 eta L); R >= 2 |w*|, which the "
        "theorem does not say. At 2/beta descent may oscillate for ever."
    ),
)


def _prompt_rows(seed: int) -> Finding:
    del seed  # it is a count
    rows = DIMENSION + 1 + DIMENSION + 1
    case = f"d = {DIMENSION}: rows of [x_i; y_i; w; 1] beyond those of"
    right = Comparison(f"{case} 2d + 2", float(abs(rows - (2 * DIMENSION + 2))), 0.0, "rows")
    printed = Comparison(f"{case} 2d + 3", float(abs(rows - (2 * DIMENSION + 3))), 0.0, "rows")
    return Finding((right,), printed=(printed,))


PROMPT_ROWS = Statement(
    paper="cot",
    label="Definition 3.1",
    claim="The prompt with columns [x_i; y_i; w; 1] has 2d + 3 rows.",
    formula="Z_l in R^((2d+3) x ln)",
    check=_prompt_rows,
    correction=(
        "2d + 2 rows. The appendix writes a further row with the number l of the step into some "
        "of its blocks, which would make 2d + 3; no step reads it."
    ),
)


def _twice_the_gradient(seed: int) -> Finding:
    """A proximal step with the gradient of (1/n) sum (..)^2, which is twice that of Section 3.3."""
    fit, w = _linear("lasso", 1.0, seed, l1=L1), drawn(seed + 5, DIMENSION)
    gradient = fit.x.T @ (fit.x @ w - fit.y) / len(fit.y)
    unit = "largest difference of a weight"
    cases = (("1/(2n)", 1.0), ("1/n", 2.0))
    right, printed = (
        Comparison(
            f"{scale} before the sum: the step's distance from that of the lasso",
            float(
                (soft_threshold(w - fit.size * f * gradient, fit.size * L1) - fit.step(w))
                .abs()
                .max()
            ),
            1e-12,
            unit,
        )
        for scale, f in cases
    )
    return Finding((right,), printed=(printed,))


SMOOTH_PART = Statement(
    paper="cot",
    label="Appendix C.3",
    claim="The smooth part of the lasso that proximal steps descend on is the mean of squares.",
    formula="L_n^0(w) = (1/n) sum_i (<w, x_i> - y_i)^2, L_lasso = L_n^0 + lambda |w|_1",
    check=_twice_the_gradient,
    correction="1/(2n), as in Section 3.3 and in the lasso itself a few lines above.",
)


def _from_zero(seed: int) -> Finding:
    """Linear models leave 0; a network does not, and cot gives it initial weights."""
    fit = _linear("ridge", 1.0, seed, l2=0.1)
    last = float((fit.run()[-1] - fit.minimiser).norm())
    case = f"ridge from w = 0, {N_STEPS} steps of 1/beta, literal: |w_L - w*| over |w*|"
    bound = exp(-N_STEPS * fit.alpha / fit.beta / 2)
    return Finding((Comparison(case, last / float(fit.minimiser.norm()), bound, "ratio"),))


FROM_ZERO = Statement(
    paper="cot",
    label="Appendix C.1",
    claim=(
        "Descent on a linear model starts at w = 0 and still comes to the minimiser; networks, "
        "which would never leave 0, start from the weights that the prompt holds in B_1 .. B_N."
    ),
    formula="w^(0) = 0",
    check=_from_zero,
)
