"""Kernel regression in context beside scikit-learn's."""

import re
import warnings

import numpy as np
import pytest
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.preprocessing import StandardScaler

from icgd.environment import Memory
from icgd.errors import KernelError, LongRunWarning, SettingError, SizeError, UnknownNameError
from icgd.estimators import InContextKernelRegressor

X, Y = make_friedman1(120, noise=0.5, random_state=0)
SCALED, LABELS = StandardScaler().fit_transform(X), (Y - Y.mean()) / Y.std()
NEW = make_friedman1(30, random_state=1)[0]


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_descent_tends_to_kernel_ridge(alpha):
    fit = InContextKernelRegressor(alpha=alpha).fit(X, Y)
    real = KernelRidge(alpha=alpha, kernel="rbf").fit(SCALED, LABELS)
    scaled = StandardScaler().fit(X).transform(NEW)
    expected = real.predict(scaled) * Y.std() + Y.mean()
    np.testing.assert_allclose(fit.predict(NEW), expected, rtol=1e-4)
    np.testing.assert_allclose(fit.dual_coef_, real.dual_coef_ * Y.std(), atol=1e-3)
    assert fit.convergence_.is_done


def test_the_length_scale_divides_scaled_inputs():
    fit = InContextKernelRegressor(length_scale=2.0).fit(X, Y)
    real = KernelRidge(kernel="rbf", gamma=1 / 8).fit(SCALED, LABELS)
    np.testing.assert_allclose(fit.predict(X), real.predict(SCALED) * Y.std() + Y.mean(), rtol=1e-5)


class StartedError(Exception):
    """The fit has begun."""


@pytest.fixture
def no_fit(monkeypatch):
    """Fits end where they would begin to compute a kernel."""

    def start(*_):
        raise StartedError

    monkeypatch.setattr("icgd.estimators.kernel_regressor.outermost", start)


@pytest.mark.usefixtures("no_fit")
def test_a_long_fit_is_announced_before_it_starts():
    rows, labels = np.zeros((16000, 2)), np.zeros(16000)
    words = r"of 16,000 examples has 256,000,000 entries: .* Up to (\d),000 rows take less than 20"
    with pytest.warns(LongRunWarning, match=words) as caught, pytest.raises(StartedError):
        InContextKernelRegressor().fit(rows, labels)
    quick = 1000 * int(re.search(words, str(caught[0].message))[1])
    warnings.simplefilter("error")  # pytest restores the filters
    with pytest.raises(StartedError):
        InContextKernelRegressor().fit(rows[:quick], labels[:quick])


@pytest.mark.usefixtures("no_fit")
def test_a_kernel_that_does_not_fit_is_refused_with_the_rows_that_do(monkeypatch):
    gibibyte = Memory(2**30, "of the test")
    for module in ("icgd.environment", "icgd.estimators.kernel_regressor"):
        monkeypatch.setattr(f"{module}.usable_memory", lambda: gibibyte)
    rows, labels = np.zeros((16000, 2)), np.zeros(16000)
    with pytest.raises(SizeError, match=r"takes about 7\.6 GiB; .* Up to about 5,000 rows fit"):
        InContextKernelRegressor().fit(rows, labels)
    with pytest.raises(StartedError):
        InContextKernelRegressor().fit(rows[:5000], labels[:5000])


def test_few_steps_are_not_enough():
    with pytest.warns(ConvergenceWarning, match=r"Chebyshev steps .* suffice. .* max_iter=5\."):
        InContextKernelRegressor(alpha=0.01, max_iter=5).fit(X, Y)


@pytest.mark.parametrize("kernel", ["laplace", "matern", "linear", "polynomial"])
def test_other_kernels_learn_too(kernel):
    assert InContextKernelRegressor(kernel, max_iter=300).fit(X, Y).score(X, Y) > 0.6


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kernel": "softmax"}, KernelError, "softmax"),
        ({"kernel": "rbg"}, UnknownNameError, "Did you mean 'rbf'"),
        ({"alpha": 0.0}, SettingError, "alpha must be a positive"),
        ({"length_scale": -1.0}, SettingError, "length_scale must be a positive"),
    ],
)
def test_bad_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        InContextKernelRegressor(**settings).fit(X, Y)
