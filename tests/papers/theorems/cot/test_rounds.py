"""Errors over rounds, in numbers."""

import pytest

from icgd_papers.theorems.cot import rounds


def test_five_rounds_that_triple_an_error_leave_121_times_it():
    assert rounds._expansion(5, 1e-6) == pytest.approx(121e-6, rel=1e-6)


def test_the_error_of_a_round_as_the_paper_adds_it():
    expected = 1e-3 + 2 * 2e-3 + 3e-3 + 2 * 4e-3 + 7 * rounds.SMALL
    assert rounds.round_error(3, 1e-3, 2e-3, 3e-3, 4e-3) == pytest.approx(expected)


def test_at_a_saddle_errors_outgrow_the_papers_line_but_not_lipschitz_steps():
    reached, allowed = rounds._saddle(150)
    assert 150 * 2e-7 < reached <= allowed < 2 * reached


def test_chains_stay_within_our_bound_and_one_leaves_the_papers_line():
    expanding, deep = rounds.chain_in_float32(), rounds.deep_chain(0, "fused")
    assert expanding.paper < expanding.error <= min(expanding.bound, expanding.piled)
    assert expanding.bound <= (1 + 1e-9) * expanding.error, "balls are as tight as the measurement"
    assert deep.error <= min(deep.bound, deep.paper)
