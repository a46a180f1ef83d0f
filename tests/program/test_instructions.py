import pytest

from icgd.errors import ProgramError
from icgd.program.instructions import (
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    ClipSlots,
    Combination,
    LayerKind,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    Summand,
    WipeSlots,
)

FACTS = [
    (
        ApplyUnits("V", "x", "tanh", write="p"),
        LayerKind.ATTENTION,
        {"V", "x", "one"},
        ("p",),
        ("tanh",),
        "p = tanh(V @ x)",
    ),
    (
        AccumulateOuterProduct("s", "x", -0.25, write="V"),
        LayerKind.ATTENTION,
        {"s", "x", "tokens_per_example"},
        ("V",),
        (),
        "V += -0.25 * mean(s (x) x)",
    ),
    (
        MultiplySlots("a", "b", write="c"),
        LayerKind.PRODUCT,
        {"a", "b", "one"},
        ("c",),
        (),
        "c = a * b",
    ),
    (
        PullBack("V", "s", "dr", write="t"),
        LayerKind.PRODUCT,
        {"V", "s", "dr"},
        ("t",),
        (),
        "t = dr * (V^T @ s)",
    ),
    (
        MapSlots(
            (
                Summand(Combination(("p", "y"), (1.0, -1.0)), "clip"),
                Summand(Combination(("y",), (0.5,)), "negate"),
            ),
            only_where="is_example",
            never_where=("is_query",),
            gate=64.0,
            write="u",
        ),
        LayerKind.MLP,
        {"p", "y", "is_query"},
        ("u",),
        ("clip", "negate"),
        "u = clip(+1 p -1 y) + negate(+0.5 y) where is_example",
    ),
    (
        ClipSlots(("V", "W"), 3.0, "one"),
        LayerKind.MLP,
        {"V", "W", "one"},
        ("V", "W"),
        (),
        "clip V, W to [-3, 3]",
    ),
    (WipeSlots(("p", "s")), LayerKind.MLP, {"p", "s"}, ("p", "s"), (), "wipe p, s"),
    (
        MapSlots((Summand(Combination.of("p"), "relu"),), "one", (), 0.0, "q"),
        LayerKind.MLP,
        {"p"},
        ("q",),
        ("relu",),
        "q = relu(p)",
    ),
    (
        MapSlots(
            (Summand(Combination.of("p"), "identity"),),
            only_where="is_query",
            never_where=("is_example", "is_register"),
            gate=64.0,
            write="y",
        ),
        LayerKind.MLP,
        {"p", "is_example", "is_register"},
        ("y",),
        ("identity",),
        "y = identity(p) where is_query",
    ),
    (
        ClipSlots(("V",), 0.5, "scale_size"),
        LayerKind.MLP,
        {"V", "scale_size"},
        ("V",),
        (),
        "clip V to [-0.5, 0.5] scale_size",
    ),
    (
        LookUp(Argument(Combination.of("x"), "V"), ("tanh", "tanh'"), ("p", "dr")),
        LayerKind.SOFTMAX,
        {"V", "x"},
        ("p", "dr"),
        ("tanh", "tanh'"),
        "p, dr = tanh, tanh' at V @ x",
    ),
    (
        LookUp(Argument(Combination(("p", "y"), (1.0, -2.0))), ("sigmoid",), ("u",)),
        LayerKind.SOFTMAX,
        {"p", "y"},
        ("u",),
        ("sigmoid",),
        "u = sigmoid at +1 p -2 y",
    ),
    (
        Project(Argument(Combination.of("s"), "V", transposed=True), 2.5, "c"),
        LayerKind.SOFTMAX,
        {"V", "s"},
        ("c",),
        ("identity",),
        "c = V^T @ s",
    ),
    (
        AddProduct(
            Argument(Combination(("p", "y"), (2.0, -2.0)), "V", transposed=True),
            reach=4.0,
            factor="dr",
            factor_reach=1.0,
            write="s",
        ),
        LayerKind.SOFTMAX,
        {"p", "y", "V", "dr"},
        ("s",),
        ("square",),
        "s += dr * (V^T @ (+2 p -2 y))",
    ),
    (
        AddGradient(Combination.of("s"), "x", -0.25, 0.01, "V"),
        LayerKind.SOFTMAX,
        {"s", "x"},
        ("V",),
        (),
        "V += -0.25 * mean(s (x) x)",
    ),
    (
        AddGradient(Combination(("p", "y"), (2.0, -2.0)), "x", -0.25, 0.01, "V"),
        LayerKind.SOFTMAX,
        {"p", "y", "x"},
        ("V",),
        (),
        "V += -0.25 * mean((+2 p -2 y) (x) x)",
    ),
]


@pytest.mark.parametrize(
    ("instruction", "kind", "reads", "writes", "functions", "formula"),
    FACTS,
    ids=[type(fact[0]).__name__ for fact in FACTS],
)
def test_an_instruction_knows_its_layer_its_slots_its_functions_and_its_formula(
    instruction, kind, reads, writes, functions, formula
):
    assert instruction.kind is kind
    assert set(instruction.reads()) == reads
    assert instruction.writes() == writes
    assert instruction.functions() == functions
    assert instruction.formula() == formula


def test_instructions_are_compared_by_value():
    assert MultiplySlots("a", "b", write="c") == MultiplySlots("a", "b", write="c")
    assert MultiplySlots("a", "b", write="c") != MultiplySlots("a", "c", write="c")


def test_a_combination_pairs_its_slots_with_their_coefficients():
    assert Combination(("p", "y"), (2.0, -0.5)).terms() == (("p", 2.0), ("y", -0.5))
    assert Combination.of("p") == Combination(("p",), (1.0,))


def test_only_a_slot_itself_is_written_without_its_coefficient():
    assert Combination.of("p").formula() == "p"
    assert Combination(("p",), (2.0,)).formula() == "+2 p"


def test_an_argument_is_made_of_its_inputs_and_its_weights():
    inputs = Combination(("p", "y"), (1.0, -1.0))
    assert Argument(inputs).slots() == ("p", "y")
    assert Argument(inputs, "V").slots() == ("p", "y", "V")


@pytest.mark.parametrize(("slots", "coefficients"), [(("p", "y"), (1.0,)), ((), ())])
def test_a_combination_has_slots_and_a_coefficient_for_each(slots, coefficients):
    found = f"{len(coefficients)} coefficients for {len(slots)} slots"
    with pytest.raises(ProgramError, match=f"{found}, expected one for each of them"):
        Combination(slots, coefficients)
