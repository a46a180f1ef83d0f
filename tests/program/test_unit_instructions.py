import pytest

from icgd.program.instructions import Argument, Combination, LayerKind
from icgd.program.unit_instructions import (
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddJacobian,
    AddOuterProduct,
    ClipByUnits,
    CopyToQueries,
    PassOn,
    PushJacobian,
    SlopeOfLoss,
    StartJacobian,
    WipeByUnits,
)

OF_X, OF_Z = Argument(Combination.of("x"), "V"), Argument(Combination.of("z"))
GRADIENT = {"g", "example_share", "one"}
GATED = {"g", "tokens_per_example", "is_query"}

# Instruction, slots that it reads, those that it writes, its functions, its formula.
ATTENTION = [
    (
        ActivateUnits(OF_X, "tanh", 1.0, "h"),
        {"V", "x", "one"},
        ("h",),
        ("tanh",),
        "h = tanh(V @ x)",
    ),
    (PassOn("W", OF_Z, "r", "p"), {"W", "z", "one"}, ("p",), ("r",), "p = W @ r(z)"),
    (
        StartJacobian("W", "x", OF_X, "r", "s r'(t)", 2.0, "J"),
        {"W", "V", "x", "one"},
        ("J",),
        ("s r'(t)",),
        "J = W * (r'(V @ x) (x) x)",
    ),
    (
        PushJacobian("W", "I", OF_Z, "r", "s r'(t)", 2.0, "J"),
        {"W", "I", "z", "one"},
        ("J",),
        ("s r'(t)",),
        "J = W @ (r'(z) * I)",
    ),
    (
        AddOuterProduct("g", "h", (1.0, 1.0), "a b", -0.5, "V"),
        {"h"} | GRADIENT,
        ("V",),
        ("a b",),
        "V += -0.5 * mean(g (x) h)",
    ),
    (
        AddJacobian("g", "J", (1.0, 1.0), "a b", -0.5, "V"),
        {"J"} | GRADIENT,
        ("V",),
        ("a b",),
        "V += -0.5 * mean(g^T @ J)",
    ),
    (
        AddGatedProduct("g", "h", 1.0, 8.0, 1.0, -0.5, "V"),
        {"h"} | GATED,
        ("V",),
        (),
        "V += -0.5 * mean(g (x) h)",
    ),
    (
        PassOn("W", OF_Z, "r", "p", "one"),
        {"W", "z", "one"},
        ("p",),
        ("r",),
        "p = W @ (r(z), one)",
    ),
    (
        StartJacobian("W", "x", OF_Z, "r", "s r'(t)", 2.0, "J", "one"),
        {"W", "x", "z", "one"},
        ("J",),
        ("s r'(t)",),
        "J = W * (r'(z) (x) (x, one))",
    ),
    (
        AddOuterProduct("g", "h", (1.0, 1.0), "a b", -0.5, "V", "one"),
        {"h"} | GRADIENT,
        ("V",),
        ("a b",),
        "V += -0.5 * mean(g (x) (h, one))",
    ),
    (
        AddGatedProduct("g", "h", 1.0, 8.0, 1.0, -0.5, "V", "one"),
        {"h", "one"} | GATED,
        ("V",),
        (),
        "V += -0.5 * mean(g (x) (h, one))",
    ),
    (
        AddGatedJacobian("g", "J", 1.0, 8.0, 1.0, -0.5, "V"),
        {"J"} | GATED,
        ("V",),
        (),
        "V += -0.5 * mean(g^T @ J)",
    ),
]
MLP = [
    (SlopeOfLoss("p", "y", "squared", "u", "g"), {"p", "y"}, ("g",), ("u",), "g = u(p, y)"),
    (CopyToQueries("p", "gate", "y"), {"p", "is_query"}, ("y",), ("gate",), "y = p where is_query"),
    (ClipByUnits(("V",), 2.0, "c"), {"V"}, ("V",), ("c",), "clip V to [-2, 2] by units"),
    (WipeByUnits(("g", "J"), "l", 2.0), {"g", "J"}, ("g", "J"), ("l",), "wipe g, J by units"),
]


@pytest.mark.parametrize("facts", [*ATTENTION, *MLP], ids=lambda facts: type(facts[0]).__name__)
def test_an_instruction_says_what_it_reads_writes_evaluates_and_computes(facts):
    instruction, reads, writes, functions, formula = facts
    assert instruction.kind is (LayerKind.MLP if facts in MLP else LayerKind.ATTENTION)
    assert set(instruction.reads()) == reads
    assert instruction.writes() == writes
    assert instruction.functions() == functions
    assert instruction.formula() == formula
