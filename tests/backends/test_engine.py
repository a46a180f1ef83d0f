"""Recordings of steps, performed on buffers that are used again."""

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch

import icgd
from icgd.backends import engine, recorder
from icgd.backends.dense import DenseBackend
from icgd.backends.engine import Buffers, Plan, Units
from icgd.backends.fused import FusedBackend, Snapshot, _Training
from icgd.backends.recorder import Recorder, Tokens, is_computed_as_such, recorded_steps
from icgd.constructions.recursion import Recursion
from icgd.errors import OverflowedRunError
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.mlp import MLP
from icgd.program.functions import ReluSum
from tests import cases
from tests.approximation.yardsticks import evaluate
from tests.cases import batch_of, build, make_case
from tests.contracts.backend import RECURSION, RELU_STACK, SOFTMAX_STACK, distance

STEPS = {
    "plain": icgd.GradientStep(0.1, 2.0),
    "a schedule of batches": icgd.GradientStep((0.5, 0.25, 0.1), 2.0, batch_size=2),
    "momentum": icgd.MomentumStep(0.1, 2.0),
    "nesterov": icgd.MomentumStep(0.1, 2.0, nesterov=True),
    "adam": icgd.AdamStep(0.1, 2.0),
    "averages": icgd.GradientStep(0.1, 2.0, average=0.5),
}


def program_of(step, construction="relu-stack", biases=True):
    network = icgd.MLP((2, 3, 1), "tanh", biases=biases)
    problem = icgd.Problem(network, "squared", step, icgd.Domain(1.0, 1.0))
    return icgd.compile(problem, construction, n_steps=3)


@pytest.mark.parametrize(
    ("name", "construction"),
    [(name, "relu-stack") for name in STEPS]
    + [(name, "softmax-stack") for name in STEPS if name != "adam"],
)
def test_buffers_that_are_used_again_change_no_bit(name, construction):
    """Every result in a tensor of its own, against results in buffers."""
    compiled = program_of(STEPS[name], construction)
    x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(4, 2)
    task = compiled.task(x, x[:, 0], seed=0)
    program = compiled.program
    training = _Training(program, task, Snapshot(0, task.initial, {}))
    n_used = program.batch_size or task.n_examples
    recordings = recorded_steps(program, Tokens(examples=n_used))
    slots = {n: held.clone() for n, held in training.buffers.inputs.items()}
    reference = Buffers(program, slots, ())
    for step in range(3):
        if program.batch_size:
            rows = [(step * n_used + k) % 4 for k in range(n_used)]
            slots |= {"x": task.x[rows], "y": task.y[rows]}
        reference.step = step
        recording = recordings[step % len(recordings)]
        held = Plan(recording, reference)(slots)
        slots |= {n: held[op] for n, op in recording.outputs.items()}
        training.step()
        for slot in recording.outputs:
            assert torch.equal(training.buffers.inputs[slot], slots[slot]), (step, slot)


def test_an_argument_is_computed_once_and_wiping_costs_nothing():
    program = build(RELU_STACK, make_case(MLP((3, 4, 1), "tanh"), "squared"), n_steps=1)
    (recording,) = recorded_steps(program, Tokens(examples=5))
    names = [op.name for op in recording.ops]
    assert names.count("times") == 3  # weights_1 @ x for both functions, weights_2 @ units_1, back
    assert names.count("pieces") == 2
    assert names.count("add_outer") == 2
    assert not {"fill", "multiply"} & {op.name for op in recording.outputs.values()}
    zeros = [op for op in recording.ops if op.name == "fill"]
    assert zeros == []


def test_a_recording_stays_with_its_program_and_is_made_once():
    program = build(RELU_STACK, cases.FEW[0], n_steps=1)
    tokens = Tokens(examples=4)
    assert recorded_steps(program, tokens) is recorded_steps(program, tokens)
    assert recorded_steps(program, Tokens(examples=5)) is not recorded_steps(program, tokens)


SIMPLE = {
    "a constant": ((), (0.0,), 0.0, 2.5),
    "a line off the origin": ((), (-3.0,), 0.0, 2.5),
    "a ramp": ((0.0, 1.0), (0.0, 1.0, 0.0), 0.0, 0.0),
    "a falling ramp off the origin": ((1.0, 3.0), (0.0, -2.0, 0.0), 1.0, 5.0),
    "relu": ((0.0,), (0.0, 1.0), 0.0, 0.0),
    "a steeper negative side": ((0.0,), (-0.5, 1.0), 0.0, 0.0),
    "a kink that is anchored elsewhere": ((0.0,), (0.0, 1.0), 5.0, 0.0),
}


@pytest.mark.parametrize(("knots", "slopes", "anchor", "value"), SIMPLE.values(), ids=SIMPLE)
def test_lines_kinks_and_ramps_are_computed_as_their_sums_of_relus(knots, slopes, anchor, value):
    fit = ReluSum("f", -9.0, 9.0, 1.0, knots, slopes, anchor, value, (0.0,) * len(slopes))
    program = replace(build(RELU_STACK, cases.FEW[0], n_steps=1), functions=(fit,))
    z = torch.linspace(-9.5, 9.5, 40, dtype=torch.float64).view(-1, 2)
    domain = Recorder(program, Tokens(examples=20), 20)
    argument = domain.op("input", options=("z",), shape=(20, 2))
    applied = domain.apply("f", argument, by="mlp")
    recording = recorder.Recording({}, tuple(recorder.in_order([applied])), {})
    run = Buffers(program, {"x": z}, ())
    ours = Plan(recording, run)({"z": z})[applied]
    truth = torch.tensor([[fit(p) for p in row] for row in z.tolist()], dtype=torch.float64)
    torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-11)


COARSE = make_case(MLP((2, 3, 3, 2), "tanh"), "huber", box=2.0, seed=3)
"""Coarse with few units: r, s r'(t), the corners of the loss and of the box."""


@pytest.mark.parametrize("activation", ["relu", "elu", "sigmoid", "cos"])
@pytest.mark.parametrize("n_tasks", [0, 2], ids=["one task", "batch"])
def test_coarse_fits_are_those_of_the_dense_transformer(activation, n_tasks):
    construction = Recursion(units=40, unit_activation=activation)
    program = construction.build(COARSE.problem, n_steps=2)
    assert any(not is_computed_as_such(function) for function in program.functions)
    task = (batch_of(COARSE, n_tasks) if n_tasks else COARSE).task()
    ours, truth = FusedBackend().run(program, task), DenseBackend().run(program, task)
    assert distance(ours.parameters, truth.parameters) <= 1e-10
    assert distance(ours.predictions, truth.predictions) <= 1e-10
    real = COARSE.problem.oracle.train(task, 2)
    assert 1e-7 < distance(ours.parameters, real) < 0.3


def test_every_fit_summed_by_units_gives_what_the_functions_themselves_give(monkeypatch):
    """All operations by units have two ways; here both are nearly exact."""
    case = make_case(MLP((2, 3, 3, 2), "tanh"), "squared", box=2.0, seed=3)
    construction, task = Recursion(unit_activation="sigmoid"), batch_of(case, 2).task()
    as_such = FusedBackend().run(construction.build(case.problem, n_steps=2), task)
    monkeypatch.setattr(recorder, "AS_SUCH", -1.0)
    by_units = FusedBackend().run(construction.build(case.problem, n_steps=2), task)
    assert not torch.equal(by_units.parameters, as_such.parameters)
    assert distance(by_units.parameters, as_such.parameters) <= 1e-9
    assert distance(by_units.predictions, as_such.predictions) <= 1e-9


@pytest.mark.parametrize("n_tasks", [0, 2], ids=["one task", "batch"])
def test_units_on_a_kink_are_those_of_the_dense_transformer(n_tasks):
    """z is -1e-5 in both hidden layers, where s r' is 0, and relus give a part of s."""
    problem = make_case(
        MLP((2, 2, 2, 1), "relu"), "squared", box=2.0, domain=Domain(1.0, 1.0)
    ).problem
    program = RECURSION.build(problem, n_steps=1)
    first, second, last = [1.0, -1.0 - 1e-5, 0.5, 0.5], [1.0, -1e-5, 1.0, 1.0], [1.0, -1.0]
    weights = torch.tensor([*first, *second, *last], dtype=torch.float64)
    x = torch.tensor([[1.0, 1.0], [0.5, -1.0]], dtype=torch.float64)
    task = as_task(problem, x, torch.ones(2, 1), initial=weights)
    if n_tasks:
        parts = (task.x, task.y, task.queries, task.initial)
        task = Task(*(torch.stack([part, 0.5 * part]) for part in parts))
    ours, truth = FusedBackend().run(program, task), DenseBackend().run(program, task)
    assert distance(ours.parameters, truth.parameters) <= 1e-11
    real = problem.oracle.train(task, 1)
    assert distance(ours.parameters, real) > 1e-3


@pytest.mark.parametrize("at_once", [1, 50, 2**20])
def test_a_sum_of_units_is_that_of_its_fit_in_groups_of_any_size(monkeypatch, at_once):
    monkeypatch.setattr("icgd.backends.engine.UNITS_AT_ONCE", at_once)
    a = torch.linspace(-1, 1, 7, dtype=torch.float64)
    b = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(-1)
    fit = RECURSION.build(COARSE.problem, n_steps=1).ridge_sum("a b")
    pairs = torch.stack(torch.broadcast_tensors(a, b), dim=-1)
    value = Units(fit, (1.0, 1.0), a)(a, b)
    torch.testing.assert_close(value, evaluate(fit, pairs), rtol=0, atol=1e-12)


def test_softmax_stacks_zero_the_memory_in_a_trace_only():
    program = build(SOFTMAX_STACK, cases.FEW[0], n_steps=1)
    plain = recorded_steps(program, Tokens(examples=4))
    tokens = Tokens(program.n_registers, 4, 1)
    traced = recorded_steps(program, tokens, trace=("weights_1",))
    assert not any(op.name == "without_first" for step in plain for op in step.ops)
    assert any(op.name == "without_first" for step in traced for op in step.ops)


def test_what_is_kept_with_a_program_is_bounded():
    program = build(RELU_STACK, cases.FEW[0], n_steps=1)
    for n_examples in range(1, recorder.MOST_CACHED + 20):
        recorded_steps(program, Tokens(examples=n_examples))
    assert len(recorder._CACHE[id(program)]) <= recorder.MOST_CACHED
    last = Tokens(examples=n_examples)
    assert recorded_steps(program, last) is recorded_steps(program, last)


def test_a_compiled_run_that_was_run_is_copied_and_pickled_without_what_is_kept():
    compiled = program_of(STEPS["adam"])
    run = compiled.run([[0.5, 0.2]], [0.1])
    fresh = len(pickle.dumps(program_of(STEPS["adam"])))
    for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):  # noqa: S301
        assert again == compiled
        assert torch.equal(again.run([[0.5, 0.2]], [0.1]).parameters, run.parameters)
    assert len(pickle.dumps(compiled)) < fresh + 500  # a few cached properties, no recording
    address = id(compiled.program)
    assert address in recorder._CACHE
    del compiled, run, again
    gc.collect()
    assert address not in recorder._CACHE


def test_a_trace_without_queries_predicts_nothing():
    compiled = program_of(STEPS["plain"], "softmax-stack")
    assert compiled.run([[0.5, 0.2]], [0.1], trace=["y"]).predictions.shape == (0, 1)


def test_a_trace_keeps_the_velocity_in_the_layers_that_predict():
    step = icgd.ProximalStep(0.2, box=2.0, momentum=0.5)
    problem = icgd.Problem(icgd.LinearModel(1), "matching", step, icgd.Domain(1.0, 1.0))
    compiled = icgd.compile(problem, "linear-stack", n_steps=3)
    traces = [
        compiled.run([[0.5], [1.0]], [1.0, 0.5], queries=[[0.3]], trace=["velocity_w"], backend=b)
        for b in ("fused", "dense")
    ]
    ours, theirs = (run.trace["velocity_w"] for run in traces)
    assert float(theirs[-1].abs().max()) > 0.01
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


# Buffers that an earlier run has left.


def data_of(seed: int, n_examples: int = 4, tasks: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y, queries = torch.rand(3, *tasks, n_examples, 2, generator=generator, dtype=torch.float64)
    return {"X": x, "y": y[..., 0], "queries": queries}


def idle_of(compiled: icgd.Compiled) -> dict[object, object]:
    return recorder._CACHE[id(compiled.program)]["idle"]


def assert_same(ours: icgd.Run, theirs: icgd.Run) -> None:
    assert torch.equal(ours.parameters, theirs.parameters)
    assert torch.equal(ours.predictions, theirs.predictions)


@pytest.mark.parametrize("tasks", [(), (3,)], ids=["one task", "tasks"])
@pytest.mark.parametrize(
    ("name", "construction"),
    [(name, "relu-stack") for name in STEPS] + [("plain", "softmax-stack"), ("plain", "recursion")],
)
def test_a_run_in_buffers_of_an_earlier_one_changes_no_bit(name, construction, tasks):
    compiled = program_of(STEPS[name], construction)
    first = compiled.run(**data_of(0, tasks=tasks), seed=1)
    before = copy.deepcopy((first.parameters, first.predictions))
    (kept,) = (v for v in idle_of(compiled).values() if isinstance(v, _Training))
    second = compiled.run(**data_of(2, tasks=tasks), seed=3)
    assert kept in idle_of(compiled).values()  # both runs have used them
    assert_same(second, copy.deepcopy(compiled).run(**data_of(2, tasks=tasks), seed=3))
    assert_same(first, icgd.Run(*before))


def test_a_linear_model_starts_again_without_its_momentum():
    step = icgd.ProximalStep(0.2, box=2.0, momentum=0.5)
    problem = icgd.Problem(icgd.LinearModel(2), "matching", step, icgd.Domain(1.0, 1.0))
    compiled = icgd.compile(problem, "linear-stack", n_steps=3)
    compiled.run(**data_of(0))
    assert_same(compiled.run(**data_of(1)), copy.deepcopy(compiled).run(**data_of(1)))


def test_rates_and_precisions_have_buffers_of_their_own():
    network, domain = icgd.MLP((2, 3, 1), "tanh"), icgd.Domain(1.0, 1.0, rate=2.0)
    compiled = icgd.compile(icgd.Problem(network, "squared", STEPS["plain"], domain), n_steps=2)
    options = [{"rates": [1.0, 2.0, 0.0, 0.5]}, {"rates": None}, {"dtype": "float32"}]
    for _ in range(2):
        for chosen in options:
            run = compiled.run(**data_of(1), **chosen)
            assert_same(run, copy.deepcopy(compiled).run(**data_of(1), **chosen))


def test_a_run_that_starts_from_squares_is_checked_after_one_that_does_not():
    """The buffers of a run that starts from nothing have no check of roots."""
    compiled = program_of(STEPS["adam"])
    task = compiled.task(**data_of(0))
    compiled.run_task(task)
    squares = task.initial.clone()
    squares[2 * len(squares) // 3 :] = 1e9
    with pytest.raises(OverflowedRunError, match="Step 1 divides by the root of"):
        compiled.run_task(replace(task, initial=squares))


def test_a_run_within_a_run_has_buffers_of_its_own():
    compiled, inner = program_of(STEPS["momentum"]), []
    expected = [copy.deepcopy(compiled).run(**data_of(seed)) for seed in (0, 1)]
    compiled.run(**data_of(2))

    def run_another(done: int, total: int) -> None:
        inner.append(compiled.run(**data_of(1)))

    assert_same(compiled.run(**data_of(0), on_progress=run_another), expected[0])
    for run in inner:
        assert_same(run, expected[1])


def test_threads_share_no_buffers():
    compiled = program_of(STEPS["plain"])
    expected = [copy.deepcopy(compiled).run(**data_of(seed)) for seed in range(4)]
    gate = Barrier(4)

    def run_often(seed: int) -> list[icgd.Run]:
        # Waiting after every step makes all threads take each step at the same time.
        meet = lambda done, total: gate.wait(timeout=60)  # noqa: E731
        return [compiled.run(**data_of(seed), on_progress=meet) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for runs, truth in zip(pool.map(run_often, range(4)), expected, strict=True):
            for run in runs:
                assert_same(run, truth)


def test_few_and_small_buffers_wait_for_the_next_run(monkeypatch):
    compiled = program_of(STEPS["plain"])
    for n_examples in range(1, 2 * engine.MOST_IDLE):
        compiled.run(**data_of(0, n_examples))
    assert len(idle_of(compiled)) == engine.MOST_IDLE
    idle_of(compiled).clear()
    monkeypatch.setattr("icgd.backends.fused.LARGEST_IDLE", 0)
    run = compiled.run(**data_of(0))
    assert not idle_of(compiled)
    monkeypatch.undo()
    assert_same(run, compiled.run(**data_of(0)))


def test_a_run_of_no_steps_binds_no_step():
    compiled = program_of(STEPS["plain"])
    none = replace(compiled, program=replace(compiled.program, n_steps=0))
    none.run(**data_of(0))
    assert [type(left) for left in idle_of(none).values()] == [engine.BoundRecording]


def by_jacobians(recorder, weights, left, matrix, share):
    """The gradient from the Jacobians themselves, as traces show them."""
    args = (weights, left, recorder.examples(matrix))
    return recorder.op("add_rows", *args, options=(share,), shape=weights.shape)


@pytest.mark.parametrize("n_tasks", [0, 2], ids=["one task", "batch"])
@pytest.mark.parametrize("size", [1.0, 1e-3], ids=["few near kinks", "all near kinks"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "leaky_relu"])
def test_gradients_from_the_left_are_those_of_the_jacobians(monkeypatch, activation, size, n_tasks):
    """With weights of 1e-3 preactivations of relus are within 2^-13 of their kinks."""
    network = MLP((3, 4, 2, 3, 2), activation, biases=True)
    problem = make_case(network, "squared", box=1.0, domain=Domain(1.0, 1.0)).problem
    program = RECURSION.build(problem, n_steps=1)
    generator = torch.Generator().manual_seed(3)
    parts = [(5, 3), (5, 2), (2, 3), (network.n_parameters,)]
    batch = (n_tasks,) if n_tasks else ()
    x, y, queries, initial = (
        2 * torch.rand(*batch, *shape, generator=generator, dtype=torch.float64) - 1
        for shape in parts
    )
    task = Task(x, y, queries, size * initial)
    ours = FusedBackend().run(program, task).parameters
    ops = [op.name for step in recorded_steps(program, Tokens(examples=5)) for op in step.ops]
    assert not {"add_rows", "matmul"} & set(ops)
    monkeypatch.setattr(recorder.Recorder, "_add_from_left", by_jacobians)
    again = replace(program)  # has no recordings yet
    truth = FusedBackend().run(again, task).parameters
    ops = [op.name for step in recorded_steps(again, Tokens(examples=5)) for op in step.ops]
    assert {"add_rows", "matmul"} <= set(ops)
    moved = (truth[..., 1, :] - truth[..., 0, :]).abs().amax(-1)
    assert (moved > 1e-6).all()
    assert distance(ours, truth) <= 1e-14 + 1e-11 * float(moved.max())


def test_many_weights_are_clipped_by_a_table_of_the_units(monkeypatch):
    """Some start beyond the box, farther than the table reaches, and some at its corners."""
    network = MLP((8, 32, 32, 32, 1), "tanh")
    problem = make_case(network, "squared", box=3.0, domain=Domain(1.0, 1.0)).problem
    program = RECURSION.build(problem, n_steps=10)
    assert program.ridge_sum("clip").error > recorder.AS_SUCH
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 8, generator=generator, dtype=torch.float64)
    initial = torch.linspace(-5.0, 5.0, network.n_parameters, dtype=torch.float64)
    task = as_task(problem, x, x[:, :1], initial=initial.clamp(-3.0, 3.0))
    task = replace(task, initial=initial)
    tables = []
    make = engine.UnitTable.__init__
    monkeypatch.setattr(
        engine.UnitTable, "__init__", lambda *args: (tables.append(args), make(*args))[1]
    )
    ours = FusedBackend().run(program, task).parameters
    assert len(tables) == 1
    monkeypatch.setattr(engine, "_clip_by_table", lambda *args: None)
    truth = FusedBackend().run(replace(program), task).parameters
    # The units have coefficients of 1e6, and are rounded accordingly.
    assert 0 < distance(ours[1], truth[1]) <= 1e-8
    assert distance(truth[1], initial.clamp(-3.0, 3.0)) > 1e-7
