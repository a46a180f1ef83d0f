"""Chains that are generated token by token, beside those whose blocks are handed over."""

from dataclasses import replace

import pytest
import torch

import icgd
from icgd.backends.chain import run_chain
from icgd.backends.decoder import Decoder, decode_chain
from icgd.backends.run import RunOptions
from icgd.errors import (
    DataError,
    InterruptedRunError,
    OverflowedRunError,
    ProgramError,
    SettingError,
    SizeError,
)
from icgd.problems.data import as_task
from tests.backends.chain_cases import problem_of, program_of, task_of
from tests.backends.test_chain import PROBLEMS

MLP = icgd.MLP
SOME = ("one layer", "leaky, batches", "classes", "smooth, biases", "schedule, nesterov")
DEPTHS = (2, 3, 4, 6, 16)


def same_chain(problem, task, n_steps):
    program = program_of(problem, n_steps)
    chain = run_chain(program, task, backend="literal", memory="whole")
    found = decode_chain(program, task)
    assert (found.parameters - chain.parameters).abs().max() <= 1e-12
    assert (found.predictions - chain.predictions).abs().max() <= 1e-12
    assert found.parameters.shape == chain.parameters.shape
    assert (found.parameters[-1] - found.parameters[0]).abs().max() > 1e-3


@pytest.mark.parametrize("name", SOME)
def test_a_decoder_generates_the_chain(name):
    same_chain(PROBLEMS[name], task_of(PROBLEMS[name]), 4)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_decoder_trains_networks_of_every_depth(depth):
    problem = problem_of(MLP((1,) * (depth + 1), "relu"), box=1.0)
    task = as_task(problem, [[1.0], [0.5]], [[2.0], [1.0]], queries=[[1.5]], initial=[0.9] * depth)
    same_chain(problem, task, 2)


def test_attention_reads_what_the_mask_shows_and_nothing_else():
    """Two queries make one batch: a pass of three blocks that begins with their X."""
    problem = PROBLEMS["leaky, batches"]
    task, program = task_of(problem), program_of(problem, 2)
    found = decode_chain(program, replace(task, queries=task.queries[:2]))
    names = ["X 1", "Y 1", "X 2", "Y 2", "X at the queries"]
    names += [f"B {n} of the prompt" for n in (3, 2, 1)]
    for number in (1, 2):
        names += [f"forward {n} of round {number}" for n in (1, 2, 3)]
        names += [f"backward {n} of round {number}" for n in (3, 2, 1)]
    names += [f"forward {n} at the queries" for n in (1, 2, 3)]
    assert list(found.names) == names
    assert found.found.shape == (15, len(names))
    assert set(found.found.flatten().tolist()) == {0.0, 1.0}
    far = found.found[:12].argmax(-1)
    expected = []
    for reading in program.mask.walk(1, 12):
        data = 2 * reading.place.round + (not reading.place.is_forward)
        expected.append(data if reading.far is None else 7 + reading.far)
    assert far.tolist() == expected
    assert [names[place] for place in found.found[12:].argmax(-1)] == [
        "X at the queries", "backward 2 of round 2", "backward 3 of round 2"
    ]  # fmt: skip


def test_tokens_are_the_blocks_of_the_chain():
    problem = PROBLEMS["schedule"]
    task, program = task_of(problem), program_of(problem)
    found = decode_chain(program, replace(task, queries=task.queries[:0]))
    options = RunOptions(program.rows.names)
    trace = run_chain(program, task, options, backend="literal").trace
    blocks = torch.cat([trace[name] for name in program.rows.names], dim=-1)[:, 0]
    assert (found.tokens[2 * 4 :] - blocks).abs().max() <= 1e-12
    assert found.predictions.shape == (0, 2)


def test_tasks_of_a_batch_and_float32_are_decoded():
    problem = PROBLEMS["leaky, batches"]
    task, program = task_of(problem, tasks=(2,)), program_of(problem, 2)
    chain, found = run_chain(program, task, backend="literal"), decode_chain(program, task)
    assert (found.parameters - chain.parameters).abs().max() <= 1e-12
    assert (found.predictions - chain.predictions).abs().max() <= 1e-12
    assert found.tokens.shape == (2, len(found.names), program.rows.width)
    one = as_task(problem, task.x[0], task.y[0], seed=5, dtype="float32")
    narrow = decode_chain(program, one)
    assert narrow.tokens.dtype == torch.float32
    assert set(narrow.found.flatten().tolist()) == {0.0, 1.0}
    assert torch.equal(narrow.parameters, run_chain(program, one, backend="literal").parameters)


def test_the_public_decoder_runs_what_compile_returns():
    problem = problem_of(MLP((2, 3, 1), "relu"))
    compiled = icgd.compile(problem, "cot-network", n_steps=2)
    task, done = task_of(problem), []
    found = icgd.decode(
        compiled, task.x, task.y, queries=task.queries, seed=5,
        on_progress=lambda *step: done.append(step),
    )  # fmt: skip
    run = compiled.run_task(task, backend="literal")
    assert (found.predictions - run.predictions).abs().max() <= 1e-12
    assert done == [(1, 2), (2, 2)]
    deep = icgd.decode(compiled.for_depth(4), task.x, task.y, seed=5)
    again = compiled.for_depth(4).run(task.x, task.y, seed=5)
    assert (deep.parameters - again.parameters).abs().max() <= 1e-11
    assert found.facts()["generated"] == "14 of 23 tokens"
    assert found.weights["weights_1"].shape == (3, 2)
    assert found.loss_curve[-1] < found.loss_curve[0]


def test_an_interrupted_decoder_leaves_its_whole_rounds():
    problem = problem_of(MLP((2, 3, 1), "relu"))
    compiled, task = icgd.compile(problem, "cot-network", n_steps=3), task_of(problem)

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match="after 2 of 3 steps") as caught:
        icgd.decode(compiled, task.x, task.y, queries=task.queries, seed=5, on_progress=stop)
    whole = run_chain(program_of(problem, 2), task, backend="literal")
    assert (caught.value.partial.parameters - whole.parameters).abs().max() <= 1e-12
    assert (caught.value.partial.predictions - whole.predictions).abs().max() <= 1e-12


def test_passes_that_are_interrupted_are_made_again(monkeypatch):
    problem = problem_of(MLP((2, 3, 1), "relu"))
    program, task = program_of(problem, 2), task_of(problem)
    whole, generate, interrupted = decode_chain(program, task), Decoder._generate, []

    def once(decoder, step, visible, *, at_queries=False):
        if at_queries and len(decoder.names) == len(whole.names) - 1 and not interrupted:
            interrupted.append(step)
            raise KeyboardInterrupt
        return generate(decoder, step, visible, at_queries=at_queries)

    monkeypatch.setattr(Decoder, "_generate", once)
    with pytest.raises(InterruptedRunError, match="after 2 of 2 steps") as caught:
        decode_chain(program, task)
    assert torch.equal(caught.value.partial.predictions, whole.predictions)


def test_what_cannot_be_decoded_is_named(monkeypatch):
    problem = problem_of(MLP((2, 3, 1), "relu"))
    compiled = icgd.compile(problem, "cot-network", n_steps=2)
    stack = icgd.compile(problem, "relu-stack", n_steps=2)
    x, y = [[0.5, 1.0]], [1.0]
    with pytest.raises(ProgramError, match="relu-stack is not a chain of one layer"):
        icgd.decode(stack, x, y)
    with pytest.raises(SettingError, match="mask='window' works with chains of one layer"):
        icgd.decode(compiled, x, y, mask="window")
    with pytest.raises(DataError, match="X"):
        icgd.decode(compiled, [[0.5, 1.0, 2.0]], y)
    steep = icgd.Problem(MLP((1, 1, 1), "relu"), "squared", icgd.GradientStep(0.1, 100.0, 1),
                         icgd.Domain(100.0, 1.0))  # fmt: skip
    with pytest.raises(OverflowedRunError, match=r"Row delta of block 3 \(backward 2 of round 1\)"):
        icgd.decode(icgd.compile(steep, "cot-network", n_steps=1), [[50.0]], [0.0],
                    initial=[1.0, 100.0])  # fmt: skip
    monkeypatch.setattr("icgd.environment.free_bytes", lambda: 10**4, raising=False)
    long = icgd.compile(problem, "cot-network", n_steps=10**6)
    with pytest.raises(SizeError, match=r"A sequence of .* tokens"):
        icgd.decode(long, x, y)
