"""Gradients through the transformer equal those of autograd through exact descent."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import icgd
from icgd.errors import DataError, DomainError, PrecisionWarning, SettingError
from icgd.learnable import LearnableRun, unrolled_descent

ROOT = Path(__file__).parents[1]
STEP_SIZES = [0.3, 0.2, 0.4]
BOX = 1.0

ACTIVATIONS = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "relu": torch.relu,
    "leaky_relu": lambda z: functional.leaky_relu(z, 0.01),
    "identity": lambda z: z,
}
LOSSES = {
    "squared": lambda p, y: (p - y).square(),
    "logistic": lambda p, y: functional.softplus(p) - p * y,
    "huber": lambda p, y: functional.huber_loss(p, y, reduction="none"),
}


def problem_of(activation="relu", loss="squared", widths=(2, 3, 2, 1), batch_size=None):
    return icgd.Problem(
        target=icgd.MLP(widths, activation),
        loss=loss,
        update=icgd.GradientStep(step_size=0.3, box=BOX, batch_size=batch_size),
        domain=icgd.Domain(x=1.0, y=1.0),
    )


def compiled_of(problem, construction="relu-stack", n_steps=3, **settings):
    return icgd.compile(problem, construction, n_steps=n_steps, **settings)


def data(*batch, outputs=1, seed=0):
    """Five examples and four queries with their labels, for each task."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((5, 2), (5, outputs), (4, 2), (4, outputs))
    x, y, queries, labels = (
        torch.rand(*batch, *size, generator=generator, dtype=torch.float64) for size in sizes
    )
    return 2 * x - 1, y, 2 * queries - 1, labels


def network(problem, weights, x):
    """The network, written down once more: plain torch, one task."""
    target, start = problem.target, 0
    for number, (fan_in, fan_out) in enumerate(zip(target.widths, target.widths[1:], strict=False)):
        matrix = weights[start : start + fan_in * fan_out].reshape(fan_out, fan_in)
        is_last = number == target.depth - 1
        activation = target.output_activation if is_last else target.activation
        x = ACTIVATIONS[activation](x @ matrix.T)
        start += fan_in * fan_out
    return x


def trained(problem, weights, x, y, step_sizes):
    """Exact descent on one task, whose gradients autograd finds and follows."""
    for step_size in step_sizes:
        risk = LOSSES[problem.loss](network(problem, weights, x), y).sum() / (2 * len(x))
        (gradient,) = torch.autograd.grad(risk, weights, create_graph=True)
        weights = (weights - step_size * gradient).clamp(-BOX, BOX)
    return weights


def autograd(problem, initial, step_sizes, x, y, queries, labels):
    """The gradients of the loss at the queries by the initial weights and by the step sizes."""
    initial = initial.detach().clone().requires_grad_()
    step_sizes = step_sizes.detach().clone().requires_grad_()
    losses = []
    for task in zip(x, y, queries, labels, strict=True):
        start = initial + 0  # a node of the graph, which autograd can differentiate by
        weights = trained(problem, start, task[0], task[1], step_sizes.expand(3))
        losses.append((network(problem, weights, task[2]) - task[3]).square().mean())
    torch.stack(losses).mean().backward()
    return initial.grad, step_sizes.grad


def errors(run, batch):
    """Largest errors of both gradients, each as a share of its largest entry."""
    x, y, queries, labels = batch
    run.zero_grad()
    (run(x, y, queries) - labels).square().mean().backward()
    found = run.initial.grad, run.step_sizes.grad
    exact = autograd(run.problem, run.initial, run.step_sizes, *batch)
    pairs = zip(found, exact, strict=True)
    return [float((one - other).abs().max() / other.abs().max()) for one, other in pairs]


@pytest.mark.parametrize(
    ("activation", "loss"),
    [
        ("tanh", "squared"),
        ("sigmoid", "logistic"),
        ("softplus", "squared"),
        ("gelu", "huber"),
        ("silu", "squared"),
        ("relu", "squared"),
        ("leaky_relu", "logistic"),
    ],
)
def test_gradients_through_softmax_stack_are_those_of_autograd(activation, loss):
    compiled = compiled_of(problem_of(activation, loss), "softmax-stack")
    run = LearnableRun(compiled, step_sizes=STEP_SIZES, seed=0)
    assert max(errors(run, data(2))) < 1e-8


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "identity"])
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_gradients_through_relu_stack_are_those_of_autograd_if_all_is_piecewise_linear(
    activation, loss
):
    run = LearnableRun(compiled_of(problem_of(activation, loss)), step_sizes=STEP_SIZES, seed=0)
    assert max(errors(run, data(3))) < 1e-11


def test_gradients_through_pieces_approach_those_of_autograd_as_pieces_grow():
    found = []
    for pieces in (16, 64, 256):
        compiled = compiled_of(problem_of("tanh", widths=(2, 4, 1)), pieces=pieces)
        run = LearnableRun(compiled, step_sizes=STEP_SIZES, seed=0)
        found.append(max(errors(run, data(4))))
    assert found[0] > found[1] > found[2] > 1e-6
    assert found[2] < 0.02


def test_several_outputs_one_task_and_one_step_size_for_all_steps():
    problem = problem_of("tanh", widths=(2, 3, 2))
    run = LearnableRun(compiled_of(problem, "softmax-stack"), step_sizes=0.25, seed=1)
    batch = data(1, outputs=2)
    assert run.step_sizes.shape == ()
    assert max(errors(run, batch)) < 1e-8
    gradient = run.initial.grad.clone()
    x, y, queries, labels = (part[0] for part in batch)
    run.zero_grad()
    (run(x, y, queries) - labels).square().mean().backward()
    torch.testing.assert_close(run.initial.grad, gradient, rtol=1e-12, atol=1e-15)


def test_the_gradient_by_a_step_size_is_the_slope_of_finite_differences():
    compiled = compiled_of(problem_of("tanh", widths=(2, 3, 1)), "softmax-stack", n_steps=2)
    x, y, queries, labels = data(2)

    def loss(step_size):
        run = LearnableRun(compiled, step_sizes=[step_size, 0.2], seed=0)
        return run, (run(x, y, queries) - labels).square().mean()

    run, at = loss(0.3)
    at.backward()
    slope = (loss(0.3 + 1e-4)[1] - loss(0.3 - 1e-4)[1]) / 2e-4
    assert float(run.step_sizes.grad[0]) == pytest.approx(float(slope.detach()), rel=1e-6)


def test_gradients_reach_the_data_too():
    run = LearnableRun(compiled_of(problem_of()), step_sizes=STEP_SIZES, seed=0)
    x, y, queries, labels = data(1)
    parts = [part.requires_grad_() for part in (x, y, queries)]
    (run(*parts) - labels).square().mean().backward()
    found = [part.grad.clone() for part in parts]
    for part in parts:
        part.grad = None
    weights = trained(run.problem, run.initial + 0, x[0], y[0], STEP_SIZES)
    (network(run.problem, weights, queries[0]) - labels[0]).square().mean().backward()
    for one, part in zip(found, parts, strict=True):
        torch.testing.assert_close(one, part.grad, rtol=1e-9, atol=1e-12)


def test_every_step_is_that_of_the_dense_run():
    compiled = compiled_of(problem_of("tanh"), "softmax-stack")
    run = LearnableRun(compiled, seed=3)
    x, y, queries, _ = data(2)
    real = compiled.run(x, y, queries=queries, initial=run.initial, backend="dense")
    # Both add up the same terms in other orders. Look-ups of squares alone may lose 400 units of
    # roundoff to that: 4 times their sensitivity (34), and 2 times 27 terms times their size (5).
    close = {"rtol": 0, "atol": 3e-14}
    with torch.no_grad():
        steps = run.steps(x, y, queries)
        torch.testing.assert_close(run(x, y, queries), real.predictions, **close)
    torch.testing.assert_close(steps.parameters, real.parameters, **close)
    torch.testing.assert_close(steps.predictions[:, -1], real.predictions, **close)


def test_unrolled_descent_is_descent_with_a_step_size_for_each_step():
    problem = problem_of("tanh")
    x, y, queries, _ = data(2)
    initial = problem.target.initial_parameters(0, BOX, ()).double()
    steps = unrolled_descent(problem, x, y, queries, initial, torch.tensor(STEP_SIZES).double())
    for task in range(2):
        for number in range(4):
            start = initial.clone().requires_grad_()
            weights = trained(problem, start, x[task], y[task], STEP_SIZES[:number])
            torch.testing.assert_close(steps.parameters[task, number], weights.detach())
            predicted = network(problem, weights, queries[task]).detach()
            torch.testing.assert_close(steps.predictions[task, number], predicted)


def test_an_ordinary_run_records_no_gradients():
    """Neither backend does: the fused one writes in place, and both are faster without."""
    compiled = compiled_of(problem_of())
    x, y, queries, _ = data(2)
    initial = LearnableRun(compiled, seed=0).initial
    for backend in ("fused", "dense"):
        run = compiled.run(x, y, queries=queries, initial=initial, backend=backend)
        assert not run.predictions.requires_grad


def test_only_step_sizes_and_initial_weights_learn():
    run = LearnableRun(compiled_of(problem_of()), seed=0)
    names = [name for name, parameter in run.named_parameters() if parameter.requires_grad]
    assert names == ["initial", "step_sizes"]
    assert run.step_sizes.item() == 0.3


def test_initial_weights_are_clipped_to_the_box():
    run = LearnableRun(compiled_of(problem_of()), seed=0)
    with torch.no_grad():
        run.initial[0] = 9.0
    x, y, queries, _ = data(2)
    steps = run.steps(x, y, queries)
    assert steps.parameters[0, 0, 0].item() == BOX


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_an_untied_run_is_the_same_run_with_weights_of_its_own(construction):
    compiled = compiled_of(problem_of(), construction)
    tied = LearnableRun(compiled, step_sizes=STEP_SIZES, seed=0)
    untied = tied.untied()
    x, y, queries, labels = data(2)
    found = untied(x, y, queries)
    torch.testing.assert_close(found, tied(x, y, queries), rtol=0, atol=1e-13)
    assert all(parameter.requires_grad for parameter in untied.parameters())
    assert len(untied.transformer.block) == 3 * len(compiled.stack.block)
    (found - labels).square().mean().backward()
    place = compiled.stack.block.index(next(x for x in compiled.stack.block if "grad" in x.title))
    layers = [untied.transformer.block[place + k * len(compiled.stack.block)] for k in range(3)]
    exact = autograd(untied.problem, tied.initial, tied.step_sizes, x, y, queries, labels)[1]
    by_chain_rule = [(layer.W_O.grad * layer.W_O).sum().detach() for layer in layers]
    sizes = torch.tensor(STEP_SIZES, dtype=torch.float64)
    torch.testing.assert_close(torch.stack(by_chain_rule), exact * sizes, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize(("kink_width", "allowed"), [(2.0**-13, 1e-3), (2.0**-6, 1e-5)])
def test_float32_finds_the_gradients_to_its_own_precision(kink_width, allowed):
    """A ramp loses as many digits as it is narrow."""
    compiled = compiled_of(problem_of(), kink_width=kink_width)
    run = LearnableRun(compiled, step_sizes=STEP_SIZES, seed=0, dtype="float32")
    exact = LearnableRun(compiled, step_sizes=STEP_SIZES, initial=run.initial.double())
    x, y, queries, labels = data(2)
    for module in (run, exact):
        loss = (module(x, y, queries) - labels.to(module.initial)).square().mean()
        assert loss.dtype == module.initial.dtype
        loss.backward()
    for name in ("initial", "step_sizes"):
        one, other = (module.get_parameter(name).grad.double() for module in (run, exact))
        assert (one - other).abs().max() < allowed * other.abs().max()


def test_float32_of_a_program_for_float64_warns():
    compiled = compiled_of(problem_of("tanh", widths=(2, 3, 1)), "softmax-stack")
    with pytest.warns(PrecisionWarning):
        LearnableRun(compiled, seed=0, dtype="float32")


@pytest.mark.parametrize("value", [0.0, -0.1, float("nan"), float("inf"), "fast"])
def test_a_step_size_that_is_not_positive_is_refused(value):
    compiled = compiled_of(problem_of())
    with pytest.raises(SettingError, match=r"^step_sizes(\[0\])? must be a positive finite"):
        LearnableRun(compiled, step_sizes=value, seed=0)
    message = rf"^step_sizes\[1\] must be a positive finite number, got {value!r}\.$"
    with pytest.raises(SettingError, match=message):
        LearnableRun(compiled, step_sizes=[0.1, value, 0.1], seed=0)


def test_other_numbers_of_step_sizes_are_refused():
    message = "^step_sizes has 2 entries; expected 3, one for each step.$"
    with pytest.raises(SettingError, match=message):
        LearnableRun(compiled_of(problem_of()), step_sizes=[0.1, 0.2], seed=0)


def test_a_construction_without_such_a_layer_is_refused_before_anything_is_built():
    machine = icgd.Problem(
        target=icgd.KernelMachine(2, "rbf"),
        loss="squared",
        update=icgd.FunctionalStep(step_size=0.1),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    chain = compiled_of(problem_of(batch_size=5), "cot-network")
    for compiled in (icgd.compile(machine, "functional", n_steps=2), chain):
        message = f"^In {compiled.program.construction} the step size is not a factor of one layer"
        with pytest.raises(SettingError, match=message):
            LearnableRun(compiled, seed=0)


def test_initial_weights_and_data_are_checked_as_those_of_a_run():
    compiled = compiled_of(problem_of())
    with pytest.raises(SettingError, match="initial"):
        LearnableRun(compiled, initial=torch.zeros(14), seed=0)
    with pytest.raises(DataError, match="initial"):
        LearnableRun(compiled, initial=torch.zeros(13))
    run = LearnableRun(compiled, seed=0)
    x, y, queries, _ = data(2)
    with pytest.raises(DomainError, match="queries"):
        run(x, y, 3 * queries)
    with pytest.raises(DataError, match="y has shape"):
        run(x, y[:, :4], queries)


def test_the_page_runs_and_learns(capsys):
    page = (ROOT / "docs/training/through_the_run.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(code.splitlines()) < 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, "through_the_run.md", "exec"), {})
    before, after = map(float, capsys.readouterr().out.split())
    assert after < 0.8 * before


@pytest.mark.parametrize(
    "update",
    [
        icgd.GradientStep(0.3, BOX, average=0.5),
        icgd.GradientStep((0.3, 0.2, 0.1), BOX),
        icgd.GradientStep(0.3, BOX, groups={"weights_1": {"step_size": 0.1}}),
        icgd.MomentumStep(0.3, BOX),
        icgd.MomentumStep(0.3, BOX, momentum=0.0, weight_decay=0.1),
    ],
    ids=lambda update: update.in_words(),
)
def test_steps_whose_size_is_no_factor_of_one_layer_are_refused(update):
    problem = replace(problem_of(), update=update)
    with pytest.raises(SettingError, match=r"^Step sizes cannot be learnt for "):
        LearnableRun(compiled_of(problem))


@pytest.mark.parametrize(
    "update",
    [
        icgd.GradientStep(0.3, BOX, batch_size=2),
        icgd.GradientStep(0.3, BOX, groups={"weights_1": {"step_size": 0.1}}),
        icgd.MomentumStep(0.3, BOX),
    ],
    ids=lambda update: update.in_words(),
)
def test_unrolled_descent_refuses_what_it_would_leave_out(update):
    problem = replace(problem_of(), update=update)
    x, y, queries, _ = data()
    initial, sizes = problem.target.initial_parameters(0, BOX, ()).double(), torch.tensor([0.3])
    with pytest.raises(SettingError, match=r"where unrolled_descent takes gradient steps on all"):
        unrolled_descent(problem, x, y, queries, initial, sizes)


def test_runs_on_batches_learn_too():
    compiled = compiled_of(problem_of(batch_size=2))
    x, y, queries, _ = data()
    predictions = LearnableRun(compiled, seed=1)(x, y, queries).detach()
    expected = compiled.run(x, y, queries=queries, seed=1).predictions
    torch.testing.assert_close(predictions, expected, rtol=1e-11, atol=1e-12)
