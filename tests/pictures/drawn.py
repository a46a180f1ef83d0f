"""Programs of every construction, small enough to be drawn in a moment."""

from functools import cache

import icgd
from icgd.compiled import Compiled

DOMAIN = icgd.Domain(x=2.0, y=2.0)


def network(construction: str, widths: tuple[int, ...] = (2, 3, 1), **settings: object) -> Compiled:
    chosen = {"activation": "tanh", "n_steps": 4, "batch_size": None, "box": 1.0, **settings}
    target = icgd.MLP(widths, chosen.pop("activation"))
    update = icgd.GradientStep(0.1, chosen.pop("box"), chosen.pop("batch_size"))
    return icgd.compile(icgd.Problem(target, "squared", update, DOMAIN), construction, **chosen)


def linear(construction: str, link: str, **settings: float) -> Compiled:
    penalties = {name: settings.pop(name) for name in ("l1", "l2") if name in settings}
    update = icgd.ProximalStep(step_size=0.3, box=1.0, **penalties)
    domain = icgd.Domain(2.0, 2.0, score=5.0)
    problem = icgd.Problem(icgd.LinearModel(3, link, True), "matching", update, domain)
    return icgd.compile(problem, construction, n_steps=4, **settings)


def functional(step_size: object = 0.2, n_steps: int = 3) -> Compiled:
    update = icgd.FunctionalStep(step_size, noise=0.1)
    problem = icgd.Problem(icgd.KernelMachine(3, "rbf"), "squared", update, DOMAIN)
    return icgd.compile(problem, "functional", n_steps=n_steps)


def universal() -> Compiled:
    problem = icgd.Problem(
        icgd.MLP((1, 1), "tanh", "tanh"), "squared", icgd.GradientStep(2.0, 1.0), DOMAIN
    )
    return icgd.compile(problem, "universal", n_steps=2, n_examples=2)


MAKE = {
    "relu-stack": lambda: network("relu-stack", pieces=8),
    "softmax-stack": lambda: network("softmax-stack"),
    "universal": universal,
    "recursion": lambda: network("recursion", box=0.5),
    "cot-network": lambda: network("cot-network", activation="relu", batch_size=2),
    "functional": functional,
    "linear-stack": lambda: linear("linear-stack", "identity", l2=0.1),
    "cot-ridge": lambda: linear("cot-ridge", "identity", l2=0.1, n_examples=5),
    "cot-lasso": lambda: linear("cot-lasso", "identity", l1=0.1, l2=0.1, n_examples=5),
    "cot-glm": lambda: linear("cot-glm", "logistic", n_examples=5),
}


@cache
def compiled(construction: str) -> Compiled:
    return MAKE[construction]()
