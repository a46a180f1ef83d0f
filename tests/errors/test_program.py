import pytest

from icgd.errors import program
from icgd.errors.program import LayoutError, ProgramError
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(ProgramError.not_a_stack, "ChainProgram"),
        "A causal mask needs a program of type StackProgram, got one of type ChainProgram. Give "
        "compiled.stack of a run that was compiled with construction='softmax-stack'.",
    ),
    (
        made(LayoutError.unknown_slot, "gradeint", known=["input", "gradient"]),
        "Layout has no slot 'gradeint'; it has input, gradient. Did you mean 'gradient'?",
    ),
    (
        made(LayoutError.unknown_slot, "z", known=["input", "gradient"]),
        "Layout has no slot 'z'; it has input, gradient.",
    ),
    (
        made(LayoutError.duplicate_slot, "x"),
        "Layout names slot 'x' twice; slot names must be unique.",
    ),
    (
        made(LayoutError.no_coordinate, 23, 23),
        "The residual stream has coordinates 0 to 22, got 23.",
    ),
    (
        made(ProgramError.broken, "block layer 2 (slopes)", "reads 'p' too early"),
        "block layer 2 (slopes): reads 'p' too early",
    ),
    (
        made(ProgramError.not_masked, "relu-stack"),
        "A mask needs softmax attention alone; relu-stack has other attention too. "
        "Compile with construction='softmax-stack'.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(program)
