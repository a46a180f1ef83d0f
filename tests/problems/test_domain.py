import numpy as np
import pytest

from icgd.errors import DataError, SettingError
from icgd.problems.data import Domain


def test_bounds_become_floats():
    domain = Domain(np.float64(4), np.float64(2), score=np.float64(3))
    bounds = [domain.x, domain.y, domain.score]
    assert bounds == [4.0, 2.0, 3.0]
    assert {type(bound) for bound in bounds} == {float}


def test_the_bound_on_scores_may_be_left_out():
    assert Domain(1.0, 2.0).score is None


def test_the_domain_of_data_has_room_for_queries():
    assert Domain.of([[1.0, -2.0]], [4.0]) == Domain(x=2.5, y=5.0)
    assert Domain.of(np.array([[3, -8]]), np.array([True]), room=1.0) == Domain(x=8.0, y=1.0)
    assert Domain.of([[0.0]], [0.0]) == Domain(x=1.0, y=1.0)
    with pytest.raises(SettingError, match="room must be a positive finite number, got 0"):
        Domain.of([[1.0]], [1.0], room=0.0)
    with pytest.raises(DataError, match=r"X\[0, 0\] is nan"):
        Domain.of([[float("nan")]], [1.0])


@pytest.mark.parametrize("name", ["x", "y", "score"])
@pytest.mark.parametrize("bad", [0.0, -1.5, float("nan"), float("inf")])
def test_bounds_must_be_positive_and_finite(name, bad):
    with pytest.raises(SettingError) as caught:
        Domain(**{"x": 1.0, "y": 1.0, name: bad})
    assert str(caught.value) == f"domain.{name} must be a positive finite number, got {bad!r}."


def test_rates_have_a_bound_if_examples_have_rates():
    assert Domain(x=1.0, y=1.0).rate is None
    domain = Domain(x=1.0, y=1.0, rate=2.0)
    assert domain.rate == 2.0
    assert domain.in_words() == "|x| <= 1, |y| <= 1, rates <= 2"
    with pytest.raises(SettingError, match=r"domain.rate must be a positive finite number, got 0"):
        Domain(x=1.0, y=1.0, rate=0.0)
