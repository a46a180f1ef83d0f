r"""Lemmas A.1 to A.4: (proximal) gradient descent on convex functions, exact and with errors.

They are tried on a quadratic with a flat direction, on a quadratic of condition 10, and on the risk
of a logistic model, which is no quadratic. All three descend in five dimensions from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from icgd_papers.theorems.statement import Comparison, Finding, Statement

Map = Callable[[Tensor], Tensor]

DIMENSION, N_STEPS = 5, 20

ROUNDING = 1e-12
"""By how much a ratio may exceed 1 where a bound is tight."""


@dataclass(frozen=True)
class Convex:
    """A function with Hessians between alpha and beta; `name` says in words which it is."""

    name: str
    value: Map
    gradient: Map
    alpha: float
    beta: float
    minimiser: Tensor


def drawn(seed: int, *shape: int) -> Tensor:
    """Normal numbers, repeatable from the seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quadratic(spectrum: Tensor, minimiser: Tensor, seed: int) -> Convex:
    """Half of <w - w*, H (w - w*)>, where H has this spectrum and random eigenvectors."""
    basis, _ = torch.linalg.qr(drawn(seed, len(spectrum), len(spectrum)))
    hessian = basis @ torch.diag(spectrum) @ basis.T
    alpha, beta = float(spectrum.min()), float(spectrum.max())
    return Convex(
        f"quadratic, curvature {alpha:g} to {beta:g}",
        lambda w: (w - minimiser) @ hessian @ (w - minimiser) / 2,
        lambda w: hessian @ (w - minimiser),
        alpha,
        beta,
        minimiser,
    )


def logistic(seed: int, ridge: float = 0.1, n_examples: int = 12) -> Convex:
    """The sum of logistic losses on random labels, and ridge / 2 |w|^2; Newton finds its least."""
    x, y = drawn(seed, n_examples, DIMENSION), (drawn(seed + 1, n_examples) > 0).double()

    def value(w: Tensor) -> Tensor:
        s = x @ w
        return torch.nn.functional.softplus(s).sum() - y @ s + ridge * (w @ w) / 2

    def gradient(w: Tensor) -> Tensor:
        return x.T @ (torch.sigmoid(x @ w) - y) + ridge * w

    def hessian(w: Tensor) -> Tensor:
        p = torch.sigmoid(x @ w)
        return (x.T * (p * (1 - p))) @ x + ridge * torch.eye(DIMENSION, dtype=torch.float64)

    beta = float(torch.linalg.matrix_norm(x, 2)) ** 2 / 4 + ridge
    start = torch.zeros(DIMENSION, dtype=torch.float64)
    return Convex("logistic", value, gradient, ridge, beta, newton(gradient, hessian, start))


def newton(gradient: Map, hessian: Map, start: Tensor, n_steps: int = 30) -> Tensor:
    """Where a convex function has its least value."""
    point = start
    for _ in range(n_steps):
        point = point - torch.linalg.solve(hessian(point), gradient(point))
    return point


def functions(seed: int) -> tuple[Convex, ...]:
    """Two quadratics, one of them flat in a direction, and a logistic risk."""
    minimiser = drawn(seed + 2, DIMENSION)
    steep = torch.linspace(0.1, 1.0, DIMENSION, dtype=torch.float64)
    flat = torch.tensor([0.0, 0.2, 0.5, 0.8, 1.0], dtype=torch.float64)
    return (
        quadratic(steep, minimiser, seed),
        quadratic(flat, minimiser, seed + 3),
        logistic(seed + 4),
    )


def descend(step: Map, n_steps: int, errors: Tensor | None = None) -> Tensor:
    """The start 0 and the points after every step; a row of `errors` is added to each."""
    points = [torch.zeros(DIMENSION, dtype=torch.float64)]
    for number in range(n_steps):
        after = step(points[-1])
        points.append(after if errors is None else after + errors[number])
    return torch.stack(points)


def soft_threshold(values: Tensor, threshold: float) -> Tensor:
    """The proximal map of threshold |w|_1."""
    return torch.relu(values - threshold) - torch.relu(-values - threshold)


def _ratio(measured: Tensor, allowed: Tensor) -> float:
    """The largest ratio of what was measured to what is allowed; 1 is the limit."""
    return float((measured / allowed).max())


def _step(f: Convex, size: float) -> Map:
    return lambda w: w - size * f.gradient(w)


def _rates(seed: int) -> Finding:
    """Lemma A.1 at every step of functions that are strongly convex."""
    comparisons = []
    for f in (f for f in functions(seed) if f.alpha):
        points = descend(_step(f, 1 / f.beta), N_STEPS)
        decay = torch.exp(-torch.arange(1, N_STEPS + 1, dtype=torch.float64) * f.alpha / f.beta)
        start = f.minimiser @ f.minimiser
        distances = (points[1:] - f.minimiser).square().sum(-1)
        excess = torch.stack([f.value(w) - f.value(f.minimiser) for w in points[1:]])
        for what, measured, scale in (
            ("|w - w*|^2", distances, 1.0),
            ("F - F*", excess, f.beta / 2),
        ):
            case = f"{f.name}: {what} over its bound, worst of {N_STEPS} steps"
            ratio = _ratio(measured, scale * decay * start)
            comparisons.append(Comparison(case, ratio, 1.0, "ratio"))
    return Finding(tuple(comparisons))


RATES = Statement(
    paper="cot",
    label="Lemma A.1",
    claim=(
        "Gradient descent with the step 1/beta on an alpha-strongly convex and beta-smooth "
        "function comes closer to its minimiser by exp(-1/kappa) a step, in squared distance, and "
        "its excess is at most beta/2 times that squared distance bound."
    ),
    formula=(
        "|w_t - w*|^2 <= exp(-t/kappa) |w_0 - w*|^2; "
        "F(w_t) - F* <= beta/2 exp(-t/kappa) |w_0 - w*|^2"
    ),
    check=_rates,
)


def _piling_up(
    seed: int, step_of: Callable[[Convex], Map], objects: tuple[Convex, ...]
) -> tuple[Comparison, ...]:
    """Lemmas A.2 and A.4 with R = 4 |w*|: random errors of length eps at every step of 2/beta."""
    comparisons = []
    for f in objects:
        radius = 4 * float(f.minimiser.norm())
        eps = radius / (2 * N_STEPS)  # the largest that L <= R / (2 eps) allows
        errors = drawn(seed + 7, N_STEPS, DIMENSION)
        errors = eps * errors / errors.norm(dim=-1, keepdim=True)
        exact, off = descend(step_of(f), N_STEPS), descend(step_of(f), N_STEPS, errors)
        piled = eps * torch.arange(1, N_STEPS + 1, dtype=torch.float64)
        apart, size = (off - exact).norm(dim=-1)[1:], off.norm(dim=-1)[1:]
        for what, ratio in (
            ("distance from exact descent over L eps", _ratio(apart, piled)),
            ("|w_L| over R/2 + L eps", _ratio(size, radius / 2 + piled)),
        ):
            case = f"{f.name}, R = 4 |w*|: {what}"
            comparisons.append(Comparison(case, ratio, 1.0 + ROUNDING, "ratio"))
    return tuple(comparisons)


def _overshot(penalty: float) -> Comparison:
    """One step of 2/beta on (w - 1 - penalty)^2 / 2 + penalty |w|, whose least value is at 1."""
    minimiser, step, eps = 1.0, 2.0, 0.1
    radius = 2 * minimiser
    moved = torch.tensor(step * (minimiser + penalty), dtype=torch.float64)
    first = float(soft_threshold(moved, step * penalty))
    case = "one dimension, w* = 1, R = 2, eps = 0.1: |w_1| after one exact step of 2/beta"
    return Comparison(case, first, radius / 2 + eps, "|w_1|")


PILING_CLAIM = (
    "runs on one convex function, one exact and one off by at most eps at every step, stay "
    "within L eps of each other for steps up to 2/beta, and the second stays within R/2 + L eps of "
    "0, if R >= 2 |w*| and L <= R/(2 eps)."
)

PILING_CORRECTION = (
    "R >= 4 |w*|, and both runs start at 0 (no start is printed). Descent from 0 can only be "
    "trusted to stay within |w*| of w*, that is within 2 |w*| of 0: a step of 2/beta on a "
    "quadratic goes there at once, beyond R/2 = |w*|."
)


def _errors_pile_up(seed: int) -> Finding:
    right = _piling_up(seed, lambda f: _step(f, 2 / f.beta), functions(seed))
    return Finding(right, printed=(_overshot(0.0),))


PILING_UP = Statement(
    paper="cot",
    label="Lemma A.2",
    claim="Two gradient descent " + PILING_CLAIM,
    formula="|w^_L - w_L| <= L eps; |w^_L| <= R/2 + L eps <= R, for eta <= 2/beta",
    check=_errors_pile_up,
    correction=PILING_CORRECTION,
)


L1 = 0.05
"""The penalty of the lasso in these checks."""


def _lasso_minimiser(f: Convex) -> Tensor:
    """Where f + L1 |w|_1 is least, by steps of 1/beta until they stand still."""
    step, point = _proximal_step(f, 1 / f.beta), torch.zeros(DIMENSION, dtype=torch.float64)
    for _ in range(3000):
        point = step(point)
    return point


def _proximal_step(f: Convex, size: float) -> Map:
    return lambda w: soft_threshold(w - size * f.gradient(w), size * L1)


def _with_penalty(f: Convex) -> Convex:
    """f + L1 |w|_1 as an object whose minimiser is that of the sum."""
    minimiser = _lasso_minimiser(f)
    return Convex(
        f"{f.name} + {L1:g} |w|_1",
        lambda w: f.value(w) + L1 * w.abs().sum(),
        f.gradient,
        f.alpha,
        f.beta,
        minimiser,
    )


@lru_cache(maxsize=64)
def _penalised(seed: int) -> tuple[Convex, ...]:
    return tuple(map(_with_penalty, functions(seed)))


def _proximal_rates(seed: int) -> Finding:
    """Lemma A.3: three claims for the lasso, and the printed iteration on a sum of two squares."""
    comparisons = []
    for f in (f for f in _penalised(seed) if f.alpha):
        points = descend(_proximal_step(f, 1 / f.beta), N_STEPS)
        values = torch.stack([f.value(w) for w in points]) - f.value(f.minimiser)
        squares = (points - f.minimiser).square().sum(-1)
        counts = torch.arange(1, N_STEPS + 1, dtype=torch.float64)
        gains = f.beta / 2 * (squares[:-1] - squares[1:])
        for what, excess in (
            ("the objective rises by", values[1:] - values[:-1]),
            ("the excess above beta/2 of the squared distance gained", values[1:] - gains),
            (
                "the excess above beta/(2k) |w_0 - w*|^2",
                values[1:] - f.beta * squares[0] / counts / 2,
            ),
        ):
            largest = float(excess.max())
            comparisons.append(Comparison(f"{f.name}: {what}", largest, ROUNDING, "excess"))
    return Finding(tuple(comparisons), printed=(_wrong_gradient(),))


def _wrong_gradient(n_steps: int = 20) -> Comparison:
    """f = w^2/2 - w and h = w^2/2: the printed step has its fixed point at 1/3, not at 1/2."""

    def excess(w: float) -> float:
        return (w * w - w) - (0.25 - 0.5)

    w = 0.0
    for _ in range(n_steps):
        w = (w - (2 * w - 1)) / 2  # the proximal map of w^2/2 halves; the gradient is that of f + h
    case = f"f = w^2/2 - w, h = w^2/2, {n_steps} steps with the gradient of f + h: F - F*"
    return Comparison(case, excess(w), 0.25 / (2 * n_steps), "excess")


PROXIMAL_RATES = Statement(
    paper="cot",
    label="Lemma A.3",
    claim=(
        "Proximal gradient descent with the step 1/beta on f + h, f convex and beta-smooth and h "
        "convex, never rises, gains at least what its excess is in squared distance, and has an "
        "excess that falls like 1/k."
    ),
    formula=(
        "F(w_{t+k}) - F* <= beta/(2k) |w_t - w*|^2, w_{t+1} = prox_{eta R}(w_t - eta grad L(w_t))"
    ),
    check=_proximal_rates,
    correction=(
        "The gradient is that of f alone and the proximal map that of h; printed are the gradient "
        "of L = f + h and the map of an R that is not defined. With them h counts twice."
    ),
)


def _proximal_errors_pile_up(seed: int) -> Finding:
    right = _piling_up(seed, lambda f: _proximal_step(f, 2 / f.beta), _penalised(seed))
    return Finding(right, printed=(_overshot(0.5),))


PROXIMAL_PILING_UP = Statement(
    paper="cot",
    label="Lemma A.4",
    claim="Two proximal gradient descent " + PILING_CLAIM,
    formula="|w^_L - w_L| <= L eps; |w^_L| <= R/2 + L eps <= R, for eta <= 2/beta",
    check=_proximal_errors_pile_up,
    correction=PILING_CORRECTION,
)
