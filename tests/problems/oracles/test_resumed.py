"""Runs of steps that know where the run was one step earlier."""

import torch

from icgd.problems.oracles.oracle import stepped, trained


def fibonacci(now, before, number):
    """The numbers of Fibonacci from 1, 1; each step adds its own number, too, in another entry."""
    return torch.stack(
        [now[..., 0] + (before[..., 0] if number else 0.0), now[..., 1] + number], -1
    )


START = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)


def test_a_run_begins_at_rest_and_remembers_one_step():
    run = trained(fibonacci, START, 6)
    assert run[0, :, 0].tolist() == [1, 1, 2, 3, 5, 8, 13]
    assert run[1, :, 0].tolist() == [2, 2, 4, 6, 10, 16, 26]
    assert run[0, :, 1].tolist() == [0, 0, 1, 3, 6, 10, 15]


def test_every_step_is_taken_from_the_runs_own_entries():
    run = trained(fibonacci, START, 6)
    assert torch.equal(stepped(fibonacci, run), run[:, 1:])
    off = run.clone()
    off[0, 2, 0] = 7.0
    assert stepped(fibonacci, off)[0, :, 0].tolist() == [1, 2, 8, 10, 8, 13]


def test_a_run_without_steps_has_nothing_to_step_from():
    assert stepped(fibonacci, START[:, None]).shape == (2, 0, 2)
