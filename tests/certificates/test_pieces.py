from dataclasses import replace
from math import inf, nan

import torch

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.certificates import pieces
from icgd.certificates.intervals import Interval
from icgd.problems.catalog import function_named

FIT = fit_relu_sum(function_named("tanh"), -6.0, 6.0, pieces=16)
KNOTS = torch.tensor(FIT.knots, dtype=torch.float64)
VALUES = torch.cat([KNOTS, KNOTS.nextafter(KNOTS + 1), KNOTS.nextafter(KNOTS - 1)])
VALUES = torch.cat([VALUES, torch.tensor([-inf, -1e300, 0.0, 1e300, inf], dtype=torch.float64)])


def test_the_table_counts_the_knots_that_a_search_finds():
    assert pieces.knots_below(FIT, VALUES).tolist() == [
        sum(knot < value for knot in FIT.knots) for value in VALUES.tolist()
    ]
    assert pieces.knots_up_to(FIT, VALUES).tolist() == [
        sum(knot <= value for knot in FIT.knots) for value in VALUES.tolist()
    ]


def test_without_a_table_the_counts_are_the_same(monkeypatch):
    below, up_to = pieces.knots_below(FIT, VALUES), pieces.knots_up_to(FIT, VALUES)
    monkeypatch.setattr(pieces, "MOST_CELLS", 1)
    assert torch.equal(pieces.knots_below(FIT, VALUES), below)
    assert torch.equal(pieces.knots_up_to(FIT, VALUES), up_to)


def test_a_knot_belongs_to_the_piece_on_its_left_and_what_is_no_number_to_the_last():
    first, last = pieces.touched(FIT, Interval.point(KNOTS))
    assert first.tolist() == last.tolist() == list(range(len(FIT.knots)))
    unknown = torch.tensor([nan, 0.0], dtype=torch.float64)
    assert pieces.knots_below(FIT, unknown)[0] == len(FIT.knots)


def test_a_function_without_knots_has_one_piece():
    line = fit_relu_sum(function_named("identity"), -1.0, 1.0, pieces=1)
    assert replace(line, name="line").knots == ()
    first, last = pieces.touched(line, Interval.symmetric(5.0, 2))
    assert first.tolist() == last.tolist() == [0, 0]
