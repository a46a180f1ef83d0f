"""What is proved of a point, against the minimiser in 300 bits."""

from dataclasses import replace
from math import inf

import pytest
import torch

from icgd.errors import SeparableDataError
from icgd.problems.links import LINKS
from icgd.problems.minimiser import minimise
from icgd.problems.minimiser_quality import find_minimiser, quality
from icgd.problems.separable import separation
from tests.hostile_cases import CASES, FLAT, hostile
from tests.precise import Precise, at_most, exactly

DRAW = torch.Generator().manual_seed(5)

A_FEW = [(name, link) for place, (name, link) in enumerate(CASES) if place % 6 == 0]
"""A sample in which every link and most kinds of data occur."""


def check(name: str, link: str, seed: int) -> None:
    case = hostile(name, link, seed)
    if separation(case.oracle.target, case.oracle.update, case.task.x, case.task.y) is not None:
        with pytest.raises(SeparableDataError):
            find_minimiser(case.oracle, case.task)
        return
    point = minimise(case.oracle, case.task)
    found = quality(case.oracle, case.task, point)
    assert found.excess < 1e-10
    if found.distance == inf:
        assert name in FLAT
        return
    precise = Precise.of(case.oracle, case.task)
    best = precise.minimiser(point)
    assert found.distance < 1e-4 * max(1.0, float(point.norm()))
    assert at_most(precise.distance(point, best), found.distance)
    assert at_most(precise.objective(exactly(point)) - precise.objective(best), found.excess)


@pytest.mark.parametrize(("name", "link"), A_FEW)
def test_no_point_is_further_from_the_minimiser_than_is_proved(name, link):
    check(name, link, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("name", "link"), CASES)
def test_no_point_is_further_from_the_minimiser_in_any_case(name, link, seed):
    check(name, link, seed)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", ["ridge", "both", "a box that binds, with penalties"])
def test_the_proof_holds_for_points_that_were_not_found_by_newton_steps(name, link):
    case = hostile(name, link)
    best = minimise(case.oracle, case.task)
    precise = Precise.of(case.oracle, case.task)
    exact = precise.minimiser(best)
    box, known = case.oracle.update.box or inf, 0
    for size in (1e-2, 1e-4, 1e-8):
        near = best + size * torch.randn(len(best), generator=DRAW, dtype=torch.float64)
        found = quality(case.oracle, case.task, near.clamp(-box, box))
        known += found.distance < inf
        assert at_most(precise.distance(found.parameters, exact), found.distance)
        above = precise.objective(exactly(found.parameters)) - precise.objective(exact)
        assert at_most(above, found.excess)
        if size < 1e-3 and name == "ridge":
            assert found.distance <= 100 * float((near - best).norm())
    assert known >= 2


def test_a_line_of_minimisers_leaves_the_distance_unknown_but_not_the_minimum():
    case = hostile("collinear, lasso", "identity")
    found = find_minimiser(case.oracle, case.task)
    assert found.distance == inf
    assert found.excess < 1e-12
    other = found.parameters[[3, 1, 2, 0, 4]]  # the copies change places: as good
    assert not torch.equal(other, found.parameters)
    values = [case.oracle.objective(case.task, w) for w in (other, found.parameters)]
    assert float(values[0] - values[1]) == pytest.approx(0.0, abs=1e-12)


def test_without_penalty_and_box_a_flat_objective_leaves_everything_unknown():
    case = hostile("collinear, ridge", "identity")
    oracle = replace(case.oracle, update=replace(case.oracle.update, l2=0.0))
    found = find_minimiser(oracle, case.task)
    assert found.distance == found.excess == inf
    assert found.slope < 1e-12


def test_coefficients_that_l1_keeps_at_0_need_no_curvature():
    """A column of zeros has none, and more columns than rows never curve in all directions."""
    case = hostile("constant columns, lasso", "logistic")
    found = find_minimiser(case.oracle, case.task)
    assert found.parameters[2] == 0.0
    assert found.distance < 1e-12
    small = replace(case.oracle, update=replace(case.oracle.update, l1=0.0))
    assert quality(small, case.task, minimise(small, case.task)).distance == inf


def test_without_a_minimiser_there_is_nothing_to_find():
    case = hostile("ridge", "logistic")
    task = replace(case.task, y=torch.ones_like(case.task.y))
    with pytest.raises(SeparableDataError):
        find_minimiser(case.oracle, task)
