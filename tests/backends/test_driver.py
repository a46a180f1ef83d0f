"""How runs are made: executors, the driver over plain numbers, groups of tasks, backends."""

from collections.abc import Sequence
from math import inf, nan

import pytest
import torch

import icgd
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.literal import LiteralBackend
from icgd.backends.registry import BACKENDS
from icgd.backends.run import (
    PLAIN,
    AbstractBackend,
    AbstractExecutor,
    Run,
    RunOptions,
    drive,
    joined,
    run_in_groups,
)
from icgd.errors import InterruptedRunError, OverflowedRunError, ProgramError, UnknownNameError
from icgd.problems.data import Task
from icgd.problems.settings import named
from icgd.program.program import AbstractProgram
from tests import cases, linear_cases
from tests.backends import chain_cases
from tests.cases import KERNEL_CASES, build
from tests.contracts.backend import RELU_STACK
from tests.contracts.executor import Steps


class Idle(AbstractExecutor[None]):
    def step(self):
        return None

    def read(self, reached, write):
        return None

    def predictions(self, reached):
        return None


def test_an_executor_records_nothing_unless_it_says_so():
    assert Idle().trace() == Idle().trace(3) == {}
    assert Idle.still_steps == 1
    assert Idle().at_hand(3, None) == (3, None)


def test_a_trace_ends_with_a_step_or_with_all_that_was_recorded():
    """Two entries of the prompt, three of each step, and one of the predictions."""
    idle = Idle()
    idle.traced = {"x": [torch.full((1, 2), float(entry)) for entry in range(9)]}
    idle.n_of_prompt, idle.n_per_step = 2, 3
    assert [len(idle.trace(n_steps)["x"]) for n_steps in (0, 1, 2)] == [2, 5, 8]
    assert idle.trace()["x"][:, 0, 1].tolist() == list(range(9))


@pytest.mark.parametrize("method", ["step", "read", "predictions"])
def test_an_executor_must_say_how_it_steps_reads_and_predicts(method):
    lacking = type("Lacking", (Idle,), {method: getattr(AbstractExecutor, method)})
    with pytest.raises(TypeError, match=f"abstract method '?{method}'?"):
        lacking()


TASK = Task(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([1.0, 2.0]))


class Adder(AbstractExecutor[float]):
    """Adds to both weights; predicts the sum of all moves, at both queries."""

    def __init__(self, moves: Sequence[float], still_steps: int = 1) -> None:
        self.moves, self.still_steps = list(moves), still_steps
        self.start = self.sum = 0.0

    def step(self):
        self.sum += self.moves.pop(0)
        return self.sum

    def read(self, reached, write):
        write.copy_(TASK.initial + reached)

    def predictions(self, reached):
        return torch.full((2, 1), reached)


def run(moves: Sequence[float], still_steps: int = 1, **options: object) -> Run:
    steps = Steps(len(moves))
    return drive(lambda *_: Adder(moves, still_steps), steps, TASK, RunOptions(**options))


def test_a_run_keeps_all_steps_or_the_ends():
    whole, ends = run([1, 1, 1, 1]), run([1, 1, 1, 1], history=False)
    assert whole.parameters.tolist() == [[1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]
    assert ends.parameters.tolist() == [[1, 2], [5, 6]]
    assert whole.predictions.tolist() == ends.predictions.tolist() == [[4], [4]]
    assert whole.stopped_after is None


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("n_steps", [0, 1, 2, 3])
def test_few_steps_are_kept_too(history, n_steps):
    parameters = run([1.0] * n_steps, history=history).parameters
    assert parameters[0].tolist() == [1, 2]
    assert parameters[-1].tolist() == [1 + n_steps, 2 + n_steps]
    assert len(parameters) == 1 + (n_steps if history else min(n_steps, 1))


def test_what_is_kept_without_history_does_not_grow_with_the_steps():
    for n_steps in (2, 1_000):
        parameters = run([0.0] * n_steps, history=False).parameters
        assert parameters.untyped_storage().nbytes() == 2 * 2 * 4


@pytest.mark.parametrize(
    ("every", "n_steps", "steps"),
    [(2, 5, [0, 2, 4, 5]), (2, 4, [0, 2, 4]), (3, 2, [0, 2]), (7, 0, [0]), (1, 2, [0, 1, 2])],
)
def test_a_history_may_be_thinned(every, n_steps, steps):
    thin = run([1.0] * n_steps, history=every)
    assert list(thin.steps) == steps
    assert thin.parameters[:, 0].tolist() == [1.0 + step for step in steps]


def test_a_thinned_run_that_stops_or_is_interrupted_ends_with_its_last_step():
    stopped = run([1, 1, 1, 0, 1, 1], history=3, stop_below=0.1)
    assert (list(stopped.steps), stopped.parameters[:, 0].tolist()) == ([0, 3, 4], [1, 4, 4])
    error = interrupted(1, 1, 1, 1, 1, 1, history=3, on_progress=interrupt_after(5))
    assert list(error.partial.steps) == [0, 3, 5]
    assert error.partial.parameters[:, 0].tolist() == [1, 4, 6]
    assert "after 5 of 6 steps" in str(error)


def interrupt_after(step: int):
    return lambda done, _: interrupt() if done == step else None


class Forgetful(Adder):
    """Finds only the second step without taking steps again."""

    def at_hand(self, n_steps, reached):
        return 2, 2.0

    def read(self, reached, write):
        if reached != 2.0:
            raise KeyboardInterrupt
        super().read(reached, write)


def test_a_second_ctrl_c_leaves_the_last_step_that_is_at_hand():
    options = RunOptions(history=False, on_progress=interrupt_after(3))
    with pytest.raises(InterruptedRunError, match="after 2 of 4 steps") as caught:
        drive(lambda *_: Forgetful([1, 1, 1, 1]), Steps(4), TASK, options)
    assert caught.value.partial.parameters.tolist() == [[1, 2], [3, 4]]
    assert list(caught.value.partial.steps) == [0, 2]


@pytest.mark.parametrize("n_steps", [0, 1, 2, 256, 257, 600])
def test_every_step_is_kept_in_a_row_of_its_own(n_steps):
    parameters = run([1.0] * n_steps).parameters
    assert parameters[:, 0].tolist() == [1.0 + step for step in range(n_steps + 1)]


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize(("still_steps", "stopped_after"), [(1, 2), (2, 5), (3, None)])
def test_a_run_stops_after_enough_still_steps_in_a_row(history, still_steps, stopped_after):
    moves = [1.0, 0.5, 1.0, -0.5, 0.25, 1.0]
    done = run(moves, still_steps, stop_below=0.5, history=history)
    assert done.stopped_after == stopped_after
    assert done.predictions[0].item() == sum(moves[:stopped_after])


def test_progress_is_reported_after_every_step_also_after_the_one_that_stops():
    calls: list[tuple[int, int]] = []
    run([1, 1, 0, 1], stop_below=0.1, on_progress=lambda *call: calls.append(call))
    assert calls == [(1, 4), (2, 4), (3, 4)]


def blamed_on_transforms(dtype: str) -> OverflowedRunError:
    return OverflowedRunError(f"The run leaves the range of {dtype}: transforms are too large.")


@pytest.mark.parametrize("moved", [inf, -inf, nan])
def test_weights_that_are_not_finite_are_an_overflow_that_says_what_to_blame(moved):
    with pytest.raises(OverflowedRunError, match="the range of float32: a step is too large"):
        run([1, moved])
    with pytest.raises(OverflowedRunError, match="transforms are too large"):
        run([1, moved], overflow=blamed_on_transforms)


@pytest.mark.parametrize("method", ["step", "predictions"])
def test_a_look_up_of_what_is_no_number_is_an_overflow(method, monkeypatch):
    monkeypatch.setattr(Adder, method, lambda *_: [][0])
    with pytest.raises(OverflowedRunError, match="transforms are too large"):
        run([1], overflow=blamed_on_transforms)


def test_an_index_error_of_the_caller_is_none_of_ours():
    with pytest.raises(IndexError):
        run([1], on_progress=lambda *_: [][0])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def interrupted(*moves: float, **options: object) -> InterruptedRunError:
    with pytest.raises(InterruptedRunError) as caught:
        run(moves, **options)
    assert caught.value.__cause__ is None
    return caught.value


def test_while_the_executor_is_made_ctrl_c_leaves_the_initial_weights():
    with pytest.raises(InterruptedRunError, match="after 0 of 3 steps") as caught:
        drive(interrupt, Steps(3), TASK, RunOptions())
    assert caught.value.partial.parameters.tolist() == [[1, 2]]
    assert caught.value.partial.predictions.shape == (0, 1)
    assert caught.value.partial.trace == {}


@pytest.mark.parametrize("history", [True, False])
def test_a_step_that_is_interrupted_after_it_wrote_is_not_part_of_the_run(monkeypatch, history):
    step = Adder.step

    def interrupted_step(adder):
        reached = step(adder)
        return reached if len(adder.moves) else interrupt()

    monkeypatch.setattr(Adder, "step", interrupted_step)
    error = interrupted(1, 1, 1, history=history)
    assert str(error).startswith("The run was interrupted after 2 of 3 steps.")
    assert error.partial.parameters.tolist() == [[1, 2], *([[2, 3]] * history), [3, 4]]
    assert error.partial.predictions.tolist() == [[2], [2]]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, IndexError, OverflowedRunError("far")])
def test_predictions_that_cannot_be_made_are_left_out_of_an_interrupted_run(monkeypatch, failure):
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(Adder, "predictions", fail)
    partial_run = interrupted(1, 1, on_progress=interrupt).partial
    assert partial_run.parameters.tolist() == [[1, 2], [2, 3]]
    assert partial_run.predictions.shape == (0, 1)


def test_predictions_that_are_interrupted_once_are_made_again(monkeypatch):
    tries = [interrupt, Adder.predictions]
    monkeypatch.setattr(Adder, "predictions", lambda *args: tries.pop(0)(*args))
    error = interrupted(1, 1)
    assert "after 2 of 2 steps" in str(error)
    assert error.partial.predictions.tolist() == [[2], [2]]


def test_a_second_ctrl_c_leaves_out_the_trace_only(monkeypatch):
    monkeypatch.setattr(Adder, "trace", interrupt)
    partial_run = interrupted(1, 1).partial
    assert partial_run.parameters.tolist() == [[1, 2], [2, 3], [3, 4]]
    assert partial_run.predictions.tolist() == [[2], [2]]
    assert partial_run.trace == {}


def test_the_message_says_with_which_example_to_go_on(monkeypatch):
    monkeypatch.setattr(Steps, "next_example", lambda _, n_steps, n_examples: 10 + n_steps)
    error = interrupted(1, 1, on_progress=interrupt)
    assert "with the examples from number 11 (counted from 0) first" in str(error)


@pytest.mark.parametrize(
    "options", [{"backend": "fused"}, {"backend": "dense"}, {"backend": "fused", "trace": "x"}]
)
def test_an_interruption_between_batches_says_where_the_next_one_begins(options):
    step = icgd.GradientStep(0.1, box=1.0, batch_size=1)
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", step, icgd.Domain(x=1.0, y=1.0))

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    x, y = [[0.5, 1.0], [1.0, 0.0], [0.5, 0.5]], [1.0, 0.5, 0.0]
    run = icgd.compile(problem, "relu-stack", n_steps=5)
    with pytest.raises(InterruptedRunError, match="examples from number 2"):
        run.run(x, y, on_progress=stop, **options)


STEPS_THAT_DIFFER = {
    "Adam": (icgd.MLP((2, 1)), icgd.AdamStep(0.1, box=1.0)),
    "a schedule": (icgd.MLP((2, 1)), icgd.GradientStep((0.1, 0.2, 0.3), box=1.0)),
    "a schedule of a chain": (
        icgd.MLP((2, 1)),
        icgd.GradientStep((0.1, 0.2, 0.3), box=1.0, batch_size=1),
    ),
    "a function": (icgd.KernelMachine(2), icgd.FunctionalStep(0.1)),
}


@pytest.mark.parametrize("name", STEPS_THAT_DIFFER)
def test_an_interruption_tells_if_no_run_goes_on_from_there(name):
    def stop(done, total):
        raise KeyboardInterrupt

    target, update = STEPS_THAT_DIFFER[name]
    problem = icgd.Problem(target, "squared", update, icgd.Domain(x=1.0, y=1.0))
    construction = "cot-network" if "chain" in name else None
    run = icgd.compile(problem, construction, n_steps=3)
    with pytest.raises(
        InterruptedRunError, match="they cannot be resumed: every run starts with its first step"
    ):
        run.run([[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5], on_progress=stop)


N_TASKS = 5
BATCH = Task(*(torch.arange(5.0).double().view(5, 1, 1) for _ in range(3)), torch.zeros(5, 1))


def two_steps(task: Task, options: RunOptions, rows: torch.Tensor) -> Run:
    """Two steps of 1 from the first input of every task."""
    for step in (1, 2):
        if options.on_progress:
            options.on_progress(step, 2)
    start = task.x[:, 0]
    rows.copy_(torch.stack([start, start + 2], dim=-2))
    return Run(rows, task.queries, {"x": task.x[:, None]})


def grouped(run, size: int, options: RunOptions = PLAIN) -> Run:
    return run_in_groups(run, BATCH, size, options, torch.zeros(5, 2, 1).double())


def interrupted_group(task: Task, options: RunOptions, rows: torch.Tensor) -> Run:
    known = Run(task.initial[:, None], task.y[:, :0])
    raise InterruptedRunError("after 0 of 2 steps", known)


@pytest.mark.parametrize(("size", "lengths"), [(2, [2, 2, 1]), (5, [5]), (9, [5]), (0, [1] * 5)])
def test_a_batch_is_cut_into_groups(size, lengths):
    groups: list[Task] = []

    def seen(task: Task, options: RunOptions, rows: torch.Tensor) -> Run:
        groups.append(task)
        return two_steps(task, options, rows)

    grouped(seen, size)
    assert [len(group.x) for group in groups] == lengths
    assert torch.equal(torch.cat([group.x for group in groups]), BATCH.x)


def test_one_task_is_a_group():
    alone = Task(BATCH.x[0], BATCH.y[0], BATCH.queries[0], BATCH.initial[0])
    whole = Run(alone.initial[None], alone.queries)
    run = lambda task, *_: whole if task is alone else None  # noqa: E731
    assert run_in_groups(run, alone, 2, PLAIN, alone.initial[None]) is whole


def test_groups_are_joined_in_order_and_progress_counts_all_their_steps():
    calls: list[tuple[int, int]] = []
    options = RunOptions(on_progress=lambda *call: calls.append(call))
    whole = grouped(two_steps, 2, options)
    assert whole.parameters[:, 1, 0].tolist() == [2, 3, 4, 5, 6]
    assert whole.predictions.flatten().tolist() == whole.trace["x"].flatten().tolist()
    assert calls == [(done, 6) for done in range(1, 7)]


def test_an_interruption_leaves_the_groups_that_are_done():
    def interrupt(done: int, total: int) -> None:
        if done == 5:
            raise InterruptedRunError("after 0 of 2 steps", "of the third group")

    with pytest.raises(InterruptedRunError, match="whole runs of the first 4 of 5") as caught:
        grouped(two_steps, 2, RunOptions(on_progress=interrupt))
    assert caught.value.partial.parameters[:, 1, 0].tolist() == [2, 3, 4, 5]


def test_an_interruption_of_the_first_group_leaves_its_run_so_far():
    with pytest.raises(InterruptedRunError, match="runs so far of the first 2 of 5") as caught:
        grouped(interrupted_group, 2)
    assert caught.value.partial.parameters.shape == (2, 1, 1)


def test_an_interruption_of_the_only_group_is_that_of_its_run():
    with pytest.raises(InterruptedRunError, match="after 0 of 2 steps"):
        grouped(interrupted_group, 5)


def test_an_interruption_between_groups_loses_nothing(monkeypatch):
    monkeypatch.setattr("icgd.backends.run.joined", lambda *runs: tries.pop(0)(*runs))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    tries = [interrupt, joined]
    with pytest.raises(InterruptedRunError, match="whole runs of the first 5 of 5") as caught:
        grouped(two_steps, 2)
    assert caught.value.partial.parameters[:, 1, 0].tolist() == [2, 3, 4, 5, 6]


def test_an_interruption_before_all_groups_has_nothing_to_leave():
    def interrupt(*_: object) -> Run:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        grouped(interrupt, 2)
    assert not isinstance(caught.value, InterruptedRunError)


PROGRAMS = {
    "network": build(RELU_STACK, cases.FEW[0]),
    "linear model": linear_cases.compiled_of(linear_cases.PROBLEMS["logistic"]).program,
    "function": icgd.compile(KERNEL_CASES[0].problem, n_steps=2).program,
    "chain": chain_cases.program_of(chain_cases.problem_of(icgd.MLP((2, 1)))),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_every_backend_has_an_executor_for_every_program(kind):
    for backend in (FusedBackend, DenseBackend):
        assert callable(backend.executors[type(PROGRAMS[kind])])


@pytest.mark.parametrize("backend", [FusedBackend(), DenseBackend()], ids=["fused", "dense"])
def test_a_program_that_no_backend_runs_is_named(backend):
    other = type("Loop", (AbstractProgram,), dict.fromkeys(AbstractProgram.__abstractmethods__))()
    with pytest.raises(ProgramError, match=f"Loop has no executor in the {backend.name} backend"):
        backend.run(other, cases.FEW[0].task())


def test_a_backend_must_say_how_many_tasks_run_at_once():
    class Idle(AbstractBackend):
        name = "idle"

    with pytest.raises(TypeError, match=r"abstract method '?tasks_at_once'?"):
        Idle()


def test_backends_are_found_by_name():
    assert {name: type(backend) for name, backend in BACKENDS.items()} == {
        "fused": FusedBackend,
        "literal": LiteralBackend,
        "dense": DenseBackend,
    }
    assert named("backend", "dense", BACKENDS) is BACKENDS["dense"]


def test_an_unknown_backend_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        named("backend", "fuse", BACKENDS)
    assert str(caught.value) == (
        "Unknown backend 'fuse'; known are fused, literal, dense. Did you mean 'fused'?"
    )
