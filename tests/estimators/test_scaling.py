import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from icgd.estimators.base import Scaling, bound_above

X = np.random.default_rng(0).normal(3.0, 2.0, size=(30, 4))


def test_columns_are_scaled_as_by_scikit_learn():
    weights = np.arange(30.0)
    for given in (None, weights):
        expected = StandardScaler().fit_transform(X, sample_weight=given)
        np.testing.assert_allclose(Scaling.of(X, given).applied(X), expected, rtol=1e-12)


def test_undone_brings_raw_columns_back():
    scaling = Scaling.of(X)
    np.testing.assert_allclose(scaling.undone(scaling.applied(X)), X, rtol=1e-12)


def test_constant_columns_keep_their_scale():
    columns = np.column_stack([np.full(5, 7.3), np.zeros(5), np.arange(5.0)])
    scaling = Scaling.of(columns)
    assert scaling.scale[:2] == pytest.approx([1.0, 1.0])
    assert np.abs(scaling.applied(columns)[:, :2]).max() <= 1e-15


def test_without_centering_the_mean_square_is_one():
    scaled = Scaling.of(X, centered=False).applied(X)
    np.testing.assert_allclose((scaled**2).mean(0), 1.0, rtol=1e-12)
    assert (Scaling.of(X, centered=False).center == 0).all()


def test_alike_columns_are_divided_by_one_number():
    own, alike = Scaling.of(X * [1, 10, 100, 1]), Scaling.of(X * [1, 10, 100, 1]).alike()
    assert np.unique(alike.scale) == pytest.approx(np.sqrt((own.scale**2).mean()))
    assert (alike.center == own.center).all()


def test_huge_columns_do_not_overflow():
    scaled = Scaling.of(X * 1e300).applied(X * 1e300)
    np.testing.assert_allclose(scaled.std(0), 1.0, rtol=1e-12)


def test_a_bound_is_a_power_of_two():
    assert bound_above([0.0]) == bound_above(np.array([-1.0])) == 1.0
    assert bound_above([-3.0], [2.0]) == bound_above([4.0]) == 4.0
    assert bound_above([1.1], room=4.0) == 8.0
