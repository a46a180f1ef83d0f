import pytest

from icgd.program.instructions import (
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    LayerKind,
    MapSlots,
    MultiplySlots,
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
            (Summand(("p", "y"), (1.0, -1.0), "clip"), Summand(("y",), (0.5,), "negate")),
            only_where="is_example",
            never_where="is_query",
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
        ClipSlots(("V", "W"), 3.0),
        LayerKind.MLP,
        {"V", "W"},
        ("V", "W"),
        (),
        "clip V, W to [-3, 3]",
    ),
    (WipeSlots(("p", "s")), LayerKind.MLP, {"p", "s"}, ("p", "s"), (), "wipe p, s"),
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
