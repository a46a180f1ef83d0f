"""Problems with numbers at the ends of what is allowed, and everything that is done with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

import icgd
from icgd.errors import IcgdError
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error

PLAIN = (0.1, 0.5, 1.0, 2.0)

EXTREME = (
    5e-324, 1e-320, 1e-300, 1e-150, 1e-46, 1e-39, 1e-10, 1e-3, 10.0, 1e3, 1e10, 1e20, 1e38, 1e39,
    1e75, 1e150, 1e155, 1e200, 1e300, 1e308, 1.7e308,
)  # fmt: skip

KINDS = ("relu-stack", "softmax-stack", "recursion", "cot-network", "universal", "default")


class Drawn:
    """Draws problems; most of their numbers are plain, so that some problems can be solved."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def number(self) -> float:
        return self.random.choice((*PLAIN, self.random.choice(EXTREME)))

    def size(self) -> float | tuple[float, ...]:
        return self.random.choice((self.number(), (self.number(), self.number())))

    def maybe(self, **settings: Any) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if self.random.random() < 0.3}

    def network(self) -> icgd.Problem:
        choose, box = self.random.choice, self.number()
        decay = self.maybe(weight_decay=self.number())
        momentum = choose((0.0, 0.5, 0.9, 0.999999, 1e-300))
        steps: list[Callable[[], Any]] = [
            lambda: icgd.GradientStep(self.size(), box, **self.maybe(batch_size=2, average=0.5)),
            lambda: icgd.MomentumStep(self.size(), box, momentum=momentum, **decay),
            lambda: icgd.AdamStep(
                self.size(), box, eps=choose((1e-8, 0.1, self.number())), **decay
            ),
            lambda: icgd.RmspropStep(self.size(), box, eps=choose((0.1, self.number())), **decay),
        ]
        widths = choose(((2, 1), (2, 3, 1), (1, 1), (1, 2, 2, 1), (2, 3, 3)))
        activation = choose(("tanh", "relu", "sigmoid", "gelu", "softplus", "identity"))
        loss = choose(("squared", "squared", "cross_entropy", "logistic", "huber"))
        return icgd.Problem(icgd.MLP(widths, activation), loss, choose(steps)(), self.domain())

    def function(self) -> icgd.Problem:
        kernel = self.random.choice(("rbf", "linear", "softmax", "exp"))
        step = icgd.FunctionalStep(self.size(), **self.maybe(noise=self.number(), momentum=0.5))
        machine = icgd.KernelMachine(self.random.choice((1, 2)), kernel)
        return icgd.Problem(machine, "squared", step, self.domain())

    def linear_model(self) -> icgd.Problem:
        penalty = self.random.choice(("l1", "l2"))
        penalties = self.maybe(**{penalty: self.number(), "momentum": 0.5})
        step = icgd.ProximalStep(self.number(), box=self.number(), **penalties)
        model = icgd.LinearModel(
            self.random.choice((1, 2, 3)), self.random.choice(("identity", "logistic", "poisson"))
        )
        return icgd.Problem(model, "matching", step, self.domain())

    def domain(self) -> icgd.Domain:
        return icgd.Domain(x=self.number(), y=self.number())

    def compiled(self) -> icgd.Compiled:
        make = self.random.choice((self.network, self.network, self.function, self.linear_model))
        problem, kind = make(), self.random.choice(KINDS)
        chosen = () if make != self.network or kind == "default" else (kind,)
        return icgd.compile(problem, *chosen, n_steps=2)

    def data(self, compiled: icgd.Compiled) -> tuple[torch.Tensor, torch.Tensor]:
        """Examples of the domain, or of a small part of it."""
        problem, n = compiled.problem, compiled.program.n_examples or 3
        generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        shapes = ((n, problem.target.input_width), (n, problem.target.output_width))
        x, y = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        share = self.random.choice((1.0, 1e-3))
        return share * problem.domain.x * x, problem.domain.y * y


def saved_and_loaded(compiled: icgd.Compiled) -> icgd.Compiled | None:
    """The run after its way through a file; None if `load` refuses what `save` wrote."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        compiled.save(path)
        try:
            return icgd.load(path)
        except IcgdError:
            return None


def uses(
    compiled: icgd.Compiled, x: torch.Tensor, y: torch.Tensor
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is done with a compiled run, by name."""
    yield "its listing", compiled.listing
    yield "its summary", compiled.summary
    yield "its file", lambda: saved_and_loaded(compiled)
    for dtype in ("float64", "float32"):
        for backend in ("fused", "dense"):
            chosen = {"dtype": dtype, "backend": backend}
            where = f"{backend} in {dtype}"
            yield f"certificate, {where}", lambda c=chosen: compiled.certificate(**c)
            yield f"run, {where}", lambda c=chosen: compiled.run(x, y, queries=x, **c)
            yield f"verify, {where}", lambda c=chosen: icgd.verify(compiled, x, y, queries=x, **c)
    yield "guarantee", lambda: icgd.guarantee(compiled, x, y)


def outcome(use: Callable[[], Any], compiled: icgd.Compiled, name: str) -> str:
    try:
        found = use()
    except Exception as problem:
        return outcome_of_error(problem)
    if name == "its file" and found != compiled:
        return "own file refused" if found is None else "another program"
    if name.startswith("verify"):
        return "holds" if found.verdict.holds else "broken"
    return "done"


def cases(n: int) -> Iterator[tuple[str, str]]:
    return islice(_all_cases(), n)


def _all_cases() -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in count():
            drawn = Drawn(seed)
            try:
                compiled = drawn.compiled()
            except Exception as problem:
                yield f"seed {seed}: compile", outcome_of_error(problem)
                continue
            x, y = drawn.data(compiled)
            for name, use in uses(compiled, x, y):
                yield f"seed {seed}: {name}", outcome(use, compiled, name)


CAMPAIGN = Campaign(
    name="settings",
    title="Problems with numbers at the ends of what is allowed, and everything done with them",
    sample=300,
    whole=30_000,
    allowed={
        "done": "it can be done",
        "holds": "no measured error is beyond its bound",
        "refused": "an error of icgd",
    },
    cases=cases,
)


@both_sizes
def test_extreme_settings_are_used_or_refused(whole):
    CAMPAIGN.carry_out(whole=whole)
