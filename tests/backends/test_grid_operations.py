"""Linear models on both backends: steps, predictions, batches, traces, stops and interruptions."""

import pytest
import torch

from icgd.backends import fused
from icgd.backends.registry import BACKENDS
from icgd.backends.rules import Machine
from icgd.backends.scores import linear_scores
from icgd.errors import InterruptedRunError, OverflowedRunError
from icgd.layers.mlp import MLPLayer
from icgd.problems.links import LINKS
from icgd.problems.task import Task
from tests.linear_cases import FISTA, HEAVY, PLAIN, PROBLEMS, compiled_of, data, problem_of, task_of

on_backends = pytest.mark.parametrize("backend", BACKENDS)
over_links = pytest.mark.parametrize("link", LINKS)
TOLERANCE = {"fused": 1e-15, "dense": 1e-11}


def real_run(problem, task, n_steps=4):
    return problem.oracle.train(task, n_steps)


@over_links
@on_backends
@pytest.mark.parametrize(
    "problems", [PROBLEMS, PLAIN, FISTA, HEAVY], ids=["penalised", "plain", "fista", "heavy"]
)
def test_every_block_is_a_proximal_step(link, backend, problems):
    problem = PROBLEMS[link] if link == "poisson" and problems is PLAIN else problems[link]
    task, compiled = task_of(problem), compiled_of(problem)
    run, real = compiled.run_task(task, backend=backend), real_run(problem, task)
    assert (real[1:] - real[:-1]).abs().amax(-1).min() > 1e-3
    assert (run.parameters - real).abs().max() <= TOLERANCE[backend]
    predicted = problem.oracle.predict(task, real[-1])
    assert (run.predictions - predicted).abs().max() <= TOLERANCE[backend]
    assert run.stopped_after is None


@on_backends
def test_the_box_and_the_threshold_hold_coefficients(backend):
    problem = problem_of("identity", step_size=3.0, l1=0.2, box=0.25)
    with pytest.warns(
        UserWarning, match=r"Coefficient \d \(counted from 0\) ends at the box, 0.25"
    ):
        run = compiled_of(problem).run_task(task_of(problem), backend=backend)
    real = real_run(problem, task_of(problem))
    assert (real.abs() == 0.25).any()
    assert (real[1:] == 0).any()
    assert (run.parameters - real).abs().max() <= 1e-14


@on_backends
@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_velocity_is_the_change_also_through_threshold_and_box(backend, nesterov):
    problem = problem_of(
        "identity", step_size=1.0, l1=0.2, box=0.1, momentum=(0.0, 0.5, 0.7, 0.9), nesterov=nesterov
    )
    run = compiled_of(problem).run_task(task_of(problem), backend=backend, trace=True)
    real = real_run(problem, task_of(problem))
    assert (real.abs() == 0.1).any()
    assert (real[1:, :3] == 0).any()
    assert (run.parameters - real).abs().max() <= 1e-14
    moved = torch.cat([run.trace["velocity_w"], run.trace["velocity_b"]], dim=-1)[3:-2:3, 0]
    assert (moved - run.parameters.diff(dim=0)).abs().max() <= 1e-15


@on_backends
@pytest.mark.parametrize("problem", [PROBLEMS["logistic"], FISTA["logistic"]], ids=["plain", "f"])
def test_a_batch_is_each_of_its_tasks(backend, problem):
    batch, compiled = task_of(problem, tasks=(2,)), compiled_of(problem)
    together = compiled.run_task(batch, backend=backend)
    for number in range(2):
        task = Task(batch.x[number], batch.y[number], batch.queries[number], batch.initial[number])
        alone = compiled.run_task(task, backend=backend)
        torch.testing.assert_close(together.parameters[number], alone.parameters)
        torch.testing.assert_close(together.predictions[number], alone.predictions)


@pytest.mark.parametrize("problems", [PROBLEMS, FISTA], ids=["plain", "fista"])
def test_both_backends_leave_the_same_trace(problems):
    problem = problems["softplus"]
    fused, dense = (
        compiled_of(problem).run_task(task_of(problem), backend=backend, trace=True)
        for backend in ("fused", "dense")
    )
    assert set(fused.trace) == set(dense.trace) >= {"w", "b", "mean", "y"}
    for name, values in fused.trace.items():
        assert (values - dense.trace[name]).abs().max() <= 1e-11, name
    assert fused.trace["mean"][-2].abs().min() > 0
    assert torch.equal(fused.trace["y"][-1, :6], task_of(problem).y)


@on_backends
@pytest.mark.parametrize("trace", [False, True])
def test_a_run_stops_after_the_first_step_that_moves_nothing(backend, trace):
    problem = problem_of("identity", step_size=0.4, l2=0.5)
    task, compiled = task_of(problem), compiled_of(problem, n_steps=200)
    run = compiled.run_task(task, backend=backend, stop_below=1e-6, trace=trace)
    real = real_run(problem, task, 200)
    moves = (real[1:] - real[:-1]).abs().amax(-1)
    first = int((moves <= 1e-6).nonzero()[0]) + 1
    assert run.stopped_after == first < 200
    assert len(run.parameters) == first + 1
    assert (run.parameters - real[: first + 1]).abs().max() <= 1e-11
    last = compiled.run_task(task, backend=backend, stop_below=1e-6, history=False)
    assert (last.stopped_after, len(last.parameters)) == (first, 2)
    torch.testing.assert_close(last.parameters[-1], run.parameters[-1])
    torch.testing.assert_close(last.predictions, run.predictions)


def test_tasks_of_a_batch_stop_together():
    problem = problem_of("identity", step_size=0.4, l2=0.5)
    task, compiled = task_of(problem, tasks=(3,)), compiled_of(problem, n_steps=200)
    run = compiled.run_task(task, stop_below=1e-6)
    moves = (run.parameters[:, 1:] - run.parameters[:, :-1]).abs().amax((0, 2))
    assert moves[-1] <= 1e-6 < moves[-2]


@on_backends
def test_an_interrupted_run_leaves_its_whole_steps(backend):
    problem = PROBLEMS["logistic"]
    task = task_of(problem)

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match="after 3 of 9 steps") as caught:
        compiled_of(problem, n_steps=9).run_task(task, backend=backend, on_progress=interrupt)
    partial, real = caught.value.partial, real_run(problem, task, 3)
    assert (partial.parameters - real).abs().max() <= 1e-12
    predicted = problem.oracle.predict(task, real[-1])
    assert (partial.predictions - predicted).abs().max() <= 1e-11


@on_backends
def test_an_interrupted_trace_ends_with_the_last_whole_step(backend):
    problem = PROBLEMS["logistic"]

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError) as caught:
        compiled_of(problem, n_steps=9).run_task(
            task_of(problem), backend=backend, trace=["w"], on_progress=interrupt
        )
    partial = caught.value.partial
    assert torch.equal(partial.trace["w"][6, 0], partial.parameters[-1][:3])


def test_a_dense_step_that_is_interrupted_leaves_the_stream_before_it(monkeypatch):
    """The MLP of the fourth step, which would clip, is never reached."""
    problem, n_calls = problem_of("identity", step_size=2.0, box=0.25), []
    forward = MLPLayer.forward

    def interrupted(layer, stream):
        n_calls.append(layer)
        if len(n_calls) == 4:
            raise KeyboardInterrupt
        return forward(layer, stream)

    monkeypatch.setattr(MLPLayer, "forward", interrupted)
    task = task_of(problem)
    with pytest.raises(InterruptedRunError, match="after 3 of 9") as caught:
        compiled_of(problem, n_steps=9).run_task(task, backend="dense")
    partial = caught.value.partial
    real = real_run(problem, task, 3)
    predicted = problem.oracle.predict(task, real[-1])
    assert (partial.parameters - real).abs().max() <= 1e-12
    assert (partial.predictions - predicted).abs().max() <= 1e-12


@on_backends
def test_an_interrupted_run_whose_queries_are_out_of_range_keeps_its_weights(backend):
    problem = problem_of("logistic", score=1.0, step_size=2.0)
    x, y, _ = data()
    queries = torch.full((1, 3), 2.0, dtype=torch.float64)
    start = torch.tensor([0.9, 0.9, 0.9, 0.0], dtype=torch.float64)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError) as caught:
        compiled_of(problem, n_steps=3).run(
            0.1 * x, y, queries=queries, initial=start, backend=backend, on_progress=interrupt
        )
    assert caught.value.partial.parameters.shape == (2, 4)
    assert caught.value.partial.predictions.shape == (0, 1)


def test_a_batch_in_groups_leaves_the_tasks_that_are_done(monkeypatch):
    monkeypatch.setattr(fused, "NUMBERS_AT_ONCE", 2 * 9)
    problem = PROBLEMS["logistic"]
    task, compiled = task_of(problem, tasks=(5,)), compiled_of(problem, n_steps=3)

    def interrupt(done: int, total: int) -> None:
        if done == 8:  # in the third group
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match="whole runs of the first 4 of 5") as caught:
        compiled.run_task(task, on_progress=interrupt)
    whole = compiled.run_task(task)
    torch.testing.assert_close(caught.value.partial.parameters, whole.parameters[:4])


@on_backends
def test_a_score_beyond_the_range_names_the_step_the_example_and_the_value(backend):
    problem = problem_of("logistic", step_size=2.0, score=0.2)
    task = task_of(problem)
    real = real_run(problem, task)
    scores = problem.linear_oracle.scores(real[1], task.x).flatten()
    row = int((scores.abs() > 0.2 * (1 + 2.0**-10)).nonzero()[0])
    where = rf"at step 2, example {row} \(counted from 0\) is {scores[row]:.6g}"
    with pytest.raises(OverflowedRunError, match=where):
        compiled_of(problem).run_task(task, backend=backend)


@on_backends
@pytest.mark.parametrize("momentum", [0.9, (0.9,) * 4], ids=["one block", "blocks"])
def test_with_momentum_scores_are_those_ahead(backend, momentum):
    """The weights stay in range until step 4, but where step 3 looks they do not."""
    settings = {"step_size": 0.2, "box": 9.0, "l1": 0.0, "l2": 0.0, "nesterov": True}
    problem = problem_of("identity", score=1.0, momentum=momentum, **settings)
    x, y, _ = data()
    task = compiled_of(problem).task(x, 2 * y)
    real = real_run(problem, task)
    points = torch.cat([real[:1], real[1:] + 0.9 * real.diff(dim=0)])
    scores, ahead = (linear_scores(part, x.expand(5, -1, -1))[..., 0] for part in (real, points))
    reach = 0.5 * float(scores[2].abs().max() + ahead[2].abs().max())
    assert ahead[:2].abs().max() < scores[2].abs().max() < reach < ahead[2].abs().max()
    problem = problem_of("identity", score=reach, momentum=momentum, **settings)
    row = int((ahead[2].abs() > reach * (1 + 2.0**-10)).nonzero()[0])
    where = rf"at step 3, example {row} \(counted from 0\) is {ahead[2, row]:.6g}"
    with pytest.raises(OverflowedRunError, match=where):
        compiled_of(problem).run_task(task, backend=backend)


@on_backends
def test_a_query_beyond_the_range_is_named(backend):
    problem = problem_of("logistic", score=1.0)
    x, y, _ = data()
    queries = torch.tensor([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
    start = torch.tensor([0.9, 0.9, 0.9, 0.0], dtype=torch.float64)
    run = compiled_of(problem, n_steps=0)
    with pytest.raises(OverflowedRunError, match=r"at query 1 \(counted from 0\) is 5.4, but"):
        run.run(x, y, queries=queries, initial=start, backend=backend)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@over_links
def test_one_compiled_run_serves_every_number_of_examples_and_queries(link, reduction, intercept):
    problem = problem_of(link, reduction=reduction, intercept=intercept, step_size=0.02)
    compiled = compiled_of(problem)
    for n_examples, n_queries in ((1, 0), (2, 3), (7, 1), (50, 20)):
        task = task_of(problem, sizes=(n_examples, n_queries))
        real = real_run(problem, task)
        predicted = problem.oracle.predict(task, real[-1])
        assert (real[-1] - real[0]).abs().max() > 1e-3
        for backend, tolerance in TOLERANCE.items():
            run = compiled.run_task(task, backend=backend)
            assert (run.parameters - real).abs().max() <= tolerance
            torch.testing.assert_close(run.predictions, predicted, rtol=0, atol=tolerance)


PLAIN_STEP = {"intercept": False, "l2": 0.0, "l1": 0.0}


@on_backends
@pytest.mark.parametrize(("reduction", "factor"), [("sum", 1), ("mean", 2)])
def test_a_sum_does_not_see_examples_of_zeros_and_a_mean_counts_them(backend, reduction, factor):
    """With as many examples of zeros a mean takes half the step."""
    x, y, _ = data()
    padded, alone = (
        compiled_of(problem_of("softplus", reduction=reduction, step_size=step, **PLAIN_STEP))
        for step in (0.1 * factor, 0.1)
    )
    run = padded.run(torch.cat([x, 0 * x]), torch.cat([y, 0 * y]), backend=backend)
    own = alone.run(x, y, backend=backend)
    assert (own.parameters[-1] - own.parameters[0]).abs().max() > 1e-2
    assert (run.parameters - own.parameters).abs().max() <= 1e-15


@on_backends
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_coefficients_do_not_depend_on_queries(backend, reduction):
    problem = problem_of("poisson", reduction=reduction, step_size=0.02)
    (x, y, queries), compiled = data(), compiled_of(problem)
    alone = compiled.run(x, y, backend=backend)
    many = compiled.run(x, y, queries=queries.repeat(9, 1), backend=backend)
    assert (many.parameters - alone.parameters).abs().max() <= 1e-15


def test_a_machine_has_the_coefficients_once():
    problem = PROBLEMS["logistic"]
    task = task_of(problem)
    machine = Machine(compiled_of(problem).program, task.initial, task.x, task.y, task.queries)
    assert machine.slots["w"].shape == (1, 3)
