"""Scales, boxes and penalties of linear models."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Lasso, Ridge

from icgd.errors import SettingError
from icgd.estimators import InContextLasso, InContextLogistic, InContextPoisson, InContextRidge

X, Y = load_diabetes(return_X_y=True, scaled=False)
X = X / X.std(0) * np.linspace(1, 2, 10)  # raw, but not so that descent takes for ever


@pytest.mark.parametrize(
    ("fit", "real"),
    [
        (InContextRidge(5.0, standardize=False, tol=1e-9, max_iter=20_000), Ridge(5.0)),
        (InContextLasso(2.0, standardize=False, tol=1e-9), Lasso(2.0, tol=1e-10)),
    ],
)
def test_penalties_of_raw_coefficients_are_those_of_scikit_learn(fit, real):
    fit.fit(X, Y), real.fit(X, Y)
    np.testing.assert_allclose(fit.coef_, real.coef_, atol=1e-4 * np.abs(real.coef_).max())
    assert fit.intercept_ == pytest.approx(real.intercept_, rel=1e-4)


def test_without_an_intercept_nothing_is_centred():
    fit = InContextRidge(5.0, fit_intercept=False, tol=1e-9, max_iter=50_000).fit(X, Y)
    size = np.sqrt((X**2).mean(0))
    real = Ridge(5.0, fit_intercept=False).fit(X / size, Y)
    np.testing.assert_allclose(fit.coef_ * size, real.coef_, atol=1e-3 * abs(real.coef_).max())
    assert fit.intercept_ == 0.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "fit", [InContextRidge(1e-6), InContextLasso(1e-6), InContextLogistic(1e6), InContextPoisson()]
)
def test_no_run_reaches_its_box(fit):
    fit.set_params(max_iter=200).fit(X, Y > 140 if hasattr(fit, "C") else Y)
    weights = fit._run.parameters.abs().max()
    assert float(weights) < fit.compiled_.problem.box / 2


@pytest.mark.parametrize(("name", "value"), [("max_iter", -3), ("tol", 0.0), ("alpha", "1")])
def test_bad_settings_are_named(name, value):
    with pytest.raises(SettingError, match=f"^{name} must be"):
        InContextRidge(**{name: value}).fit(X, Y)
