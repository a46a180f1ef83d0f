"""Logistic regression in context beside scikit-learn's."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

from icgd.errors import SettingError
from icgd.estimators import InContextLogistic


def test_two_classes_have_the_coefficients_of_scikit_learn():
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :8]
    scaled = StandardScaler().fit_transform(X)
    fit = InContextLogistic(0.02, tol=1e-8).fit(X, y)
    real = LogisticRegression(C=0.02, tol=1e-10).fit(scaled, y)
    np.testing.assert_allclose(fit.coef_ * X.std(0), real.coef_, atol=1e-4)
    np.testing.assert_allclose(fit.predict_proba(X), real.predict_proba(scaled), atol=1e-4)
    np.testing.assert_allclose(expit(fit.decision_function(X)), fit.predict_proba(X)[:, 1])
    assert (fit.predict(X) == real.predict(scaled)).all()
    assert (fit.coef_.shape, fit.intercept_.shape) == ((1, 8), (1,))


def test_more_classes_are_each_told_from_the_rest_in_one_run():
    X, y = load_iris(return_X_y=True)
    scaled = StandardScaler().fit_transform(X)
    fit = InContextLogistic(0.1, tol=1e-8).fit(X, y)
    real = OneVsRestClassifier(LogisticRegression(C=0.1, tol=1e-10)).fit(scaled, y)
    np.testing.assert_allclose(fit.predict_proba(X), real.predict_proba(scaled), atol=1e-5)
    expected = np.vstack([one.coef_ for one in real.estimators_])
    np.testing.assert_allclose(fit.coef_ * X.std(0), expected, atol=1e-4)
    assert fit._run.parameters.shape == (3, fit.n_iter_ + 1, 5)
    np.testing.assert_allclose(fit.decision_function(X), X @ fit.coef_.T + fit.intercept_)
    assert fit.loss_curve_[0] == pytest.approx(3 * np.log(2))
    assert len(fit.loss_curve_) == fit.n_iter_ + 1


def test_the_inverse_penalty_is_positive():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(SettingError, match=r"C must be a positive finite number, got 0\.0"):
        InContextLogistic(0.0).fit(X, y)
