"""Rules of optimisers, by hand; that they hold in runs is tested with runs from PyTorch."""

import pytest
import torch

from icgd.certificates.bounds import Moment, apart_by, drift_of
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import rule
from icgd.program.instructions import Combination
from icgd.program.layout import Layout, Role, Slot
from icgd.program.stack import StackProgram
from icgd.program.update_instructions import Assignment, Recombine, TakeTurns

EXACTLY = Arithmetic(0.0, 5, sums_terms=True)
FLOAT64 = Arithmetic(2.0**-53, 5, sums_terms=True)
LAYOUT = Layout((Slot("w", (1, 2), Role.PARAMETER), Slot("g", (1, 2), Role.SHARED)))
PROGRAM = StackProgram("by hand", LAYOUT, (), (), 0, ())
VALUE = Combination(("w", "g"), (0.5, -3.0))


def near(values: list[float], error: float) -> Enclosure:
    exact = torch.tensor([values], dtype=torch.float64)
    return Enclosure.around(Interval.point(exact), torch.full_like(exact, error))


def after(*assignments: Assignment, how: Arithmetic = EXACTLY, **more: Enclosure):
    state = {"w": near([1.0, -2.0], 0.25), "g": near([0.5, 0.25], 0.125), **more}
    return rule(Recombine(assignments, "one"), Moment(PROGRAM, state, how))


def test_errors_of_a_combination_add_up():
    written = after(Assignment(VALUE, "w"))
    assert set(written) == {"w"}
    assert written["w"].exact.low.tolist() == [[pytest.approx(-1.0), pytest.approx(-1.75)]]
    assert written["w"].error.tolist() == [[pytest.approx(0.5 * 0.25 + 3.0 * 0.125)] * 2]


def test_a_bound_clips_value_and_error():
    clipped = after(Assignment(VALUE, "w", bound=1.25))["w"]
    assert clipped.exact.high.tolist() == [[pytest.approx(-1.0), pytest.approx(-1.25)]]
    assert clipped.actual.low.min() >= -1.25 * (1 + 1e-12)
    # The first value is at most 0.25 within the bound on one side, and 0.5 on the other.
    assert clipped.error[0, 0].item() == pytest.approx(0.5)
    assert clipped.error[0, 1].item() == pytest.approx(0.0, abs=1e-12)


def test_an_average_has_the_errors_of_what_it_is_made_of():
    more = {"a": near([0.5, 0.5], 2.0**-4)}
    averaged = Assignment(VALUE, "w", average="a", keeps=0.75)
    found = after(averaged, **more)
    exact = [0.75 * 0.5 + 0.25 * value for value in (-1.0, -1.75)]
    assert found["a"].exact.low.tolist() == [[pytest.approx(value) for value in exact]]
    assert found["a"].error.tolist() == [[pytest.approx(0.75 * 2.0**-4 + 0.25 * 0.5)] * 2]
    clipped = after(Assignment(VALUE, "w", 1.25, average="a", keeps=0.0), **more)
    assert clipped["a"].exact.high.tolist() == [[pytest.approx(-1.0), pytest.approx(-1.25)]]
    assert clipped["a"].error[0, 1].item() == pytest.approx(0.0, abs=1e-12)


def test_copies_of_an_average_drift_apart():
    apart = {"w": 2.0**-30, "g": 2.0**-33, "a": 2.0**-31}
    more = {"a": near([0.5, 0.5], 0.0)}
    for name, size in apart.items():
        more[drift_of(name)] = apart_by(torch.full((1, 2), size, dtype=torch.float64))
    averaged = Assignment(VALUE, "w", average="a", keeps=0.75)
    found = after(averaged, how=FLOAT64, **more)[drift_of("a")].error
    wanted = 0.25 * (0.5 * apart["w"] + 3.0 * apart["g"]) + 0.75 * apart["a"]
    assert found.tolist() == [[pytest.approx(wanted, rel=1e-3)] * 2]
    assert float(found.min()) > wanted


def test_all_assignments_read_what_was_there_before():
    written = after(Assignment(VALUE, "w"), Assignment(Combination.of("w"), "g"))
    assert written["g"].exact.low.tolist() == [[pytest.approx(1.0), pytest.approx(-2.0)]]
    assert written["g"].error.tolist() == [[pytest.approx(0.25)] * 2]


def test_rounding_is_that_of_a_few_operations():
    state = {"w": near([1.0, 1.0], 0.0), "g": near([1.0, 1.0], 0.0)}
    written = rule(Recombine((Assignment(VALUE, "w"),), "one"), Moment(PROGRAM, state, FLOAT64))
    error = float(written["w"].error.max())
    assert 2.0**-53 * 3.5 <= error <= 2.0**-53 * 1000


def test_copies_drift_apart_by_what_they_are_made_of_and_by_rounding():
    drift = {drift_of("w"): apart_by(torch.full((1, 2), 2.0**-30, dtype=torch.float64))}
    drift[drift_of("g")] = apart_by(torch.full((1, 2), 2.0**-33, dtype=torch.float64))
    apart = after(Assignment(VALUE, "w"), how=FLOAT64, **drift)[drift_of("w")].error
    assert apart.tolist() == [[pytest.approx(0.5 * 2.0**-30 + 3.0 * 2.0**-33, rel=1e-3)] * 2]
    assert float(apart.min()) > 0.5 * 2.0**-30 + 3.0 * 2.0**-33


def test_turns_are_counted_exactly():
    turns = TakeTurns(2, "place", "out_of_batch", "n_examples")
    assert rule(turns, Moment(PROGRAM, {}, FLOAT64)) == {}
