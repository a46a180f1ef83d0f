"""Scales, boxes and penalties of linear models."""

import warnings

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from icgd.errors import DataError, SettingError
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


# Ridge and lasso in context beside scikit-learn's.

X_SQUARES, Y_SQUARES = load_diabetes(return_X_y=True, scaled=False)
PAIRS = [
    (InContextRidge(30.0, tol=1e-9), Ridge(30.0)),
    (InContextLasso(1.0, tol=1e-9), Lasso(1.0, tol=1e-10)),
]


@pytest.mark.parametrize(("fit", "real"), PAIRS)
def test_raw_data_give_the_coefficients_of_scikit_learn(fit, real):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        fit.fit(X_SQUARES, Y_SQUARES)
    pipeline = make_pipeline(StandardScaler(), real).fit(X_SQUARES, Y_SQUARES)
    coef = real.coef_ / X_SQUARES.std(0)
    np.testing.assert_allclose(fit.coef_ * X_SQUARES.std(0), real.coef_, atol=1e-3)
    assert fit.intercept_ == pytest.approx(Y_SQUARES.mean() - X_SQUARES.mean(0) @ coef, rel=1e-4)
    np.testing.assert_allclose(fit.predict(X_SQUARES), pipeline.predict(X_SQUARES), rtol=1e-4)
    np.testing.assert_allclose(
        fit.predict(X_SQUARES), X_SQUARES @ fit.coef_ + fit.intercept_, rtol=1e-9
    )
    assert fit.convergence_.is_done
    assert fit.n_iter_ < fit.max_iter
    assert (np.diff(fit.loss_curve_) <= 1e-15).all()


@pytest.mark.parametrize(("fit", "real"), PAIRS)
def test_weights_count_as_rows(fit, real):
    weights = np.arange(442) % 3
    fit.fit(X_SQUARES, Y_SQUARES, sample_weight=weights)
    weighted = fit.coef_
    real.fit(
        StandardScaler().fit_transform(X_SQUARES, sample_weight=weights),
        Y_SQUARES,
        sample_weight=weights,
    )
    again = fit.fit(np.repeat(X_SQUARES, weights, axis=0), np.repeat(Y_SQUARES, weights)).coef_
    np.testing.assert_allclose(weighted, again, rtol=1e-7)
    size = StandardScaler().fit(X_SQUARES, sample_weight=weights).scale_
    np.testing.assert_allclose(weighted * size, real.coef_, atol=2e-3)


def test_weights_that_are_all_zero_are_refused():
    message = "^The weight of all 442 examples is zero; at least one sample_weight must be positive"
    with pytest.raises((DataError, ValueError), match=f"{message}|at least one non-zero"):
        InContextRidge().fit(X_SQUARES, Y_SQUARES, sample_weight=np.zeros(442))


def test_a_run_that_is_not_done_says_by_how_much_and_what_would_do():
    with pytest.warns(ConvergenceWarning) as caught:
        InContextLasso(0.1, max_iter=20).fit(X_SQUARES, Y_SQUARES)
    text = str(caught[0].message)
    assert text.startswith("Training has not converged after 20 steps: ")
    assert "the objective fell 99.6% of the way to its minimum, 0.409% is left" in text
    assert "more steps of" in text
    assert "max_iter=20" in text


def test_a_column_and_a_class_are_named_as_users_know_them():
    polars = pytest.importorskip("polars")
    names = load_diabetes().feature_names
    frame = polars.DataFrame(X_SQUARES, schema=names)
    with pytest.warns(ConvergenceWarning, match="The coefficient of 's1' is"):
        InContextLasso(0.1, max_iter=20).fit(frame, Y_SQUARES)
    X, y = load_iris(return_X_y=True)
    iris = np.array(["setosa", "versicolor", "virginica"])[y]
    with pytest.warns(ConvergenceWarning, match="converged for class 'virginica' after 20 steps"):
        InContextLogistic(max_iter=20).fit(X, iris)
    counts = polars.DataFrame(X_POISSON, schema=["a", "b", "c", "d"])
    fit = InContextPoisson(0.1, max_iter=200).fit(counts, Y_POISSON)
    counts[2, "b"] = -1e4
    with pytest.raises(DataError, match=r"of row 2 .* largest term is that of column 'b'"):
        fit.predict(counts)


def test_raw_penalties_on_raw_columns_are_told_to_standardise():
    fit = InContextLasso(0.1, standardize=False, max_iter=50)
    with pytest.warns(ConvergenceWarning, match="With standardised inputs about .* steps in total"):
        fit.fit(X_SQUARES, Y_SQUARES)


def test_constant_labels_and_columns_are_learnt():
    flat = np.column_stack([X_SQUARES, np.ones(442)])
    fit = InContextRidge().fit(flat, np.full(442, 7.0))
    assert fit.predict(flat) == pytest.approx(7.0)
    assert not fit.coef_.any()
    assert InContextLasso().fit(flat, Y_SQUARES).coef_[-1] == 0.0


@pytest.mark.parametrize("kind", [InContextRidge, InContextLasso])
def test_a_penalty_is_not_negative(kind):
    with pytest.raises(SettingError, match=r"^alpha must not be negative, got -1\.0"):
        kind(-1.0).fit(X_SQUARES, Y_SQUARES)


# Logistic regression in context beside scikit-learn's.


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


# Poisson regression in context beside scikit-learn's.

DRAW = np.random.default_rng(0)
X_POISSON = DRAW.normal(2.0, 3.0, size=(150, 4))
Y_POISSON = DRAW.poisson(np.exp(1.5 + 0.2 * X_POISSON[:, 0] - 0.1 * X_POISSON[:, 1])).astype(float)


def test_counts_have_the_coefficients_of_scikit_learn():
    scaled = StandardScaler().fit_transform(X_POISSON)
    fit = InContextPoisson(0.1).fit(X_POISSON, Y_POISSON)
    real = PoissonRegressor(alpha=0.1, tol=1e-10, max_iter=1000).fit(scaled, Y_POISSON)
    np.testing.assert_allclose(fit.coef_ * X_POISSON.std(0), real.coef_, atol=1e-4)
    np.testing.assert_allclose(fit.predict(X_POISSON), real.predict(scaled), rtol=1e-4)
    np.testing.assert_allclose(
        fit.predict(X_POISSON), np.exp(X_POISSON @ fit.coef_ + fit.intercept_), rtol=1e-9
    )
    assert fit.convergence_.is_done


def test_without_an_intercept_labels_keep_their_unit():
    fit = InContextPoisson(0.1, fit_intercept=False).fit(X_POISSON, Y_POISSON)
    real = PoissonRegressor(alpha=0.1, fit_intercept=False, tol=1e-10, max_iter=1000)
    size = np.sqrt((X_POISSON**2).mean(0))
    np.testing.assert_allclose(
        fit.coef_ * size, real.fit(X_POISSON / size, Y_POISSON).coef_, atol=1e-4
    )
    assert fit.intercept_ == 0.0


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (np.zeros(150), "all are 0, which no finite intercept fits"),
        (Y_POISSON - 9, r"y\[\d+\] is -9"),
    ],
)
def test_labels_that_no_mean_fits_are_refused(labels, reason):
    message = f"^Labels of a poisson model are counts or rates of at least 0, but {reason}.$"
    with pytest.raises(DataError, match=message):
        InContextPoisson().fit(X_POISSON, labels)


def test_rows_beyond_the_heads_are_named():
    fit = InContextPoisson(0.1, max_iter=200).fit(X_POISSON, Y_POISSON)
    far = X_POISSON[:3].copy()
    far[1] = 1000 * fit.coef_
    message = r"^The expected count of row 1 \(counted from 0\) is exp\(.* up to exp\(6.5\)"
    with pytest.raises(DataError, match=message):
        fit.predict(far)
