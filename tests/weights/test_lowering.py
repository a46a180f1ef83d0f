"""Weights written from wires: whole programs, and what holds exactly whatever the stream holds.

That heads compute the meaning of their instruction is tested in `tests/test_views.py`.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import icgd
from icgd.approximation.lattice import head
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.backends.prompt import encode
from icgd.layers import ActivationAttention, MLPLayer, ProductLayer, SoftmaxAttention
from icgd.problems.functions import UNIT_ACTIVATIONS, function_named
from icgd.problems.mlp import MLP
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    MarkFlat,
    PassBack,
    SelectWhere,
)
from icgd.program.instructions import (
    AddGradient,
    AddProduct,
    Argument,
    ClipSlots,
    Combination,
    Instruction,
    LookUp,
    MapSlots,
    Project,
    Summand,
    WipeSlots,
)
from icgd.program.layout import Layout, Role, Slot
from icgd.program.network_instructions import Covary, ScaleCentred, TakeTurns
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_chain, lower_layer, lower_program
from tests import cases
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import build
from tests.contracts.backend import RELU_STACK
from tests.linear_cases import PROBLEMS, compiled_of, data, task_of
from tests.linear_cases import problem_of as linear_problem
from tests.weights import with_registers
from tests.weights.test_lowering_units import program_of as program_of_units
from tests.weights.with_registers import LAYOUT as REGISTER_LAYOUT
from tests.weights.with_registers import examples


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_program_becomes_a_transformer_of_its_layers(dtype):
    program = build(RELU_STACK, cases.FEW[2], n_steps=2)
    transformer = lower_program(program, dtype)
    kinds = {"attention": ActivationAttention, "mlp": MLPLayer, "product": ProductLayer}
    expected = [kinds[layer.kind.value] for layer in program.unrolled()]
    assert [type(layer) for layer in transformer.unrolled()] == expected
    assert len(transformer.block) == len(program.block)
    assert {weight.dtype for weight in transformer.parameters()} == {dtype}


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
def test_attention_and_mlp_apply_the_activation_of_the_program(activation):
    z = torch.linspace(-3, 3, 7, dtype=torch.float64)
    for layer in lower_program(program_of_units(activation)).unrolled():
        assert torch.equal(layer.activation(z), UNIT_ACTIVATIONS[activation](z))


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
NAMES = ("identity", "clip", "tanh")
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


OF_X = Argument(Combination.of("x"), "matrix")
OF_LEFT = Argument(Combination.of("left"))
PULLED = Argument(Combination.of("left"), "matrix", transposed=True)
MIXED = Combination(("left", "right"), (1.5, -0.5))


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


CLASSES = icgd.Problem(
    icgd.MLP((2, 3)), "cross_entropy", icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
)
SCORES = [[0.5, -1.0, 2.0], [3.0, 3.0, -3.0], [0.0, 0.0, 0.0], [40.0, -40.0, 39.0]]


def test_a_head_over_tokens_of_classes_returns_their_shares():
    """At two examples and two queries with these scores, and at registers."""
    program = icgd.compile(CLASSES, "softmax-stack", n_steps=1).program
    (layer,) = (layer for layer in program.block if layer.title == "shares")
    x, y = torch.zeros(2, 2), torch.tensor([0, 1])
    before, scores = encode(program, icgd.as_task(CLASSES, x, y, queries=x)), torch.tensor(SCORES)
    units, shares = (program.layout.range_of(name) for name in ("units_1", "shares"))
    before[:, units] = scores[0].double()
    before[-4:, units] = scores.double()
    after = lower_layer(layer, program, torch.float64)(before)
    expected = before[1:, units].softmax(-1)
    torch.testing.assert_close(after[1:, shares], expected, rtol=1e-13, atol=1e-300)
    assert after[0, shares].tolist() == [0.0] * 3, "the memory has no values"
    after[:, shares] = before[:, shares]
    assert torch.equal(after, before)


def test_a_variance_and_a_centred_product_are_a_layer_norm():
    slots = {"z": 4, "variance": 1, "scale": 1, "normed": 4, "one": 1}
    layout = Layout(tuple(Slot(name, (width,), Role.SCRATCH) for name, width in slots.items()))
    program = StackProgram("by hand", layout, (), (), 0, ())
    stream = torch.zeros(5, layout.width, dtype=torch.float64)
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    stream[:, layout.range_of("z")], stream[:, layout.range_of("one")] = z, 1.0
    covary, norm = Covary("z", "z", "variance"), ScaleCentred("z", "scale", "normed", reach=4.0)
    stream = lower_layer(Layer("v", (covary,)), program, z.dtype)(stream).detach()
    variance = stream[:, layout.range_of("variance")]
    stream[:, layout.range_of("scale")] = 1 / (variance + 1e-5).sqrt()
    after = lower_layer(Layer("n", (norm,)), program, z.dtype)(stream)
    expected = functional.layer_norm(z, (4,))
    torch.testing.assert_close(
        after[:, layout.range_of("normed")], expected, rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("n_examples", "size"), [(1, 1), (4, 4), (6, 2), (5, 2), (5, 3), (7, 5), (7, 6), (5, 1), (9, 8)]
)
def test_batches_go_round_exactly(n_examples, size, dtype):
    names = ("between", "place", "waits", "one", "is_example", "n_examples")
    layout = Layout(tuple(Slot(name, (1,), Role.TURN) for name in names))
    program = StackProgram("by hand", layout, (), (), 0, ())
    turns = Layer("turns", (TakeTurns(size, "place", "waits", "n_examples"),))
    layer = lower_layer(turns, program, dtype)
    numbers = torch.arange(n_examples, dtype=dtype)
    stream = torch.zeros(n_examples + 2, layout.width, dtype=dtype)  # two queries
    stream[:, 0], stream[:, 3], stream[:, 5] = 0.25, 1.0, n_examples
    stream[:n_examples, 4] = 1.0
    stream[:n_examples, 1], stream[:n_examples, 2] = numbers, (numbers >= size).to(dtype)
    queries = stream[n_examples:].clone()
    for step in range(2 * n_examples + 1):
        wanted = sorted(number % n_examples for number in range(step * size, (step + 1) * size))
        waits = stream[:n_examples, 2]
        assert sorted((waits == 0).nonzero().flatten().tolist()) == wanted
        assert waits[waits != 0].tolist() == [1.0] * (n_examples - size)
        stream = layer(stream)
    assert torch.equal(stream[n_examples:], queries)


@pytest.mark.parametrize("link", PROBLEMS)
def test_every_link_takes_a_head_one_more_for_l2_and_two_that_sum(link):
    """However many examples there are."""
    for l2, n_heads in ((0.0, 1), (0.1, 2)):
        program = compiled_of(linear_problem(link, l2=l2)).program
        assert len(program.block[0].wires(program)) == n_heads
        assert lower_layer(program.block[1], program, torch.float64).W_Q.shape[0] == 2


@pytest.mark.parametrize("link", PROBLEMS)
def test_both_attention_layers_are_the_gradient_step_in_every_column(link):
    problem = linear_problem(link, l1=0.0)
    program, task = compiled_of(problem).program, task_of(problem)
    stream = encode(program, task)
    start = torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64)
    place = slice(program.layout.range_of("w").start, program.layout.range_of("b").stop)
    stream[:, place] = start
    means, step = (lower_layer(layer, program, torch.float64) for layer in program.block[:2])
    after = step(means(stream))
    real = problem.oracle.step(task, start)
    assert (after[:, place] - real).abs().max() <= 1e-12
    mean = program.layout.range_of("mean").start
    means_of_examples = problem.oracle.predict(replace(task, queries=task.x), start).flatten()
    assert (after[:6, mean] - means_of_examples).abs().max() <= 1e-12
    changed = {*range(place.start, place.stop), mean}
    others = [c for c in range(program.layout.width) if c not in changed]
    assert torch.equal(after[:, others], stream[:, others])


@pytest.mark.parametrize("link", PROBLEMS)
def test_queries_whose_scores_no_head_is_made_for_change_no_coefficient(link):
    """Softmax returns no more than the largest value, which the gate exceeds."""
    problem = linear_problem(link, score=0.5)
    program = compiled_of(problem).program
    x, y, _ = data()
    start = torch.tensor([0.9, 0.9, -0.9, 0.4], dtype=torch.float64)
    far = torch.tensor([[2.0, 2.0, -2.0], [-2.0, -2.0, 2.0]], dtype=torch.float64)
    place = slice(program.layout.range_of("w").start, program.layout.range_of("b").stop)
    after = []
    for queries in (far, None):
        stream = encode(program, icgd.as_task(problem, x, y, queries=queries, initial=start))
        for layer in program.block[:2]:
            stream = lower_layer(layer, program, torch.float64)(stream)
        after.append(stream[:6, place])
    assert (after[0] - after[1]).abs().max() <= 1e-15
    assert (after[0] - start).abs().min() > 1e-3


UP = Combination(("a", "b"), (2.0, -1.0))


def value_of(instruction, **slots: float) -> float:
    """The sum of the instruction's ReLUs at one coordinate."""
    layout = Layout(tuple(Slot(name, (1,), Role.SCRATCH) for name in (*slots, "w")))
    total = 0.0
    program = StackProgram("by hand", layout, (), (), 0, ())
    for relu in Layer("here", (instruction,)).wires(program):
        argument = relu.shift + sum(wire.factor * slots[wire.slot] for wire in relu.reads)
        (write,) = relu.writes
        total += write.factor * max(argument, 0.0)
    return total


@pytest.mark.parametrize("a", [-1.75, 0.0, 0.3])
def test_a_copy_is_exact_where_it_is_open_and_nothing_elsewhere(a):
    copy = CopyWhere(Combination.of("a"), ("f", "g"), 64.0, "w")
    assert value_of(copy, a=a, f=0.0, g=0.0) == a
    for flags in ({"f": 1.0, "g": 0.0}, {"f": 0.0, "g": 1.0}, {"f": 1.0, "g": 1.0}):
        assert value_of(copy, a=a, **flags) == 0.0
    clipped = CopyWhere(Combination.of("a"), ("f",), 64.0, "w", bound=0.5)
    assert value_of(clipped, a=a, f=0.0) == min(max(a, -0.5), 0.5)
    assert value_of(clipped, a=a, f=1.0) == 0.0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_sum_is_selected_by_the_bits_of_its_number(number):
    sources = tuple(Combination(("a", "b"), (1.0, factor)) for factor in (0.0, 2.0, -3.0))
    select = SelectWhere(sources, ("g", "h"), ("i", "j"), ("f",), 64.0, "w", bound=1.5)
    low, high = float(number & 1), float(number >> 1)
    bits = {"g": low, "h": high, "i": 1 - low, "j": 1 - high}
    expected = [0.3, 0.3 + 2 * 0.55, -1.35][number]
    assert value_of(select, a=0.3, b=0.55, f=0.0, **bits) == pytest.approx(expected, abs=1e-15)
    assert value_of(select, a=9.0, b=0.0, f=0.0, **bits) == 1.5
    assert value_of(select, a=0.3, b=0.55, f=1.0, **bits) == 0.0


@pytest.mark.parametrize("leak", [0.0, 0.25])
@pytest.mark.parametrize("a", [-1.5, 2.5])
def test_a_slope_is_one_or_the_leak_and_between_on_a_kink(a, leak):
    passed = PassBack(UP, "flat", ("f",), leak, 64.0, "w")
    up = 2 * a - 0.5
    assert value_of(passed, a=a, b=0.5, flat=0.0, f=0.0) == up
    for flat in (1.0, 700.0):
        assert value_of(passed, a=a, b=0.5, flat=flat, f=0.0) == leak * up
    between = value_of(passed, a=a, b=0.5, flat=2.0**-6, f=0.0)
    assert leak * abs(up) < abs(between) < abs(up)
    assert value_of(passed, a=a, b=0.5, flat=0.0, f=1.0) == 0.0


@pytest.mark.parametrize("z", [-3.0, -(2.0**-30), 2.0**-30, 1.1])
def test_units_are_kinked_or_linear_and_know_where_they_are_flat(z):
    activate = ActivateWhere("z", "kinked", ("f",), 0.25, 64.0, "w")
    assert value_of(activate, z=z, kinked=1.0, f=0.0) == (z if z > 0 else z / 4)
    assert value_of(activate, z=z, kinked=0.0, f=0.0) == z
    assert value_of(activate, z=z, kinked=0.0, f=1.0) == 0.0
    mark = MarkFlat("z", "linear", ("f",), 2.0**-40, 64.0, "w")
    flat = value_of(mark, z=z, linear=0.0, f=0.0)
    assert flat == 0.0 if z > 0 else flat >= 1.0
    assert value_of(mark, z=z, linear=1.0, f=0.0) == 0.0
    assert value_of(mark, z=z, linear=0.0, f=1.0) == 0.0


@pytest.mark.parametrize("a", [-1.5, 0.3, 2.5])
def test_what_is_passed_back_may_be_clipped_first(a):
    passed = PassBack(Combination.of("a"), "flat", ("f",), 0.25, 64.0, "w", bound=1.0)
    clipped = min(max(a, -1.0), 1.0)
    assert value_of(passed, a=a, flat=0.0, f=0.0) == pytest.approx(clipped, abs=1e-15)
    assert value_of(passed, a=a, flat=1.0, f=0.0) == pytest.approx(clipped / 4, abs=1e-15)
    assert value_of(passed, a=a, flat=0.0, f=1.0) == 0.0


def stream_of(program, **rows):
    """A column of the stream with these rows."""
    stream = torch.zeros(1, program.layout.width, dtype=torch.float64)
    stream[:, program.layout.range_of("one")] = 1.0
    for name, row in rows.items():
        stream[0, program.layout.range_of(name)] = row.flatten()
    return stream


@pytest.mark.parametrize("largest", [1.0, 4000.0])
def test_attention_takes_products_and_shares_classes(largest):
    """softmax(z) of the first three of four units; grid and classes do not see each other."""
    program = program_of(problem_of(MLP((2, 4, 3), "relu"), 2, loss="cross_entropy"))
    generator = torch.Generator().manual_seed(0)
    rows = {
        name: torch.rand(program.layout.slot(name).shape, generator=generator).double() - 0.5
        for name in ("z", "weights", "delta", "inputs")
    }
    rows["z"] *= 2 * largest
    stream = stream_of(program, **rows)
    with torch.no_grad():
        after = sum(lower_chain(program)[layer](stream) - stream for layer in (2, 3))
    shares = torch.zeros(4, 2, dtype=torch.float64)
    shares[:3] = rows["z"][:3].softmax(0)
    expected = {
        "shares": shares,
        "outer": rows["delta"] @ rows["inputs"].T,
        "back": rows["weights"].T @ rows["delta"],
    }
    for name, value in expected.items():
        read = after[0, program.layout.range_of(name)].view_as(value)
        torch.testing.assert_close(read, value, rtol=0, atol=1e-15 if name == "shares" else 1e-11)


def test_a_flag_of_units_closes_their_rows_alone():
    program = program_of(problem_of(MLP((2, 3, 1), "tanh"), 2, box=1.0))
    looked_up = torch.arange(1.0, 7.0).double().view(3, 2)
    flags = {"tanh": torch.ones(1), "padding": torch.tensor([0.0, 1.0, 0.0])}
    stream = stream_of(program, **{"tanh of z": looked_up}, **flags)
    with torch.no_grad():
        after = lower_chain(program)[-1](stream)
    first = after[0, program.layout.range_of("out.first")].view(3, 2)
    assert first.tolist() == [[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]]
