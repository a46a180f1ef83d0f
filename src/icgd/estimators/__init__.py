"""Estimators for scikit-learn: frozen transformers that learn from the data in their context.

`fit` scales the examples, finds a step size and bounds, compiles and runs; `predict` asks the
transformer for the labels of new rows. It needs the extra `sklearn`.
"""

from icgd.errors import MissingExtraError

try:
    import sklearn  # noqa: F401 - only to say what is missing
except ImportError:
    raise MissingExtraError(
        "icgd.estimators needs scikit-learn. Install it with: pip install 'icgd[sklearn]'"
    ) from None

from icgd.estimators.kernel_regressor import InContextKernelRegressor
from icgd.estimators.linear import (
    InContextLasso,
    InContextLogistic,
    InContextPoisson,
    InContextRidge,
)
from icgd.estimators.networks import InContextClassifier, InContextRegressor

__all__ = [
    "InContextClassifier",
    "InContextKernelRegressor",
    "InContextLasso",
    "InContextLogistic",
    "InContextPoisson",
    "InContextRegressor",
    "InContextRidge",
]
