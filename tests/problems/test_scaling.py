import numpy as np

from icgd.problems.tables import Scaling


def test_columns_get_mean_0_and_deviation_1_and_come_back():
    numbers = np.random.default_rng(0).normal(5.0, [1.0, 1e6, 1e-6], (50, 3))
    scaling = Scaling.of(numbers)
    standard = scaling.applied(numbers)
    assert np.allclose(standard.mean(0), 0, atol=1e-9)
    assert np.allclose(standard.std(0), 1)
    assert np.allclose(scaling.undone(standard), numbers, rtol=1e-14)


def test_a_constant_column_is_only_centred():
    assert Scaling.of(np.full((4, 1), 0.1)).applied(np.array([[0.1], [0.6]])).tolist() == [
        [0.0],
        [0.5],
    ]


def test_none_leaves_every_bit():
    numbers = np.array([[0.1, -1e300]])
    assert Scaling.none(2).undone(Scaling.none(2).applied(numbers)).tolist() == numbers.tolist()
