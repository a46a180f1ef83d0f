"""Heads and units as data: what is counted and named is what is built, for every instruction."""

import re
from collections import Counter

import pytest
import torch

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import OverflowedRunError
from icgd.problems.functions import UNIT_ACTIVATIONS
from icgd.program import render
from icgd.program.functions import ACTIVATIONS_AT_ONE
from icgd.program.instructions import ApplyUnits, Instruction, LayerKind, MapSlots
from icgd.program.layout import Layout, Role, Slot
from icgd.program.program import AbstractProgram, Layer
from icgd.program.wires import SIGN, AxisFactor, Heads, Units, Wire, by_slot, merged, nonzeros, span
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size
from tests import cases, linear_cases
from tests.backends import chain_cases

NETWORK, BIASED = icgd.MLP((2, 3, 1), "tanh"), icgd.MLP((2, 3, 2), "relu", biases=True)
DEEP = icgd.MLP((2, 2, 2, 1), "tanh")
BIASED_TANH = icgd.MLP((2, 3, 1), "tanh", biases=True)
SHAPED = icgd.MLP((3, 4, 4, 2), "tanh", biases=True, norms=(1, 2), shortcuts=((1, 2),))
CLASSES = icgd.MLP((2, 3, 3), "tanh", biases=True)
DOMAIN = icgd.Domain(1.0, 1.0)


def compiled(construction: str, target: icgd.MLP, update: object, loss: str = "squared", **given):
    problem = icgd.Problem(target, loss, update, DOMAIN)
    return icgd.compile(problem, construction, n_steps=2, **given).program


def kernel_program(case: cases.Case) -> AbstractProgram:
    return CONSTRUCTIONS["functional"].build(case.problem, 3)


STEP = icgd.GradientStep(0.1, 1.0)
SETS = {
    "weights_1": icgd.HalfSpace(((1.0, 2.0, -1.0),) * 5, 0.1, 1.0),
    "bias_1": icgd.HalfSpace((1.0, 2.0, 0.0, 1.0, 1.0), 0.1, 1.0),
    "weights_2": icgd.Simplex(),
    "bias_2": 0.5,
}
PROGRAMS = {
    "relu-stack": lambda: compiled("relu-stack", NETWORK, icgd.AdamStep(0.1, 1.0), pieces=12),
    "relu-stack classes": lambda: compiled("relu-stack", CLASSES, STEP, "cross_entropy", pieces=12),
    "relu-stack norms": lambda: compiled("relu-stack", SHAPED, STEP, pieces=12),
    "relu-stack turns": lambda: compiled(
        "relu-stack", BIASED, icgd.MomentumStep(0.1, 1.0, batch_size=1)
    ),
    "relu-stack sets": lambda: compiled(
        "relu-stack", icgd.MLP((3, 5, 4), "relu", biases=True), icgd.MomentumStep(0.1, SETS)
    ),
    "softmax-stack sets": lambda: compiled(
        "softmax-stack",
        icgd.MLP((3, 5, 4), "relu", biases=True),
        icgd.GradientStep(0.1, SETS | {"weights_2": 1.0, "bias_2": icgd.Box(0.0, 1.0)}),
    ),
    "softmax-stack": lambda: compiled(
        "softmax-stack", BIASED, icgd.MomentumStep(0.1, 1.0, batch_size=2, average=0.9)
    ),
    "softmax-stack classes": lambda: compiled("softmax-stack", CLASSES, STEP, "cross_entropy"),
    "universal": lambda: cases.build(CONSTRUCTIONS["universal"], cases.TINY),
    "universal function": lambda: (
        icgd.universal(lambda Z: Z / 2, d=2, n=2, D=3, lipschitz=0.5, box=(0.0, 1.0)).program
    ),
    "recursion": lambda: compiled("recursion", DEEP, STEP, units=24),
    "recursion biases": lambda: compiled(
        "recursion", BIASED_TANH, STEP, unit_activation="sigmoid", units=24
    ),
    "recursion gated": lambda: compiled(
        "recursion", BIASED, STEP, unit_activation="softplus", units=24
    ),
    "linear-stack": lambda: linear_cases.compiled_of(linear_cases.PROBLEMS["logistic"]).program,
    "linear-stack fista": lambda: linear_cases.compiled_of(linear_cases.FISTA["poisson"]).program,
    "linear-stack heavy": lambda: linear_cases.compiled_of(linear_cases.HEAVY["identity"]).program,
    "linear-stack mirrored": lambda: (
        linear_cases.compiled_of(linear_cases.FISTA["poisson"], mirrored_heads=2).program
    ),
    "linear-stack mirrored squares": lambda: (
        linear_cases.compiled_of(linear_cases.HEAVY["identity"], mirrored_heads=3).program
    ),
    "cot-glm": lambda: (
        linear_cases.compiled_of(
            linear_cases.PROBLEMS["logistic"], construction="cot-glm", n_examples=3
        ).program
    ),
    "cot-network": lambda: chain_cases.program_of(
        chain_cases.problem_of(icgd.MLP((3, 5, 4), "relu"), 2, loss="cross_entropy")
    ),
    "cot-network smooth": lambda: chain_cases.program_of(
        chain_cases.problem_of(icgd.MLP((2, 3, 1), "softplus"), 2, loss="logistic", box=1.0)
    ),
    "cot-network leaky": lambda: chain_cases.program_of(
        chain_cases.problem_of(icgd.MLP((2, 2), "leaky_relu", "leaky_relu", biases=True))
    ),
    "cot-network schedule": lambda: compiled(
        "cot-network", icgd.MLP((3, 2)), icgd.MomentumStep((0.3, 0.0), 1.0, 2)
    ),
} | {
    f"functional {case.name}": lambda case=case: kernel_program(case) for case in cases.KERNEL_CASES
}


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request):
    return PROGRAMS[request.param]()


def entries(wire: Wire, family: Heads | Units, layout: Layout) -> torch.Tensor:
    """The entries (head, coordinate, feature) of a wire, a row for each combination of places."""
    extents, origin, steps = span(wire, family.axes, layout)
    found = torch.tensor(origin).expand(*extents.values(), 3)
    for number, (axis, size) in enumerate(extents.items()):
        moved = torch.arange(size)[:, None] * torch.tensor(steps[axis])
        found = found + moved.view(size, *(1,) * (len(extents) - number - 1), 3)
    return found.reshape(-1, 3)


def test_sizes_counted_from_wires_are_those_of_the_tensors(program):
    for layer in program.layers:
        size, module = layer_size(layer, program), lower_layer(layer, program, torch.float64)
        weights = dict(module.named_parameters())
        assert size.parameters == sum(w.numel() for w in weights.values()), layer.title
        assert size.nonzeros == sum(int(w.count_nonzero()) for w in weights.values()), layer.title
        if layer.kind is LayerKind.MLP:
            assert weights["W_in"].shape == (size.d_model, size.units)
        else:
            assert weights["W_Q"].shape == (size.n_heads, size.d_model, size.width)


def test_no_two_wires_of_a_projection_meet(program):
    """And every entry is one of the family's own heads and of the wire's own slot.

    The two halves of a difference share entries, where the factors of both are 0.
    """
    families = [family for layer in program.layers for family in layer.wires(program)]
    for family in families:
        projections = (
            family.projections if isinstance(family, Heads) else (family.reads, family.writes)
        )
        for wires in projections:
            found = [entries(wire, family, program.layout) for wire in wires]
            for wire, rows in zip(wires, found, strict=True):
                place = program.layout.range_of(wire.slot)
                assert bool(((rows[:, 0] >= 0) & (rows[:, 0] < family.size)).all())
                assert bool(((rows[:, 1] >= place.start) & (rows[:, 1] < place.stop)).all())
            if found and "other" not in family.axes:
                together = torch.cat(found)
                assert len(together.unique(dim=0)) == len(together), family.label


def test_every_head_and_unit_of_a_layer_has_a_name_of_its_own(program):
    for layer in program.layers:
        families = layer.wires(program)
        labels = [family.label_of(n) for family in families for n in range(family.size)]
        assert len(labels) == layer_size(layer, program).units
        repeated = [label for label, times in Counter(labels).items() if times > 1]
        assert repeated == [], layer.title
        assert not any(re.search(r"[{}]|  ", label) for label in labels)
        assert layer.label_of(program, len(labels) - 1) == labels[-1]
        with pytest.raises(IndexError, match=re.escape(layer.title)):
            layer.label_of(program, len(labels))


def test_the_programs_here_have_every_instruction():
    found = {
        type(part).__name__
        for build in PROGRAMS.values()
        for layer in build().layers
        for part in layer.instructions
    }
    assert found == set(render.INSTRUCTIONS)


def test_labels_say_which_unit_which_term_and_which_sign():
    program = PROGRAMS["relu-stack"]()
    forward, gradient = program.block[0], program.first(ApplyUnits)
    n_terms = program.relu_sum("tanh").n_pieces + 1
    written = f"{gradient.write}, slope_1"
    assert forward.label_of(program, 0) == f"unit 1 of {written}, term 1 of tanh, tanh'"
    assert forward.label_of(program, n_terms + 1) == f"unit 2 of {written}, term 2 of tanh, tanh'"
    heads = Heads({"sign": 2, "row": 3}, (), (), (), (), "row {row}, {sign}")
    assert [heads.label_of(n) for n in range(6)] == [
        "row 1, +", "row 2, +", "row 3, +", "row 1, -", "row 2, -", "row 3, -",
    ]  # fmt: skip


LAYOUT = Layout(
    (
        Slot("x", (3,), Role.INPUT),
        Slot("weights", (2, 4), Role.PARAMETER),
        Slot("jacobian", (2, 6), Role.SCRATCH),
        Slot("one", (1,), Role.CONSTANT),
    )
)
X, WEIGHTS, JACOBIAN = 0, 3, 11


def test_a_slot_that_is_shorter_than_the_axis_covers_the_places_that_it_has():
    extents, origin, steps = span(Wire("x", ("entry",), "entry"), {"unit": 2, "entry": 4}, LAYOUT)
    assert extents == {"unit": 2, "entry": 3}
    assert (origin, steps) == ((0, X, 0), {"unit": (4, 0, 0), "entry": (1, 1, 1)})


def test_axes_of_the_family_are_heads_and_others_are_features_or_sums():
    wire = Wire("weights", ("unit", "entry"), "entry", start=2)
    assert span(wire, {"unit": 2, "piece": 5}, LAYOUT) == (
        {"unit": 2, "piece": 5, "entry": 4},
        (0, WEIGHTS, 2),
        {"unit": (5, 4, 0), "piece": (1, 0, 0), "entry": (0, 1, 1)},
    )
    summed = Wire("weights", ("unit", "entry"))
    assert span(summed, {"unit": 2}, LAYOUT).steps["entry"] == (0, 1, 0)


def test_places_are_numbers_and_axes_counted_through():
    column = Wire("jacobian", ("row", 4), "row")
    assert span(column, {}, LAYOUT) == ({"row": 2}, (0, JACOBIAN + 4, 0), {"row": (0, 6, 1)})
    pairs = Wire("jacobian", ("row", ("k", "input")), "row")
    assert span(pairs, {"k": 2, "input": 3}, LAYOUT).steps == {
        "k": (3, 3, 0),
        "input": (1, 1, 0),
        "row": (0, 6, 1),
    }
    flat = Wire("weights", ("p",))
    assert span(flat, {"p": 8}, LAYOUT) == ({"p": 8}, (0, WEIGHTS, 0), {"p": (1, 1, 0)})


def heads_of(value: str, write: str, factor: float = 1.0) -> Heads:
    """A head that weighs the entries of a slot by the first entry of x."""
    entries = ("entry",)
    return Heads(
        axes={},
        query=(Wire("one"),),
        key=(Wire("x", (0,), factor=factor),),
        value=(Wire(value, entries, "entry"),),
        output=(Wire(write, entries, "entry", 2.0),),
        label=f"{value} into {write}",
    )


def test_heads_with_equal_scores_are_one_with_the_values_of_both():
    first, second = heads_of("x", "weights"), heads_of("weights", "jacobian")
    [both] = merged([first, second], LAYOUT)
    assert both.label == "x into weights; weights into jacobian"
    assert both.value == (*first.value, Wire("weights", ("entry",), "entry", start=8))
    assert both.output[1] == Wire("jacobian", ("entry",), "entry", 2.0, start=8)
    [shared] = merged([first, heads_of("x", "jacobian")], LAYOUT)
    assert shared.value == first.value
    assert shared.output == (*first.output, *heads_of("x", "jacobian").output)


def test_heads_stay_apart_if_scores_differ_or_one_would_cost_more_or_write_twice():
    first = heads_of("x", "weights")
    for second in (heads_of("weights", "jacobian", factor=2.0), heads_of("jacobian", "weights")):
        assert merged([first, second], LAYOUT) == (first, second)
    wide = Heads({"k": 9}, (), (), (), (Wire("weights", ("entry",), "entry"),), "nine")
    pair = (heads_of("x", "weights"), heads_of("weights", "jacobian"))
    assert merged((*pair, wide), LAYOUT) == (*pair, wide)


@pytest.mark.parametrize(
    ("name", "title", "n_heads"),
    [("recursion gated", "gradient step", 4), ("cot-network smooth", "units", 3 * 6)],
)
def test_instructions_share_heads_in_programs(name, title, n_heads):
    """Two heads for each output have all gradients; those of an activation have its slope too."""
    program = PROGRAMS[name]()
    layer = next(layer for layer in program.layers if layer.title == title)
    each = [part.wires(program) for part in layer.instructions]
    families = [f for wiring in each for f in ([wiring] if isinstance(wiring, Heads) else wiring)]
    separate = sum(family.size for family in families)
    assert sum(family.size for family in layer.wires(program)) == n_heads < separate


def test_nonzeros_are_products_of_extents_and_of_nonzero_factors():
    pieces = AxisFactor(("piece",), (0.0, 1.0, -1.0))
    differ = AxisFactor(("row", "column"), ((0.0, 1.0), (1.0, 0.0)))
    assert nonzeros(1.0, {"unit": 4, "entry": 3}) == 12
    assert nonzeros((2.0, pieces), {"unit": 4, "piece": 3}) == 8
    assert nonzeros((0.0, pieces), {"unit": 4, "piece": 3}) == 0
    assert nonzeros((differ, pieces), {"row": 2, "column": 2, "piece": 3}) == 4
    assert nonzeros(differ, {"row": 1, "column": 2, "unit": 5}) == 5


def test_the_last_feature_of_a_layer_comes_after_those_of_scores():
    heads = Heads({}, (Wire("x", ("j",), "j"), Wire("one", feature=-1)), (), (), (), "")
    assert heads.width(LAYOUT) == 4
    copying = Heads({}, (Wire("one", feature=-1),), (), (Wire("x", ("j",), "j"),), (), "")
    assert copying.width(LAYOUT) == 3


def test_a_slot_that_occurs_twice_is_one_wire():
    assert by_slot([("x", 1.0), ("y", 0.5), ("x", 2.0)]) == {"x": 3.0, "y": 0.5}
    assert AxisFactor(("term",), (3.0, 1.0)) / 2.0 == AxisFactor(("term",), (1.5, 0.5))
    assert SIGN.numbers == (1.0, -1.0)


def test_the_heads_of_units_by_hand():
    """relu on 2 inputs and a bias: one piece, so a head for each unit: 3 features and the 1."""
    program = PROGRAMS["relu-stack turns"]()
    heads = program.first(ApplyUnits).wires(program)
    assert heads.axes == {"unit": 3, "term": 1}
    scale, shift, coefficient = (AxisFactor(("term",), (n,)) for n in (1.0, 0.0, 1.0))
    assert heads.query == (
        Wire("x", ("entry",), "entry", scale),
        Wire("one", feature=2, factor=scale),
        Wire("one", feature=3, factor=shift),
    )
    assert heads.key == (Wire("weights_1", ("unit", "entry"), "entry"), Wire("one", feature=3))
    assert heads.value == (Wire("one"),)
    assert heads.output == (Wire("units_1", ("unit",), factor=coefficient),)
    layer = lower_layer(Layer("here", (program.first(ApplyUnits),)), program, torch.float64)
    layout = program.layout
    weights = range(*layout.range_of("weights_1").indices(layout.width))
    expected = [[head, weights[3 * head + n], n] for head in range(3) for n in range(3)]
    one = layout.range_of("one").start
    expected += [[head, one, 3] for head in range(3)]
    assert sorted(layer.W_K.nonzero().tolist()) == sorted(expected)


def test_the_units_of_a_map_by_hand():
    program = PROGRAMS["relu-stack turns"]()
    (units, *_) = program.first(MapSlots).wires(program)
    ((slot, factor), *_) = program.first(MapSlots).summands[0].argument.terms()
    scale, shift, coefficient = program.relu_sum(
        program.first(MapSlots).functions()[0]
    ).term_factors
    assert units.reads[0] == Wire(slot, ("k",), factor=(factor, scale))
    assert units.shift == shift
    assert units.writes == (Wire(program.first(MapSlots).write, ("k",), factor=coefficient),)


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_a_large_network_is_counted_without_an_entry(construction, monkeypatch):
    program = compiled(construction, icgd.MLP((8, 256, 256, 1), "relu"), STEP)
    monkeypatch.setattr(torch, "zeros", None)
    sizes = [layer_size(layer, program) for layer in program.layers]
    assert sum(size.parameters for size in sizes) > 10**11


def test_a_number_outside_the_dtype_is_refused_with_the_name_of_its_head():
    layout = Layout((Slot("x", (2,), Role.INPUT), Slot("one", (1,), Role.CONSTANT)))

    class Shout(Instruction):
        kind = LayerKind.MLP

        def wires(self, program):
            loud = AxisFactor(("k",), (1.0, -1e39))
            reads = (Wire("x", ("k",), factor=loud),)
            return (Units({"k": 2}, reads, 0.0, (Wire("one"),), "shout x[{k}]"),)

        def formula(self):
            return "shout"

        def meaning(self, slots, domain):
            return {}

    program = icgd.program.stack.StackProgram("by hand", layout, (), (), 0, ())
    layer = Layer("here", (Shout(),))
    assert float(lower_layer(layer, program, torch.float64).W_in.detach().min()) == -1e39
    message = r"weight of 'shout x\[2\]' is -1e\+39, outside the range of float32"
    with pytest.raises(OverflowedRunError, match=message):
        lower_layer(layer, program, torch.float32)


def test_an_instruction_without_wires_is_named():
    class Juggle(Instruction):
        kind = LayerKind.MLP

        def formula(self):
            return "juggle"

    with pytest.raises(TypeError, match=r"Juggle.*meaning.*wires"):
        Juggle()


def test_the_activations_at_one_are_those_of_the_layers():
    one = torch.ones(1, dtype=torch.float64)
    found = {name: float(value(one)) for name, value in UNIT_ACTIVATIONS.items()}
    assert found == pytest.approx(ACTIVATIONS_AT_ONE, rel=1e-15)
