"""PyTorch training runs as problems: each is compared with torch's own loop, step by step."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RMSprop, lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

import icgd
import icgd_check
from icgd.errors import BoxWarning, IcgdError, SettingError, UnreadableError
from icgd.problems.optimisers import GradientStep

N_STEPS = 10
TORCH_ROUNDING = 2e-15
NORM_ROUNDING = 1e-13
"""How far torch's own loop may be from the oracle's: both round, in other orders, and layer norms
divide by small numbers."""
PLAIN = partial(SGD, lr=0.1)
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus)


@dataclass(frozen=True)
class Script:
    """A training script: its model, loss, optimiser, and maybe a scheduler and batches."""

    optimizer: Callable[..., torch.optim.Optimizer] = PLAIN
    loss: Callable[[], nn.Module] = nn.MSELoss
    activation: Callable[[], nn.Module] = nn.Tanh
    widths: tuple[int, ...] = (2, 3, 2)
    bias: bool = True
    norm_eps: float | None = None
    scheduler: Callable[[Any], Any] | None = None
    batch_size: int | None = None
    average: float | None = None

    def model(self) -> nn.Sequential:
        torch.manual_seed(5)
        layers: list[nn.Module] = []
        for inputs, outputs in zip(self.widths, self.widths[1:], strict=False):
            linear = nn.Linear(inputs, outputs, bias=self.bias, dtype=torch.float64)
            layers += [linear, *self.norms_of(outputs), self.activation()]
        return nn.Sequential(*layers[:-1])

    def norms_of(self, width: int) -> list[nn.Module]:
        eps = self.norm_eps
        return [] if eps is None else [nn.LayerNorm(width, eps, elementwise_affine=False)]

    def data(self, n_examples: int = 6) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        float64 = {"generator": generator, "dtype": torch.float64}
        x = torch.randn(n_examples, self.widths[0], **float64).clamp(-2, 2)
        return x, torch.rand(n_examples, self.widths[-1], **float64)

    def trained(self, n_steps: int = N_STEPS) -> list[list[Tensor]]:
        """The parameters before the first step and after every step of torch's own loop."""
        model, loss, (x, y) = self.model(), self.loss(), self.data()
        optimizer = self.optimizer(model.parameters())
        scheduler = self.scheduler(optimizer) if self.scheduler else None
        history = [[part.detach().clone() for part in model.parameters()]]
        size = self.batch_size or len(x)
        for step in range(n_steps):
            rows = [number % len(x) for number in range(step * size, (step + 1) * size)]
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
            if scheduler:
                scheduler.step()
            history.append([part.detach().clone() for part in model.parameters()])
        return history

    def averaged(self, n_steps: int = N_STEPS) -> nn.Module:
        """torch's own average of the weights after so many steps, as a model."""
        model = self.model()
        averaged = AveragedModel(model, avg_fn=get_ema_avg_fn(self.average))
        for weights in self.trained(n_steps)[1:]:
            with torch.no_grad():
                for part, value in zip(model.parameters(), weights, strict=True):
                    part.copy_(value)
            averaged.update_parameters(model)
        return averaged.module

    def problem(self, **options: Any) -> icgd.Problem:
        model = self.model()
        optimizer = self.optimizer(model.parameters())
        scheduler = self.scheduler(optimizer) if self.scheduler else None
        given = {"domain": icgd.Domain(2.0, 1.0), "batch_size": self.batch_size, **options}
        if self.average is not None:
            given["average"] = self.average
        if scheduler is not None:
            given |= {"scheduler": scheduler, "n_steps": N_STEPS}
        return icgd.from_torch(model, self.loss(), optimizer, **given)


@dataclass(frozen=True)
class Classifier(Script):
    """A script that learns shares of three classes."""

    loss: Callable[[], nn.Module] = nn.CrossEntropyLoss
    widths: tuple[int, ...] = (2, 4, 3)

    def data(self, n_examples: int = 6) -> tuple[Tensor, Tensor]:
        x, y = super().data(n_examples)
        return x, y / y.sum(-1, keepdim=True)


SCRIPTS = {
    "sgd": Script(),
    "no bias": Script(bias=False),
    "sum": Script(partial(SGD, lr=0.02), partial(nn.MSELoss, reduction="sum"), batch_size=3),
    "batches": Script(batch_size=4),
    "one layer": Script(widths=(2, 2)),
    "weight decay": Script(partial(SGD, lr=0.1, weight_decay=0.2)),
    "momentum": Script(partial(SGD, lr=0.05, momentum=0.9)),
    "dampening": Script(
        partial(SGD, lr=0.05, momentum=0.8, dampening=0.5, weight_decay=0.1), batch_size=2
    ),
    "nesterov": Script(
        partial(SGD, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1), bias=False
    ),
    "cosine": Script(
        partial(SGD, lr=0.2, momentum=0.5),
        scheduler=partial(lr_scheduler.CosineAnnealingLR, T_max=30),
    ),
    "exponential": Script(scheduler=partial(lr_scheduler.ExponentialLR, gamma=0.9)),
    "logistic": Script(loss=nn.BCEWithLogitsLoss, activation=nn.SiLU),
    "huber": Script(loss=partial(nn.HuberLoss, delta=0.25), activation=nn.Softplus),
    "classes": Classifier(partial(SGD, lr=0.1, momentum=0.9)),
    "smooth l1": Script(loss=partial(nn.SmoothL1Loss, beta=0.5), activation=nn.GELU),
}
"""What every stack takes."""

ROOTS = {
    "adam": Script(partial(Adam, lr=0.01, eps=1e-3)),
    "adam decay": Script(partial(Adam, lr=0.01, eps=1e-3, weight_decay=0.1), batch_size=3),
    "adamw": Script(
        partial(AdamW, lr=0.01, eps=1e-3, weight_decay=0.1),
        scheduler=partial(lr_scheduler.StepLR, step_size=5),
    ),
    "adam relu": Script(partial(Adam, lr=0.01, betas=(0.8, 0.9), eps=1e-6), activation=nn.ReLU),
    "rmsprop": Script(partial(RMSprop, lr=0.01, alpha=0.9, eps=1e-3, weight_decay=0.1)),
}
"""What relu-stack takes."""


def in_groups(kind: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """An optimiser of matrices and biases in two groups, with other options for the biases."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        parts = list(parameters)
        matrices, biases = ([p for p in parts if (p.ndim > 1) == is_matrix] for is_matrix in (1, 0))
        return kind([{"params": matrices, "name": "decay"}, {"params": biases, **options}])

    return make


GROUPS = {
    "plain": Script(in_groups(PLAIN, lr=0.3)),
    "decay": Script(in_groups(partial(SGD, lr=0.1, weight_decay=0.2), weight_decay=0.0)),
    "momentum": Script(
        in_groups(partial(SGD, lr=0.05, momentum=0.8, nesterov=True), lr=0.1, weight_decay=0.1),
        scheduler=partial(lr_scheduler.LambdaLR, lr_lambda=[lambda i: 0.9**i, lambda i: 1.0]),
        batch_size=4,
    ),
    "still": Script(in_groups(partial(SGD, lr=0.1, momentum=0.9), lr=0.0)),
}
"""Parameter groups with different options, which both stacks take."""

ROOTS_IN_GROUPS = {
    "adam": Script(in_groups(partial(Adam, lr=0.01, eps=1e-3, weight_decay=0.1), lr=0.02)),
    "adamw": Script(
        in_groups(partial(AdamW, lr=0.01, eps=1e-3, weight_decay=0.1), weight_decay=0.0),
        average=0.75,
    ),
    "rmsprop": Script(
        in_groups(partial(RMSprop, lr=0.01, eps=1e-3, weight_decay=0.1), weight_decay=0.0),
        scheduler=partial(lr_scheduler.ExponentialLR, gamma=0.9),
    ),
}
"""Parameter groups of optimisers with roots, which relu-stack takes."""

NORMS = {
    "sgd": Script(activation=nn.GELU, widths=(2, 6, 4), norm_eps=0.1),
    "batches": Script(activation=nn.ReLU, widths=(2, 6, 4), norm_eps=0.1, batch_size=4),
    "adam": Script(partial(Adam, lr=0.01, eps=1e-3), widths=(2, 4, 3), norm_eps=0.1),
}
"""Layer norms, which relu-stack takes; torch rounds them in another order."""


AVERAGED = {
    "plain": Script(average=0.9),
    "momentum": Script(partial(SGD, lr=0.05, momentum=0.9), average=0.75, batch_size=4),
    "nesterov": Script(
        partial(SGD, lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.1),
        scheduler=partial(lr_scheduler.ExponentialLR, gamma=0.9),
        bias=False,
        average=0.99,
    ),
    "adam": Script(partial(Adam, lr=0.01, eps=1e-3), average=0.9),
    "no memory": Script(activation=nn.ReLU, average=0.0),
}
"""Runs whose weights are averaged."""


def distance(script: Script, compiled: icgd.Compiled, history: Tensor) -> float:
    """The largest distance of any weight, after any step, from torch's own loop."""
    largest, task = 0.0, icgd.as_task(compiled.problem, *script.data())
    for weights, real in zip(history, script.trained(), strict=True):
        named = compiled.problem.oracle.by_name(task, weights)
        parts = [value for name, value in named.items() if name.startswith(("weights_", "bias_"))]
        gaps = [(part - own).abs().max() for part, own in zip(parts, real, strict=True)]
        largest = max(largest, float(max(gaps)))
    return largest


def proved(report: icgd.Report) -> float:
    """The largest proved distance of any step from exact training as float64 rounds it."""
    return float(report.trajectory_bounds.max())


def in_batches(script: Script) -> Script:
    """The same script, in batches of all examples if it has no others."""
    return replace(script, batch_size=script.batch_size or len(script.data()[0]))


ALL_GROUPS = [*GROUPS.items(), *ROOTS_IN_GROUPS.items()]


@pytest.mark.parametrize(
    "script",
    [
        *(pytest.param(script, id=name) for name, script in (SCRIPTS | ROOTS).items()),
        *(pytest.param(script, id=f"groups: {name}") for name, script in ALL_GROUPS),
    ],
)
def test_the_reference_is_torch_s_own_loop(script):
    problem, (x, y) = script.problem(), script.data()
    history = problem.oracle.train(icgd.as_task(problem, x, y), N_STEPS)
    compiled = icgd.compile(problem, "relu-stack", n_steps=N_STEPS)
    assert distance(script, compiled, history) < TORCH_ROUNDING
    assert float((history[-1] - history[0]).abs().max()) > 0.01  # it has learnt something


@pytest.mark.parametrize("script", NORMS.values(), ids=NORMS)
def test_norms_are_those_of_torch(script):
    problem, (x, y) = script.problem(), script.data()
    history = problem.oracle.train(icgd.as_task(problem, x, y), N_STEPS)
    compiled = icgd.compile(problem, "relu-stack", n_steps=N_STEPS)
    assert distance(script, compiled, history) < NORM_ROUNDING
    report = icgd.verify(compiled, x, y)
    assert report.verdict.holds
    off = distance(script, compiled, compiled.run(x, y).parameters)
    assert off <= proved(report) + NORM_ROUNDING
    assert off < 2e-3


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_those_of_torch(activation):
    script = Script(activation=activation)
    problem, (x, y) = script.problem(), script.data()
    history = problem.oracle.train(icgd.as_task(problem, x, y), N_STEPS)
    compiled = icgd.compile(problem, "relu-stack", n_steps=N_STEPS)
    assert distance(script, compiled, history) < TORCH_ROUNDING


@pytest.mark.parametrize(
    "script",
    [
        *(pytest.param(script, id=name) for name, script in SCRIPTS.items()),
        *(pytest.param(script, id=f"groups: {name}") for name, script in GROUPS.items()),
    ],
)
def test_softmax_stack_performs_it(script):
    compiled = icgd.compile(script.problem(), "softmax-stack", n_steps=N_STEPS)
    run = compiled.run(*script.data())
    assert distance(script, compiled, run.parameters) < 1e-9
    report = icgd.verify(compiled, *script.data())
    assert report.verdict.holds
    assert distance(script, compiled, run.parameters) <= proved(report) + TORCH_ROUNDING


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_chain_performs_it(name):
    """Its rounds take batches; one of all examples is the script's own step."""
    script = in_batches(SCRIPTS[name])
    compiled = icgd.compile(script.problem(), "cot-network", n_steps=N_STEPS)
    run = compiled.run(*script.data())
    assert distance(script, compiled, run.parameters) < 1e-11
    report = icgd.verify(compiled, *script.data(), backend="fused")
    assert report.verdict.holds
    assert distance(script, compiled, run.parameters) <= proved(report) + TORCH_ROUNDING
    assert proved(report) < 1e-11


@pytest.mark.parametrize("name", ROOTS)
def test_a_chain_refuses_roots(name):
    reason = icgd.CotNetwork().why_not(in_batches(ROOTS[name]).problem())
    assert reason.startswith("it has no layers for the root of ")
    assert reason.endswith("; use relu-stack.")


@pytest.mark.parametrize("name", [*SCRIPTS, *ROOTS])
def test_relu_stack_performs_it_within_what_is_proved(name):
    script = (SCRIPTS | ROOTS)[name]
    compiled = icgd.compile(script.problem(), "relu-stack", n_steps=N_STEPS)
    report = icgd.verify(compiled, *script.data())
    assert report.verdict.holds
    assert float((report.step_errors / report.step_bounds).max()) <= 1.0
    assert float(report.step_bounds.max()) < 0.05  # which says something
    run = compiled.run(*script.data())
    off = distance(script, compiled, run.parameters)
    assert off <= proved(report) + TORCH_ROUNDING
    assert off < (1e-4 if name == "adam" else 2e-3)


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in ALL_GROUPS])
def test_relu_stack_moves_groups_within_what_is_proved(script):
    """Steps, the transformer itself, the whole run, and the run of its file."""
    compiled = icgd.compile(script.problem(), "relu-stack", n_steps=N_STEPS)
    report, run = icgd.verify(compiled, *script.data()), compiled.run(*script.data())
    assert report.verdict.holds
    assert float((report.step_errors / report.step_bounds).max()) <= 1.0
    off = distance(script, compiled, run.parameters)
    assert off <= proved(report) + TORCH_ROUNDING
    assert off < 2e-3
    dense = compiled.run(*script.data(), backend="dense")
    torch.testing.assert_close(dense.parameters, run.parameters, rtol=0, atol=1e-9)
    proof = compiled.certify(*script.data())
    assert icgd_check.check(proof.text.encode())["claim"] == proof.claim


@pytest.mark.parametrize("name", ["plain", "decay"])
def test_a_chain_refuses_groups(name):
    reason = icgd.CotNetwork().why_not(in_batches(GROUPS[name]).problem())
    assert reason.startswith("it moves all weights by one rule, without groups;")


def test_groups_cost_nothing_where_their_options_are_the_same():
    """Names, and a layer without a bias of its own, do not part a layer's weights."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()
    optimizer = AdamW(
        [
            {"params": model[0].parameters(), "name": "first"},
            {"params": model[2].parameters(), "name": "last", "weight_decay": 0.0},
        ]
    )
    update = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0)).update
    assert update.groups == tuple(
        (name, (("weight_decay", 0.0),)) for name in ("weights_2", "bias_2")
    )
    named = AdamW([{"params": [*model[n].named_parameters()]} for n in (0, 2)], lr=0.01)
    named = icgd.from_torch(model, nn.MSELoss(), named, domain=icgd.Domain(1.0, 1.0))
    assert named.update.groups == ()


def test_options_of_a_frozen_group_do_not_matter():
    model = GROUPS["still"].model()
    model[0].requires_grad_(False)
    groups = [{"params": model[0].parameters(), "momentum": 0.9, "weight_decay": 0.5, "lr": 9.0}]
    groups += [{"params": model[n].parameters()} for n in (2,)]
    update = icgd.from_torch(
        model, nn.MSELoss(), SGD(groups, lr=0.1), domain=icgd.Domain(1.0, 1.0)
    ).update
    assert isinstance(update, icgd.GradientStep)
    assert update.groups == ()
    assert update.step_size == 0.1  # twice lr, of a mean over two outputs
    groups[1]["lr"] = 0.0
    with pytest.raises(UnreadableError, match="lr = 0, which trains nothing"):
        icgd.from_torch(model, nn.MSELoss(), SGD(groups), domain=icgd.Domain(1.0, 1.0))


def test_a_scheduler_may_not_change_the_momentum_of_any_group():
    model = GROUPS["still"].model()
    groups = [{"params": model[n].parameters()} for n in (0, 2)]
    optimizer = SGD(groups, lr=0.1, momentum=0.5)

    class Moving(lr_scheduler.LRScheduler):
        def get_lr(self):
            last = self.optimizer.param_groups[1]
            last["momentum"] = 0.25 if self.last_epoch == 2 else 0.5
            return self.base_lrs

    with pytest.raises(UnreadableError, match=r"changes momentum from 0.5 to 0.25 in step 3, but"):
        icgd.from_torch(
            model,
            nn.MSELoss(),
            optimizer,
            domain=icgd.Domain(1.0, 1.0),
            scheduler=Moving(optimizer),
            n_steps=4,
        )


def test_a_group_that_stands_still_is_fixed():
    problem = GROUPS["still"].problem()
    assert problem.update.groups == ()
    low, high = problem.oracle.sets.ends()
    n_fixed = sum(part.numel() for part in GROUPS["still"].model().parameters() if part.ndim == 1)
    assert int((low == high).sum()) == n_fixed


RECURSED = {
    "tanh": SCRIPTS["sgd"],
    "no bias": SCRIPTS["no bias"],
    "one layer": SCRIPTS["one layer"],
    "three layers": Script(widths=(2, 3, 3, 1)),
    "silu": SCRIPTS["logistic"],
    "relu": Script(activation=nn.ReLU, widths=(2, 3, 1)),
}
"""What recursion takes: plain descent and a linear output."""


@pytest.mark.parametrize("name", RECURSED)
def test_recursion_performs_it_with_biases(name):
    script = RECURSED[name]
    problem = script.problem(domain=icgd.Domain(2.0, 1.0), box=2.0)
    compiled = icgd.compile(problem, "recursion", n_steps=N_STEPS)
    run = compiled.run(*script.data())
    off = distance(script, compiled, run.parameters)
    assert off < (2e-5 if name == "silu" else 1e-9)  # a few silus miss the logistic slope
    report = icgd.verify(compiled, *script.data())
    assert report.verdict.holds
    assert off <= proved(report) + TORCH_ROUNDING


@pytest.mark.parametrize(
    "name", ["batches", "dampening", "nesterov", "cosine", "classes", "adam decay"]
)
@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack", "cot-network"])
def test_the_dense_transformer_does_what_the_fused_run_does(name, construction):
    script = (SCRIPTS | ROOTS)[name]
    if construction != "relu-stack" and name in ROOTS:
        return
    script = in_batches(script) if construction == "cot-network" else script
    compiled = icgd.compile(script.problem(), construction, n_steps=N_STEPS)
    slots = compiled.program.traceable
    fused, dense = (
        compiled.run(*script.data(), backend=backend, trace=slots) for backend in ("fused", "dense")
    )
    size = float(fused.parameters.abs().max())
    assert float((fused.parameters - dense.parameters).abs().max()) < 2e-11 * size
    for slot in slots:
        gap = float((fused.trace[slot] - dense.trace[slot]).abs().max())
        assert gap < 1e-9 * (1 + float(dense.trace[slot].abs().max())), slot


def gap_of_averages(script: Script, averages: dict[str, Tensor], n_steps: int) -> float:
    real = list(script.averaged(n_steps).parameters())
    return max(
        float((own - part.detach()).abs().max())
        for own, part in zip(averages.values(), real, strict=True)
    )


@pytest.mark.parametrize("n_steps", [0, 1, 2, N_STEPS])
@pytest.mark.parametrize("name", AVERAGED)
def test_the_average_of_the_reference_is_torch_s_own(name, n_steps):
    script = AVERAGED[name]
    problem = script.problem()
    task = icgd.as_task(problem, *script.data())
    last = problem.oracle.train(task, n_steps)[-1]
    named = problem.oracle.by_name(task, last)
    averages = {key: value for key, value in named.items() if key.startswith("average")}
    assert gap_of_averages(script, averages, n_steps) < TORCH_ROUNDING


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("name", AVERAGED)
def test_averages_are_those_of_torch_step_by_step(name, construction):
    script = AVERAGED[name]
    if construction == "softmax-stack" and name == "adam":
        return
    problem, data = script.problem(), script.data()
    compiled = icgd.compile(problem, construction, n_steps=N_STEPS)
    run = compiled.run(*data, queries=data[0])
    report = icgd.verify(compiled, *data)
    assert report.verdict.holds
    assert float((report.step_errors / report.step_bounds).max()) <= 1.0
    task = icgd.as_task(problem, *data)
    for n_steps in (1, 2, 10, N_STEPS):
        named = problem.oracle.by_name(task, run.parameters[n_steps])
        averages = {key: value for key, value in named.items() if key.startswith("average")}
        gap = gap_of_averages(script, averages, n_steps)
        assert gap <= float(report.trajectory_bounds[n_steps - 1]) + TORCH_ROUNDING
        assert gap < (1e-9 if construction == "softmax-stack" else 2e-3)
    averaged = script.averaged()
    off = (run.predictions - averaged(data[0])).abs().max()
    assert float(off) < (1e-9 if construction == "softmax-stack" else 5e-3)
    model = script.model()
    run.load_into(model, averaged=True)
    for part, value in zip(model.parameters(), run.averaged_weights.values(), strict=True):
        assert torch.equal(part, value)


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("name", AVERAGED)
def test_dense_averages_are_those_of_the_fused_run(name, construction):
    script = AVERAGED[name]
    if construction == "softmax-stack" and name == "adam":
        return
    problem = script.problem(box=0.75)  # which some weights reach
    compiled = icgd.compile(problem, construction, n_steps=N_STEPS)
    x, y = script.data()
    slots = compiled.program.layout.names
    fused, dense = (
        compiled.run(x, y, queries=x, backend=backend, trace=slots)
        for backend in ("fused", "dense")
    )
    assert float((fused.parameters - dense.parameters).abs().max()) < 2e-11
    assert float((fused.predictions - dense.predictions).abs().max()) < 2e-11
    for slot in slots:
        gap = float((fused.trace[slot] - dense.trace[slot]).abs().max())
        assert gap < 1e-9 * (1 + float(dense.trace[slot].abs().max())), slot
    report = icgd.verify(compiled, x, y, queries=x, backend="dense")
    assert report.verdict.holds
    assert float((report.prediction_errors / report.prediction_bounds).max()) <= 1.0


def test_a_run_without_averages_says_so():
    script = SCRIPTS["momentum"]
    run = icgd.compile(script.problem(), "softmax-stack", n_steps=2).run(*script.data())
    expected = "This run keeps no average of its weights. Give its update average=0.99, say."
    for ask in (lambda: run.averaged_weights, lambda: run.load_into(script.model(), averaged=True)):
        with pytest.raises(SettingError) as refused:
            ask()
        assert str(refused.value) == expected


def test_trained_weights_go_back_into_a_model():
    script = SCRIPTS["momentum"]
    model = script.model()
    compiled = icgd.compile(script.problem(), "softmax-stack", n_steps=N_STEPS)
    compiled.run(*script.data()).load_into(model)
    for part, real in zip(model.parameters(), script.trained()[-1], strict=True):
        assert float((part - real).abs().max()) < 1e-9


def test_nothing_of_what_is_given_changes():
    model = SCRIPTS["cosine"].model()
    optimizer = SGD(model.parameters(), lr=0.2)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
    icgd.from_torch(
        model,
        nn.MSELoss(),
        optimizer,
        domain=icgd.Domain(1.0, 1.0),
        scheduler=scheduler,
        n_steps=5,
    )
    after = (model.state_dict(), optimizer.state_dict(), scheduler.state_dict())
    assert str(before) == str(after)


def test_plain_descent_is_a_plain_gradient_step():
    problem = Script().problem()
    assert problem.update == GradientStep(0.1, 4.0)  # a mean over 2 outputs is half of 2
    assert problem.target == icgd.MLP((2, 3, 2), "tanh", biases=True)
    assert len(problem.initial) == problem.target.n_parameters


def test_a_problem_from_torch_survives_its_file(tmp_path):
    script = ROOTS["adam decay"]
    compiled = icgd.compile(script.problem(), "relu-stack", n_steps=4)
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded.problem == compiled.problem
    first, second = (each.run(*script.data()).parameters for each in (compiled, loaded))
    assert first.equal(second)


def test_a_weight_that_reaches_the_box_is_warned_of():
    compiled = icgd.compile(Script(partial(SGD, lr=3.0)).problem(box=0.75), n_steps=5)
    with pytest.warns(BoxWarning, match="PyTorch has no box"):
        compiled.run(*Script().data())


def refusal(**changes: Any) -> str:
    script = Script()
    model = changes.pop("model", None) or script.model()
    optimizer = changes.pop("optimizer", None) or SGD(model.parameters(), lr=0.1)
    optimizer = optimizer(model) if not isinstance(optimizer, torch.optim.Optimizer) else optimizer
    loss = changes.pop("loss", nn.MSELoss())
    if callable(changes.get("scheduler")):
        changes["scheduler"] = changes["scheduler"](optimizer)
    with pytest.raises(IcgdError) as caught:
        icgd.from_torch(model, loss, optimizer, domain=icgd.Domain(1.0, 1.0), **changes)
    return str(caught.value)


def with_layers(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), *layers, nn.Linear(3, 1))


def with_shared_weights() -> nn.Sequential:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.Tanh(), layer)


def after_a_step(model: nn.Sequential) -> torch.optim.Optimizer:
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    return optimizer


def with_a_hook() -> nn.Sequential:
    model = with_layers(nn.Tanh())
    model[0].register_forward_hook(lambda module, given, found: 2 * found)
    return model


class Doubled(nn.Linear):
    """A layer that does more than it says."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Branching(nn.Module):
    """Two branches of one value, which no row of layers computes."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class Deciding(nn.Module):
    """A forward that looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else self.linear(-x)


norm = partial(nn.LayerNorm, elementwise_affine=False)
PARAMETERS = [nn.Parameter(torch.ones(1))]

REFUSED = {
    "a module": (
        {"model": with_layers(nn.BatchNorm1d(3))},
        "model[1] is BatchNorm1d, which is not read. Its statistics couple the examples of a batch",
    ),
    "another model": ({"model": nn.Conv1d(2, 3, 1)}, "model is Conv1d, which is not read."),
    "a dropout that drops": (
        {"model": with_layers(nn.Dropout(0.25))},
        "model[1] (Dropout) has p=0.25 in training mode: a compiled run draws no masks. Set p=0",
    ),
    "no layer": (
        {"model": nn.Sequential(nn.Identity()), "optimizer": lambda model: SGD(PARAMETERS, lr=1)},
        "without any Linear",
    ),
    "a norm over rows": (
        {"model": nn.Sequential(nn.Linear(2, 2), norm((3, 2)))},
        "model[1] (LayerNorm) has normalized_shape = (3, 2), expected one axis",
    ),
    "two eps": (
        {"model": nn.Sequential(nn.Linear(2, 2), norm(2), nn.Linear(2, 2), norm(2, 0.1))},
        "model[3] (LayerNorm) has eps = 0.1, expected 1e-05, as an earlier one has",
    ),
    "no eps": (
        {"model": nn.Sequential(nn.Linear(2, 2), norm(2, 0.0))},
        "model[1] (LayerNorm) has eps = 0, expected at least 1e-30",
    ),
    "a hook": ({"model": with_a_hook()}, "model[0] (Linear) has 1 forward hook"),
    "a layer of one's own": ({"model": nn.Sequential(Doubled(2, 1))}, "mul() in model[0]"),
    "branches": (
        {"model": Branching()},
        "model.right reads a value from before model.left again: two branches",
    ),
    "a decision": ({"model": Deciding()}, "The forward of Deciding cannot be traced"),
    "widths that do not fit": (
        {"model": nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 1))},
        "model[1] takes 4 inputs and gets 3.",
    ),
    "all flattened": (
        {"model": nn.Sequential(nn.Flatten(0), nn.Linear(2, 1))},
        "model[0] (Flatten) has start_dim = 0, expected 1",
    ),
    "lazy": (
        {"model": nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))},
        "model[0] (LazyLinear) has no weights before it sees a batch.",
    ),
    "parametrized": (
        {"model": nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(2, 2)))},
        "is parametrized: its weights are computed from others.",
    ),
    "ignored classes": (
        {"loss": nn.CrossEntropyLoss(ignore_index=1)},
        "loss (CrossEntropyLoss) has ignore_index = 1, expected -100",
    ),
    "too few class weights": (
        {"loss": nn.CrossEntropyLoss(torch.ones(3))},
        "loss (CrossEntropyLoss) has 3 class weights, expected 2",
    ),
    "a class of no weight": (
        {"loss": nn.CrossEntropyLoss(torch.tensor([0.0, 1.0]))},
        "expected positive weights",
    ),
    "shared": ({"model": with_shared_weights()}, "uses the same weights in two layers"),
    "half": (
        {"model": with_layers(nn.Tanh()).half()},
        "has dtype torch.float16, expected float32 or",
    ),
    "device": ({"model": with_layers(nn.Tanh()).to("meta")}, "is on device meta, expected cpu."),
    "a loss": ({"loss": nn.KLDivLoss()}, "loss is KLDivLoss, which is not read. It may be MSELoss"),
    "a function of one's own": (
        {"loss": lambda t, y: (t - y).abs().mean()},
        "loss is the function <lambda>, which is not read.",
    ),
    "an option of a loss": (
        {"loss": nn.PoissonNLLLoss(log_input=False)},
        "has log_input = False, expected True",
    ),
    "none": (
        {"loss": nn.MSELoss(reduction="none")},
        "reduction = 'none', expected 'mean' or 'sum'",
    ),
    "sum": ({"loss": nn.MSELoss(reduction="sum")}, "Pass n_examples or batch_size."),
    "weight": (
        {"loss": nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))},
        "loss (BCEWithLogitsLoss) has pos_weight = tensor(2.), expected None",
    ),
    "an optimizer": (
        {"optimizer": lambda model: torch.optim.Adagrad(model.parameters())},
        "optimizer is Adagrad, which is not read. It may be SGD, Adam, AdamW, RMSprop.",
    ),
    "amsgrad": (
        {"optimizer": lambda model: Adam(model.parameters(), amsgrad=True)},
        "optimizer (Adam) has amsgrad = True, expected False",
    ),
    "maximize": (
        {"optimizer": lambda model: SGD(model.parameters(), lr=0.1, maximize=True)},
        "maximize = True, expected False",
    ),
    "centered": (
        {"optimizer": lambda model: RMSprop(model.parameters(), centered=True)},
        "centered = True, expected False",
    ),
    "groups": (
        {
            "optimizer": lambda model: SGD(
                [
                    {"params": list(model[0].parameters())},
                    {"params": list(model[2].parameters()), "momentum": 0.5},
                ],
                lr=0.1,
            )
        },
        "optimizer.param_groups[1] has momentum = 0.5, expected 0 as in group 0: groups of a "
        "compiled step differ in lr and weight_decay only.",
    ),
    "eps": (
        {"optimizer": lambda model: Adam(model.parameters(), eps=0.0)},
        "optimizer (Adam): eps must be a positive finite number, got 0.0. Change it in the script",
    ),
    "alpha": (
        {"optimizer": lambda model: RMSprop(model.parameters(), alpha=1.0)},
        "optimizer (RMSprop): alpha must be a number from 0 to below 1, got 1.0.",
    ),
    "lr": (
        {"optimizer": lambda model: SGD(model.parameters(), lr=0.0)},
        "The optimizer has lr = 0",
    ),
    "lr in float32": (
        {
            "optimizer": lambda model: AdamW(
                [
                    {"params": model[0].parameters()},
                    {"params": model[2].parameters(), "lr": torch.tensor(0.25)},
                ]
            )
        },
        "lr = tensor(0.2500) in torch.float32, in which torch then computes",
    ),
    "batches or epochs": (
        {
            "scheduler": partial(lr_scheduler.ExponentialLR, gamma=0.9),
            "epochs": 2,
            "n_examples": 4,
            "batch_size": 2,
        },
        "after each of the 2 batches of an epoch or after the last one",
    ),
    "counts without a box": ({"loss": nn.PoissonNLLLoss()}, "PoissonNLLLoss needs box=...: its"),
    "months": ({"scheduler_per": "month"}, "scheduler_per is 'month', expected 'batch' or 'epoch'"),
    "epochs of none": ({"scheduler_per": "epoch"}, "scheduler_per='epoch' needs epochs."),
    "some parameters": (
        {"optimizer": lambda model: SGD(model[0].parameters(), lr=0.1)},
        "The optimizer does not train the weight of model[2], bias of model[2].",
    ),
    "other parameters": (
        {"optimizer": lambda model: SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=1)},
        "The optimizer trains other parameters too.",
    ),
    "steps": ({"optimizer": after_a_step}, "The optimizer SGD has already taken steps"),
    "plateau": (
        {"scheduler": lr_scheduler.ReduceLROnPlateau, "n_steps": 3},
        "The scheduler ReduceLROnPlateau looks at the loss",
    ),
    "no steps": (
        {"scheduler": partial(lr_scheduler.ExponentialLR, gamma=0.9)},
        "The scheduler ExponentialLR needs n_steps",
    ),
    "cyclic momentum": (
        {
            "optimizer": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9),
            "scheduler": partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=10),
            "n_steps": 5,
        },
        "OneCycleLR changes momentum from 0.95 to ",
    ),
    "epochs of unknown length": ({"epochs": 3}, "epochs needs n_examples and batch_size"),
    "two numbers of steps": (
        {"epochs": 3, "n_examples": 5, "batch_size": 2, "n_steps": 8},
        "n_steps=8, where 3 epochs are 9 batches.",
    ),
    "shuffling nothing": ({"generator": torch.Generator()}, "Pass epochs, or leave it out."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_named(name):
    changes, message = REFUSED[name]
    assert message in refusal(**changes)


def test_all_obstacles_come_in_one_message():
    model = nn.Sequential(
        nn.Linear(2, 4), nn.BatchNorm1d(4), nn.PReLU(), nn.Dropout(0.5), nn.Linear(4, 2)
    )
    optimizer = Adam(model.parameters(), amsgrad=True)
    message = refusal(
        model=model,
        optimizer=optimizer,
        loss=nn.NLLLoss(),
        scheduler=lr_scheduler.ReduceLROnPlateau(optimizer),
        epochs=2,
    )
    first, *lines = message.splitlines()
    assert first == "This script has 7 obstacles:"
    parts = ("BatchNorm1d", "PReLU", "p=0.5", "epochs", "NLLLoss", "amsgrad", "ReduceLROnPlateau")
    for number, (line, part) in enumerate(zip(lines, parts, strict=True), start=1):
        assert line.startswith(f"  {number}. ")
        assert part in line


def test_norms_are_read_with_their_eps_and_weights_go_back_into_the_model():
    script = NORMS["sgd"]
    problem = script.problem()
    assert (problem.target.norms, problem.target.norm_eps) == ((1, 2), 0.1)
    run = icgd.compile(problem, "relu-stack", n_steps=2).run(*script.data())
    model = script.model()
    run.load_into(model)
    torch.testing.assert_close(
        model(script.data()[0]),
        problem.oracle.predict(
            icgd.as_task(problem, *script.data(), queries=script.data()[0]), run.parameters[-1]
        ),
    )


def test_a_model_of_another_shape_is_not_loaded_into():
    script = Script()
    run = icgd.compile(script.problem(), "relu-stack", n_steps=1).run(*script.data())
    model = Script(widths=(2, 4, 2)).model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnreadableError, match="weights_1 of the run has shape"):
        run.load_into(model)
    assert str(before) == str(model.state_dict())


def test_biases_are_not_left_out_in_loading():
    script = Script()
    run = icgd.compile(script.problem(), "relu-stack", n_steps=1).run(*script.data())
    with pytest.raises(UnreadableError, match=r"bias_1 of the run has shape .* no such weights"):
        run.load_into(Script(bias=False).model())


MODULES = {
    nn.Mish(): "mish",
    nn.GELU(approximate="tanh"): "gelu_tanh",
    nn.ReLU6(): "relu6",
    nn.Hardtanh(): "hardtanh",
    nn.Hardtanh(-2, 0.5): "-2 up to -2, x up to 0.5, 0.5 on -1000000 to 1000000",
    nn.Hardswish(): "hardswish",
    nn.ELU(): "elu",
    nn.ELU(0.5): "0.5*expm1(x) up to 0, x on -1000000 to 1000000",
    nn.SELU(): "selu",
    nn.CELU(): "elu",
    nn.CELU(0.25): "0.25*expm1(4*x) up to 0, x on -1000000 to 1000000",
    nn.Softsign(): "softsign",
    nn.LeakyReLU(0.2): "0.2*x up to 0, x on -1000000 to 1000000",
    nn.Softplus(beta=2.0): "0.5*softplus(2*x) on -1000000 to 1000000",
}


@pytest.mark.parametrize(("module", "name"), MODULES.items(), ids=str)
def test_activations_have_the_values_and_slopes_of_torch(module, name):
    model = nn.Sequential(nn.Linear(2, 3), module, nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    problem = icgd.from_torch(model, nn.MSELoss(), optimizer, domain=icgd.Domain(1.0, 1.0))
    assert problem.network.activation == name
    activation = problem.network.layer_activation(1)
    z = torch.linspace(-12.37, 12.13, 4801, dtype=torch.float64, requires_grad=True)
    value, within = module(z), 3e-9 if isinstance(module, nn.Softplus) else 1e-14
    (slope,) = torch.autograd.grad(value.sum(), z)  # torch's softplus is a line beyond 20
    at = z.detach()
    torch.testing.assert_close(activation.value(at), value.detach(), rtol=0, atol=within)
    torch.testing.assert_close(activation.derivative(at), slope, rtol=0, atol=within)


def test_an_optimiser_that_begins_with_a_state_is_named_as_unreadable_only():
    model = nn.Linear(2, 1)
    with pytest.raises(UnreadableError) as refusal:
        icgd.from_torch(
            model,
            nn.MSELoss(),
            torch.optim.Adagrad(model.parameters()),
            domain=icgd.Domain(1.0, 1.0),
        )
    assert "optimizer is Adagrad" in str(refusal.value)
    assert "already taken steps" not in str(refusal.value)
