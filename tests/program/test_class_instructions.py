from dataclasses import replace

import pytest

import icgd
from icgd.errors import ProgramError
from icgd.program.check import check_program, from_data
from icgd.program.instructions import LayerKind
from icgd.program.network_instructions import MapDifferences, MapRowSums, ShareClasses, class_slot
from icgd.program.program import Layer
from icgd.program.stack import StackProgram

SHARE = ShareClasses("units_2", ("class_1", "class_2"), "shares")
PAIRS = MapDifferences("units_2", "exp up to 3.0", "pairs")
SUMS = MapRowSums("pairs", "reciprocal", "shares", 0.01)


def test_instructions_read_as_formulas_and_know_their_slots():
    assert class_slot(2) == "class_2"
    assert SHARE.formula() == "shares = softmax(units_2)"
    assert set(SHARE.reads()) >= {"units_2", "class_1", "class_2", "one"}
    assert PAIRS.formula() == "pairs = exp up to 3.0(units_2_j - units_2_k)"
    assert SUMS.formula() == "shares = reciprocal(sum_j pairs_kj)"
    assert [part.writes() for part in (SHARE, PAIRS, SUMS)] == [
        ("shares",),
        ("pairs",),
        ("shares",),
    ]
    assert (PAIRS.functions(), SUMS.functions()) == (("exp up to 3.0",), ("reciprocal",))
    kinds = [part.kind for part in (SHARE, PAIRS, SUMS)]
    assert kinds == [LayerKind.SOFTMAX, LayerKind.MLP, LayerKind.MLP]


def program(construction: str) -> StackProgram:
    update, domain = icgd.GradientStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 3), "relu"), "cross_entropy", update, domain)
    return icgd.compile(problem, construction, n_steps=2).program


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_a_program_of_them_is_data(construction):
    found = program(construction)
    assert from_data(found.to_data()) == found


def test_the_registers_after_the_memory_are_those_of_the_classes():
    registers = program("softmax-stack").registers()
    for number in (1, 2, 3):
        flags = registers[class_slot(number)]
        assert [place for place, flag in enumerate(flags) if flag] == [number]
        assert sum(flags) == 1.0


def broken(good: StackProgram, kind: type, **change: object) -> StackProgram:
    """The program in which the instruction of a kind is changed."""
    block = tuple(
        Layer(
            layer.title,
            tuple(
                replace(part, **change) if isinstance(part, kind) else part
                for part in layer.instructions
            ),
        )
        for layer in good.block
    )
    return replace(good, block=block)


@pytest.mark.parametrize(
    ("kind", "change", "rule"),
    [
        (
            ShareClasses,
            {"classes": ("class_1", "class_2")},
            "shares 3 scores 'units_2' among 2 classes",
        ),
        (MapDifferences, {"write": "shares"}, r"writes \(9\) to shares"),
        (MapRowSums, {"source": "units_2"}, r"reads coordinate 7 of \(3\), .* units_2 \(3\)"),
        (MapRowSums, {"missed": float("nan")}, "missed of MapRowSums in layer .* is nan"),
    ],
)
def test_a_broken_instruction_is_named(kind, change, rule):
    good = program("softmax-stack" if kind is ShareClasses else "relu-stack")
    check_program(good)
    with pytest.raises(ProgramError, match=rule):
        check_program(broken(good, kind, **change))
