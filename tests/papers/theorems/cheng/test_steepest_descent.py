"""Gradient descent in function space."""

import pytest

from icgd_papers.theorems.cheng.steepest_descent import theorem_g_2


@pytest.mark.parametrize("seed", [0, 4, 5, 11, 26, 86])
def test_the_minimum_of_theorem_g_2_is_reached_for_every_seed(seed):
    """Where |f| is small at the minimum, short steps would take very many."""
    (found,) = theorem_g_2(seed).right
    assert found.measured <= 1e-13
