"""What every executor owes the driver: join in tests/backends/test_<executor>.py."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from icgd.backends import recorder
from icgd.backends import run as driver
from icgd.backends.run import AbstractExecutor, Run, RunOptions, drive
from icgd.errors import InterruptedRunError, OverflowedRunError
from icgd.problems.data import Task
from icgd.problems.oracles import overflowed

N_STEPS = 4
FOLDER = str(Path(driver.__file__).parent)


def equal(ours: Run, theirs: Run) -> bool:
    """Whether two runs have the same numbers, bit for bit."""
    return (
        torch.equal(ours.parameters, theirs.parameters)
        and torch.equal(ours.predictions, theirs.predictions)
        and ours.trace.keys() == theirs.trace.keys()
        and all(torch.equal(ours.trace[name], theirs.trace[name]) for name in ours.trace)
    )


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def interrupt_after(step: int) -> Callable[[int, int], None]:
    return lambda done, total: interrupt() if done == step else None


@contextmanager
def interrupted_at(moment: int) -> Iterator[list[int]]:
    """Ctrl-C before the line of that number, of all that a run goes through in the backends.

    Lines count from where the driver begins to run.
    """
    n_lines = [0]

    def local(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line":
            n_lines[0] += 1
            if n_lines[0] == moment:
                sys.settrace(None)
                raise KeyboardInterrupt
        return local

    def follow(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        has_begun = n_lines[0] or (code.co_filename, code.co_name) == (driver.__file__, "run")
        return local if has_begun and code.co_filename.startswith(FOLDER) else None

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        yield n_lines
    finally:
        sys.settrace(before)


@dataclass
class Steps:
    """As much of a program as the driver asks for."""

    n_steps: int
    can_go_on: bool = True

    def next_example(self, n_steps: int, n_examples: int) -> int | None:
        return None


class ExecutorContract:
    """Subclasses say how to make the executor of `n_steps` on a task.

    `traced` names what it can record, which may be nothing, and `per_step` how many layers or
    blocks one step is, after `at_first` of the prompt.
    """

    traced: tuple[str, ...] = ()
    per_step = 0
    at_first = 1

    def task(self) -> Task:
        raise NotImplementedError

    def make(self, n_steps: int, task: Task, options: RunOptions) -> AbstractExecutor[Any]:
        raise NotImplementedError

    def overflowing(self) -> Task | None:
        """A task with a step that leaves the range of numbers; None if guards come before."""
        task = self.task()
        return Task(task.x, task.y * inf, task.queries, task.initial)

    def run(self, n_steps: int = N_STEPS, task: Task | None = None, **options: object) -> Run:
        task, asked = task or self.task(), RunOptions(**{"trace": self.traced, **options})
        make = lambda _, task, options: self.make(n_steps, task, options)  # noqa: E731
        return drive(make, Steps(n_steps), task, asked)

    @classmethod
    @cache
    def whole(cls, n_steps: int) -> Run:
        """A run of so many steps that nobody interrupts."""
        return cls().run(n_steps)

    def until(self, n_steps: int) -> Run:
        """What an interruption after so many steps should leave."""
        run = self.whole(n_steps)
        end = self.at_first + n_steps * self.per_step
        recorded = {name: trace[..., :end, :, :] for name, trace in run.trace.items()}
        return Run(run.parameters, run.predictions, recorded)

    def test_steps_of_a_long_run_are_those_of_a_short_one(self):
        long, short = self.whole(N_STEPS), self.whole(2)
        assert torch.equal(long.parameters[..., :3, :], short.parameters)
        assert (long.parameters[..., 1:, :] - long.parameters[..., :-1, :]).abs().amax(-1).min() > 0

    def test_without_history_the_ends_are_kept(self):
        ends, whole = self.run(history=False), self.whole(N_STEPS)
        assert torch.equal(ends.parameters, whole.parameters[..., [0, -1], :])
        assert torch.equal(ends.predictions, whole.predictions)

    def test_progress_is_reported_after_every_step(self):
        calls: list[tuple[int, int]] = []
        self.run(on_progress=lambda *call: calls.append(call))
        assert calls == [(step, N_STEPS) for step in range(1, N_STEPS + 1)]

    @pytest.mark.parametrize("history", [True, False])
    def test_it_stops_once_enough_steps_move_nothing(self, history: bool):
        task = self.task()
        passes = self.make(1, task, RunOptions()).still_steps
        moved = self.run(40).parameters.diff(dim=-2).abs().amax(-1).reshape(-1, 40).amax(0)
        limit = float(moved[3 : 3 + passes].max())
        still = [bool(move <= limit) for move in moved]
        expected = next(n for n in range(1, 41) if n >= passes and all(still[n - passes : n]))
        run = self.run(40, stop_below=limit, history=history)
        assert run.stopped_after == expected < 40
        assert torch.equal(run.parameters[..., -1, :], self.whole(expected).parameters[..., -1, :])
        assert torch.equal(run.predictions, self.whole(expected).predictions)

    @pytest.mark.parametrize("step", [1, 2, N_STEPS])
    def test_ctrl_c_between_steps_leaves_the_first_ones(self, step: int):
        with pytest.raises(InterruptedRunError, match=f"after {step} of {N_STEPS} ") as caught:
            self.run(on_progress=interrupt_after(step))
        assert equal(caught.value.partial, self.until(step))

    def test_ctrl_c_without_history_leaves_the_ends(self):
        with pytest.raises(InterruptedRunError) as caught:
            self.run(on_progress=interrupt_after(3), history=False)
        expected = self.until(3)
        ends = expected.parameters[..., [0, -1], :]
        assert equal(caught.value.partial, Run(ends, expected.predictions, expected.trace))

    @pytest.mark.parametrize("history", [True, False])
    def test_ctrl_c_in_a_step_leaves_the_steps_before(self, monkeypatch, history: bool):
        """At its end: all is done, but the driver does not know of it yet."""
        made = self.make(N_STEPS, self.task(), RunOptions(self.traced))
        step, n_calls = type(made).step, []

        def interrupted(executor: AbstractExecutor[Any]) -> object:
            reached = step(executor)
            n_calls.append(reached)
            return interrupt() if len(n_calls) == 3 else reached

        monkeypatch.setattr(type(made), "step", interrupted)
        with pytest.raises(InterruptedRunError, match=f"after 2 of {N_STEPS} ") as caught:
            self.run(history=history)
        expected = self.until_undisturbed(monkeypatch, 2)
        kept = expected.parameters if history else expected.parameters[..., [0, -1], :]
        assert equal(caught.value.partial, Run(kept, expected.predictions, expected.trace))

    def until_undisturbed(self, monkeypatch: pytest.MonkeyPatch, n_steps: int) -> Run:
        monkeypatch.undo()
        return self.until(n_steps)

    @pytest.mark.parametrize("is_first", [True, False], ids=["first run", "later run"])
    def test_ctrl_c_at_any_moment_leaves_the_last_whole_step(self, is_first):
        def prepare() -> None:
            """Leave buffers to the next run, or none."""
            self.run(2)
            if is_first:
                for kept in recorder._CACHE.values():
                    kept.pop("idle", None)

        prepare()
        with interrupted_at(0) as counted:
            undisturbed = self.run(2)
        n_lines = counted[0]
        assert n_lines > 20
        whole = {n_done: self.until(n_done) for n_done in (0, 1, 2)}
        seen = set()
        for moment in sorted({1, 2, 3, n_lines, *range(1, n_lines, max(1, n_lines // 25))}):
            prepare()
            with interrupted_at(moment), pytest.raises(InterruptedRunError) as caught:
                self.run(2)
            partial_run = caught.value.partial
            n_done = partial_run.parameters.shape[-2] - 1
            seen.add(n_done)
            if partial_run.predictions.numel():  # there is an executor by then
                assert equal(partial_run, whole[n_done]), moment
            else:
                assert n_done == 0, moment
                assert torch.equal(partial_run.parameters, whole[0].parameters)
            assert equal(self.run(2), undisturbed), moment
        assert seen == {0, 1, 2}

    def test_a_second_ctrl_c_leaves_out_the_predictions_only(self, monkeypatch):
        made = self.make(2, self.task(), RunOptions(self.traced))
        monkeypatch.setattr(type(made), "predictions", interrupt)
        with pytest.raises(InterruptedRunError, match="after 2 of 2 steps") as caught:
            self.run(2)
        expected, found = self.until_undisturbed(monkeypatch, 2), caught.value.partial
        assert equal(found, Run(expected.parameters, found.predictions, expected.trace))
        assert found.predictions.shape[-2] == 0

    def test_an_overflow_says_what_to_blame(self):
        overflow = partial(overflowed, step_size=0.125)
        if (task := self.overflowing()) is None:
            pytest.skip("a guard names the number that leaves its range before")
        with pytest.raises(OverflowedRunError, match=r"of float64: step_size=0\.125 is too large"):
            self.run(task=task, overflow=overflow)
