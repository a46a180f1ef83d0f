import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import icgd
from icgd.backends.causal import (
    causal_mask,
    causal_prompt,
    run_left_to_right,
    run_under,
)
from icgd.backends.dense import DenseBackend
from icgd.backends.prompt import encode, read_parameters
from icgd.compiled import Compiled
from icgd.errors import ProgramError
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.program.stack import StackProgram
from tests.cases import CONSTRUCTIONS, Case, build, make_case

SMALL_BOX = {"box": 1.0, "domain": Domain(x=2.0, y=1.0)}
CASE = make_case(MLP((2, 3, 1), "sigmoid"), "squared", n_examples=3, **SMALL_BOX)
KINKED = make_case(MLP((2, 2, 1), "leaky_relu"), "huber", n_examples=3, seed=1, **SMALL_BOX)


def prefix_mask(program: StackProgram, task: Task) -> torch.Tensor:
    """Which tokens (columns) a token (row) may read: the prefix before the queries, and itself."""
    n_prefix = program.n_registers + task.n_examples
    mask = torch.eye(n_prefix + task.n_queries, dtype=torch.bool)
    mask[:, :n_prefix] = True
    return mask


def program_of(case: Case) -> StackProgram:
    return build(CONSTRUCTIONS["softmax-stack"], case)


def test_queries_may_come_last_and_be_read_by_nobody():
    program, task = program_of(CASE), CASE.task()
    mask = prefix_mask(program, task)
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
    run = run_left_to_right(program, task)
    assert (expected.parameters[-1] - expected.parameters[0]).abs().max() > 1e-2
    torch.testing.assert_close(run.parameters, expected.parameters[[0, -1]], rtol=0, atol=1e-13)
    torch.testing.assert_close(run.predictions, expected.predictions, rtol=0, atol=1e-13)


def test_it_takes_data_like_every_other_call():
    compiled, task = Compiled(CASE.problem, program_of(CASE)), CASE.task()
    causal = icgd.run_causal(compiled, task.x, task.y, queries=task.queries, initial=task.initial)
    expected = run_left_to_right(compiled.stack, task)
    assert torch.equal(causal.parameters, expected.parameters)
    assert torch.equal(causal.predictions, expected.predictions)
    assert causal.loss_curve[-1] < causal.loss_curve[0]
    assert {*causal.weights} == {"weights_1", "weights_2"}


def test_a_program_and_a_task_still_work_with_a_warning():
    program, task = program_of(CASE), CASE.task()
    with pytest.warns(DeprecationWarning, match=r"icgd.run_causal\(compiled, X, y\)"):
        run = icgd.run_causal(program, task)
    assert torch.equal(run.parameters, run_left_to_right(program, task).parameters)


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
    with pytest.raises(
        ProgramError,
        match="A causal mask needs a program with softmax attention and MLPs only; relu-stack",
    ):
        run_left_to_right(program, CASE.task())
    with pytest.raises(
        ProgramError,
        match="A causal mask needs a program with softmax attention and MLPs only; relu-stack",
    ):
        run_left_to_right(program, replace(CASE.task(), queries=CASE.task().queries[:0]))


def test_the_example_of_its_page_trains_left_to_right(capsys):
    page = Path(__file__).parents[2] / "docs" / "constructions" / "softmax_stack.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(example, names)
    run, causal = names["run"], names["causal"]
    assert (run.parameters[-1] - run.parameters[0]).abs().max() > 1e-2
    torch.testing.assert_close(causal.parameters[-1], run.parameters[-1], rtol=0, atol=1e-9)
    torch.testing.assert_close(causal.predictions, run.predictions, rtol=0, atol=1e-9)
    assert float(capsys.readouterr().out) <= 1e-9
