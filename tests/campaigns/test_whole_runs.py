"""Random whole runs of transformers: what balls prove of them, beside training in 60 digits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import icgd
import icgd_check
from icgd.certificates.balls import Trajectory, exact_data, rigorous_trajectory
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.problems.data import Task
from tests import precise_training
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error
from tests.precise_training import ERROR, is_inside, real

LEAST = real(1e-40)
ACTIVATIONS = ("tanh", "relu", "leaky_relu", "sigmoid", "silu", "gelu", "softplus", "identity")
KERNELS = ("linear", "relu", "exp", "rbf", "laplace", "matern", "polynomial", "softmax")
RULES = (
    "plain", "batches", "schedule", "momentum", "dampening", "Nesterov", "decay", "average",
    "Adam", "AdamW", "RMSprop",
)  # fmt: skip
PLAIN_RULES = ("plain", "batches", "schedule", "decay", "average")


class Drawn:
    """Draws problems and data; the same ones for the same name."""

    def __init__(self, name: str) -> None:
        self.random = Random(name)
        self.pick = self.random.choice

    def maybe(self, value: Any, share: float = 0.3) -> Any:
        return value if self.random.random() < share else None

    def uniform(self, *shape: int, low: float = -1.0) -> Tensor:
        generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        return low + (1 - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    def update(self, rule: str, n_steps: int, n_examples: int, **settings: Any) -> Any:
        size, box = self.pick((0.05, 0.2, 0.5, 1.0)), self.pick((0.7, 1.5, 3.0))
        sizes = tuple(size * self.random.uniform(0.2, 1.0) for _ in range(n_steps))
        shared = {"box": box, "batch_size": self.maybe(self.random.randint(1, n_examples))}
        average = self.maybe(self.pick((0.5, 0.9)), 0.2)
        share, decay = self.pick((0.5, 0.9)), self.pick((0.01, 0.2))
        small = {**shared, "average": average, "eps": 10.0 ** -self.pick((1, 2, 3, 5, 8))}
        small |= settings
        heavy = partial(icgd.MomentumStep, size / 2, **shared, momentum=share)
        makers: dict[str, Callable[[], Any]] = {
            "plain": lambda: icgd.GradientStep(size, box),
            "batches": lambda: icgd.GradientStep(size, box, self.random.randint(1, n_examples)),
            "schedule": lambda: icgd.GradientStep(sizes, **shared, average=average),
            "momentum": lambda: heavy(average=average),
            "dampening": lambda: heavy(dampening=0.3),
            "Nesterov": lambda: heavy(nesterov=True, weight_decay=self.pick((0.0, decay))),
            "decay": lambda: icgd.MomentumStep(size, **shared, momentum=0.0, weight_decay=decay),
            "average": lambda: icgd.GradientStep(size, **shared, average=share),
            "Adam": lambda: icgd.AdamStep(size / 10, betas=(share, 0.99), **small),
            "AdamW": lambda: icgd.AdamStep(sizes, weight_decay=decay, decoupled=True, **small),
            "RMSprop": lambda: icgd.RmspropStep(size / 10, weight_decay=decay, **small),
        }
        return makers[rule]()

    def network(self, rule: str, n_steps: int, *, bare: bool = False, **settings: Any) -> Any:
        """A network of 1 to 3 layers; a bare one has no norms and no shortcuts."""
        n = self.pick((1, 3, 6))
        hidden = (self.pick((2, 3, 4)) for _ in range(self.pick((0, 1, 2))))
        loss = self.pick(("squared", "huber", "logistic", "cross_entropy", "smooth_l1_0.5"))
        outputs = self.pick((2, 3)) if loss == "cross_entropy" else self.pick((1, 2))
        widths = (self.pick((1, 2, 3)), *hidden, outputs)
        extras = {"biases": self.pick((True, False))}
        if not bare:
            layers = range(1, len(widths))
            pairs = [(i, j) for j in layers for i in range(j) if widths[i] == widths[j]]
            extras["shortcuts"] = tuple(pair for pair in pairs if self.maybe(True, 0.5))
            extras["norms"] = tuple(j for j in layers if widths[j] > 1 and self.maybe(True))
        target = icgd.MLP(widths, self.pick(ACTIVATIONS), **extras)
        rates = self.maybe(self.uniform(n, 1, low=0.0))
        domain = icgd.Domain(1.0, 1.0, rate=None if rates is None else 1.0)
        update = self.update(rule, n_steps, n, **settings)
        y = self.uniform(n, outputs, low=0.0 if loss == "logistic" else -1.0)
        if loss == "cross_entropy":
            y = torch.tensor([self.random.randrange(outputs) for _ in range(n)]).double()
        problem, seed = icgd.Problem(target, loss, update, domain), self.random.randrange(99)
        x, queries = self.uniform(n, widths[0]), self.uniform(2, widths[0])
        return problem, icgd.as_task(problem, x, y, queries=queries, seed=seed, rates=rates)

    def momentum(self, n_steps: int) -> dict[str, Any]:
        shares = self.pick((None, 0.5, tuple(self.random.random() for _ in range(n_steps))))
        return {"momentum": shares, "nesterov": shares is not None and self.pick((True, False))}

    def linear(self, n_steps: int) -> Any:
        link = self.pick(("identity", "logistic", "probit", "poisson", "softplus"))
        model = icgd.LinearModel(2, link, self.pick((True, False)), self.pick(("mean", "sum")))
        penalties = {"l2": self.pick((0.0, 0.2)), "l1": self.pick((0.0, 0.02))}
        step = icgd.ProximalStep(0.1, **penalties, box=0.6, **self.momentum(n_steps))
        problem = icgd.Problem(model, "matching", step, icgd.Domain(1.0, 1.0))
        x, y = self.uniform(5, 2), self.uniform(5, 1, low=0.0)
        initial = 0.5 * self.uniform(model.n_parameters)
        return problem, icgd.as_task(problem, x, y, queries=self.uniform(2, 2), initial=initial)

    def head(self) -> icgd.KernelHead:
        turned, keys = (self.uniform(2, 2).tolist() for _ in range(2))
        kernel, keys = self.pick(KERNELS), self.maybe(keys)
        return icgd.KernelHead(kernel, turned, self.pick((0.5, 1.0)), None, keys)

    def function(self, n_steps: int) -> Any:
        machine = icgd.KernelMachine(2, [self.head() for _ in range(self.pick((1, 2)))])
        sizes = tuple(self.random.uniform(0.01, 0.1) for _ in range(n_steps))
        heads = self.maybe([[self.head()] for _ in range(n_steps)]) or ()
        moves = self.pick(((), 0.002, (0.002 * self.uniform(2, 2)).tolist()))
        noise, momentum = self.pick((0.0, 0.1)), self.momentum(n_steps)
        update = icgd.FunctionalStep(self.pick((0.1, sizes)), noise, moves, heads, **momentum)
        problem = icgd.Problem(machine, "squared", update, icgd.Domain(1.0, 1.0))
        x, y, queries = self.uniform(4, 2), self.uniform(4, 1), self.uniform(2, 2)
        return problem, icgd.as_task(problem, x, y, queries=queries)


@dataclass(frozen=True)
class Judged:
    """What is proved of a run and of training in float64, beside the truth."""

    proof: Trajectory
    measured: float  # against training in float64
    pairs: list[tuple[list[Any], Tensor]]
    least: tuple[list[Any], Tensor]

    @classmethod
    def of(
        cls, problem: icgd.Problem, task: Task, n_steps: int, construction: AbstractConstruction
    ) -> Judged:
        run = icgd.compile(problem, construction, n_steps=n_steps).run_task(task)
        oracle = problem.oracle.train(task, n_steps)
        proof = rigorous_trajectory(problem, task, run.parameters, run.predictions, oracle)
        exact = precise_training.train(problem, task, n_steps)

        def distances(history: Tensor) -> list[Any]:
            rows = zip(exact.steps, history[1:].tolist(), strict=True)
            return [precise_training.distance(*row) for row in rows]

        def gaps(predictions: Tensor) -> list[Any]:
            both = zip(exact.predictions, predictions.flatten().tolist(), strict=True)
            return [abs(value - real(number)) for value, number in both]

        of_run = distances(run.parameters)
        expected = problem.oracle.predict(task, oracle[-1])
        pairs = [
            (of_run, proof.distances),
            (distances(oracle), proof.of_oracle),
            (gaps(run.predictions), proof.predictions),
            (gaps(expected), proof.predictions_of_oracle),
        ]
        measured = float((run.parameters - oracle).abs().max())
        return cls(proof, measured, pairs, (of_run, proof.least))

    @property
    def is_true(self) -> bool:
        """Whether no proved distance is below the true one, and no lower bound above it."""
        above = (
            truth <= real(bound) + ERROR
            for truths, bounds in self.pairs
            for truth, bound in zip(truths, bounds.flatten().tolist(), strict=True)
        )
        below = (
            truth >= real(bound) - ERROR
            for truth, bound in zip(self.least[0], self.least[1].tolist(), strict=True)
        )
        return all(above) and all(below)

    @property
    def ratio(self) -> float:
        """The largest proved distance over the largest true one, which float64 may hide."""
        return float(real(float(self.proof.distances.max())) / max(*self.least[0], LEAST))

    @property
    def outcome(self) -> str:
        if not self.is_true:
            return "proved too much"
        if self.proof.first_unproved is not None:
            return "not proved to its end"
        if self.proof.n_kinks:
            return "at a kink"
        return TWICE if self.ratio <= 2 else TEN_TIMES if self.ratio <= 10 else MORE


TWICE, TEN_TIMES, MORE = "at most twice", "at most ten times", "more than ten times"
MEANINGS = {
    TWICE: "the proved distance is at most twice the one from training in 60 digits",
    TEN_TIMES: "the proved distance is at most ten times that",
    MORE: "the proved distance is more than that, but never less than the true one",
    "at a kink": "both slopes are kept",
    "enclosed": "every number of exact training is within the distance of its step",
    "too near": "a kink is too near for norms, and balls are taken",
    "beyond all": "distances of 64 bits have grown beyond all bounds, and the run is refused",
}


def any_run(index: int) -> Judged:
    """Every rule and kind in turn; a third are linear models and kernel machines."""
    drawn = Drawn(f"whole run {index}")
    n_steps = drawn.pick((2, 5, 20))
    if index % 3 == 2:
        is_function = index % 2 == 1
        n_steps = min(n_steps, 5) if is_function else n_steps  # moved inputs soon grow
        problem, task = (drawn.function if is_function else drawn.linear)(n_steps)
    else:
        problem, task = drawn.network(RULES[index % len(RULES)], n_steps)
    return judged(drawn, problem, task, n_steps)


def long_run(index: int, rules: tuple[str, ...], **settings: Any) -> Judged:
    """A network without norms and shortcuts, by up to 200 steps."""
    drawn = Drawn(f"long run {index}")
    n_steps = drawn.pick((5, 20, 60, 200))
    rule = rules[index % len(rules)]
    problem, task = drawn.network(rule, n_steps, bare=True, **settings)
    return judged(drawn, problem, task, n_steps)


def norm_run(index: int) -> str:
    """Whether the 2-norm, at its coarsest, holds exact training after every plain step."""
    drawn = Drawn(f"norm run {index}")
    n_steps, rule = drawn.pick((5, 20, 60, 200)), PLAIN_RULES[index % len(PLAIN_RULES)]
    problem, task = drawn.network(rule, n_steps, bare=True)
    described, data = problem.oracle.described(task, n_steps), exact_data(task)
    descent = icgd_check.Descent(described, data, n_steps, icgd_check.LEAST_BITS, "norm")
    for values in precise_training.train(problem, task, n_steps).steps:
        try:
            balls = descent.step()
        except icgd_check.RefusedError as reason:
            known = [outcome for outcome in ("too near", "beyond all") if outcome in str(reason)]
            return known[0] if known else f"refused: {reason}"
        if not all(map(is_inside, values, balls)):
            return "proved too much"
    return "enclosed"


def judged(drawn: Drawn, problem: icgd.Problem, task: Task, n_steps: int) -> Judged:
    """Run by any construction that takes the problem, but for a table."""
    names = [name for name, each in CONSTRUCTIONS.items() if each.why_not(problem) is None]
    chosen = CONSTRUCTIONS[drawn.pick([name for name in names if name != "universal"])]
    if "n_examples" in chosen.settings():
        chosen = replace(chosen, n_examples=task.n_examples)
    return Judged.of(problem, task, n_steps, chosen)


def cases(make: Callable[[int], str], n: int) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index in range(n):
            try:
                yield f"case {index}", make(index)
            except Exception as problem:
                yield f"case {index}: {problem!r}", outcome_of_error(problem)


def campaign(
    name: str, title: str, make: Callable[[int], str], sizes: tuple[int, int], *allowed: str
) -> Campaign:
    meanings = {outcome: MEANINGS[outcome] for outcome in allowed}
    return Campaign(name, title, *sizes, meanings, partial(cases, make))


CAMPAIGNS = [
    campaign(
        "whole_runs",
        "Whole runs of every rule and kind, proved by balls, beside training in 60 digits",
        lambda index: any_run(index).outcome, (30, 500), TWICE, TEN_TIMES, MORE, "at a kink",
    ),
    campaign(
        "tight_runs",
        "Plain steps, batches and momentum for up to 200 steps, proved by balls or in the 2-norm",
        lambda index: long_run(index, ("plain", "batches", "momentum")).outcome, (3, 200), TWICE,
    ),
    campaign(
        "adam_runs",
        "Adam with eps 1e-3 for up to 200 steps, proved by balls",
        lambda index: long_run(index, ("Adam",), eps=1e-3).outcome, (3, 100), TWICE, TEN_TIMES,
    ),
    campaign(
        "adam_runs_of_small_eps",
        "Adam with eps 1e-8 for up to 200 steps, proved by balls",
        lambda index: long_run(index, ("Adam",), eps=1e-8).outcome, (3, 100),
        TWICE, TEN_TIMES, MORE,
    ),
    campaign(
        "norm_runs",
        "Plain steps for up to 200 steps, followed in the 2-norm",
        norm_run, (20, 500), "enclosed", "too near", "beyond all",
    ),
]  # fmt: skip


@both_sizes
@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda campaign: campaign.name)
def test_no_proved_distance_is_below_the_truth(campaign, whole):
    campaign.carry_out(whole=whole)
