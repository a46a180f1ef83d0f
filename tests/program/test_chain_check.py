from dataclasses import replace

import pytest

from icgd.errors import LayoutError, ProgramError
from icgd.problems.mlp import MLP
from icgd.problems.optimisers.gradient_step import GradientStep
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
from tests.cases import Juggle

PROGRAM = program_of(problem_of(MLP((3, 4, 2), "relu"), batch_size=2))

ROWS = PROGRAM.rows
FIRST, *REST = ROWS.slots

SCHEDULE = program_of(
    replace(problem_of(MLP((2, 1))), update=GradientStep((0.3, 0.2, 0.1, 0.3), 1.0, 1))
)
CLASSES = program_of(problem_of(MLP((3, 4, 2), "relu"), 2, loss="cross_entropy"))

COARSE = replace(PROGRAM.functions[0], name="coarse", values=(0.0,))


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


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (changed(1, copy("z", "inputs")), "layer 1 (router): reads z before it is written"),
        (changed(3, copy("delta", "inputs")), "layer 3 (next block): writes inputs once more"),
        (
            changed(1, copy("near.first", "weights")),
            "layer 1 (router): near.first has shape (4, 2), weights has (4, 4)",
        ),
        (
            changed(1, copy("near.first", "inputs", "far.first")),
            "layer 1 (router): far.first has shape (4, 2); a flag is one number, or one for each",
        ),
        (
            changed(2, MultiplyMatrices("weights", "delta", 1.0, "outer")),
            "layer 2 (products): multiplies shapes (4, 4) and (4, 2) into outer of shape (4, 4)",
        ),
        (
            changed(2, MultiplyEntries("delta", "weights", 1.0, "back")),
            "layer 2 (products): multiplies entries of [(4, 2), (4, 4)]",
        ),
        (
            changed(2, LookUpProduct("weights", "delta", 1.0, "outer", "identity", "z")),
            "layer 2 (products): multiplies shapes (4, 4) and (4, 2) into outer of shape (4, 4)",
        ),
        (
            changed(3, ShareColumns("delta", ("class_1",) * 5, "back"), program=CLASSES),
            "layer 3 (products): shares 5 classes among 4 scores",
        ),
        (
            changed(3, ShareColumns("weights", ("class_1",), "back"), program=CLASSES),
            "layer 3 (products): shares scores of (4, 4) into (4, 2)",
        ),
        (
            changed(2, LookUpProduct("weights", "inputs", 1.0, "z", "tanh", "back")),
            "functions: lack tanh",
        ),
        (
            replace(PROGRAM, functions=(*PROGRAM.functions, COARSE)),
            "functions: need the same number of lattice points",
        ),
        (changed(2, copy("delta", "z")), "layer 2 (products): needs instructions of one kind"),
        (changed(1, Juggle()), "Juggle: has no shape rule in program/chain_check.py"),
        (
            changed(1, copy("near.first", "inputs", gate=float("inf"))),
            "layer 1 (router): CopyWhere.gate is inf, expected a finite number",
        ),
        (
            changed(3, select("out.first", "linear", "kinked")),
            "layer 3 (next block): selects one of 3 sums by 1 and 1 flags",
        ),
        (
            changed(3, select("out.first", "linear", "kinked", "forward", "backward")),
            "layer 3 (next block): weights has shape (4, 4), out.first has (4, 2)",
        ),
        (replace(PROGRAM, rules=(0, 0)), "program: has rules for 2 rounds, but 4 rounds"),
        (
            replace(PROGRAM, rules=(0, 1, 0, 0)),
            "program: has numbers of rules, but selects no sum by them",
        ),
        (
            replace(SCHEDULE, rules=(0, 1, 3, 0)),
            "program: has a round of rule 3, and selects one of 3 sums",
        ),
        (
            replace(PROGRAM, shapes=((9, 3), *PROGRAM.shapes[1:])),
            f"program: pads to width {PROGRAM.width}, and a layer has 9 units",
        ),
        (replace(PROGRAM, n_steps=-1), "program: needs layers and a whole number of rounds"),
        (replace(PROGRAM, batch_size=0), "program: has rounds on 0 examples"),
        (
            replace(PROGRAM, rows=replace(ROWS, slots=(replace(FIRST, shape=(9, 2)), *REST))),
            f"row {FIRST.name!r}: has shape (9, 2) in a block, {FIRST.shape} in the stream",
        ),
        (
            replace(PROGRAM, functions=(replace(PROGRAM.functions[0], spacing=-1.0),)),
            "needs a positive reach, spacing and ratio, and errors of at least 0",
        ),
        (replace(PROGRAM, kinds=()), "program: needs a flag for the kind of every layer"),
        (
            replace(PROGRAM, layers=PROGRAM.layers[:-1]),
            "program: writes no first, second, flat, weights, ",
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_layer(program, message):
    with pytest.raises(ProgramError) as caught:
        check_program(program)
    assert message in str(caught.value)


def test_an_unknown_slot_is_named():
    with pytest.raises(LayoutError, match="no slot 'inptus'"):
        check_program(changed(1, copy("near.first", "inptus")))
