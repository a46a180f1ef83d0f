"""A rule as the reference evaluates it, and as sums of what was there before."""

import pytest
import torch

from icgd.problems.optimisers import GRADIENT, SCALED, SQUARE, WEIGHTS, Root, Rule, evaluated

KNOWN = {WEIGHTS: torch.tensor([1.0, 2.0]), GRADIENT: torch.tensor([0.5, -1.0])}
MOMENTUM = {"m": torch.tensor([4.0, 8.0])}


def test_a_sum_is_that_of_coefficients_times_quantities():
    assert evaluated({WEIGHTS: 2.0, GRADIENT: -1.0}, KNOWN).tolist() == [1.5, 5.0]
    assert evaluated({}, KNOWN).tolist() == [0.0, 0.0]


def test_new_weights_see_the_new_state_and_decay_is_part_of_the_gradient():
    rule = Rule({WEIGHTS: 1.0, "m": -1.0}, {"m": {"m": 0.5, GRADIENT: 1.0}}, decay=0.25)
    weights, state = rule.applied(KNOWN[WEIGHTS], KNOWN[GRADIENT], MOMENTUM)
    assert state["m"].tolist() == [2.0 + 0.5 + 0.25, 4.0 - 1.0 + 0.5]
    assert weights.tolist() == [1.0 - 2.75, 2.0 - 3.5]


def test_a_root_divides_and_counts_nothing_below_0():
    rule = Rule({SCALED: 1.0}, root=Root(GRADIENT, {SQUARE: 4.0, WEIGHTS: -3.0}, eps=0.5))
    weights, _ = rule.applied(KNOWN[WEIGHTS], KNOWN[GRADIENT], {})
    assert weights.tolist() == [0.5 / 0.5, -1.0 / 0.5]  # of sqrt(max(0, -2)), twice


@pytest.mark.parametrize(
    "rule",
    [
        Rule({WEIGHTS: 1.0, GRADIENT: -0.1}, decay=0.5),
        Rule({WEIGHTS: 1.0, "m": -0.1}, {"m": {"m": 0.9, GRADIENT: 0.3}}, decay=0.5),
        Rule({WEIGHTS: 1.0, "m": -0.1, GRADIENT: -0.2}, {"m": {"m": 0.9, GRADIENT: 1.0}}),
    ],
)
def test_sums_of_old_quantities_are_the_same_step(rule):
    state = MOMENTUM if rule.state else {}
    weights, moved = rule.applied(KNOWN[WEIGHTS], KNOWN[GRADIENT], state)
    by_sums = {name: evaluated(terms, KNOWN | state) for name, terms in rule.linear.items()}
    torch.testing.assert_close(by_sums.pop(WEIGHTS), weights)
    assert by_sums.keys() == moved.keys()
    for name, value in moved.items():
        torch.testing.assert_close(by_sums[name], value)


def test_sums_name_the_same_quantities_whatever_their_coefficients_are():
    for size, left in ((0.5, 0.0), (0.25, 0.5), (0.0, 1.0)):
        rule = Rule({WEIGHTS: 1.0, GRADIENT: -size}, decay=2.0)
        assert rule.linear == {WEIGHTS: {WEIGHTS: left, GRADIENT: -size}}
    assert Rule({WEIGHTS: 1.0, "m": -0.5}, {"m": {"m": 0.5, GRADIENT: 0.0}}).linear == {
        WEIGHTS: {WEIGHTS: 1.0, "m": -0.25, GRADIENT: 0.0},
        "m": {"m": 0.5, GRADIENT: 0.0},
    }
