"""The exponents of N behind Remark 4.1."""

import pytest

from icgd_papers.theorems.cot import cost


def test_a_stack_grows_as_the_square_of_the_depth_and_a_chain_as_the_depth():
    assert cost._growth("relu-stack") == pytest.approx(2, abs=0.05)
    assert cost._growth("cot-network") == pytest.approx(1, abs=0.001)
