"""Every public callable, a valid call of each, and what becomes of it with one wrong argument.

Run in a process of its own, because the type checker of the tests stops wrong values before icgd
sees them: `python -m tests.campaigns.calls 1000` tries 1000 of all cases and prints a line for each
of them, with its outcome.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

import icgd
from icgd import estimators, training
from icgd.errors import IcgdError
from icgd.exports import onnx
from icgd.problems.kernels import KERNELS
from icgd.theorems import book
from tests.campaigns.values import KINDS, NEVER

PATIENCE = 20
"""Seconds after which a call hangs."""

ROOM = 12 * 2**30
"""Bytes of addresses that the process may take, so that a call never fills the machine."""


@dataclass(frozen=True)
class Call:
    """A function and arguments that it accepts."""

    function: Callable[..., Any]
    arguments: dict[str, Any]

    def parameters(self) -> list[str]:
        """The names of all arguments, given or not."""
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        found = inspect.signature(self.function).parameters.values()
        return [part.name for part in found if part.kind not in kinds]


def call(function: Callable[..., Any], /, **arguments: Any) -> Call:
    return Call(function, arguments)


X, Y = [[0.5, 1.0], [1.0, 0.0], [0.5, 0.5]], [1.0, 0.5, 0.0]
DOMAIN = icgd.Domain(x=1.0, y=1.0)
EYE = torch.eye(2, dtype=torch.float64)


@cache
def problem() -> icgd.Problem:
    return icgd.Problem(icgd.MLP((2, 1)), "squared", icgd.GradientStep(0.1, box=1.0), DOMAIN)


@cache
def single() -> icgd.Problem:
    return icgd.Problem(icgd.MLP((1, 1)), "squared", icgd.GradientStep(0.1, box=1.0), DOMAIN)


@cache
def compiled() -> icgd.Compiled:
    return icgd.compile(problem(), "relu-stack", n_steps=2, pieces=4)


@cache
def masked() -> icgd.Compiled:
    return icgd.compile(problem(), "softmax-stack", n_steps=1, registers=32)


@cache
def linear() -> icgd.Compiled:
    step = icgd.ProximalStep(0.5, box=4.0)
    task = icgd.Problem(icgd.LinearModel(2), "matching", step, DOMAIN)
    return icgd.compile(task, "cot-ridge", n_steps=2)


@cache
def chained() -> icgd.Compiled:
    step = icgd.GradientStep(0.1, box=1.0, batch_size=1)
    task = icgd.Problem(icgd.MLP((2, 2, 1), "relu"), "squared", step, DOMAIN)
    return icgd.compile(task, "cot-network", n_steps=1)


@cache
def machine() -> icgd.KernelMachine:
    return icgd.KernelMachine(2, "linear")


@cache
def functional() -> icgd.Compiled:
    step = icgd.FunctionalStep(0.1)
    return icgd.compile(icgd.Problem(machine(), "squared", step, DOMAIN), n_steps=2)


@cache
def task() -> icgd.Task:
    return compiled().task(X, Y)


@cache
def run() -> icgd.Run:
    return compiled().run(X, Y, queries=X, trace=True)


@cache
def report() -> icgd.Report:
    return icgd.verify(compiled(), X, Y)


@cache
def proof() -> Any:
    return compiled().certify(X, Y)


@cache
def family() -> training.InContextTask:
    return training.InContextTask(training.Gaussian(EYE), training.LinearFunctions(), n_examples=2)


@cache
def batch() -> training.Batch:
    return family().sample(2, seed=0, index=0)


@cache
def learnt() -> training.KernelTransformer:
    return training.KernelTransformer.constructed(machine(), [0.1])


@cache
def decoder() -> training.Decoder:
    return training.Decoder(input_width=2, n_blocks=1, width=4, n_heads=1, seed=0)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@cache
def saved() -> str:
    """A folder with a saved run, a trained model and an ONNX file."""
    folder = Path(tempfile.mkdtemp(prefix="kept"))
    compiled().save(folder / "run.safetensors")
    onnx.export_onnx(compiled(), folder / "run.onnx")
    settings = training.Settings(n_steps=1, batch_size=2, learning_rate=0.02)
    training.train(learnt(), family(), settings, folder=folder / "model")
    rows = "task,x0,x1,y\n" + "".join(f"{i // 3},{i / 9},0.5,{i / 9}\n" for i in range(60))
    (folder / "tasks.csv").write_text(rows)
    return str(folder)


def torch_parts() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 1))
    return {
        "model": model,
        "loss": nn.MSELoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }


def fitted(kind: type, labels: list[float]) -> Callable[..., Any]:
    """Make an estimator and fit it; estimators check settings when they are fitted."""

    def fit(**settings: Any) -> Any:
        return kind(**settings).fit(X * 2, labels * 2)

    fit.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return fit


def constructions() -> dict[str, Callable[[], Call]]:
    """Methods that all constructions share, each of one that has its own."""
    owners: dict[Any, Callable[[], icgd.Problem]] = {
        icgd.ReluStack: problem,
        icgd.SoftmaxStack: problem,
        icgd.Recursion: problem,
        icgd.Universal: single,
        icgd.CotRidge: lambda: linear().problem,
        icgd.CotNetwork: lambda: chained().problem,
        icgd.Functional: lambda: functional().problem,
    }
    found: dict[str, Callable[[], Call]] = {}
    for kind, which in owners.items():
        for method in ("build", "program"):
            found[f"{kind.__name__}.{method}"] = lambda kind=kind, method=method, which=which: call(
                getattr(kind(), method), problem=which(), n_steps=1
            )
        for method in ("may_be_accurate", "narrower", "objection", "sketch", "trains", "why_not"):
            found[f"{kind.__name__}.{method}"] = lambda kind=kind, method=method, which=which: call(
                getattr(kind(), method), problem=which()
            )
    linear_kinds = (icgd.CotRidge, icgd.CotLasso, icgd.CotGlm)
    for kind in (*owners, *linear_kinds):
        found[f"{kind.__name__}.finer"] = lambda kind=kind: call(
            kind().finer, setting=4, excess=2.0
        )
    for kind in linear_kinds:
        found[f"{kind.__name__}.other_model"] = lambda kind=kind: call(
            kind().other_model, model=icgd.LinearModel(2), update=icgd.ProximalStep(0.5)
        )
    return found


def gradient_steps() -> dict[str, Callable[[], Call]]:
    found: dict[str, Callable[[], Call]] = {}
    for name in ("GradientStep", "MomentumStep", "AdamStep", "RmspropStep"):
        kind = getattr(icgd, name)
        found[name] = lambda kind=kind: call(kind, step_size=0.1, box=1.0)
        for method, given in (
            ("examples_of", {"step": 0, "n_examples": 3}),
            ("require_steps", {"n_steps": 2}),
            ("rule", {"step": 0}),
            ("size_of", {"step": 0}),
            ("kept_of_average", {"step": 0}),
        ):
            found[f"{name}.{method}"] = lambda kind=kind, method=method, given=given: Call(
                getattr(kind(0.1, 1.0), method), given
            )
    return found


def drawn_tasks() -> dict[str, Callable[[], Call]]:
    """Methods of tasks that training draws."""
    averaged = training.AveragedTask(
        training.InContextTask(training.Gaussian(EYE), training.KernelProcess(machine()), 2)
    )
    owners = {
        "InContextTask": (family(), learnt()),
        "AveragedTask": (averaged, learnt()),
        "CausalTask": (training.CausalTask(family()), decoder()),
        "QueryTask": (training.QueryTask(family(), 1), None),
        "GeneratedTask": (training.GeneratedTask(lambda n, rng: (batch().x, batch().y)), learnt()),
        "TaskTable": (
            training.TaskTable(torch.ones(20, 3, 2).double(), torch.ones(20, 3).double()),
            learnt(),
        ),
    }
    found: dict[str, Callable[[], Call]] = {}
    for name, (one, model) in owners.items():
        found[f"{name}.sample"] = lambda one=one: call(one.sample, n_tasks=2, seed=0, index=0)
        found[f"{name}.validation"] = lambda one=one: call(one.validation, n_tasks=2, seed=0)
        if model is None:
            continue
        found[f"{name}.loss"] = lambda one=one, model=model: call(
            one.loss, model=model, batch=one.sample(2, seed=0, index=0)
        )
        found[f"{name}.require"] = lambda one=one, model=model: call(one.require, model=model)
    found["InContextTask.bayes_loss"] = lambda: call(family().bayes_loss, batch=batch())
    found["InContextTask.draw"] = lambda: call(
        family().draw, n_tasks=2, generator=rng(), n_examples=2, active_width=2
    )
    return found


def laws() -> dict[str, Callable[[], Call]]:
    covariates = (
        training.Ellipsoid(EYE),
        training.Gaussian(EYE),
        training.GaussianMixture(EYE),
        training.ShiftedMixture(EYE),
    )
    labels = (
        training.KernelProcess(machine()),
        training.LinearFunctions(),
        training.ReluNetworks(2),
        training.Teachers(2, 2),
    )
    found: dict[str, Callable[[], Call]] = {}
    for law in covariates:
        name = type(law).__name__
        found[name] = lambda law=law: call(type(law), covariance=EYE)
        found[f"{name}.sample"] = lambda law=law: call(
            law.sample, n_tasks=2, n_tokens=2, generator=rng()
        )
    for law in labels:
        name, x, y = type(law).__name__, batch().x, batch().y
        found[f"{name}.sample"] = lambda law=law, x=x: call(law.sample, x=x, generator=rng())
        found[f"{name}.bayes"] = lambda law=law, x=x, y=y: call(law.bayes, x=x, y=y)
        found[f"{name}.covariance"] = lambda law=law, x=x: call(law.covariance, x=x)
        found[f"{name}.whitened"] = lambda law=law, x=x: call(law.whitened, x=x)
    return found


def of_problems() -> dict[str, Callable[[], Call]]:
    network, kernel, model = icgd.MLP((2, 1)), machine(), icgd.LinearModel(2)
    x, weights = torch.tensor(X).double(), torch.zeros(2).double()
    many = icgd.as_task(problem(), [X, X], [Y, Y])
    step, descent = icgd.FunctionalStep([0.1, 0.2]), icgd.ProximalStep(0.5)
    return {
        "MLP": lambda: call(icgd.MLP, widths=(2, 1)),
        "Problem.from_data": lambda: call(icgd.Problem.from_data, data=problem().to_data()),
        "MLP.ends": lambda: call(network.ends, layer=0),
        "MLP.sources": lambda: call(network.sources, layer=1),
        "MLP.initial_parameters": lambda: call(network.initial_parameters, seed=0, box=1.0),
        "MLP.layer_activation": lambda: call(network.layer_activation, layer=1),
        "MLP.layer_inputs": lambda: call(network.layer_inputs, outputs=x),
        "MLP.matrices": lambda: call(network.matrices, parameters=weights),
        "Domain": lambda: call(icgd.Domain, x=1.0, y=1.0),
        "Domain.of": lambda: call(icgd.Domain.of, X=X, y=Y),
        "FunctionalStep": lambda: call(icgd.FunctionalStep, step_size=0.1),
        "FunctionalStep.lookahead_of": lambda: call(step.lookahead_of, step=0),
        "FunctionalStep.momentum_of": lambda: call(step.momentum_of, step=0),
        "FunctionalStep.size_of": lambda: call(step.size_of, step=0),
        "FunctionalStep.require_steps": lambda: call(step.require_steps, n_steps=2),
        "FunctionalStep.machine_of": lambda: call(step.machine_of, step=0, machine=kernel),
        "FunctionalStep.require_machine": lambda: call(step.require_machine, machine=kernel),
        "FunctionalStep.transform_of": lambda: call(step.transform_of, step=0, width=2),
        "KernelHead": lambda: call(icgd.KernelHead, kernel="rbf"),
        "KernelHead.matrix": lambda: call(icgd.KernelHead().matrix, left=x, right=x),
        "KernelHead.moved": lambda: call(icgd.KernelHead().moved, points=x),
        "KernelMachine": lambda: call(icgd.KernelMachine, input_width=2),
        "KernelMachine.gram": lambda: call(kernel.gram, points=x),
        "KernelMachine.matrix": lambda: call(kernel.matrix, left=x, right=x),
        "KernelMachine.require_symmetric": lambda: call(kernel.require_symmetric, purpose="It"),
        "LinearModel": lambda: call(icgd.LinearModel, input_width=2),
        "LinearModel.design": lambda: call(model.design, x=x),
        "LinearModel.initial_parameters": lambda: call(model.initial_parameters),
        "LinearModel.loss_scale": lambda: call(model.loss_scale, n_examples=3),
        "LinearModel.penalised": lambda: call(model.penalised, like=weights),
        "Problem": lambda: call(
            icgd.Problem, target=network, loss="squared", update=problem().update, domain=DOMAIN
        ),
        "ProximalStep": lambda: call(icgd.ProximalStep, step_size=0.5),
        "ProximalStep.lookahead_of": lambda: call(descent.lookahead_of, step=0),
        "ProximalStep.momentum_of": lambda: call(descent.momentum_of, step=0),
        "ProximalStep.require_steps": lambda: call(descent.require_steps, n_steps=1),
        "Task.of_batch": lambda: call(many.of_batch, place=0),
        "Task": lambda: call(icgd.Task, x=x, y=x[:, :1], queries=x[:0], initial=weights),
        "as_task": lambda: call(icgd.as_task, problem=problem(), x=X, y=Y),
        "chebyshev_momentum": lambda: call(icgd.chebyshev_momentum, low=0.5, high=2.0, n_steps=2),
        "chebyshev_steps": lambda: call(icgd.chebyshev_steps, low=0.5, high=2.0, n_steps=2),
        "heavy_ball": lambda: call(icgd.heavy_ball, low=0.5, high=2.0),
        "nesterov": lambda: call(icgd.nesterov, low=0.5, high=2.0),
        "nesterov_momentum": lambda: call(icgd.nesterov_momentum, low=0.5, high=2.0),
        "newton_schulz": lambda: call(icgd.newton_schulz, high=2.0, n_steps=2),
        "fista_momenta": lambda: call(icgd.fista_momenta, n_steps=2),
        "from_torch": lambda: Call(icgd.from_torch, {**torch_parts(), "domain": DOMAIN}),
        "general_decay": lambda: call(icgd.general_decay, activation=torch.tanh),
        "register_kernel": lambda: call(
            icgd.register_kernel, name="own", function=lambda u, v: u @ v.mT
        ),
        "sized_problem": lambda: call(icgd.sized_problem, problem=linear().problem, X=X),
        "spectrum": lambda: call(icgd.spectrum, machine=kernel, X=X),
    }


def of_runs() -> dict[str, Callable[[], Call]]:
    data = {"X": X, "y": Y}
    certificate, guaranteed = compiled().certificate(), icgd.guarantee(linear(), X, Y)
    decay = icgd.general_decay(torch.tanh)
    x = torch.tensor(X).double()

    def again(thing: Any) -> Callable[[], Call]:
        """The constructor of a result, with the parts of one."""
        names = list(inspect.signature(type(thing)).parameters)
        return lambda: Call(type(thing), {name: getattr(thing, name) for name in names})

    return {
        "compile": lambda: call(
            icgd.compile, problem=problem(), construction="relu-stack", n_steps=1
        ),
        "compile of a choice": lambda: call(icgd.compile, problem=problem(), n_steps=1),
        "compile with a tolerance": lambda: call(
            icgd.compile, problem=problem(), construction="relu-stack", n_steps=1, tolerance=0.1
        ),
        "verify": lambda: Call(icgd.verify, {"compiled": compiled(), **data}),
        "guarantee": lambda: Call(icgd.guarantee, {"compiled": linear(), **data}),
        "load": lambda: call(icgd.load, path=f"{saved()}/run.safetensors"),
        "run_causal": lambda: call(icgd.run_causal, program=masked().program, task=task()),
        "Certificate": again(certificate),
        "Certificate.says_nothing": lambda: call(certificate.says_nothing, bound=0.5),
        "Certificate.of_run": lambda: call(certificate.of_run, is_covered=True),
        "Certificate.told": lambda: call(certificate.told, bound=0.5),
        "Guarantee": again(guaranteed),
        "GeneralDecay": again(decay),
        "GeneralDecay.combination": lambda: call(decay.combination, activation=torch.sin, x=x[0]),
        "Report": again(report()),
        "Report.plot": lambda: call(report().plot),
        "Run": again(run()),
        "Run.load_into": lambda: call(run().load_into, model=nn.Linear(2, 1, bias=False)),
        "Run.plot": lambda: call(run().plot),
        "Run.plot_stream": lambda: call(run().plot_stream),
        "Compiled": again(compiled()),
        "Compiled.task": lambda: Call(compiled().task, data),
        "Compiled.run": lambda: Call(compiled().run, data),
        "Compiled.run of a function": lambda: Call(functional().run, data),
        "Compiled.run of a linear model": lambda: Call(linear().run, data),
        "Compiled.run of a chain": lambda: Call(chained().run, data),
        "Compiled.run_task": lambda: call(compiled().run_task, task=task()),
        "Compiled.certificate": lambda: call(compiled().certificate),
        "Compiled.bounds_for": lambda: call(compiled().bounds_for, task=task(), backend="fused"),
        "Compiled.certify": lambda: Call(compiled().certify, data),
        "Compiled.summary": lambda: call(compiled().summary),
        "Compiled.transformer": lambda: call(compiled().transformer),
        "Compiled.block": lambda: call(compiled().block),
        "Compiled.for_depth": lambda: call(chained().for_depth, depth=3),
        "Compiled.draw": lambda: call(compiled().draw),
        "Compiled.save": lambda: call(compiled().save, path="run.safetensors"),
        "Picture.save": lambda: call(compiled().draw().save, path="picture.svg"),
        "Proof.save": lambda: call(proof().save, path="proof.json"),
        "export_onnx": lambda: call(onnx.export_onnx, compiled=compiled(), path="run.onnx"),
        "run_onnx": lambda: call(
            onnx.run_onnx,
            path=f"{saved()}/run.onnx",
            stream=torch.zeros(1, 3, compiled().stack.layout.width).double(),
        ),
        "statement_named": lambda: call(book.statement_named, key="wu-theorem-1"),
        "paper_named": lambda: call(book.paper_named, key="wu"),
    }


def of_constructions() -> dict[str, Callable[[], Call]]:
    names = "CotGlm CotLasso CotNetwork CotRidge Functional Recursion ReluStack SoftmaxStack"
    return {
        name: lambda name=name: call(getattr(icgd, name)) for name in [*names.split(), "Universal"]
    }


def of_estimators() -> dict[str, Callable[[], Call]]:
    found: dict[str, Callable[[], Call]] = {}
    for name in estimators.__all__:
        kind = getattr(estimators, name)
        labels = [1.0, 0.0, 1.0] if "Logistic" in name or "Classifier" in name else [1.0, 2.0, 0.0]
        few = {"max_iter": 3}
        if "hidden_layer_sizes" in inspect.signature(kind).parameters:
            few["hidden_layer_sizes"] = (2,)
        found[f"estimators.{name}"] = lambda kind=kind, labels=labels, few=few: Call(
            fitted(kind, labels), few
        )
        found[f"estimators.{name}.fit"] = lambda kind=kind, labels=labels, few=few: call(
            kind(**few).fit, X=X * 2, y=labels * 2
        )
        for method in ("predict", "predict_proba", "decision_function"):
            if hasattr(kind, method):
                found[f"estimators.{name}.{method}"] = (
                    lambda kind=kind, labels=labels, few=few, method=method: call(
                        getattr(_fitted(kind, tuple(labels)), method), X=X
                    )
                )
    return found


@cache
def _fitted(kind: type, labels: tuple[float, ...]) -> Any:
    few: dict[str, Any] = {"max_iter": 3}
    if "hidden_layer_sizes" in inspect.signature(kind).parameters:
        few["hidden_layer_sizes"] = (2,)
    return kind(**few).fit(X * 2, labels * 2)


def of_training() -> dict[str, Callable[[], Call]]:
    settings = {"n_steps": 1, "batch_size": 2, "learning_rate": 0.02}
    x, y = batch().x, batch().y
    table = {"x": torch.ones(20, 3, 2).double(), "y": torch.ones(20, 3).double()}
    learnable = training.LearnableRun(compiled())
    rows = {"x": torch.tensor(X).double(), "y": torch.tensor(Y)[:, None].double()}
    log = training.Log(({"step": 0.0, "loss": 1.0},))
    causal = training.Curriculum(1, 1, 4)
    averaged = training.AveragedTask(
        training.InContextTask(training.Gaussian(EYE), training.KernelProcess(machine()), 2)
    )
    return {
        "training.Settings": lambda: Call(training.Settings, settings),
        "training.Settings.learning_rate_at": lambda: call(
            training.Settings(**settings).learning_rate_at, step=0
        ),
        "training.Settings.new_optimizer": lambda: call(
            training.Settings(**settings).new_optimizer, parameters=[nn.Parameter(torch.ones(1))]
        ),
        "training.train": lambda: call(
            training.train,
            model=training.KernelTransformer.constructed(machine(), [0.1]),
            task=family(),
            settings=training.Settings(**settings),
        ),
        "training.train_config": lambda: call(
            training.train_config,
            config=training.read_config(
                options={"folder": f"{saved()}/config", "n_steps": 1, "batch_size": 2}
            ),
        ),
        "training.read_config": lambda: call(training.read_config, options={"n_steps": 5}),
        "training.Config": lambda: Call(
            training.Config,
            {"values": training.read_config(options={}).values, "folder": Path("a")},
        ),
        "training.Config.moved_to": lambda: call(
            training.read_config(options={}).moved_to, folder=Path("b")
        ),
        "training.read_log": lambda: call(training.read_log, folder=f"{saved()}/model"),
        "training.load": lambda: call(training.load, folder=f"{saved()}/model"),
        "training.Log": lambda: call(training.Log, rows=({"step": 0.0},)),
        "training.Log.before": lambda: call(log.before, step=1),
        "training.Log.column": lambda: call(log.column, name="loss"),
        "training.Log.with_row": lambda: call(log.with_row, row={"step": 1.0, "loss": 0.5}),
        "training.sweep": lambda: call(
            training.sweep, function=lambda configuration: 1, configurations=[{"seed": 0}]
        ),
        "training.similarity": lambda: call(
            training.similarity, first=learnt(), second=learnt(), batch=batch(), n_points=2
        ),
        "training.as_compiled": lambda: call(training.as_compiled, model=learnt(), domain=DOMAIN),
        "training.why_not_descent": lambda: call(training.why_not_descent, model=learnt()),
        "training.nearest_descent": lambda: call(training.nearest_descent, model=learnt()),
        "training.compare_with_constructions": lambda: call(
            training.compare_with_constructions,
            learnt=learnt(),
            task=averaged,
            machine=machine(),
            n_tasks=4,
        ),
        "training.unrolled_descent": lambda: call(
            training.unrolled_descent,
            problem=problem(),
            **rows,
            queries=rows["x"],
            initial=torch.zeros(2).double(),
            step_sizes=torch.full((2,), 0.1).double(),
        ),
        "training.LearnableRun": lambda: call(training.LearnableRun, compiled=compiled()),
        "training.LearnableRun.forward": lambda: Call(
            learnable.forward, {**rows, "queries": rows["x"]}
        ),
        "training.LearnableRun.steps": lambda: Call(
            learnable.steps, {**rows, "queries": rows["x"]}
        ),
        "training.UntiedRun": lambda: call(
            training.UntiedRun,
            problem=problem(),
            program=compiled().program,
            initial=torch.zeros(2).double(),
            transformer=compiled().transformer(),
        ),
        "training.Batch": lambda: call(training.Batch, x=x, y=y),
        "training.Batch.split": lambda: call(batch().split, n_tasks=1),
        "training.Batch.to": lambda: call(batch().to, device="cpu", dtype=torch.float32),
        "training.InContextTask": lambda: call(
            training.InContextTask,
            covariates=training.Gaussian(EYE),
            labels=training.LinearFunctions(),
            n_examples=2,
        ),
        "training.AveragedTask": lambda: call(training.AveragedTask, task=averaged.task),
        "training.AveragedTask.bayes_loss": lambda: call(
            averaged.bayes_loss, batch=averaged.sample(2, seed=0, index=0)
        ),
        "training.AveragedTask.mean_loss": lambda: call(
            averaged.mean_loss, model=learnt(), batch=averaged.sample(2, seed=0, index=0)
        ),
        "training.CausalTask": lambda: call(training.CausalTask, task=family()),
        "training.QueryTask": lambda: call(training.QueryTask, family=family(), n_queries=1),
        "training.QueryTask.parts": lambda: call(
            training.QueryTask(family(), 1).parts, batch=batch()
        ),
        "training.Curriculum": lambda: call(
            training.Curriculum, first_width=1, first_examples=1, n_batches=4
        ),
        "training.Curriculum.sizes": lambda: call(causal.sizes, index=0, width=2, n_examples=2),
        "training.GeneratedTask": lambda: call(training.GeneratedTask, draw=lambda n, rng: (x, y)),
        "training.TaskTable": lambda: Call(training.TaskTable, table),
        "training.TaskTable.read": lambda: call(
            training.TaskTable.read,
            path=f"{saved()}/tasks.csv",
            label_columns=["y"],
        ),
        "training.KernelProcess": lambda: call(training.KernelProcess, machine=machine()),
        "training.LinearFunctions": lambda: call(training.LinearFunctions),
        "training.ReluNetworks": lambda: call(training.ReluNetworks, hidden_width=2),
        "training.Teachers": lambda: call(training.Teachers, n_layers=2, hidden_width=2),
        "training.Ellipsoid.of_seed": lambda: call(training.Ellipsoid.of_seed, seed=0),
        "training.Ellipsoid.sphere": lambda: call(training.Ellipsoid.sphere, input_width=2),
        "training.ShiftedMixture.of_width": lambda: call(
            training.ShiftedMixture.of_width, input_width=2
        ),
        "training.Decoder": lambda: call(
            training.Decoder, input_width=2, n_blocks=1, width=4, n_heads=1, seed=0
        ),
        "training.Decoder.forward": lambda: call(decoder().forward, x=x, y=y),
        "training.Decoder.predictions": lambda: call(decoder().predictions, x=x, y=y),
        "training.Decoder.streams": lambda: call(decoder().streams, x=x, y=y),
        "training.Decoder.require": lambda: call(decoder().require, batch=batch(), n_tasks=2),
        "training.Decoder.of_description": lambda: call(
            training.Decoder.of_description, data=decoder().description()
        ),
        "training.KernelTransformer.of_description": lambda: call(
            training.KernelTransformer.of_description, data=learnt().description()
        ),
        "training.Decoder.require_length": lambda: call(decoder().require_length, n_tokens=3),
        "training.Decoder.require_room": lambda: call(
            decoder().require_room, n_tokens=3, n_tasks=2
        ),
        "training.KernelTransformer": lambda: call(
            training.KernelTransformer,
            input_width=2,
            n_layers=1,
            kernels=("linear",),
            transforms_covariates=False,
            seed=0,
        ),
        "training.KernelTransformer.constructed": lambda: call(
            training.KernelTransformer.constructed, machine=machine(), step_sizes=[0.1]
        ),
        "training.KernelTransformer.forward": lambda: call(learnt().forward, x=x, y=y),
        "training.KernelTransformer.like": lambda: call(
            training.KernelTransformer.like, model=learnt(), transforms_covariates=False
        ),
        **{f"training.{name}": made for name, made in (drawn_tasks() | laws()).items()},
    }


@cache
def calls() -> dict[str, Callable[[], Call]]:
    """A valid call of every public callable, by its name."""
    return {
        **of_problems(),
        **gradient_steps(),
        **of_constructions(),
        **constructions(),
        **of_runs(),
        **of_estimators(),
        **of_training(),
    }


HOOKS = frozenset(
    [
        "Verdict",  # an enum, which Python itself makes
        *("training.AbstractLogger", "training.AbstractTask"),  # written by users
        "training.Trained",  # what train_config returns
        "training.KernelTransformer.learn_in_units",  # any names
        *("training.LearnableRun.output", "training.LearnableRun.after_step"),
        *("training.UntiedRun.after_step", "training.QueryTask.loss"),  # steps of forward
    ]
)
"""Public names that are not called here, and why."""


def uncalled() -> set[str]:
    """Public callables with arguments that neither `calls` nor `HOOKS` has."""
    known = {_bare(parts()) for parts in calls().values()}
    named = {name: part for name, part in public().items() if name not in calls()}
    return {name for name, part in named.items() if _bare(part) not in known} - HOOKS


def _bare(part: Any) -> Any:
    """The function itself, which classes may share."""
    function = part.function if isinstance(part, Call) else part
    return inspect.unwrap(getattr(function, "__func__", function))


def public() -> dict[str, Any]:
    """Every public callable that takes arguments, by the names that `calls` uses."""
    found: dict[str, Any] = {}
    for home, prefix in ((icgd, ""), (estimators, "estimators."), (training, "training.")):
        for name in home.__all__:
            part = getattr(home, name)
            if callable(part):
                found[f"{prefix}{name}"] = part
            if inspect.isclass(part) and name not in ("AbstractLogger", "AbstractTask"):
                found |= {f"{prefix}{name}.{key}": f for key, f in methods_of(part).items()}
    return found


def methods_of(kind: type) -> dict[str, Any]:
    """Public methods of a class that take arguments, without those that are only declared."""
    raw = {name: inspect.getattr_static(kind, name) for name in dir(kind) if name[0] != "_"}
    bare = {name: getattr(part, "__func__", part) for name, part in raw.items()}
    return {
        name: part
        for name, part in bare.items()
        if inspect.isfunction(part)
        and part.__module__.startswith("icgd.")
        and len(inspect.signature(part).parameters) > 1
        and not getattr(part, "__isabstractmethod__", False)
    }


class Hangs(BaseException):
    """A call took too long."""


def _stop(*_: object) -> None:
    raise Hangs


def outcome(name: str, parameter: str, kind: str) -> tuple[str, str]:
    """What becomes of the call, and where it went wrong."""
    made, value = calls()[name](), KINDS[kind]()
    signal.alarm(PATIENCE)
    try:
        made.function(**{**made.arguments, parameter: value})
    except IcgdError as error:
        return _refusal(str(error), parameter), str(error)[:100]
    except Hangs:
        return "hangs", _place()
    except BaseException as error:
        if parameter in CALLED and callable(value):
            return "raised by what was given", ""
        return f"foreign: {type(error).__name__}", f"{_place()} {str(error)[:100]!r}"
    finally:
        signal.alarm(0)
    is_wrong = kind in NEVER and parameter not in ANYTHING and name not in TAKES_ANYTHING
    return ("done with nonsense" if is_wrong else "done"), ""


def _refusal(message: str, parameter: str) -> str:
    """Whether a message is short, and names the argument."""
    if len(message) > LONGEST:
        return "refused at length"
    words = {parameter, *WORDS.get(parameter, ())}
    return "refused" if any(word in message for word in words) else "refused in other words"


CALLED = frozenset(
    [
        "on_progress",
        "on_step",
        "on_report",
        "measure",
        "function",
        "draw",
        "activation",
        "model",
        "lipschitz",
        "bound",
    ]
)
"""Arguments that icgd calls: what they raise themselves is not caught."""

ANYTHING = frozenset(["configurations", "texts", "scheduler"])
"""Arguments that may be anything, because they are only handed on or shown."""

TAKES_ANYTHING = frozenset(
    [
        *("Certificate", "Report", "Guarantee", "GeneralDecay", "Run", "Task", "training.Batch"),
        *("Certificate.told", "Certificate.says_nothing"),  # bounds may be infinite
        *("MLP.layer_inputs", "MLP.matrices", "KernelHead.moved", "KernelHead.matrix"),
        *("LinearModel.design", "LinearModel.penalised", "GeneralDecay.combination"),
        *("training.UntiedRun", "KernelMachine.matrix"),  # functions of tensors keep a NaN
    ]
)
"""Results, and functions of tensors, that take numbers as they are."""

WORDS = {
    "x": ("X", "input"),
    "activation": ("Activation", "activation"),
    "output_activation": ("activation",),
    "unit_activation": ("unit activation",),
    "data": ("X", "y"),
    "folder": ("folder", "nowhere", "file"),
    "path": ("file", "Cannot", "name of a picture", "ending", "safetensors", "ONNX", "table"),
    "heads": ("head",),
    "name": ("Kernel", "kernel", "column"),
    "function": ("Kernel", "kernel", "Configuration"),
    "trace": ("slot",),
    "tokens": ("layout",),
    "construction": ("constructions",),
    "key": ("statement", "paper"),
    "options": ("key", "setting", "option"),
    "X": ("queries", "examples"),
    "config": ("file", "config"),
    "which": ("checkpoint", "Unknown"),
    "runner": ("Ray", "ray"),
}
"""What an argument is also called in messages."""

LONGEST = 2000
"""The most characters of a message."""


def _place() -> str:
    """The last line of icgd in the traceback."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [frame for frame in frames if "/icgd/" in frame.filename]
    frame = (ours or frames)[-1]
    return f"{frame.filename.rpartition('/icgd/')[2]}:{frame.lineno}"


def cases() -> list[tuple[str, str, str]]:
    """Every callable, parameter and kind of value."""
    return [
        (name, parameter, kind)
        for name, make in calls().items()
        for parameter in make().parameters()
        for kind in KINDS
    ]


def tried(chosen: list[tuple[str, str, str]]) -> Iterator[dict[str, str]]:
    """The outcomes of these cases, each in an empty folder."""
    known = dict(KERNELS)
    for name, parameter, kind in chosen:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found, place = outcome(name, parameter, kind)
            os.chdir("/")
        for added in KERNELS.keys() - known.keys():
            del KERNELS[added]
        yield {"case": f"{name}({parameter}={kind})", "outcome": found, "place": place}


def main(number: int, only: str = "") -> None:
    """Try a number of all cases, and write a line of JSON for each."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    signal.signal(signal.SIGALRM, _stop)
    every = [case for case in cases() if case[0].startswith(only)]
    chosen = every if number >= len(every) else Random(0).sample(every, number)
    results = sys.stdout
    missing = [{"case": name, "outcome": "not called", "place": ""} for name in sorted(uncalled())]
    with open(os.devnull, "w") as sys.stdout:  # noqa: PTH123 - what is called may print
        for row in chain(missing, tried(chosen)):
            results.write(json.dumps(row) + "\n")
            results.flush()
    shutil.rmtree(saved(), ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
