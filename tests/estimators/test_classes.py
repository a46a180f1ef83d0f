import numpy as np
import pytest
from sklearn.datasets import load_iris

from icgd.errors import DataError
from icgd.estimators import InContextClassifier, InContextLogistic
from icgd.estimators.base import AbstractClassifier

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


class Fixed(AbstractClassifier):
    """A classifier whose outputs are given."""

    def __init__(self, classes, shares):
        self.classes_, self.given = np.array(list(classes)), np.array(shares)

    def _shares(self, X):
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
    fit = kind(max_iter=20).fit(X[rows], names)
    assert fit.classes_.tolist() == ["alone", "setosa", "versicolor", "virginica"]
    assert set(fit.predict(X)) <= set(fit.classes_)
    assert fit.predict_proba(X).shape == (150, 4)


def test_one_class_is_refused():
    message = "^All labels are of one class, 'setosa'; a classifier needs examples of at least two"
    with pytest.raises(DataError, match=message):
        InContextLogistic().fit(X[:50], NAMES[:50])
