"""Batches in groups, with a run that counts two steps a group."""

import pytest
import torch

from icgd.backends.run import PLAIN, Run, RunOptions, joined, run_in_groups
from icgd.errors import InterruptedRunError
from icgd.problems.data import Task

N_TASKS = 5
BATCH = Task(*(torch.arange(5.0).double().view(5, 1, 1) for _ in range(3)), torch.zeros(5, 1))


def run(task: Task, options: RunOptions) -> Run:
    """Two steps of 1 from the first input of every task."""
    for step in (1, 2):
        if options.on_progress:
            options.on_progress(step, 2)
    start = task.x[:, 0]
    return Run(torch.stack([start, start + 2], dim=-2), task.queries, {"x": task.x[:, None]})


def interrupted(task: Task, options: RunOptions) -> Run:
    known = Run(task.initial[:, None], task.y[:, :0])
    raise InterruptedRunError("after 0 of 2 steps", known)


@pytest.mark.parametrize(("size", "lengths"), [(2, [2, 2, 1]), (5, [5]), (9, [5]), (0, [1] * 5)])
def test_a_batch_is_cut_into_groups(size, lengths):
    groups: list[Task] = []

    def seen(task: Task, options: RunOptions) -> Run:
        groups.append(task)
        return run(task, options)

    run_in_groups(seen, BATCH, size, PLAIN)
    assert [len(group.x) for group in groups] == lengths
    assert torch.equal(torch.cat([group.x for group in groups]), BATCH.x)


def test_one_task_is_a_group():
    alone = Task(BATCH.x[0], BATCH.y[0], BATCH.queries[0], BATCH.initial[0])
    whole = Run(alone.initial[None], alone.queries)
    assert run_in_groups(lambda task, _: whole if task is alone else None, alone, 2, PLAIN) is whole


def test_groups_are_joined_in_order_and_progress_counts_all_their_steps():
    calls: list[tuple[int, int]] = []
    options = RunOptions(on_progress=lambda *call: calls.append(call))
    whole = run_in_groups(run, BATCH, 2, options)
    assert whole.parameters[:, 1, 0].tolist() == [2, 3, 4, 5, 6]
    assert whole.predictions.flatten().tolist() == whole.trace["x"].flatten().tolist()
    assert calls == [(done, 6) for done in range(1, 7)]


def test_an_interruption_leaves_the_groups_that_are_done():
    def interrupt(done: int, total: int) -> None:
        if done == 5:
            raise InterruptedRunError("after 0 of 2 steps", "of the third group")

    with pytest.raises(InterruptedRunError, match="whole runs of the first 4 of 5") as caught:
        run_in_groups(run, BATCH, 2, RunOptions(on_progress=interrupt))
    assert caught.value.partial.parameters[:, 1, 0].tolist() == [2, 3, 4, 5]


def test_an_interruption_of_the_first_group_leaves_its_run_so_far():
    with pytest.raises(InterruptedRunError, match="runs so far of the first 2 of 5") as caught:
        run_in_groups(interrupted, BATCH, 2, PLAIN)
    assert caught.value.partial.parameters.shape == (2, 1, 1)


def test_an_interruption_of_the_only_group_is_that_of_its_run():
    with pytest.raises(InterruptedRunError, match="after 0 of 2 steps"):
        run_in_groups(interrupted, BATCH, 5, PLAIN)


def test_an_interruption_between_groups_loses_nothing(monkeypatch):
    monkeypatch.setattr("icgd.backends.run.joined", lambda runs: tries.pop(0)(runs))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    tries = [interrupt, joined]
    with pytest.raises(InterruptedRunError, match="whole runs of the first 5 of 5") as caught:
        run_in_groups(run, BATCH, 2, PLAIN)
    assert caught.value.partial.parameters[:, 1, 0].tolist() == [2, 3, 4, 5, 6]


def test_an_interruption_before_all_groups_has_nothing_to_leave():
    def interrupt(task: Task, options: RunOptions) -> Run:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run_in_groups(interrupt, BATCH, 2, PLAIN)
    assert not isinstance(caught.value, InterruptedRunError)
