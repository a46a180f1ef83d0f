from dataclasses import replace

import polars as pl
import pytest
import torch

import icgd
from icgd.backends.run import PLAIN, Run, RunOptions, with_origin
from icgd.errors import InterruptedRunError, SettingError
from icgd.problems.oracles import overflowed


def test_a_run_is_without_a_trace_unless_one_is_asked_for():
    run = Run(torch.zeros(2, 3), torch.zeros(1, 1))
    assert run.trace == {}
    assert Run(torch.zeros(2, 3), torch.zeros(1, 1)).trace is not run.trace


def test_a_plain_run_has_its_history_and_takes_all_steps():
    assert RunOptions((), True, None, None, overflowed) == PLAIN
    assert str(PLAIN.overflow("float32")) == (
        "The run leaves the range of float32: a step is too large for these data. Use a "
        "smaller step size."
    )


def compiled_network(biases: bool) -> icgd.Compiled:
    problem = icgd.Problem(
        icgd.MLP((2, 3, 1), "relu", biases=biases),
        "squared",
        icgd.GradientStep(0.2, box=1.0, batch_size=2),
        icgd.Domain(x=2.0, y=2.0),
    )
    return icgd.compile(problem, "cot-network", n_steps=3)


X = [[0.5, -1.0], [1.0, 0.25]]
Y = [[0.5], [-0.25]]


@pytest.mark.parametrize("biases", [False, True])
def test_trained_weights_have_names_and_shapes(biases):
    compiled = compiled_network(biases)
    run = compiled.run(X, Y, seed=1)
    matrices = compiled.problem.network.matrices(run.parameters[-1])
    assert list(run.weights) == (
        ["weights_1", "bias_1", "weights_2", "bias_2"] if biases else ["weights_1", "weights_2"]
    )
    assert run.weights["weights_2"].equal(matrices[1][:, :3])
    if biases:
        assert run.weights["bias_1"].equal(matrices[0][:, 2])
        first, shift, second, last = run.weights.values()
        hidden = (first @ torch.tensor(X[0]).double() + shift).relu()
        predicted = compiled.run(X, Y, queries=X[:1], seed=1).predictions[0]
        assert (second @ hidden + last).tolist() == pytest.approx(predicted.tolist(), abs=1e-12)


def test_the_loss_curve_is_the_oracles_risk_at_every_step():
    compiled = compiled_network(biases=False)
    run = compiled.run(X, Y, seed=1)
    x, y = torch.tensor(X).double(), torch.tensor(Y).double()
    for weights, loss in zip(run.parameters, run.loss_curve, strict=True):
        first, second = compiled.problem.network.matrices(weights)
        predicted = (x @ first.mT).relu() @ second.mT
        assert float(loss) == pytest.approx(float((predicted - y).square().sum() / 4), rel=1e-12)
    assert run.loss_curve[-1] < run.loss_curve[0]
    assert run.loss_in_words == "half the mean squared loss of all examples"
    assert run.objective_curve is None
    short = compiled.run(X, Y, seed=1, history=False)
    assert short.loss_curve.equal(run.loss_curve[[0, -1]])


def test_a_linear_model_has_coefficients_and_an_objective():
    problem = icgd.Problem(
        icgd.LinearModel(2, intercept=True),
        "matching",
        icgd.ProximalStep(step_size=0.1, l2=0.5, box=1.0),
        icgd.Domain(x=2.0, y=2.0),
    )
    run = icgd.compile(problem, "linear-stack", n_steps=3).run(X, Y)
    assert run.weights["coefficients"].equal(run.parameters[-1, :2])
    assert run.weights["intercept"].equal(run.parameters[-1, 2])
    penalty = 0.25 * run.parameters[:, :2].square().sum(-1)
    assert run.objective_curve.tolist() == pytest.approx((run.loss_curve + penalty).tolist())
    assert run.loss_in_words == (
        "mean over all examples of the matching loss of the identity link, "
        "(z - y)^2 / 2 less y^2 / 2"
    )


def test_a_function_has_values_in_place_of_weights():
    problem = icgd.Problem(
        icgd.KernelMachine(2, "rbf"), "squared", icgd.FunctionalStep(0.3), icgd.Domain(2.0, 2.0)
    )
    run = icgd.compile(problem, n_steps=2).run(X, Y, queries=[[0.0, 0.0]])
    assert run.weights["at_queries"].equal(run.predictions)
    left = run.weights["at_examples"] - torch.tensor(Y).double()
    assert float(run.loss_curve[-1]) == pytest.approx(float(left.square().sum() / 4))
    assert run.loss_in_words == "half the mean squared loss of all examples"


def test_batches_keep_their_axis():
    run = compiled_network(biases=False).run([X, X], [Y, Y], seed=1)
    assert run.weights["weights_1"].shape == (2, 3, 2)
    assert run.loss_curve.shape == (2, 4)


def test_an_interrupted_run_knows_its_weights_too():
    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError) as caught:
        compiled_network(biases=False).run(X, Y, seed=1, on_progress=interrupt)
    partial = caught.value.partial
    assert len(partial.loss_curve) == len(partial.parameters) == 3
    assert partial.weights["weights_1"].flatten().equal(partial.parameters[-1, :6])


def test_a_batch_that_is_interrupted_knows_the_tasks_that_it_holds():
    origin = compiled_network(biases=False).run([X, X], [Y, Y], seed=1).origin
    first = Run(torch.zeros(1, 4, 9).double(), torch.zeros(1, 0, 1).double())
    assert with_origin(first, origin).origin.task.batch == (1,)


def test_a_run_of_a_backend_on_its_own_says_what_it_lacks():
    run = Run(torch.zeros(2, 3).double(), torch.zeros(0, 1).double())
    for name in ("weights", "loss_curve", "loss_in_words", "objective_curve"):
        with pytest.raises(SettingError, match="This run has no problem and task attached"):
            getattr(run, name)
    with pytest.raises(SettingError, match="This run has no problem and task attached"):
        run.plot()


def test_a_run_shows_itself_in_a_line():
    run = compiled_network(biases=False).run(X, Y, queries=X, trace=["weights"], seed=1)
    assert repr(run) == (
        "Run(weights: 9, recorded 4 times; predictions: 2, of 1 label each; backend: fused; "
        "traced: 1 slot)"
    )
    assert "<td" in run._repr_html_()
    stopped = replace(run, stopped_after=3, trace={})
    assert repr(stopped) == (
        "Run(weights: 9, recorded 4 times; predictions: 2, of 1 label each; backend: fused; "
        "stopped after: 3 steps)"
    )


def linear_run(x, **options) -> Run:
    problem = icgd.Problem(
        icgd.LinearModel(2, intercept=True),
        "matching",
        icgd.ProximalStep(0.1, box=3.0),
        icgd.Domain(x=2.0, y=2.0),
    )
    return icgd.compile(problem, n_steps=3).run(x, Y, **options)


def test_coefficients_have_the_names_of_a_frame_and_the_numbers_of_an_array():
    plain, named = linear_run(X), linear_run(pl.DataFrame(X, schema=["age", "size"], orient="row"))
    assert named.parameters.equal(plain.parameters)
    numbers = plain.parameters[-1].tolist()
    assert named.coefficients == dict(zip(("age", "size", "(intercept)"), numbers, strict=True))
    assert plain.coefficients == dict(zip(("x_1", "x_2", "(intercept)"), numbers, strict=True))
    assert f"coefficients: age {numbers[0]:.4g}, size {numbers[1]:.4g}, (intercept) " in repr(named)
    assert "coefficients" not in repr(plain)


def test_only_one_linear_model_has_coefficients_by_name():
    assert compiled_network(biases=False).run(X, Y).coefficients is None
    problem = linear_run(X).origin.problem
    assert icgd.compile(problem, n_steps=3).run([X, X], [Y, Y]).coefficients is None
    frame = pl.DataFrame(X, schema=["age", "size"], orient="row")
    named = compiled_network(biases=False).run(frame, Y)
    assert named.origin.task.input_names == ("age", "size")
    assert "coefficients" not in repr(named)
