import pytest
import torch

from icgd.backends.causal import (
    causal_mask,
    causal_prompt,
    masked_transformer,
    prefix_mask,
    run_causal,
    run_under,
)
from icgd.backends.dense import DenseBackend
from icgd.backends.prompt import encode, read_parameters
from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.problems.problem import Domain
from icgd.program.stack import StackProgram
from tests.cases import CONSTRUCTIONS, Case, build, make_case

SMALL_BOX = {"box": 1.0, "domain": Domain(x=2.0, y=1.0)}
CASE = make_case(MLP((2, 3, 1), "sigmoid"), "squared", n_examples=3, **SMALL_BOX)
KINKED = make_case(MLP((2, 2, 1), "leaky_relu"), "huber", n_examples=3, seed=1, **SMALL_BOX)


def program_of(case: Case) -> StackProgram:
    return build(CONSTRUCTIONS["softmax-stack"], case)


def test_queries_may_come_last_and_be_read_by_nobody():
    program, task = program_of(CASE), CASE.task()
    mask = prefix_mask(program, task)
    n_prefix = program.n_registers + task.n_examples
    assert mask[:, :n_prefix].all()
    assert torch.equal(mask[:, n_prefix:].nonzero()[:, 0], torch.arange(n_prefix, len(mask)))
    open_to_all = torch.ones_like(mask)
    stream = encode(program, task)
    masked = run_under(program, task, stream, mask)
    torch.testing.assert_close(
        masked, run_under(program, task, stream, open_to_all), rtol=0, atol=1e-14
    )


def test_the_causal_mask_lets_nobody_read_a_later_token():
    mask = causal_mask(program_of(CASE), CASE.task())
    assert not mask.triu(1).any()
    assert mask.any(dim=-1).all()


@pytest.mark.parametrize("case", [CASE, KINKED], ids=["smooth", "kinked"])
def test_left_to_right_with_the_prompt_repeated_it_trains_as_before(case):
    program, task = program_of(case), case.task()
    expected = DenseBackend().run(program, task)
    run = run_causal(program, task)
    assert (expected.parameters[-1] - expected.parameters[0]).abs().max() > 1e-2
    torch.testing.assert_close(run.parameters, expected.parameters[[0, -1]], rtol=0, atol=1e-13)
    torch.testing.assert_close(run.predictions, expected.predictions, rtol=0, atol=1e-13)


def test_left_to_right_without_repeating_the_prompt_nothing_is_learnt():
    program, task = program_of(CASE), CASE.task()
    stream = encode(program, task)
    triangle = torch.ones(stream.shape[0], stream.shape[0], dtype=torch.bool).tril()
    after = read_parameters(program.layout, run_under(program, task, stream, triangle))
    torch.testing.assert_close(after, task.initial, rtol=0, atol=1e-13)


def test_the_repeated_prompt_is_as_long_as_said():
    program, task = program_of(CASE), CASE.task()
    n_tokens = 4 * program.n_registers + 3 * task.n_examples + task.n_queries
    assert causal_prompt(program, task).shape == (n_tokens, program.layout.width)
    assert causal_mask(program, task).shape == (n_tokens, n_tokens)


def test_relu_attention_has_no_mask():
    program = build(CONSTRUCTIONS["relu-stack"], CASE)
    with pytest.raises(ProgramError, match="A mask needs softmax attention alone; relu-stack"):
        masked_transformer(program, prefix_mask(program, CASE.task()), torch.float64)
