"""Each instruction as heads or hidden units computes its formula on a stream of any content."""

import pytest
import torch

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.errors import ProgramError
from icgd.layers.mlp import MLPLayer
from icgd.layers.product import ProductLayer
from icgd.layers.relu_attention import ReLUAttention
from icgd.problems.catalog import function_named
from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    Instruction,
    MapSlots,
    MultiplySlots,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer, StackProgram
from icgd.weights.lowering import Heads, fill, lower_layer, lower_program
from tests import cases
from tests.cases import Juggle, build
from tests.contracts.backend import RELU_STACK

N_EXAMPLES, N_TOKENS = 3, 5

# Slots between those in use, so that a wrong offset shows.
LAYOUT = Layout(
    (
        Slot("row", (1, 2), Role.PARAMETER),
        Slot("x", (3,), Role.INPUT),
        Slot("matrix", (2, 3), Role.PARAMETER),
        Slot("between", (1,), Role.SCRATCH),
        Slot("left", (2,), Role.SCRATCH),
        Slot("right", (2,), Role.SCRATCH),
        Slot("write", (2,), Role.SCRATCH),
        Slot("wide", (3,), Role.SCRATCH),
        Slot("one", (1,), Role.CONSTANT),
        Slot("is_example", (1,), Role.CONSTANT),
        Slot("is_query", (1,), Role.CONSTANT),
        Slot("tokens_per_example", (1,), Role.CONSTANT),
    )
)
NAMES = ("relu", "leaky_relu", "identity", "clip", "tanh", "sigmoid'", "relu'")
FUNCTIONS = tuple(fit_relu_sum(function_named(name), -50.0, 50.0, 9, 0.25) for name in NAMES)
PROGRAM = StackProgram("by hand", LAYOUT, FUNCTIONS, (), 0, ())


def prompt() -> torch.Tensor:
    """Random but for the constants, and for the weights, which are equal in all tokens."""
    stream = torch.randn(
        N_TOKENS, LAYOUT.width, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    stream[:, LAYOUT.range_of("matrix")] = stream[:1, LAYOUT.range_of("matrix")].clone()
    stream[:, LAYOUT.range_of("write")] = 0.0
    stream[:, LAYOUT.range_of("wide")] = 0.0
    stream[:, LAYOUT.range_of("one")] = 1.0
    stream[:, LAYOUT.range_of("is_example")] = 0.0
    stream[:N_EXAMPLES, LAYOUT.range_of("is_example")] = 1.0
    stream[:, LAYOUT.range_of("is_query")] = 1.0 - stream[:, LAYOUT.range_of("is_example")]
    stream[:, LAYOUT.range_of("tokens_per_example")] = N_TOKENS / N_EXAMPLES
    return stream


class Slots:
    """A stream's slots by name."""

    def __init__(self, stream: torch.Tensor) -> None:
        self.stream = stream

    def __getitem__(self, name: str) -> torch.Tensor:
        values = self.stream[:, LAYOUT.range_of(name)]
        return values.unflatten(-1, LAYOUT.slot(name).shape)

    def __setitem__(self, name: str, values: torch.Tensor) -> None:
        self.stream[:, LAYOUT.range_of(name)] = values.flatten(1)


def assert_changes_only(
    *instructions: Instruction, before: torch.Tensor, kind: type, **expected: torch.Tensor
) -> None:
    """The layer of `instructions` sets the slots `expected` and leaves every other one."""
    layer = lower_layer(Layer("here", instructions), PROGRAM, torch.float64)
    assert type(layer) is kind
    after, truth = layer(before), before.clone()
    for name, values in expected.items():
        Slots(truth)[name] = values
    torch.testing.assert_close(after, truth, rtol=1e-12, atol=1e-12)


def value(name: str, z: torch.Tensor) -> torch.Tensor:
    """The program's stand-in for the function, point by point."""
    function = PROGRAM.relu_sum(name)
    points = [function(point) for point in z.flatten().tolist()]
    return torch.tensor(points, dtype=torch.float64).view(z.shape)


@pytest.mark.parametrize("name", NAMES)
def test_units_apply_the_function_to_the_matrix_times_the_inputs(name):
    before = prompt()
    slots = Slots(before)
    units = value(name, slots["x"] @ slots["matrix"][0].T)
    apply = ApplyUnits("matrix", "x", name, write="write")
    assert_changes_only(apply, before=before, kind=ReLUAttention, write=units)


def test_an_outer_product_is_averaged_over_the_examples():
    before = prompt()
    slots = Slots(before)
    left = slots["left"].clone()
    left[N_EXAMPLES:] = 0.0
    slots["left"] = left
    mean = torch.einsum("ti,tj->ij", left, slots["x"]) / N_EXAMPLES
    accumulate = AccumulateOuterProduct("left", "x", -0.75, write="matrix")
    expected = slots["matrix"] - 0.75 * mean
    assert_changes_only(accumulate, before=before, kind=ReLUAttention, matrix=expected)


def test_slots_are_multiplied_coordinate_by_coordinate():
    before = prompt()
    product = Slots(before)["left"] * Slots(before)["right"]
    multiply = MultiplySlots("left", "right", write="write")
    assert_changes_only(multiply, before=before, kind=ProductLayer, write=product)


def test_pulling_back_multiplies_by_the_transpose_and_by_the_slope():
    before = prompt()
    slots = Slots(before)
    pulled = slots["x"] * (slots["left"] @ slots["matrix"][0])
    pull = PullBack("matrix", "left", "x", write="wide")
    assert_changes_only(pull, before=before, kind=ProductLayer, wide=pulled)


@pytest.mark.parametrize(
    ("only", "never", "tokens"),
    [
        ("is_example", "is_query", slice(0, N_EXAMPLES)),
        ("is_query", "is_example", slice(N_EXAMPLES, N_TOKENS)),
    ],
)
def test_a_map_sums_functions_where_its_flag_is_1_and_adds_exactly_nothing_elsewhere(
    only, never, tokens
):
    before = prompt()
    slots = Slots(before)
    summands = (
        Summand(("left", "right"), (2.0, -0.5), "tanh"),
        Summand(("right",), (1.0,), "clip"),
    )
    total = torch.zeros_like(slots["write"])
    total[tokens] = (
        value("tanh", 2.0 * slots["left"] - 0.5 * slots["right"]) + value("clip", slots["right"])
    )[tokens]
    map_slots = MapSlots(summands, only, never, gate=256.0, write="write")
    assert_changes_only(map_slots, before=before, kind=MLPLayer, write=total)
    after = lower_layer(Layer("here", (map_slots,)), PROGRAM, torch.float64)(before)
    elsewhere = torch.ones(N_TOKENS, dtype=torch.bool)
    elsewhere[tokens] = False
    assert torch.equal(after[elsewhere], before[elsewhere])


def test_a_map_may_read_one_slot_twice():
    before = prompt()
    twice = MapSlots(
        (Summand(("left", "left"), (1.0, 2.0), "identity"),),
        "is_example",
        "is_query",
        256.0,
        "write",
    )
    expected = 3.0 * Slots(before)["left"] * Slots(before)["is_example"]
    assert_changes_only(twice, before=before, kind=MLPLayer, write=expected)


def test_clipping_cuts_off_at_the_bound_on_both_sides():
    before = prompt()
    slots = Slots(before)
    assert slots["matrix"].max() > 0.5
    assert slots["matrix"].min() < -0.5
    clipped = {name: slots[name].clamp(-0.5, 0.5) for name in ("matrix", "left")}
    clip = ClipSlots(("matrix", "left"), 0.5)
    assert_changes_only(clip, before=before, kind=MLPLayer, **clipped)


def test_wiping_leaves_exactly_zero():
    before = prompt()
    wipe = WipeSlots(("row", "left", "x"))
    zero = {name: torch.zeros_like(Slots(before)[name]) for name in wipe.slots}
    assert_changes_only(wipe, before=before, kind=MLPLayer, **zero)
    after = lower_layer(Layer("here", (wipe,)), PROGRAM, torch.float64)(before)
    assert not any(Slots(after)[name].any() for name in wipe.slots)


def test_instructions_of_one_layer_read_the_stream_as_it_was_before():
    before = prompt()
    slots = Slots(before)
    both = (
        MultiplySlots("left", "right", write="write"),
        PullBack("matrix", "left", "x", write="wide"),
    )
    assert_changes_only(
        *both,
        before=before,
        kind=ProductLayer,
        write=slots["left"] * slots["right"],
        wide=slots["x"] * (slots["left"] @ slots["matrix"][0]),
    )


def test_heads_of_different_width_share_a_layer():
    before = prompt()
    slots = Slots(before)
    both = (
        ApplyUnits("matrix", "x", "tanh", write="write"),
        AccumulateOuterProduct("is_example", "right", 1.0, write="row"),
    )
    assert_changes_only(
        *both,
        before=before,
        kind=ReLUAttention,
        write=value("tanh", slots["x"] @ slots["matrix"][0].T),
        row=slots["row"] + slots["right"][:N_EXAMPLES].mean(0),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_program_becomes_a_transformer_of_its_layers(dtype):
    program = build(RELU_STACK, cases.FEW[2], n_steps=2)
    transformer = lower_program(program, dtype)
    kinds = {"attention": ReLUAttention, "mlp": MLPLayer, "product": ProductLayer}
    expected = [kinds[layer.kind.value] for layer in program.unrolled()]
    assert [type(layer) for layer in transformer.unrolled()] == expected
    assert len(transformer.block) == len(program.block)
    assert {weight.dtype for weight in transformer.parameters()} == {dtype}


def test_an_instruction_without_a_rule_is_named():
    nothing = Heads(*[torch.zeros(0, 1, 1)] * 4)
    with pytest.raises(ProgramError, match=r"^Juggle: has no rule in weights/lowering\.py$"):
        fill(Juggle(), PROGRAM, nothing)
