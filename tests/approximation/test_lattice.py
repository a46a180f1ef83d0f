import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd.approximation.lattice import (
    LARGEST_VALUE,
    LatticeFunction,
    choose_lattice,
    fit_lattice,
    identity,
    nearest_token_error,
    square,
)
from icgd.errors import SettingError
from icgd.problems.catalog import FUNCTIONS, function_named
from icgd.problems.functions import SmoothFunction

SMOOTH = [name for name, f in FUNCTIONS.items() if isinstance(f, SmoothFunction)]


def sampled_error(head: LatticeFunction, function) -> float:
    reach = head.lattice.reach
    s = torch.linspace(-reach, reach, 20_001, dtype=torch.float64)
    return float((head(s) - function(s)).abs().max())


def test_weights_are_a_softmax_of_scores_linear_in_s():
    lattice = choose_lattice(1.0, 1e-9)
    points, s = lattice.points(), torch.tensor([0.3], dtype=torch.float64)
    scores = (0.3 * points - points**2 / 2) / lattice.width**2
    torch.testing.assert_close(lattice.weights(s)[0], torch.softmax(scores, 0))
    assert len(points) == lattice.n_tokens
    assert points[lattice.half] == 0.0


def test_the_identity_is_right_to_1e_13_with_32_tokens():
    head = identity(choose_lattice(1.0, 1e-13))
    assert head.lattice.n_tokens <= 32
    assert sampled_error(head, lambda s: s) <= head.error <= 1e-13


@given(reach=st.floats(0.1, 100.0), digits=st.integers(3, 13))
def test_the_chosen_lattice_keeps_its_accuracy_for_every_reach(reach, digits):
    accuracy = 10.0**-digits * max(reach, 1.0)
    head = identity(choose_lattice(reach, accuracy))
    assert sampled_error(head, lambda s: s) <= head.error
    assert sampled_error(head, lambda s: s) <= accuracy


@given(u=st.floats(-1, 1), v=st.floats(-1, 1))
def test_two_squares_give_the_product_of_two_features(u, v):
    head = square(choose_lattice(2.0, 1e-13))
    total, difference = head(torch.tensor([u + v, u - v], dtype=torch.float64)).tolist()
    assert (total - difference) / 4 == pytest.approx(u * v, abs=head.error / 2)
    assert head.error <= 1e-11


def test_tanh_is_right_to_1e_11_with_110_tokens_and_values_of_moderate_size():
    head = fit_lattice(function_named("tanh"), 6.0, accuracy=1e-11)
    assert head.error <= 1e-11
    assert head.lattice.n_tokens <= 110
    assert max(abs(value) for value in head.values) <= 10


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("accuracy", [1e-4, 1e-8, 1e-11])
def test_every_smooth_function_is_certified(name, accuracy):
    function = function_named(name)
    head = fit_lattice(function, 6.0, accuracy=accuracy)
    assert sampled_error(head, function) <= head.error <= accuracy
    assert max(abs(value) for value in head.values) <= max(LARGEST_VALUE, 2 * 6.01)


def test_the_error_falls_exponentially_with_the_number_of_tokens():
    heads = [fit_lattice(function_named("tanh"), 6.0, accuracy=10.0**-d) for d in (3, 6, 9)]
    first, second, third = (head.lattice.n_tokens for head in heads)
    assert second - first <= 30
    assert third - second <= 30


def test_the_published_form_falls_with_one_over_the_number_of_tokens():
    tanh = function_named("tanh")
    assert nearest_token_error(tanh, 6.0, 60) == pytest.approx(0.1)
    assert nearest_token_error(tanh, 6.0, 120) == pytest.approx(0.05)


def test_float32_heads_are_right_to_float32():
    head = fit_lattice(function_named("sigmoid"), 6.0, accuracy=1e-7)
    s = torch.linspace(-6, 6, 1001)
    gap = (head(s).double() - torch.sigmoid(s.double())).abs().max()
    assert 0 < float(gap) <= 3e-5


@pytest.mark.parametrize("accuracy", [0.0, 1e-16, 1.0, float("nan")])
def test_an_accuracy_out_of_range_is_refused(accuracy):
    with pytest.raises(SettingError, match="accuracy must"):
        choose_lattice(1.0, accuracy)


def test_an_accuracy_below_rounding_is_refused_with_the_best_error():
    with pytest.raises(SettingError, match=r"^accuracy=1e-15 cannot be proved with 1024 grid tok"):
        fit_lattice(function_named("tanh"), 6.0, accuracy=1e-15)
