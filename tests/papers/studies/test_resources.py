"""The counts of Theorems 3 and 4, by hand and by brute force."""

from math import exp, inf, log

import pytest

from icgd.errors import SettingError
from icgd_papers.studies.resources import (
    indicator,
    indicator_crossover,
    indicator_in,
    smooth,
    smooth_crossover,
)


def test_the_indicator_takes_the_widths_of_theorem_3():
    pair = indicator(1e-4)  # eps^(-1/4) = 10
    assert exp(pair.shallow.log_width) == pytest.approx(exp(10))
    assert exp(pair.deep.log_width) == pytest.approx(1e4)
    assert (pair.shallow.n_layers, pair.deep.n_layers) == (4, 9)
    assert exp(pair.shallow.log_heads) == pytest.approx(2 * exp(20))
    assert exp(pair.shallow.log_matrices) == pytest.approx(8 * exp(20))
    assert exp(pair.deep.log_matrices) == pytest.approx(27 * 1e8)
    assert exp(pair.shallow.log_printed) == pytest.approx(exp(20))


def test_the_count_that_theorem_3_prints_for_3_layers_misses_the_square():
    ratios = [
        pair.deep.log_matrices - pair.deep.log_printed for pair in map(indicator, (1e-2, 1e-4))
    ]
    assert ratios[1] - ratios[0] == pytest.approx(log(1e2))  # the count grows as eps^-2, not eps^-1


def test_three_layers_are_cheaper_for_small_errors_only():
    error = exp(-indicator_crossover())
    assert error == pytest.approx(1.13e-4, rel=0.01)
    assert indicator(0.99 * error).deep_is_cheaper
    assert not indicator(1.01 * error).deep_is_cheaper


def test_counts_beyond_every_float_stay_comparable():
    pair = indicator(1e-300)
    assert pair.shallow.log_matrices > 1e70
    assert pair.deep_is_cheaper


def test_in_one_dimension_the_lemmas_give_a_lower_and_an_upper_bound():
    pair = indicator_in(10, 1e-5)
    assert exp(pair.shallow.log_width) == pytest.approx(exp(10))
    assert exp(pair.deep.log_width) == pytest.approx(8 * 100 / 1e-5)
    assert pair.shallow.log_printed is None
    assert indicator_in(10, 1.1e-4).shallow.log_width == 0.0  # above 10^-4 Lemma 1 says nothing
    assert indicator_in(10, 0.9e-4).shallow.log_width == 10.0


def test_smooth_functions_take_the_networks_of_theorem_4():
    pair = smooth(exp(-4), dimension=3, smoothness=6, depth=3)
    assert (pair.shallow.depth, pair.deep.depth) == (3, 5)
    assert pair.shallow.log_width == pytest.approx(4 / 4)
    assert pair.deep.log_width == pytest.approx(4 * 3 / 6)
    assert exp(pair.deep.log_matrices) == pytest.approx(125 * exp(4))
    assert exp(pair.deep.log_printed) == pytest.approx(4**3 * exp(4))
    assert exp(pair.shallow.log_matrices) == pytest.approx(27 * exp(2))
    assert exp(pair.shallow.log_printed) == pytest.approx(exp(2))


@pytest.mark.parametrize(
    ("dimension", "smoothness", "depth"),
    [(1, 3, 2), (1, 4, 3), (2, 5, 2), (1, 13, 4), (1, 40, 4), (3, 6, 2)],
)
def test_the_deep_network_wins_in_the_end_exactly_if_the_paper_says_so(
    dimension, smoothness, depth
):
    given = {"dimension": dimension, "smoothness": smoothness, "depth": depth}
    crossover = smooth_crossover(**given)
    assert (crossover is not None) == (2 * (depth - 1) * dimension < smoothness)
    steps = range(2, 700, 2)
    lost = [step for step in steps if not smooth(exp(-step), **given).deep_is_cheaper]
    last_loss = max(lost, default=0)
    if crossover is None:
        assert last_loss == steps[-1]
    elif crossover == 0:
        assert not lost
    else:
        assert last_loss <= crossover < last_loss + 2


@pytest.mark.parametrize("error", [0.0, 1.0, -0.1, 2.0])
def test_errors_lie_between_0_and_1(error):
    for claim in (indicator, lambda e: smooth(e, dimension=1, smoothness=3, depth=2)):
        with pytest.raises(SettingError, match=r"^error must lie strictly between 0 and 1, got "):
            claim(error)
    with pytest.raises(SettingError, match="finite number"):
        indicator(inf)


def test_the_largest_sizes_stay_within_floats():
    most = 10**6
    assert smooth_crossover(dimension=1, smoothness=most, depth=most // 2) > 1e12
    assert smooth_crossover(dimension=1, smoothness=most, depth=most // 2 + 1) is None
    assert smooth(5e-324, dimension=most, smoothness=3, depth=2).deep.log_matrices > 1e8
    with pytest.raises(SettingError, match=r"^dimension must be at most 1000000, got 1000001\.$"):
        indicator_in(most + 1, 0.1)


@pytest.mark.parametrize(
    ("name", "value", "least"), [("dimension", 0, 1), ("smoothness", 2, 3), ("depth", 1, 2)]
)
def test_what_the_theorem_does_not_cover_is_refused(name, value, least):
    given = {"dimension": 1, "smoothness": 3, "depth": 2, name: value}
    with pytest.raises(SettingError) as caught:
        smooth(0.1, **given)
    assert str(caught.value) == f"{name} must be a whole number of at least {least}, got {value}."
