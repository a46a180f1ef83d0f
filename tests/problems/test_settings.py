"""Checks of single settings."""

from dataclasses import dataclass
from math import inf, nan

import numpy as np
import pytest

from icgd.errors import SettingError, UnknownNameError
from icgd.problems.settings import (
    below_one,
    by_name,
    count,
    entries,
    finite,
    instance,
    is_row,
    named,
    not_negative,
    positive,
    power_of_two,
    settle,
    within,
)


@pytest.mark.parametrize("check", [positive, not_negative, finite, power_of_two])
@pytest.mark.parametrize("value", [0.5, 4, np.float32(0.5), np.int64(4), 2.0**60])
def test_numbers_of_all_libraries_become_floats(check, value):
    assert check("step_size", value) == float(value)
    assert type(check("step_size", value)) is float


@pytest.mark.parametrize(
    ("check", "expected", "wrong"),
    [
        (positive, "a positive finite number", [0, -0.5]),
        (not_negative, "a finite number that is not negative", [-0.5]),
        (below_one, "a number from 0 to below 1", [1, -0.5]),
        (finite, "a finite number", []),
        (power_of_two, "a power of two, such as 2**-13, so that dividing by it is exact", [0.3, 3]),
    ],
    ids=["positive", "not_negative", "below_one", "finite", "power_of_two"],
)
def test_other_numbers_are_refused_with_name_value_and_what_is_expected(check, expected, wrong):
    for value in (*wrong, nan, inf, -inf, "0.1", None, True):
        with pytest.raises(SettingError) as caught:
            check("step_size", value)
        assert str(caught.value) == f"step_size must be {expected}, got {value!r}."


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0, 0), (7, 1), (np.int32(5), 2)])
def test_whole_numbers_of_all_libraries_become_ints(value, least):
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


def test_a_number_out_of_its_range_is_refused():
    within("registers", 32, 32.0, 1024.0)
    with pytest.raises(SettingError, match=r"^registers must lie between 32 and 1024, got 31\.$"):
        within("registers", 31, 32.0, 1024.0)
    with pytest.raises(SettingError, match=r"^n_steps must be at most 10, got 11\.$"):
        count("n_steps", 11, most=10)


def test_a_part_of_another_kind_is_refused():
    instance("head", "rbf", str)
    with pytest.raises(SettingError, match=r"^head must be of type str, got 1\.$"):
        instance("head", 1, str)


@dataclass(frozen=True)
class Thing:
    name: str
    size: int = 0


def test_things_are_found_by_their_names():
    things = by_name(Thing("small", 1), Thing("large", 2))
    assert list(things) == ["small", "large"]
    assert named("thing", "large", things) == Thing("large", 2)


@pytest.mark.parametrize(("name", "hint"), [("larg", " Did you mean 'large'?"), (None, "")])
def test_an_unknown_name_is_refused_with_the_known_ones(name, hint):
    with pytest.raises(UnknownNameError) as caught:
        named("thing", name, by_name(Thing("small"), Thing("large")))
    assert str(caught.value) == f"Unknown thing {name!r}; known are small, large.{hint}"


def test_settings_are_written_into_frozen_parts():
    thing = Thing("small")
    settle(thing, name="large", size=2)
    assert thing == Thing("large", 2)


@pytest.mark.parametrize("value", [(), [1], np.zeros(2), range(3)])
def test_what_has_entries_is_a_row(value):
    assert is_row(value)


@pytest.mark.parametrize("value", ["ab", 3, None, np.array(1.0)])
def test_texts_and_arrays_without_axes_are_no_rows(value):
    assert not is_row(value)


def test_entries_of_arrays_become_plain_numbers():
    found = entries(np.array([1, 2], np.int32))
    assert found == [1, 2]
    assert {type(entry) for entry in found} == {int}
