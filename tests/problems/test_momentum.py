"""Momentum: what is taken for it, and the momenta of FISTA."""

import numpy as np
import pytest
import torch

from icgd.errors import SettingError
from icgd.problems.steps import (
    as_momentum,
    fista_momenta,
    momentum_in_words,
    nesterov_momentum,
    span_in_words,
)


def test_momentum_is_one_number_or_one_for_each_step():
    assert as_momentum(None) is None
    assert as_momentum(0) == 0.0
    assert as_momentum(np.array([0.5, 1.0])) == (0.5, 1.0)
    assert as_momentum(torch.tensor([0.5, 0.25])) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, r"momentum must lie between 0 and 1, got 1\.5"),
        ((0.5, -0.1), r"momentum must lie between 0 and 1, got -0\.1"),
        ((), "momentum is empty; give one number for each step"),
        ("much", "momentum must be a finite number, got 'much'"),
    ],
)
def test_other_momentum_is_refused(value, message):
    with pytest.raises(SettingError, match=message):
        as_momentum(value)


def test_a_schedule_reads_as_its_ends():
    assert span_in_words(0.5) == span_in_words((0.5, 0.5)) == "0.5"
    assert span_in_words((0.5, 0.25, 1.0)) == "0.25 to 1"


def test_momentum_is_named_by_its_kind():
    assert momentum_in_words(None, False) == ""
    assert momentum_in_words(0.5, False) == ", momentum 0.5"
    assert momentum_in_words((0.0, 0.5), True) == ", Nesterov momentum 0 to 0.5"


def test_nesterovs_momentum_grows_with_the_condition():
    assert nesterov_momentum(1.0, 1.0) == 0.0
    assert nesterov_momentum(1.0, 9.0) == pytest.approx(0.5)
    assert nesterov_momentum(0.0, 9.0) == 1.0
    with pytest.raises(SettingError, match=r"low must lie between 0 and 9, got 10\.0"):
        nesterov_momentum(10.0, 9.0)


def test_the_momenta_of_fista_follow_its_sequence():
    """With t_1 = 1, t_2 = 1.618: (t_1 - 1) / t_2 = 0, then 0.618 / 2.194."""
    momenta = fista_momenta(200)
    assert momenta[:3] == pytest.approx((0.0, 0.28175352512532087, 0.43404278240221505))
    t = [1.0]
    for momentum in momenta:
        t.append((1 + (1 + 4 * t[-1] ** 2) ** 0.5) / 2)
        assert momentum == pytest.approx((t[-2] - 1) / t[-1])
        assert t[-1] ** 2 - t[-1] == pytest.approx(t[-2] ** 2)
    assert momenta[-1] == pytest.approx(1 - 3 / 200, abs=1e-3)
