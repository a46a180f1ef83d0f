"""What instructions say of themselves: their layer, slots, functions and formula.

That their meaning, their heads and their bounds agree is tested in `tests/test_views.py`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from icgd.errors import ProgramError
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    FindBlock,
    LookUpProduct,
    MarkFlat,
    Multiplied,
    MultiplyByEntries,
    MultiplyEntries,
    PassBack,
    SelectWhere,
    ShareColumns,
)
from icgd.program.instructions import (
    Accumulated,
    AccumulateOuterProduct,
    Added,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    Changed,
    ClipSlots,
    Combination,
    Evaluated,
    Evaluation,
    LayerKind,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    Read,
    Summand,
    Use,
    WipeSlots,
    Written,
    flat_factor,
    names_used,
)
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import Layout, Role, Slot
from icgd.program.linear_instructions import (
    DecaySlot,
    DescendExamples,
    DescendMirrored,
    DescendSquares,
    MoveByVelocity,
    PredictMean,
    ShrinkMoved,
    ShrinkSlot,
)
from icgd.program.network_instructions import (
    Assignment,
    AverageExamples,
    Covary,
    LookUpStep,
    MapDifferences,
    MapRowSums,
    Recombine,
    ScaleCentred,
    ShareClasses,
    TakeTurns,
    class_slot,
)
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
from icgd.program.wires import AxisFactor

A, B, X = Combination.of("a"), Combination.of("b"), Combination.of("x")
GAP = Combination(("p", "y"), (1.0, -1.0))
TWICE = Combination(("p", "y"), (2.0, -2.0))
OF_X, OF_Z = Argument(X, "V"), Argument(Combination.of("z"))
PULLED = Argument(Combination.of("s"), "V", transposed=True)
FAR = Argument(TWICE, "V", transposed=True)
HALF = Combination(("y",), (0.5,))
QUERIES = ("is_example", "is_register")

MOVED = Assignment(Combination(("w", "g"), (1.0, -0.5)), "w", bound=2.0)
KEPT = Assignment(Combination(("m", "g"), (0.9, 1.0)), "m")
AVERAGED = replace(MOVED, average="a", keeps=0.75)
KEY = Combination(("code", "level"), (1.0, 2.0))
LEVELS = ("level_x", "level_y", "level_w")

AHEAD = MoveByVelocity("w", "v", 0.5, 0.5, 0.0)
SQUARES = DescendSquares("y", ("x", "x"), ("w", "v"), (1.0, 0.5), 2, 1e-3, 8.0, 2.0, -0.5, (AHEAD,))
MIRRORED = DescendMirrored("m", "y", ("x", "one"), ("w", "b"), 1, 1e-5, 8.0, -0.5)
DESCENT = DescendExamples("m", "y", ("x", "one"), ("w", "b"), "tokens_per_example", 8.0, -0.5)
SUMMED = replace(DESCENT, tokens="n_tokens", weights=("w",), inputs=("x",))

RBF = KernelTerm("rbf", None, 0.5, 2.0)
KERNELS = (RBF, KernelTerm("linear", ((1.0,),), 1.0, None))
MOMENTUM = DescendFunction((RBF,), 0.1, 0.25, None, velocity="v", momentum=0.5)
K = "K = 0.5 rbf[2](x, x_j)"

SELECT = SelectWhere((A, A, B), ("g", "h"), ("i", "j"), ("f",), 8.0, "w", bound=2.0)
MIXED = Combination(("a", "b"), (1.0, -0.5))

# The instruction; the slots that it reads and writes, the functions it evaluates; its formula.
FACTS = {
    LayerKind.ATTENTION: [
        (ApplyUnits("V", "x", "tanh", "p"), "V x one", "p", "tanh", "p = tanh(V @ x)"),
        (
            ApplyUnits("V", "x", "tanh", "p", "one", (Evaluation("tanh'", "s"),)),
            "V x one",
            "p s",
            "tanh tanh'",
            "p, s = tanh, tanh' at V @ (x, one)",
        ),
        (
            AccumulateOuterProduct("s", "x", -0.25, "V"),
            "s x tokens_per_example",
            "V",
            "",
            "V += -0.25 * mean(s (x) x)",
        ),
        (ActivateUnits(OF_X, "tanh", 1.0, "h"), "V x one", "h", "tanh", "h = tanh(V @ x)"),
        (PassOn("W", OF_Z, "r", "p"), "W z one", "p", "r", "p = W @ r(z)"),
        (PassOn("W", OF_Z, "r", "p", "one"), "W z one", "p", "r", "p = W @ (r(z), one)"),
        (
            StartJacobian("W", "x", OF_X, "r", "sr", 2.0, "J"),
            "W V x one",
            "J",
            "sr",
            "J = W * (r'(V @ x) (x) x)",
        ),
        (
            StartJacobian("W", "x", OF_Z, "r", "sr", 2.0, "J", "one"),
            "W x z one",
            "J",
            "sr",
            "J = W * (r'(z) (x) (x, one))",
        ),
        (
            PushJacobian("W", "I", OF_Z, "r", "sr", 2.0, "J"),
            "W I z one",
            "J",
            "sr",
            "J = W @ (r'(z) * I)",
        ),
        (
            AddOuterProduct("g", "h", (1.0, 1.0), "ab", -0.5, "V"),
            "g h example_share one",
            "V",
            "ab",
            "V += -0.5 * mean(g (x) h)",
        ),
        (
            AddOuterProduct("g", "h", (1.0, 1.0), "ab", -0.5, "V", "one"),
            "g h example_share one",
            "V",
            "ab",
            "V += -0.5 * mean(g (x) (h, one))",
        ),
        (
            AddJacobian("g", "J", (1.0, 1.0), "ab", -0.5, "V"),
            "g J example_share one",
            "V",
            "ab",
            "V += -0.5 * mean(g^T @ J)",
        ),
        (
            AddGatedProduct("g", "h", 1.0, 8.0, 1.0, -0.5, "V"),
            "g h tokens_per_example is_query",
            "V",
            "",
            "V += -0.5 * mean(g (x) h)",
        ),
        (
            AddGatedProduct("g", "h", 1.0, 8.0, 1.0, -0.5, "V", "one"),
            "g h one tokens_per_example is_query",
            "V",
            "",
            "V += -0.5 * mean(g (x) (h, one))",
        ),
        (
            AddGatedJacobian("g", "J", 1.0, 8.0, 1.0, -0.5, "V"),
            "g J tokens_per_example is_query",
            "V",
            "",
            "V += -0.5 * mean(g^T @ J)",
        ),
        (
            DESCENT,
            "m y x one tokens_per_example is_query",
            "w b",
            "",
            "w, b += -0.5 / n * sum_i (m_i - y_i) (x_i, 1)",
        ),
        (SUMMED, "m y x n_tokens is_query", "w", "", "w += -0.5 * sum_i (m_i - y_i) (x_i)"),
    ],
    LayerKind.MIRROR: [
        (
            MIRRORED,
            "m y x one is_query",
            "w b",
            "",
            "w, b += -0.5 / n * sum_i (m_i - y_i) (x_i, 1), by 1 mirrored head",
        ),
        (
            replace(SQUARES, moves=(), factors=(1.0, 0.0)),
            "y x w v one is_query",
            "w v",
            "",
            "w, v += -0.5 / n * sum_i (<w, x_i> - y_i) (x_i, x_i), by 2 mirrored heads",
        ),
        (
            SQUARES,
            "y x w v one is_query is_first",
            "w v",
            "",
            "v = 0.5 v; w += v; w, v += -0.5 / n * sum_i (<w, x_i> + 0.5 <v, x_i> - y_i) "
            "(x_i, x_i), by 2 mirrored heads",
        ),
    ],
    LayerKind.PRODUCT: [
        (MultiplySlots("a", "b", "c"), "a b one", "c", "", "c = a * b"),
        (PullBack("V", "s", "dr", "t"), "V s dr", "t", "", "t = dr * (V^T @ s)"),
        (
            PullBack("V", "s", "dr", "t", ("u",)),
            "V s dr u one",
            "t",
            "",
            "t = dr * (V^T @ s + u)",
        ),
        (Covary("a", "b", "c"), "a b one", "c", "", "c = cov(a, b)"),
        (
            ScaleCentred("a", "s", "n", reach=4.0),
            "a s one",
            "n",
            "",
            "n = s * (a - mean(a))",
        ),
        (
            ScaleCentred("a", "s", "d", "n", "c"),
            "a s n c one",
            "d",
            "",
            "d = s * (a - mean(a) - c * n)",
        ),
    ],
    LayerKind.MLP: [
        (
            MapSlots(
                (Summand(GAP, "clip"), Summand(HALF, "negate")),
                "is_example",
                ("is_query",),
                64.0,
                "u",
            ),
            "p y is_query",
            "u",
            "clip negate",
            "u = clip(+1 p -1 y) + negate(+0.5 y) where is_example",
        ),
        (MapSlots((Summand(A, "relu"),), "one", (), 0.0, "q"), "a", "q", "relu", "q = relu(a)"),
        (
            MapSlots((Summand(A, "identity"),), "is_query", QUERIES, 64.0, "y"),
            "a is_example is_register",
            "y",
            "identity",
            "y = identity(a) where is_query",
        ),
        (ClipSlots(("V", "W"), 3.0, "one"), "V W one", "V W", "", "clip V, W to [-3, 3]"),
        (
            ClipSlots(("V",), 0.5, "scale_size"),
            "V scale_size",
            "V",
            "",
            "clip V to [-0.5, 0.5] scale_size",
        ),
        (WipeSlots(("p", "s")), "p s", "p s", "", "wipe p, s"),
        (MapDifferences("z", "exp", "e"), "z", "e", "exp", "e = exp(z_j - z_k)"),
        (MapRowSums("e", "inverse", "s", 0.01), "e", "s", "inverse", "s = inverse(sum_j e_kj)"),
        (
            Recombine((MOVED, KEPT), "one"),
            "w g m one",
            "w m",
            "",
            "w = clip(+1 w -0.5 g, 2), m = +0.9 m +1 g",
        ),
        (
            Recombine((AVERAGED,), "scale"),
            "w g a scale",
            "w a",
            "",
            "w = clip(+1 w -0.5 g, 2), a = +0.75 a +0.25 w, bounds times scale",
        ),
        (
            TakeTurns(3, "place", "waits", "n"),
            "place waits n one is_example",
            "place waits",
            "",
            "place -= 3, modulo n",
        ),
        (
            LookUpStep(KEY, "t", LEVELS, (1.0, 2.0, 3.0), "tanh", "squared", -0.25, 3.0, 2, "w"),
            "code level w",
            "w",
            "t",
            "w = t(+1 code +2 level), of 2 examples",
        ),
        (SlopeOfLoss("p", "y", "squared", "u", "g"), "p y", "g", "u", "g = u(p, y)"),
        (CopyToQueries("p", "gate", "y"), "p is_query", "y", "gate", "y = p where is_query"),
        (ClipByUnits(("V",), 2.0, "c"), "V", "V", "c", "clip V to [-2, 2] by units"),
        (WipeByUnits(("g", "J"), "l", 2.0), "g J", "g J", "l", "wipe g, J by units"),
        (ShrinkSlot("w", 0.5, 2.0), "w one", "w", "", "shrink w by 0.5, clip to [-2, 2]"),
        (
            ShrinkMoved("w", "v", 0.25, 2.0),
            "w v one",
            "w v",
            "",
            "shrink w by 0.25, clip w to [-2, 2]; v likewise",
        ),
        (
            ShrinkMoved("w", "v", 0.0, 2.0),
            "w v one",
            "w v",
            "",
            "clip w to [-2, 2]; v likewise",
        ),
        (CopyWhere(A, ("f", "g"), 8.0, "w"), "a f g", "w", "", "w += a unless f or g"),
        (CopyWhere(MIXED, (), 8.0, "w", 3.0), "a b", "w", "", "w += clip(+1 a -0.5 b, 3)"),
        (SELECT, "a b f g h i j", "w", "", "w += one of 3: clip(a, 2) .. clip(b, 2) unless f"),
        (
            PassBack(A, "b", ("f",), 0.0, 8.0, "w"),
            "a b f",
            "w",
            "",
            "w += (a) * slope(b) unless f",
        ),
        (PassBack(A, "b", (), 0.0, 8.0, "w", 1.0), "a b", "w", "", "w += (clip(a, 1)) * slope(b)"),
        (
            ActivateWhere("a", "k", ("f",), 0.0, 8.0, "w"),
            "a k f",
            "w",
            "",
            "w += r(a, k) unless f",
        ),
        (
            MarkFlat("a", "k", ("f",), 2.0**-9, 8.0, "w"),
            "a k f",
            "w",
            "",
            "w += flat(a) unless k or f",
        ),
    ],
    LayerKind.SOFTMAX: [
        (
            LookUp(OF_X, ("tanh", "tanh'"), ("p", "dr")),
            "V x",
            "p dr",
            "tanh tanh'",
            "p, dr = tanh, tanh' at V @ x",
        ),
        (
            LookUp(Argument(TWICE), ("sigmoid",), ("u",)),
            "p y",
            "u",
            "sigmoid",
            "u = sigmoid at +2 p -2 y",
        ),
        (Project(PULLED, 2.5, "c"), "V s", "c", "identity", "c = V^T @ s"),
        (
            AddProduct(FAR, 4.0, "dr", 1.0, "s"),
            "p y V dr",
            "s",
            "square",
            "s += dr * (V^T @ (+2 p -2 y))",
        ),
        (AddGradient(A, "x", -0.25, 0.01, "V"), "a x", "V", "", "V += -0.25 * mean(a (x) x)"),
        (
            AddGradient(TWICE, "x", -0.25, 0.01, "V"),
            "p y x",
            "V",
            "",
            "V += -0.25 * mean((+2 p -2 y) (x) x)",
        ),
        (
            ShareClasses("z", ("class_1", "class_2"), "s"),
            "z class_1 class_2 one",
            "s",
            "",
            "s = softmax(z)",
        ),
        (
            AverageExamples(A, MIXED, "c"),
            "a b",
            "c",
            "",
            "c = mean(+1 a -0.5 b) weighted by softmax(a)",
        ),
        (
            MultiplyByEntries(
                "a", 8.0, (Multiplied("b", "v"), Multiplied("c", "w", transposed=True))
            ),
            "a b c",
            "v w",
            "identity",
            "v = b @ a, w = c^T @ a",
        ),
        (
            MultiplyByEntries("a", 8.0, (Multiplied("b", "w", outer=True),)),
            "a b",
            "w",
            "identity",
            "w = b @ a^T",
        ),
        (
            LookUpProduct("a", "b", 8.0, "z", (Evaluation("tanh", "w"),)),
            "a b",
            "z w",
            "tanh identity",
            "z = a @ b, w = tanh(a @ b)",
        ),
        (
            FindBlock("q", "k", ("a", "b"), ("c", "d")),
            "q k a b",
            "c d",
            "",
            "c .. d = the block whose k fit q",
        ),
        (MultiplyEntries("a", "b", 8.0, "w"), "a b", "w", "identity", "w = a * b"),
        (ShareColumns("a", ("b", "c"), "w"), "a b c", "w", "", "w = softmax(a_1 .. a_2)"),
    ],
    LayerKind.GRID: [
        (DecaySlot("w", -0.25), "w one", "w", "", "w += -0.25 * w"),
        (
            PredictMean("probit", ("w", "b"), ("x", "one"), 3.0, "is_query", "m"),
            "w b x one",
            "m",
            "probit",
            "m = probit(<w, x> + b)",
        ),
        (MoveByVelocity("w", "v", 0.5, 0.0, 0.0), "w v one", "w v", "", "v = 0.5 v; w += v"),
        (
            MoveByVelocity("w", "v", 0.5, 0.5, 0.1),
            "w v one",
            "w v",
            "",
            "v = 0.45 v - 0.1 w; w += v",
        ),
    ],
    LayerKind.KERNEL: [
        (
            DescendFunction(KERNELS, 0.1, 0.25, None),
            "x y is_example",
            "y",
            "",
            f"y -= 0.1 (sum_j K y_j + 0.25 y), {K} + 1 linear(G x, G x_j)",
        ),
        (
            DescendFunction((RBF,), 0.1, 0.0, ((2.0,),)),
            "x y is_example",
            "y x",
            "",
            f"y -= 0.1 (sum_j K y_j); x += A sum_j K x_j, {K}",
        ),
        (
            MOMENTUM,
            "x y v is_example",
            "y v",
            "",
            f"v = 0.5 v - 0.1 (sum_j K y_j + 0.25 y); y += v, {K}",
        ),
        (
            replace(MOMENTUM, ahead=0.5, noise=0.0),
            "x y v is_example",
            "y v",
            "",
            f"v = 0.5 v - 0.1 (sum_j K (y + 0.5 v)_j); y += v, {K}",
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "instruction", "reads", "writes", "functions", "formula"),
    [
        pytest.param(kind, *facts, id=type(facts[0]).__name__)
        for kind, group in FACTS.items()
        for facts in group
    ],
)
def test_an_instruction_knows_its_layer_its_slots_its_functions_and_its_formula(
    kind, instruction, reads, writes, functions, formula
):
    assert instruction.kind is kind
    assert set(instruction.reads()) == {*reads.split()}
    assert instruction.writes() == tuple(writes.split())
    assert instruction.functions() == tuple(functions.split())
    assert instruction.formula() == formula


def test_instructions_are_compared_by_value():
    assert MultiplySlots("a", "b", write="c") == MultiplySlots("a", "b", write="c")
    assert MultiplySlots("a", "b", write="c") != MultiplySlots("a", "c", write="c")


def test_a_combination_pairs_its_slots_with_their_coefficients():
    assert Combination(("p", "y"), (2.0, -0.5)).terms() == (("p", 2.0), ("y", -0.5))
    assert Combination.of("p") == Combination(("p",), (1.0,))
    assert Combination(("p",), (2.0,)).formula() == "+2 p"


def test_a_change_has_no_term_that_does_nothing():
    assert MOVED.change("w") == AVERAGED.change("w") == {"g": (-0.5, -0.5)}
    assert KEPT.change("m") == {"m": (0.9 - 1.0,) * 2, "g": (1.0, 1.0)}
    assert Assignment(Combination.of("w"), "w").change("w") == {}
    assert Assignment(Combination.of("g"), "w").change("w") == {"g": (1.0, 1.0), "w": (-1.0, -1.0)}
    assert AVERAGED.shares == {"w": 1.0, "a": 0.25}
    assert AVERAGED.change("a") == {"w": (0.25,) * 2, "g": (-0.125,) * 2, "a": (-0.25,) * 2}


def test_the_last_column_may_have_coefficients_of_its_own():
    """Those of a bias: here it decays while the weights stay, and the other way round."""
    value = Combination(("w", "g"), (1.0, -0.5), (0.75, -0.5))
    assert value.formula() == "(+1, of bias +0.75) w -0.5 g"
    assert Assignment(value, "w").change("w") == {"w": (0.0, -0.25), "g": (-0.5, -0.5)}
    layout = Layout((Slot("w", (2, 3), Role.PARAMETER),))
    assert flat_factor(layout, "w", (0.0, -0.25)) == AxisFactor(("k",), (0.0, 0.0, -0.25) * 2)
    assert flat_factor(layout, "w", (2.0, 2.0)) == 2.0
    with pytest.raises(ProgramError, match="no common coefficients"):
        value.terms()
    with pytest.raises(ProgramError, match="1 coefficients for 2 slots"):
        Combination(("w", "g"), (1.0, -0.5), (0.75,))


def test_numbers_that_follow_from_those_of_an_instruction():
    assert (DESCENT.share(4), SUMMED.share(4)) == (0.25, 1.0)
    assert MoveByVelocity("w", "v", 0.5, 0.5, 0.1).velocity_factor == 0.45
    assert ShrinkMoved("w", "v", 0.25, 2.0).pieces() == ((0.0, 1.0), (0.25, -1.0), (2.25, 1.0))
    assert ShrinkMoved("w", "v", 0.0, 2.0).pieces() == ((2.0, 1.0),)
    assert class_slot(2) == "class_2"


def test_queries_and_keys_may_have_transforms_of_their_own():
    term = KernelTerm("exp", ((1.0,),), 1.0, None, ((2.0,),))
    assert term.formula() == "1 exp(G x, H x_j)"
    assert term.matrices == (((1.0,),), ((2.0,),))
    assert KernelTerm("exp", ((1.0,),), 1.0, None).matrices == (((1.0,),), ((1.0,),))


BACKWARD = ScaleCentred("a", "s", "d", "n", "c")
PREDICT = PredictMean("logistic", ("w",), ("x",), 1.0, "is_query", "m")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Combination(("p", "y"), (1.0,)),
            "1 coefficients for 2 slots, expected one coefficient for each slot",
        ),
        (
            lambda: Combination((), ()),
            "0 coefficients for 0 slots, expected one coefficient for each slot",
        ),
        (
            lambda: LookUp(OF_X, ("tanh", "tanh'"), ("p",)),
            "LookUp: has 2 functions and 1 slots",
        ),
        (
            lambda: replace(PREDICT, inputs=("x", "one")),
            "PredictMean: has 1 weights, 2 inputs and 1 factors",
        ),
        (
            lambda: replace(PREDICT, factors=(1.0, 1.0)),
            "PredictMean: has 1 weights, 1 inputs and 2 factors",
        ),
        (
            lambda: replace(MOMENTUM, velocity=None),
            "but no slot for the velocity",
        ),
        (
            lambda: replace(SELECT, zeros=()),
            "SelectWhere: has 2 flags of bits that are 1, and 0 of those that are 0",
        ),
        (
            lambda: replace(BACKWARD, share=None),
            "share=None, expected both or neither",
        ),
        (
            lambda: replace(BACKWARD, reach=4.0),
            "ScaleCentred: has reach=4 and share='",
        ),
        (
            lambda: ScaleCentred("a", "s", "n", reach=0.0),
            "ScaleCentred: has reach=0 and share=None; a reach must be positive",
        ),
        (lambda: ShrinkSlot("w", -1.0, 2.0), "ShrinkSlot: shrinks w by -1"),
        (lambda: ShrinkMoved("w", "v", -1.0, 2.0), "ShrinkMoved: shrinks w by -1"),
        (
            lambda: replace(DESCENT, tokens="one"),
            "reads the share of an example in 'one', expected tokens_per_example or n_tokens",
        ),
        (lambda: replace(DESCENT, inputs=("x",)), "has 2 weights for 1 inputs"),
        (lambda: replace(SQUARES, n_heads=0), "DescendSquares: has 0 heads with a probe of 0.001"),
        (lambda: replace(SQUARES, probe=-1.0), "DescendSquares: has 2 heads with a probe of -1"),
    ],
)
def test_an_instruction_that_makes_no_sense_is_not_made(make, message):
    with pytest.raises(ProgramError, match=message):
        make()


@dataclass(frozen=True)
class Inner:
    slots: tuple[Read, ...]
    function: Evaluated
    scale: float = 1.0


@dataclass(frozen=True)
class Verb:
    title: str
    inner: Inner
    others: tuple[Inner, ...]
    source: Read | None
    write: Written
    add: Added
    sum: Accumulated
    change: Changed
    one: ClassVar[Read] = "one"


VERB = Verb("t", Inner(("a", "b"), "f"), (Inner(("c",), "g"),), None, "w", "p", "s", "h")


def test_names_are_found_by_their_use_in_the_order_of_the_fields():
    assert names_used(VERB, Use.READ) == ("a", "b", "c", "one")
    assert names_used(VERB, Use.READ, Use.CHANGE) == ("a", "b", "c", "h", "one")
    assert names_used(VERB, Use.WRITE, Use.ADD, Use.ACCUMULATE) == ("w", "p", "s")
    assert names_used(VERB, Use.EVALUATE) == ("f", "g")


def test_a_field_that_may_be_none_names_something_only_if_it_is_not():
    named = Verb("t", Inner((), "f"), (), "a", "w", "p", "s", "h")
    assert names_used(named, Use.READ) == ("a", "one")


def test_a_field_without_a_use_names_nothing():
    everything = names_used(VERB, *Use)
    assert "t" not in everything
    assert set(everything) == {"a", "b", "c", "f", "g", "h", "one", "p", "s", "w"}
