import json
from dataclasses import replace

import pytest

from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.program.chain import ChainProgram
from icgd.program.check import PROGRAMS, from_data
from icgd.program.stack import StackProgram
from tests import cases
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import build
from tests.contracts.backend import RELU_STACK

STACK, CHAIN = build(RELU_STACK, cases.FEW[0]), program_of(problem_of(MLP((2, 3, 1), "relu")))


@pytest.mark.parametrize("program", [STACK, CHAIN], ids=["stack", "chain"])
def test_data_are_read_by_the_kind_that_wrote_them(program):
    again = from_data(json.loads(json.dumps(program.to_data())))
    assert type(again) is type(program)
    assert again == program
    assert again != replace(program, n_steps=program.n_steps + 1)


def test_each_kind_has_a_key_that_no_other_has():
    data = {StackProgram: STACK.to_data(), ChainProgram: CHAIN.to_data()}
    for key, kind in PROGRAMS.items():
        assert [other for other in data if key in data[other]] == [kind]


def test_data_of_no_program_are_refused():
    with pytest.raises(ProgramError) as caught:
        from_data({"construction": "relu-stack"})
    assert str(caught.value) == "The data of a program lack a key of block, rows."
