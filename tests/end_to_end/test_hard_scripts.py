"""Scripts of PyTorch that are hard to compile, each compared with torch's own loop."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RMSprop, lr_scheduler

import icgd
from icgd.compiled import Compiled
from icgd.constructions.registry import CONSTRUCTIONS
from tests.problems.test_from_torch import N_STEPS, Script, distance, in_batches, proved

TORCH_ROUNDING = 1e-14
"""How far torch's own loop may be from the oracle's: both round, in other orders."""

STACKS = ("relu-stack", "softmax-stack")
ABLE = (*STACKS, "cot-network")
HARD = {
    "only the first gradient counts": Script(partial(SGD, lr=0.05, momentum=0.8, dampening=1.0)),
    "more than the gradient": Script(partial(SGD, lr=0.05, momentum=0.8, dampening=-0.5)),
    "momentum for ever": Script(partial(SGD, lr=0.01, momentum=1.0), batch_size=5),
    "nothing is left of weights": Script(partial(SGD, lr=0.5, weight_decay=2.0)),
    "a warm-up from 0": Script(
        partial(SGD, lr=0.1, momentum=0.5, weight_decay=0.1),
        scheduler=partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: min(1.0, step / 3)),
        batch_size=4,
    ),
    "plain from 0": Script(
        scheduler=partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: step / N_STEPS)
    ),
    "a decay to 0": Script(
        scheduler=partial(lr_scheduler.CosineAnnealingLR, T_max=N_STEPS - 1), batch_size=1
    ),
    "one example": Script(partial(SGD, lr=0.1, momentum=0.9), batch_size=1, widths=(1, 1)),
}
ROOTS = {
    "no memory": Script(partial(Adam, lr=0.01, betas=(0.0, 0.0), eps=1e-2)),
    "a warm-up of adamw": Script(
        partial(AdamW, lr=0.02, eps=1e-3, weight_decay=50.0),
        scheduler=partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: min(1.0, step / 3)),
    ),
    "rmsprop without memory": Script(partial(RMSprop, lr=0.01, alpha=0.0, eps=1e-2), batch_size=5),
}


@pytest.fixture
def _one_run_of_each_backend(monkeypatch):
    """Let `verify` judge the very runs of the test, which take long."""
    runs, run = {}, Compiled._run

    def once(compiled, task, backend, **options):
        if backend not in runs:
            runs[backend] = run(compiled, task, backend, **options)
        return runs[backend]

    monkeypatch.setattr(Compiled, "_run", once)


@pytest.mark.usefixtures("_one_run_of_each_backend")
@pytest.mark.parametrize("name", [*HARD, *ROOTS])
@pytest.mark.parametrize("construction", ABLE)
def test_it_is_torch_s_own_loop_within_what_is_proved(name, construction):
    script = (HARD | ROOTS)[name]
    script = in_batches(script) if construction == "cot-network" else script
    problem = script.problem()
    if CONSTRUCTIONS[construction].why_not(problem):
        assert name in ROOTS
        return
    compiled = icgd.compile(problem, construction, n_steps=N_STEPS)
    task = compiled.task(*script.data())
    assert distance(script, compiled, problem.oracle.train(task, N_STEPS)) < TORCH_ROUNDING
    fused, dense = (compiled.run_task(task, backend=backend) for backend in ("fused", "dense"))
    gap = (fused.parameters - dense.parameters).abs().max() / fused.parameters.abs().max()
    assert float(gap) < 1e-10
    for backend, run in (("fused", fused), ("dense", dense)):
        report = icgd.verify(compiled, *script.data(), backend=backend)
        assert report.verdict.holds
        assert report.step_bounds.isfinite().all()
        off = distance(script, compiled, run.parameters)
        assert off <= proved(report) + TORCH_ROUNDING


def by_torch(model: nn.Module, x: Tensor, classes: Tensor, n_steps: int) -> list[Tensor]:
    """The parameters after descent on the cross-entropy."""
    model = nn.Sequential(*model)
    optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(n_steps):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(x), classes).backward()
        optimizer.step()
    return [part.detach() for part in model.parameters()]


CLASSIFIERS: dict[str, Callable[[], list[nn.Module]]] = {
    "one layer": lambda: [nn.Linear(2, 3, dtype=torch.float64)],
    "an activation of scores": lambda: [nn.Linear(2, 3, dtype=torch.float64), nn.GELU()],
    "bounded scores": lambda: [
        nn.Linear(2, 4, dtype=torch.float64),
        nn.Tanh(),
        nn.Linear(4, 3, dtype=torch.float64),
        nn.Tanh(),
    ],
    "hidden units": lambda: [
        nn.Linear(2, 4, dtype=torch.float64),
        nn.Tanh(),
        nn.Linear(4, 3, dtype=torch.float64),
    ],
    "one class": lambda: [nn.Linear(2, 1, dtype=torch.float64)],
    "nine classes": lambda: [nn.Linear(2, 9, dtype=torch.float64)],
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("construction", ABLE)
def test_classes_are_learnt_as_torch_learns_them(name, construction):
    torch.manual_seed(3)
    layers = CLASSIFIERS[name]()
    model = nn.Sequential(*layers)
    n_classes = max(layer.out_features for layer in layers[-2:] if isinstance(layer, nn.Linear))
    x = torch.randn(6, 2, dtype=torch.float64).clamp(-2, 2)
    classes = torch.arange(6) % n_classes
    problem = icgd.from_torch(
        model,
        nn.CrossEntropyLoss(),
        SGD(model.parameters(), lr=0.5),
        domain=icgd.Domain(2.0, 1.0),
        batch_size=6 if construction == "cot-network" else None,
    )
    if reason := CONSTRUCTIONS[construction].why_not(problem):
        assert construction == "cot-network"
        assert name in ("an activation of scores", "bounded scores")
        assert "the prediction only if the output is linear" in reason
        return
    compiled = icgd.compile(problem, construction, n_steps=5)
    reports = [icgd.verify(compiled, x, classes, backend=b) for b in ("fused", "dense")]
    compiled.run(x, classes).load_into(learnt := nn.Sequential(*CLASSIFIERS[name]()))
    gaps = [
        float((ours - real).detach().abs().max())
        for ours, real in zip(learnt.parameters(), by_torch(model, x, classes, 5), strict=True)
    ]
    assert max(gaps) <= min(1e-2, proved(reports[0]) + TORCH_ROUNDING)
    for report in reports:
        assert report.verdict.holds
        assert float(report.step_bounds.max()) < (0.01 if construction == "relu-stack" else 1e-9)
        assert report.certificate.domain_step < float("inf")


CHAIN = ("cot-network", 1e-9)


def test_scores_of_a_thousand_are_softmaxed():
    """Beyond the cap of the exponential shares are 0, and none is lost to rounding."""
    domain = icgd.Domain(5.0, 1.0)
    x = torch.tensor([[5.0], [-5.0], [1.0]], dtype=torch.float64)
    weights = torch.tensor([200.0, -200.0, 100.0], dtype=torch.float64)
    for construction, bound in (("relu-stack", 1e-3), ("softmax-stack", 1e-11), CHAIN):
        step = icgd.GradientStep(1.0, 200.0, 3 if construction == "cot-network" else None)
        problem = icgd.Problem(icgd.MLP((1, 3)), "cross_entropy", step, domain)
        compiled = icgd.compile(problem, construction, n_steps=3)
        for backend in ("fused", "dense"):
            classes = torch.tensor([1, 1, 2])
            report = icgd.verify(compiled, x, classes, initial=weights, backend=backend)
            assert report.verdict.holds
            assert float(report.step_bounds.max()) < bound


def test_adam_with_gradients_of_0_moves_nothing():
    problem = icgd.Problem(
        icgd.MLP((2, 3, 1), "relu"), "squared", icgd.AdamStep(0.1, 4.0), icgd.Domain(2.0, 1.0)
    )
    compiled = icgd.compile(problem, "relu-stack", n_steps=3)
    x, zeros = torch.ones(4, 2, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    for backend in ("fused", "dense"):
        run = compiled.run(x, torch.zeros(4), initial=zeros, backend=backend)
        assert float(run.parameters.abs().max()) == 0.0
    report = icgd.verify(compiled, x, torch.zeros(4), initial=zeros)
    assert float(report.step_bounds.max()) == 0.0


@pytest.mark.parametrize(("construction", "size"), [("relu-stack", None), ("cot-network", 3)])
def test_a_run_goes_on_from_where_another_ended_even_if_momentum_is_larger_than_the_box(
    construction, size
):
    update, domain = icgd.MomentumStep(0.1, 0.5, size, momentum=5.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 1)), "squared", update, domain)
    x, y = torch.ones(3, 2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    whole = icgd.compile(problem, construction, n_steps=8).run(x, y)
    half = icgd.compile(problem, construction, n_steps=4)
    end = half.run(x, y).parameters[-1]
    assert float(end.abs().max()) > problem.box
    torch.testing.assert_close(half.run(x, y, initial=end).parameters, whole.parameters[4:])
    assert icgd.verify(half, x, y, initial=end).verdict.holds
