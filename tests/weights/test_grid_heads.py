import pytest
import torch

from icgd.backends.prompt import encode
from icgd.errors import ProgramError
from icgd.program.instructions import WipeSlots
from icgd.program.stack import StackProgram
from icgd.weights.grid_heads import grid_heads, layer_heads
from icgd.weights.lowering import lower_layer
from tests.linear_cases import PROBLEMS, compiled_of, problem_of, task_of


def n_heads(program: StackProgram) -> int:
    return sum(len(head.columns) for head in layer_heads(program.block[0], program))


def test_least_squares_takes_a_head_an_example_and_other_links_two():
    """And one more for the l2 penalty."""
    numbers = {
        link: n_heads(program)
        for link, program in ((link, compiled_of(p).program) for link, p in PROBLEMS.items())
    }
    assert numbers == {"identity": 7, "logistic": 13, "probit": 13, "poisson": 13, "softplus": 13}
    plain = compiled_of(problem_of("logistic", l2=0.0)).program
    assert n_heads(plain) == 12


@pytest.mark.parametrize("link", PROBLEMS)
def test_the_attention_layer_alone_is_the_gradient_step_in_every_column(link):
    problem = problem_of(link, l1=0.0)
    program, task = compiled_of(problem).program, task_of(problem)
    stream = encode(program, task)
    start = torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64)
    place = slice(program.layout.range_of("w").start, program.layout.range_of("b").stop)
    stream[:, place] = start
    after = lower_layer(program.block[0], program, torch.float64)(stream)
    real = problem.oracle.step(task, start)
    assert (after[:, place] - real).abs().max() <= 1e-12
    others = [c for c in range(program.layout.width) if not place.start <= c < place.stop]
    assert torch.equal(after[:, others], stream[:, others])


def test_an_instruction_without_heads_is_named():
    program = compiled_of(PROBLEMS["logistic"]).program
    with pytest.raises(ProgramError, match="WipeSlots"):
        grid_heads(WipeSlots(("mean",)), program)
