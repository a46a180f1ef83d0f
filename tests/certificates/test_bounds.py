from dataclasses import replace
from decimal import Decimal, localcontext
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd.approximation.lattice import Lattice, fit_on_grid, fit_to_accuracy, identity, line_lattice
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.backends.prompt import split_parameters
from icgd.backends.registry import BACKENDS
from icgd.certificates.enclosures import Arithmetic, Enclosure, fit_error, uneven_response
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import propagate, rule
from icgd.constructions.registry import construction_named
from icgd.errors import ProgramError
from icgd.problems.catalog import FUNCTIONS, function_named
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import AddGradient, AddProduct, Argument, Combination, Project
from icgd.program.layout import Role
from icgd.program.registers import SHARE
from icgd.weights.sizes import PROBES
from tests.cases import FEW, NARROW, Case, Juggle, build, every_construction_on

PROGRAM = build(construction_named("relu-stack"), FEW[0])
SOFTMAX_STACK = construction_named("softmax-stack")
FLOAT64 = Arithmetic.of(torch.float64, n_tokens=8, backend="dense")
FUSED = Arithmetic.of(torch.float64, n_tokens=8, backend="fused")
EXACTLY = Arithmetic(roundoff=0.0, n_tokens=8, sums_terms=True)
"""The dense transformer without rounding: what remains is the construction's own error."""


@given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    low=st.floats(-7.5, 7.5),
    width=st.floats(0, 3),
    share=st.floats(0, 1),
)
def test_the_error_of_a_fit_is_bounded_piece_by_piece(name, low, width, share):
    function, fit = function_named(name), fit_relu_sum(function_named(name), -8.0, 8.0, 16)
    high = min(low + width, 8.0)
    point = torch.tensor([low + share * (high - low)]).double()
    interval = Interval(torch.tensor([low]).double(), torch.tensor([high]).double())
    gap = abs(fit(float(point)) - float(function(point)))
    assert gap <= float(fit_error(fit, interval)) + 1e-9 * (1 + abs(float(point)))


def test_a_ramp_errs_only_where_the_argument_can_touch_it():
    fit = fit_relu_sum(function_named("relu'"), -8.0, 8.0, kink_width=2.0**-10)
    low = torch.tensor([-1.0, -1.0, 2.0**-10, 1e-4, -1.0]).double()
    high = torch.tensor([-0.5, 0.0, 3.0, 1e-4, 1.0]).double()
    assert fit_error(fit, Interval(low, high)).tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_nothing_is_promised_outside_the_interval_of_a_smooth_fit():
    fit = fit_relu_sum(function_named("tanh"), -8.0, 8.0, 16)
    outside = Interval(torch.tensor([7.0]).double(), torch.tensor([8.5]).double())
    assert fit_error(fit, outside).isinf().all()


def test_a_look_up_errs_as_proved_within_its_reach_and_by_anything_beyond():
    (fit,) = fit_on_grid((function_named("tanh"),), 3.0, 20)
    high = torch.tensor([0.0, 3.0, 3.1, 0.0]).double()
    low = torch.tensor([-1.0, -3.0, 0.0, -3.1]).double()
    assert fit_error(fit, Interval(low, high)).tolist() == [fit.error, fit.error, inf, inf]
    assert fit_error(fit.without_error(), Interval(low, high)).tolist() == [0.0] * 4


def test_a_look_up_that_saturates_errs_as_proved_everywhere():
    (fit,) = fit_to_accuracy((function_named("tanh"),), 100.0, 1e-6)
    assert fit.saturates
    assert fit.reach < 50
    far = Interval.symmetric(1e9, 1)
    assert fit_error(fit, far).item() == fit.error <= 1e-6


@every_construction_on(FEW)
@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_slot_lies_in_its_enclosure_after_a_block(
    construction, case: Case, backend: str, dtype: str
):
    """The rules hold slot by slot, not only for the weights at the end."""
    program = build(construction, case, n_steps=1, pieces=16, dtype=dtype)
    task = case.task(dtype)
    from_backend = _slots_before_the_wipe(program, task, backend)
    state = _numbers(program, task)
    how = Arithmetic.of(task.x.dtype, task.n_tokens, backend)
    state = propagate(program, program.block[:-1], state, how)
    examples = slice(program.n_registers, program.n_registers + task.n_examples)
    for slot in program.layout.having(Role.SCRATCH):
        actual = from_backend[slot.name][..., examples, :].double()
        enclosure = state[slot.name]
        assert (enclosure.actual.low <= actual).all(), slot.name
        assert (actual <= enclosure.actual.high).all(), slot.name
        gap = (actual - enclosure.exact.low).abs()
        assert (gap <= enclosure.error + 1e-13).all(), slot.name


def _slots_before_the_wipe(program, task, backend):
    from_names = [slot.name for slot in program.layout.having(Role.SCRATCH)]
    run = BACKENDS[backend].run(program, task, trace=tuple(from_names))
    return {name: states[len(program.block) - 1] for name, states in run.trace.items()}


def _numbers(program, task):
    values = {"x": task.x, "y": task.y, **split_parameters(program.layout, task.initial)}
    for slot in program.layout.having(Role.SCRATCH):
        values[slot.name] = torch.zeros(task.n_examples, slot.width).double()
    return {name: point(value.double()) for name, value in values.items()}


def point(value: torch.Tensor) -> Enclosure:
    return Enclosure.common(Interval.point(value))


def numbers(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


PRODUCTS = build(SOFTMAX_STACK, NARROW[FEW[-1]])
"""A program with lines and squares: silu-3-2-silu-huber."""


def test_a_projection_errs_by_its_reach_times_the_line_and_only_in_the_dense_transformer():
    line = identity(line_lattice(1.0, 16))
    program = replace(PRODUCTS, functions=(line,))
    project = Project(Argument(Combination.of("a")), reach=8.0, write="b")
    state = {"a": point(numbers([7.0, -2.0]))}
    exactly, dense, fused = (
        rule(project, program, state, how)["b"] for how in (EXACTLY, FLOAT64, FUSED)
    )
    assert fused.error.tolist() == [[0.0, 0.0]]
    assert exactly.error.tolist() == [[8 * line.error] * 2]
    assert (dense.error > exactly.error).all()
    assert (dense.error <= exactly.error + 2e-13).all()
    assert torch.equal(dense.exact.low, state["a"].exact.low)


def test_a_line_beyond_its_reach_is_only_known_to_stay_between_its_values():
    program = replace(PRODUCTS, functions=(identity(line_lattice(1.0, 16)),))
    project = Project(Argument(Combination.of("a")), reach=2.0, write="b")
    written = rule(project, program, {"a": point(numbers([2.0, 2.1]))}, FLOAT64)["b"]
    inside, outside = written.error[0].tolist()
    largest = max(program.look_up("identity").values)
    assert inside < 1e-13
    assert 2 * largest + 2.1 <= outside < inf


def test_a_product_is_added_to_what_the_transformer_holds_even_where_the_exact_value_is_zero():
    product = AddProduct(Argument(Combination.of("a")), 4.0, "f", 2.0, write="b")
    held = Enclosure.around(Interval.point(numbers([0.0])), numbers([0.25]))
    state = {"a": point(numbers([3.0])), "f": point(numbers([-2.0])), "b": held}
    off = 4.0 * 2.0 / 2 * PRODUCTS.look_up("square").error
    for how, least, most in (
        (EXACTLY, 0.25 + 0.99 * off, 0.25 + 1.01 * off),
        (FLOAT64, 0.25 + 1.01 * off, 0.25 + off + 1e-12),
        (FUSED, 0.25, 0.25 + 1e-13),
    ):
        written = rule(product, PRODUCTS, state, how)["b"]
        assert written.exact.low.item() == written.exact.high.item() == -6.0
        assert least <= written.error.item() <= most
        assert written.actual.low <= -6.25
        assert written.actual.high >= -5.75


def probed_mean(probe: float, left: list[float], right: list[float]) -> Decimal:
    """What the six heads of `AddGradient` return for mean(left right), in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        total = Decimal(0)
        for multiple, coefficient in PROBES:
            for sign in (1, -1):
                e = sign * Decimal(multiple) * Decimal(probe)
                scores = [(e * Decimal(value)).exp() for value in left]
                sink = len(left) / Decimal(SHARE)
                seen = sum(s * Decimal(r) for s, r in zip(scores, right, strict=True))
                gain = Decimal(coefficient) / (2 * e * Decimal(SHARE))
                total += gain * seen / (sink + sum(scores))
        return total


LEFT_AND_RIGHT = {
    "ordinary": ([0.3, -1.0, 0.8], [1.0, 0.5, -0.25]),
    "one example": ([1.0], [2.0]),
    "the slope is in one example and the input in another": ([1.0, 0.0], [0.0, 1.0]),
}


@pytest.mark.parametrize(("left", "right"), LEFT_AND_RIGHT.values(), ids=LEFT_AND_RIGHT)
@pytest.mark.parametrize("probe", [2.0**-5, 0.25, 1.0])
def test_probing_loses_no_more_than_is_proved(probe, left, right):
    """In exact arithmetic; the coefficients 3 / 5 and 1 / 10 are rounded in their last digit."""
    gradient = AddGradient(Combination.of("l"), "r", scale=-2.0, probe=probe, write="w")
    columns = {"l": numbers(left).T, "r": numbers(right).T}
    state = {name: point(column) for name, column in columns.items()} | {"w": point(numbers([0.0]))}
    bound = rule(gradient, PRODUCTS, state, EXACTLY)["w"].error.item()
    exact = sum(Decimal(a) * Decimal(b) for a, b in zip(left, right, strict=True)) / len(left)
    missed = 2 * abs(float(probed_mean(probe, left, right) - exact))
    assert missed <= bound + 1e-16
    assert bound <= max(40 * missed, 1e-9)


def shifted_head(fit: LatticeFunction, s: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """What a head returns if each of its tokens sees the argument off by its own shift."""
    g = Lattice(fit.reach, fit.spacing, fit.ratio, fit.half).numbers()
    scores = ((s[:, None] + shifts) / fit.spacing * g - g**2 / 2) / fit.ratio**2
    return torch.softmax(scores, -1) @ torch.tensor(fit.values, dtype=torch.float64)


@pytest.mark.parametrize("name", ["tanh", "tanh'", "silu'"])
def test_copies_that_differ_by_token_move_a_head_by_no_more_than_its_response(name):
    (fit,) = fit_on_grid((function_named(name),), 3.0, 25)
    s = torch.linspace(-3, 3, 501, dtype=torch.float64)
    values = torch.tensor(fit.values, dtype=torch.float64)
    grid = torch.arange(-fit.half, fit.half + 1, dtype=torch.float64)
    still = shifted_head(fit, s, torch.zeros_like(grid))
    worst = 1e-6 * torch.sign((values - still[:, None]) * grid)
    moved = (shifted_head(fit, s, worst) - still).abs().max() / 1e-6
    assert 0.95 * uneven_response(fit) <= moved <= uneven_response(fit)


def test_rounding_grows_with_the_number_of_terms_and_the_unit_roundoff():
    sizes = torch.tensor([1.0]).double()
    assert FLOAT64.sum_of(10, sizes) < FLOAT64.sum_of(100, sizes)
    float32 = Arithmetic.of(torch.float32, n_tokens=8, backend="dense")
    ratio = float(float32.sum_of(10, sizes) / FLOAT64.sum_of(10, sizes))
    assert ratio == pytest.approx(2**29, rel=1e-4)


def test_an_instruction_without_a_rule_is_named():
    with pytest.raises(ProgramError, match=r"Juggle: has no rule in certificates/bounds\.py"):
        rule(Juggle(), PROGRAM, {}, FLOAT64)
