"""Each instruction as heads or hidden units computes its formula on a stream of any content."""

import pytest
import torch

from icgd.approximation.lattice import head
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.layers import ActivationAttention, MLPLayer, ProductLayer, SoftmaxAttention
from icgd.problems.functions import function_named
from icgd.program.instructions import (
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    ClipSlots,
    Combination,
    Instruction,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_layer
from tests.weights import with_registers
from tests.weights.with_registers import LAYOUT as REGISTER_LAYOUT
from tests.weights.with_registers import examples

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
    assert_changes_only(apply, before=before, kind=ActivationAttention, write=units)


def test_an_outer_product_is_averaged_over_the_examples():
    before = prompt()
    slots = Slots(before)
    left = slots["left"].clone()
    left[N_EXAMPLES:] = 0.0
    slots["left"] = left
    mean = torch.einsum("ti,tj->ij", left, slots["x"]) / N_EXAMPLES
    accumulate = AccumulateOuterProduct("left", "x", -0.75, write="matrix")
    expected = slots["matrix"] - 0.75 * mean
    assert_changes_only(accumulate, before=before, kind=ActivationAttention, matrix=expected)


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
        Summand(Combination(("left", "right"), (2.0, -0.5)), "tanh"),
        Summand(Combination.of("right"), "clip"),
    )
    total = torch.zeros_like(slots["write"])
    total[tokens] = (
        value("tanh", 2.0 * slots["left"] - 0.5 * slots["right"]) + value("clip", slots["right"])
    )[tokens]
    map_slots = MapSlots(summands, only, (never,), gate=256.0, write="write")
    assert_changes_only(map_slots, before=before, kind=MLPLayer, write=total)
    after = lower_layer(Layer("here", (map_slots,)), PROGRAM, torch.float64)(before)
    elsewhere = torch.ones(N_TOKENS, dtype=torch.bool)
    elsewhere[tokens] = False
    assert torch.equal(after[elsewhere], before[elsewhere])


def test_a_map_may_read_one_slot_twice():
    before = prompt()
    twice = MapSlots(
        (Summand(Combination(("left", "left"), (1.0, 2.0)), "identity"),),
        "is_example",
        ("is_query",),
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
    clip = ClipSlots(("matrix", "left"), 0.5, "one")
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
        kind=ActivationAttention,
        write=value("tanh", slots["x"] @ slots["matrix"][0].T),
        row=slots["row"] + slots["right"][:N_EXAMPLES].mean(0),
    )


OF_X = Argument(Combination.of("x"), "matrix")
OF_LEFT = Argument(Combination.of("left"))
PULLED = Argument(Combination.of("left"), "matrix", transposed=True)
MIXED = Combination(("left", "right"), (1.5, -0.5))
ARGUMENTS = {
    "weights": (OF_X, "write", "left"),
    "transposed": (PULLED, "wide", "x"),
    "a slot": (OF_LEFT, "write", "right"),
    "a combination": (Argument(MIXED), "write", "right"),
    "weights and a combination": (Argument(MIXED, "matrix", transposed=True), "wide", "x"),
}
"""An argument, a slot that is as wide, and a factor that is."""

every_argument = pytest.mark.parametrize(
    ("argument", "write", "factor"), ARGUMENTS.values(), ids=ARGUMENTS
)


def combined(combination: Combination, stream: torch.Tensor) -> torch.Tensor:
    slots = with_registers.Slots(stream)
    return sum(factor * slots[name] for name, factor in combination.terms())


def by_hand(argument: Argument, stream: torch.Tensor) -> torch.Tensor:
    """The argument at every token, with the weights that the memory holds."""
    inputs = combined(argument.inputs, stream)
    if argument.weights is None:
        return inputs
    memory = with_registers.Slots(stream)[argument.weights][0]
    matrix = memory.unflatten(-1, REGISTER_LAYOUT.slot(argument.weights).shape)
    return inputs @ (matrix if argument.transposed else matrix.T)


def run_layer(
    *instructions: Instruction, before: torch.Tensor, half: int = 15
) -> with_registers.Slots:
    """The slots after a layer of attention, of which only written ones have changed."""
    layer = Layer("here", instructions)
    attention = lower_layer(layer, with_registers.program(half), before.dtype)
    assert type(attention) is SoftmaxAttention
    after = attention(before)
    slots, old = with_registers.Slots(after), with_registers.Slots(before)
    written = {name for instruction in instructions for name in instruction.writes()}
    for name in set(REGISTER_LAYOUT.names) - written:
        assert torch.equal(slots[name], old[name]), name
    return slots


@every_argument
def test_a_look_up_returns_its_functions_of_the_argument(argument, write, factor):
    before = with_registers.prompt()
    writes = (write, "other") if write == "write" else (write,)
    names = ("tanh", "normal_distribution")[: len(writes)]
    after = run_layer(LookUp(argument, names, writes), before=before)
    z = by_hand(argument, before)
    for name, slot in zip(names, writes, strict=True):
        look_up = with_registers.program().look_up(name)
        torch.testing.assert_close(after[slot][1:], head(look_up, z)[1:], rtol=0, atol=1e-12)
        gap = (after[slot] - function_named(name)(z))[1:].abs().max()
        assert gap <= look_up.error < 0.01


@every_argument
def test_a_projection_returns_the_argument(argument, write, factor):
    before = with_registers.prompt()
    z = by_hand(argument, before)
    after = run_layer(Project(argument, float(z.abs().max()), write), before=before)
    torch.testing.assert_close(after[write][1:], z[1:], rtol=0, atol=1e-13)


@every_argument
def test_a_product_is_added_to_what_the_slot_holds(argument, write, factor):
    before = with_registers.prompt()
    slots = with_registers.Slots(before)
    slots[write] = 0.25 * slots[factor].roll(1, -1)
    z, start = by_hand(argument, before), slots[write].clone()
    reaches = float(z.abs().max()), float(slots[factor].abs().max())
    after = run_layer(AddProduct(argument, reaches[0], factor, reaches[1], write), before=before)
    expected = start + slots[factor] * z
    torch.testing.assert_close(after[write][1:], expected[1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("left", [Combination.of("left"), MIXED], ids=["a slot", "a combination"])
@pytest.mark.parametrize(("write", "right"), [("matrix", "x"), ("column", "between")])
def test_a_gradient_is_the_mean_over_the_examples_times_the_scale_of_each_register(
    left, write, right
):
    before = with_registers.prompt()
    slots = with_registers.Slots(before)
    a, b = combined(left, before)[examples()], slots[right][examples()]
    mean = torch.einsum("ti,tj->ij", a, b).flatten() / len(a)
    probe = 2.0**-5 / float(a.abs().max())
    after = run_layer(AddGradient(left, right, -0.75, probe, write), before=before)
    expected = slots[write] - 0.75 * slots["scale"] * mean
    assert mean.abs().max() > 0.1
    torch.testing.assert_close(after[write], expected, rtol=0, atol=5e-12)


def test_a_large_probe_shows_in_the_gradient_by_its_sixth_power():
    """sum_k c_k k^6 / 7!, where k are the multiples of the probe and c_k their shares."""
    before = with_registers.prompt()
    slots = with_registers.Slots(before)
    slots["left"][1:] = 1.0
    mean = slots["x"][examples()].mean(0)
    for probe in (0.25, 0.5):
        gradient = AddGradient(Combination.of("left"), "x", 1.0, probe, "matrix")
        after = run_layer(gradient, before=before)
        change = (after["matrix"] - slots["matrix"])[0].view(2, 5)
        excess = change / mean - 1
        torch.testing.assert_close(
            excess,
            torch.full_like(excess, (1.5 - 0.6 * 2**6 + 0.1 * 3**6) / 5040 * probe**6),
            rtol=0.1,
            atol=0,
        )


WHOLE_LAYER = (
    LookUp(OF_X, ("tanh", "tanh'"), ("write", "other")),
    AddProduct(PULLED, 2.0, "x", 1.0, "wide"),
    AddGradient(MIXED, "x", -0.75, 2.0**-6, "matrix"),
    AddGradient(Combination.of("left"), "between", 0.5, 2.0**-6, "column"),
)
"""Heads of different widths; all read the stream as it was before."""


def test_instructions_with_registers_share_a_layer():
    before = with_registers.prompt()
    together = run_layer(*WHOLE_LAYER, before=before)
    for instruction in WHOLE_LAYER:
        alone = run_layer(instruction, before=before)
        for name in instruction.writes():
            torch.testing.assert_close(together[name], alone[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("half", [15, 119])
def test_the_memory_stays_exactly_0(half):
    after = run_layer(*WHOLE_LAYER, before=with_registers.prompt(half), half=half)
    project = run_layer(Project(OF_X, 5.0, "write"), before=with_registers.prompt(half), half=half)
    written = [after["write"], after["other"], after["wide"], project["write"]]
    assert not any(slot[0].any() for slot in written)
    assert all(slot[1:].all() for slot in written)


def test_examples_and_queries_never_write_to_the_weights_and_nor_does_the_register_of_scale_0():
    before = with_registers.prompt()
    after = run_layer(*WHOLE_LAYER, before=before)
    for name in ("matrix", "column"):
        scaled = with_registers.Slots(before)["scale"][:, 0] != 0
        changes = after[name] != with_registers.Slots(before)[name]
        assert torch.equal(changes.all(-1), scaled)
        assert not after[name][~scaled].any()


def test_masked_tokens_have_exactly_no_influence():
    """Look-ups see only the grid's constants and weights, gradients only the examples."""
    before = with_registers.prompt()
    changed, is_example = before.clone(), before.new_zeros(len(before), dtype=torch.bool)
    is_example[examples()] = True
    slots = with_registers.Slots(changed)
    for name in ("x", "between", "left", "right"):
        slots[name][~is_example] = -slots[name][~is_example]
    after, other = (run_layer(*WHOLE_LAYER, before=stream) for stream in (before, changed))
    for name in ("write", "other", "wide"):
        assert torch.equal(after[name][is_example], other[name][is_example]), name
        assert not torch.equal(after[name], other[name]), name
    for name in ("matrix", "column"):
        assert torch.equal(after[name], other[name]), name


@pytest.mark.parametrize("half", [15, 80, 119])
def test_a_look_up_far_out_returns_the_last_value_and_never_the_memory(half):
    """The memory has the scale of the last grid token, and must be masked all the same."""
    before = with_registers.prompt(half)
    look_up = with_registers.program(half).look_up("normal_distribution")
    z = torch.tensor([0.5, 1.0, 1.5, 100.0, 1e6], dtype=torch.float64)
    z = torch.cat([z, -z]) * look_up.half * look_up.spacing
    for point in z:
        slots = with_registers.Slots(before)
        slots["left"] = torch.full_like(slots["left"], float(point))
        slots["left"][0] = 0.0
        after = run_layer(LookUp(OF_LEFT, (look_up.name,), ("write",)), before=before, half=half)
        expected = head(look_up, slots["left"])
        torch.testing.assert_close(after["write"][1:], expected[1:], rtol=0, atol=1e-12)
        assert not after["write"][0].any()


def test_float32_heads_with_registers_are_right_to_float32():
    before = with_registers.prompt(dtype=torch.float32)
    slots = with_registers.Slots(before)
    z = by_hand(OF_X, before)
    mean = torch.einsum("ti,tj->ij", slots["left"][examples()], slots["x"][examples()]) / 3
    product = AddProduct(OF_X, 5.0, "left", 1.0, "write")
    gradient = AddGradient(Combination.of("left"), "x", -0.75, 2.0**-2, "matrix")
    after = run_layer(product, gradient, before=before)
    torch.testing.assert_close(after["write"][1:], (slots["left"] * z)[1:], rtol=0, atol=1e-5)
    expected = slots["matrix"] - 0.75 * slots["scale"] * mean.flatten()
    torch.testing.assert_close(after["matrix"], expected, rtol=0, atol=1e-5)
    scale_0 = slots["scale"][:, 0] == 0
    assert not after["matrix"][scale_0].any()


def test_registers_are_clipped_to_their_share_of_the_box():
    before = with_registers.prompt()
    slots = with_registers.Slots(before)
    layer = Layer("here", (ClipSlots(("matrix", "column"), 0.125, "scale_size"),))
    after = with_registers.Slots(
        lower_layer(layer, with_registers.program(), torch.float64)(before)
    )
    for name in ("matrix", "column"):
        expected = slots[name][0].clamp(-0.125, 0.125) * slots["scale"]
        assert slots[name][0].abs().max() > 0.25
        torch.testing.assert_close(after[name], expected, rtol=0, atol=1e-15)
        assert not after[name][slots["scale"][:, 0] == 0].any()


@pytest.mark.parametrize(
    ("only", "never", "flag"),
    [
        ("one", (), "one"),
        ("is_query", ("is_example", "is_register"), "is_query"),
        ("is_register", ("is_example", "is_query"), "is_register"),
    ],
)
def test_a_map_beside_registers_writes_only_where_its_flag_is_1(only, never, flag):
    before = with_registers.prompt()
    slots = with_registers.Slots(before)
    map_slots = MapSlots((Summand(MIXED, "clip"),), only, never, gate=64.0, write="write")
    layer = Layer("here", (map_slots,))
    after = with_registers.Slots(
        lower_layer(layer, with_registers.program(), torch.float64)(before)
    )
    expected = combined(MIXED, before).clamp(-1, 1) * slots[flag]
    torch.testing.assert_close(after["write"], expected, rtol=0, atol=1e-14)
    elsewhere = slots[flag][:, 0] == 0
    assert torch.equal(after.stream[elsewhere], before[elsewhere])
