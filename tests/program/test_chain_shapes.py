from dataclasses import replace

import pytest

from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.program.chain import ChainProgram
from icgd.program.chain_instructions import (
    CopyWhere,
    LookUpProduct,
    MultiplyEntries,
    MultiplyMatrices,
    SelectWhere,
    ShareColumns,
)
from icgd.program.check import check_program
from icgd.program.instructions import Combination, Instruction
from tests.backends.chain_cases import problem_of, program_of

PROGRAM = program_of(problem_of(MLP((3, 4, 2), "relu"), batch_size=2))

SCHEDULE = program_of(
    replace(problem_of(MLP((2, 1))), update=GradientStep((0.3, 0.2, 0.1, 0.3), 1.0, 1))
)
CLASSES = program_of(problem_of(MLP((3, 4, 2), "relu"), 2, loss="cross_entropy"))


def changed(
    number: int, *instructions: Instruction, program: ChainProgram = PROGRAM
) -> ChainProgram:
    """The program with instructions added to one of its layers."""
    layers = list(program.layers)
    layer = layers[number - 1]
    layers[number - 1] = replace(layer, instructions=(*layer.instructions, *instructions))
    return replace(program, layers=tuple(layers))


def copy(source: str, write: str, *flags: str, gate: float = 8.0) -> CopyWhere:
    return CopyWhere(Combination.of(source), flags, gate, write)


def select(write: str, *flags: str) -> SelectWhere:
    """One of three sums, by the first flags and as many others."""
    ones, zeros = flags[::2], flags[1::2]
    return SelectWhere((Combination.of("weights"),) * 3, ones, zeros, (), 8.0, write)


def test_a_program_as_built_obeys_the_rules():
    check_program(PROGRAM)
    check_program(CLASSES)
    check_program(SCHEDULE)


ROUTER, PRODUCTS, NEXT = (
    "chain layer 1 (router)",
    "chain layer 2 (products)",
    "chain layer 3 (next block)",
)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            changed(1, copy("near.first", "inptus")),
            f"{ROUTER}, CopyWhere: uses 'inptus', and the layout has no such slot.",
        ),
        (
            changed(1, copy("z", "inputs")),
            f"{ROUTER}, CopyWhere: reads 'z' before it is written.",
        ),
        (
            changed(3, copy("delta", "inputs")),
            f"{NEXT}, CopyWhere: writes over 'inputs', which still holds a value.",
        ),
        (
            changed(1, copy("near.first", "weights")),
            f"{ROUTER}, CopyWhere: near.first has shape (4, 2), weights has (4, 4).",
        ),
        (
            changed(1, copy("near.first", "inputs", "far.first")),
            f"{ROUTER}, CopyWhere: far.first has shape (4, 2); a flag is one number, or one for "
            "each unit.",
        ),
        (
            changed(2, MultiplyMatrices("weights", "delta", 1.0, "outer")),
            f"{PRODUCTS}, MultiplyMatrices: multiplies shapes (4, 4) and (4, 2) into outer of "
            "shape (4, 4).",
        ),
        (
            changed(2, MultiplyEntries("delta", "weights", 1.0, "back")),
            f"{PRODUCTS}, MultiplyEntries: multiplies entries of [(4, 2), (4, 4)].",
        ),
        (
            changed(2, LookUpProduct("weights", "delta", 1.0, "outer", "identity", "z")),
            f"{PRODUCTS}, LookUpProduct: multiplies shapes (4, 4) and (4, 2) into outer of shape "
            "(4, 4).",
        ),
        (
            changed(3, ShareColumns("delta", ("class_1",) * 5, "back"), program=CLASSES),
            "chain layer 3 (products), ShareColumns: shares 5 classes among 4 scores.",
        ),
        (
            changed(3, ShareColumns("weights", ("class_1",), "back"), program=CLASSES),
            "chain layer 3 (products), ShareColumns: shares scores of (4, 4) into (4, 2).",
        ),
        (
            changed(2, LookUpProduct("weights", "inputs", 1.0, "z", "tanh", "back")),
            f"{PRODUCTS}, LookUpProduct: needs a LatticeFunction called 'tanh', and there is none.",
        ),
        (
            changed(2, copy("delta", "z")),
            f"{PRODUCTS}, CopyWhere: is for mlp layers, and the layer is softmax.",
        ),
        (
            changed(1, copy("near.first", "inputs", gate=float("inf"))),
            "gate of CopyWhere in layer 'router' is inf; every number of a program must be finite.",
        ),
        (
            changed(3, select("out.first", "linear", "kinked")),
            f"{NEXT}, SelectWhere: selects one of 3 sums by 1 and 1 flags.",
        ),
        (
            changed(3, select("out.first", "linear", "kinked", "forward", "backward")),
            f"{NEXT}, SelectWhere: weights has shape (4, 4), out.first has (4, 2).",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_instruction(program, message):
    with pytest.raises(ProgramError) as caught:
        check_program(program)
    assert str(caught.value) == message


def test_a_chain_writes_every_row_of_the_next_block():
    with pytest.raises(ProgramError, match=r"^The chain writes no out\.first, out\.flat, "):
        check_program(replace(PROGRAM, layers=PROGRAM.layers[:-1]))
