"""Bounds by the meaning of instructions."""

from dataclasses import replace
from decimal import Decimal, localcontext
from math import exp, inf

import pytest
import torch
from torch import Tensor

import icgd
from icgd.approximation.lattice import identity, line_lattice
from icgd.approximation.relu_sum import fit_exponential, fit_reciprocal
from icgd.approximation.ridge import fit_product, fit_ridge_sum, fit_slope_product
from icgd.backends.registry import BACKENDS
from icgd.backends.run import RunOptions
from icgd.certificates.enclosures import ROOM, Arithmetic, Enclosure, Interval, ridge_error
from icgd.certificates.propagation import Bounded, Enclosures, key_error, split
from icgd.choice import construction_named
from icgd.problems.functions import IDENTITY_FUNCTION, RELU, TANH, capped_exponential
from icgd.problems.mlp import MLP
from icgd.program.functions import Band, RidgeSum
from icgd.program.instructions import (
    PROBES,
    AddGradient,
    AddProduct,
    Argument,
    Combination,
    Project,
    PullBack,
    WipeSlots,
)
from icgd.program.layout import ONE, SHARE, Layout, Role, Slot
from icgd.program.meaning import PerStep
from icgd.program.network_instructions import (
    Assignment,
    Covary,
    MapDifferences,
    MapRowSums,
    Recombine,
    ScaleCentred,
    ShareClasses,
    TakeTurns,
    centring,
)
from icgd.program.program import Layer
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
from tests.approximation.test_relu_sum import values
from tests.cases import FEW, NARROW, Case, build, every_construction_on, make_case
from tests.certificates.test_network import problem

# Whole blocks, and heads over registers.


RELU_STACK = build(construction_named("relu-stack"), FEW[0])
SOFTMAX_STACK = construction_named("softmax-stack")
FLOAT64 = Arithmetic.of(torch.float64, n_tokens=8, backend="dense")
FUSED = Arithmetic.of(torch.float64, n_tokens=8, backend="fused")
EXACTLY = Arithmetic(roundoff=0.0, n_tokens=8, sums_terms=True)
"""The dense transformer without rounding: what remains is the construction's own error."""


def bounded_after(instruction, slots, program, arithmetic) -> dict[str, Bounded]:
    """What an instruction writes, from enclosures of what it reads."""
    found = {
        name: part if isinstance(part, Bounded) else Bounded(part) for name, part in slots.items()
    }
    layer = Layer("by hand", (instruction,))
    after = Enclosures(program, arithmetic).after([layer], found)
    return {name: part for name, part in after.items() if part is not found.get(name)}


def after(instruction, slots, program, arithmetic) -> dict[str, Enclosure]:
    written = bounded_after(instruction, slots, program, arithmetic)
    return {name: part.value for name, part in written.items()}


@every_construction_on(FEW)
@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_slot_lies_in_its_enclosure_after_a_block(
    construction, case: Case, backend: str, dtype: str
):
    """The rules hold slot by slot, not only for the weights at the end."""
    program = build(construction, case, n_steps=1, pieces=16, dtype=dtype)
    require_enclosures(program, case.task(dtype), backend)


@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("name", ["relu-stack", "softmax-stack", "recursion"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_every_slot_lies_in_its_enclosure_with_biases_that_are_not_0(name, activation, backend):
    case = make_case(MLP((2, 3, 2, 1), activation, biases=True), "squared", box=1.0)
    program = build(construction_named(name), case, n_steps=1, pieces=16)
    task = case.task()
    task = replace(task, initial=(task.initial + 0.25).clamp(-1, 1))
    require_enclosures(program, task, backend)


def require_enclosures(program, task, backend):
    """After a block, all scratch slots of a run lie where the rules say."""
    from_backend = _slots_before_the_wipe(program, task, backend)
    state = _numbers(program, task)
    arithmetic = Arithmetic.of(task.x.dtype, task.n_tokens, backend)
    state = Enclosures(program, arithmetic).after(program.block[:-1], state)
    examples = slice(program.n_registers, program.n_registers + task.n_examples)
    for slot in program.layout.having(Role.SCRATCH):
        actual = from_backend[slot.name][..., examples, :].double()
        enclosure = state[slot.name].value
        assert (enclosure.actual.low <= actual).all(), slot.name
        assert (actual <= enclosure.actual.high).all(), slot.name
        gap = (actual - enclosure.exact.low).abs()
        assert (gap <= enclosure.error + 1e-13).all(), slot.name


def _slots_before_the_wipe(program, task, backend):
    from_names = [slot.name for slot in program.layout.having(Role.SCRATCH)]
    run = BACKENDS[backend].run(program, task, RunOptions(tuple(from_names)))
    return {name: states[len(program.block) - 1] for name, states in run.trace.items()}


def _numbers(program, task):
    values = {"x": task.x, "y": task.y, **program.layout.split(task.initial)}
    for slot in program.layout.having(Role.SCRATCH):
        values[slot.name] = torch.zeros(task.n_examples, slot.width).double()
    return {name: Bounded(point(value.double())) for name, value in values.items()}


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
        after(project, state, program, arithmetic)["b"] for arithmetic in (EXACTLY, FLOAT64, FUSED)
    )
    assert fused.error.tolist() == [[0.0, 0.0]]
    assert exactly.error.tolist() == [[pytest.approx(8 * line.error, rel=1e-8)] * 2]
    assert (dense.error > exactly.error).all()
    assert (dense.error <= exactly.error + 2e-13).all()
    assert torch.equal(dense.exact.low, state["a"].exact.low)


def test_a_line_beyond_its_reach_is_only_known_to_stay_between_its_values():
    program = replace(PRODUCTS, functions=(identity(line_lattice(1.0, 16)),))
    project = Project(Argument(Combination.of("a")), reach=2.0, write="b")
    written = after(project, {"a": point(numbers([2.0, 2.1]))}, program, FLOAT64)["b"]
    inside, outside = written.error[0].tolist()
    largest = max(program.look_up("identity").values)
    assert inside < 1e-13
    assert 2 * largest + 2.1 <= outside < inf


def test_a_product_is_added_to_what_the_transformer_holds_even_where_the_exact_value_is_zero():
    product = AddProduct(Argument(Combination.of("a")), 4.0, "f", 2.0, write="b")
    held = Enclosure.around(Interval.point(numbers([0.0])), numbers([0.25]))
    state = {"a": point(numbers([3.0])), "f": point(numbers([-2.0])), "b": held}
    off = 4.0 * 2.0 / 2 * PRODUCTS.look_up("square").error
    for arithmetic, least, most in (
        (EXACTLY, 0.25 + 0.99 * off, 0.25 + 1.01 * off),
        (FLOAT64, 0.25 + 1.01 * off, 0.25 + off + 1e-12),
        (FUSED, 0.25, 0.25 + 1e-13),
    ):
        written = after(product, state, PRODUCTS, arithmetic)["b"]
        assert written.exact.low.item() == pytest.approx(-6.0, rel=1e-14)
        assert written.exact.high.item() == pytest.approx(-6.0, rel=1e-14)
        assert least <= written.error.item() <= most * ROOM**2
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
    gradient = AddGradient(Combination.of("l"), "r", scale=-2.0, probe=probe, write="weights_1")
    columns = {"l": numbers(left).T, "r": numbers(right).T}
    state = {name: point(column) for name, column in columns.items()}
    state["weights_1"] = point(numbers([0.0]))
    bound = after(gradient, state, PRODUCTS, EXACTLY)["weights_1"].error.item()
    exact = sum(Decimal(a) * Decimal(b) for a, b in zip(left, right, strict=True)) / len(left)
    missed = 2 * abs(float(probed_mean(probe, left, right) - exact))
    assert missed <= bound + 1e-16
    assert bound <= max(40 * missed, 1e-9)


# Optimisers, by hand; that bounds hold in runs is tested with runs from PyTorch.


SUMS_LAYOUT = Layout((Slot("w", (1, 2), Role.PARAMETER), Slot("g", (1, 2), Role.SHARED)))
SUMS_PROGRAM = StackProgram("by hand", SUMS_LAYOUT, (), (), 0, ())
VALUE = Combination(("w", "g"), (0.5, -3.0))


def near_numbers(values: list[float], error: float) -> Enclosure:
    exact = torch.tensor([values], dtype=torch.float64)
    return Enclosure.around(Interval.point(exact), torch.full_like(exact, error))


def recombined(
    *assignments: Assignment, arithmetic: Arithmetic = EXACTLY, apart=None, **more: Enclosure
):
    slots = {"w": near_numbers([1.0, -2.0], 0.25), "g": near_numbers([0.5, 0.25], 0.125), **more}
    for name, distance in (apart or {}).items():
        slots[name] = Bounded(slots[name], torch.full((1, 2), distance, dtype=torch.float64))
    return bounded_after(Recombine(assignments, "one"), slots, SUMS_PROGRAM, arithmetic)


def enclosures_of(*assignments: Assignment, **more: Enclosure):
    return {name: part.value for name, part in recombined(*assignments, **more).items()}


def test_errors_of_a_combination_add_up():
    written = enclosures_of(Assignment(VALUE, "w"))
    assert set(written) == {"w"}
    assert written["w"].exact.low.tolist() == [[pytest.approx(-1.0), pytest.approx(-1.75)]]
    assert written["w"].error.tolist() == [[pytest.approx(0.5 * 0.25 + 3.0 * 0.125)] * 2]


def test_a_bound_clips_value_and_error():
    clipped = enclosures_of(Assignment(VALUE, "w", bound=1.25))["w"]
    assert clipped.exact.high.tolist() == [[pytest.approx(-1.0), pytest.approx(-1.25)]]
    assert clipped.actual.low.min() >= -1.25 * (1 + 1e-12)
    # The first value is at most 0.25 within the bound on one side, and 0.5 on the other.
    assert clipped.error[0, 0].item() == pytest.approx(0.5)
    assert clipped.error[0, 1].item() == pytest.approx(0.0, abs=1e-12)


def test_an_average_has_the_errors_of_what_it_is_made_of():
    more = {"a": near_numbers([0.5, 0.5], 2.0**-4)}
    averaged = Assignment(VALUE, "w", average="a", keeps=0.75)
    found = enclosures_of(averaged, **more)
    exact = [0.75 * 0.5 + 0.25 * value for value in (-1.0, -1.75)]
    assert found["a"].exact.low.tolist() == [[pytest.approx(value) for value in exact]]
    assert found["a"].error.tolist() == [[pytest.approx(0.75 * 2.0**-4 + 0.25 * 0.5)] * 2]
    clipped = enclosures_of(Assignment(VALUE, "w", 1.25, average="a", keeps=0.0), **more)
    assert clipped["a"].exact.high.tolist() == [[pytest.approx(-1.0), pytest.approx(-1.25)]]
    assert clipped["a"].error[0, 1].item() == pytest.approx(0.0, abs=1e-12)


def test_copies_of_an_average_drift_apart():
    apart = {"w": 2.0**-30, "g": 2.0**-33, "a": 2.0**-31}
    averaged = Assignment(VALUE, "w", average="a", keeps=0.75)
    average = near_numbers([0.5, 0.5], 0.0)
    found = recombined(averaged, arithmetic=FLOAT64, apart=apart, a=average)["a"].drift
    wanted = 0.25 * (0.5 * apart["w"] + 3.0 * apart["g"]) + 0.75 * apart["a"]
    assert found.tolist() == [[pytest.approx(wanted, rel=1e-3)] * 2]
    assert float(found.min()) > wanted


def test_all_assignments_read_what_was_there_before():
    written = enclosures_of(Assignment(VALUE, "w"), Assignment(Combination.of("w"), "g"))
    assert written["g"].exact.low.tolist() == [[pytest.approx(1.0), pytest.approx(-2.0)]]
    assert written["g"].error.tolist() == [[pytest.approx(0.25)] * 2]


def test_rounding_is_that_of_a_few_operations():
    state = {"w": near_numbers([1.0, 1.0], 0.0), "g": near_numbers([1.0, 1.0], 0.0)}
    written = after(Recombine((Assignment(VALUE, "w"),), "one"), state, SUMS_PROGRAM, FLOAT64)
    error = float(written["w"].error.max())
    assert 2.0**-53 * 3.5 <= error <= 2.0**-53 * 1000


def test_copies_drift_apart_by_what_they_are_made_of_and_by_rounding():
    drift = {"w": 2.0**-30, "g": 2.0**-33}
    apart = recombined(Assignment(VALUE, "w"), arithmetic=FLOAT64, apart=drift)["w"].drift
    assert apart.tolist() == [[pytest.approx(0.5 * 2.0**-30 + 3.0 * 2.0**-33, rel=1e-3)] * 2]
    assert float(apart.min()) > 0.5 * 2.0**-30 + 3.0 * 2.0**-33


def test_copies_of_a_slot_that_is_wiped_do_not_lie_apart():
    held = Bounded(near_numbers([1.0, -2.0], 0.25), torch.full((1, 2), 0.5, dtype=torch.float64))
    wiped = bounded_after(WipeSlots(("g",)), {"g": held}, SUMS_PROGRAM, FLOAT64)["g"]
    assert wiped.value.error.tolist() == wiped.drift.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("arithmetic", [EXACTLY, FLOAT64])
def test_a_sum_with_the_factors_of_a_schedule_holds_each_of_its_sums(arithmetic):
    factors = (-3.0, -1.0, 0.5)
    value = Combination(("w", "g"), (0.5, PerStep(factors)))
    found = enclosures_of(Assignment(value, "w"), arithmetic=arithmetic)["w"]
    for factor in factors:
        one = enclosures_of(
            Assignment(Combination(("w", "g"), (0.5, factor)), "w"), arithmetic=arithmetic
        )["w"]
        for wide, narrow in ((found.exact, one.exact), (found.actual, one.actual)):
            assert (wide.low <= narrow.low).all()
            assert (narrow.high <= wide.high).all()
        assert (one.error <= found.error).all()
    exact = [0.5 - 3.0 * 0.5, 0.5 * -2.0 - 3.0 * 0.25]
    assert found.exact.low.tolist() == [[pytest.approx(value) for value in exact]]


def test_turns_are_counted_exactly():
    turns = TakeTurns(2, "place", "out_of_batch", "n_examples")
    assert after(turns, {}, SUMS_PROGRAM, FLOAT64) == {}


# Classes, against scores that are drawn at random within their enclosures.


CAP, LARGEST_SCORE, N_CLASSES = 8.0, 1e6, 3
EXP, RECIPROCAL = (
    fit_exponential(capped_exponential(CAP), LARGEST_SCORE, 1e-4),
    fit_reciprocal(2 * N_CLASSES * exp(CAP), 1e-4),
)
CLASSES = Layout(
    (
        Slot("scores", (N_CLASSES,), Role.SCRATCH),
        Slot("pairs", (N_CLASSES * N_CLASSES,), Role.SCRATCH),
        Slot("shares", (N_CLASSES,), Role.SCRATCH),
    )
)
CLASS_PROGRAM = StackProgram("by hand", CLASSES, (EXP, RECIPROCAL), (), 0, ())
SHARE_CLASSES = ShareClasses("scores", ("class_1", "class_2", "class_3"), "shares")
MAP_PAIRS = MapDifferences("scores", EXP.name, "pairs")
MAP_SUMS = MapRowSums("pairs", RECIPROCAL.name, "shares", exp(-CAP))
SCORES = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [30.0, -30.0, 25.0]]).double()


def enclosed(radius: float, error: float) -> Enclosure:
    exact = Interval(SCORES - radius, SCORES + radius)
    return Enclosure.around(exact, torch.full_like(SCORES, error))


def drawn_scores(radius: float, error: float) -> tuple[Tensor, Tensor]:
    """Exact scores, and others that are off by as much as the error allows: many of each."""
    generator = torch.Generator().manual_seed(2)
    shape = (4000, *SCORES.shape)
    place, off = (2 * torch.rand(*shape, generator=generator).double() - 1 for _ in range(2))
    exact = SCORES + radius * place
    return exact, exact + error * off.sign()


SCORE_WIDTHS = [(0.0, 0.0), (0.0, 0.01), (0.5, 0.0), (0.25, 0.5), (3.0, 2.0)]


@pytest.mark.parametrize(("radius", "error"), SCORE_WIDTHS)
def test_shares_of_a_head_lie_where_the_rule_says(radius, error):
    shares = after(SHARE_CLASSES, {"scores": enclosed(radius, error)}, CLASS_PROGRAM, EXACTLY)[
        "shares"
    ]
    exact, actual = (scores.softmax(-1) for scores in drawn_scores(radius, error))
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
        shares = after(SHARE_CLASSES, {"scores": scores}, CLASS_PROGRAM, FLOAT64)["shares"]
        errors.append(shares.error[0].tolist())
    assert 2.0**-53 < errors[0][0] < 1e-13
    assert errors[1][0] > 100 * errors[0][0]
    assert 0 < errors[1][2] < 1e-300


@pytest.mark.parametrize(("radius", "error"), SCORE_WIDTHS)
@pytest.mark.parametrize("arithmetic", [EXACTLY, FLOAT64, replace(FLOAT64, sums_terms=False)])
def test_shares_by_differences_lie_where_the_rules_say(radius, error, arithmetic):
    state = {"scores": enclosed(radius, error)}
    state |= after(MAP_PAIRS, state, CLASS_PROGRAM, arithmetic)
    shares = after(MAP_SUMS, state, CLASS_PROGRAM, arithmetic)["shares"]
    exact, actual = drawn_scores(radius, error)
    real = exact.softmax(-1)
    assert (real >= shares.exact.low - 1e-15).all()
    assert (real <= shares.exact.high + 1e-15).all()
    sample = actual[:200]
    apart = sample.unsqueeze(-2) - sample.unsqueeze(-1)
    sums = values(EXP, apart).sum(-1)
    found = values(RECIPROCAL, sums)
    assert ((found - real[:200]).abs() <= shares.error + 1e-12).all()


def test_a_score_less_itself_is_0_however_little_is_known_of_it():
    pairs = after(MAP_PAIRS, {"scores": enclosed(3.0, 2.0)}, CLASS_PROGRAM, EXACTLY)["pairs"]
    diagonal = pairs.error.unflatten(-1, (N_CLASSES, N_CLASSES)).diagonal(dim1=-2, dim2=-1)
    assert diagonal.max() <= 2e-4
    assert pairs.error.max() > 1.0


def test_what_a_cap_misses_is_added():
    state = {
        "pairs": Enclosure.common(Interval.point(torch.ones(1, N_CLASSES * N_CLASSES).double()))
    }
    little, more = (
        after(replace(MAP_SUMS, missed=missed), state, CLASS_PROGRAM, EXACTLY)["shares"]
        for missed in (0.0, 0.125)
    )
    assert (more.error - little.error).tolist() == [[pytest.approx(0.125)] * N_CLASSES]
    assert more.exact.low.tolist() == [[pytest.approx(1 / 3 - 0.125)] * N_CLASSES]
    assert more.exact.high.tolist() == [[pytest.approx(1 / 3)] * N_CLASSES]


@pytest.mark.parametrize(("low", "high"), [(20.0, 9e5), (-9e5, 7.5), (7.5, 7.5), (-9e5, 9e5)])
def test_the_rounding_of_an_exponential_is_that_of_its_steepest_terms(low, high):
    """Beyond the cap a steep term cancels all others: there too terms are as large as arguments."""
    interval = Interval(*(torch.tensor([[end]], dtype=torch.float64) for end in (low, high)))
    argument = Bounded(Enclosure.common(interval), n_terms=2)
    rounding = Enclosures(CLASS_PROGRAM, FLOAT64).mlp_rounding(EXP.name, argument)
    inside = torch.linspace(low, high, 2001, dtype=torch.float64)
    terms = torch.zeros_like(inside)
    for term in EXP.terms():
        active = (term.scale * inside + term.shift > 0).double()
        largest = abs(term.scale) * inside.abs() + abs(term.shift)
        terms += active * abs(term.coefficient) * largest
    assert float(rounding) >= len(EXP.terms()) * 2.0**-53 * float(terms.max())


# Layer norms, against numbers that are drawn at random within their enclosures.


FLOAT32 = Arithmetic(2.0**-24, 5, sums_terms=True)
SHAPES = {"z": 4, "g": 4, "h": 4, "scale": 1, "share": 1, "number": 1, "write": 4}
NORMS = Layout(tuple(Slot(name, (width,), Role.SCRATCH) for name, width in SHAPES.items()))
NORM_PROGRAM = StackProgram("by hand", NORMS, (), (), 0, ())
GENERATOR = torch.Generator().manual_seed(8)
CENTRES = {
    name: torch.randn(3, width, generator=GENERATOR, dtype=torch.float64)
    for name, width in SHAPES.items()
}
WIDTHS = [(0.0, 0.0), (0.0, 0.01), (0.5, 0.0), (0.25, 0.5)]


def covariance(a: Tensor, b: Tensor) -> Tensor:
    a, b = (part - part.mean(-1, keepdim=True) for part in (a, b))
    return (a * b).mean(-1, keepdim=True)


def scaled(s: dict[str, Tensor]) -> Tensor:
    return s["scale"] * (s["g"] - s["g"].mean(-1, keepdim=True) - s["share"] * s["h"])


def pulled(s: dict[str, Tensor]) -> Tensor:
    return s["h"] * (s["g"] @ s["matrix"] + s["z"])


MATRIX = torch.randn(4, 4, generator=GENERATOR, dtype=torch.float64)
NORM_CASES = {
    "variance": (Covary("z", "z", "number"), lambda s: covariance(s["z"], s["z"])),
    "covariance": (Covary("g", "h", "number"), lambda s: covariance(s["g"], s["h"])),
    "back": (ScaleCentred("g", "scale", "write", "h", "share"), scaled),
    "plus": (PullBack("matrix", "g", "h", "write", ("z",)), pulled),
    "no slope": (
        PullBack("matrix", "g", ONE, "write", ("z", "h")),
        lambda s: s["g"] @ s["matrix"] + s["z"] + s["h"],
    ),
}


def norm_state(radius: float, error: float) -> dict[str, Enclosure]:
    found = {
        name: Enclosure.around(
            Interval(centre - radius, centre + radius), torch.full_like(centre, error)
        )
        for name, centre in CENTRES.items()
    }
    return found | {"matrix": Enclosure.common(Interval.point(MATRIX))}


def drawn(radius: float, error: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Exact numbers, and others that are off by as much as the error allows: many of each."""
    exact, actual = {"matrix": MATRIX}, {"matrix": MATRIX}
    for name, centre in CENTRES.items():
        place, off = (2 * torch.rand(4000, *centre.shape, dtype=torch.float64) - 1 for _ in "ab")
        exact[name] = centre + radius * place
        actual[name] = exact[name] + error * off.sign()
    return exact, actual


@pytest.mark.parametrize(("radius", "error"), WIDTHS)
@pytest.mark.parametrize(("instruction", "value"), NORM_CASES.values(), ids=NORM_CASES)
def test_numbers_lie_where_the_rules_say(instruction, value, radius, error):
    torch.manual_seed(1)
    (found,) = after(instruction, norm_state(radius, error), NORM_PROGRAM, EXACTLY).values()
    exact, actual = (value(slots) for slots in drawn(radius, error))
    slack = 1e-13
    for numbers, interval in ((exact, found.exact), (actual, found.actual)):
        assert (numbers >= interval.low - slack).all()
        assert (numbers <= interval.high + slack).all()
    assert ((exact - actual).abs() <= found.error + slack).all()
    assert found.error.max() <= 12 * (exact - actual).abs().max() + 1e-12


def test_variances_are_not_negative():
    variance = Covary("z", "z", "number")
    found = after(variance, norm_state(5.0, 3.0), NORM_PROGRAM, EXACTLY)["number"]
    assert (found.exact.low >= 0).all()
    assert (found.actual.low >= 0).all()


def test_centred_numbers_are_known_to_rounding():
    z = Bounded.point(CENTRES["z"])
    found = Enclosures(NORM_PROGRAM, FLOAT64).constant_map(centring(4), z).value
    truth = CENTRES["z"] - CENTRES["z"].mean(-1, keepdim=True)
    assert ((found.exact.low <= truth) & (truth <= found.exact.high)).all()
    assert found.error.max() < 1e-13


def test_a_norm_stays_within_its_reach_but_for_rounding():
    norm = ScaleCentred("z", "scale", "write", reach=4.0)
    slots = norm_state(5.0, 3.0)
    slots["scale"] = Enclosure.around(
        Interval(torch.zeros(3, 1).double(), torch.full((3, 1), 1e3).double()),
        torch.full((3, 1), 1e3).double(),
    )
    exactly = after(norm, slots, NORM_PROGRAM, EXACTLY)["write"]
    assert exactly.actual.high.max() == 4.0
    assert exactly.exact.low.min() == -4.0
    assert exactly.error.max() <= 8.0 * (1 + 1e-8)
    rounded = after(norm, slots, NORM_PROGRAM, FLOAT32)["write"]
    assert 4.001 < rounded.actual.high.max() < 5.0


def test_rounding_may_leave_the_reach_by_as_much_as_is_allowed():
    """All numbers are nearly alike, so that a norm in float32 consists of rounding."""
    z = 1000 + 1e-4 * torch.randn(200, 4, generator=GENERATOR, dtype=torch.float64)
    scale = torch.full((200, 1), 1e6, dtype=torch.float64)
    single = z.float()
    actual = (single - single.mean(-1, keepdim=True)) * scale.float()
    assert actual.abs().max() > 4.0
    slots = {
        "z": Enclosure.around(Interval.point(z), torch.full_like(z, 1e-4)),
        "scale": Enclosure.common(Interval.point(scale)),
    }
    norm = ScaleCentred("z", "scale", "write", reach=4.0)
    found = after(norm, slots, NORM_PROGRAM, FLOAT32)["write"]
    assert (actual.abs() <= found.actual.high).all()


# Sums of units; that bounds hold slot by slot is tested with all constructions.


FUSED_EXACTLY = Arithmetic(0.0, 5, sums_terms=False)
UNITS = Layout(
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
    return StackProgram("by hand", UNITS, functions, (), 0, ())


def token(*values: float) -> Enclosure:
    """One token."""
    return Enclosure.common(Interval.point(torch.tensor([values], dtype=torch.float64)))


EMPTY = token(0.0, 0.0)
COARSE = replace(fit_ridge_sum(TANH, 4.0, "relu", 24), error=0.125)


def test_units_err_as_proved_and_add_to_what_was_left():
    state = {"a": token(0.5, -3.0), "b": Enclosure.around(EMPTY.exact, EMPTY.error + 0.25)}
    activate = ActivateUnits(OF_A, "tanh", 1.0, "b")
    value = after(activate, state, program_with(COARSE), EXACTLY)["b"]
    torch.testing.assert_close(value.exact.low, torch.tanh(state["a"].exact.low))
    torch.testing.assert_close(value.error, torch.full_like(value.error, 0.375))


def test_a_reach_scales_argument_and_error():
    line = replace(fit_ridge_sum(IDENTITY_FUNCTION, 1.0, "sigmoid", 16), error=0.01)
    activate = ActivateUnits(OF_A, "identity", 8.0, "b")
    state = {"a": token(0.5, -8.5), "b": EMPTY}
    value = after(activate, state, program_with(line), EXACTLY)["b"]
    torch.testing.assert_close(value.error[0], torch.tensor([0.08, inf]).double())


def test_fine_fits_have_no_error_in_the_fused_backend_and_coarse_ones_have():
    fine = fit_ridge_sum(TANH, 4.0, "sigmoid", 24)
    state = {"a": token(0.5, -3.0), "b": EMPTY}
    for fit, dense, fused in ((COARSE, 0.125, 0.125), (fine, fine.error, 0.0)):
        activate = ActivateUnits(OF_A, "tanh", 1.0, "b")
        for arithmetic, expected in ((EXACTLY, dense), (FUSED_EXACTLY, fused)):
            error = after(activate, state, program_with(fit), arithmetic)["b"].error
            # A tanh of the oracle's own is off by two units of roundoff.
            assert error.tolist() == [[pytest.approx(expected, rel=1e-8, abs=3e-16)] * 2]


def test_a_jacobian_errs_near_a_kink_by_its_own_size_times_the_jump():
    fit = fit_slope_product(RELU, (1.0, 4.0), "relu", 24)
    push = PushJacobian("W", "rows", OF_A, "relu", fit.name, 8.0, "pushed")
    state = {"rows": token(3.0, 5.0), "pushed": token(0.0)}
    state["W"] = Enclosure.common(Interval.point(torch.tensor([[2.0, 7.0]]).double()))
    expected = {(1.0, -1.0): 0.0, (1e-5, -1.0): 6.0, (1.0, -1e-5): 35.0}
    for z, error in expected.items():
        now = state | {"a": token(*z)}
        pushed = after(push, now, program_with(fit), EXACTLY)["pushed"]
        assert pushed.exact.low.item() == pytest.approx(6.0, rel=1e-13)
        assert pushed.error.item() == pytest.approx(error)
        assert pushed.actual.low.item() >= -2e-8, "a product stays between 0 and s"


def test_products_err_by_both_reaches():
    fit = replace(fit_product((1.0, 1.0), "sigmoid", 24), error=0.001)
    state = {"a": token(1.5, -1.0), "b": token(0.25, 0.5)}
    state["V"] = Enclosure.common(Interval.point(torch.zeros(2, 2).double()))
    add = AddOuterProduct("a", "b", (2.0, 3.0), "a b", -0.5, "V")
    added = after(add, state, program_with(fit), EXACTLY)["V"]
    torch.testing.assert_close(added.error, torch.full((2, 2), 0.5 * 6 * 0.001).double())


def test_gated_products_err_only_where_units_are_no_relus():
    state = {"a": token(1.5, -1.0), "b": token(0.25, 0.5)}
    state["V"] = Enclosure.common(Interval.point(torch.zeros(2, 2).double()))
    for sharpness, error in ((1.0, 0.0), (64.0, 2 / 64 * 3.0 * 0.5)):
        add = AddGatedProduct("a", "b", 3.0, 8.0, sharpness, -0.5, "V")
        added = after(add, state, program_with(), EXACTLY)["V"].error
        torch.testing.assert_close(added, torch.full((2, 2), error).double())


def test_a_factor_beyond_the_gate_would_let_queries_in():
    state = {"a": token(1.5, -8.5), "b": token(0.25, 0.5)}
    state["V"] = Enclosure.common(Interval.point(torch.zeros(2, 2).double()))
    add = AddGatedProduct("a", "b", 3.0, 8.0, 1.0, -0.5, "V")
    assert (after(add, state, program_with(), EXACTLY)["V"].error == inf).all()
    assert (after(add, state, program_with(), FUSED_EXACTLY)["V"].error == 0.0).all()


def test_sums_over_many_inputs_and_many_rows_are_rounded_more():
    """A score has a term for each input, and what is added to a weight one for each row."""
    fit = fit_slope_product(RELU, (1.0, 4.0), "relu", 24)  # with weights of 2^13
    rounded = Arithmetic(2.0**-53, 5, sums_terms=True)
    errors = []
    for n_inputs in (1, 1000):
        x = torch.ones(1, n_inputs, dtype=torch.float64)
        state = {"s": token(1.0), "T": token(1.0), "J": token(0.0)}
        state |= {"x": Enclosure.common(Interval.point(x))}
        state |= {"U": Enclosure.common(Interval.point(x / n_inputs))}
        slots = (Slot("x", (n_inputs,), Role.INPUT), Slot("U", (1, n_inputs), Role.PARAMETER))
        program = replace(program_with(fit), layout=Layout(slots))
        argument = Argument(Combination.of("x"), "U")
        start = StartJacobian("T", "s", argument, "relu", fit.name, 1.0, "J")
        errors.append(float(after(start, state, program, rounded)["J"].error))
    assert 20 * 2.0**-40 < errors[0] < 200 * 2.0**-40
    assert errors[1] > 20 * errors[0]
    both = {"a": token(1.0, 1.0), "b": token(1.0, 1.0), "V": token(0.0, 0.0), "W": token(0.0)}
    both["rows"] = both["b"]
    product = AddGatedProduct("a", "b", 3.0, 8.0, 1.0, 1.0, "V")
    rows = AddGatedJacobian("a", "rows", 3.0, 8.0, 1.0, 1.0, "W")
    one = float(after(product, both, program_with(), rounded)["V"].error.max())
    assert float(after(rows, both, program_with(), rounded)["W"].error) > 2.5 * one


def test_a_clip_errs_more_near_the_box_and_by_anything_beyond_its_reach():
    fit = fit_ridge_sum(IDENTITY_FUNCTION, 4.0, "sigmoid", 16)
    clip = replace(fit, name="clip", error=0.01, bands=(Band(0.5, 1.5, 0.25),))
    state = {"a": token(0.25, -3.0), "b": token(0.75, 5.0)}
    clipped = after(ClipByUnits(("a", "b"), 1.0, "clip"), state, program_with(clip), EXACTLY)
    assert clipped["a"].exact.low.tolist() == [[0.25, -1.0]]
    assert clipped["a"].error.tolist() == [[pytest.approx(0.01, rel=1e-8)] * 2]
    assert clipped["b"].error.tolist() == [[pytest.approx(0.25, rel=1e-8), inf]]


def left_over(program: StackProgram, arithmetic: Arithmetic) -> dict[str, float]:
    """The error with which a step finds slots a and b."""
    weights = sum(slot.width for slot in UNITS.having(Role.PARAMETER))
    known = Enclosure.common(Interval.point(torch.zeros(weights, dtype=torch.float64)))
    slots = Enclosures(program, arithmetic).start({"x": EMPTY.exact}, known, torch.zeros(weights))
    return {name: float(slots[name].value.error.max()) for name in ("a", "b")}


def test_what_a_wipe_misses_is_what_the_next_step_finds():
    line = replace(fit_ridge_sum(IDENTITY_FUNCTION, 1.0, "sigmoid", 16), error=0.01)
    wipe = WipeByUnits(("a",), "identity", 8.0)
    program = replace(program_with(line), block=(Layer("wipe", (wipe,)),))
    wiped = after(wipe, {"a": token(0.25, 9.0)}, program, EXACTLY)["a"]
    assert wiped.exact.low.tolist() == [[0.0, 0.0]]
    assert wiped.error.tolist() == [[pytest.approx(0.08, rel=1e-8), inf]]
    assert left_over(program, EXACTLY) == {"a": pytest.approx(0.08), "b": 0.0}
    assert left_over(program, FUSED_EXACTLY)["a"] == 0.0
    short = replace(program, functions=(replace(line, half_widths=(0.5,)),))
    assert left_over(short, EXACTLY)["a"] == inf, "numbers of up to 1 are wiped by it"


def test_the_error_of_a_sum_of_units_is_that_of_the_bands_it_touches():
    fit = replace(COARSE, bands=(Band(-1.0, 1.0, 0.5), Band(0.0, 0.5, 2.0)))
    low = torch.tensor([-3.0, -2.0, 0.6, 0.1, 3.0]).double()
    errors = ridge_error(fit, Interval(low, low + 1.0))
    assert errors.tolist() == [0.125, 0.5, 0.5, 2.0, 0.125]
    assert ridge_error(fit, Interval(low, low + 1.1)).tolist()[-1] == inf


def test_a_kinked_slope_is_a_ramp_and_a_clip_is_none():
    assert fit_slope_product(RELU, (1.0, 4.0), "relu", 24).is_ramp
    assert not fit_slope_product(TANH, (1.0, 4.0), "relu", 24).is_ramp
    assert not replace(COARSE, bands=(Band(-1.0, 1.0, 0.5),)).is_ramp


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


# Tables of whole steps.


def test_keys_of_narrow_ramps_are_rounded_more_than_those_of_wide_ones():
    def error(width: float, dtype: torch.dtype = torch.float64) -> float:
        settings = {"construction": "universal", "kink_width": width}
        program = icgd.compile(problem(), n_steps=1, **settings).program
        arithmetic = Arithmetic.of(dtype, 2, "dense")
        step = program.step_table
        return key_error(step.key, program.relu_sum(step.table), program, arithmetic)

    assert error(2.0**-20) > 50 * error(2.0**-13) > 0
    assert error(2.0**-13, torch.float32) > 7 / 32 > error(2.0**-13)


# What the first layer finds.


STREAM_CASE = make_case(
    icgd.MLP((2, 3, 1), "tanh"), "squared", box=0.5, domain=icgd.Domain(1.0, 1.0)
)


def streams_of(construction: str, backend: str) -> Enclosures:
    program = icgd.compile(STREAM_CASE.problem, construction, n_steps=1).program
    return Enclosures(program, Arithmetic.of(torch.float64, 7, backend))


def test_only_registers_of_the_dense_transformer_hold_copies_of_the_weights():
    found = {
        (construction, backend): streams_of(construction, backend).have_copies
        for construction in ("relu-stack", "softmax-stack")
        for backend in ("fused", "dense")
    }
    assert [place for place, has in found.items() if has] == [("softmax-stack", "dense")]


def test_weights_are_split_into_the_matrices_of_the_layout():
    task, layout = STREAM_CASE.task(), streams_of("relu-stack", "fused").program.layout
    parts = split(layout, Enclosure.common(Interval.point(task.initial)))
    matrices = STREAM_CASE.problem.network.matrices(task.initial)
    assert [part.exact.low.tolist() for part in parts.values()] == [m.tolist() for m in matrices]
    assert all(part.is_common for part in parts.values())


def test_a_block_leaves_the_exact_step_within_its_error():
    task = STREAM_CASE.task()
    for backend in ("fused", "dense"):
        streams = streams_of("softmax-stack", backend)
        weights = Enclosure.common(Interval.point(task.initial))
        data = {"x": Interval.point(task.x), "y": Interval.point(task.y)}
        slots = streams.start(data, weights, torch.zeros_like(task.initial))
        found = streams.after(streams.program.block, slots)
        real = STREAM_CASE.problem.network.matrices(
            STREAM_CASE.problem.oracle.step(task, task.initial)
        )
        for name, matrix in zip(split(streams.program.layout, weights), real, strict=True):
            assert bool((found[name].value.exact.low <= matrix).all())
            assert bool((matrix <= found[name].value.exact.high).all())
            assert float(found[name].value.error.max()) < 1e-9
            assert (found[name].drift is not None) == streams.have_copies


@pytest.mark.parametrize("n_rows", [1, 100])
def test_jacobians_have_room_for_products_from_the_left(n_rows):
    """There weights of many rows and one column are in sums of as many terms as they have rows."""
    domain = Enclosures(program_with(), Arithmetic(2.0**-53, 1, sums_terms=False))
    weights, matrix = (
        Bounded.point(torch.ones(*shape, dtype=torch.float64)) for shape in ((n_rows, 1), (1, 1, 1))
    )
    for value in (domain.matmul_rows(weights, matrix), domain.scale_rows(weights, matrix)):
        assert value.value.error.min() >= 2 * (n_rows + 8) * 2.0**-53
        spread = value.value.exact.high - value.value.exact.low
        assert spread.min() >= 2 * n_rows * 2.0**-53
        assert spread.max() <= 8 * (n_rows + 8) * 2.0**-53
