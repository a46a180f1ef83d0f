"""The loops that are generated from recordings, performed as Python, beside torch."""

import sys
from dataclasses import replace

import pytest
import torch

import icgd
from icgd.backends import fused, look_up, loops
from icgd.backends.fused import CompiledStack, FusedBackend, loops_of
from icgd.backends.recorder import Tokens, recorded_steps
from icgd.backends.run import RunOptions
from icgd.errors import InterruptedRunError, MissingExtraError, OverflowedRunError, UnknownNameError
from icgd.problems.data import Task
from icgd.program.stack import StackProgram
from tests import cases
from tests.backends import plain_loops
from tests.cases import batch_of, build, every_construction_on
from tests.contracts.backend import RECURSION, RELU_STACK, SOFTMAX_STACK, distance
from tests.contracts.executor import ExecutorContract, interrupt

TORCH, COMPILED = RunOptions(engine="torch"), RunOptions(engine="compiled")


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """The generated text as it stands, without numba."""
    monkeypatch.setitem(sys.modules, "icgd.backends.native", plain_loops)
    monkeypatch.setattr(fused, "has_numba", lambda: True)


def assert_same(program, task, allowed=1e-12, **options):
    """Torch and loops agree to rounding; the loops were really used."""
    assert loops_of(program, task) is not None
    ours, truth = (
        FusedBackend().run(program, task, replace(engine, **options))
        for engine in (COMPILED, TORCH)
    )
    assert ours.parameters.shape == truth.parameters.shape
    assert ours.stopped_after == truth.stopped_after
    assert distance(ours.parameters, truth.parameters) <= allowed
    assert distance(ours.predictions, truth.predictions) <= allowed


NETWORKS = (RELU_STACK, SOFTMAX_STACK)


@every_construction_on((*cases.SMALL, *cases.BATCHED), whole=True)
def test_every_step_is_that_of_torch(construction, case):
    program, task = build(construction, case), case.task()
    if not isinstance(program, StackProgram):
        pytest.skip("the block of a chain has no loops")
    if construction not in NETWORKS and loops_of(program, task) is None:
        pytest.skip("torch has an operation that loops do not have")
    assert_same(program, task)


def problem(update=None, loss="squared", **network):
    network = {"widths": (2, 3, 1), "activation": "tanh", **network}
    update = icgd.GradientStep(0.1, 2.0) if update is None else update
    return icgd.Problem(icgd.MLP(**network), loss, update, icgd.Domain(1.0, 1.0))


GROUPS = {"bias_1": {"weight_decay": 0.0}, "weights_2": {"step_size": (0.2, 0.1, 0.4, 0.1, 0.3)}}
PROBLEMS = {
    "momentum": problem(icgd.MomentumStep(0.1, 2.0)),
    "nesterov, weight decay": problem(
        icgd.MomentumStep(0.1, 2.0, nesterov=True, weight_decay=0.1, dampening=0.0), biases=True
    ),
    "adam": problem(icgd.AdamStep(0.1, 2.0), biases=True),
    "adam, small eps": problem(icgd.AdamStep(0.1, 2.0, eps=1e-8)),
    "adamw": problem(icgd.AdamStep(0.1, 2.0, weight_decay=0.1, decoupled=True)),
    "adam, weight decay": problem(icgd.AdamStep(0.1, 2.0, weight_decay=0.1)),
    "rmsprop": problem(icgd.RmspropStep(0.1, 2.0)),
    "groups": problem(icgd.AdamStep(0.1, 2.0, weight_decay=0.5, groups=GROUPS), biases=True),
    "schedule of groups": problem(
        icgd.MomentumStep((0.1, 0.2, 0.1, 0.3, 0.2), 2.0, weight_decay=0.5, groups=GROUPS),
        biases=True,
    ),
    "average": problem(icgd.GradientStep(0.1, 2.0, average=0.5)),
    "schedule of batches": problem(icgd.GradientStep((0.5, 0.25, 0.1, 0.1, 0.2), 2.0, 3)),
    "batches of adam": problem(icgd.AdamStep(0.1, 2.0, batch_size=3)),
    "shortcut": problem(widths=(2, 2, 2, 1), shortcuts=((0, 1), (1, 2))),
    "norm": problem(widths=(2, 4, 4, 1), norms=(1, 2)),
    "classes": problem(loss="cross_entropy", widths=(2, 3, 3), biases=True),
    "many classes": problem(loss="cross_entropy", widths=(2, 3, 5)),
    "wide": problem(widths=(2, 19, 17, 3), activation="relu"),
}
CLASSES = {"classes": [0, 2, 1, 1, 0]}


def task_of(problem, tasks=(), dtype="float64", **more):
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(*tasks, 5, 2, generator=generator, dtype=torch.float64) - 1
    y = torch.rand(*tasks, 5, problem.target.output_width, generator=generator).double()
    if problem.loss == "cross_entropy":
        y = y / y.sum(-1, keepdim=True)
    return icgd.as_task(problem, x, y, queries=0.5 * x, seed=2, dtype=dtype, **more)


@pytest.mark.parametrize("tasks", [(), (3,)], ids=["one task", "batch"])
@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_optimiser_and_network_has_loops(name, construction, tasks):
    if reason := icgd.constructions.registry.CONSTRUCTIONS[construction].why_not(PROBLEMS[name]):
        pytest.skip(reason)
    compiled = icgd.compile(PROBLEMS[name], construction, n_steps=5)
    assert_same(compiled.program, task_of(PROBLEMS[name], tasks))


@pytest.mark.parametrize("name", PROBLEMS)
def test_float32_rounds_as_torch_does(name):
    compiled = icgd.compile(PROBLEMS[name], "relu-stack", n_steps=5)
    assert_same(compiled.program, task_of(PROBLEMS[name], dtype="float32"), 2e-5)


def test_rates_are_data_of_the_examples():
    rated = replace(problem(), domain=icgd.Domain(1.0, 1.0, rate=2.0))
    compiled = icgd.compile(rated, "relu-stack", n_steps=4)
    task = task_of(rated, rates=[[2.0], [0.0], [1.0], [0.5], [1.5]])
    assert_same(compiled.program, task)


@pytest.mark.parametrize("cells", ["search", "exponent"])
def test_cells_are_found_in_every_way(monkeypatch, cells):
    adam = problem(icgd.AdamStep(0.1, 2.0, eps=1e-4))
    program = icgd.compile(adam, "relu-stack", n_steps=4).program
    if cells == "search":
        monkeypatch.setattr(look_up, "bits_of", lambda knots: None)
        monkeypatch.setattr(look_up, "MOST_CELLS", 0)
    assert_same(program, task_of(adam))
    source = loops_of(program, task_of(adam)).source
    assert ("cell_of(table" in source) == (cells == "search")
    assert ("bits_of(v" in source) == (cells == "exponent")


def test_programs_with_other_numbers_share_their_source():
    sources = set()
    for size, box in ((0.1, 2.0), (0.3, 1.5)):
        program = icgd.compile(problem(icgd.AdamStep(size, box)), "relu-stack", n_steps=2).program
        sources.add(loops_of(program, task_of(PROBLEMS["adam"])).source)
    assert len(sources) == 1


def test_an_operation_without_a_loop_is_left_to_torch(monkeypatch):
    program = RELU_STACK.build(cases.FEW[0].problem, 3)
    monkeypatch.delattr(loops._Step, "_loop_times")
    task = cases.FEW[0].task()
    assert loops_of(program, task) is None
    run = FusedBackend().run(program, task, COMPILED)
    assert torch.equal(run.parameters, FusedBackend().run(program, task, TORCH).parameters)


@pytest.mark.parametrize("tasks", [(), (2,)], ids=["one task", "batch"])
def test_a_root_out_of_range_raises_the_error_of_torch(tasks):
    adam = problem(icgd.AdamStep(0.1, 2.0))
    compiled = icgd.compile(adam, "relu-stack", n_steps=5)
    task = task_of(adam, tasks)
    moments = torch.full_like(task.initial[..., -9:], 1e6)
    task = replace(task, initial=torch.cat([task.initial[..., :-9], moments], dim=-1))
    messages = []
    for engine in ("torch", "compiled"):
        with pytest.raises(OverflowedRunError, match="Step 1 divides by the root of") as caught:
            compiled.run_task(task, engine=engine)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_guard_that_torch_does_not_confirm_leaves_the_step_to_torch(monkeypatch):
    """At a limit the rounding of one engine may be beyond it, and that of the other not."""
    adam = problem(icgd.AdamStep(0.1, 2.0))
    program = icgd.compile(adam, "relu-stack", n_steps=6).program
    monkeypatch.setattr(fused, "MILLISECONDS", 10**9)  # all steps at once
    whole = FusedBackend().run(program, task_of(adam), COMPILED)
    text, n_calls = plain_loops.compiled, []

    def complain(source, *args):
        run = text(source, *args)

        def failing(tasks, work, states, *others):
            start, n, failed = others[-8], others[-7], others[-1]
            n_calls.append(start)
            run(tasks, work, states, *others)
            if start <= 3 < start + n:
                failed[:] = 3

        return failing

    monkeypatch.setattr(plain_loops, "compiled", complain)
    ours = FusedBackend().run(program, task_of(adam), COMPILED)
    assert n_calls == [0, 0, 4]
    assert distance(ours.parameters, whole.parameters) <= 1e-12
    moves = FusedBackend().run(program, task_of(adam), replace(COMPILED, stop_below=1e-9))
    assert torch.equal(moves.parameters, ours.parameters)


CASE = next(case for case in cases.FEW if case.name == "tanh-2-3-3-3-2-squared")


class TestCompiledStack(ExecutorContract):
    def task(self) -> Task:
        return CASE.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> CompiledStack:
        program = build(RELU_STACK, CASE, n_steps, pieces=16)
        return CompiledStack(program, task, loops_of(program, task))

    @pytest.mark.parametrize("history", [True, False])
    def test_ctrl_c_in_a_step_leaves_the_steps_before(self, monkeypatch, history: bool):
        """Many steps are taken at once: those before the call are known."""
        take, n_calls = CompiledStack._take, []
        monkeypatch.setattr(fused, "MILLISECONDS", 0)  # one step at a time

        def interrupted(executor, *args, **options):
            found = take(executor, *args, **options)
            n_calls.append(found)
            return interrupt() if len(n_calls) == 3 else found

        monkeypatch.setattr(CompiledStack, "_take", interrupted)
        with pytest.raises(InterruptedRunError, match="after 2 of 4 ") as caught:
            self.run(history=history)
        expected = self.until_undisturbed(monkeypatch, 2)
        kept = expected.parameters if history else expected.parameters[[0, -1]]
        assert torch.equal(caught.value.partial.parameters, kept)
        assert torch.equal(caught.value.partial.predictions, expected.predictions)

    @pytest.mark.parametrize("is_first", [True, False], ids=["first run", "later run"])
    def test_ctrl_c_at_any_moment_leaves_the_last_whole_step(self, is_first, monkeypatch):
        monkeypatch.setattr(fused, "MILLISECONDS", 0)
        self.whole(2)  # loops are written once
        super().test_ctrl_c_at_any_moment_leaves_the_last_whole_step(is_first)

    def test_one_step_at_a_time_reaches_the_same(self):
        task = self.task()
        executor, row = self.make(4, task, RunOptions()), torch.empty_like(task.initial)
        for step in range(1, 5):
            executor.read(executor.step(), row)
            assert torch.equal(row, self.whole(4).parameters[step])


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_change_no_bit(n_threads):
    program, task = build(RELU_STACK, CASE), batch_of(CASE, 7).task()
    alone = [FusedBackend().run(program, task.of_batch(n), COMPILED) for n in range(7)]
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        together = FusedBackend().run(program, task, COMPILED)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together.parameters, torch.stack([run.parameters for run in alone]))


def test_all_tasks_stop_together():
    program, task = build(RELU_STACK, CASE, n_steps=30), batch_of(CASE, 3).task()
    moved = FusedBackend().run(program, task, TORCH).parameters.diff(dim=-2).abs().amax((0, -1))
    assert_same(program, task, stop_below=float(moved[10]))


def test_the_engine_is_chosen_by_the_work_alone():
    program, task = build(RELU_STACK, CASE), CASE.task()
    seconds = fused.seconds_of_step(program, task)
    few, many = (replace(program, n_steps=int(share * fused.PAYS / seconds)) for share in (0.5, 2))
    choose = FusedBackend().chosen
    assert choose(few, task, RunOptions()).engine == "torch"
    assert choose(many, task, RunOptions()).engine == "compiled"
    assert choose(many, task, RunOptions(trace=("x",))).engine == "torch"
    assert choose(few, task, COMPILED).engine == "compiled"


def test_without_numba_torch_is_used_and_who_asks_is_told_the_extra(monkeypatch):
    monkeypatch.setattr(fused, "has_numba", lambda: False)
    program, task = build(RELU_STACK, CASE), CASE.task()
    many = replace(program, n_steps=10**9)
    assert FusedBackend().chosen(many, task, RunOptions()).engine == "torch"
    with pytest.raises(MissingExtraError, match=r"pip install 'icgd\[fast\]'"):
        FusedBackend().run(program, task, COMPILED)


def test_engines_have_names():
    compiled = icgd.compile(PROBLEMS["momentum"], "relu-stack", n_steps=1)
    with pytest.raises(UnknownNameError, match="engine"):
        compiled.run([[0.5, 0.2]], [0.1], engine="numba")
    run = compiled.run([[0.5, 0.2]], [0.1], engine="compiled")
    truth = compiled.run([[0.5, 0.2]], [0.1], engine="torch")
    assert distance(run.parameters, truth.parameters) <= 1e-15


def test_what_is_no_longer_read_makes_room():
    """All that the way back needs is kept, and a few results beside it."""
    deep = problem(icgd.GradientStep(0.1, 0.2), widths=(2, *[16] * 8, 1), activation="relu")
    program = icgd.compile(deep, "relu-stack", n_steps=1).program
    (recording,) = recorded_steps(program, Tokens(examples=5))
    n_kept = sum(op.name in ("kink", "ramp") for op in recording.ops)
    assert n_kept == 16
    assert 80 * n_kept < loops_of(program, task_of(deep)).n_work < 80 * n_kept + 4 * 256


def test_a_preactivation_that_is_not_a_number_ends_as_an_overflow():
    for construction in (RELU_STACK, SOFTMAX_STACK):
        case = cases.suited(construction, CASE)
        program, task = build(construction, case), case.task()
        lost = replace(task, x=task.x * float("nan"))
        with pytest.raises(OverflowedRunError):
            FusedBackend().run(program, lost, COMPILED)


COARSE = cases.make_case(icgd.MLP((2, 3, 3, 2), "tanh"), "huber", box=2.0, seed=3)


@pytest.mark.parametrize("activation", ["relu", "elu", "sigmoid", "cos"])
def test_units_near_corners_and_kinks_are_summed_as_torch_does(activation):
    """With few units the corners of the box are coarse, and so is all that is near a kink."""
    program = replace(RECURSION, unit_activation=activation).build(COARSE.problem, n_steps=2)
    assert_same(program, batch_of(COARSE, 2).task(), 1e-11)


def test_gradients_of_kinked_recursion_are_left_to_torch():
    kinked = icgd.MLP((2, 2, 2, 1), "relu")
    problem = cases.make_case(kinked, "squared", box=2.0, domain=icgd.Domain(1.0, 1.0)).problem
    program = RECURSION.build(problem, n_steps=1)
    x = torch.tensor([[1.0, 1.0], [0.5, -1.0]], dtype=torch.float64)
    task = icgd.as_task(problem, x, torch.ones(2, 1), seed=0)
    assert fused.loops_of(program, task) is None
    runs = [FusedBackend().run(program, task, options).parameters for options in (TORCH, COMPILED)]
    assert runs[0].equal(runs[1])
