"""linear-stack: coefficients beside scikit-learn's, single steps, time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from time import process_time
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge
from sklearn.preprocessing import StandardScaler

import icgd
from icgd.approximation.lattice import mean_of_link
from icgd.environment import one_thread
from icgd.timing import descend, interleaved_medians

STILL = 1e-12
"""Below this change of every coefficient, relative to the box, a run has arrived."""

MOST_STEPS = 60_000
CHECKED_STEPS = 2
"""Steps of the dense transformer that are compared with exact ones, from a third of the way."""

TIMED_STEPS = 200


@dataclass(frozen=True)
class Fit:
    """One data set, one of scikit-learn's estimators, and the same as a problem of icgd."""

    name: str
    x: np.ndarray
    y: np.ndarray
    estimator: Any
    problem: icgd.Problem

    @property
    def coefficients(self) -> np.ndarray:
        """scikit-learn's, the intercept last."""
        fitted = self.estimator.fit(self.x, self.y)
        return np.append(np.ravel(fitted.coef_), fitted.intercept_)

    def compiled(self, n_steps: int) -> icgd.Compiled:
        problem = icgd.sized_problem(self.problem, self.x)
        return icgd.compile(problem, n_steps=n_steps)


def _problem(
    width: int, link: str, update: icgd.ProximalStep, domain: icgd.Domain, reduction: str = "mean"
) -> icgd.Problem:
    return icgd.Problem(icgd.LinearModel(width, link, True, reduction), "matching", update, domain)


def _ridge() -> Fit:
    x, y = load_diabetes(return_X_y=True)
    update = icgd.ProximalStep(l2=100 / len(x), box=256.0)
    problem = _problem(10, "identity", update, icgd.Domain(6.0, 400.0, score=1000.0))
    name = "diabetes, Ridge(alpha=100)"
    return Fit(name, StandardScaler().fit_transform(x), y, Ridge(alpha=100), problem)


def _lasso() -> Fit:
    x, y = load_diabetes(return_X_y=True)
    update = icgd.ProximalStep(l1=1.0, box=256.0)
    problem = _problem(10, "identity", update, icgd.Domain(6.0, 400.0, score=1000.0))
    estimator = Lasso(alpha=1.0, tol=1e-14, max_iter=100_000)
    name = "diabetes, Lasso(alpha=1)"
    return Fit(name, StandardScaler().fit_transform(x), y, estimator, problem)


def _logistic(c: float) -> Fit:
    x, y = load_breast_cancer(return_X_y=True)
    update = icgd.ProximalStep(l2=1 / c, box=4.0)
    problem = _problem(30, "logistic", update, icgd.Domain(13.0, 1.0), "sum")
    estimator = LogisticRegression(C=c, tol=1e-12, max_iter=100_000, solver="newton-cholesky")
    name = f"breast cancer, LogisticRegression(C={c:g})"
    return Fit(name, StandardScaler().fit_transform(x), y.astype(float), estimator, problem)


def _poisson() -> Fit:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5)).clip(-3, 3)
    rates = np.exp(x @ np.array([0.3, -0.2, 0.1, 0.0, 0.25]) + 0.4)
    y = generator.poisson(rates).astype(float)
    update = icgd.ProximalStep(l2=0.1, box=0.6)
    problem = _problem(5, "poisson", update, icgd.Domain(3.0, 12.0, score=4.0))
    estimator = PoissonRegressor(alpha=0.1, tol=1e-12, solver="newton-cholesky")
    return Fit("counts, PoissonRegressor(alpha=0.1)", x, y, estimator, problem)


FITS: tuple[Callable[[], Fit], ...] = (
    _ridge,
    _lasso,
    lambda: _logistic(0.01),
    lambda: _logistic(1.0),
    _poisson,
)


@cache
def _fits() -> tuple[Fit, ...]:
    return tuple(make() for make in FITS)


def coefficients() -> list[dict[str, object]]:
    """Runs until nothing moves, beside scikit-learn; and dense steps beside exact ones."""
    return [_coefficients(fit) for fit in _fits()]


def _coefficients(fit: Fit) -> dict[str, object]:
    compiled = fit.compiled(MOST_STEPS)
    with one_thread():
        start = process_time()
        run = compiled.run(fit.x, fit.y, stop_below=STILL * (fit.problem.box or 1.0))
        seconds = process_time() - start
    found, wanted = run.parameters[-1].numpy(), fit.coefficients
    middle = run.parameters[len(run.parameters) // 3]
    report = icgd.verify(fit.compiled(CHECKED_STEPS), fit.x, fit.y, initial=middle, backend="dense")
    return {
        "scikit-learn": fit.name,
        "construction": compiled.program.construction,
        "steps": run.stopped_after,
        "relative difference": float(abs(found - wanted).max() / abs(wanted).max()),
        "largest dense step error": float(report.step_errors.max()),
        "its bound (b)": float(report.step_bounds.max()),
        "processor seconds": seconds,
    }


PROMISED_STEPS = (10, 100, 1000)


def guarantees() -> list[dict[str, object]]:
    """Theorems 3.1 to 3.3 with real constants, beside where runs end; without intercepts."""
    fits = [fit for fit in _fits() if "C=1" not in fit.name]
    return [_guarantee(_plain(fit), n_steps) for fit in fits for n_steps in PROMISED_STEPS]


def _plain(fit: Fit) -> Fit:
    """Without an intercept, which no penalty curves, and with centred labels for it."""
    model = replace(fit.problem.model, intercept=False)
    centred = fit.y - fit.y.mean() if model.link == "identity" else fit.y
    return replace(fit, y=centred, problem=replace(fit.problem, target=model))


def _guarantee(fit: Fit, n_steps: int) -> dict[str, object]:
    found = icgd.guarantee(fit.compiled(n_steps), fit.x, fit.y)
    return {
        "scikit-learn": fit.name,
        "theorem": found.theorem,
        "steps": n_steps,
        "condition": found.largest_curvature / found.smallest_curvature,
        "step error": found.step_error,
        "distance": found.distance,
        "distance bound": None if found.theorem == "3.3" else found.distance_bound,
        "by contraction": found.contraction_bound,
        "excess": found.excess,
        "excess bound": found.excess_bound,
        "holds": found.holds,
    }


def means() -> list[dict[str, object]]:
    """How many tokens the mean of a link takes, and its proved error, without rounding."""
    ranges = {"logistic": 10.0, "identity": 10.0, "poisson": 4.0, "probit": 10.0, "softplus": 10.0}
    found = {link: mean_of_link(link, reach) for link, reach in ranges.items()}
    return [
        {"link": link, "reach": mean.reach, "tokens": len(mean.values), "error": mean.error}
        for link, mean in found.items()
    ]


def sizes() -> list[dict[str, object]]:
    """Heads, tokens and FLOPs of one block, beside the paper's L^4 heads for L steps."""
    return [_size(fit) for fit in _fits()]


def _size(fit: Fit) -> dict[str, object]:
    compiled = fit.compiled(1)
    summary = compiled.summary(len(fit.x))
    mean = compiled.stack.grid_mean(fit.problem.model.link)
    return {
        "scikit-learn": fit.name,
        "examples": len(fit.x),
        "heads": sum(layer.n_heads for layer in summary.layers_of_a_step),
        "tokens of a mean": len(mean.values),
        "weights": summary.parameters,
        "FLOPs of a step": sum(layer.flops(len(fit.x)) for layer in summary.layers_of_a_step),
        "direct FLOPs": summary.direct_flops,
    }


def speed() -> list[dict[str, object]]:
    """A fused step beside the same step in plain torch, one thread."""
    return [_speed(fit) for fit in _fits()]


def _speed(fit: Fit) -> dict[str, object]:
    compiled = fit.compiled(TIMED_STEPS)
    task = compiled.task(fit.x, fit.y)
    with one_thread():
        seconds = interleaved_medians(
            {
                "fused": lambda: compiled.run_task(task, history=False),
                "torch": lambda: descend(compiled.problem, task, TIMED_STEPS),
            }
        )
    return {
        "scikit-learn": fit.name,
        "fused us/step": 1e6 * seconds["fused"] / TIMED_STEPS,
        "torch us/step": 1e6 * seconds["torch"] / TIMED_STEPS,
        "ratio": seconds["fused"] / seconds["torch"],
    }
