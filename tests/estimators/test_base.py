"""What all estimators owe: scikit-learn's conventions, and the same answers without a cache."""

import importlib
import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

from icgd.compiled import Compiled
from icgd.errors import DataError, DataTypeError, MissingExtraError, SettingError
from icgd.estimators import (
    InContextClassifier,
    InContextKernelRegressor,
    InContextLasso,
    InContextLogistic,
    InContextPoisson,
    InContextRegressor,
    InContextRidge,
)
from icgd.estimators.base import AbstractClassifier, Scaling, bound_above, read_weights, seed_of

QUICK = [
    InContextRegressor((8,), max_iter=25, construction="relu-stack"),
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
    run = Compiled._run  # whatever asks for it

    def counted(trained, *arguments, **options):
        steps.append(trained.program.n_steps)
        return run(trained, *arguments, **options)

    monkeypatch.setattr(Compiled, "_run", counted)
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
    labels = Y // 80 if is_classifier(estimator) else Y
    fit = fitted(estimator).set_params(max_iter=5).fit(X, labels)
    report = fit.certificate_
    assert report.verdict.holds
    assert report.step_errors.shape[-1] == fit.n_iter_
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) < 1e-2
    assert fit.certificate_ is report
    fit.set_params(max_iter=1).fit(X[:20], labels[:20])
    assert fit.certificate_.step_errors.shape[-1] == 1


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
    assert repr(fit).endswith(f", fitted in {fit.n_iter_:,} steps by the fused backend")
    assert repr(clone(fit)) == repr(fit).partition(", fitted in")[0]
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
@pytest.mark.parametrize("place", ["_run_until_loss_falls", "_not_done"])
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


def test_networks_and_least_squares_take_weights():
    taking = {type(e).__name__ for e in QUICK if has_fit_parameter(e, "sample_weight")}
    networks = {"InContextRegressor", "InContextClassifier"}
    assert taking == networks | {"InContextRidge", "InContextLasso"}


def test_a_docstring_explains_the_settings_of_all_bases_once():
    for estimator in QUICK:
        text = type(estimator).__doc__
        for name in estimator.get_params():
            assert text.count(f"        {name}: ") == 1, name
    assert "a row for each class" in InContextLogistic.__doc__  # not what its base says
    assert InContextLogistic.__doc__.count(" coef_: ") == 1


@EACH
def test_progress_is_told(estimator):
    seen = []
    fit = clone(estimator).set_params(on_progress=lambda *place: seen.append(place), max_iter=3)
    fit.fit(X, Y // 80 if is_classifier(fit) else Y)
    n_steps = fit.compiled_.program.n_steps
    assert seen == [(step, 3) for step in range(1, n_steps + 1)]


def test_the_device_is_one_of_torch():
    assert InContextRidge(device="cpu").fit(X, Y).compiled_
    with pytest.raises(
        SettingError, match=r"device is 'abacus'; expected an available device of torch"
    ):
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


# What estimators refuse, in words of icgd and of the types that scikit-learn expects.

X_READ, Y_READ = [[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]
MASKED = np.ma.masked_array(np.ones((3, 1)), [[1], [0], [0]])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"X": 1.0}, "X or y cannot be used: Expected 2D array, got scalar array instead"),
        ({"X": [[object()]] * 3}, "X or y cannot be used: float"),
        ({"X": MASKED}, "X has masked entries"),
        ({"X": [[np.nan]] * 3}, "X or y cannot be used: Input X contains NaN"),
        ({"y": [1.0]}, "X or y cannot be used: Found input variables with inconsistent numbers"),
        ({"y": np.full(3, 1j)}, "y cannot be used: Complex data not supported"),
        ({"sample_weight": "a"}, "sample_weight cannot be used: could not convert"),
        ({"sample_weight": np.inf}, r"sample_weight\[0\] is inf; every entry must be finite"),
    ],
)
def test_data_that_scikit_learn_refuses_are_refused_by_name(data, words):
    with pytest.raises(DataError, match=words):
        InContextRidge(max_iter=2).fit(**{"X": X_READ, "y": Y_READ, **data})


@pytest.mark.parametrize(
    ("column", "words"),
    [([0.5, None, 1.0], "The first such entry is nan in column 'age', row 1"),
     ([1.0, np.inf, 1.0], "The first such entry is inf in column 'age', row 1"),
     (["1", "2", "old"], "could not convert .* is 'old' in column 'age', row 2")],
)  # fmt: skip
def test_an_entry_that_cannot_be_used_is_named_by_its_column(column, words):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"size": [0.0, 1.0, 2.0], "age": column})
    with pytest.raises(DataError, match=words):
        InContextRidge(max_iter=2).fit(frame, Y_READ)
    with pytest.raises(DataError, match=r"is nan in column 1 \(counted from 0\), row 0"):
        InContextRidge(max_iter=2).fit([[0.0, np.nan], [1.0, 1.0], [2.0, 3.0]], Y_READ)


def test_what_is_no_number_is_a_wrong_type_too():
    with pytest.raises(DataTypeError, match="X cannot be used"):
        InContextRidge(max_iter=2).fit(X_READ, Y_READ).predict([[{}]])
    assert issubclass(DataTypeError, TypeError)


def test_weights_of_examples_become_numbers():
    assert read_weights([1, 2], np.ones((2, 1))).tolist() == [1.0, 2.0]


def test_a_seed_follows_from_a_random_state():
    assert seed_of(3) == seed_of(np.random.RandomState(3))
    for wrong in (-1, "a", 2**32, 0.5):
        with pytest.raises(SettingError, match="random_state must be a seed from 0 to"):
            seed_of(wrong)


X_SCALED = np.random.default_rng(0).normal(3.0, 2.0, size=(30, 4))


def test_columns_are_scaled_as_by_scikit_learn():
    weights = np.arange(30.0)
    for given in (None, weights):
        expected = StandardScaler().fit_transform(X_SCALED, sample_weight=given)
        np.testing.assert_allclose(
            Scaling.of(X_SCALED, given).transform(X_SCALED), expected, rtol=1e-12
        )


def test_undone_brings_raw_columns_back():
    scaling = Scaling.of(X_SCALED)
    np.testing.assert_allclose(
        scaling.inverse_transform(scaling.transform(X_SCALED)), X_SCALED, rtol=1e-12
    )


def test_constant_columns_keep_their_scale():
    columns = np.column_stack([np.full(5, 7.3), np.zeros(5), np.arange(5.0)])
    scaling = Scaling.of(columns)
    assert scaling.scale[:2] == pytest.approx([1.0, 1.0])
    assert np.abs(scaling.transform(columns)[:, :2]).max() <= 1e-15


def test_without_centering_the_mean_square_is_one():
    scaled = Scaling.of(X_SCALED, centered=False).transform(X_SCALED)
    np.testing.assert_allclose((scaled**2).mean(0), 1.0, rtol=1e-12)
    assert (Scaling.of(X_SCALED, centered=False).center == 0).all()


def test_alike_columns_are_divided_by_one_number():
    own, alike = (
        Scaling.of(X_SCALED * [1, 10, 100, 1]),
        Scaling.of(X_SCALED * [1, 10, 100, 1]).uniform(),
    )
    assert np.unique(alike.scale) == pytest.approx(np.sqrt((own.scale**2).mean()))
    assert (alike.center == own.center).all()


def test_huge_columns_do_not_overflow():
    scaled = Scaling.of(X_SCALED * 1e300).transform(X_SCALED * 1e300)
    np.testing.assert_allclose(scaled.std(0), 1.0, rtol=1e-12)


def test_a_bound_is_a_power_of_two():
    assert bound_above([0.0]) == bound_above(np.array([-1.0])) == 1.0
    assert bound_above([-3.0], [2.0]) == bound_above([4.0]) == 4.0
    assert bound_above([1.1], room=4.0) == 8.0


X_IRIS, Y_IRIS = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y_IRIS]


class Fixed(AbstractClassifier):
    """A classifier whose outputs are given."""

    def __init__(self, classes, shares):
        self.classes_, self.given = np.array(list(classes)), np.array(shares)

    def _output_probabilities(self, X):
        return self.given


def test_probabilities_are_divided_by_their_sum():
    fixed = Fixed("abc", [[0.2, 0.2, 0.4], [0.0, 0.0, 0.0]])
    expected = [[0.25, 0.25, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(fixed.predict_proba(None), expected)
    assert fixed.predict(None).tolist() == ["c", "a"]


def test_one_output_is_the_second_of_two_classes():
    fixed = Fixed(["no", "yes"], [[0.2], [0.7]])
    np.testing.assert_allclose(fixed.predict_proba(None), [[0.8, 0.2], [0.3, 0.7]])
    assert fixed.predict(None).tolist() == ["no", "yes"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [InContextClassifier, InContextLogistic])
def test_classes_may_be_text_and_may_have_one_member(kind):
    rows = np.append(np.arange(0, 150, 5), 149)
    names = NAMES[rows].astype(object)
    names[-1] = "alone"
    fit = kind(max_iter=20).fit(X_IRIS[rows], names)
    assert fit.classes_.tolist() == ["alone", "setosa", "versicolor", "virginica"]
    assert set(fit.predict(X_IRIS)) <= set(fit.classes_)
    assert fit.predict_proba(X_IRIS).shape == (150, 4)


def test_one_class_is_refused():
    message = "^All examples are of one class, 'setosa'; a classifier needs examples of at least"
    with pytest.raises(DataError, match=message):
        InContextLogistic().fit(X_IRIS[:50], NAMES[:50])


def test_a_text_is_located_before_missing_numbers_in_columns_to_its_left():
    with pytest.raises(DataError, match=r"'south' in column 1 .*, row 0"):
        InContextRegressor().fit([["1", "south"], ["nan", "north"]], [1.0, 2.0])
