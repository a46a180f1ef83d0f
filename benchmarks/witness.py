"""Record what random problems compile to, how they run and what is proved; compare later code.

    python -m benchmarks.witness record OUT [--seed S] [--cases N]
    python -m benchmarks.witness compare OUT [--only TEXT] [--limit N]

Only the public API is called, so that the same script runs before and after a change of the code
behind it. Every case is one pair of files in OUT, `NUMBER-CONSTRUCTION.json` and `.npz`; an
interrupted recording goes on where it stopped. `compare` computes every case again and judges:

    weights, sizes, listings, verdicts, near-kink counts     equal
    exceptions, warnings                                     of the same class
    bounds                                                   equal or tighter; see `judge_bounds`
    trained weights, predictions, measured errors            within rounding; see `judge_run`
    saved files                                              equal after loading, old ones too

Other texts and messages may differ; that is listed as a note. The exit code is 1 on a failure.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

import icgd

N_CASES = 420
BACKENDS, DTYPES = ("fused", "dense"), ("float64", "float32")
DENSE_LIMIT = 50e6  # bytes of dense weights; larger transformers are neither built nor run
STORED_WEIGHTS = 40_000  # numbers: weights up to this many are stored, of others a hash is
STORED_TRACE = 20_000
FILE_EVERY, FILE_LIMIT = 12, 200_000  # which files are kept, and up to how many bytes
MOST_ATTEMPTS = 8

FIRST_STEP_ULPS = 4
"""One step may differ by this many ulp of the largest weight: a few sums in another order."""
NOISE_FACTOR = 16
"""Later steps may differ by this many times what an ulp or two in the inputs makes of them."""
BOUND_SLACK = 1e-12

ACTIVATIONS = ("relu", "leaky_relu", "identity", "tanh", "sigmoid", "gelu", "silu", "softplus")
LOSSES = ("squared", "logistic", "huber", "cross_entropy", "smooth_l1_0.5")
LINKS = ("identity", "logistic", "probit", "poisson", "softplus")
UNIT_ACTIVATIONS = (None, "relu", "sigmoid", "tanh", "softplus", "gelu", "silu", "elu", "cos")
KERNELS = {  # with step sizes that do not diverge
    "linear": 0.05,
    "relu": 0.05,
    "exp": 0.01,
    "rbf": 0.3,
    "laplace": 0.4,
    "matern": 0.3,
    "polynomial": 2e-3,
    "softmax": 0.7,
}
MIX = (
    ("relu-stack", 10),
    ("softmax-stack", 6),
    ("cot-network", 5),
    ("functional", 5),
    ("recursion", 4),
    ("cot-glm", 4),
    ("cot-ridge", 2),
    ("cot-lasso", 2),
    ("universal", 2),
    ("chosen", 2),
    ("misuse", 3),
)
"""How often each kind of case comes. "chosen" leaves the construction to icgd, or gives a
tolerance; "misuse" hands over data or settings that must be refused."""


# --- problems ---------------------------------------------------------------------------------


@dataclass
class Case:
    """What is compiled, and the data that it runs on."""

    problem: icgd.Problem
    construction: str | None
    n_steps: int
    settings: dict[str, Any]
    data: dict[str, Any]
    extras: dict[str, Any] = field(default_factory=dict)

    def compile(self) -> icgd.Compiled:
        options = dict(self.settings)
        if options.pop("with_task", False):
            options["task"] = icgd.as_task(self.problem, **lower_x(self.data))
        return icgd.compile(self.problem, self.construction, n_steps=self.n_steps, **options)


def lower_x(data: dict[str, Any]) -> dict[str, Any]:
    """`as_task` calls its inputs x, all others call them X."""
    return {("x" if name == "X" else name): value for name, value in data.items()}


class Draw:
    """Random choices of one case; `deck` deals all options before any comes again."""

    def __init__(self, seed: int, kind: str, number: int, attempt: int) -> None:
        self.key, self.number = f"{seed}/{kind}", number
        self.random = random.Random(f"{seed}/{kind}/{number}/{attempt}")
        self.generator = torch.Generator().manual_seed(self.random.randrange(2**31))

    def deck(self, name: str, options: Any) -> Any:
        options = list(options)
        turn, place = divmod(self.number, len(options))
        random.Random(f"{self.key}/{name}/{turn}").shuffle(options)
        return options[place]

    def between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def whole(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between -1 and 1."""
        return 2 * torch.rand(*shape, generator=self.generator, dtype=torch.float64) - 1


def numbered_kinds(n_cases: int) -> list[tuple[str, int]]:
    """The kind of every case and its number among those of that kind, all kinds spread evenly."""
    slots = sorted(((turn + 0.5) / share, kind) for kind, share in MIX for turn in range(share))
    seen: Counter[str] = Counter()
    found = []
    for number in range(n_cases):
        kind = slots[number % len(slots)][1]
        found.append((kind, seen[kind]))
        seen[kind] += 1
    return found


def drawn(seed: int, kind: str, number: int, attempt: int) -> Case:
    return DRAWN[kind](Draw(seed, kind, number, attempt))


def network_data(draw: Draw, problem: icgd.Problem, n: int) -> dict[str, Any]:
    """Inputs over the whole domain, labels that suit the loss; sometimes a batch of tasks."""
    widths, domain = problem.target.widths, problem.domain
    tasks = (draw.whole(2, 3),) if draw.chance(0.25) else ()
    shares = draw.uniform(*tasks, n, widths[-1]).abs()
    if problem.loss == "cross_entropy":
        y = shares.argmax(-1) if draw.chance(0.5) else shares / shares.sum(-1, keepdim=True)
    elif problem.loss == "logistic":
        y = shares * min(1.0, domain.y)
    else:
        y = draw.uniform(*tasks, n, widths[-1]) * domain.y
    n_queries = draw.whole(1, 3)
    data = {
        "X": draw.uniform(*tasks, n, widths[0]) * domain.x,
        "y": y,
        "queries": draw.uniform(*tasks, n_queries, widths[0]) * domain.x,
    }
    if domain.rate is not None and draw.chance(0.8):
        data["rates"] = draw.uniform(*tasks, n).abs() * domain.rate
    if problem.initial is None:
        data["seed"] = draw.whole(0, 1000)
    return data


def shuffled(draw: Draw, data: dict[str, Any]) -> dict[str, Any]:
    """The same examples in another order, which other batches come from."""
    order = torch.randperm(data["X"].shape[-2], generator=draw.generator)
    rows = {"X": data["X"][..., order, :]}
    if "rates" in data:
        rows["rates"] = data["rates"][..., order]
    y, n_axes = data["y"], data["X"].ndim
    rows["y"] = y[..., order, :] if y.ndim == n_axes else y[..., order]
    return data | rows


def optimiser(draw: Draw, kind: str, n_steps: int, box: float, batch: int | None) -> Any:
    size = draw.between(0.05, 0.6)
    sizes = tuple(size / (1 + step) for step in range(n_steps))
    momentum, decay = draw.between(0.2, 0.9), draw.between(0.01, 0.2)
    average = draw.between(0.3, 0.9)
    scale = draw.random.choice((1.0, 2.0))
    small = draw.between(0.005, 0.05)
    betas = (draw.between(0.5, 0.9), draw.between(0.8, 0.999))
    eps = draw.random.choice((0.05, 0.01, 1e-3))
    momenta = {"momentum": momentum, "gradient_scale": scale}
    adam = {"betas": betas, "eps": eps, "gradient_scale": scale}
    warm_up = (0.0, *sizes[1:]) if n_steps > 1 else sizes
    return {
        "plain": lambda: icgd.GradientStep(size, box, batch),
        "schedule": lambda: icgd.GradientStep(sizes, box, batch),
        "average": lambda: icgd.GradientStep(size, box, batch, average=average),
        "momentum": lambda: icgd.MomentumStep(size, box, batch, **momenta),
        "dampened": lambda: icgd.MomentumStep(size, box, batch, dampening=0.3, **momenta),
        "nesterov": lambda: icgd.MomentumStep(size, box, batch, nesterov=True, **momenta),
        "decay": lambda: icgd.MomentumStep(size, box, batch, momentum=0.0, weight_decay=decay),
        "all": lambda: icgd.MomentumStep(
            warm_up, box, batch, nesterov=True, weight_decay=decay, average=average, **momenta
        ),
        "scheduled momentum": lambda: icgd.MomentumStep(
            sizes, box, batch, weight_decay=decay, **momenta
        ),
        "adam": lambda: icgd.AdamStep(small, box, batch, **adam),
        "adam decay": lambda: icgd.AdamStep(
            tuple(small * s for s in sizes), box, batch, weight_decay=decay, **adam
        ),
        "adamw": lambda: icgd.AdamStep(
            small, box, batch, weight_decay=decay, decoupled=True, **adam
        ),
        "rmsprop": lambda: icgd.RmspropStep(
            small, box, batch, alpha=betas[1], eps=eps, weight_decay=decay * draw.whole(0, 1)
        ),
        "rmsprop average": lambda: icgd.RmspropStep(small, box, batch, eps=eps, average=average),
    }[kind]()


SOFTMAX_OPTIMISERS = (
    "plain",
    "plain",
    "schedule",
    "average",
    "momentum",
    "dampened",
    "nesterov",
    "decay",
    "all",
)
CHAIN_OPTIMISERS = (
    "plain",
    "plain",
    "schedule",
    "momentum",
    "dampened",
    "nesterov",
    "decay",
    "scheduled momentum",
)
RELU_OPTIMISERS = (
    *SOFTMAX_OPTIMISERS,
    "scheduled momentum",
    "adam",
    "adam decay",
    "adamw",
    "rmsprop",
    "rmsprop average",
)


def widths_of(draw: Draw, loss: str, depth: int, widest: int) -> tuple[int, ...]:
    least = 2 if loss == "cross_entropy" else 1
    inner = [draw.whole(1, widest) for _ in range(depth)]
    return (*inner, draw.whole(least, min(3, widest)))


def shaped(draw: Draw, widths: tuple[int, ...]) -> dict[str, Any]:
    """Shortcuts between layers of one width, and norms of layers of several units."""
    pairs = [(i, j) for j in range(1, len(widths)) for i in range(j) if widths[i] == widths[j]]
    wide = [layer for layer in range(1, len(widths)) if widths[layer] > 1]
    shape: dict[str, Any] = {}
    if pairs:
        shape["shortcuts"] = tuple(draw.random.sample(pairs, min(len(pairs), draw.whole(1, 2))))
    if wide and (not pairs or draw.chance(0.6)):
        shape["norms"] = tuple(draw.random.sample(wide, draw.whole(1, len(wide))))
        shape["norm_eps"] = draw.random.choice((1e-5, 0.01, 0.1))
    return shape


def kink_width(draw: Draw, target: icgd.MLP) -> dict[str, Any]:
    """Mostly ramps so wide that runs come to lie on them."""
    is_kinked = "relu" in target.activation + target.output_activation
    if not draw.chance(0.7 if is_kinked else 0.1):
        return {}
    return {"kink_width": 2.0 ** -draw.random.choice((0, 1, 2, 3, 8, 13))}


def relu_stack(draw: Draw) -> Case:
    loss, rule = draw.deck("loss", LOSSES), draw.deck("optimiser", RELU_OPTIMISERS)
    feature = draw.deck("feature", ("plain", "biases", "batch", "shaped", "rates", "initial"))
    widest = 3 if feature == "shaped" or rule.startswith(("adam", "rms")) else 5
    widths = widths_of(draw, loss, draw.deck("depth", (1, 2, 2, 3)), widest)
    if feature == "shaped":
        width = draw.whole(2, 3)
        widths = (width,) * len(widths) if draw.chance(0.6) else (*widths[:-1], width)
    shape = shaped(draw, widths) if feature == "shaped" else {}
    n_steps, n = draw.whole(1, 4), draw.whole(1, 6)
    batch = draw.whole(1, n) if feature == "batch" or draw.chance(0.15) else None
    # In a small box bounds on the whole domain say something; a large one is met by no weight.
    box = draw.between(0.2, 1.0) if draw.chance(0.7) else draw.between(1.0, 3.0)
    output = "identity" if draw.chance(0.6) else draw.random.choice(ACTIVATIONS)
    biases = feature == "biases" or draw.chance(0.2)
    target = icgd.MLP(widths, draw.deck("activation", ACTIVATIONS), output, biases, **shape)
    initial = None
    if feature == "initial":
        initial = tuple((draw.uniform(target.n_parameters) * box).tolist())
    rate = draw.between(0.5, 2.0) if feature == "rates" else None
    y = 1.0 if loss in ("cross_entropy", "logistic") else draw.between(0.5, 2.0)
    domain = icgd.Domain(draw.between(0.5, 1.5), y, rate=rate)
    update = optimiser(draw, rule, n_steps, box, batch)
    problem = icgd.Problem(target, loss, update, domain, initial)
    settings: dict[str, Any] = {"pieces": draw.whole(2, 12 if update.has_root else 40)}
    settings |= kink_width(draw, target)
    data = network_data(draw, problem, n)
    return Case(problem, "relu-stack", n_steps, settings, shuffled(draw, data) if batch else data)


def softmax_stack(draw: Draw) -> Case:
    loss, rule = draw.deck("loss", LOSSES), draw.deck("optimiser", SOFTMAX_OPTIMISERS)
    feature = draw.deck("feature", ("plain", "biases", "batch", "causal", "initial"))
    widths = widths_of(draw, loss, draw.deck("depth", (1, 2, 2, 3)), 3)
    n_steps, n = draw.whole(1, 3), draw.whole(1, 5)
    batch = draw.whole(1, n) if feature == "batch" else None
    box = draw.between(0.3, 1.0)
    output = "identity" if draw.chance(0.7) else draw.random.choice(ACTIVATIONS)
    biases = feature == "biases" or draw.chance(0.2)
    target = icgd.MLP(widths, draw.deck("activation", ACTIVATIONS), output, biases)
    initial = None
    if feature == "initial":
        initial = tuple((draw.uniform(target.n_parameters) * box).tolist())
    y = 1.0 if loss in ("cross_entropy", "logistic") else draw.between(0.5, 1.5)
    domain = icgd.Domain(draw.between(0.5, 1.2), y)
    update = optimiser(draw, rule, n_steps, box, batch)
    problem = icgd.Problem(target, loss, update, domain, initial)
    settings: dict[str, Any] = {}
    if draw.chance(0.5):
        settings["registers"] = 2 * draw.whole(16, 34)
    elif draw.chance(0.3):
        settings["dtype"] = "float32"
    settings |= kink_width(draw, target)
    data = network_data(draw, problem, n)
    causal = {"causal": feature == "causal" and data["X"].ndim == 2}
    return Case(problem, "softmax-stack", n_steps, settings, data, causal)


def cot_network(draw: Draw) -> Case:
    loss, rule = draw.deck("loss", LOSSES), draw.deck("optimiser", CHAIN_OPTIMISERS)
    widths = widths_of(draw, loss, draw.deck("depth", (1, 2, 2, 3)), 3)
    n_steps, n = draw.whole(1, 3), draw.whole(1, 4)
    activation = draw.deck("activation", ACTIVATIONS)
    output = "identity"
    if loss in ("squared",) and draw.chance(0.4):
        output = draw.random.choice((activation, "tanh", "sigmoid"))
    target = icgd.MLP(widths, activation, output, draw.chance(0.3))
    y = 1.0 if loss in ("cross_entropy", "logistic") else draw.between(0.5, 1.5)
    domain = icgd.Domain(draw.between(0.5, 1.5), y)
    batch = n if draw.chance(0.4) else draw.whole(1, n)
    update = optimiser(draw, rule, n_steps, draw.between(0.4, 1.5), batch)
    problem = icgd.Problem(target, loss, update, domain)
    settings: dict[str, Any] = {"dtype": "float32"} if draw.chance(0.2) else {}
    settings |= kink_width(draw, target)
    deeper = {"for_depth": draw.whole(2, 5)} if draw.chance(0.3) else {}
    data = shuffled(draw, network_data(draw, problem, n))
    return Case(problem, "cot-network", n_steps, settings, data, deeper)


def recursion(draw: Draw) -> Case:
    loss = draw.deck("loss", ("squared", "logistic", "huber", "smooth_l1_0.5"))
    widths = widths_of(draw, loss, draw.deck("depth", (1, 2, 2, 3)), 3)
    n_steps = draw.whole(1, 2)
    target = icgd.MLP(widths, draw.deck("activation", ACTIVATIONS), "identity", draw.chance(0.3))
    update = icgd.GradientStep(draw.between(0.01, 1.0), draw.between(0.1, 1.5))
    y = 1.0 if loss == "logistic" else draw.between(0.5, 2.0)
    problem = icgd.Problem(target, loss, update, icgd.Domain(draw.between(0.5, 1.5), y))
    settings: dict[str, Any] = {
        "units": draw.whole(24, 64),
        "unit_activation": draw.random.choice(UNIT_ACTIVATIONS),
    }
    if draw.chance(0.2):
        settings["dtype"] = "float32"
    settings |= kink_width(draw, target)
    data = network_data(draw, problem, draw.whole(1, 5))
    return Case(problem, "recursion", n_steps, settings, data)


def universal(draw: Draw) -> Case:
    activation = draw.deck("activation", ("identity", "tanh", "sigmoid", "gelu", "softplus"))
    loss = draw.deck("loss", ("squared", "logistic", "huber"))
    n = draw.whole(1, 3)
    update = icgd.GradientStep(draw.between(0.1, 2.0), draw.between(0.5, 2.0))
    y = 1.0 if loss == "logistic" else draw.between(0.5, 2.0)
    domain = icgd.Domain(draw.between(0.5, 2.0), y)
    problem = icgd.Problem(icgd.MLP((1, 1), "tanh", activation), loss, update, domain)
    settings: dict[str, Any] = {"levels": draw.whole(2, 4), "n_examples": n}
    if draw.chance(0.3):
        settings["kink_width"] = 2.0 ** -draw.whole(8, 20)
    return Case(problem, "universal", draw.whole(1, 3), settings, network_data(draw, problem, n))


def linear_model(construction: str) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        feature = draw.deck("feature", ("plain", "fista", "heavy", "nesterov", "started", "sized"))
        link = draw.deck("link", LINKS) if construction == "cot-glm" else "identity"
        n_steps, n, width = draw.whole(1, 4), draw.whole(2, 6), draw.whole(1, 4)
        penalised = draw.deck("penalised", ("none", "l1", "l2", "both"))
        l1 = draw.between(0.01, 0.2) * (penalised in ("l1", "both"))
        l2 = draw.between(0.01, 0.3) * (penalised in ("l2", "both"))
        if construction == "cot-ridge":
            l1 = 0.0
        model = icgd.LinearModel(
            width, link, draw.chance(0.5), "sum" if draw.chance(0.3) else "mean"
        )
        box = draw.between(0.5, 2.0)
        reduced = n if model.reduction == "sum" else 1
        momentum = {
            "fista": {"momentum": icgd.fista_momenta(n_steps), "nesterov": True},
            "heavy": {"momentum": draw.between(0.1, 0.8)},
            "nesterov": {"momentum": draw.between(0.1, 0.8), "nesterov": True},
        }.get(feature, {})
        size = None if feature == "sized" else draw.between(0.05, 0.5) / reduced
        update = icgd.ProximalStep(size, l2, l1, box, **momentum)
        x = draw.between(0.5, 2.0)
        score = draw.between(3.0, 6.0) if link == "poisson" or draw.chance(0.3) else None
        problem = icgd.Problem(model, "matching", update, icgd.Domain(x, 2.0, score=score))
        tasks = (draw.whole(2, 3),) if feature == "plain" and draw.chance(0.5) else ()
        data = {
            "X": draw.uniform(*tasks, n, width) * x,
            "y": draw.uniform(*tasks, n, 1).abs(),
            "queries": draw.uniform(*tasks, draw.whole(1, 3), width) * x,
        }
        if link == "identity":
            data["y"] = draw.uniform(*tasks, n, 1) * 2
        if feature == "started":
            data["initial"] = draw.uniform(model.n_parameters) * box
        if feature == "sized":
            problem = icgd.sized_problem(problem, data["X"])
        promised = {"guarantee": not tasks and feature in ("sized", "plain", "started")}
        return Case(problem, construction, n_steps, {}, data, promised)

    return case


def functional(draw: Draw) -> Case:
    feature = draw.deck(
        "feature",
        ("plain", "sum", "noise", "moved", "heads", "heavy", "nesterov", "schedule", "own", "mix"),
    )
    kernel = draw.deck("kernel", KERNELS)
    width, outputs, n = draw.whole(1, 4), draw.whole(1, 2), draw.whole(1, 6)
    n_steps = draw.whole(1, 4)

    def matrix(rows: int) -> list[list[float]]:
        return (draw.uniform(rows, width) * 0.7).tolist()

    def head(name: str) -> icgd.KernelHead:
        shape = {"matern": draw.random.choice((0.5, 1.5, 2.5)), "polynomial": 2.0}.get(name)
        moved = matrix(draw.whole(1, width)) if draw.chance(0.7) else None
        keys = matrix(len(moved)) if moved and feature == "heads" and draw.chance(0.5) else None
        return icgd.KernelHead(name, moved, draw.between(0.3, 2.0), shape, keys)

    size: Any = KERNELS[kernel] * draw.between(0.3, 1.0)
    options: dict[str, Any] = {}
    heads: Any = kernel
    if feature in ("sum", "mix"):
        size *= 0.1
        heads = [head(kernel), head(draw.random.choice(list(KERNELS)))]
    if feature in ("noise", "mix", "heavy"):
        options["noise"] = draw.between(0.05, 0.5)
    if feature == "moved":
        options["transforms"] = draw.random.choice((0.01, -0.02, matrix(width)))
        size *= 0.1
    if feature == "heads":
        options["heads"] = [
            [head(draw.random.choice(list(KERNELS))) for _ in range(draw.whole(1, 2))]
            for _ in range(n_steps)
        ]
        size *= 0.05
    if feature in ("heavy", "mix"):
        options["momentum"] = draw.between(0.1, 0.8)
    if feature == "nesterov":
        options |= {"momentum": icgd.fista_momenta(n_steps), "nesterov": True}
    if feature in ("schedule", "mix"):
        size = tuple(size / (1 + step) for step in range(n_steps))
    if feature == "own":
        heads = "witness_wave"
        icgd.register_kernel(heads, lambda u, w: torch.cos(u @ w.mT), lipschitz=abs, bound=1.0)
    domain = icgd.Domain(draw.between(0.5, 2.0), draw.between(0.5, 3.0))
    machine = icgd.KernelMachine(width, heads, outputs)
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(size, **options), domain)
    tasks = (draw.whole(2, 3),) if draw.chance(0.25) else ()
    data = {
        "X": draw.uniform(*tasks, n, width) * domain.x,
        "y": draw.uniform(*tasks, n, outputs) * domain.y,
        "queries": draw.uniform(*tasks, draw.whole(1, 3), width) * domain.x,
    }
    return Case(problem, "functional", n_steps, {}, data)


def chosen(draw: Draw) -> Case:
    """The construction is left to icgd, or its fineness to a tolerance."""
    kind = draw.deck("kind", ("relu-stack", "softmax-stack", "cot-glm", "functional", "tolerance"))
    if kind == "tolerance":
        case = relu_stack(draw)
        size = 10.0 ** -draw.whole(2, 4)
        of = draw.random.choice(("step", "weights", "predictions"))
        case.settings = {"tolerance": size, "tolerance_of": of, "with_task": True}
        return case
    case = DRAWN[kind](draw)
    case.construction, case.settings = None, {}
    return case


def misuse(draw: Draw) -> Case:
    """Something that must be refused: what is wrong is one number, name or shape."""
    wrong = draw.deck(
        "wrong",
        (
            *("nan", "beyond", "query", "shape", "labels", "start", "loss", "activation", "pieces"),
            *("schedule", "construction", "step", "box", "shortcut", "norm", "unsupported"),
            *("kernel", "momentum", "link", "tolerance", "rates", "seed and initial"),
        ),
    )
    problem = icgd.Problem(
        icgd.MLP((2, 3, 1), "loud" if wrong == "activation" else "tanh"),
        "hinge" if wrong == "loss" else "squared",
        icgd.GradientStep(-0.1 if wrong == "step" else 0.1, 0.0 if wrong == "box" else 1.0),
        icgd.Domain(1.0, 1.0),
    )
    data = {"X": draw.uniform(4, 2), "y": draw.uniform(4, 1), "queries": draw.uniform(2, 2)}
    settings: dict[str, Any] = {"pieces": 8}
    construction = "relu-stack"
    match wrong:
        case "nan":
            data["X"][1, 0] = math.nan
        case "beyond":
            data["X"][1, 0] = 1.5
        case "query":
            data["queries"][1, 0] = -1.5
        case "shape":
            data["X"] = draw.uniform(4, 3)
        case "labels":
            data["y"] = draw.uniform(3, 1)
        case "start":
            data["initial"] = draw.uniform(9) + 5
        case "pieces":
            settings = {"pieces": 0}
        case "schedule":
            update = icgd.GradientStep((0.1, 0.2, 0.3), 1.0)
            problem = icgd.Problem(problem.target, "squared", update, problem.domain)
        case "construction":
            construction = "relu-pile"
        case "shortcut":
            icgd.MLP((2, 3, 1), shortcuts=((0, 1),))
        case "norm":
            icgd.MLP((2, 3, 1), norms=(2,))
        case "unsupported":
            construction = "cot-ridge"
            settings = {}
        case "kernel":
            icgd.KernelMachine(2, "unheard")
        case "momentum":
            icgd.MomentumStep(0.1, 1.0, momentum=0.0, nesterov=True)
        case "link":
            icgd.LinearModel(2, "unheard")
        case "tolerance":
            settings = {"tolerance": 1e-30}
        case "rates":
            data["rates"] = draw.uniform(4).abs()
        case "seed and initial":
            data |= {"initial": draw.uniform(9), "seed": 1}
    return Case(problem, construction, 2, settings, data)


DRAWN: dict[str, Callable[[Draw], Case]] = {
    "relu-stack": relu_stack,
    "softmax-stack": softmax_stack,
    "cot-network": cot_network,
    "recursion": recursion,
    "universal": universal,
    "functional": functional,
    "cot-ridge": linear_model("cot-ridge"),
    "cot-lasso": linear_model("cot-lasso"),
    "cot-glm": linear_model("cot-glm"),
    "chosen": chosen,
    "misuse": misuse,
}


# --- what is recorded of a case ---------------------------------------------------------------


class Record:
    """Facts, which are JSON, and arrays, both by name; what raises is recorded as an exception."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def attempt(self, name: str, work: Callable[[], None]) -> bool:
        """Do the work; of an exception record class and message, and of warnings their classes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                work()
            except Exception as error:  # whatever it is, it is what happened
                self.facts[f"exception/{name}"] = {
                    "type": type(error).__name__,
                    "message": plain_text(str(error)),
                    "meant": type(error).__module__.startswith("icgd"),
                }
                return False
            finally:
                issued = {type(warning.message) for warning in caught}
                kinds = sorted(kind.__name__ for kind in issued if kind.__module__[:4] == "icgd")
                if kinds:
                    self.facts[f"warnings/{name}"] = kinds
        return True

    def keep(self, name: str, value: Any) -> None:
        if value is None:
            self.facts[f"none/{name}"] = None
        else:
            self.arrays[name] = torch.as_tensor(value).detach().numpy().copy()


def plain_text(text: str) -> str:
    """Without paths of temporary folders and addresses of objects."""
    return re.sub(r"0x[0-9a-f]+|/[^ ']*/witness-[^ /']*", "...", text)


def as_json(value: Any) -> Any:
    """Sizes as JSON; of an enum its name."""
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {part.name: as_json(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, (tuple, list)):
        return [as_json(entry) for entry in value]
    if isinstance(value, dict):
        return {str(name): as_json(entry) for name, entry in value.items()}
    return value


def size_of(compiled: icgd.Compiled, n_tokens: int | None = None) -> dict[str, Any]:
    """Everything that it says about its size; why it was chosen is a text."""
    return as_json(compiled.summary(n_tokens)) | {"chosen_because": None}


def hashed(tensor: Tensor) -> str:
    """SHA-256 of the bytes, with one zero for both signs."""
    return hashlib.sha256((tensor.detach() + 0).contiguous().numpy().tobytes()).hexdigest()


def compiled_of(seed: int, kind: str, number: int, record: Record) -> tuple[Case, Any] | None:
    """The first of a few draws that compiles; those that are refused are recorded as such."""
    for attempt in range(1 if kind == "misuse" else MOST_ATTEMPTS):
        found: list[Any] = []

        def work(attempt: int = attempt, found: list[Any] = found) -> None:
            found.append(drawn(seed, kind, number, attempt))
            found.append(found[0].compile())

        if record.attempt(f"compile {attempt}", work):
            return found[0], found[1]
    return None


def recorded(seed: int, kind: str, number: int, old_file: Path | None = None) -> Record:
    """Everything there is to know of a case; `old_file` was saved by the code of the recording."""
    record = Record()
    found = compiled_of(seed, kind, number, record)
    if found is None:
        return record
    case, compiled = found
    record.facts["data"] = {n: hashed(v) for n, v in case.data.items() if isinstance(v, Tensor)}
    summary = compiled.summary()
    record.facts["listing"] = compiled.listing()
    record.facts["size"] = size_of(compiled)
    record.facts["size of 7 tokens"] = size_of(compiled, 7)
    record.facts["text/compiled"] = repr(compiled)
    record.facts["text/problem"] = repr(case.problem)
    record.facts["text/chosen because"] = compiled.chosen_because
    record.facts["note/problem data"] = as_json(case.problem.to_data())
    record.facts["text/summary"] = repr(summary)
    is_small = 8 * summary.parameters <= DENSE_LIMIT
    if is_small:
        record.attempt("weights", lambda: keep_weights(record, compiled))
    else:
        record.facts["skipped"] = f"{summary.parameters:,} dense weights"
    for backend in BACKENDS if is_small else BACKENDS[:1]:
        for dtype in DTYPES:
            keep_run(record, case, compiled, backend, dtype)
    is_traced = is_small and number % 2 == 0
    if is_traced:
        record.attempt("trace", lambda: keep_trace(record, case, compiled))
    keep_extras(record, case, compiled, number)
    record.attempt("file", lambda: keep_file(record, case, compiled, is_small, number))
    if old_file is not None and old_file.exists():
        record.attempt("old file", lambda: keep_old_file(record, case, old_file))
    return record


def keep_weights(record: Record, compiled: icgd.Compiled) -> None:
    module: Any = None

    def whole() -> None:
        nonlocal module
        module = compiled.transformer()

    if not record.attempt("transformer", whole):  # a chain has none of fixed depth
        module = compiled.block()
    tensors = module.state_dict()
    record.facts["weights"] = [
        [name, list(tensor.shape), str(tensor.dtype), hashed(tensor)]
        for name, tensor in tensors.items()
    ]
    single = compiled.block("float32").state_dict()
    record.facts["weights in float32"] = [
        [name, list(tensor.shape), str(tensor.dtype), hashed(tensor)]
        for name, tensor in single.items()
    ]
    if sum(tensor.numel() for tensor in tensors.values()) <= STORED_WEIGHTS:
        for name, tensor in tensors.items():
            record.keep(f"weights/{name}", tensor)


def jittered(data: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The same data with inputs that are up to two ulp smaller, so that nothing leaves a domain."""
    generator = torch.Generator().manual_seed(17)
    eps = torch.finfo(getattr(torch, dtype)).eps
    nudged = dict(data)
    for name in ("X", "queries"):
        shape = data[name].shape
        nudge = 2 * eps * torch.rand(shape, generator=generator, dtype=torch.float64)
        nudged[name] = data[name].to(getattr(torch, dtype)).double() * (1 - nudge)
    return nudged


def keep_run(record: Record, case: Case, compiled: icgd.Compiled, backend: str, dtype: str) -> None:
    """A run, how far rounding of its inputs moves it, and what is proved of it."""
    where, options = f"{backend}/{dtype}", {"backend": backend, "dtype": dtype}

    def run() -> None:
        found = compiled.run(**case.data, **options)
        record.keep(f"run/{where}/parameters", found.parameters)
        record.keep(f"run/{where}/predictions", found.predictions)
        if dtype == "float64":
            record.facts[f"names/{where}"] = {n: list(w.shape) for n, w in found.weights.items()}
            record.keep(f"run/{where}/loss_curve", found.loss_curve)
            record.keep(f"run/{where}/objective_curve", found.objective_curve)
            record.facts[f"text/run/{where}"] = repr(found)

    def noise() -> None:
        found = compiled.run(**jittered(case.data, dtype), **options)
        record.keep(f"noise/{where}/parameters", found.parameters)
        record.keep(f"noise/{where}/predictions", found.predictions)
        if dtype == "float64":
            record.keep(f"noise/{where}/loss_curve", found.loss_curve)
            record.keep(f"noise/{where}/objective_curve", found.objective_curve)

    def verify() -> None:
        report = icgd.verify(compiled, **case.data, **options)
        keep_report(record, report, where)

    def certificate() -> None:
        keep_certificate(record, compiled.certificate(n_tokens=64, **options), f"64/{where}")

    if record.attempt(f"run/{where}", run):
        record.attempt(f"noise/{where}", noise)
        record.attempt(f"verify/{where}", verify)
    record.attempt(f"certificate/{where}", certificate)


def keep_report(record: Record, report: icgd.Report, where: str) -> None:
    for which in ("step", "trajectory", "prediction"):
        record.keep(f"errors/{where}/{which}", getattr(report, f"{which}_errors"))
        record.keep(f"bounds/{where}/{which}", getattr(report, f"{which}_bounds"))
    record.keep(f"bounds/{where}/paper_trajectory", report.paper_trajectory)
    record.facts[f"verdict/{where}"] = {
        "verdict": report.verdict.name,
        "holds": report.verdict.holds,
        "near kinks": report.near_kinks.count,
        "kink events": [
            [event.task, event.step, event.layer, event.token, event.unit]
            for event in report.near_kinks.events
        ],
        "empty": list(report.empty),
        "beyond paper": report.beyond_paper,
        "backend": report.backend,
        "dtype": report.dtype,
    }
    record.facts[f"text/report/{where}"] = report.verdict.value
    keep_certificate(record, report.certificate, where)


def keep_certificate(record: Record, certificate: icgd.Certificate, where: str) -> None:
    names = ("domain_step", "domain_trajectory", "domain_predictions", "paper_step", "widest")
    for name in names:
        record.keep(f"proved/{where}/{name}", getattr(certificate, name))
    record.facts[f"certificate/{where}"] = {
        "n_tokens": certificate.n_tokens,
        "stated": list(certificate.stated),
        "estimated": list(certificate.estimated),
        "empty": list(certificate.empty),
        "has condition": certificate.condition is not None,
    }
    record.facts[f"text/certificate/{where}"] = repr(certificate)


def keep_trace(record: Record, case: Case, compiled: icgd.Compiled) -> None:
    """The stream after every layer of the dense run, of a few small cases."""
    found = compiled.run(**case.data, backend="dense", trace=True)
    record.facts["trace"] = {name: list(part.shape) for name, part in found.trace.items()}
    if sum(part.numel() for part in found.trace.values()) > STORED_TRACE:
        return
    noise = compiled.run(**jittered(case.data, "float64"), backend="dense", trace=True)
    for name, part in found.trace.items():
        record.keep(f"run/trace/{name}", part)
        record.keep(f"noise/trace/{name}", noise.trace[name])


def keep_extras(record: Record, case: Case, compiled: icgd.Compiled, number: int) -> None:
    def rigorous() -> None:
        found = icgd.verify(compiled, **case.data, rigorous=True)
        # Both enclose how far the run is from exact descent, hence move as the run does.
        record.keep("errors/fused/float64/at most", found.rigorous.distances)
        record.keep("errors/fused/float64/at least", found.rigorous.least)
        record.facts["verdict/rigorous"] = {"verdict": found.verdict.name}

    def promise() -> None:
        data = {name: case.data[name] for name in ("X", "y", "initial") if name in case.data}
        found = icgd.guarantee(compiled, **data)
        record.facts["guarantee"] = {
            "theorem": found.theorem,
            "verdict": found.verdict.name,
            "distance": found.distance_verdict.name,
            "excess": found.excess_verdict.name,
        }
        for part in fields(found):
            if part.name not in ("theorem", "n_steps"):
                record.keep(f"guarantee/{part.name}", getattr(found, part.name))

    def deeper() -> None:
        found = compiled.for_depth(case.extras["for_depth"])
        record.facts["deeper listing"] = found.listing()
        record.facts["deeper size"] = size_of(found)
        run = found.run(**case.data)
        record.keep("run/deeper/parameters", run.parameters)
        record.keep("run/deeper/predictions", run.predictions)
        noise = found.run(**jittered(case.data, "float64"))
        record.keep("noise/deeper/parameters", noise.parameters)
        record.keep("noise/deeper/predictions", noise.predictions)

    def causal() -> None:
        for name, data in (("run", case.data), ("noise", jittered(case.data, "float64"))):
            run = icgd.run_causal(compiled.stack, compiled.task(**data))
            record.keep(f"{name}/causal/parameters", run.parameters)
            record.keep(f"{name}/causal/predictions", run.predictions)

    def stopped() -> None:
        for name, data in (("run", case.data), ("noise", jittered(case.data, "float64"))):
            run = compiled.run(**data, history=2, stop_below=0.05)
            record.keep(f"{name}/stopped/parameters", run.parameters)
            record.keep(f"{name}/stopped/predictions", run.predictions)
            record.facts[f"stopped {name}"] = [run.stopped_after, list(run.steps)]

    if number % 3 == 0:
        record.attempt("rigorous", rigorous)
    if number % 5 == 0:
        record.attempt("stopped", stopped)
    if case.extras.get("guarantee"):
        record.attempt("guarantee", promise)
    if "for_depth" in case.extras:
        record.attempt("deeper", deeper)
    if case.extras.get("causal"):
        record.attempt("causal", causal)


def keep_file(
    record: Record, case: Case, compiled: icgd.Compiled, is_small: bool, number: int
) -> None:
    """Save, load, and compare with what was saved; the metadata's keys and the tensors' names."""
    with tempfile.TemporaryDirectory(prefix="witness-") as folder:
        path = Path(folder) / "run.safetensors"
        compiled.save(path, weights=is_small and number % 3 == 0)
        with safetensors.safe_open(path, "pt") as stored:
            record.facts["note/metadata"] = sorted(stored.metadata())
            record.facts["note/tensors"] = sorted(stored.keys())
        loaded = icgd.load(path)
        run, again = compiled.run(**case.data), loaded.run(**case.data)
        record.facts["file"] = {
            "equal": loaded == compiled,
            "problem": loaded.problem == compiled.problem,
            "listing": loaded.listing() == compiled.listing(),
            "size": size_of(loaded) == size_of(compiled),
            "run": torch.equal(run.parameters, again.parameters)
            and torch.equal(run.predictions, again.predictions),
        }


def keep_old_file(record: Record, case: Case, path: Path) -> None:
    loaded = icgd.load(path)
    run = loaded.run(**case.data)
    record.facts["old listing"] = loaded.listing()
    record.facts["old size"] = size_of(loaded)
    record.keep("run/old/parameters", run.parameters)
    record.keep("run/old/predictions", run.predictions)


# --- judging ----------------------------------------------------------------------------------

EQUAL, WITHIN, ROUNDING, TIGHTER, FAILED = "equal", "within", "rounding", "tighter", "FAILED"


@dataclass
class Judged:
    """What became of the parts of a case."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    tighter: list[tuple[str, float]] = field(default_factory=list)
    rounding: list[str] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def add(self, status: str, what: str = "") -> None:
        self.counts[status] += 1
        if status == FAILED:
            self.failures.append(what)
        if status == ROUNDING:
            self.rounding.append(what)


def judge(old: Record, new: Record, has_file: bool) -> Judged:
    judged = Judged()
    for name in old.facts:
        judge_fact(judged, name, old.facts, new.facts)
    for name in new.facts.keys() - old.facts.keys():
        if name.startswith("exception/") and name != "exception/old file":
            error = new.facts[name]
            judged.add(FAILED, f"{name} is new: {error['type']}: {error['message']}")
        elif name.startswith("warnings/") and name != "warnings/old file":
            judged.add(FAILED, f"{name} is new: {new.facts[name]}")
    for name, array in old.arrays.items():
        if name.startswith("noise/"):
            continue
        if name not in new.arrays:
            judged.add(FAILED, f"{name} is missing")
        else:
            judge_array(judged, name, array, new.arrays[name], old, new)
    if has_file:
        judge_old_file(judged, old, new)
    return judged


def judge_fact(judged: Judged, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = old[name], new.get(name)
    if name.startswith(("text/", "note/")):
        if before != after:
            judged.notes.append((name.split("/")[0] + " " + name.split("/")[1], f"{after}"[:300]))
        return
    if name.startswith("exception/"):
        if not before["meant"] and (after is None or after["meant"]):
            judged.notes.append(("mended", f"{name}, was {before['type']}: {before['message']}"))
        elif after is None:
            judged.add(FAILED, f"{name} is gone, was {before['type']}: {before['message']}")
        elif after["type"] != before["type"]:
            found = f"{after['type']}: {after['message']}"
            judged.add(FAILED, f"{name} was {before['type']}: {before['message']}; now {found}")
        else:
            judged.add(EQUAL)
            if after["message"] != before["message"]:
                judged.notes.append(("message", f"{before['message']!r}, now {after['message']!r}"))
        return
    if name.startswith("none/") and name not in new:
        judged.notes.append(("what was None", name))
        return
    if before == after and name in new:
        judged.add(EQUAL)
    elif name.startswith("weights") and after is not None and not name.startswith("warnings"):
        judge_weights(judged, name, before, after)
    else:
        judged.add(FAILED, f"{name}: {difference(before, after)}")


def judge_weights(judged: Judged, name: str, before: list[Any], after: list[Any]) -> None:
    if [entry[1:] for entry in before] == [entry[1:] for entry in after]:
        judged.add(EQUAL)
        judged.notes.append(("names of tensors", f"{[entry[0] for entry in after]}"[:300]))
        return
    old, new = ({entry[0]: entry[1:] for entry in side} for side in (before, after))
    missing, more = old.keys() - new.keys(), new.keys() - old.keys()
    wrong = [tensor for tensor in old.keys() & new.keys() if old[tensor] != new[tensor]]
    judged.add(
        FAILED,
        f"{name}: {len(wrong)} of {len(old)} tensors differ, such as {sorted(wrong)[:3]}"
        + (f"; missing {sorted(missing)[:3]}" if missing else "")
        + (f"; new {sorted(more)[:3]}" if more else ""),
    )


def difference(before: Any, after: Any) -> str:
    """Where two facts differ first, in a line."""
    if isinstance(before, str) and isinstance(after, str):
        lines = zip(before.splitlines(), after.splitlines(), strict=False)
        for number, (one, other) in enumerate(lines, 1):
            if one != other:
                return f"line {number}: {one!r}, now {other!r}"
        return f"{len(before.splitlines())} lines, now {len(after.splitlines())}"
    if isinstance(before, dict) and isinstance(after, dict):
        gone = before.keys() - after.keys()
        if gone:
            return f"lacks {sorted(gone)}"
        keys = [key for key in before if before[key] != after[key]]
        if not keys:
            return f"has more: {sorted(after.keys() - before.keys())}"
        return "; ".join(f"{key}: {difference(before[key], after[key])}" for key in keys[:3])
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        places = [i for i in range(len(before)) if before[i] != after[i]]
        return f"entry {places[0]}: {difference(before[places[0]], after[places[0]])}"
    return f"{before!r:.200}, now {after!r:.200}"


def judge_array(
    judged: Judged, name: str, before: np.ndarray, after: np.ndarray, old: Record, new: Record
) -> None:
    if before.shape != after.shape or before.dtype != after.dtype:
        shapes = f"{before.dtype} {before.shape}, now {after.dtype} {after.shape}"
        judged.add(FAILED, f"{name}: {shapes}")
        return
    if np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
        judged.add(EQUAL)
        return
    kind = name.split("/")[0]
    if kind == "weights":
        judged.add(FAILED, f"{name}: {furthest(before, after)}")
    elif kind in ("run", "errors"):
        judge_run(judged, name, before, after, old)
    elif kind in ("bounds", "proved"):
        judge_bounds(judged, name, before, after, old, new)
    else:
        judge_guarantee(judged, name, before, after, old)


def judge_run(
    judged: Judged, name: str, before: np.ndarray, after: np.ndarray, old: Record
) -> None:
    """Numbers that a run computes: rounding alone may change them.

    After one step they may be off by FIRST_STEP_ULPS ulp of the largest number. What rounding
    makes of more steps, or of a transformer that divides by small numbers, was measured when the
    case was recorded: the same run on inputs that are up to two ulp smaller. NOISE_FACTOR times
    that movement, and FIRST_STEP_ULPS for each step, is taken to be rounding. A first step that
    needs this measure is listed.
    """
    limits, first = run_limits(name, before, old)
    gap = np.abs(after.astype(np.float64) - before.astype(np.float64))
    gap = np.where((before == after) | (np.isnan(before) & np.isnan(after)), 0.0, gap)
    if bool((gap <= np.minimum(first, limits)).all()):
        judged.add(WITHIN)
    elif bool((gap <= limits).all()):
        is_first = bool((gap[..., :2, :] > first).any()) if "/parameters" in name else False
        judged.add(
            ROUNDING if is_first else WITHIN,
            f"{name}: {furthest(before, after)}, {FIRST_STEP_ULPS} ulp are {first:.3g}",
        )
    else:
        judged.add(
            FAILED,
            f"{name}: {furthest(before, after)}, allowed are {np.max(limits):.3g}, "
            f"{FIRST_STEP_ULPS} ulp are {first:.3g}",
        )


def run_limits(name: str, before: np.ndarray, old: Record) -> tuple[np.ndarray, float]:
    """How far each number may be off, and what FIRST_STEP_ULPS ulp are."""
    kind, *where, what = name.split("/")
    if kind == "errors":  # distances of weights or predictions from those of real training
        what = "predictions" if what == "prediction" else "parameters"
        numbers = old.arrays[f"run/{'/'.join(where)}/{what}"]
    else:
        numbers = before
    place = "fused/float64" if where == ["old"] else "/".join(where)
    noise = old.arrays.get(f"noise/{place}/{what}")
    eps = np.finfo(numbers.dtype).eps
    finite = numbers[np.isfinite(numbers)]
    first = FIRST_STEP_ULPS * eps * float(np.abs(finite).max(initial=1e-300))
    if noise is None or noise.shape != numbers.shape:
        return np.full(before.shape, first), first
    moved = np.abs(noise.astype(np.float64) - numbers.astype(np.float64))
    if what == "parameters":
        # The largest movement of any weight of a task up to each step; every step rounds anew.
        so_far = np.maximum.accumulate(moved.max(-1, initial=0.0), axis=-1)
        # Weights before the first step are given, and must be equal.
        limits = first * np.arange(so_far.shape[-1]) + NOISE_FACTOR * so_far
        limits = limits[..., 1:] if kind == "errors" else limits[..., None]
        return np.broadcast_to(limits, before.shape), first
    history = old.arrays.get(f"run/{place}/parameters")
    n_steps = 1 if history is None else history.shape[-2] - 1
    limit = first * (1 + n_steps) + NOISE_FACTOR * float(moved.max(initial=0.0))
    return np.full(before.shape, limit), first


def judge_bounds(
    judged: Judged, name: str, before: np.ndarray, after: np.ndarray, old: Record, new: Record
) -> None:
    """Bounds may be tighter, and looser by BOUND_SLACK of themselves.

    Bounds of a run depend on its weights: where those differ within rounding, bounds may be looser
    by a thousand ulp as well.
    """
    kind, *where, _ = name.split("/")
    slack, run = BOUND_SLACK, f"run/{'/'.join(where)}/parameters"
    if kind == "bounds" and not np.array_equal(old.arrays[run], new.arrays[run], equal_nan=True):
        slack += 1000 * float(np.finfo(old.arrays[run].dtype).eps)
    if np.isnan(before).tolist() != np.isnan(after).tolist():
        judged.add(FAILED, f"{name}: {before.tolist()}, now {after.tolist()}")
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        looser = np.where(before == after, 0.0, (after - before) / np.abs(before))
        looser = np.where(np.isinf(before) & np.isfinite(after), -1.0, looser)
        if bool((looser > slack).any()):
            worst = float(np.nanmax(looser))
            judged.add(
                FAILED, f"{name}: looser by {worst:.3g} of itself; {furthest(before, after)}"
            )
        elif bool((np.nan_to_num(looser) >= -slack).all()):
            judged.add(WITHIN)
        else:
            judged.add(TIGHTER)
            judged.tighter.append((name, float(np.nanmin(np.where(looser < 0, after / before, 1)))))


def judge_guarantee(
    judged: Judged, name: str, before: np.ndarray, after: np.ndarray, old: Record
) -> None:
    """The minimiser is known up to its slack, on which distances and slacks depend."""
    part = name.split("/")[1]
    gap, size = abs(float(after) - float(before)), abs(float(before))
    if part.endswith("_slack") or part == "excess_rounding":
        judged.add(WITHIN)
        judged.notes.append((f"guarantee {part}", f"{float(before):.3g}, now {float(after):.3g}"))
        return
    room = 1e-9 * size
    if part in ("distance", "start_distance", "distance_bound", "contraction_bound"):
        room += 2 * float(old.arrays["guarantee/distance_slack"])
    if part == "excess":
        room += 2 * sum(
            float(old.arrays[f"guarantee/{n}"]) for n in ("excess_slack", "excess_rounding")
        )
    is_bound = part.endswith("_bound") or part == "step_error"
    is_tighter = is_bound and float(after) < float(before)
    if gap <= room or is_tighter:
        judged.add(WITHIN if gap <= room else TIGHTER)
        if gap > room:
            judged.tighter.append((name, float(after) / float(before)))
    else:
        judged.add(FAILED, f"{name}: {float(before)!r}, now {float(after)!r}")


def judge_old_file(judged: Judged, old: Record, new: Record) -> None:
    if "old listing" not in new.facts:
        error = new.facts.get("exception/old file", {"type": "nothing", "message": "not loaded"})
        judged.add(FAILED, f"old file: {error['type']}: {error['message']}")
        return
    for name in ("listing", "size"):
        before, after = old.facts[name], new.facts[f"old {name}"]
        if before == after:
            judged.add(EQUAL)
        else:
            judged.add(FAILED, f"old file, {name}: {difference(before, after)}")
    for what in ("parameters", "predictions"):
        before = old.arrays[f"run/fused/float64/{what}"]
        judge_array(judged, f"run/old/{what}", before, new.arrays[f"run/old/{what}"], old, new)


def furthest(before: np.ndarray, after: np.ndarray) -> str:
    """The entry that differs most."""
    old, new = np.atleast_1d(before).astype(np.float64), np.atleast_1d(after).astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.nan_to_num(np.where(old == new, 0.0, np.abs(new - old)), nan=np.inf)
    place = np.unravel_index(int(gap.argmax()), gap.shape)
    spot = [int(index) for index in place]
    return f"at {spot} {float(old[place])}, now {float(new[place])} (off by {gap[place]:.3g})"


# --- recording and comparing ------------------------------------------------------------------


def case_name(number: int, kind: str) -> str:
    return f"{number:04d}-{kind}"


def timed(work: Callable[[], Record]) -> Record:
    start = time.perf_counter()
    record = work()
    record.facts["seconds"] = round(time.perf_counter() - start, 2)
    return record


def record_all(out: Path, seed: int, n_cases: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "files").mkdir(exist_ok=True)
    settings = {"seed": seed, "cases": n_cases, "torch": torch.__version__, "code": icgd.__file__}
    stored = out / "recording.json"
    if stored.exists():
        before = json.loads(stored.read_text())
        if any(before[name] != settings[name] for name in ("seed", "cases", "code")):
            sys.exit(f"{out} holds another recording: {before}. Give another folder.")
    stored.write_text(json.dumps(settings, indent=1))
    for number, (kind, among) in enumerate(numbered_kinds(n_cases)):
        name = case_name(number, kind)
        if (out / f"{name}.json").exists():
            continue
        record = timed(lambda kind=kind, among=among: recorded(seed, kind, among))
        if "listing" in record.facts and number % FILE_EVERY == 0:
            save_file(seed, kind, among, out / "files" / f"{name}.safetensors", number)
        np.savez_compressed(out / f"{name}.npz", **escaped(record.arrays))
        (out / f"{name}.json").write_text(json.dumps(record.facts, indent=1))
        print(f"{name} {record.facts['seconds']:6.2f} s {told(record)}", flush=True)


def save_file(seed: int, kind: str, among: int, path: Path, number: int) -> None:
    """Keep a file of this code, with or without dense weights, if it is small."""
    found = compiled_of(seed, kind, among, Record())
    if found is None:
        return
    found[1].save(path, weights=number % (2 * FILE_EVERY) == 0)
    if path.stat().st_size > FILE_LIMIT:
        found[1].save(path, weights=False)
    if path.stat().st_size > FILE_LIMIT:
        path.unlink()


def told(record: Record) -> str:
    """In a line: what it is, or why it was refused, and what went wrong in it."""
    errors = [
        f"{name.removeprefix('exception/')}: {error['type']}"
        for name, error in record.facts.items()
        if name.startswith("exception/") and name != "exception/transformer"
    ]
    text = record.facts.get("text/problem", "refused")
    return f"{text[:110]} {errors}" if errors else f"{text[:110]}"


def escaped(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A zip file's folders are no part of a name."""
    return {name.replace("/", "|"): array for name, array in arrays.items()}


def read(out: Path, name: str) -> Record:
    record = Record()
    record.facts = json.loads((out / f"{name}.json").read_text())
    with np.load(out / f"{name}.npz", allow_pickle=False) as stored:
        record.arrays = {key.replace("|", "/"): stored[key] for key in stored.files}
    return record


def selected(
    out: Path, n_cases: int, only: str, limit: int | None
) -> Iterator[tuple[str, str, int]]:
    """The recorded cases whose name or problem has `only` in it; at most `limit`, evenly spread."""
    found = []
    for number, (kind, among) in enumerate(numbered_kinds(n_cases)):
        name = case_name(number, kind)
        path = out / f"{name}.json"
        if not path.exists():
            print(f"{name} was not recorded")
        elif only in name or only in json.loads(path.read_text()).get("text/problem", ""):
            found.append((name, kind, among))
    if limit is not None and limit < len(found):
        by_kind = sorted(found, key=lambda case: (case[1], case[0]))
        found = sorted(by_kind[int(i * len(found) / limit)] for i in range(limit))
    yield from found


def compare_all(out: Path, only: str, limit: int | None) -> int:
    settings = json.loads((out / "recording.json").read_text())
    table: dict[str, Counter[str]] = defaultdict(Counter)
    failures: list[tuple[str, str]] = []
    tighter: list[tuple[str, str, float]] = []
    rounding: list[tuple[str, str]] = []
    notes: dict[str, list[str]] = defaultdict(list)
    start, then, now = time.perf_counter(), 0.0, 0.0
    for name, kind, among in selected(out, settings["cases"], only, limit):
        old, old_file = read(out, name), out / "files" / f"{name}.safetensors"
        work = lambda kind=kind, among=among, path=old_file: recorded(  # noqa: E731
            settings["seed"], kind, among, path
        )
        new = timed(work)
        then, now = then + old.facts.pop("seconds"), now + new.facts.pop("seconds")
        # The new record passes through JSON too, so that tuples and keys are alike.
        new.facts = json.loads(json.dumps(new.facts))
        judged = judge(old, new, old_file.exists())
        table[kind]["cases"] += 1
        table[kind].update(judged.counts)
        failures += [(name, text) for text in judged.failures]
        tighter += [(name, text, ratio) for text, ratio in judged.tighter]
        rounding += [(name, text) for text in judged.rounding]
        for topic, text in judged.notes:
            notes[topic].append(f"{name}: {text}")
        if judged.failures:
            print(f"{name} FAILED: {judged.failures[0]}", flush=True)
    print_table(table)
    print(f"{icgd.__file__}: {time.perf_counter() - start:.0f} s in all")
    print(f"the cases took {now:.0f} s, when recorded {then:.0f} s")
    for title, lines in {
        "first steps off by more than 4 ulp, which rounding explains": [
            f"{name}: {text}" for name, text in rounding
        ],
        "tighter bounds, with the least share of the old bound": [
            f"{name}: {text} x {ratio:.6g}"
            for name, text, ratio in sorted(tighter, key=lambda entry: entry[2])
        ],
        **{f"notes: {topic}": lines for topic, lines in notes.items()},
    }.items():
        show(title, lines)
    show("FAILED", [f"{name}: {text}" for name, text in failures], most=200)
    return 1 if failures else 0


def print_table(table: dict[str, Counter[str]]) -> None:
    columns = ("cases", EQUAL, WITHIN, ROUNDING, TIGHTER, FAILED)
    print(f"{'':16}" + "".join(f"{column:>10}" for column in columns))
    total: Counter[str] = Counter()
    for kind, counts in table.items():
        print(f"{kind:16}" + "".join(f"{counts[column]:>10,}" for column in columns))
        total.update(counts)
    print(f"{'all':16}" + "".join(f"{total[column]:>10,}" for column in columns))


def show(title: str, lines: list[str], most: int = 8) -> None:
    if not lines:
        return
    print(f"\n{title}: {len(lines):,}")
    for line in lines[:most]:
        print(f"  {line}")
    if len(lines) > most:
        print(f"  and {len(lines) - most:,} more")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record what the code does")
    recording.add_argument("out", type=Path)
    recording.add_argument("--seed", type=int, default=0, help="another seed, other problems")
    recording.add_argument("--cases", type=int, default=N_CASES)
    comparing = commands.add_parser("compare", help="compare the code with a recording")
    comparing.add_argument("out", type=Path)
    comparing.add_argument("--only", default="", help="cases with this text in name or problem")
    comparing.add_argument("--limit", type=int, help="at most so many cases, evenly spread")
    chosen_options = parser.parse_args()
    torch.set_num_threads(1)  # sums are split among threads, and rounded accordingly
    if chosen_options.command == "record":
        record_all(chosen_options.out, chosen_options.seed, chosen_options.cases)
        return 0
    return compare_all(chosen_options.out, chosen_options.only, chosen_options.limit)


if __name__ == "__main__":
    sys.exit(main())
