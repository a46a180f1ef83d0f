import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from icgd.errors import SettingError, UnknownNameError
from icgd.problems.settings import (
    by_name,
    count,
    entries,
    finite,
    instance,
    is_sequence,
    named,
    of_step,
    positive,
    power_of_two,
    settle,
    within,
)


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


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), float("nan"), float("inf"), "1", None, True]
)
def test_what_is_not_finite_is_refused_with_the_name_and_the_value(value):
    with pytest.raises(SettingError) as caught:
        finite("l2", value)
    assert str(caught.value) == f"l2 must be a finite number, got {value!r}."


@pytest.mark.parametrize("value", [0, -1.5, np.float32(0.5), 1e308])
def test_every_finite_number_becomes_a_float(value):
    assert finite("l2", value) == float(value)
    assert type(finite("l2", value)) is float


@pytest.mark.parametrize("value", [2**-13, 1, 0.5, 2.0**60])
def test_powers_of_two_become_floats(value):
    assert power_of_two("kink_width", value) == float(value)


@pytest.mark.parametrize("value", [0.3, 0, -2, 3, 10**400, float("inf"), float("nan"), "1"])
def test_what_is_no_power_of_two_is_refused(value):
    with pytest.raises(SettingError, match=r"^kink_width must be a power of two, such as 2\*\*-13"):
        power_of_two("kink_width", value)


def test_a_number_outside_its_range_is_refused():
    within("tolerance", 1.0, 0.0, 1.0)
    with pytest.raises(SettingError, match=r"^tolerance must lie between 0 and 1, got 1\.5\.$"):
        within("tolerance", 1.5, 0.0, 1.0)


def test_a_part_of_another_kind_is_refused():
    instance("biases", True, bool)
    with pytest.raises(SettingError, match=r"^biases must be of type bool, got 1\.$"):
        instance("biases", 1, bool)


@dataclass(frozen=True)
class Thing:
    name: str
    size: int = 0


def test_things_are_found_by_their_names():
    things = by_name(Thing("small", 1), Thing("large", 2))
    assert list(things) == ["small", "large"]
    assert named("thing", "large", things) == Thing("large", 2)


@pytest.mark.parametrize("name", ["larg", None, ["small"]])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    start = f"Unknown thing {name!r}; known are small, large."
    with pytest.raises(UnknownNameError, match=f"^{re.escape(start)}"):
        named("thing", name, by_name(Thing("small"), Thing("large")))


def test_settings_are_written_into_frozen_parts():
    thing = Thing("small")
    settle(thing, name="large", size=2)
    assert thing == Thing("large", 2)


@pytest.mark.parametrize("value", [(), [1], np.zeros(2), range(3)])
def test_what_has_entries_is_a_sequence(value):
    assert is_sequence(value)


@pytest.mark.parametrize("value", ["ab", b"ab", 3, None, np.array(1.0)])
def test_texts_and_arrays_without_axes_are_no_sequences(value):
    assert not is_sequence(value)


def test_a_row_is_read_entry_by_entry():
    assert entries("steps", np.array([1, 2])) == [1, 2]
    with pytest.raises(SettingError, match=r"steps cannot be read as a row \(ZeroDivisionError: "):
        entries("steps", (1 / i for i in (1, 0)))
    with pytest.raises(SettingError, match=r"steps cannot be read as a row \(TypeError: dtype c"):
        entries("steps", np.array([1j]))
    with pytest.raises(SettingError, match="steps has 100,000,000 entries; at most 10,000,000"):
        entries("steps", range(10**8))


def test_a_step_beyond_a_schedule_is_refused():
    assert of_step((0.1, 0.2), 1) == 0.2
    with pytest.raises(SettingError, match="step must lie between 0 and 1, got 2"):
        of_step((0.1, 0.2), 2)
    with pytest.raises(SettingError, match="step must be a whole number of at least 0, got -1"):
        of_step((0.1, 0.2), -1)
