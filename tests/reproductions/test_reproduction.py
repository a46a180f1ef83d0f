import pytest

from icgd.errors import UnknownNameError
from icgd.reproductions.reproduction import groups, number, preset_of, six_digits


def test_rows_are_grouped_in_their_order():
    rows = [{"kernel": "exp", "n": 2}, {"kernel": "relu", "n": 2}, {"kernel": "exp", "n": 4}]
    assert groups(rows, "kernel") == {("exp",): [rows[0], rows[2]], ("relu",): [rows[1]]}
    assert list(groups(rows, "n", "kernel")) == [(2, "exp"), (2, "relu"), (4, "exp")]


def test_an_unknown_preset_is_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError) as caught:
        preset_of({"smoke": 1, "laptop": 2}, "labtop")
    assert str(caught.value) == (
        "Unknown preset 'labtop'; known are smoke, laptop. Did you mean 'laptop'?"
    )


def test_numbers_keep_six_digits_and_stay_json():
    assert six_digits(0.123456789) == 0.123457
    assert six_digits(float("nan")) is None
    assert number({"loss": 3}, "loss") == 3.0
    assert number({"loss": None}, "loss") != number({"loss": None}, "loss")
