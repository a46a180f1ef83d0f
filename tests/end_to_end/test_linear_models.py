"""Chains of thought end where scikit-learn does, step by exact step."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge
from sklearn.preprocessing import StandardScaler

import icgd

AGREEMENT = 1e-6
"""Of all coefficients, relative to the largest."""


def coefficients(model) -> np.ndarray:
    return np.append(model.coef_, model.intercept_)


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(x), y


def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x), y.astype(float)


def counts() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 5)).clip(-3, 3)
    mean = np.exp(x @ [0.3, -0.2, 0.1, 0.0, 0.25] + 0.4)
    return x, draw.poisson(mean).astype(float)


def ridge(x, y):
    return Ridge(alpha=100.0, tol=1e-14).fit(x, y)


def lasso(x, y):
    return Lasso(alpha=1.0, tol=1e-14, max_iter=100_000).fit(x, y)


def logistic(x, y):
    solver = LogisticRegression(C=0.01, tol=1e-12, max_iter=1000, solver="newton-cholesky")
    return solver.fit(x, y)


def poisson(x, y):
    return PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=10_000).fit(x, y)


WIDE = icgd.Domain(x=6.0, y=400.0, score=1000.0)
FITS = {
    "ridge": (
        diabetes,
        ridge,
        "identity",
        "mean",
        icgd.ProximalStep(l2=100 / 442, box=256.0),
        WIDE,
    ),
    "lasso": (diabetes, lasso, "identity", "mean", icgd.ProximalStep(l1=1.0, box=256.0), WIDE),
    "logistic": (
        breast_cancer,
        logistic,
        "logistic",
        "sum",
        icgd.ProximalStep(l2=100.0, box=4.0),
        icgd.Domain(x=13.0, y=1.0),
    ),
    "poisson": (
        counts,
        poisson,
        "poisson",
        "mean",
        icgd.ProximalStep(l2=0.1, box=0.6),
        icgd.Domain(x=3.0, y=12.0, score=4.0),
    ),
}


def fitted(name: str):
    load, fit, link, reduction, update, domain = FITS[name]
    x, y = load()
    model = icgd.LinearModel(x.shape[1], link, intercept=True, reduction=reduction)
    problem = icgd.sized_problem(icgd.Problem(model, "matching", update, domain), x)
    return problem, x, y, coefficients(fit(x, y))


@pytest.mark.parametrize("name", FITS)
def test_the_chain_ends_at_the_coefficients_of_scikit_learn(name):
    problem, x, y, expected = fitted(name)
    compiled = icgd.compile(problem, n_steps=3000)
    run = compiled.run(x, y, queries=x[:3], stop_below=1e-10)
    assert 100 < run.stopped_after < 3000
    found = run.parameters[-1].numpy()
    assert np.abs(found - expected).max() <= AGREEMENT * np.abs(expected).max()
    mean = problem.oracle.predict(compiled.task(x, y, queries=x[:3]), run.parameters[-1])
    assert (run.predictions - mean).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["ridge", "lasso", "poisson"])
def test_every_step_of_the_dense_transformer_is_the_exact_proximal_step(name):
    problem, x, y, expected = fitted(name)
    compiled = icgd.compile(problem, n_steps=1)
    for share in (0.0, 0.9):
        report = icgd.verify(compiled, x, y, initial=share * expected, backend="dense")
        assert report.verdict.holds
        assert report.step_errors.max() <= 1e-11
