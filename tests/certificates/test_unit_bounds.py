"""Rules of instructions by units; that they hold slot by slot is tested with all constructions."""

from dataclasses import replace
from math import inf

import pytest
import torch

import icgd
from icgd.approximation.ridge_sum import fit_product, fit_ridge_sum, fit_slope_product
from icgd.certificates.bounds import Moment
from icgd.certificates.enclosures import Arithmetic, Enclosure, is_ramp, ridge_error
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import rule
from icgd.certificates.unit_bounds import left_over
from icgd.problems.activations import IDENTITY_FUNCTION, RELU, TANH
from icgd.program.instructions import Argument, Combination
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.ridge import Band, RidgeSum
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import (
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddOuterProduct,
    ClipByUnits,
    PushJacobian,
    StartJacobian,
    WipeByUnits,
)

EXACTLY = Arithmetic(0.0, 5, sums_terms=True)
FUSED = Arithmetic(0.0, 5, sums_terms=False)
LAYOUT = Layout(
    (
        Slot("a", (2,), Role.SCRATCH),
        Slot("b", (2,), Role.SCRATCH),
        Slot("rows", (2, 1), Role.SCRATCH),
        Slot("pushed", (1, 1), Role.SCRATCH),
        Slot("V", (2, 2), Role.PARAMETER),
        Slot("W", (1, 2), Role.PARAMETER),
    )
)
OF_A = Argument(Combination.of("a"))


def program_with(*functions: RidgeSum) -> StackProgram:
    return StackProgram("by hand", LAYOUT, functions, (), 0, ())


def point(*values: float) -> Enclosure:
    """One token."""
    return Enclosure.common(Interval.point(torch.tensor([values], dtype=torch.float64)))


EMPTY = point(0.0, 0.0)
COARSE = replace(fit_ridge_sum(TANH, 4.0, "relu", 24), error=0.125)


def test_units_err_as_proved_and_add_to_what_was_left():
    state = {"a": point(0.5, -3.0), "b": Enclosure.around(EMPTY.exact, EMPTY.error + 0.25)}
    activate = ActivateUnits(OF_A, "tanh", 1.0, "b")
    value = rule(activate, Moment(program_with(COARSE), state, EXACTLY))["b"]
    torch.testing.assert_close(value.exact.low, torch.tanh(state["a"].exact.low))
    torch.testing.assert_close(value.error, torch.full_like(value.error, 0.375))


def test_a_reach_scales_argument_and_error():
    line = replace(fit_ridge_sum(IDENTITY_FUNCTION, 1.0, "sigmoid", 16), error=0.01)
    activate = ActivateUnits(OF_A, "identity", 8.0, "b")
    state = {"a": point(0.5, -8.5), "b": EMPTY}
    value = rule(activate, Moment(program_with(line), state, EXACTLY))["b"]
    torch.testing.assert_close(value.error[0], torch.tensor([0.08, inf]).double())


def test_fine_fits_have_no_error_in_the_fused_backend_and_coarse_ones_have():
    fine = fit_ridge_sum(TANH, 4.0, "sigmoid", 24)
    state = {"a": point(0.5, -3.0), "b": EMPTY}
    for fit, dense, fused in ((COARSE, 0.125, 0.125), (fine, fine.error, 0.0)):
        activate = ActivateUnits(OF_A, "tanh", 1.0, "b")
        for how, expected in ((EXACTLY, dense), (FUSED, fused)):
            error = rule(activate, Moment(program_with(fit), state, how))["b"].error
            # A tanh of the oracle's own is off by two units of roundoff.
            assert error.tolist() == [[pytest.approx(expected, rel=1e-8, abs=3e-16)] * 2]


def test_a_jacobian_errs_near_a_kink_by_its_own_size_times_the_jump():
    fit = fit_slope_product(RELU, (1.0, 4.0), "relu", 24)
    push = PushJacobian("W", "rows", OF_A, "relu", fit.name, 8.0, "pushed")
    state = {"rows": point(3.0, 5.0), "pushed": point(0.0)}
    state["W"] = Enclosure.common(Interval.point(torch.tensor([[2.0, 7.0]]).double()))
    expected = {(1.0, -1.0): 0.0, (1e-5, -1.0): 6.0, (1.0, -1e-5): 35.0}
    for z, error in expected.items():
        now = state | {"a": point(*z)}
        pushed = rule(push, Moment(program_with(fit), now, EXACTLY))["pushed"]
        assert pushed.exact.low.item() == pytest.approx(6.0, rel=1e-13)
        assert pushed.error.item() == pytest.approx(error)
        assert pushed.actual.low.item() >= -2e-8, "a product stays between 0 and s"


def test_products_err_by_both_reaches():
    fit = replace(fit_product((1.0, 1.0), "sigmoid", 24), error=0.001)
    state = {"a": point(1.5, -1.0), "b": point(0.25, 0.5)}
    state["V"] = Enclosure.common(Interval.point(torch.zeros(2, 2).double()))
    add = AddOuterProduct("a", "b", (2.0, 3.0), "a b", -0.5, "V")
    added = rule(add, Moment(program_with(fit), state, EXACTLY))["V"]
    torch.testing.assert_close(added.error, torch.full((2, 2), 0.5 * 6 * 0.001).double())


def test_gated_products_err_only_where_units_are_no_relus():
    state = {"a": point(1.5, -1.0), "b": point(0.25, 0.5)}
    state["V"] = Enclosure.common(Interval.point(torch.zeros(2, 2).double()))
    for sharpness, error in ((1.0, 0.0), (64.0, 2 / 64 * 3.0 * 0.5)):
        add = AddGatedProduct("a", "b", 3.0, 8.0, sharpness, -0.5, "V")
        added = rule(add, Moment(program_with(), state, EXACTLY))["V"].error
        torch.testing.assert_close(added, torch.full((2, 2), error).double())


def test_a_factor_beyond_the_gate_would_let_queries_in():
    state = {"a": point(1.5, -8.5), "b": point(0.25, 0.5)}
    state["V"] = Enclosure.common(Interval.point(torch.zeros(2, 2).double()))
    add = AddGatedProduct("a", "b", 3.0, 8.0, 1.0, -0.5, "V")
    assert (rule(add, Moment(program_with(), state, EXACTLY))["V"].error == inf).all()
    assert (rule(add, Moment(program_with(), state, FUSED))["V"].error == 0.0).all()


def test_sums_over_many_inputs_and_many_rows_are_rounded_more():
    """A score has a term for each input, and what is added to a weight one for each row."""
    fit = fit_slope_product(RELU, (1.0, 4.0), "relu", 24)  # with weights of 2^13
    rounded = Arithmetic(2.0**-53, 5, sums_terms=True)
    errors = []
    for n_inputs in (1, 1000):
        x, w = (torch.full((1, n), 1.0).double() for n in (n_inputs, n_inputs))
        inputs, weights = (Enclosure.common(Interval.point(part)) for part in (x, w / n_inputs))
        state = {"x": inputs, "U": weights, "s": point(1.0), "T": point(1.0), "J": point(0.0)}
        argument = Argument(Combination.of("x"), "U")
        start = StartJacobian("T", "s", argument, "relu", fit.name, 1.0, "J")
        errors.append(float(rule(start, Moment(program_with(fit), state, rounded))["J"].error))
    assert 20 * 2.0**-40 < errors[0] < 200 * 2.0**-40
    assert errors[1] > 30 * errors[0]
    both = {"a": point(1.0, 1.0), "b": point(1.0, 1.0), "V": point(0.0, 0.0), "W": point(0.0)}
    product = AddGatedProduct("a", "b", 3.0, 8.0, 1.0, 1.0, "V")
    rows = AddGatedJacobian("a", "b", 3.0, 8.0, 1.0, 1.0, "W")
    one = float(rule(product, Moment(program_with(), both, rounded))["V"].error.max())
    assert float(rule(rows, Moment(program_with(), both, rounded))["W"].error) > 2.5 * one


def test_a_clip_errs_more_near_the_box_and_by_anything_beyond_its_reach():
    fit = fit_ridge_sum(IDENTITY_FUNCTION, 4.0, "sigmoid", 16)
    clip = replace(fit, name="clip", error=0.01, bands=(Band(0.5, 1.5, 0.25),))
    state = {"a": point(0.25, -3.0), "b": point(0.75, 5.0)}
    clipped = rule(ClipByUnits(("a", "b"), 1.0, "clip"), Moment(program_with(clip), state, EXACTLY))
    assert clipped["a"].exact.low.tolist() == [[0.25, -1.0]]
    assert clipped["a"].error.tolist() == [[pytest.approx(0.01, rel=1e-8)] * 2]
    assert clipped["b"].error.tolist() == [[pytest.approx(0.25, rel=1e-8), inf]]


def test_what_a_wipe_misses_is_what_the_next_step_finds():
    line = replace(fit_ridge_sum(IDENTITY_FUNCTION, 1.0, "sigmoid", 16), error=0.01)
    wipe = WipeByUnits(("a",), "identity", 8.0)
    program = replace(program_with(line), block=(Layer("wipe", (wipe,)),))
    wiped = rule(wipe, Moment(program, {"a": point(0.25, 9.0)}, EXACTLY))["a"]
    assert wiped.exact.low.tolist() == [[0.0, 0.0]]
    assert wiped.error.tolist() == [[pytest.approx(0.08, rel=1e-8), inf]]
    assert left_over(program, EXACTLY)["a"] == 0.08
    assert left_over(program, EXACTLY)["b"] == 0.0
    assert left_over(program, FUSED)["a"] == 0.0
    short = replace(program, functions=(replace(line, half_widths=(0.5,)),))
    assert left_over(short, EXACTLY)["a"] == inf, "numbers of up to 1 are wiped by it"


def test_the_error_of_a_sum_of_units_is_that_of_the_bands_it_touches():
    fit = replace(COARSE, bands=(Band(-1.0, 1.0, 0.5), Band(0.0, 0.5, 2.0)))
    low = torch.tensor([-3.0, -2.0, 0.6, 0.1, 3.0]).double()
    errors = ridge_error(fit, Interval(low, low + 1.0))
    assert errors.tolist() == [0.125, 0.5, 0.5, 2.0, 0.125]
    assert ridge_error(fit, Interval(low, low + 1.1)).tolist()[-1] == inf


def test_a_kinked_slope_is_a_ramp_and_a_clip_is_none():
    assert is_ramp(fit_slope_product(RELU, (1.0, 4.0), "relu", 24))
    assert not is_ramp(fit_slope_product(TANH, (1.0, 4.0), "relu", 24))
    assert not is_ramp(replace(COARSE, bands=(Band(-1.0, 1.0, 0.5),)))


def test_near_kinks_of_recursion_are_those_of_relu_stack_within_its_wider_band():
    """The band of a product lies on both sides of the kink, a ramp only on its right."""
    problem = icgd.Problem(
        icgd.MLP((2, 3, 1), "relu"), "squared", icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    )
    x = torch.tensor([[1.0, -1.0], [0.5, 0.25]]).double()
    weights = torch.tensor([1.0, 1.0 - 1e-5, 1.0, 1.0 + 1e-5, 1.0, 0.5, 1.0, 1.0, 1.0]).double()
    counts = {}
    for name in ("recursion", "relu-stack"):
        compiled = icgd.compile(problem, n_steps=1, construction=name, kink_width=2.0**-13)
        report = icgd.verify(compiled, x, torch.ones(2, 1), initial=weights)
        assert report.verdict.holds
        counts[name] = [event.unit for event in report.near_kinks.events]
    assert counts == {"recursion": [0, 1], "relu-stack": [0]}
