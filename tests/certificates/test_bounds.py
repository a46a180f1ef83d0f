from dataclasses import replace
from decimal import Decimal, localcontext
from math import inf

import pytest
import torch

from icgd.approximation.lattice import identity, line_lattice
from icgd.backends.prompt import split_parameters
from icgd.backends.registry import BACKENDS
from icgd.backends.run import RunOptions
from icgd.certificates.bounds import Moment
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import ROOM, Interval
from icgd.certificates.rules import propagate, rule
from icgd.constructions.registry import construction_named
from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.program.instructions import (
    PROBES,
    AddGradient,
    AddProduct,
    Argument,
    Combination,
    Project,
)
from icgd.program.layout import Role
from icgd.program.registers import SHARE
from tests.cases import FEW, NARROW, Case, Juggle, build, every_construction_on, make_case

PROGRAM = build(construction_named("relu-stack"), FEW[0])
SOFTMAX_STACK = construction_named("softmax-stack")
FLOAT64 = Arithmetic.of(torch.float64, n_tokens=8, backend="dense")
FUSED = Arithmetic.of(torch.float64, n_tokens=8, backend="fused")
EXACTLY = Arithmetic(roundoff=0.0, n_tokens=8, sums_terms=True)
"""The dense transformer without rounding: what remains is the construction's own error."""


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
    how = Arithmetic.of(task.x.dtype, task.n_tokens, backend)
    state = propagate(Moment(program, state, how), program.block[:-1])
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
    run = BACKENDS[backend].run(program, task, RunOptions(tuple(from_names)))
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
        rule(project, Moment(program, state, how))["b"] for how in (EXACTLY, FLOAT64, FUSED)
    )
    assert fused.error.tolist() == [[0.0, 0.0]]
    assert exactly.error.tolist() == [[pytest.approx(8 * line.error, rel=1e-8)] * 2]
    assert (dense.error > exactly.error).all()
    assert (dense.error <= exactly.error + 2e-13).all()
    assert torch.equal(dense.exact.low, state["a"].exact.low)


def test_a_line_beyond_its_reach_is_only_known_to_stay_between_its_values():
    program = replace(PRODUCTS, functions=(identity(line_lattice(1.0, 16)),))
    project = Project(Argument(Combination.of("a")), reach=2.0, write="b")
    written = rule(project, Moment(program, {"a": point(numbers([2.0, 2.1]))}, FLOAT64))["b"]
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
        written = rule(product, Moment(PRODUCTS, state, how))["b"]
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
    gradient = AddGradient(Combination.of("l"), "r", scale=-2.0, probe=probe, write="w")
    columns = {"l": numbers(left).T, "r": numbers(right).T}
    state = {name: point(column) for name, column in columns.items()} | {"w": point(numbers([0.0]))}
    bound = rule(gradient, Moment(PRODUCTS, state, EXACTLY))["w"].error.item()
    exact = sum(Decimal(a) * Decimal(b) for a, b in zip(left, right, strict=True)) / len(left)
    missed = 2 * abs(float(probed_mean(probe, left, right) - exact))
    assert missed <= bound + 1e-16
    assert bound <= max(40 * missed, 1e-9)


def test_an_instruction_without_a_rule_is_named():
    with pytest.raises(ProgramError, match=r"Juggle: has no rule in certificates/bounds\.py"):
        rule(Juggle(), Moment(PROGRAM, {}, FLOAT64))
