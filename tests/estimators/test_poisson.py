"""Poisson regression in context beside scikit-learn's."""

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.preprocessing import StandardScaler

from icgd.errors import DataError
from icgd.estimators import InContextPoisson

DRAW = np.random.default_rng(0)
X = DRAW.normal(2.0, 3.0, size=(150, 4))
Y = DRAW.poisson(np.exp(1.5 + 0.2 * X[:, 0] - 0.1 * X[:, 1])).astype(float)


def test_counts_have_the_coefficients_of_scikit_learn():
    scaled = StandardScaler().fit_transform(X)
    fit = InContextPoisson(0.1).fit(X, Y)
    real = PoissonRegressor(alpha=0.1, tol=1e-10, max_iter=1000).fit(scaled, Y)
    np.testing.assert_allclose(fit.coef_ * X.std(0), real.coef_, atol=1e-4)
    np.testing.assert_allclose(fit.predict(X), real.predict(scaled), rtol=1e-4)
    np.testing.assert_allclose(fit.predict(X), np.exp(X @ fit.coef_ + fit.intercept_), rtol=1e-9)
    assert fit.convergence_.is_done


def test_without_an_intercept_labels_keep_their_unit():
    fit = InContextPoisson(0.1, fit_intercept=False).fit(X, Y)
    real = PoissonRegressor(alpha=0.1, fit_intercept=False, tol=1e-10, max_iter=1000)
    size = np.sqrt((X**2).mean(0))
    np.testing.assert_allclose(fit.coef_ * size, real.fit(X / size, Y).coef_, atol=1e-4)
    assert fit.intercept_ == 0.0


@pytest.mark.parametrize(
    ("labels", "reason"),
    [(np.zeros(150), "all are 0, which no finite intercept fits"), (Y - 9, "one is -9")],
)
def test_labels_that_no_mean_fits_are_refused(labels, reason):
    message = f"^Labels of a poisson model are counts or rates of at least 0, but {reason}.$"
    with pytest.raises(DataError, match=message):
        InContextPoisson().fit(X, labels)


def test_rows_beyond_the_heads_are_named():
    fit = InContextPoisson(0.1, max_iter=200).fit(X, Y)
    far = X[:3].copy()
    far[1] = 1000 * fit.coef_
    message = r"^The expected count of row 1 \(counted from 0\) is exp\(.* up to exp\(6.5\)"
    with pytest.raises(DataError, match=message):
        fit.predict(far)
