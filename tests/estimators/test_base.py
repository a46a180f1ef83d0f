"""What all estimators owe: scikit-learn's conventions, and the same answers without a cache."""

import importlib
import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

from icgd import compiled
from icgd.errors import MissingExtraError, SettingError
from icgd.estimators import (
    InContextClassifier,
    InContextKernelRegressor,
    InContextLasso,
    InContextLogistic,
    InContextPoisson,
    InContextRegressor,
    InContextRidge,
)

QUICK = [
    InContextRegressor((8,), max_iter=40, construction="relu-stack"),
    InContextClassifier((8,), max_iter=40, construction="relu-stack"),
    InContextRidge(max_iter=100),
    InContextLasso(max_iter=100),
    InContextLogistic(max_iter=100),
    InContextPoisson(max_iter=100),
    InContextKernelRegressor(max_iter=30),
]


@parametrize_with_checks(QUICK)
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([type(estimator)() for estimator in QUICK])
def test_conventions_of_scikit_learn_by_default(estimator, check):
    check(estimator)


X, Y = (part[:60] for part in load_diabetes(return_X_y=True, scaled=False))
NEW = load_diabetes(return_X_y=True, scaled=False)[0][60:]
FAR = X.mean(0) + 3 * (NEW - X.mean(0))
EACH = pytest.mark.parametrize("estimator", QUICK, ids=lambda estimator: type(estimator).__name__)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def fitted(estimator):
    """The estimator on 60 raw rows; classifiers tell three classes."""
    seeded = clone(estimator).set_params(max_iter=20)
    if "random_state" in seeded.get_params():
        seeded.set_params(random_state=0)
    return seeded.fit(X, Y // 80 if is_classifier(seeded) else Y)


def answers(fit, rows):
    return fit.predict_proba(rows) if is_classifier(fit) else fit.predict(rows)


@EACH
@pytest.mark.parametrize("rows", [NEW, NEW[:1], X, FAR], ids=["new", "one", "context", "far"])
def test_the_cached_context_gives_the_same_bits(estimator, rows):
    fit = fitted(estimator)
    cached = answers(fit, rows)
    assert np.array_equal(answers(fit.set_params(cache_context=False), rows), cached)
    assert np.isfinite(cached).all()


@EACH
def test_a_cached_context_trains_no_more(estimator, monkeypatch):
    fit = fitted(estimator)
    steps = []
    run = compiled.run_checked  # whatever asks for it

    def counted(trained, *arguments, **options):
        steps.append(trained.program.n_steps)
        return run(trained, *arguments, **options)

    monkeypatch.setattr(compiled, "run_checked", counted)
    fit.predict(NEW)
    assert sum(steps) == 0
    fit.set_params(cache_context=False).predict(NEW)
    assert sum(steps) == fit.n_iter_ == 20


@EACH
def test_rows_are_answered_one_by_one_as_together(estimator):
    fit = fitted(estimator)
    single = np.concatenate([answers(fit, row[None]) for row in NEW[:5]])
    np.testing.assert_allclose(answers(fit, NEW)[:5], single, rtol=1e-10)


@EACH
def test_a_fitted_estimator_can_be_pickled(estimator):
    fit = fitted(estimator)
    copy = pickle.loads(pickle.dumps(fit))  # noqa: S301 - our own
    assert np.array_equal(answers(copy, NEW), answers(fit, NEW))
    assert np.array_equal(copy.loss_curve_, fit.loss_curve_)


@EACH
def test_the_certificate_is_the_report_of_the_run_and_is_made_once(estimator):
    fit = fitted(estimator)
    report = fit.certificate_
    assert report.verdict.holds
    assert report.step_errors.shape[-1] == fit.n_iter_
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) < 1e-2
    assert fit.certificate_ is report
    assert fit.fit(X, Y // 80 if is_classifier(fit) else Y).certificate_ is not report


@EACH
def test_it_is_at_home_in_scikit_learn(estimator):
    labels = Y // 80 if is_classifier(estimator) else Y
    pipeline = make_pipeline(MinMaxScaler(), clone(estimator).set_params(max_iter=10))
    name = type(estimator).__name__.lower()
    search = GridSearchCV(pipeline, {f"{name}__max_iter": [5, 10]}, cv=3).fit(X, labels)
    assert search.best_params_[f"{name}__max_iter"] in (5, 10)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert np.isfinite(cross_val_score(pipeline, X, labels, cv=3)).all()


@EACH
def test_a_notebook_shows_an_estimator_without_proving_anything(estimator, monkeypatch):
    fit = fitted(estimator)
    monkeypatch.setattr("icgd.estimators.base.verify", None)
    assert "max_iter" in fit._repr_html_()
    assert "certificate_" not in dir(fit)


@EACH
def test_columns_and_labels_that_do_not_vary_are_learnt(estimator):
    flat = np.column_stack([X, np.full(60, 3.0)])
    if is_classifier(estimator):
        assert clone(estimator).fit(flat, Y // 80).predict(flat).shape == (60,)
        return
    fit = clone(estimator).fit(flat, np.full(60, 5.0))
    np.testing.assert_allclose(fit.predict(flat), 5.0, atol=0.5)


@EACH
def test_more_features_than_examples_are_learnt(estimator):
    wide = np.random.default_rng(0).normal(size=(30, 400))
    labels = wide[:, 0] > 0 if is_classifier(estimator) else np.abs(wide[:, 0])
    fit = clone(estimator).set_params(max_iter=5).fit(wide, labels)
    assert fit.predict(wide).shape == (30,)
    assert fit.n_features_in_ == 400


@EACH
def test_names_of_columns_are_kept(estimator):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(X, schema=[f"column_{i}" for i in range(10)])
    fit = clone(estimator).set_params(max_iter=2).fit(frame, (Y // 80).astype(int))
    assert fit.feature_names_in_.tolist() == frame.columns


def refitted(fit):
    """The estimator fitted again, on other data, one of whose columns is missing."""
    labels = Y[::-1] // 80 if is_classifier(fit) else Y[::-1]
    return fit.fit(100 * X[:, :9] + 7, labels)


@EACH
@pytest.mark.parametrize("place", ["_trained", "_not_done"])
def test_a_fit_that_does_not_end_changes_nothing(estimator, place, monkeypatch):
    def stop(self, *_):
        raise KeyboardInterrupt

    fit = fitted(estimator)
    known, before = answers(fit, NEW), dict(vars(fit))
    monkeypatch.setattr(type(fit), place, stop)
    with pytest.raises(KeyboardInterrupt):
        refitted(fit.set_params(max_iter=1))
    monkeypatch.undo()
    assert vars(fit) == before | {"max_iter": 1}
    assert np.array_equal(answers(fit, NEW), known)
    assert refitted(fit).n_features_in_ == 9


def test_a_fit_that_is_refused_changes_nothing():
    fit = InContextRidge().fit(X, Y)
    known = fit.predict(NEW)
    with pytest.raises(SettingError):
        refitted(fit.set_params(max_iter=-1))
    assert np.array_equal(fit.predict(NEW), known)


def test_a_fit_without_names_forgets_those_of_the_fit_before():
    polars = pytest.importorskip("polars")
    fit = InContextRidge().fit(polars.DataFrame(X), Y)
    assert not hasattr(fit.fit(X, Y), "feature_names_in_")


def test_only_least_squares_take_weights():
    taking = [type(e).__name__ for e in QUICK if has_fit_parameter(e, "sample_weight")]
    assert taking == ["InContextRidge", "InContextLasso"]


def test_the_device_is_one_of_torch():
    assert InContextRidge(device="cpu").fit(X, Y).compiled_
    with pytest.raises(SettingError, match=r"device must be a device of torch, got 'abacus'"):
        InContextRidge(device="abacus").fit(X, Y)


def test_nothing_is_known_before_fit():
    for name in ("loss_curve_", "certificate_"):
        with pytest.raises(NotFittedError):
            getattr(InContextRidge(), name)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "icgd.estimators")
    message = r"^icgd.estimators needs scikit-learn. Install it with: pip install 'icgd\[sklearn\]'"
    with pytest.raises(MissingExtraError, match=message):
        importlib.import_module("icgd.estimators")
