"""scikit-learn estimators: frozen transformers that learn from the examples in their context.

`fit` scales the examples, chooses a step size and bounds, compiles and runs the transformer;
`predict` reads its predictions for new rows. Requires the extra `sklearn`.
"""

from icgd.errors import MissingExtraError

try:
    import sklearn  # noqa: F401 - imported only to raise an error that names the extra
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
