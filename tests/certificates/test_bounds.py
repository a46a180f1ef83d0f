import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.backends.prompt import split_parameters
from icgd.backends.registry import BACKENDS
from icgd.certificates.bounds import Arithmetic, Enclosure, fit_error, propagate, rule
from icgd.certificates.intervals import Interval
from icgd.constructions.registry import construction_named
from icgd.errors import ProgramError
from icgd.problems.catalog import FUNCTIONS, function_named
from icgd.program.layout import Role
from tests.cases import FEW, Case, Juggle, build, over

PROGRAM = build(construction_named("relu-stack"), FEW[0])
FLOAT64 = Arithmetic.of(torch.float64, n_tokens=8, backend="dense")


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


@over(FEW)
@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_every_slot_lies_in_its_enclosure_after_a_block(case: Case, backend: str):
    """The rules hold slot by slot, not only for the weights at the end."""
    program = build(construction_named("relu-stack"), case, n_steps=1, pieces=16)
    task = case.task()
    from_backend = _slots_before_the_wipe(program, task, backend)
    state = _numbers(program, task)
    how = Arithmetic.of(torch.float64, task.n_tokens, backend)
    state = propagate(program, program.block[:-1], state, how)
    for slot in program.layout.having(Role.SCRATCH):
        actual = from_backend[slot.name][..., : task.n_examples, :]
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
    return {name: Enclosure.common(Interval.point(value)) for name, value in values.items()}


def test_rounding_grows_with_the_number_of_terms_and_the_unit_roundoff():
    sizes = torch.tensor([1.0]).double()
    assert FLOAT64.sum_of(10, sizes) < FLOAT64.sum_of(100, sizes)
    float32 = Arithmetic.of(torch.float32, n_tokens=8, backend="dense")
    ratio = float(float32.sum_of(10, sizes) / FLOAT64.sum_of(10, sizes))
    assert ratio == pytest.approx(2**29, rel=1e-4)


def test_an_instruction_without_a_rule_is_named():
    with pytest.raises(ProgramError, match=r"Juggle: has no rule in certificates/bounds\.py"):
        rule(Juggle(), PROGRAM, {}, FLOAT64)
