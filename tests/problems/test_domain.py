import numpy as np
import pytest

from icgd.errors import SettingError
from icgd.problems.domain import Domain


def test_bounds_become_floats():
    domain = Domain(np.float64(4), np.float64(2), score=np.float64(3))
    bounds = [domain.x, domain.y, domain.score]
    assert bounds == [4.0, 2.0, 3.0]
    assert {type(bound) for bound in bounds} == {float}


def test_the_bound_on_scores_may_be_left_out():
    assert Domain(1.0, 2.0).score is None


@pytest.mark.parametrize("name", ["x", "y", "score"])
@pytest.mark.parametrize("bad", [0.0, -1.5, float("nan"), float("inf")])
def test_bounds_must_be_positive_and_finite(name, bad):
    with pytest.raises(SettingError) as caught:
        Domain(**{"x": 1.0, "y": 1.0, name: bad})
    assert str(caught.value) == f"domain.{name} must be a positive finite number, got {bad!r}."
