"""Bad values, constructor by constructor; numbers of numpy, which become plain ones."""

from math import nan

import numpy as np
import pytest
import torch

import icgd
from icgd.errors import IcgdError

TARGET, UPDATE, DOMAIN = icgd.MLP((2, 1)), icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0)
PROBLEM = icgd.Problem(TARGET, "squared", UPDATE, DOMAIN)
COMPILED = icgd.compile(PROBLEM, "relu-stack", n_steps=1)
X, Y = np.ones((3, 2)), np.ones(3)

CALLS = {
    "MLP: width 0": (lambda: icgd.MLP((2, 0)), "widths[1] must be a whole number of at least 1,"),
    "MLP: one width": (
        lambda: icgd.MLP((2,)),
        "widths must have an input width and at least one layer width",
    ),
    "MLP: activation": (
        lambda: icgd.MLP((2, 1), "tahn"),
        "Unknown activation 'tahn'; known are",
    ),
    "MLP: long shortcut": (
        lambda: icgd.MLP((2, 2), shortcuts=((0, 5),)),
        "the end of a shortcut must be at most 1, got 5.",
    ),
    "MLP: norm": (
        lambda: icgd.MLP((2, 2), norms=(2,)),
        "a layer in norms must be at most 1, got 2.",
    ),
    "MLP: eps": (
        lambda: icgd.MLP((2, 2), norms=(1,), norm_eps=0.0),
        "norm_eps must be a positive finite number, got 0.0.",
    ),
    "GradientStep: size": (
        lambda: icgd.GradientStep(-0.1, 1.0),
        "step_size must be a positive finite number, got -0.1.",
    ),
    "GradientStep: nan": (
        lambda: icgd.GradientStep(nan, 1.0),
        "step_size must be a positive finite number, got nan.",
    ),
    "GradientStep: no sizes": (
        lambda: icgd.GradientStep((), 1.0),
        "step_size is empty; give one number for each step.",
    ),
    "GradientStep: box": (
        lambda: icgd.GradientStep(0.1, 0.0),
        "box must be a positive finite number, got 0.0.",
    ),
    "GradientStep: batch": (
        lambda: icgd.GradientStep(0.1, 1.0, batch_size=0),
        "batch_size must be a whole number of at least 1, got 0.",
    ),
    "GradientStep: average": (
        lambda: icgd.GradientStep(0.1, 1.0, average=1.0),
        "average must be a number from 0 to below 1, got 1.0.",
    ),
    "AdamStep: beta": (
        lambda: icgd.AdamStep(0.1, 1.0, betas=(0.9, 1.5)),
        "betas[1] must be a number from 0 to below 1, got 1.5.",
    ),
    "MomentumStep: nesterov": (
        lambda: icgd.MomentumStep(0.1, 1.0, momentum=0.0, nesterov=True),
        "nesterov=True needs a momentum above 0 and no dampening",
    ),
    "ProximalStep: penalty": (
        lambda: icgd.ProximalStep(0.1, l1=-1.0),
        "l1 must not be negative, got -1.0",
    ),
    "FunctionalStep: noise": (
        lambda: icgd.FunctionalStep(0.1, noise=-1.0),
        "noise must be a positive finite number, got -1.0.",
    ),
    "LinearModel: width": (
        lambda: icgd.LinearModel(0),
        "input_width must be a whole number of at least 1, got 0.",
    ),
    "LinearModel: link": (
        lambda: icgd.LinearModel(2, "logit"),
        "Unknown link 'logit'; known are",
    ),
    "LinearModel: reduction": (
        lambda: icgd.LinearModel(2, reduction="max"),
        "reduction must be one of",
    ),
    "KernelMachine: kernel": (
        lambda: icgd.KernelMachine(2, "rfb"),
        "Unknown kernel 'rfb'; known are",
    ),
    "KernelHead: transform": (
        lambda: icgd.KernelHead(transform=[1.0, 2.0]),
        "transform must be a matrix of finite numbers, got",
    ),
    "Domain: x": (lambda: icgd.Domain(-1.0, 1.0), "domain.x must be a positive finite number, got"),
    "Problem: loss": (
        lambda: icgd.Problem(TARGET, "sqared", UPDATE, DOMAIN),
        "Unknown loss 'sqared'; known are",
    ),
    "Problem: update": (
        lambda: icgd.Problem(icgd.LinearModel(2), "matching", UPDATE, DOMAIN),
        "update must be of type ProximalStep, got",
    ),
    "Problem: initial": (
        lambda: icgd.Problem(TARGET, "squared", UPDATE, DOMAIN, (0.5, nan)),
        "initial must be a finite number, got nan.",
    ),
    "ReluStack: pieces": (
        lambda: icgd.ReluStack(pieces=0),
        "pieces must be a whole number of at least 1, got 0.",
    ),
    "compile: n_steps": (
        lambda: icgd.compile(PROBLEM, n_steps=-1),
        "n_steps must be a whole number of at least 0, got -1.",
    ),
    "compile: name": (
        lambda: icgd.compile(PROBLEM, "relu-stak", n_steps=1),
        "Unknown construction 'relu-stak'; known are",
    ),
    "compile: tolerance": (
        lambda: icgd.compile(PROBLEM, n_steps=1, tolerance=0.0),
        "tolerance must be a positive finite number, got 0.0.",
    ),
    "run: backend": (
        lambda: COMPILED.run(X, Y, backend="fast"),
        "Unknown backend 'fast'; known are",
    ),
    "run: dtype": (
        lambda: COMPILED.run(X, Y, dtype="float16"),
        "Unknown dtype 'float16'; known are float64, float32.",
    ),
    "run: trace": (
        lambda: COMPILED.run(X, Y, trace=["weights"]),
        "Layout has no slot 'weights'; it has x, y",
    ),
    "run: history": (
        lambda: COMPILED.run(X, Y, history=0),
        "history must be a whole number of at least 1, got 0.",
    ),
    "run: stop_below": (
        lambda: COMPILED.run(X, Y, stop_below=0.0),
        "stop_below must be a positive finite number, got 0.0.",
    ),
    "run_task: task of a wider domain": (
        lambda: COMPILED.run_task(
            icgd.as_task(icgd.Problem(TARGET, "squared", UPDATE, icgd.Domain(9.0, 1.0)), 5 * X, Y)
        ),
        "X[0, 0] is 5, outside [-1, 1].",
    ),
    "certificate: n_tokens": (
        lambda: COMPILED.certificate(n_tokens=0),
        "n_tokens must be a whole number of at least 1, got 0.",
    ),
}


@pytest.mark.parametrize(("call", "start"), CALLS.values(), ids=CALLS)
def test_a_bad_value_is_named_with_what_is_expected(call, start):
    with pytest.raises(IcgdError) as caught:
        call()
    assert str(caught.value).startswith(start)


def test_wrong_objects_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = [
        (
            "head must be of type KernelHead, got 'rbf'.",
            lambda: icgd.KernelMachine(2, ["rbf", "exp"]),
        ),
        (
            "construction is the class ReluStack; expected an instance of it",
            lambda: icgd.compile(PROBLEM, icgd.ReluStack, n_steps=1),
        ),
        (
            "loss is the class MSELoss, which is not read.",
            lambda: icgd.from_torch(model, torch.nn.MSELoss, optimizer, domain=DOMAIN),
        ),
    ]
    for start, call in calls:
        with pytest.raises(IcgdError) as caught:
            call()
        assert str(caught.value).startswith(start)


def test_numbers_of_numpy_become_plain_numbers_that_can_be_saved(tmp_path):
    update, domain = (
        icgd.GradientStep(np.float32(0.5), np.int64(1)),
        icgd.Domain(np.float32(1.0), np.int64(1)),
    )
    target = icgd.MLP(np.array([2, 1]))
    problem = icgd.Problem(target, "squared", update, domain, np.array([0.5, 0.25]))
    compiled = icgd.compile(problem, "relu-stack", n_steps=np.int64(2), pieces=np.int64(4))
    compiled.save(tmp_path / "run.safetensors")
    assert icgd.load(tmp_path / "run.safetensors") == compiled
    assert repr(problem.initial) == "(0.5, 0.25)"
    parts = [
        icgd.MLP(np.array([2, 1]), biases=np.bool_(True)),
        icgd.ReluStack(pieces=np.int64(8), kink_width=np.float32(0.5)),
        icgd.SoftmaxStack(registers=np.int64(64), kink_width=np.float32(0.5)),
        icgd.Recursion(units=np.int64(64), kink_width=np.float32(0.5)),
        icgd.Universal(np.int64(3), np.int64(2), np.float32(2.0**-10)),
        icgd.CotNetwork(kink_width=np.float32(2.0**-10)),
        icgd.GradientStep(np.array([0.5, 0.25]), np.int64(2), np.int32(3), average=np.float32(0.5)),
        icgd.AdamStep(torch.tensor([0.5]), 2.0, betas=torch.tensor([0.5, 0.75]).double()),
    ]
    texts = [repr(part) for part in parts]
    assert not any("np." in text or "tensor" in text for text in texts)
    assert texts[1] == "ReluStack(pieces=8, kink_width=0.5)"
    text = "GradientStep(step_size=(0.5, 0.25), box=2.0, batch_size=3, average=0.5"
    assert texts[6].startswith(text)
    assert texts[7].startswith("AdamStep(step_size=(0.5,), box=2.0, batch_size=None")
    assert "betas=(0.5, 0.75)" in texts[7]
