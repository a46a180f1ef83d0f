from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    LookUpProduct,
    MarkFlat,
    MultiplyEntries,
    MultiplyMatrices,
    PassBack,
    SelectWhere,
    ShareColumns,
)
from icgd.program.instructions import Combination

A = Combination.of("a")
SELECT = SelectWhere(
    (A, A, Combination.of("b")), ("g", "h"), ("i", "j"), ("f",), 8.0, "w", bound=2.0
)


def test_instructions_read_as_formulas_and_know_their_slots():
    instructions = {
        "w += a unless f or g": CopyWhere(A, ("f", "g"), 8.0, "w"),
        "w += clip(+1 a -0.5 b, 3)": CopyWhere(
            Combination(("a", "b"), (1.0, -0.5)), (), 8.0, "w", bound=3.0
        ),
        "w += (a) * slope(b) unless f": PassBack(A, "b", ("f",), 0.0, 8.0, "w"),
        "w += r(a, k) unless f": ActivateWhere("a", "k", ("f",), 0.0, 8.0, "w"),
        "w += flat(a) unless k or f": MarkFlat("a", "k", ("f",), 2.0**-9, 8.0, "w"),
        "w = a^T @ b": MultiplyMatrices("a", "b", 8.0, "w", left_transposed=True),
        "w = a @ b^T": MultiplyMatrices("a", "b", 8.0, "w", right_transposed=True),
        "w = tanh(a @ b)": LookUpProduct("a", "b", 8.0, "z", "tanh", "w"),
        "w = a * b": MultiplyEntries("a", "b", 8.0, "w"),
        "w += one of 3: clip(a, 2) .. clip(b, 2) unless f": SELECT,
        "w = softmax(a_1 .. a_2)": ShareColumns("a", ("b", "c"), "w"),
        "w += (clip(a, 1)) * slope(b)": PassBack(A, "b", (), 0.0, 8.0, "w", bound=1.0),
    }
    reads = [set("afg"), set("ab"), set("abf"), set("akf"), set("akf"), *[set("ab")] * 4]
    reads += [set("abfghij"), set("abc"), set("ab")]
    for (formula, instruction), slots in zip(instructions.items(), reads, strict=True):
        assert instruction.formula() == formula
        assert set(instruction.reads()) == slots
        assert instruction.writes() == ("w",)


def test_a_sum_is_closed_by_the_bits_that_its_number_does_not_have():
    closed_by = [SELECT.sum_of(number).closed_by for number in range(3)]
    assert closed_by == [("f", "g", "h"), ("f", "i", "h"), ("f", "g", "j")]
    assert SELECT.sum_of(2) == CopyWhere(Combination.of("b"), ("f", "g", "j"), 8.0, "w", bound=2.0)
