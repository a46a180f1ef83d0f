"""What all estimators owe: scikit-learn's conventions, and the same answers without a cache."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

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
    InContextRegressor((8,), max_iter=50),
    InContextClassifier((8,), max_iter=50),
    InContextRidge(max_iter=200),
    InContextLasso(max_iter=200),
    InContextLogistic(max_iter=200),
    InContextPoisson(max_iter=200),
    InContextKernelRegressor(max_iter=30),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(QUICK)
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)
