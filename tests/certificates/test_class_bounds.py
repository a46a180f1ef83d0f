"""Rules of classes against scores that are drawn at random within their enclosures."""

from dataclasses import replace
from math import exp

import pytest
import torch
from torch import Tensor

from icgd.approximation.class_sums import fit_exponential, fit_reciprocal
from icgd.certificates import bounds
from icgd.certificates.bounds import Moment, map_rounding
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import rule
from icgd.problems.class_functions import capped_exponential
from icgd.program.class_instructions import MapDifferences, MapRowSums, ShareClasses
from icgd.program.layout import Layout, Role, Slot
from icgd.program.stack import StackProgram
from tests.approximation.test_relu_sum import values

EXACTLY = Arithmetic(0.0, 5, sums_terms=True)
FLOAT64 = Arithmetic(2.0**-53, 5, sums_terms=True)
CAP, REACH, N = 8.0, 1e6, 3
EXP, RECIPROCAL = (
    fit_exponential(capped_exponential(CAP), REACH, 1e-4),
    fit_reciprocal(2 * N * exp(CAP), 1e-4),
)
LAYOUT = Layout(
    (
        Slot("scores", (N,), Role.SCRATCH),
        Slot("pairs", (N * N,), Role.SCRATCH),
        Slot("shares", (N,), Role.SCRATCH),
    )
)
PROGRAM = StackProgram("by hand", LAYOUT, (EXP, RECIPROCAL), (), 0, ())
SHARE = ShareClasses("scores", ("class_1", "class_2", "class_3"), "shares")
PAIRS = MapDifferences("scores", EXP.name, "pairs")
SUMS = MapRowSums("pairs", RECIPROCAL.name, "shares", exp(-CAP))
CENTRES = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [30.0, -30.0, 25.0]]).double()


def enclosed(radius: float, error: float) -> Enclosure:
    exact = Interval(CENTRES - radius, CENTRES + radius)
    return Enclosure.around(exact, torch.full_like(CENTRES, error))


def drawn(radius: float, error: float) -> tuple[Tensor, Tensor]:
    """Exact scores, and others that are off by as much as the error allows: many of each."""
    generator = torch.Generator().manual_seed(2)
    shape = (4000, *CENTRES.shape)
    place, off = (2 * torch.rand(*shape, generator=generator).double() - 1 for _ in range(2))
    exact = CENTRES + radius * place
    return exact, exact + error * off.sign()


WIDTHS = [(0.0, 0.0), (0.0, 0.01), (0.5, 0.0), (0.25, 0.5), (3.0, 2.0)]


@pytest.mark.parametrize(("radius", "error"), WIDTHS)
def test_shares_of_a_head_lie_where_the_rule_says(radius, error):
    shares = rule(SHARE, Moment(PROGRAM, {"scores": enclosed(radius, error)}, EXACTLY))["shares"]
    exact, actual = (scores.softmax(-1) for scores in drawn(radius, error))
    slack = 1e-15
    assert (exact >= shares.exact.low - slack).all()
    assert (exact <= shares.exact.high + slack).all()
    assert (actual >= shares.actual.low - slack).all()
    assert (actual <= shares.actual.high + slack).all()
    assert ((exact - actual).abs() <= shares.error + slack).all()
    assert (shares.error <= 2.1 * (exact - actual).abs().amax(0) + 0.1 * error + 1e-12).all()


def test_shares_of_a_head_are_rounded_by_the_size_of_the_scores():
    """Even where a share is too small for a float64."""
    errors = []
    for size in (1.0, 1000.0):
        scores = Enclosure.common(Interval.point(torch.tensor([[size, size, -size]]).double()))
        shares = rule(SHARE, Moment(PROGRAM, {"scores": scores}, FLOAT64))["shares"]
        errors.append(shares.error[0].tolist())
    assert 2.0**-53 < errors[0][0] < 1e-13
    assert errors[1][0] > 100 * errors[0][0]
    assert 0 < errors[1][2] < 1e-300


@pytest.mark.parametrize(("radius", "error"), WIDTHS)
@pytest.mark.parametrize("how", [EXACTLY, FLOAT64, replace(FLOAT64, sums_terms=False)])
def test_shares_by_differences_lie_where_the_rules_say(radius, error, how):
    state = {"scores": enclosed(radius, error)}
    state |= rule(PAIRS, Moment(PROGRAM, state, how))
    shares = rule(SUMS, Moment(PROGRAM, state, how))["shares"]
    exact, actual = drawn(radius, error)
    real = exact.softmax(-1)
    assert (real >= shares.exact.low - 1e-15).all()
    assert (real <= shares.exact.high + 1e-15).all()
    sample = actual[:200]
    apart = sample.unsqueeze(-2) - sample.unsqueeze(-1)
    sums = values(EXP, apart).sum(-1)
    found = values(RECIPROCAL, sums)
    assert ((found - real[:200]).abs() <= shares.error + 1e-12).all()


def test_a_score_less_itself_is_0_however_little_is_known_of_it():
    pairs = rule(PAIRS, Moment(PROGRAM, {"scores": enclosed(3.0, 2.0)}, EXACTLY))["pairs"]
    diagonal = pairs.error.unflatten(-1, (N, N)).diagonal(dim1=-2, dim2=-1)
    assert diagonal.max() <= 2e-4
    assert pairs.error.max() > 1.0


def test_what_a_cap_misses_is_added():
    state = {"pairs": Enclosure.common(Interval.point(torch.ones(1, N * N).double()))}
    little, more = (
        rule(replace(SUMS, missed=missed), Moment(PROGRAM, state, EXACTLY))["shares"]
        for missed in (0.0, 0.125)
    )
    assert (more.error - little.error).tolist() == [[pytest.approx(0.125)] * N]
    assert more.exact.low.tolist() == [[pytest.approx(1 / 3 - 0.125)] * N]
    assert more.exact.high.tolist() == [[pytest.approx(1 / 3)] * N]


@pytest.mark.parametrize(("low", "high"), [(20.0, 9e5), (-9e5, 7.5), (7.5, 7.5), (-9e5, 9e5)])
def test_the_rounding_of_an_exponential_is_that_of_its_steepest_terms(low, high):
    """Beyond the cap a steep term cancels all others: there too terms are as large as arguments."""
    interval = Interval(*(torch.tensor([[end]], dtype=torch.float64) for end in (low, high)))
    argument = bounds._Argument(Enclosure.common(interval), interval.size, 2, bounds.NOT_APART)
    rounding = map_rounding(EXP, argument, FLOAT64)
    inside = torch.linspace(low, high, 2001, dtype=torch.float64)
    terms = torch.zeros_like(inside)
    for term in EXP.terms():
        active = (term.scale * inside + term.shift > 0).double()
        largest = abs(term.scale) * inside.abs() + abs(term.shift)
        terms += active * abs(term.coefficient) * largest
    assert float(rounding) >= len(EXP.terms()) * 2.0**-53 * float(terms.max())
