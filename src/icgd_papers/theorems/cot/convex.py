r"""Lemmas A.1 to A.4 of cot: (proximal) gradient descent on convex functions, with errors.

They are tried on two quadratics, one of them flat in a direction, and on a logistic risk. All runs
start at 0, in five dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from icgd_papers.theorems.statement import Comparison, at_most, printed, statement

Map = Callable[[Tensor], Tensor]

DIMENSION, N_STEPS, L1 = 5, 20, 0.05

ROUNDING = 1e-12


def normal(seed: int, *shape: int) -> Tensor:
    """Return normal numbers, repeatable from the seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def soft_threshold(values: Tensor, threshold: float) -> Tensor:
    """Return the proximal map of threshold |w|_1."""
    return torch.relu(values - threshold) - torch.relu(-values - threshold)


def newton(gradient: Map, hessian: Map, start: Tensor, n_steps: int = 30) -> Tensor:
    """Minimise a smooth convex function."""
    point = start
    for _ in range(n_steps):
        point = point - torch.linalg.solve(hessian(point), gradient(point))
    return point


@dataclass(frozen=True)
class Convex:
    """f + l1 |w|_1, where the Hessians of f lie between alpha and beta."""

    name: str
    smooth: Map
    gradient: Map
    alpha: float
    beta: float
    minimiser: Tensor
    l1: float = 0.0

    def value(self, w: Tensor) -> Tensor:
        """Return the objective with its penalty."""
        return self.smooth(w) + self.l1 * w.abs().sum()

    def step(self, w: Tensor, size: float) -> Tensor:
        """Take an exact proximal step; without a penalty it is a gradient step."""
        return soft_threshold(w - size * self.gradient(w), size * self.l1)

    def descend(self, size: float, errors: Tensor | None = None) -> Tensor:
        """Return 0 and the points after every step; a row of `errors` is added to each."""
        points = [torch.zeros(DIMENSION, dtype=torch.float64)]
        for number in range(N_STEPS):
            after = self.step(points[-1], size)
            points.append(after if errors is None else after + errors[number])
        return torch.stack(points)


def quadratic(spectrum: list[float], minimiser: Tensor, seed: int) -> Convex:
    """Return <w - w*, H (w - w*)> / 2 with a random H of this spectrum."""
    basis, _ = torch.linalg.qr(normal(seed, DIMENSION, DIMENSION))
    hessian = basis @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ basis.T
    alpha, beta = min(spectrum), max(spectrum)
    return Convex(
        f"quadratic, curvature {alpha:g} to {beta:g}",
        lambda w: (w - minimiser) @ hessian @ (w - minimiser) / 2,
        lambda w: hessian @ (w - minimiser),
        alpha,
        beta,
        minimiser,
    )


def logistic(seed: int, ridge: float = 0.1, n_examples: int = 12) -> Convex:
    """Return the sum of logistic losses on random labels plus ridge / 2 |w|^2."""
    x, y = normal(seed, n_examples, DIMENSION), (normal(seed + 1, n_examples) > 0).double()

    def gradient(w: Tensor) -> Tensor:
        return x.T @ (torch.sigmoid(x @ w) - y) + ridge * w

    def hessian(w: Tensor) -> Tensor:
        p = torch.sigmoid(x @ w)
        return (x.T * (p * (1 - p))) @ x + ridge * torch.eye(DIMENSION, dtype=torch.float64)

    return Convex(
        "logistic",
        lambda w: functional.softplus(x @ w).sum() - y @ (x @ w) + ridge * (w @ w) / 2,
        gradient,
        ridge,
        float(torch.linalg.matrix_norm(x, 2)) ** 2 / 4 + ridge,
        newton(gradient, hessian, torch.zeros(DIMENSION, dtype=torch.float64)),
    )


def smooth_functions(seed: int) -> tuple[Convex, ...]:
    """Return the functions without a penalty."""
    minimiser = normal(seed + 2, DIMENSION)
    return (
        quadratic([0.1, 0.325, 0.55, 0.775, 1.0], minimiser, seed),
        quadratic([0.0, 0.2, 0.5, 0.8, 1.0], minimiser, seed + 3),
        logistic(seed + 4),
    )


@lru_cache(maxsize=64)
def penalised_functions(seed: int) -> tuple[Convex, ...]:
    """Return the same functions with a penalty, and the minimisers of the sums."""
    functions = []
    for f in smooth_functions(seed):
        with_penalty = replace(f, name=f"{f.name} + {L1:g} |w|_1", l1=L1)
        point = torch.zeros(DIMENSION, dtype=torch.float64)
        for _ in range(3000):
            point = with_penalty.step(point, 1 / f.beta)
        functions.append(replace(with_penalty, minimiser=point))
    return tuple(functions)


@statement("cot", "Lemma A.1")
def descent_converges_exponentially(seed: int) -> Iterator[Comparison]:
    """Compare both rates with every step on strongly convex functions."""
    for f in smooth_functions(seed):
        if f.alpha == 0:
            continue
        points = f.descend(1 / f.beta)[1:]
        bound = torch.exp(-torch.arange(1, N_STEPS + 1).double() * f.alpha / f.beta)
        bound = bound * f.minimiser.square().sum()
        distances = (points - f.minimiser).square().sum(-1)
        excess = torch.stack([f.value(w) - f.value(f.minimiser) for w in points])
        for what, ratios in (
            ("|w - w*|^2", distances / bound),
            ("F - F*", excess / (f.beta / 2 * bound)),
        ):
            case = f"{f.name}: {what} over its bound, worst of {N_STEPS} steps"
            yield at_most(float(ratios.max()), 1.0, case, "ratio")


def errors_add_up(f: Convex, share: float, seed: int) -> Iterator[Comparison]:
    """Add errors of length eps to steps of share/beta, with R = 4 |w*| and the largest eps."""
    radius = 4 * float(f.minimiser.norm())
    eps = radius / (2 * N_STEPS)
    errors = normal(seed + 7, N_STEPS, DIMENSION)
    errors = eps * errors / errors.norm(dim=-1, keepdim=True)
    exact, perturbed = f.descend(share / f.beta)[1:], f.descend(share / f.beta, errors)[1:]
    total = eps * torch.arange(1, N_STEPS + 1, dtype=torch.float64)
    for what, ratios in (
        ("distance from exact descent over L eps", (perturbed - exact).norm(dim=-1) / total),
        ("|w_L| over R/2 + L eps", perturbed.norm(dim=-1) / (radius / 2 + total)),
    ):
        case = f"{f.name}, eta = {share:g}/beta, R = 4 |w*|: {what}"
        yield at_most(float(ratios.max()), 1.0 + ROUNDING, case, "ratio")


def overshot(penalty: float) -> Comparison:
    """Take one step of 2/beta on (w - 1 - penalty)^2 / 2 + penalty |w|, which is least at 1."""
    step, eps, radius = 2.0, 0.1, 2.0
    moved = torch.tensor(step * (1 + penalty), dtype=torch.float64)
    first = float(soft_threshold(moved, step * penalty))
    case = "one dimension, w* = 1, R = 2, eps = 0.1: |w_1| after one exact step of 2/beta"
    return printed(first, radius / 2 + eps, case, "|w_1|; R/2 + eps")


@statement("cot", "Lemma A.2")
def errors_of_descent_add_up(seed: int) -> Iterator[Comparison]:
    """Perturb gradient descent."""
    for f in smooth_functions(seed):
        for share in (2.0, 1.0, 0.3):
            yield from errors_add_up(f, share, seed)
    yield overshot(0.0)


@statement("cot", "Lemma A.3")
def proximal_descent_converges(seed: int) -> Iterator[Comparison]:
    """Try the three claims on the lasso, and the printed iteration on a sum of two squares."""
    for f in penalised_functions(seed):
        points = f.descend(1 / f.beta)
        excess = torch.stack([f.value(w) for w in points]) - f.value(f.minimiser)
        squares = (points - f.minimiser).square().sum(-1)
        counts = torch.arange(1, N_STEPS + 1, dtype=torch.float64)
        gains = f.beta / 2 * (squares[:-1] - squares[1:])
        for what, excesses in (
            ("rise of the objective", excess[1:] - excess[:-1]),
            ("excess above beta/2 of the squared distance gained", excess[1:] - gains),
            ("excess above beta/(2k) |w_0 - w*|^2", excess[1:] - f.beta * squares[0] / counts / 2),
        ):
            yield at_most(float(excesses.max()), 1e-9, f"{f.name}: {what}", "largest of 20 steps")
    # f = w^2/2 - w and h = w^2/2: the proximal map halves, and the printed step rests at 1/3.
    w = 0.0
    for _ in range(N_STEPS):
        w = (w - (2 * w - 1)) / 2
    case = f"f = w^2/2 - w, h = w^2/2, {N_STEPS} steps with the gradient of f + h: F - F*"
    yield printed(w * w - w + 0.25, 0.25 / (2 * N_STEPS), case, "excess; beta/(2k) |w_0 - w*|^2")


@statement("cot", "Lemma A.4")
def errors_of_proximal_descent_add_up(seed: int) -> Iterator[Comparison]:
    """Perturb proximal gradient descent."""
    for f in penalised_functions(seed):
        for share in (2.0, 1.0, 0.3):
            yield from errors_add_up(f, share, seed)
    yield overshot(0.5)
