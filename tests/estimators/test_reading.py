"""What estimators refuse, in words of icgd and of the types that scikit-learn expects."""

import numpy as np
import pytest

from icgd.errors import DataError, DataTypeError, SettingError
from icgd.estimators import InContextRidge
from icgd.estimators.base import read_weights, seed_of

X, Y = [[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]
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
        InContextRidge(max_iter=2).fit(**{"X": X, "y": Y, **data})


def test_what_is_no_number_is_a_wrong_type_too():
    with pytest.raises(DataTypeError, match="X cannot be used"):
        InContextRidge(max_iter=2).fit(X, Y).predict([[{}]])
    assert issubclass(DataTypeError, TypeError)


def test_weights_of_examples_become_numbers():
    assert read_weights([1, 2], np.ones((2, 1))).tolist() == [1.0, 2.0]


def test_a_seed_follows_from_a_random_state():
    assert seed_of(3) == seed_of(np.random.RandomState(3))
    for wrong in (-1, "a", 2**32, 0.5):
        with pytest.raises(SettingError, match="random_state must be a seed from 0 to"):
            seed_of(wrong)
