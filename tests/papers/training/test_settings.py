from dataclasses import replace
from math import cos, nan, pi

import pytest

from icgd.errors import SettingError, UnknownNameError
from tests.papers.training.toy import SETTINGS


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"n_steps": 0}, "n_steps must be a whole number of at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be a whole number"),
        ({"resample_every": 0}, "resample_every must be a whole number"),
        ({"log_every": 0}, "log_every must be a whole number"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number"),
        ({"patience": 0}, "patience must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"seed": 2**32}, "seed must be at most 4294967295"),
        ({"learning_rate": nan}, "learning_rate must be a positive finite number, got nan"),
        ({"clip_norm": 0.0}, r"clip_norm must be a positive finite number, got 0\.0"),
        ({"warmup_steps": 6}, "warmup_steps must be at most 5, got 6"),
        ({"accumulate": 0}, "accumulate must be a whole number of at least 1, got 0"),
        ({"n_validation": -1}, "n_validation must be a whole number of at least 0, got -1"),
        ({"weight_decay": -0.1}, "weight_decay must be a positive finite number, got -0.1"),
        ({"autocast": True, "dtype": "float64"}, "autocast has no effect without dtype='float32'"),
        ({"final_learning_rate": -1.0}, "final_learning_rate must be a positive finite number"),
    ],
)
def test_impossible_settings_are_named(setting, message):
    with pytest.raises(SettingError, match=message):
        replace(SETTINGS, **setting)


def test_unknown_devices_and_dtypes_are_named():
    with pytest.raises(UnknownNameError, match="Unknown device 'gpu'; known are cpu, cuda, cuda:1"):
        replace(SETTINGS, device="gpu")
    with pytest.raises(UnknownNameError, match="Unknown dtype 'float16'"):
        replace(SETTINGS, dtype="float16")


def test_the_learning_rate_rises_linearly_and_falls_along_a_half_cosine():
    settings = replace(SETTINGS, n_steps=8, warmup_steps=3)
    rates = [settings.learning_rate_at(step) for step in range(9)]
    falling = [0.01 + 0.09 * (1 + cos(pi * step / 5)) / 2 for step in range(6)]
    assert rates == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, *falling], rel=1e-14)
    constant = replace(settings, final_learning_rate=None)
    assert [constant.learning_rate_at(step) for step in (2, 3, 8)] == [0.1, 0.1, 0.1]


def test_unknown_optimizers_are_named():
    with pytest.raises(UnknownNameError, match="Unknown optimizer 'adm'; known are adam, adamw"):
        replace(SETTINGS, optimizer="adm")


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "auto"])
def test_devices_may_be_named_where_they_are_not(device):
    assert replace(SETTINGS, device=device).device == device
