"""Strips in which functions are proved to be analytic, against where their singularities lie."""

from math import inf, pi

import pytest
import torch

from icgd import Function
from icgd.errors import ConstructionError
from icgd.problems.analytic import strip_of_text
from icgd.problems.functions import OWN, TANH

SINGULAR = {  # how far from the line the nearest one is
    "x * tanh(log(1 + exp(x)))": 2.36,
    "tanh(x)": pi / 2,
    "1 / 2 + atan(x) / pi": 1.0,
    "x / (1 + exp(-1.702 * x))": pi / 1.702,
    "sin(x)": inf,
    "exp(-x**2)": inf,
    "1 / (1 + 400 * x**2)": 0.05,
}
LEAST = {"x * tanh(log(1 + exp(x)))": 2.1, "tanh(x)": 1.5, "1 / 2 + atan(x) / pi": 0.94}


@pytest.mark.parametrize("text", SINGULAR)
def test_a_strip_ends_below_the_singularities(text):
    function = Function("f", text)
    strip = strip_of_text(function)
    assert LEAST.get(text, 0.03) <= strip.height < SINGULAR[text]
    line = torch.linspace(-20, 20, 2001, dtype=torch.complex128)
    for share in (0.0, 0.5, 1.0):
        z = line + 1j * share * strip.height
        e = {"tanh": torch.tanh, "exp": torch.exp, "log": torch.log, "sin": torch.sin}
        value = eval(text, {**e, "x": z, "pi": pi, "atan": torch.atan})
        assert float(value.abs().max()) <= strip.size(20.0)


def test_pieces_are_analytic_around_their_own_piece():
    """x / (1 + x) on the right has its pole at -1, as far from its piece as the strip is high."""
    strip = strip_of_text(OWN["softsign"])
    assert 0.9 <= strip.height < 1
    assert strip_of_text(OWN["elu"]).height == 4.0


def test_a_size_counts_how_far_it_reaches():
    strip = strip_of_text(OWN["mish"])
    assert strip.size(50.0) >= 50.0
    assert strip.size(inf) == inf
    assert strip_of_text(TANH).size(1e6) < 200


def test_a_spike_has_no_strip_that_is_high_enough():
    spike = Function("spike", "tanh(x) + exp(-1e10 * (x - 0.37)**2)", -1.0, 1.0)
    with pytest.raises(ConstructionError, match="spike is not analytic in any strip"):
        strip_of_text(spike)
