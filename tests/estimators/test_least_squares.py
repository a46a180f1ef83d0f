"""Ridge and lasso in context beside scikit-learn's."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from icgd.errors import DataError, SettingError
from icgd.estimators import InContextLasso, InContextRidge

X, Y = load_diabetes(return_X_y=True, scaled=False)
PAIRS = [
    (InContextRidge(30.0, tol=1e-9), Ridge(30.0)),
    (InContextLasso(1.0, tol=1e-9), Lasso(1.0, tol=1e-10)),
]


@pytest.mark.parametrize(("fit", "real"), PAIRS)
def test_raw_data_give_the_coefficients_of_scikit_learn(fit, real):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        fit.fit(X, Y)
    pipeline = make_pipeline(StandardScaler(), real).fit(X, Y)
    coef = real.coef_ / X.std(0)
    np.testing.assert_allclose(fit.coef_ * X.std(0), real.coef_, atol=1e-3)
    assert fit.intercept_ == pytest.approx(Y.mean() - X.mean(0) @ coef, rel=1e-4)
    np.testing.assert_allclose(fit.predict(X), pipeline.predict(X), rtol=1e-4)
    np.testing.assert_allclose(fit.predict(X), X @ fit.coef_ + fit.intercept_, rtol=1e-9)
    assert fit.convergence_.is_done
    assert fit.n_iter_ < fit.max_iter
    assert (np.diff(fit.loss_curve_) <= 1e-15).all()


@pytest.mark.parametrize(("fit", "real"), PAIRS)
def test_weights_count_as_rows(fit, real):
    weights = np.arange(442) % 3
    fit.fit(X, Y, sample_weight=weights)
    weighted = fit.coef_
    real.fit(StandardScaler().fit_transform(X, sample_weight=weights), Y, sample_weight=weights)
    again = fit.fit(np.repeat(X, weights, axis=0), np.repeat(Y, weights)).coef_
    np.testing.assert_allclose(weighted, again, rtol=1e-7)
    size = StandardScaler().fit(X, sample_weight=weights).scale_
    np.testing.assert_allclose(weighted * size, real.coef_, atol=2e-3)


def test_weights_that_are_all_zero_are_refused():
    message = "^The weight of all 442 examples is zero; at least one sample_weight must be positive"
    with pytest.raises((DataError, ValueError), match=f"{message}|at least one non-zero"):
        InContextRidge().fit(X, Y, sample_weight=np.zeros(442))


def test_a_run_that_is_not_done_says_by_how_much_and_what_would_do():
    with pytest.warns(ConvergenceWarning) as caught:
        InContextLasso(0.1, max_iter=20).fit(X, Y)
    text = str(caught[0].message)
    assert text.startswith("Descent is not done after 20 steps: ")
    assert "of what there is to gain on the objective is left, where 0.0001 would be" in text
    assert "more steps of" in text
    assert "max_iter=20" in text


def test_raw_penalties_on_raw_columns_are_told_to_standardise():
    fit = InContextLasso(0.1, standardize=False, max_iter=50)
    with pytest.warns(ConvergenceWarning, match="With standardised inputs about .* steps in all"):
        fit.fit(X, Y)


def test_constant_labels_and_columns_are_learnt():
    flat = np.column_stack([X, np.ones(442)])
    fit = InContextRidge().fit(flat, np.full(442, 7.0))
    assert fit.predict(flat) == pytest.approx(7.0)
    assert not fit.coef_.any()
    assert InContextLasso().fit(flat, Y).coef_[-1] == 0.0


@pytest.mark.parametrize("kind", [InContextRidge, InContextLasso])
def test_a_penalty_is_not_negative(kind):
    with pytest.raises(SettingError, match=r"^alpha must not be negative, got -1\.0"):
        kind(-1.0).fit(X, Y)
