from fractions import Fraction

import numpy as np
import pytest

from icgd.errors import SettingError
from icgd.problems.settings import count, positive, within


@pytest.mark.parametrize("value", [0.5, 3, np.float32(0.5), np.int64(3), Fraction(1, 4), 1e-300])
def test_every_kind_of_positive_number_becomes_a_float(value):
    assert positive("step_size", value) == float(value)
    assert type(positive("step_size", value)) is float


@pytest.mark.parametrize(
    "value", [0, 0.0, -1, -0.5, float("nan"), float("inf"), "0.1", None, True, 1j, [1.0]]
)
def test_anything_else_is_refused_with_the_name_and_the_value(value):
    with pytest.raises(SettingError) as caught:
        positive("step_size", value)
    assert str(caught.value) == f"step_size must be a positive finite number, got {value!r}."


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0, 0), (7, 1), (np.int32(5), 2)])
def test_every_kind_of_whole_number_becomes_an_int(value, least):
    assert count("n_steps", value, least=least) == int(value)
    assert type(count("n_steps", value, least=least)) is int


@pytest.mark.parametrize(
    ("value", "least"), [(0, 1), (-3, 0), (2, 3), (2.0, 1), (True, 1), ("2", 1), (None, 1)]
)
def test_anything_else_is_no_count(value, least):
    with pytest.raises(SettingError) as caught:
        count("n_steps", value, least=least)
    assert str(caught.value) == (
        f"n_steps must be a whole number of at least {least}, got {value!r}."
    )


def test_a_number_too_large_for_a_float_is_refused():
    with pytest.raises(SettingError, match=r"^box must be a positive finite number, got 1000"):
        positive("box", 10**400)


def test_a_number_out_of_its_range_is_refused():
    within("registers", 32, 32.0, 1024.0)
    with pytest.raises(SettingError, match=r"^registers must lie between 32 and 1024, got 31\.$"):
        within("registers", 31, 32.0, 1024.0)
